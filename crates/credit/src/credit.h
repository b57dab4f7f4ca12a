/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The credit scheduler's decisions: which task runs next, how long, where, and its charge.
 *
 * This file is compiled twice: into the BPF scheduler, and into the Rust crate that tests it. So it
 * includes nothing, uses no kernel type, reads no clock, and makes one decision a call about the
 * candidates in its arguments. The caller iterates, locks and measures. The file keeps to the
 * limits of BPF: no 128-bit numbers, no signed division, no division by 0.
 *
 * Two times run here. Real time is in nanoseconds. *Virtual time* is a group's CPU time divided by
 * its share of the machine. Groups that get their fair share all advance at one second for each
 * second of each CPU. A group that is behind is owed CPU time, a group that is ahead has had more
 * than its share. So a real span times the number of CPUs is a virtual span (`credit_span`): the
 * advance of a group that gets its fair share for that time. Virtual time wraps; only
 * `credit_before` may compare it.
 */
#ifndef NEARSIDE_CREDIT_H
#define NEARSIDE_CREDIT_H

typedef unsigned int credit_u32;
typedef unsigned long long credit_u64;
typedef unsigned long long credit_ns; /* real time, or CPU time */
typedef unsigned long long credit_v;  /* virtual time */

#define CREDIT_INLINE static inline __attribute__((always_inline, unused))

/* The whole machine, as a share. */
#define CREDIT_ONE (1ULL << 24)
/*
 * The weight of cpu.weight's default, of a task of nice 0, and of a group's own tasks beside its
 * child groups.
 */
#define CREDIT_WEIGHT 100
/* No charge is for more than this (17 s), so that products stay below 2^64. */
#define CREDIT_MAX_CHARGE_NS (1ULL << 34)
/* SLIT: a node's distance to itself. */
#define CREDIT_LOCAL_DISTANCE 10
/* As many CPUs of a queue are compared for a woken task at most, on a machine of any size. */
#define CREDIT_MAX_CANDIDATES 8

/* The tunables. Spans are real time. */
struct credit_params {
	credit_ns slice_ns;	 /* how long a task of nice 0 runs in one go */
	credit_ns slice_min_ns;	 /* no task runs shorter, nor is one started on less budget */
	credit_ns slice_max_ns;	 /* no task runs longer, whatever its weight */
	credit_ns wake_bound_ns; /* the most that a group is owed when it wakes */
	/* the most that any other group is owed: bounds the waits of others */
	credit_ns lag_bound_ns;
	/* the furthest that a group gets ahead: bounds its wait afterwards */
	credit_ns ahead_bound_ns;
	/* by how much a woken task must be behind a running one to take its CPU */
	credit_ns preempt_ns;
	/* a busy CPU takes a remote task that is behind by this, for each local distance */
	credit_ns steal_ns;
	credit_ns balance_ns;	 /* the time between two searches for such a task */
	credit_ns stay_ns;	 /* a task away from home stays at least this long */
	credit_ns debt_bound_ns; /* a group that overran its cap waits no longer than this */
	/* a task that goes on for at most this after a wake-up sleeps soon */
	credit_ns handover_ns;
	/* .. and the CPUs that such tasks hand over let others wait for so long */
	credit_ns queue_waits_ns;
	/* a wait so short is better than another node, or than an interrupted task */
	credit_ns patience_ns;
	/* the time between two notes of where tasks start, of each CPU */
	credit_ns note_ns;
	credit_u32 cpus;	 /* CPUs of the machine */
	/* .. or by so many of its own slices, if that is more than steal_ns */
	credit_u32 steal_slices;
};

/* A group: a cgroup's own tasks, as one party. */
struct credit_group {
	credit_v vtime;	     /* its virtual time, with the slices of tasks that run or wait */
	credit_v front;	     /* where its tasks begin to run, on average (`credit_now`) */
	credit_u64 share;    /* of the machine, of CREDIT_ONE; its weight, flattened */
	credit_u32 runnable; /* tasks that run or wait, the one asked about included */
	credit_u32 reserved;
};

/* Permission to run once. */
struct credit_grant {
	credit_v tag;	    /* the place in the queue: lower is earlier */
	credit_v reserved;  /* charged in advance */
	credit_v slice;	    /* how long, in virtual time */
	credit_ns slice_ns; /* .. and in real time */
};

