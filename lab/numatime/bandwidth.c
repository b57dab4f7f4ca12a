// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Waiting for bandwidth: of the memory of nodes and of the links between nodes, each direction of a
 * link for itself. All of these are pipes here. A pipe is busy with each line for its service time.
 *
 * vCPUs run one after another within a round of the clock, so the order of arrival here is not the
 * order on a parallel machine. To favour no vCPU, a pipe gives each a rate of its own, its level,
 * and a line waits for the vCPU's own earlier lines only. The level is the one of max-min fairness,
 * the number L with
 *
 *     sum over all vCPUs of min(demand of the vCPU, L) = capacity
 *
 * or the whole capacity where the sum of all demands is less. It is computed anew each period, from
 * the period before: a vCPU that used its level up demands more, any other demands as much as it
 * used.
 *
 *   share         a vCPU that demands at most capacity / demanding vCPUs waits for its own lines
 *                 alone
 *   conservation  where a vCPU demands more, the pipe is busy all the time, but for the part that
 *                 ENOUGH leaves
 *   capacity      a period that served more than its capacity, because demand rose, is followed by
 *                 one with less
 *
 * A line that passes several pipes takes them in turn, and leaves each as it comes. So its wait is
 * that of the slowest.
 */
#include "numatime.h"

/* A period: long against a line, short against a slice of the guest's scheduler. */
#define PERIOD_PS (20 * PS_PER_US)
/*
 * A vCPU that used this part of its level, in percent, or all but so many lines, used it up: a
 * period is not a whole number of lines.
 */
#define ENOUGH 98
#define LINES_LEFT 2
/* A debt takes at most one part in so many off a period. */
#define DEBT_PART 2
/*
 * No line waits longer, and no debt is longer: write-backs, for which no vCPU waits, could pile up.
 */
#define MAX_WAIT_PS PS_PER_MS

struct pipe {
	uint64_t service_ps;  /* time that a line occupies it; 0: unlimited */
	uint64_t interval_ps; /* from one line of a vCPU to the next, at the present level */
	uint64_t debt_ps;     /* served beyond its capacity */
	/* in this period; when a vCPU's next line can begin */
	uint64_t used_ps[MAX_VCPUS], free_ps[MAX_VCPUS];
	struct pipe_counters count;
};

static struct pipe memories[MAX_NODES], links[MAX_LINKS][2];
static uint64_t period_began_ps;

/* When a line that comes now can begin. */
static uint64_t pass(struct pipe *pipe, unsigned vcpu, uint64_t now_ps, bool waits)
{
	uint64_t start_ps = pipe->free_ps[vcpu] > now_ps ? pipe->free_ps[vcpu] : now_ps;

	if (start_ps > now_ps + MAX_WAIT_PS)
		start_ps = now_ps + MAX_WAIT_PS;
	pipe->count.lines++;
	if (!pipe->service_ps)
		return now_ps;
	if (waits)
		pipe->count.queue_ps += start_ps - now_ps;
	pipe->used_ps[vcpu] += pipe->service_ps;
	pipe->free_ps[vcpu] = start_ps + pipe->interval_ps;
	return start_ps;
}

/* When a line that sets out now has passed all links between two nodes. */
static uint64_t travel(unsigned vcpu, unsigned from, unsigned to, uint64_t now_ps, bool waits)
{
	const struct route *route = &machine.route[from][to];

	for (unsigned i = 0; i < route->nr_hops; i++)
		now_ps = pass(&links[route->hop[i].link][route->hop[i].backwards], vcpu, now_ps,
			      waits);
	return now_ps;
}

/* The wait of a line that the vCPU, on node `to`, fetches from the memory of node `from`. */
uint64_t bandwidth_fetch_ps(unsigned vcpu, unsigned from, unsigned to, uint64_t now_ps)
{
	return travel(vcpu, from, to, pass(&memories[from], vcpu, now_ps, true), true) - now_ps;
}

/* The wait of a line that comes from the cache of another vCPU. */
uint64_t bandwidth_cache_to_cache_ps(unsigned vcpu, unsigned from, unsigned to, uint64_t now_ps)
{
	return travel(vcpu, from, to, now_ps, true) - now_ps;
}

/*
 * A line that the vCPU, on node `from`, had written goes to the memory of node `to`. No vCPU waits
 * for it.
 */
