/* SPDX-License-Identifier: GPL-2.0-only */
/* Where a task belongs and where it may go: its domain, its nodes, idle CPUs, queues. */
#ifndef NEARSIDE_PLACE_H
#define NEARSIDE_PLACE_H

#include "groups.h"

/*
 * Whether the task may not change its CPU. Before 6.18, or where RCU is preemptible, entering a BPF
 * program raises the count of the current task itself.
 */
static bool is_bound(struct task_struct *p)
{
	if (p->nr_cpus_allowed == 1)
		return true;
	if (p->migration_disabled == 1)
		return bpf_get_current_task_btf() != p;
	return p->migration_disabled;
}

/* The nodes with CPUs that the task may use. */
static u64 allowed_nodes(const struct cpumask *cpus)
{
	u64 nodes = 0;
	u32 queue;

	bpf_for (queue, 0, queue_count) {
		struct bpf_cpumask *members = members_of(queue);

		if (members && bpf_cpumask_intersects((const struct cpumask *)members, cpus))
			nodes |= 1ULL << node_of_queue(queue);
	}
	return nodes;
}

/* A vCPU prefers the nodes of its cell to those of its whole virtual machine. */
static void prefer_own_nodes(struct task_struct *p, struct task *task)
{
	struct thread_nodes *own = bpf_task_storage_get(&threads, p, 0, 0);

	if (!own || !own->affine)
		return;
	task->affine = own->affine;
	task->home = own->home & (MAX_NODES - 1);
}

/* The home of a domain's task: that of its partner, the seat of its group, or its domain's. */
static __always_inline void find_home(struct task *task)
{
	struct group *group;

	if (task->follows || !(task->affine & (task->affine - 1)))
		return;
	task->home = task->domain_home;
	group = party_of(task->group);
	if (group && group->seat && credit_is_seat(TUNING, group->credit.share, task->affine,
						   task->allowed, group->seat - 1))
		task->home = (group->seat - 1) & (MAX_NODES - 1);
}

/* The task has the home of its own domain again. */
static __always_inline void stop_following(struct task *task)
{
	if (!task->follows)
		return;
	task->follows = false;
	task->cgroup = 0; /* its nodes are looked up anew */
}

/* It is a task of another domain than before, which has talked with no one. */
static __always_inline void forget_partner(struct task *task)
{
	task->partner = 0;
	task->talks = 0;
	task->follows = false;
}

/*
 * Looks up the task's domain, if it can have changed: the nearest one of its cgroup and its
 * ancestors.
 */
static void find_domain(struct task_struct *p, struct task *task)
{
	u64 generation = domains_generation, id, before = task->domain;
	struct cgroup *cgroup;
	u32 level;

	cgroup = p->cgroups->dfl_cgrp;
	id = cgroup->kn->id;
	if (id == task->cgroup && generation == task->generation)
		goto found;
	task->cgroup = id;
	task->generation = generation;
	task->domain = 0;
	task->affine = 0;
	bpf_for (level, 0, MAX_DEPTH) {
		struct cgroup *ancestor;
		struct domain *domain;

		if (level > cgroup->level)
			break;
		ancestor = bpf_cgroup_ancestor(cgroup, cgroup->level - level);
		if (!ancestor)
			break;
		id = ancestor->kn->id;
		bpf_cgroup_release(ancestor);
		domain = bpf_map_lookup_elem(&domains, &id);
		if (domain) {
			task->domain = id;
			task->affine = domain->affine;
			task->home = domain->home & (MAX_NODES - 1);
			if (id != before)
				forget_partner(task);
			if (task->follows) {
				task->home = task->partner_home & (MAX_NODES - 1);
				task->affine = 1ULL << task->home;
			}
			prefer_own_nodes(p, task);
			task->domain_home = task->home;
			break;
		}
	}
found:
	/* A task without a domain is at home where it is. */
	if (!task->domain)
		task->home = node_of_cpu(scx_bpf_task_cpu(p));
	else
		find_home(task);
}

static __always_inline u32 place(struct task *task, u32 node)
{
	return credit_place(task->affine, task->allowed, task->home, node);
}

/*
 * The queue at home from which all others are ordered. With several at home, the one the task was
 * in last.
 */
static u32 home_queue(struct task_struct *p, struct task *task)
{
	u32 last = queue_of_cpu(scx_bpf_task_cpu(p));

	if (last != NOWHERE && node_of_queue(last) == task->home)
		return last;
	return node_queue[task->home & (MAX_NODES - 1)];
}

/* The queue of a waiting task: at home, else on the nearest affine or allowed node. */
static u32 waiting_queue(struct task_struct *p, struct task *task)
{
	u32 home = home_queue(p, task), second = home, i;
	bool found = false;

	bpf_for (i, 0, queue_count) {
		u32 queue = nearest(home, i), where;

		if (!queue_state(queue)->online)
			continue;
		where = place(task, node_of_queue(queue));
		if (where <= CREDIT_AFFINE)
			return queue;
		if (where == CREDIT_OTHER && !found) {
			second = queue;
			found = true;
		}
	}
	return second;
}

