// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * turns CPU CPU: a thread on each of the two CPUs; both sleep until it is their turn, work for some
 * microseconds, and wake the other. So one works at a time. A line of JSON for each length of a
 * turn: lab/calibrate.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>

#include "numatime.h"
#include "program.h"

#define TURNS 200 /* of each */

static const int lengths_us[] = { 1, 1, 3, 5, 9, 17, 30 }; /* at first the caches are cold */
static int to_first[2], to_second[2];

static void work(int us)
{
	for (int i = 0; i < us; i++)
		NUMATIME_BURN(1);
}

static void pass_on(int pipe)
{
	char token = 0;

	if (write(pipe, &token, 1) != 1)
		die("write");
}

static void await(int pipe)
{
	char token;

	if (read(pipe, &token, 1) != 1)
		die("read");
}

static void take_turns(int us, int mine, int other)
{
	for (int i = 0; i < TURNS; i++) {
		await(mine);
		work(us);
		pass_on(other);
	}
}

static void *second(void *cpu)
{
	run_on(*(int *)cpu);
	for (size_t i = 0; i < sizeof lengths_us / sizeof *lengths_us; i++)
		take_turns(lengths_us[i], to_second[0], to_first[1]);
	return NULL;
}

int main(int count, char **arguments)
{
	int cpus[2];
	pthread_t other;

	if (count != 3) {
		fprintf(stderr, "usage: turns CPU CPU\n");
		return 2;
	}
	cpus[0] = atoi(arguments[1]);
	cpus[1] = atoi(arguments[2]);
	run_on(cpus[0]);
	if (pipe(to_first) || pipe(to_second) || pthread_create(&other, NULL, second, &cpus[1]))
		die("pipe or pthread_create");
	for (size_t i = 0; i < sizeof lengths_us / sizeof *lengths_us; i++) {
		int us = lengths_us[i];
		int64_t start = now_ns();

		pass_on(to_first[1]);
		take_turns(us, to_first[0], to_second[1]);
		await(to_first[0]);
		if (i)
			printf("{\"what\":\"turns\",\"us\":%d,\"turns\":%d,\"ns_per_turn\":%.1f}\n",
			       us, 2 * TURNS, (double)(now_ns() - start) / (2 * TURNS));
		fflush(stdout);
	}
	if (pthread_join(other, NULL))
		die("pthread_join");
	return 0;
}
