// SPDX-License-Identifier: GPL-2.0-only
/*
 * The credit scheduler's glue: sched_ext's callbacks. They measure, iterate and lock; credit.h
 * decides.
 *
 * A task is *granted* a slice before it runs: its group is charged for it in advance, which gives
 * the task its place in the queue, and the slice is taken from the caps above it. When it stops, or
 * never ran, the grant is settled.
 */
#include "dispatch.h"
#include "enqueue.h"
#include "trial.h"

char _license[] SEC("license") = "GPL";

/* -- a task runs ------------------------------------------------------------------------------- */

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
	if (deq_flags & SCX_DEQ_SLEEP) {
		task->runs_ns =
			credit_runs(TUNING, task->runs_ns, task->ran_ns, !task->slept);
		task->slept = true;
		task->ran_ns = 0;
	}
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
	/* One that goes before its group's others says nothing about the group's place. */
	if (!task->leads)
		note_start(cpu, task->grant.tag, task->waiting, now_ns);
	note_front(task->group, task->place);
	task->waiting = false;
	/* Not every task that was sent somewhere passes enqueue() on the way. */
	task->selected = false;
	task->returning = false;
	task->started_ns = now_ns;
	set_foreign(task, cpu, place(task, node) == CREDIT_OTHER);
	state->tag = task->place;
	state->own = task->own;
	state->group = task->group;
	state->since_ns = now_ns;
	/* One that sleeps no longer is known at once. */
	state->runs_ns = task->ran_ns > task->runs_ns ? task->ran_ns : task->runs_ns;
	state->running = 1;
	state->interrupted = 0;
	begin_to_run(task->group, node, !task->follows && place(task, node) <= CREDIT_AFFINE);
}

void SCX_OPS(stopping, struct task_struct *p, bool runnable)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct task *task = task_of(p);
	u64 now_ns = bpf_ktime_get_ns();
	struct cpu_state *state = cpu_state(cpu);
	u32 queue = queue_of_cpu(cpu);

	if (state->running)
		stop_running(state->group);
	state->running = 0;
	state->since_ns = now_ns;
	state->runs_ns = 0;
	if (!task || queue == NOWHERE)
		return;
	set_foreign(task, cpu, false);
	if (task->started_ns)
		charge(p, task, cpu, now_ns);
	task->started_ns = 0;
	if (task->promised_ns)
		task->goes_on_ns =
			credit_goes_on(TUNING, task->goes_on_ns, now_ns - task->promised_ns);
	task->promised_ns = 0;
}

/* -- tasks, cgroups and CPUs come and go ------------------------------------------------------- */

/*
 * Charges a group for a task from now on, unless the task is one of the kernel's threads of one
 * CPU.
 */
static void set_payer(struct task_struct *p, struct task *task, u32 number)
{
	bool of_a_cpu = p->flags & PF_KTHREAD && p->nr_cpus_allowed == 1;
	struct group *group;

	if (number == NOBODY || number == ROOT)
		number = of_a_cpu ? NOBODY : ROOT;
	if (number == task->group)
		return;
	/* A grant is settled where it was given. */
	if (task->granted)
		settle(task, 0);
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
	stop_following(task);
	set_payer(p, task, task->group);
}

s32 SCX_OPS(init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task *task = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!task)
		return -ENOMEM;
	task->allowed = allowed_nodes(p->cpus_ptr);
	task->goes_on_ns = params.slice_ns;
	task->runs_ns = params.slice_ns;
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
		set_cap(number_of(id), args->bw_quota_us * 1000, args->bw_period_us * 1000,
			args->bw_burst_us * 1000);
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
	set_cap(number_of(cgroup->kn->id), quota_us == ~0ULL ? 0 : quota_us * 1000,
		period_us * 1000, burst_us * 1000);
}

/*
 * Counts a CPU as online or offline. If the loader does not know the CPU, the program exits, and
 * the loader starts anew.
 */
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
 * Tasks that were queued on a CPU have to leave it before it can go down, and it no longer
 * dispatches. The kernel sends those in its own queue elsewhere. Newer kernels (7.3) have done so
 * by now.
 */