/*
 * Claims the CPU, if it is idle. The bit is tested before it is cleared, because clearing takes its
 * cache line away from all other CPUs, even if the bit is not set. A task that is queued anew asks
 * for its own CPU, which is busy.
 */
static bool claim_cpu(s32 node, s32 cpu)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask_node(node);
	bool is_idle = bpf_cpumask_test_cpu(cpu, idle);

	scx_bpf_put_idle_cpumask(idle);
	return is_idle && scx_bpf_test_and_clear_cpu_idle(cpu);
}

/* Claims an idle CPU out of `cpus` in a queue's part of a node. */
static s32 claim_among(const struct cpumask *cpus, u32 queue, s32 prev)
{
	s32 node = node_id[node_of_queue(queue)], cpu;
	bool prev_here = prev >= 0 && queue_of_cpu(prev) == queue &&
			 bpf_cpumask_test_cpu(prev, cpus);

	if (has_smt) {
		if (prev_here) {
			const struct cpumask *cores = scx_bpf_get_idle_smtmask_node(node);
			bool whole = bpf_cpumask_test_cpu(prev, cores);

			scx_bpf_put_idle_cpumask(cores);
			if (whole && scx_bpf_test_and_clear_cpu_idle(prev))
				return prev;
		}
		cpu = scx_bpf_pick_idle_cpu_node(cpus, node,
						 SCX_PICK_IDLE_CORE | SCX_PICK_IDLE_IN_NODE);
		if (cpu >= 0)
			return cpu;
	}
	if (prev_here && claim_cpu(node, prev))
		return prev;
	return scx_bpf_pick_idle_cpu_node(cpus, node, SCX_PICK_IDLE_IN_NODE);
}

static s32 claim_marked(struct task_struct *p, u32 queue, s32 prev)
{
	struct bpf_cpumask *to, *from;
	struct mask *scratch;
	u32 zero = 0;
	s32 cpu = -1;

	if (queue_is_node[queue & (MAX_QUEUES - 1)])
		return claim_among(p->cpus_ptr, queue, prev);
	scratch = bpf_map_lookup_elem(&scratch_masks, &zero);
	if (!scratch)
		return -1;
	to = scratch->mask;
	from = members_of(queue);
	if (to && from) {
		bpf_cpumask_and(to, p->cpus_ptr, (const struct cpumask *)from);
		cpu = claim_among((const struct cpumask *)to, queue, prev);
	}
	return cpu;
}

/* A CPU that goes down stays marked as idle until it is first claimed. */
static s32 claim_in_queue(struct task_struct *p, u32 queue, s32 prev)
{
	s32 cpu = claim_marked(p, queue, prev);
	u32 tries;

	if (cpu < 0)
		return -1;
	bpf_for (tries, 1, cpu_count) {
		if (cpu < 0 || cpu_state(cpu)->online)
			break;
		cpu = claim_marked(p, queue, prev);
	}
	if (cpu < 0 || !cpu_state(cpu)->online)
		return -1;
	cpu_state(cpu)->since_ns = bpf_ktime_get_ns();
	return cpu;
}

/*
 * How long the task of a CPU runs on average until it sleeps, or has run, if that is longer. A CPU
 * without a task will have one in a moment, unless it has had none for long.
 */
static u64 runs_on(s32 cpu, u64 now_ns)
{
	struct cpu_state *state = cpu_state(cpu);
	u64 since_ns = state->since_ns, runs_ns = state->runs_ns;

	/* The other CPU may have written it just now. */
	if (now_ns > since_ns && now_ns - since_ns > runs_ns)
		return now_ns - since_ns;
	return runs_ns;
}

/*
 * Whether the task waits for a CPU of its own node, or of one of them. The CPU that it ran on last
 * stands for the others there.
 */