/* A cap: quota_ns of CPU time in every period_ns. */
struct credit_cap {
	credit_ns quota_ns; /* 0: none */
	credit_ns period_ns;
	credit_ns burst_ns;  /* the most that is saved up beyond one quota */
	credit_ns start_ns;  /* of the period */
	long long budget_ns; /* left in this period; below 0: overrun, to be paid back */
};

/* -- virtual time ------------------------------------------------------------------------------ */

/* Whether a is earlier than b, across the wrap. */
CREDIT_INLINE int credit_before(credit_v a, credit_v b)
{
	return (a - b) >> 63;
}

CREDIT_INLINE credit_v credit_span(const struct credit_params *params, credit_ns span_ns)
{
	return span_ns * params->cpus;
}

/* The cost of CPU time, in virtual time, to a group with this share. */
CREDIT_INLINE credit_v credit_charge(credit_ns used_ns, credit_u64 share)
{
	if (used_ns > CREDIT_MAX_CHARGE_NS)
		used_ns = CREDIT_MAX_CHARGE_NS;
	if (!share)
		share = 1;
	return used_ns * CREDIT_ONE / share;
}

/* A group's share, from its parent's: its weight among those of all its active siblings. */
CREDIT_INLINE credit_u64 credit_share(credit_u64 parent_share, credit_u64 weight,
				      credit_u64 weights)
{
	credit_u64 share;

	if (weights < weight)
		weights = weight;
	if (!weights)
		return 1;
	share = parent_share * weight / weights;
	return share ? share : 1;
}

/*
 * "Now" in virtual time: an average of the places at which tasks start. So a group that can use
 * little, or that has no competitor, does not move it far from the others. A task that started
 * without a wait moves it forward only: its group may be behind because it does not use its share.
 */
CREDIT_INLINE credit_v credit_now(credit_v now, credit_v tag, int waited)
{
	if (!credit_before(tag, now))
		return now + ((tag - now) >> 3);
	return waited ? now - ((now - tag) >> 3) : now;
}

/* -- fairness between groups ------------------------------------------------------------------- */

/* The time that a task of this weight runs in one go. */
CREDIT_INLINE credit_ns credit_slice(const struct credit_params *params, credit_u32 weight)
{
	credit_ns slice = params->slice_ns * weight / CREDIT_WEIGHT;

	if (slice < params->slice_min_ns)
		return params->slice_min_ns;
	return slice > params->slice_max_ns ? params->slice_max_ns : slice;
}

/*
 * The furthest that a group can get ahead: a slice for each of its tasks, which pay in advance, and
 * the distance that others can get behind. A group further ahead had CPUs that no other group could
 * use, for example while the others' threads were started.
 */
CREDIT_INLINE credit_v credit_ahead(const struct credit_params *params,
				    const struct credit_group *group)
{
	credit_v max = credit_span(params, params->ahead_bound_ns);
	credit_v ahead = credit_charge(params->slice_ns, group->share);

	if (ahead > max)
		return max;
	ahead = ahead * group->runnable + credit_span(params, params->lag_bound_ns);
	return ahead < max ? ahead : max;
}

/*
 * The place of the group's next task in a queue. Two bounds hold. A group is owed a bounded time,
 * so that it cannot save up and then starve others: a group confined to few CPUs never gets its
 * share, and would keep all others from them. A group gets ahead by a bounded time, so that it is
 * not starved itself. A group that just woke, with no other task, is owed little.
 */
CREDIT_INLINE credit_v credit_tag(const struct credit_params *params,
				  const struct credit_group *group, credit_v now, int woken)
{
	credit_ns owed_ns = woken && group->runnable <= 1 ? params->wake_bound_ns
							  : params->lag_bound_ns;
	credit_v earliest = now - credit_span(params, owed_ns);
	credit_v latest = now + credit_ahead(params, group);

	if (credit_before(latest, group->vtime))
		return latest;
	if (credit_before(group->vtime, earliest))
		return earliest;
	return group->vtime;
}

/*
 * The part of a slice that a task is expected to use. One that wakes up sleeps again after the time
 * that it usually runs.
 */
CREDIT_INLINE credit_ns credit_uses(credit_ns slice_ns, credit_ns runs_ns, int woken)
{
	return woken && runs_ns < slice_ns ? runs_ns : slice_ns;
}

/*
 * Grants a slice, of which the expected use is charged in advance: the group's next task is placed
 * behind it, so that ten tasks of one group stand in the queue as far apart as one task that comes
 * ten times. A thousand that each need a moment do not stand a thousand slices apart.
 */
