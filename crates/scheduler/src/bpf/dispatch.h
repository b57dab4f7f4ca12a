/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A CPU needs a task: the one it has, one of its own queue, or one of another queue that is far
 * behind.
 */
#ifndef NEARSIDE_DISPATCH_H
#define NEARSIDE_DISPATCH_H

#include "enqueue.h"

/* The most tasks of a queue that a CPU examines to find one that fits. */
#define MAX_SAMPLED 8

/* Whether the scheduler stalls, for a test. */
static bool stalls(void)
{
	return stall_ns && bpf_ktime_get_ns() - started_ns > stall_ns;
}

/*
 * The place of the first task of a queue that this CPU may run. If all examined tasks are bound
 * elsewhere, the place of the last of them: otherwise such tasks could block the others forever.
 */
static bool head_of(u32 queue, s32 cpu, credit_v *tag)
{
	struct task_struct *p = dsq_peek(queue);
	bool found = false;
	u32 sampled = 0;

	if (can_peek() && !p)
		return false;
	if (p && bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
		*tag = p->scx.dsq_vtime;
		return true;
	}
	bpf_for_each (scx_dsq, p, queue, 0) {
		if (!can_peek() && !sampled)
			queue_state(queue)->head = p->scx.dsq_vtime;
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr) || ++sampled >= MAX_SAMPLED) {
			*tag = p->scx.dsq_vtime;
			found = true;
			break;
		}
	}
	return found;
}

/*
 * Whether the first task of another queue that this CPU may run is behind `own` by more than the
 * margin of the distance. `own` becomes that task's place among the CPU's own tasks, and the next
 * candidate has to be behind it. With `take`, the task is moved to this CPU.
 */
static bool is_due(u32 queue, s32 cpu, credit_v *own, u64 now_ns, bool take)
{
	u32 distance = node_distance[node_of_cpu(cpu)][node_of_queue(queue)];
	struct task_struct *p = dsq_peek(queue);
	struct task *task = p ? task_of(p) : NULL;
	struct credit_grant nothing = {};
	bool due = false;
	u32 sampled = 0;

	if (can_peek() && !p)
		return false;
	/*
	 * The tasks behind it are further ahead. One of a group with shorter virtual slices may be
	 * due all the same; it waits until the first one is.
	 */
	if (!can_peek() &&
	    (!credit_steals(TUNING, &nothing, *own, queue_state(queue)->head, distance, ~0ULL) ||
	     scx_bpf_dsq_nr_queued(queue) <= 0))
		return false;
	if (task && !credit_steals(TUNING, &task->grant, *own, p->scx.dsq_vtime, distance, ~0ULL))
		return false;
	bpf_for_each (scx_dsq, p, queue, 0) {
		task = task_of(p);
		if (!task || ++sampled > MAX_SAMPLED)
			break;
		if (!credit_steals(TUNING, &task->grant, *own, p->scx.dsq_vtime, distance,
				   now_ns - task->woken_ns))
			break;
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
			*own = credit_from_afar(TUNING, &task->grant, p->scx.dsq_vtime, distance);
			due = !take || scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0);
			break;
		}
	}
	return due;
}

/*
 * Takes the task that is most behind from the other queues, if it is behind by enough. All CPUs
 * search at the same tick, and a CPU of that queue, which searches there first, may have taken the
 * task by now. The task that this CPU ran until then will be queued there in a moment and is as
 * much behind. So the searching CPU asks to be called when it arrives (`call_late`), and searches
 * once more in case it arrived in between.
 */
static bool balance(s32 cpu, u32 queue, credit_v own, u64 now_ns)
{
	u32 from = queue, i;
	credit_v best = own;

	bpf_for (i, 1, queue_count) {
		u32 other = nearest(queue, i);

		if (is_due(other, cpu, &best, now_ns, false))
			from = other;
	}
	if (from == queue)
		return false;
	best = own;
	if (is_due(from, cpu, &best, now_ns, true))
		return true;
	__sync_lock_test_and_set(&queue_state(from)->late, cpu + 1);
	best = own;
	if (!is_due(from, cpu, &best, now_ns, true))
		return false;
	__sync_val_compare_and_swap(&queue_state(from)->late, cpu + 1, 0);
	return true;
}

/*
 * Whether the running task makes way for the one that waits here, with these tags. A task that runs
 * away from home makes way, unless it is so far behind that this CPU would fetch it again at once.
 */
static bool makes_way(struct task *task, bool away, u32 node, credit_v own, credit_v waiting)
{
	/* No group is charged for it, so it has no place among others: they take turns. */
	if (task->group == NOBODY)
		return true;
	if (away)
		return !credit_steals(TUNING, &task->grant, waiting, own,
				      node_distance[node][task->home & (MAX_NODES - 1)], ~0ULL);
	return credit_before(waiting, own);
}

/* The running task runs on, unless a cap refuses it. */
static bool keep(struct task_struct *p, struct task *task, s32 cpu, bool away, u64 now_ns)
{
	if (!grant(p, task, false, false))
		return false;
	task->started_ns = now_ns;
	note_start(cpu, task->grant.tag, false, now_ns);
	note_front(task->group, task->place);
	set_foreign(task, cpu, away);
	cpu_state(cpu)->tag = task->place;
	cpu_state(cpu)->own = task->own;
	set_slice(p, task->grant.slice_ns);
	count(COUNT_KEPT);
	return true;
}

