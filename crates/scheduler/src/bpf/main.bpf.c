// SPDX-License-Identifier: GPL-2.0-only
/*
 * The credit scheduler's glue: sched_ext's callbacks. They measure, iterate and lock; what to do is decided in credit.h.
 *
 * A task is *granted* a slice before it runs: its group is charged for it in advance, which gives the task its place in the
 * queue, and the slice is taken from the caps above it. When it stops, or never ran, the grant is settled.
 */
#include "place.h"
#include "trial.h"

char _license[] SEC("license") = "GPL";

/*
 * Whether this CPU is going down and takes no more interrupts; the last thing it does is to wake whoever takes it down. A
 * kick starts with an interrupt to oneself. From here it would stay pending, keep the CPU from any other kick once it is
 * up again, and have the kernel wait for it without end when the scheduler is detached.
 */
static bool is_dying(void)
{
	u32 cpu = bpf_get_smp_processor_id();
	const struct cpumask *online;
	bool dying;

	/* The scheduler hears of it earlier. */
	if (cpu_state(cpu)->online)
		return false;
	online = scx_bpf_get_online_cpumask();
	dying = !bpf_cpumask_test_cpu(cpu, online);
	scx_bpf_put_cpumask(online);
	return dying;
}

/* -- a task becomes runnable ---------------------------------------------------------------------------------------- */

s32 SCX_OPS(select_cpu, struct task_struct *p, s32 prev, u64 wake_flags)
{
	struct task *task = task_of(p);
	s32 cpu;

	if (!task)
		return prev;
	find_domain(p, task);
	cpu = claim_idle(p, task, prev, ANYWHERE);
	task->selected = cpu >= 0;
	return cpu >= 0 ? cpu : prev;
}

