// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * cells MIB one-thread|each-cell CPU[,CPU..] CPU[,CPU..]..: the memory of a virtual machine with a
 * cell on each of the first nodes, and the kernels of STREAM (J. D. McCalpin, "Memory Bandwidth and
 * Machine Balance in Current High Performance Computers", 1995) on it. The CPUs are those of each
 * cell's vCPUs; each of a cell's three arrays has MIB.
 *
 * One thread of the first cell touches all memory before, as a VMM that preallocates. Under
 * `each-cell` the memory of each cell is bound to its node first, as by `host-nodes=` and
 * `policy=bind` of a memory backend; under `one-thread` no memory is bound.
 *
 * Counters are marked before (1) and after (2) the kernels. A line of JSON for each kernel has the
 * best rate of all threads together, in MB/s as STREAM counts it.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "numatime.h"
#include "program.h"

#define MPOL_BIND 2
#define HUGE_PAGE (2ul << 20)
#define MAX_CELLS 16
#define MAX_THREADS 64
/* STREAM takes the best of ten without the first. Modelled time repeats, so fewer do. */
#define TURNS 4
#define SCALAR 3.0

enum kernel { COPY, SCALE, ADD, TRIAD, KERNELS };
static const char *const NAMES[KERNELS] = { "copy", "scale", "add", "triad" };
/* The arrays that a kernel reads or writes. */
static const int ARRAYS[KERNELS] = { 2, 2, 3, 3 };

struct cell {
	double *a, *b, *c;
	int cpus[MAX_THREADS], cpu_count;
};
struct worker {
	const struct cell *cell;
	int cpu, place; /* among the threads of its cell */
};

static struct cell cells[MAX_CELLS];
static int cell_count, thread_count;
static size_t array_bytes;
static pthread_barrier_t barrier;
static int64_t began[KERNELS][TURNS], ended[KERNELS][TURNS];

static double *new_array(int node, bool is_bound)
{
	unsigned long nodes = 1ul << node;
	char *memory = mmap(NULL, array_bytes + HUGE_PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("mmap");
	memory = (char *)(((uintptr_t)memory + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
	if (is_bound &&
	    syscall(SYS_mbind, memory, array_bytes, MPOL_BIND, &nodes, 8 * sizeof nodes, 0))
		die("mbind");
	madvise(memory, array_bytes, MADV_HUGEPAGE);
	for (size_t i = 0; i < array_bytes; i += 4096)
		memory[i] = 0;
	return (double *)memory;
}

static void work(enum kernel kernel, const struct cell *cell, size_t from, size_t to)
{
	double *a = cell->a, *b = cell->b, *c = cell->c;

	switch (kernel) {
	case COPY:
		for (size_t i = from; i < to; i++)
			c[i] = a[i];
		break;
	case SCALE:
		for (size_t i = from; i < to; i++)
			b[i] = SCALAR * c[i];
		break;
	case ADD:
		for (size_t i = from; i < to; i++)
			c[i] = a[i] + b[i];
		break;
	default:
		for (size_t i = from; i < to; i++)
			a[i] = b[i] + SCALAR * c[i];
	}
}

static void *run(void *argument)
{
	const struct worker *own = argument;
	size_t all = array_bytes / sizeof(double), count = (size_t)own->cell->cpu_count;
	size_t from = all * (size_t)own->place / count, to = all * (size_t)(own->place + 1) / count;
	bool is_first;

	run_on(own->cpu);
	is_first = pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD;
	if (is_first)
		NUMATIME_MARK(1);
	for (int turn = 0; turn < TURNS; turn++)
		for (int kernel = 0; kernel < KERNELS; kernel++) {
			if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
				began[kernel][turn] = now_ns();
			work(kernel, own->cell, from, to);
			if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
				ended[kernel][turn] = now_ns();
		}
	pthread_barrier_wait(&barrier);
	if (is_first)
		NUMATIME_MARK(2);
	return NULL;
}

/* The MB/s of a kernel's best turn, without the first. */
static double best_mb_per_s(int kernel)
{
	double bytes = (double)array_bytes * cell_count * ARRAYS[kernel], best = 0;

	for (int turn = 1; turn < TURNS; turn++) {
		double rate = bytes * 1e3 / (double)(ended[kernel][turn] - began[kernel][turn]);

		if (rate > best)
			best = rate;
	}
	return best;
}

static bool parse_cpus(char *text, struct cell *cell)
{
	for (char *word = strtok(text, ","); word; word = strtok(NULL, ",")) {
		if (thread_count == MAX_THREADS ||
		    sscanf(word, "%d", &cell->cpus[cell->cpu_count]) != 1)
			return false;
		cell->cpu_count++;
		thread_count++;
	}
	return cell->cpu_count > 0;
}

int main(int count, char **arguments)
{
	long mib = count > 3 ? atol(arguments[1]) : 0;
	bool is_bound = count > 3 && !strcmp(arguments[2], "each-cell");
	pthread_t threads[MAX_THREADS];
	struct worker workers[MAX_THREADS];
	int started = 0;

	cell_count = count - 3;
	if (mib < 2 || mib % 2 || cell_count > MAX_CELLS ||
	    (!is_bound && strcmp(arguments[2], "one-thread"))) {
		fprintf(stderr, "usage: cells MIB one-thread|each-cell CPUS CPUS.. (MIB: even)\n");
		return 2;
	}
	array_bytes = (size_t)mib << 20;
	for (int i = 0; i < cell_count; i++)
		if (!parse_cpus(arguments[3 + i], &cells[i])) {
			fprintf(stderr, "cells: %s is no list of CPUs\n", arguments[3 + i]);
			return 2;
		}
	run_on(cells[0].cpus[0]);
	for (int i = 0; i < cell_count; i++) {
		cells[i].a = new_array(i, is_bound);
		cells[i].b = new_array(i, is_bound);
		cells[i].c = new_array(i, is_bound);
	}
	pthread_barrier_init(&barrier, NULL, (unsigned)thread_count);
	for (int i = 0; i < cell_count; i++)
		for (int j = 0; j < cells[i].cpu_count; j++, started++) {
			workers[started] = (struct worker){ &cells[i], cells[i].cpus[j], j };
			if (pthread_create(&threads[started], NULL, run, &workers[started]))
				die("pthread_create");
		}
	for (int i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	for (int kernel = 0; kernel < KERNELS; kernel++)
		printf("{\"kernel\":\"%s\",\"mb_per_s\":%.1f}\n", NAMES[kernel],
		       best_mb_per_s(kernel));
	return 0;
}
