// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The cost of an access to memory. It passes
 *
 *   a filter      direct-mapped, one for loads, one for stores, one for instructions: most accesses
 *   end here after one comparison
 *   a cache       of the vCPU
 *   a last level  shared by the vCPUs of a node, where the machine has one
 *   a remote cache of a node, where the machine has one: lines of other nodes' memory alone
 *
 * A line that another vCPU owns comes from that vCPU's cache (cache to cache), and a write
 * invalidates the copies of other vCPUs. Either costs the latency between the two nodes, or the
 * last level's where they share it. Any other line is fetched from the node of its address, for
 *
 *     latency[node of the vCPU][node of the line], less where a sequential stream foresaw it
 *   + the wait for that node's bandwidth, and for that of each link on the way
 *
 * A hit in the first two costs nothing beside the instruction. A transfer from cache to cache waits
 * for links as well. A written line that is evicted, or that another vCPU reads, is written back to
 * memory: that uses bandwidth, but no vCPU waits for it.
 */
#include <string.h>

#include "numatime.h"

static struct cache node_cache[MAX_NODES], remote_cache[MAX_NODES];

/* The node of an address, or nr_nodes: ROM and the memory of devices belong to none. */
static unsigned node_of(uint64_t address)
{
	for (unsigned i = 0; i < machine.nr_ranges; i++)
		if (address >= machine.range[i].from && address < machine.range[i].to)
			return machine.range[i].node;
	return machine.nr_nodes;
}

/* Whether the line is the next one of a stream; if not, one may begin here. */
static bool stream_foresaw(struct vcpu *v, uint64_t line)
{
	for (unsigned i = 0; i < STREAMS; i++)
		if (v->stream[i] == line) {
			v->stream[i] = line + 1;
			return true;
		}
	v->stream[v->next_stream++ % STREAMS] = line + 1;
	return false;
}

/*
 * A guest repeats to the last bit. To separate chance from the result, a seed makes device accesses
 * take uneven times (half to one and a half of io_ps), as on real machines; everything after the
 * first one then differs. xorshift64.
 */
static uint64_t device_access_ps(void)
{
	static uint64_t state;

	if (!machine.seed)
		return machine.io_ps;
	if (!state)
		state = machine.seed * 0x9e3779b97f4a7c15ull;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return machine.io_ps / 2 + (state >> 32) % (machine.io_ps + 1);
}

static void stall(struct vcpu *v, uint64_t ps)
{
	v->count.stall_ps += ps;
	vcpu_spend(v, ps);
}

static void wait_for_bandwidth(struct vcpu *v, uint64_t ps)
{
	v->count.queue_ps += ps;
	stall(v, ps);
}

/*
 * A transfer from the cache of another vCPU, or (`own`: the line is here) the invalidation of its
 * copy. Across nodes it costs as much as that node's memory, within a node as much as the shared
 * cache.
 */
static void take_from_cache(struct vcpu *v, unsigned other, bool own)
{
	unsigned node = vcpus[other].node;

	if (own)
		v->count.invalidated[node]++;
	else {
		v->count.cache_to_cache[node]++;
		wait_for_bandwidth(v, bandwidth_cache_to_cache_ps(vcpu_index(v), node, v->node,
								  vcpu_now_ps(v)));
	}
	stall(v, node == v->node && machine.llc_bytes ? machine.llc_hit_ps
						      : machine.latency_ps[v->node][node]);
	clock_contend(v, &vcpus[other]);
}

enum kind { LOAD, STORE, KERNEL_CODE, USER_CODE };

/*
 * Whether the remote cache of the vCPU's node had the line; it has now. A written line in it is
 * clean: it goes to memory when the CPU's own caches evict it.
 */
static bool touch_remote_cache(struct vcpu *v, uint64_t line)
{
	unsigned node = node_of(line << LINE_SHIFT);
	uint64_t evicted;

	return machine.remote_bytes && node != machine.nr_nodes && node != v->node &&
	       cache_touch(&remote_cache[v->node], line, &evicted);
}

static void take_from_remote_cache(struct vcpu *v, uint64_t line)
{
	v->count.remote_cache_hits++;
	stall(v, machine.remote_hit_ps / (stream_foresaw(v, line) ? machine.prefetch : 1));
}