/* The CPU of a queue whose task makes way for a woken one: the farthest ahead of it, if by enough. */
static s32 victim_of(struct task_struct *p, struct task *task, u32 queue)
{
	credit_v farthest = task->place;
	s32 cpu, victim = -1;

	bpf_for(cpu, 0, cpu_count) {
		struct cpu_state *state = cpu_state(cpu);

		if (queue_of_cpu(cpu) != queue || !state->running || !bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		/* Not for the next one that comes, too. */
		if (__sync_val_compare_and_swap(&state->foreign, 1, 0))
			return cpu;
		if (credit_before(farthest, state->tag) && credit_preempts(TUNING, task->place, state->tag)) {
			farthest = state->tag;
			victim = cpu;
		}
	}
	return victim;
}

/* Where a task waits. One that is away and could only not go on may do so where it is. */
static u32 queue_for(struct task_struct *p, struct task *task, bool may_stay)
{
	u32 home = waiting_queue(p, task), here = queue_of_cpu(scx_bpf_task_cpu(p));

	if (may_stay && here != NOWHERE && queue_state(here)->online && place(task, node_of_queue(here)) == CREDIT_OTHER &&
	    credit_stays(scx_bpf_dsq_nr_queued(home), queue_state(home)->online, scx_bpf_dsq_nr_queued(here),
			 queue_state(here)->online))
		return here;
	return home;
}

/*
 * Where the kernel does not tell of a queue's first task, to look at it takes the queue's lock, and every busy CPU looks at all
 * queues after each slice. So it is kept where it was when a CPU of the queue's own looked last.
 */
static void note_comer(u32 queue, credit_v place)
{
	struct queue_state *state = queue_state(queue);

	if (!can_peek() && credit_before(place, state->head))
		state->head = place;
}

/*
 * The task waits in a queue; if it has just come, it may take a CPU there. A kernel thread takes it for a moment,
 * so the one it interrupts waits for that: the thread that compacts a node's memory looks twice a second whether there is
 * something to do, may only do so on that node, and would send a task of every full home away for a slice.
 */
static void wait_or_preempt(struct task_struct *p, struct task *task, bool preempts, u64 enq_flags)
{
	/* Where real-time tasks drove it from its CPU is no place to stay. */
	u32 queue = queue_for(p, task, !preempts && !(enq_flags & SCX_ENQ_REENQ));
	s32 victim = preempts ? victim_of(p, task, queue) : -1;

	count(COUNT_QUEUED);
	if (victim >= 0) {
		count(COUNT_PREEMPTED);
		cpu_state(victim)->tag = task->place;
	}
	if (victim >= 0 && p->flags & PF_KTHREAD) {
		cpu_state(victim)->interrupted = 1;
		dsq_insert(p, SCX_DSQ_LOCAL_ON | victim, task->grant.slice_ns, enq_flags | SCX_ENQ_PREEMPT);
		return;
	}
	task->waiting = true;
	note_comer(queue, task->place);
	dsq_insert_vtime(p, queue, task->grant.slice_ns, task->place, enq_flags);
	if (victim >= 0)
		scx_bpf_kick_cpu(victim, SCX_KICK_PREEMPT);
}

/*
 * Has the CPU that a queued task is on, if it is idle, look for tasks once more. The kernel queues a task only after
 * enqueue() has returned, and this takes effect later still: the CPU is busy then, and will look by itself, or finds
 * the task. Otherwise a CPU that went idle meanwhile has looked too early, and nobody else might ever. The same goes for
 * a task sent to a CPU that has begun to go down: the kernel puts it where only the CPUs of the node it is on look.
 */
static void look_again(s32 cpu)
{
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
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
	/* One that has just been made wakes up, whatever the kernel calls it. */
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
		/* The kernel's own per-CPU work is never made to wait for anybody's credits. */
		count(COUNT_BOUND);
		grant(p, task, woken, true);
		if (woken)
			cpu_state(scx_bpf_task_cpu(p))->interrupted = 1;
		dsq_insert(p, SCX_DSQ_LOCAL, task->grant.slice_ns, enq_flags | (woken ? SCX_ENQ_PREEMPT : 0));
		return;
	}
	/* Who was interrupted by that waits for the moment it takes, rather than to flee to another node. */
	if (!woken && !(enq_flags & SCX_ENQ_REENQ) && cpu_state(scx_bpf_task_cpu(p))->interrupted)
		rest_ns = credit_resumes(TUNING, task->left_ns,
					 scx_bpf_dsq_nr_queued(queue_of_cpu(scx_bpf_task_cpu(p))) > 0);
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
		dsq_insert(p, THROTTLED, params.slice_min_ns, enq_flags);
		/* The claimed CPU says that it is idle again. */
		if (selected)
			look_again(scx_bpf_task_cpu(p));
		return;
	}
	if (selected || (is_bound(p) && p->nr_cpus_allowed != 1)) {
		dsq_insert(p, SCX_DSQ_LOCAL, task->grant.slice_ns, enq_flags);
		return;
	}
	if (returning)
		nearer_than = node_distance[task->home & (MAX_NODES - 1)][task->node & (MAX_NODES - 1)];
	cpu = claim_idle(p, task, scx_bpf_task_cpu(p), nearer_than);
	if (cpu >= 0) {
		dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu, task->grant.slice_ns, enq_flags);
	} else {
		wait_or_preempt(p, task, woken || returning, enq_flags);
		/* A CPU that puts its task back looks for another one afterwards. */
		if (!woken && bpf_get_current_task_btf() == p)
			return;
	}
	look_again(scx_bpf_task_cpu(p));
}

/* How many tasks of a queue are looked at for the one that fits. */
#define LOOKED_AT 8

/* -- a CPU needs a task --------------------------------------------------------------------------------------------- */

/* Whether there is a stall to be shown (test only). */
static bool stalls(void)
{
	return stall_ns && bpf_ktime_get_ns() - started_ns > stall_ns;
}

/*
 * The place of the first task of a queue that this CPU may run. Behind many that it may not, where the last of them is: no
 * earlier than that, or such tasks could keep others waiting for ever.
 */
