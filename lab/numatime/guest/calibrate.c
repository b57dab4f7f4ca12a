// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * calibrate MIB CPU..: for each of these CPUs and each node, how long a line takes that is
 *
 *   loaded          from memory of the node, in an order that no prefetcher foresees
 *   executed        from memory of the node: each line is a jump to the next
 *   cache_to_cache  from the cache of the node's first CPU, which has just written it
 *   rewritten       by that CPU after its caches had lost the line and this CPU had read it, and is
 *                   read again
 *   contended       while that CPU writes it all the time: a line for each store
 *
 * where MIB, a power of two, is at least twice the size of the caches. A first pass touches all
 * lines in the same order, so that the lines used last are needed last. A line of JSON for each, to
 * compare with the machine file; lab/calibrate compares the work between the marks 1 and 2 around
 * each with the plugin's counters.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "numatime.h"
#include "program.h"

#define LINE 64
#define MPOL_BIND 2
#define MAX_NODES 16
#define CACHED_BYTES (64ul << 10)   /* less than they hold */
#define FILTERED_BYTES (32ul << 10) /* the size of the plugin's filters */
/* of lines from cache to cache, each for itself: a pass is so short that an interrupt shows */
#define PASSES 5
#define STORES 2000 /* into a line that another CPU wants, too */
/* of so many stores: a pass is so short that in some neither CPU serves an interrupt */
#define CONTENDED_PASSES 20
/* of a pass through memory, each for itself: a whole pass has room for several ticks */
#define PARTS 4

static size_t memory_bytes;

static int is_there(const char *format, int one, int two)
{
	char path[96];

	snprintf(path, sizeof path, format, one, two);
	return !access(path, F_OK);
}

static int first_cpu(int node)
{
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (is_there("/sys/devices/system/node/node%d/cpu%d", node, cpu))
			return cpu;
	return -1;
}

/* Memory of the node, there already. */
static char *new_memory(int node, size_t bytes, int access)
{
	unsigned long nodes = 1ul << node;
	char *memory;

	if (syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 8 * sizeof nodes))
		die("set_mempolicy");
	memory = mmap(NULL, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	memset(memory, 0, bytes);
	syscall(SYS_set_mempolicy, 0, NULL, 0);
	return memory;
}

/*
 * Which line comes after line i of n, a power of two: i -> (a i + c) mod n visits all of them,
 * where a = 1 mod 4 and c is odd (Knuth, The Art of Computer Programming 2, 3.2.1.2, theorem A).
 */
static size_t next_line(size_t i, size_t n)
{
	return (0x9e3779b5u * i + 12345) & (n - 1);
}

static void say(const char *what, int cpu, int node, size_t lines, int64_t ns)
{
	printf("{\"what\":\"%s\",\"cpu\":%d,\"node\":%d,\"lines\":%zu,\"ns_per_line\":%.2f}\n",
	       what, cpu, node, lines, (double)ns / (double)lines);
	fflush(stdout);
}

/*
 * Passes over memory: the kernel's own work falls into one of them; the first CPU has ticks, too.
 */
static int passes_on(int cpu)
{
	return cpu ? 2 : 3;
}

static void *follow(void *next, size_t lines)
{
	for (size_t i = 0; i < lines; i++)
		next = *(void *volatile *)next;
	return next;
}

static void load(int cpu, int node)
{
	size_t lines = memory_bytes / LINE;
	char *memory = new_memory(node, memory_bytes, PROT_READ | PROT_WRITE);
	void *next = memory;
	int64_t start;

	for (size_t i = 0; i < lines; i++)
		*(void **)(memory + i * LINE) = memory + next_line(i, lines) * LINE;
	next = follow(next, lines);
	for (int part = 0; part < PARTS * passes_on(cpu); part++) {
		start = now_ns();
		NUMATIME_MARK(1);
		next = follow(next, lines / PARTS);
		NUMATIME_MARK(2);
		say("loaded", cpu, node, lines / PARTS, now_ns() - start);
	}
	munmap(memory, memory_bytes);
}

static void execute(int cpu, int node)
{
	size_t lines = memory_bytes / LINE, line = 0;
	char *memory = new_memory(node, memory_bytes, PROT_READ | PROT_WRITE | PROT_EXEC);
	void (*run[PARTS])(void);
	int64_t start;

	/* jmp rel32 in each line, but for the last of each part: ret. */
	for (size_t i = 0; i < lines; i++) {
		size_t next = next_line(line, lines);
		int32_t distance = (int32_t)(((long)next - (long)line) * LINE - 5);
		char *here = memory + line * LINE;

		if (i % (lines / PARTS) == 0)
			memcpy(&run[i / (lines / PARTS)], &here, sizeof here);
		*here = (i + 1) % (lines / PARTS) ? (char)0xe9 : (char)0xc3;
		memcpy(here + 1, &distance, sizeof distance);
		line = next;
	}
	for (int part = 0; part < PARTS; part++)
		run[part]();
	for (int part = 0; part < PARTS * passes_on(cpu); part++) {
		start = now_ns();
		NUMATIME_MARK(1);
		run[part % PARTS]();
		NUMATIME_MARK(2);
		say("executed", cpu, node, lines / PARTS, now_ns() - start);
	}
	munmap(memory, memory_bytes);
}

static void store(char *memory, size_t lines)
{
	for (size_t i = 0; i < lines; i++)
		((volatile char *)memory)[i * LINE] = 1;
}

