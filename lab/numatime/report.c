// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Counters as JSON, one object a line. They count from the start, so the difference of two marks is
 * the work between them. Nothing in a mark depends on the host: the same guest writes the same
 * marks.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "numatime.h"

static void write_list(FILE *out, const char *name, const uint64_t *values, unsigned count)
{
	fprintf(out, ",\"%s\":[", name);
	for (unsigned i = 0; i < count; i++)
		fprintf(out, "%s%" PRIu64, i ? "," : "", values[i]);
	fputc(']', out);
}

static void write_counters(FILE *out, const struct counters *count)
{
	fprintf(out, ",\"idle_ns\":%" PRIu64, count->idle_ps / PS_PER_NS);
	fprintf(out, ",\"stall_ns\":%" PRIu64 ",\"queue_ns\":%" PRIu64, count->stall_ps / PS_PER_NS,
		count->queue_ps / PS_PER_NS);
	fprintf(out, ",\"device_accesses\":%" PRIu64 ",\"llc_hits\":%" PRIu64
		",\"remote_cache_hits\":%" PRIu64,
		count->device_accesses, count->llc_hits, count->remote_cache_hits);
	write_list(out, "fetched", count->fetched, machine.nr_nodes);
	write_list(out, "prefetched", count->prefetched, machine.nr_nodes);
	write_list(out, "code_fetched", count->code_fetched, machine.nr_nodes);
	write_list(out, "user_code_fetched", count->user_code_fetched, machine.nr_nodes);
	write_list(out, "cache_to_cache", count->cache_to_cache, machine.nr_nodes);
	write_list(out, "invalidated", count->invalidated, machine.nr_nodes);
	write_list(out, "written_back", count->written_back, machine.nr_nodes);
	fprintf(out, ",\"fetched_elsewhere\":%" PRIu64 "}", count->fetched[machine.nr_nodes]);
}

static void write_vcpu(FILE *out, unsigned index)
{
	const struct vcpu *v = &vcpus[index];

	fprintf(out, "{\"vcpu\":%u,\"node\":%u,\"now_ns\":%" PRIu64, index, v->node,
		vcpu_now_ps(v) / PS_PER_NS);
	write_counters(out, &v->count);
}

static void write_domains(FILE *out)
{
	const char *separator = "";

	fputs(",\"domains\":[", out);
	for (unsigned i = 0; i < MAX_DOMAINS; i++) {
		const struct domain_counters *domain = domain_counters(i);

		if (!domain)
			continue;
		fprintf(out, "%s{\"domain\":%u,\"busy_ns\":%" PRIu64, separator, i,
			(domain->passed_ps - domain->count.idle_ps) / PS_PER_NS);
		write_counters(out, &domain->count);
		separator = ",";
	}
	fputc(']', out);
}

static void write_pipe(FILE *out, struct pipe_counters count)
{
	fprintf(out, "\"lines\":%" PRIu64 ",\"queue_ns\":%" PRIu64 "}", count.lines,
		count.queue_ps / PS_PER_NS);
}

static void write_pipes(FILE *out)
{
	fputs(",\"memories\":[", out);
	for (unsigned i = 0; i < machine.nr_nodes; i++) {
		fprintf(out, "%s{\"node\":%u,", i ? "," : "", i);
		write_pipe(out, bandwidth_of_memory(i));
	}
	fputs("],\"links\":[", out);
	for (unsigned i = 0; i < 2 * machine.nr_links; i++) {
		const struct link *link = &machine.link[i / 2];
		bool backwards = i % 2;

		fprintf(out, "%s{\"from\":%u,\"to\":%u,", i ? "," : "",
			backwards ? link->to : link->from, backwards ? link->from : link->to);
		write_pipe(out, bandwidth_of_link(i / 2, backwards));
	}
	fputc(']', out);
}

static void report_to(FILE *out, const char *what, int id, int vcpu)
{
	struct clock_summary clock = clock_summary();
	const char *separator = "";

	fprintf(out,
		"{\"what\":\"%s\",\"id\":%d,\"by_vcpu\":%d,\"machine_ns\":%" PRIu64
		",\"rounds\":%" PRIu64,
		what, id, vcpu, clock.machine_ps / PS_PER_NS, clock.rounds);
	fprintf(out, ",\"idle_jumps\":%" PRIu64 ",\"jumped_ns\":%" PRIu64 ",\"vcpus\":[",
		clock.idle_jumps, clock.jumped_ps / PS_PER_NS);
	for (unsigned i = 0; i < machine.nr_vcpus; i++)
		if (vcpus[i].slot) {
			fputs(separator, out);
			write_vcpu(out, i);
			separator = ",";
		}
	fputc(']', out);
	write_pipes(out);
	write_domains(out);
	fputs("}\n", out);
}

void report(const char *what, int id, int vcpu)
{
	FILE *out = machine.report_path[0] ? fopen(machine.report_path, "a") : stderr;

	if (!out)
		return;
	report_to(out, what, id, vcpu);
	if (out != stderr)
		fclose(out);
}

void give_up(int status, const char *why)
{
	fprintf(stderr, "numatime: %s\n", why);
	report("stop", status, -1);
	_exit(status);
}
