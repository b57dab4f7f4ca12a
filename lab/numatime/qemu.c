// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * The hook into QEMU.
 *
 * The plugin interface cannot give vCPUs clocks of their own: qemu_plugin_update_ns moves one clock
 * for all, is inert under TCG, and nothing tells of idling. But QEMU asks its accelerator for the
 * time through a table of functions (AccelOpsClass, include/system/accel-ops.h in QEMU 10.0) that
 * the binary exports by way of cpus_get_accel(). Four of its entries are replaced:
 *
 *   get_virtual_clock   drives all guest timers
 *   set_virtual_clock
 *   get_elapsed_ticks   the TSC
 *   cpu_thread_is_idle  empty under TCG; called on the vCPU thread with QEMU's lock held just
 *                       before it would go to sleep
 *                       because all vCPUs are halted: the place to skip idle time
 *
 * Where they are depends on the layout of the class, which no header here promises. It is read from
 * the machine code of three exported functions that use these entries, and checked: the four must
 * lie as they do in QEMU 10.0, else nothing is touched and QEMU does not start.
 */
#include <string.h>

#include "numatime.h"

/*
 * Exported by the QEMU binary, though not part of its plugin interface. Weak: qemu_is_known reports
 * missing ones.
 */
#define QEMU_INTERNAL extern __attribute__((weak))
QEMU_INTERNAL char *cpus_get_accel(void);
QEMU_INTERNAL int64_t cpus_get_virtual_clock(void);
QEMU_INTERNAL int64_t cpus_get_elapsed_ticks(void);
QEMU_INTERNAL bool cpu_thread_is_idle(void *cpu);
QEMU_INTERNAL void *qemu_get_cpu(int index);
QEMU_INTERNAL uint64_t cpu_get_phys_page_debug(void *cpu, uint64_t address);
QEMU_INTERNAL void cpu_exit(void *cpu);
QEMU_INTERNAL void cpu_loop_exit(void *cpu) __attribute__((noreturn));
QEMU_INTERNAL void tcg_cpu_init_cflags(void *cpu, bool parallel);
QEMU_INTERNAL int64_t qemu_clock_deadline_ns_all(int type, int attributes);
QEMU_INTERNAL bool qemu_clock_run_timers(int type);
QEMU_INTERNAL void bql_lock_impl(const char *file, int line);
QEMU_INTERNAL void bql_unlock(void);
QEMU_INTERNAL __thread void *current_cpu;

#define QEMU_CLOCK_VIRTUAL 1
#define ALL_TIMERS (~0)

/* Bytes of a function to search for the access to the table: each of the three is shorter. */
#define FUNCTION_BYTES 120
/* In the table cpu_thread_is_idle comes so many entries before get_virtual_clock. */
#define ENTRIES_BETWEEN 7

/* cpu_thread_is_idle is called from here, not by QEMU's thread about to sleep */
static bool asking;

static int64_t virtual_clock_ns(void)
{
	return (int64_t)(clock_now_ps() / PS_PER_NS);
}

static void set_virtual_clock(int64_t ns)
{
	(void)ns;
}

static int64_t elapsed_ticks(void)
{
	uint64_t ns = clock_now_ps() / PS_PER_NS, ms = ns / 1000000;

	/* In two parts, so that no product overflows. */
	return (int64_t)(ms * machine.tsc_khz + (ns - ms * 1000000) * machine.tsc_khz / 1000000);
}

static bool thread_is_idle(void *cpu)
{
	return asking || clock_all_idle(cpu);
}

/*
 * Whether a function reads a table entry, "mov disp32(%rax),%rax", and at which offset; wanted < 0:
 * any.
 */
static int entry_read_by(const void *function, int wanted)
{
	const unsigned char *code = function;

	for (int i = 0; i < FUNCTION_BYTES; i++)
		if (code[i] == 0x48 && code[i + 1] == 0x8b && code[i + 2] == 0x80) {
			int offset;

			__builtin_memcpy(&offset, code + i + 3, sizeof offset);
			if (wanted < 0 || offset == wanted)
				return offset;
		}
	return -1;
}

static struct {
	int clock, ticks, idle;
} offset;

