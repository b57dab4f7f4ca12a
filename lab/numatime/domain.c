// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Counters by domain. An address space says which domain it belongs to, by a marker instruction;
 * until it does, and from when it says 0, it belongs to none, which is domain 0. The work of a vCPU
 * counts for the domain of the address space that it runs in. That includes the kernel's work for a
 * program, and its own threads and idle time while it keeps a program's page table.
 *
 * An address space goes by CR3, the physical address of its page table. A switch to another one is
 * all that costs host time here. Where a page table is used again after its process ended, the new
 * one belongs to the old one's domain until it says otherwise.
 */
#include "numatime.h"

#define SPACES 65536 /* a power of two */
#define ADDRESS_OF_TABLE UINT64_C(0x000ffffffffff000)

static struct space {
	uint64_t cr3;
	uint8_t domain;
} spaces[SPACES];

static unsigned nr_spaces;
static struct domain_counters counters[MAX_DOMAINS];
static bool is_known[MAX_DOMAINS];

/* The address space of each vCPU, and its counters at the time of the switch. */
static struct {
	uint64_t cr3;
	uint8_t domain;
	uint64_t now_ps;
	struct counters count;
} at[MAX_VCPUS];

static struct space *find(uint64_t cr3)
{
	uint64_t slot = (cr3 >> PAGE_SHIFT) * 0x9e3779b97f4a7c15ull;

	for (slot >>= 48; spaces[slot % SPACES].cr3 && spaces[slot % SPACES].cr3 != cr3; slot++)
		;
	return &spaces[slot % SPACES];
}

/* Adds the vCPU's counters since the last call to its domain. */
static void charge(unsigned vcpu)
{
	const uint64_t *now = (const uint64_t *)&vcpus[vcpu].count;
	uint64_t *then = (uint64_t *)&at[vcpu].count,
		 *sum = (uint64_t *)&counters[at[vcpu].domain].count;

	_Static_assert(sizeof(struct counters) % sizeof(uint64_t) == 0,
		       "all counters are of one kind");
	for (unsigned i = 0; i < sizeof(struct counters) / sizeof *now; i++) {
		sum[i] += now[i] - then[i];
		then[i] = now[i];
	}
	counters[at[vcpu].domain].passed_ps += vcpu_now_ps(&vcpus[vcpu]) - at[vcpu].now_ps;
	at[vcpu].now_ps = vcpu_now_ps(&vcpus[vcpu]);
}

/* The vCPU is about to move the register to CR3. */
void domain_switch(unsigned vcpu, void *general_register)
{
	at[vcpu].cr3 = qemu_general_register((unsigned)(uintptr_t)general_register) &
		       ADDRESS_OF_TABLE;
	if (!nr_spaces)
		return;
	charge(vcpu);
	at[vcpu].domain = find(at[vcpu].cr3)->domain;
}

/* The address space that the vCPU runs in says where it belongs. */
void domain_enter(unsigned vcpu, void *domain)
{
	struct space *space = find(at[vcpu].cr3);
	uint8_t id = (uint8_t)(uintptr_t)domain;

	if (!space->cr3) {
		/* Half of the places stay free, so that every search ends, and soon. */
		if (nr_spaces == SPACES / 2)
			give_up(EXIT_UNSUITABLE, "too many address spaces with a domain");
		nr_spaces++;
		space->cr3 = at[vcpu].cr3;
	}
	space->domain = id;
	is_known[id] = is_known[0] = true;
	/* Other vCPUs may run threads of it. */
	for (unsigned i = 0; i < machine.nr_vcpus; i++)
		if (vcpus[i].slot && at[i].cr3 == space->cr3) {
			charge(i);
			at[i].domain = id;
		}
}

/* The domain's counters, or NULL if no program named it. */
const struct domain_counters *domain_counters(unsigned domain)
{
	if (!is_known[domain])
		return NULL;
	for (unsigned i = 0; i < machine.nr_vcpus; i++)
		if (vcpus[i].slot && at[i].domain == domain)
			charge(i);
	return &counters[domain];
}
