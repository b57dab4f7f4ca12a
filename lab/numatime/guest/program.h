/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Helpers of all programs here that measure. To be included where _GNU_SOURCE is defined. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline void die(const char *what)
{
	perror(what);
	exit(1);
}

/* This thread, from here on. */
static inline void run_on(int cpu)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(cpu, &cpus);
	if (sched_setaffinity(0, sizeof cpus, &cpus))
		die("sched_setaffinity");
}

static inline int64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

#endif