void bandwidth_write_back(unsigned vcpu, unsigned from, unsigned to, uint64_t now_ps)
{
	pass(&memories[to], vcpu, travel(vcpu, from, to, now_ps, false), false);
}

/*
 * The level at which a capacity is shared, from the use of each vCPU. A vCPU that used its level up
 * demands the whole capacity. A vCPU that demands less than an equal share of the rest gets its
 * demand, until none is left that does.
 */
static uint64_t level_of(const struct pipe *pipe, uint64_t used_up_ps, uint64_t capacity_ps)
{
	uint64_t demand_ps[MAX_VCPUS], all_ps = 0, left_ps = capacity_ps;
	unsigned demanding = 0;
	bool again = true;

	for (unsigned i = 0; i < machine.nr_vcpus; i++) {
		demand_ps[i] = pipe->used_ps[i] < used_up_ps || !pipe->used_ps[i]
				       ? pipe->used_ps[i]
				       : UINT64_MAX / MAX_VCPUS;
		all_ps += demand_ps[i];
		demanding += demand_ps[i] > 0;
	}
	if (all_ps <= capacity_ps)
		return capacity_ps;
	while (again) {
		again = false;
		for (unsigned i = 0; i < machine.nr_vcpus; i++)
			if (demand_ps[i] && demand_ps[i] <= left_ps / demanding) {
				left_ps -= demand_ps[i];
				demanding--;
				demand_ps[i] = 0;
				again = true;
			}
	}
	return left_ps / demanding;
}

static uint64_t scale(uint64_t number, uint64_t by, uint64_t over)
{
	return (uint64_t)((unsigned __int128)number * by / over);
}

static void begin_period(struct pipe *pipe, uint64_t length_ps)
{
	uint64_t level_ps = scale(length_ps, pipe->service_ps, pipe->interval_ps),
		 served_ps = pipe->debt_ps;
	uint64_t all_but_ps = level_ps > LINES_LEFT * pipe->service_ps
				      ? level_ps - LINES_LEFT * pipe->service_ps
				      : 0;
	uint64_t enough_ps = scale(level_ps, ENOUGH, 100), capacity_ps;

	for (unsigned i = 0; i < machine.nr_vcpus; i++)
		served_ps += pipe->used_ps[i];
	pipe->debt_ps = served_ps > length_ps ? served_ps - length_ps : 0;
	if (pipe->debt_ps > MAX_WAIT_PS)
		pipe->debt_ps = MAX_WAIT_PS;
	capacity_ps = length_ps - (pipe->debt_ps < length_ps / DEBT_PART ? pipe->debt_ps
									 : length_ps / DEBT_PART);
	level_ps = level_of(pipe, all_but_ps < enough_ps ? all_but_ps : enough_ps, capacity_ps);
	pipe->interval_ps = scale(pipe->service_ps, length_ps, level_ps);
	for (unsigned i = 0; i < machine.nr_vcpus; i++)
		pipe->used_ps[i] = 0;
}

/* The machine's time, as a round of the clock begins. */
void bandwidth_round(uint64_t now_ps)
{
	uint64_t length_ps = now_ps - period_began_ps;

	if (length_ps < PERIOD_PS)
		return;
	period_began_ps = now_ps;
	for (unsigned node = 0; node < machine.nr_nodes; node++)
		if (memories[node].service_ps)
			begin_period(&memories[node], length_ps);
	for (unsigned link = 0; link < machine.nr_links; link++)
		for (unsigned backwards = 0; backwards < 2; backwards++)
			if (links[link][backwards].service_ps)
				begin_period(&links[link][backwards], length_ps);
}

void bandwidth_init(void)
{
	for (unsigned node = 0; node < machine.nr_nodes; node++)
		memories[node].service_ps = memories[node].interval_ps = machine.service_ps[node];
	for (unsigned link = 0; link < machine.nr_links; link++)
		for (unsigned backwards = 0; backwards < 2; backwards++)
			links[link][backwards].service_ps = links[link][backwards].interval_ps =
				machine.link[link].service_ps;
}

struct pipe_counters bandwidth_of_memory(unsigned node)
{
	return memories[node].count;
}

struct pipe_counters bandwidth_of_link(unsigned link, bool backwards)
{
	return links[link][backwards].count;
}