static bool head_of(u32 queue, s32 cpu, credit_v *tag)
{
	struct task_struct *p = dsq_peek(queue);
	bool found = false;
	u32 looked = 0;

	if (can_peek() && !p)
		return false;
	if (p && bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
		*tag = p->scx.dsq_vtime;
		return true;
	}
	bpf_for_each(scx_dsq, p, queue, 0) {
		if (!can_peek() && !looked)
			queue_state(queue)->head = p->scx.dsq_vtime;
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr) || ++looked >= LOOKED_AT) {
			*tag = p->scx.dsq_vtime;
			found = true;
			break;
		}
	}
	return found;
}

/*
 * Whether the first task of another queue that this CPU may run is behind `own` by more than the distance excuses; its place
 * among the CPU's own is what the next one has to be behind then. `take`: it is to run here.
 */
static bool is_due(u32 queue, s32 cpu, credit_v *own, u64 now_ns, bool take)
{
	u32 distance = node_distance[node_of_cpu(cpu)][node_of_queue(queue)];
	struct task_struct *p = dsq_peek(queue);
	struct task *task = p ? task_of(p) : NULL;
	struct credit_grant nothing = {};
	bool due = false;
	u32 looked = 0;

	if (can_peek() && !p)
		return false;
	/*
	 * Those behind it are ahead of it. One whose group's slices stand less far apart may be due all the same; it waits until
	 * the first is.
	 */
	if (!can_peek() && (!credit_steals(TUNING, &nothing, *own, queue_state(queue)->head, distance, ~0ULL) ||
			    scx_bpf_dsq_nr_queued(queue) <= 0))
		return false;
	if (task && !credit_steals(TUNING, &task->grant, *own, p->scx.dsq_vtime, distance, ~0ULL))
		return false;
	bpf_for_each(scx_dsq, p, queue, 0) {
		task = task_of(p);
		if (!task || ++looked > LOOKED_AT)
			break;
		if (!credit_steals(TUNING, &task->grant, *own, p->scx.dsq_vtime, distance, now_ns - task->woken_ns))
			break;
		if (bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
			*own = credit_from_afar(TUNING, &task->grant, p->scx.dsq_vtime, distance);
			due = !take || scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0);
			break;
		}
	}
	return due;
}

/* Takes the task that is most behind out of the other queues, if there is one that is by enough. */
static bool balance(s32 cpu, u32 queue, credit_v own, u64 now_ns)
{
	u32 from = queue, i;
	credit_v best = own;

	bpf_for(i, 1, queue_count) {
		u32 other = nearest(queue, i);

		if (is_due(other, cpu, &best, now_ns, false))
			from = other;
	}
	return from != queue && is_due(from, cpu, &own, now_ns, true);
}

/*
 * Whether the task that runs makes way for the one that waits here, with these tags. One from elsewhere does, unless it is
 * behind by so much that this CPU would fetch it at once again.
 */
static bool makes_way(struct task *task, bool away, u32 node, credit_v own, credit_v waiting)
{
	/* Nobody is charged for it, so it has no place among others: they take turns. */
	if (task->group == NOBODY)
		return true;
	if (away)
		return !credit_steals(TUNING, &task->grant, waiting, own, node_distance[node][task->home & (MAX_NODES - 1)], ~0ULL);
	return credit_before(waiting, own);
}

/* Counts the task that runs on a CPU among those from elsewhere, or no longer. */
static void set_foreign(struct task *task, s32 cpu, bool foreign)
{
	if (task->foreign != foreign)
		__sync_fetch_and_add(&queue_state(queue_of_cpu(cpu))->foreign, foreign ? 1 : -1);
	task->foreign = foreign;
	cpu_state(cpu)->foreign = foreign;
}

/* Lets the task that runs run on, if its group may. */
static bool keep(struct task_struct *p, struct task *task, s32 cpu, bool away, u64 now_ns)
{
	if (!grant(p, task, false, false))
		return false;
	task->started_ns = now_ns;
	now_v = credit_now(now_v, task->grant.tag, false);
	set_foreign(task, cpu, away);
	cpu_state(cpu)->tag = task->place;
	set_slice(p, task->grant.slice_ns);
	count(COUNT_KEPT);
	return true;
}

