/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A task becomes runnable: the CPU it wakes on, or the queue it waits in and whose task makes way
 * for it.
 */
#ifndef NEARSIDE_ENQUEUE_H
#define NEARSIDE_ENQUEUE_H

#include "place.h"

/*
 * Whether this CPU is going down and takes no more interrupts. Its last act is to wake the task
 * that takes it down. A kick starts with an interrupt to the CPU itself. From here it would stay
 * pending and block all later kicks of this CPU, and the kernel would wait for it forever when the
 * scheduler is detached.
 */
static bool is_dying(void)
{
	u32 cpu = bpf_get_smp_processor_id();
	const struct cpumask *online;
	bool dying;

	/* cpu_offline() came earlier. */
	if (cpu_state(cpu)->online)
		return false;
	online = scx_bpf_get_online_cpumask();
	dying = !bpf_cpumask_test_cpu(cpu, online);
	scx_bpf_put_cpumask(online);
	return dying;
}

/*
 * This CPU, if the task that it wakes waits for it; -1 if not. In an interrupt the waker is the
 * task that was interrupted, and its average tells whether it sleeps soon. A real-time task runs
 * as long as it likes.
 */
static s32 waker_cpu(struct task_struct *p, struct task *task, s32 prev)
{
	struct task *waker = task_of(bpf_get_current_task_btf());
	s32 here = bpf_get_smp_processor_id();
	struct cpu_state *state = cpu_state(here);
	u32 queue = queue_of_cpu(here), node = node_of_queue(queue);
	u64 now_ns;

	if (!waker || !state->running || !state->online)
		return -1;
	now_ns = bpf_ktime_get_ns();
	if (!waker->promised_ns)
		waker->promised_ns = now_ns;
	if (!credit_sleeps_soon(TUNING, waker->goes_on_ns) ||
	    !bpf_cpumask_test_cpu(here, p->cpus_ptr))
		return -1;
	if (!credit_takes_over(TUNING, task->group != NOBODY && task->group == waker->group,
			       place(task, node), node == node_of_cpu(prev),
			       scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL), scx_bpf_dsq_nr_queued(queue),
			       now_ns - state->looked_ns))
		return -1;
	count(COUNT_TAKEN_OVER);
	return here;
}

/*
 * Notes which domain's task has woken this one and is about to sleep, and whether this task has its
 * home at that one's. So clients stay with the tasks that answer them, and these with their memory.
 * Tasks of one domain with other homes are other partners.
 */
static void note_waker(struct task *task, bool sync)
{
	struct task *waker = sync ? task_of(bpf_get_current_task_btf()) : NULL;
	bool apart = waker && waker->domain && waker->domain != task->domain;
	bool same = apart && waker->domain == task->partner && waker->home == task->partner_home &&
		    waker->partner == task->domain;
	bool follows = task->follows;

	if (!task->domain)
		return;
	task->talks = credit_talks(task->talks, same);
	if (apart && !same && task->talks < CREDIT_TALKS_STILL) {
		task->partner = waker->domain;
		task->partner_home = waker->home;
		task->partner_runs_ns = waker->runs_ns;
		task->talks = credit_talks(0, true);
		follows = false;
	} else if (same) {
		task->partner_runs_ns =
			credit_goes_on(TUNING, task->partner_runs_ns, waker->runs_ns);
		follows = task->allowed & (1ULL << (task->partner_home & (MAX_NODES - 1))) &&
			  credit_follows(TUNING, follows, task->talks, waker->talks, task->runs_ns,
					 task->partner_runs_ns);
	} else {
		follows = follows && task->talks >= CREDIT_TALKS_STILL;
	}
	if (follows == task->follows)
		return;
	task->follows = follows;
	task->cgroup = 0; /* its nodes are looked up anew */
}

s32 SCX_OPS(select_cpu, struct task_struct *p, s32 prev, u64 wake_flags)
{
	struct task *task = task_of(p);
	s32 cpu;

	if (!task)
		return prev;
	note_waker(task, is_sync(wake_flags));
	find_domain(p, task);
	cpu = is_sync(wake_flags) ? waker_cpu(p, task, prev) : -1;
	if (cpu < 0)
		cpu = claim_idle(p, task, prev, ANYWHERE, true);
	task->selected = cpu >= 0;
	return cpu >= 0 ? cpu : prev;
}

/*
 * Whether the task's group has the CPU on which it wakes, usually its waker's, and wants no second
 * one. That CPU takes its next task from the queue in which the woken one waits. The root's own
 * tasks are each a party of their own.
 */
static bool is_served(struct task_struct *p, struct task *task, u32 queue)
{
	s32 here = bpf_get_smp_processor_id();
	struct cpu_state *state = cpu_state(here);
	struct group *group;

	if (task->group == NOBODY || task->group == ROOT || task->woken_ns != task->queued_ns ||
	    !state->running || state->group != task->group || queue_of_cpu(here) != queue ||
	    !bpf_cpumask_test_cpu(here, p->cpus_ptr))
		return false;
	group = group_of(task->group);
	return group && !credit_spreads(TUNING, group->credit.share);
}

