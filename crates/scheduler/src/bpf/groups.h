/* SPDX-License-Identifier: GPL-2.0-only */
/* Groups: activity, shares of the machine, grants, charges, caps. */
#ifndef NEARSIDE_GROUPS_H
#define NEARSIDE_GROUPS_H

#include "state.h"

/*
 * Adds to the weights of a group's active children and own tasks. A group that becomes active, or
 * idle, by that changes its parent's sum in turn.
 */
static void add_weight(u32 number, s64 delta)
{
	u32 level;

	bpf_for (level, 0, MAX_DEPTH) {
		struct group *group = group_of(number);
		bool was, is;

		if (!group)
			break;
		bpf_spin_lock(&group->lock);
		/* It was removed meanwhile, with its weight. */
		if (!group->weight) {
			bpf_spin_unlock(&group->lock);
			break;
		}
		was = group->weights > 0;
		group->weights += delta;
		is = group->weights > 0;
		if (!was && is)
			group->counted = group->weight;
		delta = is ? (s64)group->counted : -(s64)group->counted;
		number = group->parent;
		bpf_spin_unlock(&group->lock);
		if (was == is)
			break;
	}
	__sync_fetch_and_add(&shares_generation, 1);
}

static void set_weight(u32 number, u32 weight)
{
	struct group *group = group_of(number);
	s64 delta = 0;
	u32 parent;

	if (!group || !weight)
		return;
	bpf_spin_lock(&group->lock);
	group->weight = weight;
	if (group->weights > 0) {
		delta = (s64)weight - (s64)group->counted;
		group->counted = weight;
	}
	parent = group->parent;
	bpf_spin_unlock(&group->lock);
	if (delta)
		add_weight(parent, delta);
}

static void set_cap(u32 number, u64 quota_ns, u64 period_ns, u64 burst_ns)
{
	struct group *group = group_of(number);
	u64 now_ns = bpf_ktime_get_ns();
	u32 cap_queue = SHARED_CAP_QUEUE;
	s64 more;
	bool same;

	if (!group)
		return;
	if (quota_ns && group->cap_queue == SHARED_CAP_QUEUE)
		bpf_map_pop_elem(&free_cap_queues, &cap_queue);
	bpf_spin_lock(&group->lock);
	if (group->cap_queue == SHARED_CAP_QUEUE) {
		group->cap_queue = cap_queue;
		cap_queue = SHARED_CAP_QUEUE;
	}
	more = (s64)(quota_ns != 0) - (s64)(group->cap.quota_ns != 0);
	same = group->cap.quota_ns == quota_ns && group->cap.period_ns == period_ns &&
	       group->cap.burst_ns == burst_ns;
	if (!same) {
		group->cap.quota_ns = quota_ns;
		group->cap.period_ns = period_ns;
		group->cap.burst_ns = burst_ns;
		group->cap.start_ns = now_ns;
		group->cap.budget_ns = (s64)quota_ns;
	}
	bpf_spin_unlock(&group->lock);
	/* Another CPU has set the same cap meanwhile. */
	if (cap_queue != SHARED_CAP_QUEUE)
		bpf_map_push_elem(&free_cap_queues, &cap_queue, 0);
	if (more)
		__sync_fetch_and_add(&caps, more);
	if (!same)
		__sync_fetch_and_add(&shares_generation, 1);
}

/*
 * Notes the place at which a task starts, for the average. All CPUs read that line, so each of them
 * writes it seldom.
 */
static __always_inline void note_start(s32 cpu, credit_v tag, bool waited, u64 now_ns)
{
	struct cpu_state *state = cpu_state(cpu);

	if (now_ns - state->noted_ns < params.note_ns)
		return;
	state->noted_ns = now_ns;
	now_v = credit_now(now_v, tag, waited);
}

/* A cgroup's own group; the root's tasks are each a party of their own. */
static __always_inline struct group *party_of(u32 number)
{
	return number == NOBODY || number == ROOT ? NULL : group_of(number);
}