/* Runs the first task of the CPU's own queue, or one that was on this CPU last, if it may pass. */
static bool serve(u32 queue, s32 cpu)
{
	bool found = false, woken = false, served = false;
	struct task_struct *p;
	credit_v first = 0;
	u32 looked = 0;

	if (scx_bpf_dsq_nr_queued(queue) < 2)
		return dsq_move_to_local(queue);
	bpf_for_each(scx_dsq, p, queue, 0) {
		struct task *task = task_of(p);
		bool is_first = !found;

		if (!task || ++looked > LOOKED_AT)
			break;
		if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr))
			continue;
		if (is_first) {
			found = true;
			first = p->scx.dsq_vtime;
			woken = task->woken_ns == task->queued_ns;
			/* For this one somebody else was made to leave. */
			if (cpu_state(cpu)->tag == first)
				break;
		}
		if (scx_bpf_task_cpu(p) != cpu)
			continue;
		if (is_first || credit_lets_pass(TUNING, &task->grant, first, p->scx.dsq_vtime, woken)) {
			served = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL, 0);
			break;
		}
	}
	return served || dsq_move_to_local(queue);
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
	if (prev && prev->scx.flags & SCX_TASK_QUEUED)
		task = task_of(prev);
	if (task) {
		if (task->started_ns)
			charge(prev, task, cpu, now_ns);
		task->started_ns = 0;
		/* One that never waits passes enqueue() never, and its domain or its cgroup may have changed. */
		find_domain(prev, task);
		own = tag_of(task, false);
		away = place(task, node_of_queue(queue)) == CREDIT_OTHER;
		/* Room is looked for only where it can matter. */
		task->returning = away && credit_returns(TUNING, now_ns - task->moved_ns, true) &&
				  has_room(prev, task, node_of_queue(queue));
	}
	balances = queue_count > 1 && now_ns - cpu_state(cpu)->balanced_ns >= params.balance_ns;
	if (task || balances)
		waits = head_of(queue, cpu, &head) && (!task || makes_way(task, away, node_of_queue(queue), own, head));
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
	bpf_for(i, 0, queue_count) {
		if (i ? dsq_move_to_local(nearest(queue, i)) : serve(queue, cpu)) {
			count(i ? COUNT_STOLEN : COUNT_SERVED);
			return;
		}
	}
}

/*
 * A CPU has gone idle: its bit is set by now, so that whoever queues a task from here on sees it. A task that was queued
 * just before is looked for here. One in its own queue is the last it had, which the kernel kept from enqueue() (a task
 * that exits or may not be moved), and which older kernels (6.16) do not see there.
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
	bpf_for(i, 0, queue_count) {
		if (scx_bpf_dsq_nr_queued(nearest(queue, i)) > 0) {
			count(COUNT_RESCUED);
			look_again(cpu);
			return;
		}
	}
}

/*
 * Real-time tasks have taken the CPU, for as long as they like: what is left in its own queue goes elsewhere, if it may. So
 * it does for the kernel's stopper, which is done in no time, but may have brought such a task along.
 */
void SCX_OPS(cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	reenqueue_local();
}

/* -- a task runs ---------------------------------------------------------------------------------------------------- */

void SCX_OPS(runnable, struct task_struct *p, u64 enq_flags)
{
	struct task *task = task_of(p);

	if (task)
		add_runnable(p, task);
}

void SCX_OPS(quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task *task = task_of(p);

	if (!task)
		return;
	if (task->granted)
		settle(task, 0);
	task->waiting = false;
	remove_runnable(task);
}