static void cache_to_cache(int cpu, int node)
{
	size_t lines = CACHED_BYTES / LINE, line = 0;
	char *memory = new_memory(node, CACHED_BYTES, PROT_READ | PROT_WRITE);
	int64_t start;

	for (int pass = 0; pass < PASSES; pass++) {
		run_on(first_cpu(node));
		store(memory, lines);
		run_on(cpu);
		start = now_ns();
		NUMATIME_MARK(1);
		for (size_t i = 0; i < lines; i++, line = next_line(line, lines))
			((volatile char *)memory)[line * LINE] = 1;
		NUMATIME_MARK(2);
		say("cache_to_cache", cpu, node, lines, now_ns() - start);
	}
	munmap(memory, CACHED_BYTES);
}

/*
 * Two threads that take turns, each bound to its CPU: a thread that moves leaves its cached lines
 * behind.
 */
struct turns {
	_Atomic int turn;
	int writer_cpu;
	char *memory, *other;
};

static void await(struct turns *turns, int turn)
{
	while (turns->turn != turn)
		__builtin_ia32_pause();
}

static void *write_twice(void *argument)
{
	struct turns *turns = argument;

	run_on(turns->writer_cpu);
	for (int turn = 0; turn < 4 * PASSES; turn += 4) {
		await(turns, turn);
		store(turns->memory, FILTERED_BYTES / LINE);
		for (size_t i = 0; i < memory_bytes; i += LINE)
			((volatile char *)turns->other)[i];
		turns->turn++;
		await(turns, turn + 2);
		store(turns->memory, FILTERED_BYTES / LINE);
		turns->turn++;
	}
	return NULL;
}

static void rewrite(int cpu, int node)
{
	size_t lines = FILTERED_BYTES / LINE, line = 0;
	struct turns turns = { .writer_cpu = first_cpu(node) };
	pthread_t writer;
	int64_t start;

	turns.memory = new_memory(node, FILTERED_BYTES, PROT_READ | PROT_WRITE);
	turns.other = new_memory(node, memory_bytes, PROT_READ | PROT_WRITE);
	if (pthread_create(&writer, NULL, write_twice, &turns))
		die("pthread_create");
	for (int turn = 0; turn < 4 * PASSES; turn += 4) {
		await(&turns, turn + 1);
		for (size_t i = 0; i < lines; i++)
			((volatile char *)turns.memory)[i * LINE];
		turns.turn++;
		await(&turns, turn + 3);
		start = now_ns();
		NUMATIME_MARK(1);
		for (size_t i = 0; i < lines; i++, line = next_line(line, lines))
			((volatile char *)turns.memory)[line * LINE];
		NUMATIME_MARK(2);
		say("rewritten", cpu, node, lines, now_ns() - start);
		turns.turn++;
	}
	pthread_join(writer, NULL);
	munmap(turns.other, memory_bytes);
	munmap(turns.memory, FILTERED_BYTES);
}

/* A line that two CPUs write, and another that says since when and until when. */
struct contended {
	_Alignas(LINE) volatile int word[2];
	_Alignas(LINE) _Atomic int writes, is_over;
	int writer_cpu;
};

static void *write_on(void *argument)
{
	struct contended *contended = argument;

	run_on(contended->writer_cpu);
	contended->writes = 1;
	for (int i = 0; !contended->is_over; i++)
		contended->word[1] = i;
	return NULL;
}

static void contend(int cpu, int node)
{
	struct contended *contended = (struct contended *)new_memory(node, sizeof *contended,
								     PROT_READ | PROT_WRITE);
	int64_t start, ns[CONTENDED_PASSES];
	pthread_t writer;

	contended->writer_cpu = first_cpu(node);
	if (pthread_create(&writer, NULL, write_on, contended))
		die("pthread_create");
	while (!contended->writes)
		__builtin_ia32_pause();
	for (int pass = 0; pass < CONTENDED_PASSES; pass++) {
		int written = contended->word[1];

		while (contended->word[1] == written) /* it serves an interrupt */
			__builtin_ia32_pause();
		start = now_ns();
		NUMATIME_MARK(1);
		for (int i = 0; i < STORES; i++)
			contended->word[0] = i;
		NUMATIME_MARK(2);
		ns[pass] = now_ns() - start;
	}
	contended->is_over = 1;
	pthread_join(writer, NULL);
	/* Not in between: printing occupies the other CPU, too. */
	for (int pass = 0; pass < CONTENDED_PASSES; pass++)
		say("contended", cpu, node, STORES, ns[pass]);
	munmap(contended, sizeof *contended);
}

int main(int count, char **arguments)
{
	long mib = count > 2 ? atol(arguments[1]) : 0;

	if (mib < 1 || mib & (mib - 1)) {
		fprintf(stderr, "usage: calibrate MIB CPU.. (MIB: a power of two)\n");
		return 2;
	}
	memory_bytes = (size_t)mib << 20;
	for (int i = 2; i < count; i++)
		for (int node = 0;
		     node < MAX_NODES && is_there("/sys/devices/system/node/node%d", node, 0);
		     node++) {
			int cpu = atoi(arguments[i]);

			run_on(cpu);
			load(cpu, node);
			execute(cpu, node);
			if (first_cpu(node) != cpu) {
				cache_to_cache(cpu, node);
				rewrite(cpu, node);
				contend(cpu, node);
			}
		}
	return 0;
}
