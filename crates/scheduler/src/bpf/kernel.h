/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The part of the kernel that this scheduler uses: types with the members that are read here (CO-RE
 * finds them in the running kernel), constants of the ABI, and sched_ext's functions from Linux
 * 6.16 on.
 */
#ifndef NEARSIDE_KERNEL_H
#define NEARSIDE_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

/* include/uapi/linux/bpf.h */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_QUEUE = 22,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum { BPF_ANY = 0, BPF_F_NO_PREALLOC = 1, BPF_LOCAL_STORAGE_GET_F_CREATE = 1 };
struct bpf_spin_lock {
	__u32 val;
};
struct bpf_timer {
	__u64 __opaque[2];
} __attribute__((aligned(8)));

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

/* include/uapi/asm-generic/errno-base.h, include/uapi/linux/time.h */
enum { ENOENT = 2, ENOMEM = 12, EINVAL = 22, CLOCK_MONOTONIC = 1 };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* Only used by pointer, but a type that is merely declared does not match the kernel's. */
struct cpumask {
	unsigned long bits[1];
};
struct bpf_cpumask {
	struct cpumask cpumask;
};

struct kernfs_node {
	u64 id;
};
struct cgroup_subsys_state {
	struct cgroup *cgroup;
};
struct cgroup {
	struct cgroup_subsys_state self;
	struct kernfs_node *kn;
	int level;
};
struct css_set {
	struct cgroup *dfl_cgrp;
};
struct cfs_bandwidth {
	s64 period; /* ktime_t */
	u64 quota;
	u64 burst;
};
struct task_group {
	struct cgroup_subsys_state css;
	struct task_group *parent;
	struct cfs_bandwidth cfs_bandwidth;
};
struct sched_ext_entity {
	u32 flags;
	u32 weight;
	u64 slice;
	u64 dsq_vtime;
};
struct task_struct {
	unsigned int flags;
	int nr_cpus_allowed;
	const struct cpumask *cpus_ptr;
	unsigned short migration_disabled;
	struct sched_ext_entity scx;
	struct task_group *sched_task_group;
	struct css_set *cgroups;
};

struct scx_init_task_args {
	bool fork;
	struct cgroup *cgroup;
};
struct scx_cgroup_init_args {
	u32 weight;
	u64 bw_period_us; /* since 6.17, as the next two */
	u64 bw_quota_us;
	u64 bw_burst_us;
};
struct scx_cpu_release_args;
enum scx_wake_flags { SCX_WAKE_SYNC = 16 };
enum scx_exit_kind { SCX_EXIT_NONE };
struct scx_exit_info {
	enum scx_exit_kind kind;
	s64 exit_code;
	const char *reason;
	char *msg;
};
struct scx_bpf_dsq_insert_vtime_args {
	u64 dsq_id;
	u64 slice;
	u64 vtime;
	u64 enq_flags;
};

#pragma clang attribute pop

struct bpf_iter_num {
	__u64 __opaque[1];
} __attribute__((aligned(8)));
struct bpf_iter_scx_dsq {
	u64 __opaque[6];
} __attribute__((aligned(8)));

/*
 * Members are matched with the kernel's by name. The loader sets those that the kernel does not
 * know to 0.
 */
struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*runnable)(struct task_struct *p, u64 enq_flags);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	void (*set_cpumask)(struct task_struct *p, const struct cpumask *cpumask);
	void (*update_idle)(s32 cpu, bool idle);
	void (*cpu_release)(s32 cpu, struct scx_cpu_release_args *args);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	s32 (*cgroup_init)(struct cgroup *cgrp, struct scx_cgroup_init_args *args);
	void (*cgroup_exit)(struct cgroup *cgrp);
	void (*cgroup_move)(struct task_struct *p, struct cgroup *from, struct cgroup *to);
	void (*cgroup_set_weight)(struct cgroup *cgrp, u32 weight);
	void (*cgroup_set_bandwidth)(struct cgroup *cgrp, u64 period_us, u64 quota_us,
				     u64 burst_us);
	void (*cpu_online)(s32 cpu);
	void (*cpu_offline)(s32 cpu);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	u64 hotplug_seq;
	char name[128];
};

