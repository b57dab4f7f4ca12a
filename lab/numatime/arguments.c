// SPDX-License-Identifier: GPL-2.0-or-later
/* The machine, from the plugin's arguments. README.md lists them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numatime.h"

#define NO_NODE (~0u)

struct machine machine = {
	.insn_ps = 400,
	.io_ps = 500 * PS_PER_NS,
	.pause_ps = 100 * PS_PER_NS,
	.llc_hit_ps = 15 * PS_PER_NS,
	.quantum_ps = 5 * PS_PER_US,
	.tsc_khz = 1000000,
	.prefetch = 4,
	.cache_bytes = 256 << 10,
	.cache_ways = 4,
	.llc_ways = 16,
	.watchdog_s = 30,
};

/* 4096, 0x1000, 512K, 256M, 2G */
static bool parse_size(const char **text, uint64_t *bytes)
{
	char *end;

	*bytes = strtoull(*text, &end, 0);
	if (end == *text)
		return false;
	switch (*end) {
	case 'K':
		*bytes <<= 10, end++;
		break;
	case 'M':
		*bytes <<= 20, end++;
		break;
	case 'G':
		*bytes <<= 30, end++;
		break;
	}
	*text = end;
	return true;
}

/* FROM-TO[+FROM-TO..]/FIRST[-LAST]: memory and vCPUs of the next node */
static bool parse_node(const char *text)
{
	unsigned node = machine.nr_nodes, first, last;
	int length = 0;

	if (node >= MAX_NODES)
		return false;
	machine.nr_nodes++;
	do {
		struct range *range = &machine.range[machine.nr_ranges];

		if (machine.nr_ranges == MAX_RANGES || !parse_size(&text, &range->from) ||
		    *text++ != '-' || !parse_size(&text, &range->to) || range->to <= range->from)
			return false;
		range->node = node;
		machine.nr_ranges++;
	} while (*text++ == '+');
	if (text[-1] != '/' || sscanf(text, "%u%n", &first, &length) != 1)
		return false;
	last = first;
	text += length;
	if (*text == '-' && (sscanf(text, "-%u%n", &last, &length) != 1 || !(text += length)))
		return false;
	if (*text || last < first || last >= machine.nr_vcpus)
		return false;
	for (unsigned i = first; i <= last; i++)
		machine.node_of_vcpu[i] = node;
	return true;
}

static bool parse_number(const char *text, double most, double *number)
{
	char *end;

	*number = strtod(text, &end);
	return end != text && !*end && *number >= 0 && *number <= most;
}

/* a:b:c/d:e:f/..: a row for each node with vCPUs, a column for each with memory, in ns */
static bool parse_latency(const char *text)
{
	unsigned nodes = machine.nr_nodes;

	for (unsigned i = 0; i < nodes; i++)
		for (unsigned j = 0; j < nodes; j++) {
			bool last_of_row = j + 1 == nodes;
			char *end, separator = last_of_row ? i + 1 == nodes ? 0 : '/' : ':';
			double ns = strtod(text, &end);

			if (end == text || *end != separator || !(ns > 0 && ns < 1e9))
				return false;
			machine.latency_ps[i][j] = (uint64_t)(ns * PS_PER_NS);
			text = end + 1;
		}
	return true;
}

static uint64_t service_ps(double mb_per_s)
{
	return mb_per_s > 0 ? (uint64_t)(LINE_BYTES * 1e6 / mb_per_s) : 0;
}

/* a:b:c, in MB/s; 0: unlimited */
static bool parse_bandwidth(const char *text)
{
	for (unsigned node = 0; node < machine.nr_nodes; node++) {
		char *end;
		double mb_per_s = strtod(text, &end);

		if (end == text || *end != (node + 1 == machine.nr_nodes ? 0 : ':') ||
		    !(mb_per_s >= 0))
			return false;
		machine.service_ps[node] = service_ps(mb_per_s);
		text = end + 1;
	}
	return true;
}

/* POINT-POINT:MB_PER_S */
static bool parse_link(const char *text)
{
	struct link *link = &machine.link[machine.nr_links];
	double mb_per_s;
	int length = 0;

	if (machine.nr_links == MAX_LINKS ||
	    sscanf(text, "%u-%u:%lf%n", &link->from, &link->to, &mb_per_s, &length) != 3 ||
	    text[length] || link->from >= MAX_POINTS || link->to >= MAX_POINTS || !(mb_per_s >= 0))
		return false;
	link->service_ps = service_ps(mb_per_s);
	machine.nr_links++;
	return true;
}

/* Adds the link between two points to a route. */
static bool add_hop(struct route *route, unsigned from, unsigned to)
{
	for (unsigned i = 0; i < machine.nr_links; i++) {
		bool forwards = machine.link[i].from == from && machine.link[i].to == to;
		bool backwards = machine.link[i].from == to && machine.link[i].to == from;

		if ((!forwards && !backwards) || route->nr_hops == MAX_HOPS)
			continue;
		route->hop[route->nr_hops].link = (uint8_t)i;
		route->hop[route->nr_hops++].backwards = backwards;
		return true;
	}
	return false;
}