/* Notes the place from which a task of this group begins to run, or runs on. */
static __always_inline void note_front(u32 number, credit_v place)
{
	struct group *group = group_of(number);

	if (group)
		group->credit.front = credit_now(group->credit.front, place, true);
}

/* A task of this group begins to run, `at_home` or elsewhere. */
static __always_inline void begin_to_run(u32 number, u32 node, bool at_home)
{
	struct group *group = party_of(number);

	if (!group)
		return;
	__sync_fetch_and_add(&group->running, 1);
	if (at_home && group->seat != node + 1)
		group->seat = node + 1;
}

/* .. or stops. The group's number may have passed on to another one meanwhile. */
static __always_inline void stop_running(u32 number)
{
	struct group *group = party_of(number);

	if (group && group->running > 0)
		__sync_fetch_and_add(&group->running, -1);
}

/*
 * Whether the task's group is entitled to one CPU at most and has another one than this CPU, which
 * may still run a task that is about to make way.
 */
static bool runs_beside(struct task *task, s32 cpu)
{
	struct cpu_state *state = cpu_state(cpu);
	struct group *group = party_of(task->group);

	if (!group || credit_spreads(TUNING, group->credit.share))
		return false;
	return group->running > (state->running && state->group == task->group);
}

#define READ_CAPS_NS 100000000ULL

/*
 * Linux 6.16 does not report cpu.max, so the caps of a cgroup and of its ancestors are read every
 * READ_CAPS_NS. The root has no cap. Tasks of a cgroup without a group are charged to the root's
 * group, so that cgroup's cap must not become the root's.
 */
static void read_caps(u32 number, struct task_group *tg)
{
	u64 now_ns = bpf_ktime_get_ns(), quota;
	u32 level;

	bpf_for (level, 0, MAX_DEPTH) {
		struct group *group = group_of(number);

		if (!group || number == ROOT || !tg || now_ns - group->caps_read_ns < READ_CAPS_NS)
			break;
		group->caps_read_ns = now_ns;
		quota = BPF_CORE_READ(tg, cfs_bandwidth.quota);
		if (quota == ~0ULL)
			quota = 0;
		set_cap(number, quota, BPF_CORE_READ(tg, cfs_bandwidth.period),
			BPF_CORE_READ(tg, cfs_bandwidth.burst));
		tg = BPF_CORE_READ(tg, parent);
		number = group->parent;
	}
}

/* Brings a group's share up to date: its weight among its active siblings, at every level. */
static void refresh_share(struct group *group)
{
	u64 generation = shares_generation, share;
	u32 level, weight, parent;
	bool capped;
	s64 weights;

	if (group->share_generation == generation)
		return;
	capped = group->cap.quota_ns != 0;
	weights = group->weights;
	weight = group->own_counted ? group->own_counted : CREDIT_WEIGHT;
	share = credit_share(CREDIT_ONE, weight, weights > 0 ? weights : weight);
	parent = group->parent;
	weight = group->weight;
	bpf_for (level, 0, MAX_DEPTH) {
		struct group *above = group_of(parent);

		if (!above)
			break;
		weights = above->weights;
		share = credit_share(share, weight, weights > 0 ? weights : weight);
		capped |= above->cap.quota_ns != 0;
		parent = above->parent;
		weight = above->weight;
	}
	bpf_spin_lock(&group->lock);
	group->credit.share = share;
	group->capped = capped;
	group->share_generation = generation;
	bpf_spin_unlock(&group->lock);
}

/*
 * The part of a slice that the caps of a task's group and its ancestors leave. If it is 0,
 * refused_by names the first group without any.
 */