void SCX_OPS(running, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *state = cpu_state(cpu);
	struct task *task = task_of(p);
	u64 now_ns = bpf_ktime_get_ns();
	u32 queue = queue_of_cpu(cpu), node = node_of_queue(queue);

	if (!task || queue == NOWHERE)
		return;
	if (node != task->node || !task->moved_ns) {
		task->node = node;
		task->moved_ns = now_ns;
	}
	now_v = credit_now(now_v, task->grant.tag, task->waiting);
	task->waiting = false;
	/* Not every task that was sent somewhere passes enqueue() on the way. */
	task->selected = false;
	task->returning = false;
	task->started_ns = now_ns;
	set_foreign(task, cpu, place(task, node) == CREDIT_OTHER);
	state->tag = task->place;
	state->running = 1;
	state->interrupted = 0;
}

void SCX_OPS(stopping, struct task_struct *p, bool runnable)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct task *task = task_of(p);
	u32 queue = queue_of_cpu(cpu);

	cpu_state(cpu)->running = 0;
	if (!task || queue == NOWHERE)
		return;
	set_foreign(task, cpu, false);
	if (task->started_ns)
		charge(p, task, cpu, bpf_ktime_get_ns());
	task->started_ns = 0;
}

/* -- tasks, cgroups and CPUs come and go ---------------------------------------------------------------------------- */

/* Has a group pay for a task, unless that is one of the kernel's threads of one CPU. */
static void set_payer(struct task_struct *p, struct task *task, u32 number)
{
	bool of_a_cpu = p->flags & PF_KTHREAD && p->nr_cpus_allowed == 1;
	struct group *group;

	if (number == NOBODY || number == ROOT)
		number = of_a_cpu ? NOBODY : ROOT;
	if (number == task->group)
		return;
	task->group = number;
	group = group_of(number);
	task->own = group ? group->own_now : 0;
}

void SCX_OPS(set_cpumask, struct task_struct *p, const struct cpumask *cpus)
{
	struct task *task = task_of(p);

	if (!task)
		return;
	task->allowed = allowed_nodes(cpus);
	set_payer(p, task, task->group);
}

s32 SCX_OPS(init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task *task = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!task)
		return -ENOMEM;
	task->allowed = allowed_nodes(p->cpus_ptr);
	if (bpf_core_field_exists(args->cgroup) && args->cgroup)
		set_payer(p, task, payer_of(args->cgroup->kn->id));
	else
		set_payer(p, task, ROOT);
	return 0;
}

/* 0: it has none. */
static u32 number_of_parent(struct cgroup *cgroup)
{
	struct cgroup *parent;
	u32 number = 0;

	if (cgroup->level > 0) {
		parent = bpf_cgroup_ancestor(cgroup, cgroup->level - 1);
		if (parent) {
			number = payer_of(parent->kn->id);
			bpf_cgroup_release(parent);
		}
	}
	return number;
}

s32 SCX_OPS_SLEEPABLE(cgroup_init, struct cgroup *cgroup, struct scx_cgroup_init_args *args)
{
	u64 id = cgroup->kn->id;
	u32 weight = args->weight;

	/* The root's is there already. */
	if (!cgroup->level)
		return 0;
	add_group(id, number_of_parent(cgroup), weight ? weight : CREDIT_WEIGHT);
	if (bpf_core_field_exists(args->bw_quota_us) && args->bw_quota_us != ~0ULL)
		set_cap(number_of(id), args->bw_quota_us * 1000, args->bw_period_us * 1000, args->bw_burst_us * 1000);
	return 0;
}

void SCX_OPS(cgroup_exit, struct cgroup *cgroup)
{
	remove_group(cgroup->kn->id);
}

void SCX_OPS(cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct task *task = task_of(p);

	if (task)
		set_payer(p, task, payer_of(to->kn->id));
}

void SCX_OPS(cgroup_set_weight, struct cgroup *cgroup, u32 weight)
{
	set_weight(number_of(cgroup->kn->id), weight);
}

void SCX_OPS(cgroup_set_bandwidth, struct cgroup *cgroup, u64 period_us, u64 quota_us, u64 burst_us)
{
	set_cap(number_of(cgroup->kn->id), quota_us == ~0ULL ? 0 : quota_us * 1000, period_us * 1000, burst_us * 1000);
}