/* NODE[-POINT..]-NODE: the way of a line from the first to the last */
static bool parse_route(const char *text)
{
	struct route route = { 0 };
	unsigned first, from, to;
	int length = 0;

	if (sscanf(text, "%u%n", &first, &length) != 1)
		return false;
	for (from = first, text += length; *text; from = to, text += length)
		if (sscanf(text, "-%u%n", &to, &length) != 1 || !add_hop(&route, from, to))
			return false;
	if (first >= machine.nr_nodes || from >= machine.nr_nodes)
		return false;
	machine.route[first][from] = route;
	return true;
}

/* BYTES:WAYS, with a power of two of sets */
static bool parse_cache(const char *text, uint32_t *bytes, uint32_t *ways)
{
	uint64_t size;
	unsigned sets;

	if (!parse_size(&text, &size) || size > UINT32_MAX || sscanf(text, ":%u", ways) != 1 ||
	    !*ways)
		return false;
	*bytes = (uint32_t)size;
	sets = *bytes / LINE_BYTES / *ways;
	return sets && !(sets & (sets - 1)) && (uint64_t)sets * *ways * LINE_BYTES == size;
}

/* An argument that is one number, its bounds and its place. */
struct number {
	const char *key;
	uint64_t *value;
	double unit, most;
};

static bool parse_plain(const char *key, const char *value)
{
	uint64_t prefetch = machine.prefetch, idle_pace_us = machine.idle_pace_us,
		 watchdog_s = machine.watchdog_s;
	const struct number numbers[] = {
		{ "insn_ps", &machine.insn_ps, 1, 1e6 },
		{ "io_ns", &machine.io_ps, PS_PER_NS, 1e9 },
		{ "pause_ns", &machine.pause_ps, PS_PER_NS, 1e6 },
		{ "llc_ns", &machine.llc_hit_ps, PS_PER_NS, 1e6 },
		{ "remote_cache_ns", &machine.remote_hit_ps, PS_PER_NS, 1e6 },
		{ "quantum_us", &machine.quantum_ps, PS_PER_US, 1e6 },
		{ "seed", &machine.seed, 1, 1e15 },
		{ "tsc_khz", &machine.tsc_khz, 1, 1e8 },
		{ "time_limit_s", &machine.time_limit_ps, PS_PER_S, 1e6 },
		{ "prefetch", &prefetch, 1, 64 },
		{ "idle_pace_us", &idle_pace_us, 1, 1e6 },
		{ "watchdog_s", &watchdog_s, 1, 1e6 },
	};

	for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		double number;

		if (strcmp(key, numbers[i].key))
			continue;
		if (!parse_number(value, numbers[i].most, &number))
			return false;
		*numbers[i].value = (uint64_t)(number * numbers[i].unit);
		machine.prefetch = prefetch ? (unsigned)prefetch : 1;
		machine.idle_pace_us = (unsigned)idle_pace_us;
		machine.watchdog_s = (unsigned)watchdog_s;
		return true;
	}
	return false;
}

static bool parse_path(const char *text, char path[sizeof machine.report_path])
{
	return snprintf(path, sizeof machine.report_path, "%s", text) <
	       (int)sizeof machine.report_path;
}

static bool parse_one(const char *key, const char *value)
{
	if (!strcmp(key, "node"))
		return parse_node(value);
	if (!strcmp(key, "latency_ns"))
		return parse_latency(value);
	if (!strcmp(key, "bandwidth_mb_per_s"))
		return parse_bandwidth(value);
	if (!strcmp(key, "link"))
		return parse_link(value);
	if (!strcmp(key, "route"))
		return parse_route(value);
	if (!strcmp(key, "cache"))
		return parse_cache(value, &machine.cache_bytes, &machine.cache_ways);
	if (!strcmp(key, "llc"))
		return parse_cache(value, &machine.llc_bytes, &machine.llc_ways);
	if (!strcmp(key, "remote_cache"))
		return parse_cache(value, &machine.remote_bytes, &machine.remote_ways);
	if (!strcmp(key, "out"))
		return parse_path(value, machine.report_path);
	if (!strcmp(key, "now"))
		return parse_path(value, machine.now_path);
	return parse_plain(key, value);
}

/* A node that comes behind latency_ns= has none. */
static bool all_latencies(void)
{
	for (unsigned i = 0; i < machine.nr_nodes; i++)
		for (unsigned j = 0; j < machine.nr_nodes; j++)
			if (!machine.latency_ps[i][j])
				return false;
	return machine.nr_nodes;
}

bool arguments_parse(int count, char **arguments)
{
	for (unsigned i = 0; i < MAX_VCPUS; i++)
		machine.node_of_vcpu[i] = NO_NODE;
	for (int i = 0; i < count; i++) {
		char *value = strchr(arguments[i], '=');

		if (value)
			*value++ = 0;
		if (!value || !parse_one(arguments[i], value)) {
			fprintf(stderr,
				"numatime: cannot make sense of %s=%s (README.md lists the "
				"arguments; node= comes first)\n",
				arguments[i], value ? value : "");
			return false;
		}
	}
	if (!all_latencies() || !machine.quantum_ps || !machine.insn_ps || !machine.tsc_khz) {
		fprintf(stderr, "numatime: node= and latency_ns= are needed; insn_ps, quantum_us "
				"and tsc_khz are not 0\n");
		return false;
	}
	for (unsigned i = 0; i < machine.nr_vcpus; i++)
		if (machine.node_of_vcpu[i] == NO_NODE) {
			fprintf(stderr, "numatime: vCPU %u is on no node\n", i);
			return false;
		}
	return true;
}