static void fetch(struct vcpu *v, uint64_t line, enum kind kind)
{
	unsigned node = node_of(line << LINE_SHIFT);
	uint64_t cost_ps;

	v->count.fetched[node]++;
	v->count.code_fetched[node] += kind == KERNEL_CODE || kind == USER_CODE;
	v->count.user_code_fetched[node] += kind == USER_CODE;
	if (node == machine.nr_nodes)
		return;
	cost_ps = machine.latency_ps[v->node][node];
	if (stream_foresaw(v, line)) {
		v->count.prefetched[node]++;
		cost_ps /= machine.prefetch;
	}
	wait_for_bandwidth(v, bandwidth_fetch_ps(vcpu_index(v), node, v->node, vcpu_now_ps(v)));
	stall(v, cost_ps);
}

/* From the caches of the vCPU, while `now_ps` is the time. */
static void write_back(struct vcpu *v, uint64_t line, uint64_t now_ps)
{
	unsigned node = node_of(line << LINE_SHIFT);

	if (node == machine.nr_nodes)
		return;
	v->count.written_back[node]++;
	bandwidth_write_back(vcpu_index(v), v->node, node, now_ps);
}

/* The last cache of the vCPU evicted the line. */
static void evict(struct vcpu *v, uint64_t line)
{
	if (line != NO_LINE && directory_evict(v, line))
		write_back(v, line, vcpu_now_ps(v));
}

/* The line, by its physical address, is needed. */
static void reach(struct vcpu *v, uint64_t line, enum kind kind)
{
	uint64_t evicted;
	bool own = cache_touch(&v->cache, line, &evicted), shared = false, remote;
	struct found found = kind == STORE ? directory_write(v, line) : directory_read(v, line);

	if (machine.llc_bytes) {
		/* A line that leaves the vCPU's cache may still be in the last level. */
		if (evicted != NO_LINE && !cache_holds(&node_cache[v->node], evicted))
			evict(v, evicted);
		evicted = NO_LINE;
		shared = !own && cache_touch(&node_cache[v->node], line, &evicted);
	}
	evict(v, evicted);
	if (found.written && kind != STORE)
		write_back(&vcpus[found.at], line, vcpu_now_ps(v));
	remote = !own && !shared && touch_remote_cache(v, line);
	/*
	 * A sharer need not send a clean line: memory has it, and invalidates the copies on the
	 * way.
	 */
	if (found.at != NO_VCPU && (found.written || own || shared || remote))
		take_from_cache(v, found.at, !found.written);
	else if (shared) {
		v->count.llc_hits++;
		stall(v, machine.llc_hit_ps);
	} else if (remote)
		take_from_remote_cache(v, line);
	else if (!own)
		fetch(v, line, kind);
}

static void let_pass(struct filter *filter, uint64_t virtual_line, uint64_t line)
{
	filter->virtual_line[virtual_line % FILTER_LINES] = virtual_line;
	filter->line[virtual_line % FILTER_LINES] = line;
}

static __attribute__((noinline)) void behind_filter(struct vcpu *v, uint32_t info, uint64_t address,
						    enum kind kind)
{
	struct qemu_plugin_hwaddr *physical = qemu_plugin_get_hwaddr(info, address);
	uint64_t virtual_line = address >> LINE_SHIFT, line;

	if (!physical)
		return;
	if (qemu_plugin_hwaddr_is_io(physical)) {
		v->count.device_accesses++;
		vcpu_spend(v, device_access_ps());
		if (kind == STORE)
			clock_tell_device(v);
		return;
	}
	line = qemu_plugin_hwaddr_phys_addr(physical) >> LINE_SHIFT;
	let_pass(&v->reads, virtual_line, line);
	if (kind == STORE)
		let_pass(&v->writes, virtual_line, line);
	reach(v, line, kind);
}

/* Every load comes here .. */
void memory_load(unsigned vcpu, uint32_t info, uint64_t address, void *unused)
{
	struct vcpu *v = &vcpus[vcpu];
	uint64_t virtual_line = address >> LINE_SHIFT;

	(void)unused;
	if (__builtin_expect(v->reads.virtual_line[virtual_line % FILTER_LINES] != virtual_line, 0))
		behind_filter(v, info, address, LOAD);
}