/* A CPU that the loader knew nothing of: the kernel lets go, and the loader starts anew. */
static void add_online(s32 cpu, s32 change)
{
	static char message[] = "CPU %llu came up and its node was not known";
	unsigned long long arguments[] = { cpu };
	u32 queue = queue_of_cpu(cpu);

	if (queue == NOWHERE) {
		scx_bpf_exit_bstr(SCX_ECODE_RESTART_HOTPLUG, message, arguments, sizeof(arguments));
		return;
	}
	cpu_state(cpu)->online = change > 0;
	__sync_fetch_and_add(&queue_state(queue)->online, change);
}

/*
 * Tasks that were on a CPU when they were queued have to leave it before it can go down, and it no longer dispatches. From
 * its own queue the kernel sends them elsewhere. Newer kernels (7.3) have done so by now.
 */
static void vacate(u64 queue, s32 cpu)
{
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, queue, 0) {
		if (scx_bpf_task_cpu(p) == cpu)
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
	}
}

void SCX_OPS(cpu_online, s32 cpu)
{
	add_online(cpu, 1);
}

void SCX_OPS(cpu_offline, s32 cpu)
{
	u32 queue;

	add_online(cpu, -1);
	bpf_for(queue, 0, queue_count)
		vacate(queue, cpu);
	vacate(THROTTLED, cpu);
}

/* -- the timer ------------------------------------------------------------------------------------------------------ */

/*
 * Tasks whose groups have a budget again go on. None waits longer than THROTTLED_LONGEST_NS, so no watchdog barks. When to
 * look again, no later than `next_ns`.
 */
static u64 release_throttled(u64 now_ns, u64 next_ns)
{
	struct task_struct *p;

	bpf_rcu_read_lock();
	bpf_for_each(scx_dsq, p, THROTTLED, 0) {
		struct task *task = task_of(p);
		s32 on = scx_bpf_task_cpu(p), cpu;
		bool too_long, moved;
		u32 queue;

		if (!task)
			continue;
		/* It may have been queued just now, after the timer looked at the clock. */
		too_long = (s64)(now_ns - task->queued_ns) > (s64)THROTTLED_LONGEST_NS;
		if (!grant(p, task, false, too_long)) {
			next_ns = next_period(task->group, now_ns, next_ns);
			continue;
		}
		count(COUNT_RELEASED);
		task->queued_ns = now_ns;
		scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, task->grant.slice_ns);
		cpu = claim_idle(p, task, on, ANYWHERE);
		if (cpu >= 0) {
			moved = scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
		} else {
			queue = waiting_queue(p, task);
			/* Before it can run there. */
			task->waiting = true;
			note_comer(queue, task->place);
			scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, task->place);
			moved = scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, p, queue, 0);
		}
		/* It has ended, or been taken from the queue, meanwhile. */
		if (!moved) {
			task->waiting = false;
			settle(task, 0);
			if (cpu >= 0)
				look_again(cpu);
		}
		look_again(on);
	}
	bpf_rcu_read_unlock();
	return next_ns;
}

static int tick(void *map, int *key, struct timer *timer)
{
	u64 now_ns = bpf_ktime_get_ns();
	bool weighs = weigh_root();
	u64 next_ns = now_ns + (weighs || lingering || caps ? TICK_NS : IDLE_TICK_NS);

	retire_groups(now_ns);
	if (scx_bpf_dsq_nr_queued(THROTTLED) > 0)
		next_ns = release_throttled(now_ns, next_ns);
	bpf_timer_start(&timer->timer, next_ns - now_ns, 0);
	return 0;
}

/* -- for the test that decides the same questions here and natively ------------------------------------------------- */

struct credit_trial trials[TRIALS];

SEC("syscall")
int nearside_try(void *context)
{
	u32 i;

	bpf_for(i, 0, TRIALS)
		credit_try(&trials[i & (TRIALS - 1)]);
	return 0;
}