/* Whether this is the QEMU that the hook was written for; looks only. */
bool qemu_is_known(void)
{
	if (!cpus_get_accel || !cpus_get_virtual_clock || !cpus_get_elapsed_ticks ||
	    !cpu_thread_is_idle || !qemu_get_cpu || !cpu_get_phys_page_debug || !cpu_exit ||
	    !cpu_loop_exit || !tcg_cpu_init_cflags || !qemu_clock_deadline_ns_all ||
	    !qemu_clock_run_timers || !bql_lock_impl || !bql_unlock || !qemu_plugin_get_registers ||
	    !qemu_plugin_read_register || !g_byte_array_new || !g_byte_array_set_size)
		return false;
	offset.clock = entry_read_by(cpus_get_virtual_clock, -1);
	offset.ticks = entry_read_by(cpus_get_elapsed_ticks, -1);
	offset.idle = offset.clock - ENTRIES_BETWEEN * (int)sizeof(void *);
	return offset.idle >= 0 && offset.ticks == offset.clock + 2 * (int)sizeof(void *) &&
	       entry_read_by(cpu_thread_is_idle, offset.idle) == offset.idle;
}

void qemu_hook(void)
{
	char *table = cpus_get_accel();

	*(void **)(table + offset.clock) = virtual_clock_ns;
	*(void **)(table + offset.clock + sizeof(void *)) = set_virtual_clock;
	*(void **)(table + offset.ticks) = elapsed_ticks;
	*(void **)(table + offset.idle) = thread_is_idle;
}

void *qemu_vcpu(unsigned vcpu)
{
	return qemu_get_cpu((int)vcpu);
}

/* The vCPU that this thread runs, or NULL. */
const void *qemu_current(void)
{
	return current_cpu;
}

/* Of the vCPU that runs (or is being translated for); all bits set: there is none. */
uint64_t qemu_physical_page(uint64_t address)
{
	return cpu_get_phys_page_debug(current_cpu, address & ~((UINT64_C(1) << PAGE_SHIFT) - 1));
}

/*
 * Of the vCPU that runs, by the number that instructions have for it. To be called where translated
 * code says that it reads registers (QEMU_PLUGIN_CB_R_REGS).
 */
uint64_t qemu_general_register(unsigned number)
{
	static const char *const names[] = {
		"rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi",
		"r8",  "r9",  "r10", "r11", "r12", "r13", "r14", "r15"
	};
	static struct qemu_plugin_register *handles[sizeof names / sizeof *names];
	static GByteArray *value;
	uint64_t result = 0;

	if (!value) {
		const GArray *all = qemu_plugin_get_registers();

		for (unsigned i = 0; i < all->len; i++) {
			const qemu_plugin_reg_descriptor *one =
				(const qemu_plugin_reg_descriptor *)all->data + i;

			for (unsigned j = 0; j < sizeof names / sizeof *names; j++)
				if (!strcmp(one->name, names[j]))
					handles[j] = one->handle;
		}
		value = g_byte_array_new();
	}
	g_byte_array_set_size(value, 0);
	if (!handles[number] || qemu_plugin_read_register(handles[number], value) != sizeof result)
		give_up(EXIT_UNSUITABLE, "this QEMU does not say what is in a register");
	memcpy(&result, value->data, sizeof result);
	return result;
}

bool qemu_is_idle(void *cpu)
{
	bool idle;

	asking = true;
	idle = cpu_thread_is_idle(cpu);
	asking = false;
	return idle;
}

/*
 * Returns from the vCPU's code to QEMU's thread, which goes on with the next vCPU. To be called
 * before the first instruction of a block, none of which is executed then: the vCPU's state is all
 * in memory, its instruction pointer, too (CF_PCREL, which QEMU's x86 machines have).
 */
void qemu_leave(void *cpu)
{
	cpu_exit(cpu);
	cpu_loop_exit(cpu);
}

/*
 * With thread=single QEMU 9.2 to 10.x translates as if there were one vCPU: plugin code gets, as a
 * constant, the index of the vCPU that happened to translate it (and that constant is even
 * multiplied in place, so that indices like 64 appear). Code for a parallel context reads the index
 * when it runs.
 */
void qemu_translate_for_many(void *cpu)
{
	tcg_cpu_init_cflags(cpu, true);
}

void qemu_run_timers(void)
{
	qemu_clock_run_timers(QEMU_CLOCK_VIRTUAL);
}

/* From now; below 0: none is set. */
int64_t qemu_next_timer_ns(void)
{
	return qemu_clock_deadline_ns_all(QEMU_CLOCK_VIRTUAL, ALL_TIMERS);
}

void qemu_lock(void)
{
	bql_lock_impl(__FILE__, __LINE__);
}

void qemu_unlock(void)
{
	bql_unlock();
}