/* .. every store .. */
void memory_store(unsigned vcpu, uint32_t info, uint64_t address, void *unused)
{
	struct vcpu *v = &vcpus[vcpu];
	uint64_t virtual_line = address >> LINE_SHIFT;

	(void)unused;
	if (__builtin_expect(v->writes.virtual_line[virtual_line % FILTER_LINES] != virtual_line,
			     0))
		behind_filter(v, info, address, STORE);
}

/* A page has 64 lines. */
#define COUNT_BITS 8
#define OF_USER (1u << (COUNT_BITS - 1))

/*
 * The lines of a block of instructions, within a page, in the form in which memory_execute takes
 * them.
 */
void *memory_lines(uint64_t physical_address, unsigned bytes, bool of_user)
{
	uint64_t first = physical_address >> LINE_SHIFT,
		 last = (physical_address + bytes - 1) >> LINE_SHIFT;

	return (void *)(uintptr_t)(first << COUNT_BITS | (of_user ? OF_USER : 0) |
				   (last - first + 1));
}

/* .. and every block of instructions. */
void memory_execute(unsigned vcpu, void *lines)
{
	struct vcpu *v = &vcpus[vcpu];
	uint64_t line = (uintptr_t)lines >> COUNT_BITS;
	enum kind kind = (uintptr_t)lines & OF_USER ? USER_CODE : KERNEL_CODE;

	for (unsigned left = (uintptr_t)lines & (OF_USER - 1); left > 0; left--, line++)
		if (__builtin_expect(v->code_filter[line % FILTER_LINES] != line, 0)) {
			v->code_filter[line % FILTER_LINES] = line;
			reach(v, line, kind);
		}
}

/* Empties the filters for data: they go by virtual addresses. */
void memory_forget_translations(unsigned vcpu, void *unused)
{
	struct vcpu *v = &vcpus[vcpu];

	(void)unused;
	memset(v->reads.virtual_line, 0xff, sizeof v->reads.virtual_line);
	memset(v->writes.virtual_line, 0xff, sizeof v->writes.virtual_line);
}

/*
 * Has the filter forget a line known by its physical address: the place within a page says which
 * few entries it may be in.
 */
static void stop_passing(struct filter *filter, uint64_t line)
{
	const unsigned lines_per_page = 1u << (PAGE_SHIFT - LINE_SHIFT);

	for (unsigned i = line % lines_per_page; i < FILTER_LINES; i += lines_per_page)
		if (filter->line[i] == line)
			filter->virtual_line[i] = UINT64_MAX;
}

bool memory_holds(const struct vcpu *v, uint64_t line)
{
	return cache_holds(&v->cache, line) ||
	       (machine.llc_bytes && cache_holds(&node_cache[v->node], line));
}

/*
 * A vCPU of node `to` wrote the line, and this vCPU's copy is invalid. A last level or a
 * remote cache that both share keeps the line.
 */
void memory_invalidate(struct vcpu *v, uint64_t line, unsigned to)
{
	stop_passing(&v->reads, line);
	stop_passing(&v->writes, line);
	if (v->code_filter[line % FILTER_LINES] == line)
		v->code_filter[line % FILTER_LINES] = NO_LINE;
	cache_remove(&v->cache, line);
	if (machine.llc_bytes && v->node != to)
		cache_remove(&node_cache[v->node], line);
	if (machine.remote_bytes && v->node != to)
		cache_remove(&remote_cache[v->node], line);
}

/*
 * This vCPU no longer owns the line: another one read it, or it was written back. The next store
 * has to take the ownership.
 */
void memory_make_read_only(struct vcpu *v, uint64_t line)
{
	stop_passing(&v->writes, line);
}

void memory_init(void)
{
	for (unsigned i = 0; i < machine.nr_vcpus; i++) {
		cache_init(&vcpus[i].cache, machine.cache_bytes, machine.cache_ways);
		memory_forget_translations(i, NULL);
		memset(vcpus[i].code_filter, 0xff, sizeof vcpus[i].code_filter);
	}
	directory_init();
	for (unsigned node = 0; machine.llc_bytes && node < machine.nr_nodes; node++)
		cache_init(&node_cache[node], machine.llc_bytes, machine.llc_ways);
	for (unsigned node = 0; machine.remote_bytes && node < machine.nr_nodes; node++)
		cache_init(&remote_cache[node], machine.remote_bytes, machine.remote_ways);
}
