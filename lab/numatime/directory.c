// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Who holds each line and who wrote it last. A line that was written is in one vCPU's caches alone: who wants it gets it from
 * there, and who writes a line takes it away from all others. One word a line of the guest's memory, in memory of the host that
 * is only there where it is used.
 */
#include <sys/mman.h>

#include "numatime.h"

static uint64_t nr_lines;
static uint64_t *holders; /* vCPUs that had the line since it was last written, one bit each; they may have lost it since */
static uint8_t *writer;	  /* the vCPU that has written it and not handed it over, + 1; 0: none */

static void *sparse(size_t bytes)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		give_up(EXIT_UNSUITABLE, "no memory for the directory of lines");
	return memory;
}

void directory_init(void)
{
	for (unsigned i = 0; i < machine.nr_ranges; i++)
		if (machine.range[i].to >> LINE_SHIFT > nr_lines)
			nr_lines = machine.range[i].to >> LINE_SHIFT;
	holders = sparse(nr_lines * sizeof *holders);
	writer = sparse(nr_lines * sizeof *writer);
}

static bool is_farther(const struct vcpu *v, unsigned one, unsigned than)
{
	return than == NOBODY || machine.latency_ps[v->node][vcpus[one].node] > machine.latency_ps[v->node][vcpus[than].node];
}

/* The other vCPU that has written the line and still has it. */
static struct found written_elsewhere(const struct vcpu *v, uint64_t line)
{
	unsigned last = writer[line] ? writer[line] - 1u : NOBODY;

	if (last == NOBODY || last == vcpu_index(v) || !memory_holds(&vcpus[last], line))
		return (struct found){ NOBODY, false };
	return (struct found){ last, true };
}

/* The vCPU reads the line: who has written it. That one has to ask again before it writes. */
struct found directory_read(const struct vcpu *v, uint64_t line)
{
	struct found found;

	if (line >= nr_lines)
		return (struct found){ NOBODY, false };
	found = written_elsewhere(v, line);
	holders[line] |= UINT64_C(1) << vcpu_index(v);
	if (writer[line] && writer[line] != vcpu_index(v) + 1) {
		memory_make_read_only(&vcpus[writer[line] - 1], line);
		writer[line] = 0;
	}
	return found;
}

/* The vCPU writes the line, and so takes it away from all others: who has written it, else the farthest that has it. */
struct found directory_write(const struct vcpu *v, uint64_t line)
{
	unsigned farthest = NOBODY;
	struct found found;
	uint64_t others;

	if (line >= nr_lines)
		return (struct found){ NOBODY, false };
	found = written_elsewhere(v, line);
	others = holders[line] & ~(UINT64_C(1) << vcpu_index(v));
	while (others) {
		unsigned other = (unsigned)__builtin_ctzll(others);

		others &= others - 1;
		if (memory_holds(&vcpus[other], line) && is_farther(v, other, farthest))
			farthest = other;
		memory_take_away(&vcpus[other], line, v->node);
	}
	holders[line] = UINT64_C(1) << vcpu_index(v);
	writer[line] = (uint8_t)(vcpu_index(v) + 1);
	return found.written ? found : (struct found){ farthest, false };
}

/* The line left the vCPU's last cache. Whether it has to be written back. */
bool directory_give_way(const struct vcpu *v, uint64_t line)
{
	struct vcpu *last;

	if (line >= nr_lines || !writer[line] || vcpus[writer[line] - 1].node != v->node)
		return false;
	last = &vcpus[writer[line] - 1];
	writer[line] = 0;
	/* It has to become the writer again before it writes, or nobody who reads meanwhile would be told. */
	memory_make_read_only(last, line);
	return true;
}
