// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Ends a guest whose time stands still, with its counters so far, and publishes the guest's time
 * meanwhile.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "numatime.h"

/*
 * Writes the guest's time in nanoseconds, and its local and remote lines so far, which grow
 * meanwhile.
 */
static void publish(FILE *file)
{
	uint64_t local = 0, remote = 0;

	for (unsigned i = 0; i < machine.nr_vcpus; i++)
		for (unsigned node = 0; node < machine.nr_nodes; node++)
			*(node == vcpus[i].node ? &local : &remote) += vcpus[i].count.fetched[node];
	rewind(file);
	fprintf(file, "%" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
		clock_summary().machine_ps / PS_PER_NS, local, remote);
	fflush(file);
}

static void *watch(void *unused)
{
	FILE *file = machine.now_path[0] ? fopen(machine.now_path, "w") : NULL;
	uint64_t last = 0;
	unsigned still_s = 0;

	(void)unused;
	while (!machine.watchdog_s || still_s < machine.watchdog_s) {
		uint64_t now;

		nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
		now = clock_progress();
		still_s = now == last ? still_s + 1 : 0;
		last = now;
		if (file)
			publish(file);
	}
	give_up(EXIT_WATCHDOG, "the guest's time stands still");
}

void watchdog_start(void)
{
	pthread_t thread;

	if ((machine.watchdog_s || machine.now_path[0]) &&
	    pthread_create(&thread, NULL, watch, NULL))
		give_up(EXIT_UNSUITABLE, "no thread for the watchdog");
}