/*
 * Constants of sched_ext that have been the same in every version; others are passed in by the
 * loader, from BTF.
 */
#define SCX_DSQ_LOCAL 0x8000000000000002ULL
#define SCX_DSQ_LOCAL_ON 0xc000000000000000ULL
#define SCX_ENQ_WAKEUP 1ULL
#define SCX_DEQ_SLEEP 1ULL
#define SCX_ENQ_PREEMPT (1ULL << 32)
#define SCX_ENQ_REENQ (1ULL << 40)
#define SCX_ENQ_LAST (1ULL << 41)
#define SCX_PICK_IDLE_CORE 1ULL
#define SCX_PICK_IDLE_IN_NODE 2ULL
#define SCX_KICK_IDLE 1ULL
#define SCX_KICK_PREEMPT 2ULL
#define SCX_OPS_KEEP_BUILTIN_IDLE 1ULL
#define SCX_OPS_ENQ_LAST 2ULL
#define SCX_OPS_BUILTIN_IDLE_PER_NODE 64ULL
#define SCX_TASK_QUEUED 1U
#define SCX_ECODE_RESTART_HOTPLUG ((1LL << 48) | (1LL << 32))
#define PF_KTHREAD 0x00200000U

#define SCX_OPS(name, args...) SEC("struct_ops/" #name) BPF_PROG(nearside_##name, ##args)
#define SCX_OPS_SLEEPABLE(name, args...) \
	SEC("struct_ops.s/" #name) BPF_PROG(nearside_##name, ##args)

s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
bool scx_bpf_test_and_clear_cpu_idle(s32 cpu) __ksym;
s32 scx_bpf_pick_idle_cpu_node(const struct cpumask *cpus, s32 node, u64 flags) __ksym;
const struct cpumask *scx_bpf_get_idle_cpumask_node(s32 node) __ksym;
const struct cpumask *scx_bpf_get_idle_smtmask_node(s32 node) __ksym;
void scx_bpf_put_idle_cpumask(const struct cpumask *mask) __ksym;
const struct cpumask *scx_bpf_get_online_cpumask(void) __ksym;
void scx_bpf_put_cpumask(const struct cpumask *mask) __ksym;
s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
void scx_bpf_error_bstr(char *fmt, unsigned long long *data, u32 size) __ksym;
void scx_bpf_exit_bstr(s64 code, char *fmt, unsigned long long *data, u32 size) __ksym;

int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym;
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;
bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
		      u64 enq_flags) __ksym;
void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it, u64 slice) __ksym;
void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it, u64 vtime) __ksym;
bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
			    u64 enq_flags) __ksym;

/* Inside bpf_for_each: the iterator itself. */
#define BPF_FOR_EACH_ITER (&___it)

int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __ksym;
int *bpf_iter_num_next(struct bpf_iter_num *it) __ksym;
void bpf_iter_num_destroy(struct bpf_iter_num *it) __ksym;

struct cgroup *bpf_cgroup_ancestor(struct cgroup *cgrp, int level) __ksym;
void bpf_cgroup_release(struct cgroup *cgrp) __ksym;
struct bpf_cpumask *bpf_cpumask_create(void) __ksym;
void bpf_cpumask_release(struct bpf_cpumask *mask) __ksym;
void bpf_cpumask_set_cpu(u32 cpu, struct bpf_cpumask *mask) __ksym;
void bpf_cpumask_clear_cpu(u32 cpu, struct bpf_cpumask *mask) __ksym;
bool bpf_cpumask_test_and_clear_cpu(u32 cpu, struct bpf_cpumask *mask) __ksym;
u32 bpf_cpumask_first_and(const struct cpumask *a, const struct cpumask *b) __ksym;
bool bpf_cpumask_and(struct bpf_cpumask *to, const struct cpumask *a,
		     const struct cpumask *b) __ksym;
bool bpf_cpumask_intersects(const struct cpumask *a, const struct cpumask *b) __ksym;
bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *mask) __ksym;
void bpf_rcu_read_lock(void) __ksym;
void bpf_rcu_read_unlock(void) __ksym;