static void vacate(u64 queue, s32 cpu)
{
	struct task_struct *p;

	bpf_for_each (scx_dsq, p, queue, 0) {
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
	bpf_for (queue, 0, queue_count)
		vacate(queue, cpu);
	bpf_for (queue, 0, CAP_QUEUES)
		vacate(THROTTLED + queue, cpu);
}

/* -- the timer --------------------------------------------------------------------------------- */

/*
 * A throttled task continues, on an idle CPU or in a queue. It may have ended or left its queue
 * meanwhile.
 */
static void release(struct bpf_iter_scx_dsq *it, struct task_struct *p, struct task *task,
		    u64 now_ns)
{
	s32 on = scx_bpf_task_cpu(p), cpu;
	bool moved;
	u32 queue;

	count(COUNT_RELEASED);
	task->queued_ns = now_ns;
	scx_bpf_dsq_move_set_slice(it, task->grant.slice_ns);
	cpu = claim_idle(p, task, on, ANYWHERE, false);
	if (cpu >= 0) {
		moved = scx_bpf_dsq_move(it, p, SCX_DSQ_LOCAL_ON | cpu, 0);
	} else {
		queue = waiting_queue(p, task);
		/* Before it can run there. */
		task->waiting = true;
		note_comer(queue, task->place);
		scx_bpf_dsq_move_set_vtime(it, task->place);
		moved = scx_bpf_dsq_move_vtime(it, p, queue, 0);
	}
	if (!moved) {
		task->waiting = false;
		settle(task, 0);
		if (cpu >= 0)
			look_again(cpu);
	}
	look_again(on);
}

/*
 * Tasks that wait for a cap continue in order of arrival, until one is refused: those behind it
 * would be refused, too. So the cost of a round depends on the tasks it releases, not on those that
 * wait. A task that another cap refuses waits for that cap from now on. In the queue that several
 * caps share, those behind may wait for another cap. No task waits longer than MAX_THROTTLED_NS,
 * far below the kernel's watchdog. Returns the time of the next round, at most `next_ns`.
 */
static u64 release_throttled(u32 cap_queue, u64 now_ns, u64 next_ns)
{
	struct task_struct *p;
	u32 refused_by = 0;

	bpf_rcu_read_lock();
	bpf_for_each (scx_dsq, p, THROTTLED + cap_queue, 0) {
		struct task *task = task_of(p);
		bool too_long;
		u32 other;

		if (!task)
			continue;
		/* It may have been queued after the timer read the clock. */
		too_long = (s64)(now_ns - task->queued_ns) > (s64)MAX_THROTTLED_NS;
		if (!too_long && refused_by && cap_queue != SHARED_CAP_QUEUE)
			break;
		if (!too_long && refused_by == task->refused_by)
			continue;
		if (grant(p, task, false, too_long)) {
			release(BPF_FOR_EACH_ITER, p, task, now_ns);
			continue;
		}
		next_ns = next_period(task->group, now_ns, next_ns);
		other = cap_queue_of(task);
		if (other == cap_queue)
			refused_by = task->refused_by;
		else
			scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, THROTTLED + other, 0);
	}
	bpf_rcu_read_unlock();
	return next_ns;
}

/*
 * Serves the queues of caps in which tasks may wait. A task arrives after its note in `cap_looks`.
 * So an empty queue is served twice more, and all queues once a second.
 */
static u64 serve_caps(u64 now_ns, u64 next_ns)
{
	static u64 all_ns;
	bool all = now_ns - all_ns > CAP_CHECK_NS;
	u32 queue;

	if (all)
		all_ns = now_ns;
	bpf_for (queue, 0, CAP_QUEUES) {
		u32 *looks = &cap_looks[queue & (CAP_QUEUES - 1)];

		if (!*looks && !all)
			continue;
		if (scx_bpf_dsq_nr_queued(THROTTLED + queue) > 0) {
			*looks = CAP_LOOKS;
			next_ns = release_throttled(queue, now_ns, next_ns);
		} else if (*looks) {
			*looks -= 1;
		}
	}
	return next_ns;
}

/*
 * Sends tasks that were left to their own node for a moment, and still wait, to a CPU that is idle.
 * A CPU that goes idle looks once only, and a real-time task may have taken those of the node.
 */