static u64 take_caps(struct task *task, u64 slice_ns, bool force)
{
	u32 number = task->group;
	u64 now_ns = bpf_ktime_get_ns();
	u32 level, first = number;

	bpf_for (level, 0, MAX_DEPTH) {
		struct group *group = group_of(number);
		struct credit_cap left;

		if (!group)
			break;
		bpf_spin_lock(&group->lock);
		credit_cap_refill(TUNING, &group->cap, now_ns);
		left = group->cap;
		bpf_spin_unlock(&group->lock);
		slice_ns = credit_cap_take(TUNING, &left, slice_ns);
		if (!slice_ns) {
			if (!force) {
				task->refused_by = number;
				return 0;
			}
			slice_ns = params.slice_min_ns;
		}
		number = group->parent;
	}
	number = first;
	bpf_for (level, 0, MAX_DEPTH) {
		struct group *group = group_of(number);

		if (!group)
			break;
		bpf_spin_lock(&group->lock);
		credit_cap_settle(&group->cap, 0, slice_ns);
		bpf_spin_unlock(&group->lock);
		number = group->parent;
	}
	return slice_ns;
}

/* The queue of the cap that refused the task. The timer serves it from now on. */
static u32 cap_queue_of(struct task *task)
{
	struct group *group = group_of(task->refused_by);
	u32 queue = (group ? group->cap_queue : SHARED_CAP_QUEUE) & (CAP_QUEUES - 1);

	cap_looks[queue] = CAP_LOOKS;
	return queue;
}

/*
 * The time at which the first of the caps above a group starts its next period, at most `next_ns`.
 */
static u64 next_period(u32 number, u64 now_ns, u64 next_ns)
{
	u32 level;

	bpf_for (level, 0, MAX_DEPTH) {
		struct group *group = group_of(number);
		u64 end_ns;

		if (!group)
			break;
		end_ns = group->cap.start_ns + group->cap.period_ns;
		if (group->cap.quota_ns && end_ns > now_ns && end_ns < next_ns)
			next_ns = end_ns;
		number = group->parent;
	}
	return next_ns;
}

static void settle_caps(u32 number, u64 taken_ns, u64 used_ns)
{
	u32 level;

	bpf_for (level, 0, MAX_DEPTH) {
		struct group *group = group_of(number);

		if (!group)
			break;
		bpf_spin_lock(&group->lock);
		credit_cap_settle(&group->cap, taken_ns, used_ns);
		bpf_spin_unlock(&group->lock);
		number = group->parent;
	}
}

/* The place that the task would get in a queue now. */
static credit_v tag_of(struct task *task, bool woken)
{
	struct group *group = group_of(task->group);

	if (!group)
		return now_v;
	return credit_tag(TUNING, &group->credit, now_v, woken) +
	       credit_own_lag(TUNING, group->own_now, task->own);
}

/* Grants the task a slice. False if its group has none left (unless forced). */
static bool grant_slice(struct task_struct *p, struct task *task, u64 slice_ns, bool woken,
			bool force)
{
	struct group *group = group_of(task->group);
	credit_v tag, lead = 0;
	u64 uses_ns;

	task->leads = false;
	if (!group) {
		task->grant = (struct credit_grant){ .tag = now_v, .slice_ns = slice_ns };
		task->place = now_v;
		return true;
	}
	if (reads_caps)
		read_caps(task->group, p->sched_task_group);
	refresh_share(group);
	task->capped = group->capped;
	if (task->capped) {
		slice_ns = take_caps(task, slice_ns, force);
		if (!slice_ns)
			return false;
	}
	uses_ns = credit_uses(slice_ns, task->runs_ns, woken);
	bpf_spin_lock(&group->lock);
	tag = credit_tag(TUNING, &group->credit, now_v, woken);
	/* A task without others neither goes before them nor behind them. */
	if (group->credit.runnable <= 1)
		group->own_now = task->own;
	task->own = credit_own_rejoins(TUNING, group->own_now, task->own);
	if (woken)
		lead = credit_own_lead(TUNING, &group->credit, now_v, tag, group->own_now,
				       task->own);
	credit_reserve(&group->credit, tag, slice_ns, uses_ns, &task->grant);
	task->leads = (lead | -lead) >> 63;
	task->place = tag - lead + credit_own_lag(TUNING, group->own_now, task->own);
	group->own_now = credit_own_now(group->own_now, task->own, uses_ns, slice_ns);
	bpf_spin_unlock(&group->lock);
	task->granted = true;
	return true;
}