static bool waits_at_home(struct task_struct *p, struct task *task, u64 waited_ns)
{
	u32 queue = home_queue(p, task), size = queue_size[queue & (MAX_QUEUES - 1)];
	s32 cpu = scx_bpf_task_cpu(p);

	u64 now_ns;

	/* Without a look at a queue's first task, the timer could not end the wait. */
	if (!can_peek() || place(task, node_of_queue(queue)) > CREDIT_AFFINE || !size)
		return false;
	if (queue_of_cpu(cpu) != queue)
		cpu = cpu_of_queue(queue, (task->woken_ns >> 10) % size);
	if (!cpu_state(cpu)->online || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
		return false;
	now_ns = bpf_ktime_get_ns();
	if (!credit_waits(TUNING, runs_on(cpu, now_ns), scx_bpf_dsq_nr_queued(queue),
			  queue_state(queue)->online, waited_ns))
		return false;
	/* All CPUs read this line, so it is written seldom. */
	if (now_ns - patient_ns > TICK_NS)
		patient_ns = now_ns;
	/* It may have gone idle before the task is in its queue. */
	if (!cpu_state(cpu)->running)
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	return true;
}

/* Whether a woken task waits for the task of this CPU to sleep rather than to interrupt it. */
static bool sleeps_by_itself(s32 cpu, u64 now_ns)
{
	return credit_waits(TUNING, runs_on(cpu, now_ns), 0, 1, 0);
}

/* Whether the first task of another queue waits for its own CPUs rather than run on this node. */
static bool is_patient(u32 queue, u32 node)
{
	struct task_struct *p = dsq_peek(queue);
	struct task *task = p ? task_of(p) : NULL;

	return task && place(task, node) == CREDIT_OTHER &&
	       waits_at_home(p, task, bpf_ktime_get_ns() - task->queued_ns);
}

/* Beyond any distance. */
#define ANYWHERE 256

/*
 * Claims an idle CPU for the task: at home, then on its other affine nodes, then on any node it may
 * use that is less far from home than `nearer_than`; each nearest first. `prev` is preferred only
 * within a queue, or distance would not decide. A patient task rather waits for a moment than to go
 * to any node.
 */
static s32 claim_idle(struct task_struct *p, struct task *task, s32 prev, u32 nearer_than,
		      bool patient)
{
	u32 home = home_queue(p, task), at_home = task->home & (MAX_NODES - 1), worst = CREDIT_HOME,
	    i;
	s32 cpu;

	bpf_for (i, 0, queue_count) {
		u32 queue = nearest(home, i);
		u32 where = place(task, node_of_queue(queue));

		if (where == CREDIT_OTHER)
			worst = CREDIT_OTHER;
		if (where > CREDIT_AFFINE)
			continue;
		cpu = claim_in_queue(p, queue, prev);
		if (cpu >= 0) {
			count(where == CREDIT_HOME ? COUNT_HOME : COUNT_AFFINE);
			return cpu;
		}
	}
	if (worst != CREDIT_OTHER || (patient && waits_at_home(p, task, 0)))
		return -1;
	bpf_for (i, 0, queue_count) {
		u32 queue = nearest(home, i), node = node_of_queue(queue);

		if (node_distance[at_home][node] >= nearer_than)
			break;
		if (place(task, node) != CREDIT_OTHER)
			continue;
		cpu = claim_in_queue(p, queue, prev);
		if (cpu >= 0) {
			count(COUNT_OTHER);
			return cpu;
		}
	}
	return -1;
}

/* Whether a CPU of the queue that the task may use runs a task away from its home. */
static bool has_foreign(struct task_struct *p, u32 queue)
{
	struct bpf_cpumask *foreign = foreign_of(queue);

	return foreign && bpf_cpumask_intersects((const struct cpumask *)foreign, p->cpus_ptr);
}

/* Claims such a CPU for this task only; -1 if there is none, or if its task sleeps soon. */
static s32 claim_foreign(struct task_struct *p, u32 queue, u64 now_ns)
{
	struct bpf_cpumask *foreign = foreign_of(queue);
	u32 cpu;

	if (!foreign)
		return -1;
	cpu = bpf_cpumask_first_and((const struct cpumask *)foreign, p->cpus_ptr);
	if (cpu >= cpu_count || !cpu_state(cpu)->running || sleeps_by_itself(cpu, now_ns) ||
	    !bpf_cpumask_test_and_clear_cpu(cpu, foreign))
		return -1;
	return cpu;
}

/* Marks this task's CPU as running a task away from its home, or no longer. */
static void set_foreign(struct task *task, s32 cpu, bool is_foreign)
{
	struct bpf_cpumask *foreign;

	if (!is_foreign && !task->foreign)
		return;
	task->foreign = is_foreign;
	foreign = foreign_of(queue_of_cpu(cpu));
	if (!foreign)
		return;
	/* A write takes the cache line away from all other CPUs. */
	if (!is_foreign)
		bpf_cpumask_clear_cpu(cpu, foreign);
	else if (!bpf_cpumask_test_cpu(cpu, (const struct cpumask *)foreign))
		bpf_cpumask_set_cpu(cpu, foreign);
}

/*
 * Whether there is room for a task that runs away from home: an affine node with a CPU that is idle
 * or runs a task that is itself away from home, or an idle CPU nearer to home than its present one.
 */
static bool has_room(struct task_struct *p, struct task *task, u32 node)
{
	u32 home = home_queue(p, task), at_home = task->home & (MAX_NODES - 1), i;
	u32 here = node_distance[at_home][node & (MAX_NODES - 1)];

	bpf_for (i, 0, queue_count) {
		u32 queue = nearest(home, i), other = node_of_queue(queue),
		    where = place(task, other);
		const struct cpumask *idle;
		bool room;

		if (where == CREDIT_NEVER ||
		    (where == CREDIT_OTHER && node_distance[at_home][other] >= here))
			continue;
		idle = scx_bpf_get_idle_cpumask_node(node_id[other]);
		room = bpf_cpumask_intersects(idle, p->cpus_ptr);
		scx_bpf_put_idle_cpumask(idle);
		if (room || (where <= CREDIT_AFFINE && has_foreign(p, queue)))
			return true;
	}
	return false;
}

#endif
