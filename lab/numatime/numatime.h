/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * numatime: a QEMU TCG plugin whose guest's clocks show the time that a NUMA machine would have
 * needed. README.md has the model, the arguments and the limits.
 *
 *   plugin.c     QEMU's entry point; starts the other files
 *   arguments.c  the machine, from the plugin's arguments
 *   translate.c  watches translated code: instructions, memory accesses, marker instructions
 *   memory.c     the cost of an access to memory, by data or by instructions
 *   directory.c  owner and sharers of each line: the cost of coherence
 *   cache.c      set-associative caches
 *   bandwidth.c  waiting for a node's memory and for links between nodes
 *   domain.c     counters by domain, found by address space
 *   clock.c      each vCPU's clock, rounds, idle time
 *   qemu.c       the hook: gives these clocks to QEMU, after checks that it is the QEMU this was
 *                written for
 *   watchdog.c   ends a guest whose time stands still, and publishes its time
 *   report.c     counters as JSON
 *
 * All of it but the watchdog runs on QEMU's single vCPU thread (-accel tcg,thread=single), so there
 * are no locks. Times are picoseconds (suffix _ps) in uint64_t: 2^64 ps are 213 days.
 */
#ifndef NUMATIME_H
#define NUMATIME_H

#include <stdbool.h>
#include <stdint.h>

#include "plugin_api.h"

#define MAX_VCPUS 64
#define MAX_NODES 16
#define MAX_RANGES 32
#define MAX_LINKS 64
#define MAX_POINTS 32 /* where links end: nodes, and switches between them */
#define MAX_HOPS 8
#define MAX_DOMAINS 256
#define LINE_SHIFT 6
#define PAGE_SHIFT 12
#define LINE_BYTES (1u << LINE_SHIFT)
#define FILTER_LINES 512 /* 32 KiB, direct-mapped */
#define STREAMS 8	 /* sequential streams that a vCPU's prefetcher follows */
#define PS_PER_NS UINT64_C(1000)
#define PS_PER_US UINT64_C(1000000)
#define PS_PER_MS UINT64_C(1000000000)
#define PS_PER_S UINT64_C(1000000000000)

/* Exit status of QEMU when the plugin ends it. */
enum {
	EXIT_WATCHDOG = 86,
	EXIT_TIME_LIMIT = 87,
	EXIT_UNSUITABLE = 88,
};

/* -- the machine ------------------------------------------------------------------------------- */

struct range {
	uint64_t from, to; /* guest-physical addresses */
	unsigned node;
};

struct link {
	unsigned from, to; /* points: nodes first, then switches */
	/* time that a line occupies it, each direction for itself; 0: unlimited */
	uint64_t service_ps;
};

/* The links that a line passes on its way from one node to another. */
struct route {
	unsigned nr_hops;
	struct {
		uint8_t link;
		bool backwards; /* from link.to to link.from */
	} hop[MAX_HOPS];
};

struct machine {
	unsigned nr_nodes, nr_ranges, nr_vcpus, nr_links;
	struct range range[MAX_RANGES];
	unsigned node_of_vcpu[MAX_VCPUS];
	/* of a line: [node of the vCPU][node of the memory] */
	uint64_t latency_ps[MAX_NODES][MAX_NODES];
	/* time that a line occupies a node's memory; 0: unlimited bandwidth */
	uint64_t service_ps[MAX_NODES];
	struct link link[MAX_LINKS];
	struct route route[MAX_NODES][MAX_NODES]; /* [node that has the line][node that gets it] */
	/* one instruction: cycles per instruction / frequency */
	uint64_t insn_ps;
	uint64_t io_ps, pause_ps, llc_hit_ps, remote_hit_ps;
	uint32_t cache_bytes, cache_ways; /* private to a vCPU */
	uint32_t llc_bytes, llc_ways;	  /* shared by a node's vCPUs; no bytes: none */
	/* shared by a node's vCPUs, for lines of other nodes' memory; no bytes: none */
	uint32_t remote_bytes, remote_ways;
	/* a line that a stream foresaw costs latency / prefetch */
	unsigned prefetch;
	uint64_t quantum_ps; /* longest round: bound on the skew between vCPUs */
	uint64_t tsc_khz;
	uint64_t seed;		/* not 0: device accesses take uneven times */
	unsigned idle_pace_us;	/* host time to wait before idle time is skipped */
	unsigned watchdog_s;	/* host time without progress; 0: no watchdog */
	uint64_t time_limit_ps; /* guest time; 0: none */
	char report_path[512];	/* empty: standard error */
	/* the file that gets the guest's time once a second of the host's; empty: none */
	char now_path[512];
};