/*
 * Whether a CPU runs a task of the same group that makes way for this one, which goes before the
 * others of its group. What that one had is known as of its last slice.
 */
static bool passes_own(struct task *task, s32 cpu)
{
	struct cpu_state *state = cpu_state(cpu);
	u64 since_ns = state->since_ns;
	/* Another task may have begun to run there just now. */
	u64 ran_ns = task->queued_ns > since_ns ? task->queued_ns - since_ns : 0;

	return task->leads && state->running && state->group == task->group &&
	       !sleeps_by_itself(cpu, task->queued_ns) &&
	       credit_preempts_own(TUNING, task->own, state->own, task->place, state->tag,
				   ran_ns);
}

/*
 * The CPU of a queue whose task makes way for a woken one: a CPU that runs a task away from its
 * home, or else the one with the task farthest ahead, if by enough, or else one of its own group's,
 * if it goes before them. In a large queue only a few CPUs are compared, starting at the one that
 * the woken task ran on last, or at any.
 */
static s32 victim_of(struct task_struct *p, struct task *task, u32 queue)
{
	u32 count = queue_size[queue & (MAX_QUEUES - 1)], last = scx_bpf_task_cpu(p), start, i;
	s32 victim = claim_foreign(p, queue, task->queued_ns), own = -1;
	s32 here = bpf_get_smp_processor_id();
	credit_v farthest = task->place, latest = task->place;

	if (victim >= 0)
		return victim;
	if (is_served(p, task, queue))
		return passes_own(task, here) ? here : -1;
	start = queue_of_cpu(last) == queue ? cpu_position[last & (MAX_CPUS - 1)]
					    : task->queued_ns >> 10;
	bpf_for (i, 0, CREDIT_MAX_CANDIDATES) {
		u32 position = credit_candidate(start, i, count);
		s32 cpu = cpu_of_queue(queue, position);
		struct cpu_state *state = cpu_state(cpu);

		if (position >= count)
			break;
		if (!state->running || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr) ||
		    sleeps_by_itself(cpu, task->queued_ns))
			continue;
		if (state->group == task->group && !credit_before(state->tag, latest)) {
			latest = state->tag;
			own = cpu;
		}
		if (credit_before(farthest, state->tag) &&
		    credit_preempts(TUNING, task->place, state->tag)) {
			farthest = state->tag;
			victim = cpu;
		}
	}
	if (victim < 0 && own >= 0 && passes_own(task, own))
		return own;
	return victim;
}

/*
 * The queue in which a task waits. A task that runs away from home may stay there if it may
 * continue.
 */
static u32 queue_for(struct task_struct *p, struct task *task, bool may_stay)
{
	u32 home = waiting_queue(p, task), here = queue_of_cpu(scx_bpf_task_cpu(p));

	if (may_stay && here != NOWHERE && queue_state(here)->online &&
	    place(task, node_of_queue(here)) == CREDIT_OTHER &&
	    credit_stays(scx_bpf_dsq_nr_queued(home), queue_state(home)->online,
			 scx_bpf_dsq_nr_queued(here), queue_state(here)->online))
		return here;
	return home;
}

/*
 * For kernels that do not report a queue's first task without its lock. Every busy CPU compares all
 * queues after each slice, so the place that a CPU of the queue saw last is kept beside the queue.
 */
static void note_comer(u32 queue, credit_v place)
{
	struct queue_state *state = queue_state(queue);

	if (!can_peek() && credit_before(place, state->head))
		state->head = place;
}

/*
 * Calls the CPU that came too late for a task of this queue, if it would fetch this one. Otherwise
 * that CPU would run a task that is far ahead for another whole slice, and be too late again at the
 * next tick.
 */