CREDIT_INLINE void credit_reserve(struct credit_group *group, credit_v tag, credit_ns slice_ns,
				  credit_ns uses_ns, struct credit_grant *grant)
{
	grant->tag = tag;
	grant->slice_ns = slice_ns;
	grant->slice = credit_charge(slice_ns, group->share);
	grant->reserved = credit_charge(uses_ns, group->share);
	group->vtime = tag + grant->reserved;
}

/* The task stopped: its use replaces the reservation. */
CREDIT_INLINE void credit_settle(struct credit_group *group, const struct credit_grant *grant,
				 credit_ns used_ns)
{
	group->vtime += credit_charge(used_ns, group->share) - grant->reserved;
}

/*
 * Among the tasks of a group, CPU time costs a light task (nice) more. `own` is the total cost of a
 * task, `own_now` its average (`credit_own_now`) over the group's tasks, updated with each grant.
 */
CREDIT_INLINE credit_v credit_own_charge(credit_ns used_ns, credit_u32 weight)
{
	if (used_ns > CREDIT_MAX_CHARGE_NS)
		used_ns = CREDIT_MAX_CHARGE_NS;
	return weight ? used_ns * CREDIT_WEIGHT / weight : used_ns * CREDIT_WEIGHT;
}

/*
 * The average of what a group's tasks had, after one more grant. Each counts by the part of its
 * slice that it is expected to use: so tasks that sleep do not count for more because they come
 * often, and no task had much less than the average if all do the same.
 */
CREDIT_INLINE credit_v credit_own_now(credit_v own_now, credit_v own, credit_ns uses_ns,
				      credit_ns slice_ns)
{
	/* Without branches on the sign, each of which doubles the work of the kernel's verifier. */
	credit_u64 part = (uses_ns << 16) / (slice_ns + !slice_ns);
	credit_v eighth = (credit_v)((long long)(own - own_now) >> 3);

	return own_now + (credit_v)((long long)(eighth * part) >> 16);
}

/* The total cost of a task that slept: it saves nothing up against the others of its group. */
CREDIT_INLINE credit_v credit_own_rejoins(const struct credit_params *params, credit_v own_now,
					  credit_v own)
{
	credit_v earliest = own_now - params->slice_max_ns;

	return credit_before(own, earliest) ? earliest : own;
}

/*
 * The distance by which a task queues behind its group's place: the CPU time that it had more than
 * the others of its group. Differences of a few slices, as between equal tasks, count as none, and
 * the lag is bounded.
 */
CREDIT_INLINE credit_v credit_own_lag(const struct credit_params *params, credit_v own_now,
				      credit_v own)
{
	credit_v ahead = own_now + params->slice_max_ns;
	credit_ns lag_ns = own - ahead;

	if (!credit_before(ahead, own))
		return 0;
	return credit_span(params,
			   lag_ns < params->ahead_bound_ns ? lag_ns : params->ahead_bound_ns);
}

/*
 * Whether a task had less CPU time than another one of its group, or than all of them, by enough to
 * go first: half of the most that it is owed.
 */
CREDIT_INLINE int credit_own_less(const struct credit_params *params, credit_v own, credit_v other)
{
	return credit_before(own + params->slice_max_ns / 2, other);
}

/*
 * The distance by which a woken task that had less than the others of its group queues before its
 * group's next place: about where tasks of its group begin to run. So a thread that sleeps most of
 * the time does not wait for a slice of each thread that burns. The group pays for its use all the
 * same. Its place is no earlier than that of a group that wakes.
 */
CREDIT_INLINE credit_v credit_own_lead(const struct credit_params *params,
				       const struct credit_group *group, credit_v now, credit_v tag,
				       credit_v own_now, credit_v own)
{
	credit_v earliest = now - credit_span(params, params->wake_bound_ns);
	credit_v first = group->front;

	if (!credit_own_less(params, own, own_now))
		return 0;
	if (credit_before(first, earliest))
		first = earliest;
	return credit_before(first, tag) ? tag - first : 0;
}

/*
 * The time for which a task goes on after its CPU's own kernel thread interrupted it: the rest of
 * its slice, or a short slice if no other task waits for that CPU. 0: it queues anew.
 */
CREDIT_INLINE credit_ns credit_resumes(const struct credit_params *params, credit_ns left_ns,
				       int others)
{
	if (left_ns >= params->slice_min_ns)
		return left_ns;
	return others ? 0 : params->slice_min_ns;
}