/* -- the scheduler itself ------------------------------------------------------------------------------------------- */

static s32 new_mask(struct mask *slot, s32 queue)
{
	struct bpf_cpumask *mask = bpf_cpumask_create();
	u32 cpu;

	if (!mask)
		return -ENOMEM;
	bpf_for(cpu, 0, cpu_count) {
		if (queue_of_cpu(cpu) == queue)
			bpf_cpumask_set_cpu(cpu, mask);
	}
	mask = bpf_kptr_xchg(&slot->mask, mask);
	if (mask)
		bpf_cpumask_release(mask);
	return 0;
}

s32 SCX_OPS_SLEEPABLE(init)
{
	struct timer *timer;
	u32 queue, cpu, number, zero = 0;
	s32 error;

	bpf_for(queue, 0, queue_count) {
		u32 key = queue;
		struct mask *slot = bpf_map_lookup_elem(&queue_masks, &key);

		if (!slot)
			return -EINVAL;
		error = new_mask(slot, queue);
		if (!error)
			error = scx_bpf_create_dsq(queue, node_id[node_of_queue(queue)]);
		if (error)
			return error;
	}
	bpf_for(cpu, 0, cpu_count) {
		struct mask *scratch = bpf_map_lookup_percpu_elem(&scratch_masks, &zero, cpu);

		if (scratch) {
			error = new_mask(scratch, -1);
			if (error)
				return error;
		}
	}
	error = scx_bpf_create_dsq(THROTTLED, -1);
	if (error)
		return error;
	set_group(ROOT, 0, CREDIT_WEIGHT);
	bpf_for(number, ROOT + 1, MAX_GROUPS) {
		u32 free = number;

		bpf_map_push_elem(&free_numbers, &free, 0);
	}
	started_ns = bpf_ktime_get_ns();
	timer = bpf_map_lookup_elem(&timers, &zero);
	if (!timer)
		return -EINVAL;
	bpf_timer_init(&timer->timer, &timers, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&timer->timer, tick);
	return bpf_timer_start(&timer->timer, TICK_NS, 0);
}

void SCX_OPS(exit, struct scx_exit_info *info)
{
	bpf_probe_read_kernel_str(exit_reason, sizeof(exit_reason), info->reason);
	bpf_probe_read_kernel_str(exit_message, sizeof(exit_message), info->msg);
	exit_code = info->exit_code;
	exit_kind = info->kind;
}

SEC(".struct_ops.link")
struct sched_ext_ops nearside_ops = {
	.select_cpu = (void *)nearside_select_cpu,
	.enqueue = (void *)nearside_enqueue,
	.dispatch = (void *)nearside_dispatch,
	.update_idle = (void *)nearside_update_idle,
	.cpu_release = (void *)nearside_cpu_release,
	.runnable = (void *)nearside_runnable,
	.quiescent = (void *)nearside_quiescent,
	.running = (void *)nearside_running,
	.stopping = (void *)nearside_stopping,
	.set_cpumask = (void *)nearside_set_cpumask,
	.init_task = (void *)nearside_init_task,
	.cgroup_init = (void *)nearside_cgroup_init,
	.cgroup_exit = (void *)nearside_cgroup_exit,
	.cgroup_move = (void *)nearside_cgroup_move,
	.cgroup_set_weight = (void *)nearside_cgroup_set_weight,
	.cgroup_set_bandwidth = (void *)nearside_cgroup_set_bandwidth,
	.cpu_online = (void *)nearside_cpu_online,
	.cpu_offline = (void *)nearside_cpu_offline,
	.init = (void *)nearside_init,
	.exit = (void *)nearside_exit,
	.flags = SCX_OPS_KEEP_BUILTIN_IDLE | SCX_OPS_ENQ_LAST | SCX_OPS_BUILTIN_IDLE_PER_NODE,
	.timeout_ms = 30000,
	.name = "nearside",
};