/*
 * Functions that changed. 6.19 made them return bool and pass more than five arguments in a struct;
 * 7.1 gave move_to_local flags. Each name is resolved at load time, and the unused branch is
 * removed.
 */
bool scx_bpf_dsq_insert___v2___since_6_19(struct task_struct *p, u64 dsq, u64 slice,
					  u64 flags) __ksym __weak;
void scx_bpf_dsq_insert___before_6_19(struct task_struct *p, u64 dsq, u64 slice,
				      u64 flags) __ksym __weak;
bool __scx_bpf_dsq_insert_vtime(struct task_struct *p,
				struct scx_bpf_dsq_insert_vtime_args *args) __ksym __weak;
void scx_bpf_dsq_insert_vtime___before_6_19(struct task_struct *p, u64 dsq, u64 slice, u64 vtime,
					    u64 flags) __ksym __weak;
bool scx_bpf_dsq_move_to_local___v2___since_7_1(u64 dsq, u64 flags) __ksym __weak;
bool scx_bpf_dsq_move_to_local___before_7_1(u64 dsq) __ksym __weak;
void scx_bpf_reenqueue_local___v2___since_6_19(void) __ksym __weak;
u32 scx_bpf_reenqueue_local___before_6_19(void) __ksym __weak;
struct task_struct *scx_bpf_dsq_peek___since_6_19(u64 dsq) __ksym __weak;
bool scx_bpf_task_set_slice___since_6_19(struct task_struct *p, u64 slice) __ksym __weak;

static __always_inline void dsq_insert(struct task_struct *p, u64 dsq, u64 slice, u64 flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_insert___v2___since_6_19))
		scx_bpf_dsq_insert___v2___since_6_19(p, dsq, slice, flags);
	else
		scx_bpf_dsq_insert___before_6_19(p, dsq, slice, flags);
}

static __always_inline void dsq_insert_vtime(struct task_struct *p, u64 dsq, u64 slice, u64 vtime,
					     u64 flags)
{
	if (bpf_core_type_exists(struct scx_bpf_dsq_insert_vtime_args)) {
		struct scx_bpf_dsq_insert_vtime_args args = {
			.dsq_id = dsq,
			.slice = slice,
			.vtime = vtime,
			.enq_flags = flags,
		};
		__scx_bpf_dsq_insert_vtime(p, &args);
	} else {
		scx_bpf_dsq_insert_vtime___before_6_19(p, dsq, slice, vtime, flags);
	}
}

static __always_inline bool dsq_move_to_local(u64 dsq)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___since_7_1))
		return scx_bpf_dsq_move_to_local___v2___since_7_1(dsq, 0);
	return scx_bpf_dsq_move_to_local___before_7_1(dsq);
}

/* Whether the waker promises to sleep soon; never, if the kernel does not tell. */
static __always_inline bool is_sync(u64 wake_flags)
{
	if (!bpf_core_enum_value_exists(enum scx_wake_flags, SCX_WAKE_SYNC))
		return false;
	return wake_flags & bpf_core_enum_value(enum scx_wake_flags, SCX_WAKE_SYNC);
}

/* Whether the kernel reports a queue's first task without taking the queue's lock. */
static __always_inline bool can_peek(void)
{
	return bpf_ksym_exists(scx_bpf_dsq_peek___since_6_19);
}

/* The first task of a queue, if the kernel reports it; it may be gone by now. */
static __always_inline struct task_struct *dsq_peek(u64 dsq)
{
	if (can_peek())
		return scx_bpf_dsq_peek___since_6_19(dsq);
	return NULL;
}

/*
 * Queues the tasks of this CPU's own queue anew. Older kernels do it at once. Then the task that
 * was on the CPU until now may not be moved, because this BPF program runs in its context.
 */
static __always_inline void reenqueue_local(void)
{
	if (bpf_ksym_exists(scx_bpf_reenqueue_local___v2___since_6_19))
		scx_bpf_reenqueue_local___v2___since_6_19();
	else
		scx_bpf_reenqueue_local___before_6_19();
}

static __always_inline void set_slice(struct task_struct *p, u64 slice)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice___since_6_19))
		scx_bpf_task_set_slice___since_6_19(p, slice);
	else
		p->scx.slice = slice;
}

#endif