extern struct machine machine;

bool arguments_parse(int count, char **arguments);

/* -- vCPUs ------------------------------------------------------------------------------------- */

/* Physically tagged, least recently used goes first: way 0 of a set is the most recent line. */
struct cache {
	uint32_t *tag; /* line number + 1; 0: empty */
	uint32_t set_mask, ways;
};

/* Lines that this vCPU may access at no cost, direct-mapped by virtual address. */
struct filter {
	uint64_t virtual_line[FILTER_LINES], line[FILTER_LINES];
};

/* The entry of a QEMU scoreboard to which translated code adds. */
struct slot {
	uint64_t elapsed_ps;
};

struct counters {
	/* lines, by the node of the memory; last: of no node */
	uint64_t fetched[MAX_NODES + 1];
	uint64_t prefetched[MAX_NODES + 1];   /* of these, those that a sequential stream foresaw */
	uint64_t code_fetched[MAX_NODES + 1]; /* of these, those that hold instructions */
	/* of these, those of programs, not of the kernel */
	uint64_t user_code_fetched[MAX_NODES + 1];
	/* lines sent by the cache of their owner, by its node */
	uint64_t cache_to_cache[MAX_NODES];
	/* writes to a held line that invalidated other copies, by the farthest one's node */
	uint64_t invalidated[MAX_NODES];
	/* evicted lines that had been written, and lines that another vCPU read */
	uint64_t written_back[MAX_NODES];
	uint64_t llc_hits, remote_cache_hits, device_accesses;
	uint64_t stall_ps; /* all delay by memory */
	uint64_t queue_ps; /* of that, waiting for bandwidth */
	uint64_t idle_ps;  /* skipped while halted */
};

struct vcpu {
	struct filter reads, writes;
	uint64_t code_filter[FILTER_LINES]; /* lines with instructions, by physical address */
	struct slot *slot;		    /* now = base_ps + slot->elapsed_ps */
	uint64_t base_ps;
	void *cpu;   /* QEMU's CPUState */
	bool parked; /* was idle when the current round began */
	bool halted; /* in this round, or parked since */
	bool woken;  /* has had something to do since woken_ps, but was not back yet */
	uint64_t woken_ps;
	/* the last round in which it took a line from another, or lost one */
	uint64_t contended_in;
	bool gave_turn; /* before the round was over, and was not back yet */
	unsigned node;
	struct cache cache;
	uint64_t stream[STREAMS]; /* the line that each stream expects next */
	unsigned next_stream;
	struct counters count;
};

extern struct vcpu vcpus[MAX_VCPUS];

static inline unsigned vcpu_index(const struct vcpu *v)
{
	return (unsigned)(v - vcpus);
}

static inline uint64_t vcpu_now_ps(const struct vcpu *v)
{
	return v->base_ps + v->slot->elapsed_ps;
}

/* Adds to the time that the vCPU's present work takes. */
static inline void vcpu_spend(struct vcpu *v, uint64_t ps)
{
	v->slot->elapsed_ps += ps;
}

/* -- translate.c ------------------------------------------------------------------------------- */

void translate_init(void);
void translate_block(qemu_plugin_id_t id, struct qemu_plugin_tb *tb);
struct slot *translate_slot(unsigned vcpu);

/* -- memory.c, directory.c, cache.c, bandwidth.c ----------------------------------------------- */

