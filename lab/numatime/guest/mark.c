// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * NUMATIME_MARK for shells: `numatime-mark ID` has the plugin report all its counters under a
 * number from 0 to 255. Does nothing where there is no plugin.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The id is a part of the instruction, which is therefore made here; then: ret. */
static void mark(unsigned char id)
{
	const unsigned char code[] = { 0x0f, 0x1f, 0x80, id, 0x4d, 0x55, 0x4e, 0xc3 };
	void *page = mmap(NULL, sizeof code, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0);

	if (page == MAP_FAILED ||
	    (memcpy(page, code, sizeof code), mprotect(page, sizeof code, PROT_READ | PROT_EXEC))) {
		perror("numatime-mark");
		exit(1);
	}
	((void (*)(void))page)();
}

int main(int argc, char **argv)
{
	char *end;
	long id = argc == 2 ? strtol(argv[1], &end, 10) : -1;

	if (id < 0 || id > 255 || end == argv[1] || *end) {
		fputs("usage: numatime-mark ID (0 to 255)\n", stderr);
		return 2;
	}
	mark((unsigned char)id);
	return 0;
}