static bool grant(struct task_struct *p, struct task *task, bool woken, bool force)
{
	return grant_slice(p, task, credit_slice(TUNING, p->scx.weight), woken, force);
}

/* Charges the task's use against its grant, if it has one. */
static void settle(struct task *task, u64 used_ns)
{
	struct group *group = group_of(task->group);
	struct credit_grant nothing = {};

	if (group) {
		bpf_spin_lock(&group->lock);
		credit_settle(&group->credit, task->granted ? &task->grant : &nothing, used_ns);
		bpf_spin_unlock(&group->lock);
	}
	if (task->capped)
		settle_caps(task->group, task->granted ? task->grant.slice_ns : 0, used_ns);
	task->granted = false;
}

/* Charges a running task for its time on a CPU since it was last charged. */
static void charge(struct task_struct *p, struct task *task, s32 cpu, u64 now_ns)
{
	u64 used_ns = now_ns - task->started_ns;
	struct domain *domain;

	task->left_ns = task->granted && used_ns < task->grant.slice_ns
				? task->grant.slice_ns - used_ns
				: 0;
	task->ran_ns += used_ns;
	task->own += credit_own_charge(used_ns, p->scx.weight);
	settle(task, used_ns);
	domain = task->domain ? bpf_map_lookup_elem(&domains, &task->domain) : NULL;
	if (domain)
		__sync_fetch_and_add(&domain->run_ns[node_of_cpu(cpu)], used_ns);
}

/* Puts a group without runnable tasks on the timer's list. */
static void linger(u32 number, struct group *group)
{
	__sync_fetch_and_add(&lingering, 1);
	if (bpf_map_push_elem(&idle_groups, &number, 0)) {
		__sync_fetch_and_add(&lingering, -1);
		group->lingers = 0;
	}
}

/*
 * One more of the group's own tasks can run. Together they are one party of the default weight. But
 * beside the root's cgroups, each of the root's own tasks is a party, as in the stock scheduler.
 */
static void add_runnable(struct task_struct *p, struct task *task)
{
	struct group *group = group_of(task->group);
	bool activate = false;

	if (!group)
		return;
	bpf_spin_lock(&group->lock);
	group->credit.runnable++;
	if (!group->own_counted) {
		group->own_counted = CREDIT_WEIGHT;
		activate = true;
	}
	bpf_spin_unlock(&group->lock);
	if (activate)
		add_weight(task->group, CREDIT_WEIGHT);
	if (task->group == ROOT) {
		task->counted = p->scx.weight;
		__sync_fetch_and_add(&root_weight, task->counted);
	}
}

/* One fewer. */
static void remove_runnable(struct task *task)
{
	struct group *group = group_of(task->group);
	bool idle = false;

	if (task->counted)
		__sync_fetch_and_add(&root_weight, -(s64)task->counted);
	task->counted = 0;
	if (!group)
		return;
	bpf_spin_lock(&group->lock);
	if (group->credit.runnable && !--group->credit.runnable) {
		group->idle_since_ns = 0; /* the clock is a call, which a lock forbids */
		if (!group->lingers) {
			group->lingers = 1;
			idle = true;
		}
	}
	bpf_spin_unlock(&group->lock);
	if (idle)
		linger(task->group, group);
}

/*
 * The average weight of the root's own tasks: with their current weight, all shares would change
 * all the time. True if they weigh more than one task, or did until just now.
 */