static void end_patience(u64 now_ns)
{
	u32 queue;

	bpf_for (queue, 0, queue_count) {
		struct task_struct *p;
		struct task *task;
		s32 cpu = -1;

		if (scx_bpf_dsq_nr_queued(queue) <= 0)
			continue;
		bpf_rcu_read_lock();
		p = dsq_peek(queue);
		task = p ? task_of(p) : NULL;
		if (task && now_ns - task->queued_ns > params.patience_ns)
			cpu = claim_idle(p, task, scx_bpf_task_cpu(p), ANYWHERE, false);
		bpf_rcu_read_unlock();
		if (cpu >= 0)
			scx_bpf_kick_cpu(cpu, 0);
	}
}

static int tick(void *map, int *key, struct timer *timer)
{
	u64 now_ns = bpf_ktime_get_ns();
	bool weighs = weigh_root(), waited = now_ns - patient_ns < PATIENT_NS;
	u64 next_ns =
		now_ns + (weighs || lingering || caps || waited ? TICK_NS : IDLE_TICK_NS);

	retire_groups(now_ns);
	if (waited)
		end_patience(now_ns);
	next_ns = serve_caps(now_ns, next_ns);
	bpf_timer_start(&timer->timer, next_ns - now_ns, 0);
	return 0;
}

/* -- for the test that compares decisions made here and natively ----------------------------- */

struct credit_trial trials[TRIALS];

SEC("syscall")
int nearside_try(void *context)
{
	u32 i;

	bpf_for (i, 0, TRIALS)
		credit_try(&trials[i & (TRIALS - 1)]);
	return 0;
}

/* -- the scheduler itself ---------------------------------------------------------------------- */

/* The set of a queue's CPUs; `empty`: room for some of them. */
static __always_inline struct bpf_cpumask *new_set(u32 queue, bool empty)
{
	struct bpf_cpumask *set = bpf_cpumask_create();
	u32 i;

	if (!set || empty)
		return set;
	bpf_for (i, 0, queue_size[queue & (MAX_QUEUES - 1)])
		bpf_cpumask_set_cpu(cpu_of_queue(queue, i), set);
	return set;
}

static s32 create_queue(u32 queue)
{
	struct queue_masks *masks = bpf_map_lookup_elem(&queue_masks, &queue);
	struct bpf_cpumask *set;

	if (!masks)
		return -EINVAL;
	set = new_set(queue, false);
	if (!set)
		return -ENOMEM;
	set = bpf_kptr_xchg(&masks->members, set);
	if (set)
		bpf_cpumask_release(set);
	set = new_set(queue, true);
	if (!set)
		return -ENOMEM;
	set = bpf_kptr_xchg(&masks->foreign, set);
	if (set)
		bpf_cpumask_release(set);
	return scx_bpf_create_dsq(queue, node_id[node_of_queue(queue)]);
}

static s32 create_scratch(u32 cpu)
{
	u32 zero = 0;
	struct mask *scratch = bpf_map_lookup_percpu_elem(&scratch_masks, &zero, cpu);
	struct bpf_cpumask *set;

	if (!scratch)
		return 0;
	set = new_set(0, true);
	if (!set)
		return -ENOMEM;
	set = bpf_kptr_xchg(&scratch->mask, set);
	if (set)
		bpf_cpumask_release(set);
	return 0;
}

s32 SCX_OPS_SLEEPABLE(init)
{
	u32 queue, cpu, number, zero = 0;
	struct timer *timer;
	s32 error;

	bpf_for (queue, 0, queue_count) {
		error = create_queue(queue);
		if (error)
			return error;
	}
	bpf_for (cpu, 0, cpu_count) {
		error = create_scratch(cpu);
		if (error)
			return error;
	}
	bpf_for (queue, 0, CAP_QUEUES) {
		u32 free = queue;

		error = scx_bpf_create_dsq(THROTTLED + queue, -1);
		if (error)
			return error;
		if (queue != SHARED_CAP_QUEUE)
			bpf_map_push_elem(&free_cap_queues, &free, 0);
	}
	set_group(ROOT, 0, CREDIT_WEIGHT);
	bpf_for (number, ROOT + 1, MAX_GROUPS) {
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
