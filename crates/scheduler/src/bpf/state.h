/* SPDX-License-Identifier: GPL-2.0-only */
/* Configuration, maps, counters. */
#ifndef NEARSIDE_STATE_H
#define NEARSIDE_STATE_H

#include "kernel.h"
#include "credit.h"

#define MAX_CPUS 4096
#define MAX_NODES 64
#define MAX_QUEUES 256
#define MAX_GROUPS 65536
#define MAX_DEPTH 32 /* levels of nested cgroups */

#define NOWHERE 0xffff
#define TRIALS 1024 /* questions in one run of the test program */

/*
 * Queues are the dispatch queues 0 to queue_count - 1. Those from THROTTLED on hold tasks whose cap
 * is used up: one queue for each cgroup with a cap, and the first one for caps without a queue.
 */
#define THROTTLED (1ULL << 32)
#define CAP_QUEUES 256
#define SHARED_CAP_QUEUE 0
/* The root cgroup's group, which has no parent. */
#define ROOT 1
/*
 * Not a group's number. The kernel's threads of one CPU neither wait for credits nor make other
 * tasks of the root wait.
 */
#define NOBODY 0

/* a group without runnable tasks counts as active for so long */
#define LINGER_NS 20000000ULL
/* between two rounds of the timer while there is something to watch */
#define TICK_NS 10000000ULL
#define IDLE_TICK_NS 100000000ULL  /* .. and otherwise */
/* for so long after a task was left to its own node the timer looks whether it waits still */
#define PATIENT_NS 1000000000ULL
#define CAP_CHECK_NS 1000000000ULL /* between two rounds that serve all queues of caps */
/* a task of an exhausted group runs for a moment after so long */
#define MAX_THROTTLED_NS 8000000000ULL

/*
 * The machine, written by the loader. Nodes are numbered without gaps here; node_id has the
 * kernel's numbers.
 */
const volatile u32 cpu_count = 1, queue_count = 1, node_count = 1;
const volatile bool has_smt, reads_caps;
const volatile u16 cpu_queue[MAX_CPUS];
const volatile u16 cpu_position[MAX_CPUS]; /* among the CPUs of its queue */
const volatile u16 queue_cpus[MAX_CPUS];   /* the CPUs, queue by queue */
/* where those of a queue begin in there .. */
const volatile u16 queue_first[MAX_QUEUES];
const volatile u16 queue_size[MAX_QUEUES]; /* .. and how many they are */
const volatile u16 queue_node[MAX_QUEUES];
const volatile bool queue_is_node[MAX_QUEUES]; /* no other queue on its node */
/* from each queue, the queues nearest first, itself leading */
const volatile u16 queue_order[MAX_QUEUES][MAX_QUEUES];
const volatile u16 node_id[MAX_NODES];
const volatile u16 node_queue[MAX_NODES]; /* the (nearest) queue of a node */
const volatile u8 node_distance[MAX_NODES][MAX_NODES];
/* test only: how long after its start it stops dispatching */
const volatile u64 stall_ns;

/*
 * Not constant like the rest: the decisions take it by pointer, and the compiler would fold a
 * constant's value into them.
 */
struct credit_params params;

/* Shared by the kernel and the loader at run time. */
u64 domains_generation; /* raised by the loader when a domain changes */
u64 exit_kind;
s64 exit_code;
char exit_reason[128], exit_message[1024];

/* For data that one CPU writes often and others read: its own cache line. */
#define OWN_LINE __attribute__((aligned(64)))

credit_v now_v OWN_LINE;
u64 patient_ns OWN_LINE; /* when a task was last left to its own node, but for some ms */
u64 root_weight OWN_LINE; /* of the root cgroup's own tasks that can run, all together */
u64 shares_generation OWN_LINE = 1;
u64 started_ns;
u64 lingering; /* groups in `idle_groups` */
u64 caps;      /* groups that have one */

enum counter {
	COUNT_HOME,	   /* woken onto an idle CPU of its home */
	COUNT_AFFINE,	   /* .. of another affine node */
	COUNT_OTHER,	   /* .. of another allowed node */
	COUNT_TAKEN_OVER,  /* woken onto its waker's CPU */
	COUNT_QUEUED,	   /* no CPU was idle */
	COUNT_PREEMPTED,   /* a woken task took a running one's CPU */
	COUNT_SERVED,	   /* taken from the CPU's own queue */
	COUNT_KEPT,	   /* ran on, no task was due */
	COUNT_BALANCED,	   /* a busy CPU took a task that was behind from another queue */
	COUNT_STOLEN,	   /* an idle CPU took a task from another queue */
	COUNT_RETURNED,	   /* sent home */
	COUNT_THROTTLED,   /* waited for the next period */
	COUNT_RELEASED,	   /* .. and got on */
	COUNT_BOUND,	   /* could run on one CPU only, or may not be moved */
	COUNT_INTERRUPTED, /* waited for a kernel thread of its CPU */
	COUNT_RESCUED,	   /* an idle CPU found a task without a kick */
	COUNTERS,
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, u32);
	__type(value, u64);
} counters SEC(".maps");