/* Whether a task that woke up takes the CPU of one that runs. */
CREDIT_INLINE int credit_preempts(const struct credit_params *params, credit_v woken,
				  credit_v running)
{
	return credit_before(woken + credit_span(params, params->preempt_ns), running);
}

/*
 * Whether a woken task that goes before the others of its group takes the CPU of one of them, which
 * has run for `ran_ns` in one go. It had more CPU time, and is no other one that goes before them.
 */
CREDIT_INLINE int credit_preempts_own(const struct credit_params *params, credit_v own,
				      credit_v running_own, credit_v woken, credit_v running,
				      credit_ns ran_ns)
{
	return ran_ns >= params->slice_min_ns && credit_before(woken, running) &&
	       credit_own_less(params, own, running_own);
}

/*
 * Whether a group that has one CPU takes a second one from a running task when it wakes another of
 * its tasks. A group that is entitled to one CPU at most has what it is owed. A second one would
 * put it ahead for a moment, and the lines that both tasks write would move between the two CPUs.
 */
CREDIT_INLINE int credit_spreads(const struct credit_params *params, credit_u64 share)
{
	return share > CREDIT_ONE / (params->cpus ? params->cpus : 1);
}

/*
 * The CPU to compare next for a woken task: its position among the `count` CPUs of a queue, from
 * `start` on. Gives `count` when enough were compared. In a larger queue a few CPUs, chosen by
 * chance, find one that is far ahead nearly as well as all.
 */
CREDIT_INLINE credit_u32 credit_candidate(credit_u32 start, credit_u32 index, credit_u32 count)
{
	if (index >= CREDIT_MAX_CANDIDATES || index >= count)
		return count;
	return (credit_u32)(((credit_u64)start + index) % count);
}

/*
 * The place of another queue's task among a CPU's own: later with distance, and by some of the
 * task's slices. With more groups the slices of each stand farther apart, and the first tasks of
 * two queues differ by a slice or two by chance. A task that is owed half of the bound is fetched
 * from any distance.
 */
CREDIT_INLINE credit_v credit_from_afar(const struct credit_params *params,
					const struct credit_grant *grant, credit_v tag,
					credit_u32 distance)
{
	credit_v max = credit_span(params, params->lag_bound_ns / 2);
	credit_v margin = max;

	if (grant->slice < max) {
		margin = grant->slice * params->steal_slices;
		if (margin < credit_span(params, params->steal_ns))
			margin = credit_span(params, params->steal_ns);
		margin = margin * distance / CREDIT_LOCAL_DISTANCE;
	}
	return tag + (margin < max ? margin : max);
}

/*
 * Whether a busy CPU prefers the first task of another queue to its own next task, or to the best
 * found so far: fairness between nodes of unequal load. The farther away, the more that task must
 * be behind. A task that has just woken up is left to its own node for a moment.
 */
CREDIT_INLINE int credit_steals(const struct credit_params *params,
				const struct credit_grant *grant, credit_v own, credit_v other,
				credit_u32 distance, credit_ns awake_ns)
{
	credit_ns threshold_ns = params->preempt_ns * distance / CREDIT_LOCAL_DISTANCE;

	return awake_ns >= threshold_ns &&
	       credit_before(credit_from_afar(params, grant, other, distance), own);
}

/*
 * Whether another task may pass the first one of a queue: because it ran on the free CPU last and
 * finds its caches warm, or because the group of the first one runs elsewhere (`beside`). It may if
 * it is at most one of its slices, and at most steal_ns, ahead: the places of equal tasks differ by
 * as much by chance. It may pass a task that has just woken up only if that could not take its CPU.
 * A second task of a group has no such claim.
 */
CREDIT_INLINE int credit_lets_pass(const struct credit_params *params,
				   const struct credit_grant *grant, credit_v first, credit_v tag,
				   int woken, int beside)
{
	credit_v max = credit_span(params, params->steal_ns), margin;

	if (woken && !beside)
		return !credit_preempts(params, first, tag);
	margin = grant->slice < max ? grant->slice : max;
	return !credit_before(first + margin, tag);
}

/* -- place ------------------------------------------------------------------------------------- */

/* The rank of a node for a task: lower is better. */
enum {
	CREDIT_HOME = 0,
	CREDIT_AFFINE = 1,
	CREDIT_OTHER = 2, /* only while nothing better is idle */
	CREDIT_NEVER = 3,
};