/*
 * Runs the first task of the CPU's own queue, or one that may pass: one that ran on this CPU last,
 * or any if the first one's group runs elsewhere and is entitled to no second CPU.
 */
static bool serve(u32 queue, s32 cpu)
{
	bool found = false, woken = false, beside = false, served = false;
	struct task_struct *p;
	credit_v first = 0;
	u32 sampled = 0;

	if (scx_bpf_dsq_nr_queued(queue) < 2)
		return dsq_move_to_local(queue);
	bpf_for_each (scx_dsq, p, queue, 0) {
		struct task *task = task_of(p);
		bool is_first = !found, is_beside;

		if (!task || ++sampled > MAX_SAMPLED)
			break;
		if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		is_beside = runs_beside(task, cpu);
		if (is_first) {
			found = true;
			first = p->scx.dsq_vtime;
			woken = task->woken_ns == task->queued_ns;
			beside = is_beside;
			/* The CPU's last task was preempted for this one. */
			if (cpu_state(cpu)->tag == first)
				break;
		}
		if (is_beside || (scx_bpf_task_cpu(p) != cpu && (is_first || !beside)))
			continue;
		if (is_first || credit_lets_pass(TUNING, &task->grant, first, p->scx.dsq_vtime,
						 woken, beside)) {
			served = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0);
			break;
		}
	}
	return served || dsq_move_to_local(queue);
}

/* Whether an idle CPU of a queue takes no task from another one, which is of another node. */
static bool leaves_alone(u32 queue, u32 other)
{
	u32 node = node_of_queue(queue);

	return node != node_of_queue(other) && is_patient(other, node);
}

void SCX_OPS(dispatch, s32 cpu, struct task_struct *prev)
{
	u32 queue = queue_of_cpu(cpu), i;
	struct task *task = NULL;
	u64 now_ns = bpf_ktime_get_ns();
	credit_v own = 0, head = 0;
	bool waits = false, away = false, balances;

	if (stalls() || queue == NOWHERE)
		return;
	cpu_state(cpu)->looked_ns = now_ns;
	if (prev && prev->scx.flags & SCX_TASK_QUEUED)
		task = task_of(prev);
	if (task) {
		if (task->started_ns)
			charge(prev, task, cpu, now_ns);
		task->started_ns = 0;
		/*
		 * A task that never waits never passes enqueue(), and its domain or cgroup may have
		 * changed. One that computes for long talks with no one.
		 */
		if (task->ran_ns > params.patience_ns)
			stop_following(task);
		find_domain(prev, task);
		own = tag_of(task, false);
		away = place(task, node_of_queue(queue)) == CREDIT_OTHER;
		/* Room is looked for only where it can matter. */
		task->returning = away && credit_returns(TUNING, now_ns - task->moved_ns, true) &&
				  has_room(prev, task, node_of_queue(queue));
	}
	balances = queue_count > 1 && now_ns - cpu_state(cpu)->balanced_ns >= params.balance_ns;
	if (task || balances)
		waits = head_of(queue, cpu, &head) &&
			(!task || makes_way(task, away, node_of_queue(queue), own, head));
	if (waits)
		own = head;

	if ((waits || task) && balances) {
		cpu_state(cpu)->balanced_ns = now_ns;
		if (balance(cpu, queue, own, now_ns)) {
			count(COUNT_BALANCED);
			return;
		}
	}
	if (waits && serve(queue, cpu)) {
		count(COUNT_SERVED);
		return;
	}
	if (task && task->returning)
		count(COUNT_RETURNED);
	else if (task && keep(prev, task, cpu, away, now_ns))
		return;
	if (serve(queue, cpu)) {
		count(COUNT_SERVED);
		return;
	}
	bpf_for (i, 1, queue_count) {
		u32 other = nearest(queue, i);

		if (!leaves_alone(queue, other) && dsq_move_to_local(other)) {
			count(COUNT_STOLEN);
			return;
		}
	}
}

/*
 * A CPU has gone idle. Its bit is set by now, so that a CPU that queues a task later sees it. This
 * function searches for tasks that were queued just before. A task in the CPU's own queue is its
 * last one, which the kernel did not pass to enqueue() (a task that exits or may not be moved).
 * Older kernels (6.16) do not see it there.
 */
void SCX_OPS(update_idle, s32 cpu, bool idle)
{
	u32 queue = queue_of_cpu(cpu), i;

	if (!idle || queue == NOWHERE || is_dying() || stalls())
		return;
	if (scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL) > 0) {
		look_again(cpu);
		return;
	}
	bpf_for (i, 0, queue_count) {
		u32 other = nearest(queue, i);

		if (scx_bpf_dsq_nr_queued(other) > 0 && !leaves_alone(queue, other)) {
			count(COUNT_RESCUED);
			look_again(cpu);
			return;
		}
	}
}

/*
 * Real-time tasks have taken the CPU for an unknown time, so the tasks in its own queue go
 * elsewhere, if they may. The kernel's stopper takes hardly any time, but counts as well: it may
 * have brought a real-time task.
 */
void SCX_OPS(cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	reenqueue_local();
}

#endif