void memory_init(void);
void memory_load(unsigned vcpu, uint32_t info, uint64_t address, void *unused);
void memory_store(unsigned vcpu, uint32_t info, uint64_t address, void *unused);
void memory_execute(unsigned vcpu, void *lines);
void *memory_lines(uint64_t physical_address, unsigned bytes, bool of_user);
void memory_forget_translations(unsigned vcpu, void *unused);
bool memory_holds(const struct vcpu *v, uint64_t line);
void memory_invalidate(struct vcpu *v, uint64_t line, unsigned to);
void memory_make_read_only(struct vcpu *v, uint64_t line);

/* The directory's answer where no other vCPU has a copy. */
#define NO_VCPU MAX_VCPUS

/* Another vCPU's copy of a line. */
struct found {
	unsigned at;  /* a vCPU, or NO_VCPU */
	bool written; /* it owns the line: memory is stale */
};

void directory_init(void);
struct found directory_read(const struct vcpu *v, uint64_t line);
struct found directory_write(const struct vcpu *v, uint64_t line);
bool directory_evict(const struct vcpu *v, uint64_t line);

#define NO_LINE UINT64_MAX

void cache_init(struct cache *cache, uint32_t bytes, uint32_t ways);
bool cache_touch(struct cache *cache, uint64_t line, uint64_t *evicted);
bool cache_holds(const struct cache *cache, uint64_t line);
void cache_remove(struct cache *cache, uint64_t line);

struct pipe_counters {
	uint64_t lines;
	uint64_t queue_ps; /* waits of vCPUs */
};

void bandwidth_init(void);
uint64_t bandwidth_fetch_ps(unsigned vcpu, unsigned from, unsigned to, uint64_t now_ps);
uint64_t bandwidth_cache_to_cache_ps(unsigned vcpu, unsigned from, unsigned to, uint64_t now_ps);
void bandwidth_write_back(unsigned vcpu, unsigned from, unsigned to, uint64_t now_ps);
void bandwidth_round(uint64_t now_ps);
struct pipe_counters bandwidth_of_memory(unsigned node);
struct pipe_counters bandwidth_of_link(unsigned link, bool backwards);

/* -- domain.c ---------------------------------------------------------------------------------- */

struct domain_counters {
	struct counters count;
	uint64_t passed_ps; /* on the clocks of the vCPUs that were at it; with count.idle_ps */
};

void domain_switch(unsigned vcpu, void *general_register);
void domain_enter(unsigned vcpu, void *domain);
const struct domain_counters *domain_counters(unsigned domain);

/* -- clock.c ----------------------------------------------------------------------------------- */

/* The value of slot->elapsed_ps at which translated code calls clock_trip. */
#define TRIP_PS PS_PER_S

struct clock_summary {
	uint64_t machine_ps, rounds, idle_jumps, jumped_ps;
};

void clock_add_vcpu(unsigned vcpu);
void clock_trip(unsigned vcpu, void *unused);
void clock_contend(struct vcpu *v, struct vcpu *other);
void clock_halt(unsigned vcpu, void *unused);
void clock_tell_device(const struct vcpu *v);
struct clock_summary clock_summary(void);
uint64_t clock_progress(void);

/* Called by QEMU through the hook. */
uint64_t clock_now_ps(void);
bool clock_all_idle(void *cpu);

/* -- qemu.c ------------------------------------------------------------------------------------ */

bool qemu_is_known(void);
void qemu_hook(void);
void *qemu_vcpu(unsigned vcpu);
const void *qemu_current(void);
uint64_t qemu_physical_page(uint64_t address);
uint64_t qemu_general_register(unsigned number);
bool qemu_is_idle(void *cpu);
void qemu_leave(void *cpu) __attribute__((noreturn));
void qemu_translate_for_many(void *cpu);
void qemu_run_timers(void);
int64_t qemu_next_timer_ns(void);
void qemu_lock(void);
void qemu_unlock(void);

/* -- watchdog.c, report.c ---------------------------------------------------------------------- */

void watchdog_start(void);

/* One line of JSON; vcpu: the one that executed the marker, -1: none. */
void report(const char *what, int id, int vcpu);
void give_up(int status, const char *why) __attribute__((noreturn));

#endif