/* `affine` and `allowed` are sets of nodes; an empty `affine` means no preference. */
CREDIT_INLINE credit_u32 credit_place(credit_u64 affine, credit_u64 allowed, credit_u32 home,
				      credit_u32 node)
{
	credit_u64 bit = node < 64 ? 1ULL << node : 0;

	if (!(allowed & bit))
		return CREDIT_NEVER;
	if (node == home && (affine & bit || !affine))
		return CREDIT_HOME;
	/* Affine nodes that may not be used are no reason to keep away from the others. */
	if (affine & bit || !(affine & allowed))
		return CREDIT_AFFINE;
	return CREDIT_OTHER;
}

/*
 * Whether a task that runs away from home waits on its present node, because fetching it again for
 * each slice would cost more. It goes home if fewer tasks wait there for each CPU.
 */
CREDIT_INLINE int credit_stays(credit_u32 wait_at_home, credit_u32 cpus_at_home,
			       credit_u32 wait_here, credit_u32 cpus_here)
{
	return (credit_u64)wait_at_home * cpus_here >= (credit_u64)wait_here * cpus_at_home;
}

/*
 * Whether a task that runs away from home goes back now. `room`: a CPU there is idle or runs a task
 * away from its home.
 */
CREDIT_INLINE int credit_returns(const struct credit_params *params, credit_ns stayed_ns, int room)
{
	return room && stayed_ns >= params->stay_ns;
}

/*
 * Whether a task waits at home although a CPU of another node is idle, or although it could
 * interrupt the task that runs. `runs_ns`: how long a task runs there until it sleeps. `waiting`
 * tasks are before it, for `cpus` CPUs, and it has waited for `waited_ns`. A short wait costs less
 * than to fetch the task's lines, and those that it shares with the others of its group, to the
 * other node and back.
 */
CREDIT_INLINE int credit_waits(const struct credit_params *params, credit_ns runs_ns,
			       credit_u32 waiting, credit_u32 cpus, credit_ns waited_ns)
{
	credit_u64 turns = (credit_u64)waiting / (cpus ? cpus : 1) + 1;

	return waited_ns < params->patience_ns && runs_ns <= params->patience_ns / turns;
}

/*
 * Whether a node of the task's home is the seat of its group: the one where all its tasks wait and
 * run first, of several. A group that is entitled to one CPU at most needs one node only, and its
 * tasks share lines.
 */
CREDIT_INLINE int credit_is_seat(const struct credit_params *params, credit_u64 share,
				 credit_u64 affine, credit_u64 allowed, credit_u32 node)
{
	credit_u64 bit = node < 64 ? 1ULL << node : 0;

	return affine & (affine - 1) && affine & allowed & bit && !credit_spreads(params, share);
}

/* -- tasks that ask each other ----------------------------------------------------------------- */

/* All wake-ups of a task. */
#define CREDIT_TALKS_ONE 1024
/* Of them, the least that come from tasks that this one talks with .. */
#define CREDIT_TALKS_LEAST (CREDIT_TALKS_ONE / 4)
/* .. and so many keep it where it is: single wake-ups from elsewhere change nothing. */
#define CREDIT_TALKS_STILL (CREDIT_TALKS_LEAST / 2)

/* The share of wake-ups that came from such tasks, on average, after one more (`same`: did it). */
CREDIT_INLINE credit_u32 credit_talks(credit_u32 average, int same)
{
	return average - average / 8 + (same ? CREDIT_TALKS_ONE / 8 : 0);
}

/*
 * Whether a task has the home of tasks of another domain for its own. Both sides wake each other in
 * a fair share of their wake-ups (`talks` and `others`). The one that runs for less time until it
 * sleeps, by a fifth at first, goes to the other one: it touches less memory of its own. A task
 * that an interrupt found on the CPU counts as the waker, too, but seldom the same one twice.
 */
CREDIT_INLINE int credit_follows(const struct credit_params *params, int follows, credit_u32 talks,
				 credit_u32 others, credit_ns runs_ns, credit_ns other_runs_ns)
{
	credit_u32 least = follows ? CREDIT_TALKS_STILL : CREDIT_TALKS_LEAST;

	if (talks < least || others < least || other_runs_ns > params->patience_ns)
		return 0;
	return runs_ns < (follows ? other_runs_ns : other_runs_ns - other_runs_ns / 5);
}

/* -- handing a CPU over ------------------------------------------------------------------------ */

/*
 * The average time for which a task goes on until it sleeps, after it woke up or after a wake-up
 * that promises its sleep. A task that goes on for a slice counts like one that goes on for longer,
 * so that the average of a task that changes its ways follows. That of a new task is a slice.
 */
