// SPDX-License-Identifier: Apache-2.0 OR MIT
/* xen-clock begin|end: has the plugin report its counters, and prints the machine's time in ns,
 * before or after the other. */
#include <stdio.h>
#include <string.h>
#include <x86intrin.h>

#include "numatime.h"

int main(int count, char **arguments)
{
	unsigned long long now_ns; /* the modelled TSC runs at 1 GHz */

	if (count != 2 || (strcmp(arguments[1], "begin") && strcmp(arguments[1], "end"))) {
		fprintf(stderr, "usage: xen-clock begin|end\n");
		return 2;
	}
	if (!strcmp(arguments[1], "begin")) {
		NUMATIME_MARK(1);
		now_ns = __rdtsc();
	} else {
		now_ns = __rdtsc();
		NUMATIME_MARK(2);
	}
	printf("%llu\n", now_ns);
	return 0;
}