static __always_inline void count(u32 which)
{
	u64 *value = bpf_map_lookup_elem(&counters, &which);

	if (value)
		(*value)++;
}

/* A domain: a cgroup (key: its number) whose tasks prefer nodes. */
struct domain {
	u64 affine; /* set of nodes */
	u32 home;   /* node */
	u32 reserved;
	u64 run_ns[MAX_NODES]; /* CPU time by node */
};
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, struct domain);
} domains SEC(".maps");

/* Nodes that a single thread of a domain prefers to those of the domain. */
struct thread_nodes {
	u64 affine; /* set of nodes */
	u32 home;   /* node */
	u32 reserved;
};
/* The loader writes it, by the thread's pidfd. An entry ends with its thread. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread_nodes);
} threads SEC(".maps");

/*
 * A group: a cgroup with the cpu controller. Groups have numbers of their own. Every task that
 * starts or ends looks its group up, and a hash of the cgroup's number would cost more than all
 * other decisions.
 */
struct group {
	/*
	 * Fields of every switch, in one cache line or two: the kernel's arrays begin anywhere in a
	 * line.
	 */
	struct bpf_spin_lock lock;
	u32 weight; /* 0: there is no such group */
	struct credit_group credit;
	credit_v own_now;     /* where its tasks are among themselves */
	u64 share_generation; /* of credit.share and capped */
	u32 parent;	      /* 0: none */
	bool capped;	      /* it or an ancestor has a cap */
	bool lingers;	      /* it is in idle_groups */
	u16 cap_queue;	      /* its own behind THROTTLED, for tasks that its cap keeps waiting */

	struct credit_cap cap;
	s64 weights;	 /* of active child groups, and of its own tasks */
	u32 counted;	 /* the weight it has among its siblings now */
	u32 own_counted; /* the part of its own tasks in `weights` */
	u64 idle_since_ns;
	u64 caps_read_ns;

	/* Written at each switch, too. */
	s32 running; /* its tasks that run now */
	u32 seat;    /* the node at home that one of them began to run on last, + 1; 0: none */
	u32 reserved[12];
};
_Static_assert(sizeof(struct group) % 64 == 0, "groups share no more lines than they must");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_GROUPS);
	__type(key, u32);
	__type(value, struct group);
} groups SEC(".maps");
/* From cgroups' numbers to groups'. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_GROUPS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, u32);
} group_numbers SEC(".maps");
/*
 * Free numbers, first in, first out: a task that is about to end may still name a group whose
 * cgroup is gone.
 */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, MAX_GROUPS);
	__type(value, u32);
} free_numbers SEC(".maps");

/* Queues for groups that get a cap. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, CAP_QUEUES);
	__type(value, u32);
} free_cap_queues SEC(".maps");
/*
 * The rounds in which the timer still serves an empty queue: a task is queued after its enqueue()
 * has set this.
 */
u32 cap_looks[CAP_QUEUES];
#define CAP_LOOKS 2

