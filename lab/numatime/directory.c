// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The coherence directory: the sharers and the owner of each line. The owner has written the line,
 * and no other vCPU holds it. Another vCPU that needs the line gets it from the owner's cache. A
 * write invalidates the copies of all other sharers. The directory takes one word for each line of
 * the guest's memory; the host allocates it page by page, on first use.
 */
#include <sys/mman.h>

#include "numatime.h"

static uint64_t nr_lines;
/* a bit for each vCPU that fetched the line since its last write; it may have been evicted */
static uint64_t *sharers;
static uint8_t *owner; /* the vCPU that wrote the line last and still owns it, + 1; 0: none */

static void *sparse(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		give_up(EXIT_UNSUITABLE, "no memory for the directory of lines");
	return memory;
}

void directory_init(void)
{
	for (unsigned i = 0; i < machine.nr_ranges; i++)
		if (machine.range[i].to >> LINE_SHIFT > nr_lines)
			nr_lines = machine.range[i].to >> LINE_SHIFT;
	sharers = sparse(nr_lines * sizeof *sharers);
	owner = sparse(nr_lines * sizeof *owner);
}

static bool is_farther(const struct vcpu *v, unsigned one, unsigned than)
{
	return than == NO_VCPU || machine.latency_ps[v->node][vcpus[one].node] >
					  machine.latency_ps[v->node][vcpus[than].node];
}

/* The owner of the line, if it is another vCPU that still holds it. */
static struct found owned_elsewhere(const struct vcpu *v, uint64_t line)
{
	unsigned last = owner[line] ? owner[line] - 1u : NO_VCPU;

	if (last == NO_VCPU || last == vcpu_index(v) || !memory_holds(&vcpus[last], line))
		return (struct found){ NO_VCPU, false };
	return (struct found){ last, true };
}

/*
 * The vCPU reads the line. Gives the owner, which loses the ownership: its next write has to ask
 * again.
 */
struct found directory_read(const struct vcpu *v, uint64_t line)
{
	struct found found;

	if (line >= nr_lines)
		return (struct found){ NO_VCPU, false };
	found = owned_elsewhere(v, line);
	sharers[line] |= UINT64_C(1) << vcpu_index(v);
	if (owner[line] && owner[line] != vcpu_index(v) + 1) {
		memory_make_read_only(&vcpus[owner[line] - 1], line);
		owner[line] = 0;
	}
	return found;
}

/*
 * The vCPU writes the line, and all other copies are invalidated. Gives the former owner, else the
 * farthest sharer.
 */
struct found directory_write(const struct vcpu *v, uint64_t line)
{
	unsigned farthest = NO_VCPU;
	struct found found;
	uint64_t others;

	if (line >= nr_lines)
		return (struct found){ NO_VCPU, false };
	found = owned_elsewhere(v, line);
	others = sharers[line] & ~(UINT64_C(1) << vcpu_index(v));
	while (others) {
		unsigned other = (unsigned)__builtin_ctzll(others);

		others &= others - 1;
		if (memory_holds(&vcpus[other], line) && is_farther(v, other, farthest))
			farthest = other;
		memory_invalidate(&vcpus[other], line, v->node);
	}
	sharers[line] = UINT64_C(1) << vcpu_index(v);
	owner[line] = (uint8_t)(vcpu_index(v) + 1);
	return found.written ? found : (struct found){ farthest, false };
}

/* The vCPU's last cache evicted the line. True: it has to be written back. */
bool directory_evict(const struct vcpu *v, uint64_t line)
{
	struct vcpu *last;

	if (line >= nr_lines || !owner[line] || vcpus[owner[line] - 1].node != v->node)
		return false;
	last = &vcpus[owner[line] - 1];
	owner[line] = 0;
	/*
	 * Its next write has to take the ownership again: a vCPU that reads meanwhile becomes a
	 * sharer.
	 */
	memory_make_read_only(last, line);
	return true;
}
