// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * streams MIB CPU:NODE[,CPU:NODE..]..: for each argument, all its CPUs at once read, line after
 * line, memory of the node named with each; MIB of it, more than the caches hold. A line of JSON
 * for each stream says how fast, to hold against the machine file.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "program.h"

#define LINE 64
#define MPOL_BIND 2
#define MAX_STREAMS 64
#define HUGE_PAGE (2ul << 20)
#define CHUNK (256 * LINE) /* between two looks at the clock */
/* Shares settle before they are measured. */
#define SETTLE_NS 1000000
/*
 * The rate is the median of so many slices: the kernel's own work, which the first CPU cannot do
 * without, falls into a few of them.
 */
#define SLICES 9
#define SLICE_NS 250000
/* So much later another one may have begun. */
#define LATE_NS 200000

struct stream {
	int cpu, node;
	double mb_per_s;
};

static size_t memory_bytes;
static pthread_barrier_t all_ready;

/*
 * Memory of the node, already touched, in huge pages: within one, the next virtual line is the next
 * physical line.
 */
static char *new_memory(int node, char **mapped)
{
	unsigned long nodes = 1ul << node;
	char *memory;

	*mapped = mmap(NULL, memory_bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (*mapped == MAP_FAILED)
		die("mmap");
	memory = (char *)(((uintptr_t)*mapped + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
	if (syscall(SYS_mbind, memory, memory_bytes, MPOL_BIND, &nodes, 8 * sizeof nodes, 0))
		die("mbind");
	madvise(memory, memory_bytes, MADV_HUGEPAGE);
	for (size_t i = 0; i < memory_bytes; i += 4096)
		memory[i] = 1;
	return memory;
}

static void read_lines(const char *memory, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += LINE)
		(void)*(const volatile char *)(memory + i);
}

static int compare(const void *one, const void *other)
{
	double difference = *(const double *)one - *(const double *)other;

	return (difference > 0) - (difference < 0);
}

static void *stream(void *argument)
{
	struct stream *own = argument;
	double rates[SLICES];
	int64_t begin, now;
	size_t place = 0, bytes = 0;
	char *mapped, *memory;

	run_on(own->cpu);
	memory = new_memory(own->node, &mapped);
	read_lines(memory, memory_bytes); /* Its initial content leaves the caches. */
	pthread_barrier_wait(&all_ready);
	begin = now_ns();
	for (int slice = -1; slice <= SLICES;) {
		int64_t length = slice < 0 ? SETTLE_NS : slice < SLICES ? SLICE_NS : LATE_NS;

		read_lines(memory + place, CHUNK);
		place = (place + CHUNK) % memory_bytes;
		bytes += CHUNK;
		now = now_ns();
		if (now < begin + length)
			continue;
		if (slice >= 0 && slice < SLICES)
			rates[slice] = (double)bytes * 1e3 / (double)(now - begin);
		slice++;
		begin = now;
		bytes = 0;
	}
	qsort(rates, SLICES, sizeof *rates, compare);
	own->mb_per_s = rates[SLICES / 2];
	munmap(mapped, memory_bytes + HUGE_PAGE);
	return NULL;
}

static void run_together(struct stream *streams, int count)
{
	pthread_t threads[MAX_STREAMS];

	pthread_barrier_init(&all_ready, NULL, (unsigned)count);
	for (int i = 0; i < count; i++)
		if (pthread_create(&threads[i], NULL, stream, &streams[i]))
			die("pthread_create");
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
}

static int parse(char *text, struct stream *streams)
{
	int count = 0;

	for (char *word = strtok(text, ","); word && count < MAX_STREAMS; word = strtok(NULL, ","))
		if (sscanf(word, "%d:%d", &streams[count].cpu, &streams[count].node) == 2)
			count++;
	return count;
}

int main(int count, char **arguments)
{
	long mib = count > 2 ? atol(arguments[1]) : 0;
	struct stream(*streams)[MAX_STREAMS];

	if (mib < 2 || mib % 2) {
		fprintf(stderr, "usage: streams MIB CPU:NODE[,CPU:NODE..].. (MIB: even)\n");
		return 2;
	}
	memory_bytes = (size_t)mib << 20;
	streams = calloc((size_t)count, sizeof *streams);
	if (!streams)
		die("calloc");
	for (int i = 2; i < count; i++)
		run_together(streams[i], parse(arguments[i], streams[i]));
	/* Only now: the serial port keeps its CPU busy for milliseconds. */
	for (int i = 2; i < count; i++)
		for (struct stream *own = streams[i];
		     own < streams[i] + MAX_STREAMS && own->mb_per_s > 0; own++)
			printf("{\"together\":%d,\"cpu\":%d,\"node\":%d,\"mb_per_s\":%.1f}\n",
			       i - 2, own->cpu, own->node, own->mb_per_s);
	return 0;
}