static bool weigh_root(void)
{
	struct group *group = group_of(ROOT);
	u64 now = root_weight, weight = 0;
	s64 more = 0;

	if (!group)
		return false;
	bpf_spin_lock(&group->lock);
	if (group->own_counted) {
		weight = group->own_counted;
		weight = (3 * weight + now + (now > weight ? 3 : 0)) / 4;
		if (weight < CREDIT_WEIGHT)
			weight = CREDIT_WEIGHT;
		more = (s64)weight - (s64)group->own_counted;
		group->own_counted = weight;
	}
	bpf_spin_unlock(&group->lock);
	if (more)
		add_weight(ROOT, more);
	return weight > CREDIT_WEIGHT || now > CREDIT_WEIGHT;
}

/*
 * A group without runnable tasks for LINGER_NS stops counting as active. Before that, it stays on
 * the timer's list.
 */
static void retire(u32 number, u64 now_ns)
{
	struct group *group = group_of(number);
	u64 retired = 0;
	bool done = false;

	if (!group)
		return;
	bpf_spin_lock(&group->lock);
	if (group->credit.runnable) {
		done = true;
	} else if (!group->idle_since_ns) {
		group->idle_since_ns = now_ns;
	} else if (now_ns - group->idle_since_ns >= LINGER_NS) {
		done = true;
		retired = group->own_counted;
		group->own_counted = 0;
	}
	if (done)
		group->lingers = 0;
	bpf_spin_unlock(&group->lock);
	if (!done)
		linger(number, group);
	if (retired)
		add_weight(number, -(s64)retired);
}

static void retire_groups(u64 now_ns)
{
	u64 count = lingering;
	u32 i, number;

	bpf_for (i, 0, count < MAX_GROUPS ? count : MAX_GROUPS) {
		if (bpf_map_pop_elem(&idle_groups, &number))
			break;
		__sync_fetch_and_add(&lingering, -1);
		retire(number, now_ns);
	}
}

/* A cgroup's own group; 0: it has none. */
static u32 number_of(u64 cgroup)
{
	u32 *number = bpf_map_lookup_elem(&group_numbers, &cgroup);

	return number ? *number : 0;
}

/* The group that pays for a cgroup's tasks. */
static u32 payer_of(u64 cgroup)
{
	u32 number = number_of(cgroup);

	return number ? number : ROOT;
}

static void set_group(u32 number, u32 parent, u32 weight)
{
	struct group group = {};

	group.weight = weight;
	group.parent = parent;
	group.credit.share = CREDIT_ONE;
	group.credit.vtime = now_v;
	group.credit.front = now_v;
	bpf_map_update_elem(&groups, &number, &group, BPF_ANY);
}

/* A cgroup beyond the capacity has no group: its tasks belong to the root's. */
static void add_group(u64 cgroup, u32 parent, u32 weight)
{
	u32 number;

	if (bpf_map_pop_elem(&free_numbers, &number))
		return;
	set_group(number, parent, weight);
	if (bpf_map_update_elem(&group_numbers, &cgroup, &number, BPF_ANY))
		bpf_map_push_elem(&free_numbers, &number, 0);
}

static void remove_group(u64 cgroup)
{
	u32 number = number_of(cgroup);
	struct group *group = group_of(number);
	u32 parent, cap_queue;
	bool capped;
	s64 delta;

	if (!group)
		return;
	bpf_spin_lock(&group->lock);
	/*
	 * In one step, or a task that ends just now could leave a weight behind in the group above.
	 */
	delta = group->weights > 0 ? -(s64)group->counted : 0;
	capped = group->cap.quota_ns != 0;
	parent = group->parent;
	cap_queue = group->cap_queue;
	group->weights = 0;
	group->weight = 0;
	bpf_spin_unlock(&group->lock);
	if (cap_queue != SHARED_CAP_QUEUE)
		bpf_map_push_elem(&free_cap_queues, &cap_queue, 0);
	if (capped)
		__sync_fetch_and_add(&caps, -1);
	if (delta)
		add_weight(parent, delta);
	bpf_map_delete_elem(&group_numbers, &cgroup);
	bpf_map_push_elem(&free_numbers, &number, 0);
}

#endif