/* The numbers of lingering groups. Walking the map of groups would take milliseconds. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, MAX_GROUPS);
	__type(value, u32);
} idle_groups SEC(".maps");

struct task {
	struct credit_grant grant;
	credit_v own;	     /* the total cost of its CPU time among the tasks of its group */
	credit_v place;	     /* in a queue, of this grant */
	u64 cgroup;	     /* the domain was looked up for */
	u64 generation;	     /* .. and when */
	u64 domain;	     /* 0: none */
	u64 affine, allowed; /* sets of nodes */
	u64 started_ns;	     /* charged up to here */
	u64 queued_ns, woken_ns;
	u64 left_ns;	/* of its slice, when it stopped */
	u64 moved_ns;	/* came to its present node */
	/* when it promised to sleep soon, by a wake-up; 0: it did not, or has stopped since */
	u64 promised_ns;
	u64 goes_on_ns; /* on average, after such a promise */
	u64 ran_ns;	/* since it last slept */
	u64 runs_ns;	/* .. until it sleeps, on average */
	u64 partner;	/* a domain whose tasks it talks with; 0: none */
	u64 partner_runs_ns; /* how long these run until they sleep, on average */
	u32 partner_home;    /* their home */
	u32 talks;	     /* the share of wake-ups by them, of CREDIT_TALKS_ONE */
	u32 domain_home;     /* the home of its own domain */
	u32 group;	/* pays for it */
	u32 refused_by; /* the group whose cap had nothing left for it */
	u32 counted;	/* in root_weight */
	u32 home, node;
	bool granted;  /* grant is not settled */
	bool capped;   /* .. and was taken from caps */
	bool waiting;  /* in a queue */
	bool selected; /* an idle CPU was claimed for it */
	bool returning;
	bool foreign; /* runs, away from home */
	bool follows; /* has the home of its partner's tasks */
	bool leads;   /* woken, and goes before the others of its group */
	bool slept;   /* so it has an average of how long it runs */
};
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task);
} tasks SEC(".maps");

/* The state of a CPU. */
struct cpu_state {
	credit_v tag;
	credit_v own; /* of its task, when it began to run or ran on */
	u64 balanced_ns;
	u64 looked_ns; /* into the queues */
	u64 noted_ns;  /* where a task of it started */
	u64 since_ns;  /* its task runs, it has none, or it was claimed for one */
	u64 runs_ns;   /* .. until the task sleeps, on average; 0: there is none */
	u32 running;
	u32 group; /* of the task that runs */
	u32 interrupted; /* by a kernel thread of its own, which is to run next */
	u32 online;
} OWN_LINE cpu_states[MAX_CPUS];

struct queue_state {
	u32 online; /* CPUs */
	u32 late;   /* a CPU that came too late for a task of this queue, + 1; 0: none */
	/*
	 * where its first task is, or was: no later, but for a moment (only where the kernel cannot
	 * tell)
	 */
	credit_v head OWN_LINE;
} OWN_LINE queue_states[MAX_QUEUES];

/*
 * The CPUs of a queue, and those of them that run a task away from its home and are not claimed for
 * another task.
 */
struct queue_masks {
	struct bpf_cpumask __kptr *members;
	struct bpf_cpumask __kptr *foreign;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_QUEUES);
	__type(key, u32);
	__type(value, struct queue_masks);
} queue_masks SEC(".maps");
struct mask {
	struct bpf_cpumask __kptr *mask;
};
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct mask);
} scratch_masks SEC(".maps");

struct timer {
	struct bpf_timer timer;
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct timer);
} timers SEC(".maps");

#define TUNING (&params)

static __always_inline struct task *task_of(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

static __always_inline struct group *group_of(u32 number)
{
	struct group *group = bpf_map_lookup_elem(&groups, &number);

	return group && group->weight ? group : NULL;
}

static __always_inline struct cpu_state *cpu_state(s32 cpu)
{
	return &cpu_states[cpu & (MAX_CPUS - 1)];
}

static __always_inline u32 queue_of_cpu(s32 cpu)
{
	return cpu_queue[cpu & (MAX_CPUS - 1)];
}

static __always_inline u32 node_of_queue(u32 queue)
{
	return queue_node[queue & (MAX_QUEUES - 1)] & (MAX_NODES - 1);
}

static __always_inline u32 node_of_cpu(s32 cpu)
{
	return node_of_queue(queue_of_cpu(cpu));
}

static __always_inline u32 nearest(u32 queue, u32 index)
{
	return queue_order[queue & (MAX_QUEUES - 1)][index & (MAX_QUEUES - 1)] & (MAX_QUEUES - 1);
}

static __always_inline s32 cpu_of_queue(u32 queue, u32 position)
{
	return queue_cpus[(queue_first[queue & (MAX_QUEUES - 1)] + position) & (MAX_CPUS - 1)];
}

static __always_inline struct bpf_cpumask *members_of(u32 queue)
{
	struct queue_masks *masks = bpf_map_lookup_elem(&queue_masks, &queue);

	return masks ? masks->members : NULL;
}

static __always_inline struct bpf_cpumask *foreign_of(u32 queue)
{
	struct queue_masks *masks = bpf_map_lookup_elem(&queue_masks, &queue);

	return masks ? masks->foreign : NULL;
}

static __always_inline struct queue_state *queue_state(u32 queue)
{
	return &queue_states[queue & (MAX_QUEUES - 1)];
}

#endif