static void call_late(struct task *task, u32 queue)
{
	struct queue_state *state = queue_state(queue);
	u32 late = state->late;
	s32 cpu = (s32)late - 1;
	u32 distance;

	if (!late || __sync_val_compare_and_swap(&state->late, late, 0) != late)
		return;
	distance = node_distance[node_of_cpu(cpu)][node_of_queue(queue)];
	if (!credit_steals(TUNING, &task->grant, cpu_state(cpu)->tag, task->place, distance, ~0ULL))
		return;
	cpu_state(cpu)->balanced_ns = 0;
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/*
 * The task waits in a queue, or preempts a CPU of it if it has just woken. A kernel thread needs
 * the CPU only for a moment, so the task that it interrupts waits there. For example, the thread
 * that compacts a node's memory wakes twice a second and is bound to its node: it would send a task
 * of every full home away for a slice.
 */
static void wait_or_preempt(struct task_struct *p, struct task *task, bool preempts, u64 enq_flags)
{
	/* It does not stay where a real-time task has just taken its CPU. */
	u32 queue = queue_for(p, task, !preempts && !(enq_flags & SCX_ENQ_REENQ));
	s32 victim = preempts ? victim_of(p, task, queue) : -1;

	count(COUNT_QUEUED);
	if (victim >= 0) {
		count(COUNT_PREEMPTED);
		cpu_state(victim)->tag = task->place;
	}
	if (victim >= 0 && p->flags & PF_KTHREAD) {
		cpu_state(victim)->interrupted = 1;
		dsq_insert(p, SCX_DSQ_LOCAL_ON | victim, task->grant.slice_ns,
			   enq_flags | SCX_ENQ_PREEMPT);
		return;
	}
	task->waiting = true;
	note_comer(queue, task->place);
	dsq_insert_vtime(p, queue, task->grant.slice_ns, task->place, enq_flags);
	if (victim >= 0)
		scx_bpf_kick_cpu(victim, SCX_KICK_PREEMPT);
	else
		call_late(task, queue);
}

/*
 * Kicks the CPU that a queued task is on, if it is idle, so that it searches once more. The kernel
 * queues a task only after enqueue() has returned, and the kick takes effect later still. By then
 * the CPU is busy and will search by itself, or it finds the task. Without the kick, a CPU that
 * went idle in between has searched too early, and perhaps no other CPU ever searches. The same
 * holds for a task sent to a CPU that has begun to go down: the kernel puts it into a queue that
 * only the CPUs of its node serve.
 */
static void look_again(s32 cpu)
{
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
}

/*
 * The same for the CPU of a task that is queued now. While that CPU runs a task it searches by
 * itself: enqueue() has the lock of its run queue, so its next switch comes after the task is in
 * its queue. The kernel cannot tell, as it tries to take that lock, and would interrupt this CPU.
 */
static void look_again_on(struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);

	if (!cpu_state(cpu)->running)
		look_again(cpu);
}

void SCX_OPS(enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task *task = task_of(p);
	bool selected, returning, woken;
	u32 nearer_than = ANYWHERE;
	u64 rest_ns = 0;
	s32 cpu;

	if (!task) {
		dsq_insert(p, SCX_DSQ_LOCAL, params.slice_min_ns, enq_flags);
		return;
	}
	if (task->granted)
		settle(task, 0);
	/* The kernel passes no wake-up flag for a new task, which wakes up as well. */
	woken = enq_flags & SCX_ENQ_WAKEUP || !task->woken_ns;
	selected = task->selected;
	if (!selected)
		find_domain(p, task);
	returning = task->returning;
	task->selected = false;
	task->returning = false;
	task->queued_ns = bpf_ktime_get_ns();
	if (woken)
		task->woken_ns = task->queued_ns;

	if (is_bound(p) && p->flags & PF_KTHREAD) {
		/* The kernel's own work for a CPU does not wait for credits. */
		count(COUNT_BOUND);
		grant(p, task, woken, true);
		if (woken)
			cpu_state(scx_bpf_task_cpu(p))->interrupted = 1;
		dsq_insert(p, SCX_DSQ_LOCAL, task->grant.slice_ns,
			   enq_flags | (woken ? SCX_ENQ_PREEMPT : 0));
		return;
	}
	/* The interrupted task waits for that moment and does not move to another node. */
	if (!woken && !(enq_flags & SCX_ENQ_REENQ) && cpu_state(scx_bpf_task_cpu(p))->interrupted)
		rest_ns = credit_resumes(TUNING, task->left_ns,
					 scx_bpf_dsq_nr_queued(queue_of_cpu(scx_bpf_task_cpu(p))) >
						 0);
	if (rest_ns && grant_slice(p, task, rest_ns, false, false)) {
		count(COUNT_INTERRUPTED);
		dsq_insert(p, SCX_DSQ_LOCAL, task->grant.slice_ns, enq_flags);
		return;
	}
	/* Its own CPU's queue takes no kick. */
	if (is_dying()) {
		grant(p, task, woken, true);
		dsq_insert(p, SCX_DSQ_LOCAL, task->grant.slice_ns, enq_flags);
		return;
	}
	if (!grant(p, task, woken, false)) {
		count(COUNT_THROTTLED);
		dsq_insert(p, THROTTLED + cap_queue_of(task), params.slice_min_ns, enq_flags);
		/* The claimed CPU marks itself as idle again. */
		if (selected)
			look_again(scx_bpf_task_cpu(p));
		return;
	}
	if (selected || (is_bound(p) && p->nr_cpus_allowed != 1)) {
		dsq_insert(p, SCX_DSQ_LOCAL, task->grant.slice_ns, enq_flags);
		return;
	}
	if (returning)
		nearer_than =
			node_distance[task->home & (MAX_NODES - 1)][task->node & (MAX_NODES - 1)];
	cpu = claim_idle(p, task, scx_bpf_task_cpu(p), nearer_than, woken);
	if (cpu >= 0) {
		dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu, task->grant.slice_ns, enq_flags);
	} else {
		wait_or_preempt(p, task, woken || returning, enq_flags);
		/* A CPU that puts its task back searches for another one afterwards. */
		if (!woken && bpf_get_current_task_btf() == p)
			return;
	}
	look_again_on(p);
}

#endif