CREDIT_INLINE credit_ns credit_goes_on(const struct credit_params *params, credit_ns average_ns,
				       credit_ns went_on_ns)
{
	if (went_on_ns > params->slice_ns)
		went_on_ns = params->slice_ns;
	return average_ns - average_ns / 8 + went_on_ns / 8;
}

/*
 * The average time that a task runs until it sleeps, after it ran for `ran_ns`. A new task has no
 * average (`is_first`): its first time is it.
 */
CREDIT_INLINE credit_ns credit_runs(const struct credit_params *params, credit_ns average_ns,
				    credit_ns ran_ns, int is_first)
{
	if (is_first)
		return ran_ns < params->slice_ns ? ran_ns : params->slice_ns;
	return credit_goes_on(params, average_ns, ran_ns);
}

/*
 * Whether a task that goes on for so long on average sleeps before another CPU could have begun
 * with the task that it wakes.
 */
CREDIT_INLINE int credit_sleeps_soon(const struct credit_params *params, credit_ns average_ns)
{
	return average_ns <= params->handover_ns;
}

/*
 * Whether a woken task waits for the CPU of its waker, which sleeps soon, although others may be
 * idle. Both are of one group, which pays for both. The task loses no locality: the CPU is at home,
 * or on the affine node that the task ran on last (`same_node`). No task is to run there before it
 * (`before`). The CPU has looked into the queues lately (`looked_ns` ago), which it does not
 * between tasks that hand it over to each other, and sooner where tasks wait in its queue
 * (`waiting`).
 */
CREDIT_INLINE int credit_takes_over(const struct credit_params *params, int same_group,
				    credit_u32 place, int same_node, credit_u32 before,
				    credit_u32 waiting, credit_ns looked_ns)
{
	if (place != CREDIT_HOME && !(place == CREDIT_AFFINE && same_node))
		return 0;
	return same_group && !before &&
	       looked_ns < (waiting ? params->queue_waits_ns : params->balance_ns);
}

/* -- caps -------------------------------------------------------------------------------------- */

/* Starts the periods that have come due. */
CREDIT_INLINE void credit_cap_refill(const struct credit_params *params, struct credit_cap *cap,
				     credit_ns now_ns)
{
	credit_ns passed = now_ns - cap->start_ns;
	credit_u64 periods, max_periods;
	long long max = (long long)(cap->quota_ns + cap->burst_ns);
	long long min;

	if (!cap->quota_ns || !cap->period_ns || passed >> 63 || passed < cap->period_ns)
		return;
	periods = passed / cap->period_ns;
	cap->start_ns += periods * cap->period_ns;
	/* More periods than pay any debt make no difference. */
	max_periods = params->debt_bound_ns / cap->period_ns + 1;
	if (periods > max_periods + 1)
		periods = max_periods + 1;
	min = -(long long)(cap->quota_ns * max_periods);
	if (cap->budget_ns < min)
		cap->budget_ns = min;
	/*
	 * A budget saved up beyond a lowered quota is gone; a burst may have been saved up over
	 * several periods.
	 */
	cap->budget_ns += (long long)(cap->quota_ns * periods);
	if (cap->budget_ns > max)
		cap->budget_ns = max;
}

/* Takes up to `wanted_ns` from the budget; 0: the task has to wait for the next period. */
CREDIT_INLINE credit_ns credit_cap_take(const struct credit_params *params, struct credit_cap *cap,
					credit_ns wanted_ns)
{
	credit_ns min = params->slice_min_ns, got;

	if (!cap->quota_ns)
		return wanted_ns;
	if (min > cap->quota_ns)
		min = cap->quota_ns;
	if (cap->budget_ns < (long long)min)
		return 0;
	got = (credit_ns)cap->budget_ns < wanted_ns ? (credit_ns)cap->budget_ns : wanted_ns;
	cap->budget_ns -= (long long)got;
	return got;
}

/* Replaces the time taken from the budget by the time used. */
CREDIT_INLINE void credit_cap_settle(struct credit_cap *cap, credit_ns taken_ns, credit_ns used_ns)
{
	if (used_ns > CREDIT_MAX_CHARGE_NS)
		used_ns = CREDIT_MAX_CHARGE_NS;
	if (cap->quota_ns)
		cap->budget_ns += (long long)taken_ns - (long long)used_ns;
}

#endif
