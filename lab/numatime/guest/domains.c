// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * domains CPU MIB: two processes take turns on the CPU, domain 1 and domain 2, and read MIB and 2 x
 * MIB of memory, of each line once. The plugin's counts for each between the marks 1 and 2 are to
 * be held against that: lab/calibrate.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "numatime.h"
#include "program.h"

#define LINE 64
#define PARTS 4 /* turns; in each the kernel needs some lines of its own */

static char *new_memory(size_t bytes)
{
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			    0);

	if (memory == MAP_FAILED)
		die("mmap");
	memset(memory, 1, bytes);
	return memory;
}

static void read_lines(const char *memory, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += LINE)
		(void)*(const volatile char *)(memory + i);
}

/* Waits for its turn, and gives it to the other. */
static void take_turn(int mine, int other, const char *memory, size_t bytes)
{
	char token = 0;

	if (read(mine, &token, 1) != 1)
		die("read");
	read_lines(memory, bytes);
	if (write(other, &token, 1) != 1)
		die("write");
}

int main(int count, char **arguments)
{
	size_t bytes = count == 3 ? strtoul(arguments[2], NULL, 0) << 20 : 0;
	int to_first[2], to_second[2], status;
	char *memory, token = 0;
	pid_t child;

	if (!bytes) {
		fprintf(stderr, "usage: domains CPU MIB\n");
		return 2;
	}
	run_on(atoi(arguments[1]));
	if (pipe(to_first) || pipe(to_second))
		die("pipe");
	child = fork();
	if (child < 0)
		die("fork");
	if (!child) {
		NUMATIME_DOMAIN(2);
		memory = new_memory(2 * bytes);
		if (write(to_first[1], &token, 1) != 1)
			die("write");
		for (size_t i = 0; i < PARTS; i++)
			take_turn(to_second[0], to_first[1], memory + i * (2 * bytes / PARTS),
				  2 * bytes / PARTS);
		NUMATIME_DOMAIN(0);
		return 0;
	}
	NUMATIME_DOMAIN(1);
	memory = new_memory(bytes);
	if (read(to_first[0], &token, 1) != 1)
		die("read");
	NUMATIME_MARK(1);
	for (size_t i = 0; i < PARTS; i++) {
		if (write(to_first[1], &token, 1) != 1)
			die("write");
		take_turn(to_first[0], to_second[1], memory + i * (bytes / PARTS), bytes / PARTS);
		if (read(to_first[0], &token, 1) != 1)
			die("read");
	}
	NUMATIME_MARK(2);
	NUMATIME_DOMAIN(0);
	if (waitpid(child, &status, 0) != child || status)
		return 1;
	printf("{\"what\":\"domains\",\"lines\":[%zu,%zu]}\n", bytes / LINE, 2 * bytes / LINE);
	return 0;
}
