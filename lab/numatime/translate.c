// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Instruments translated code: the cost of instructions, accesses to memory for memory.c, and the
 * marker instructions.
 */
#include <string.h>

#include "numatime.h"

/*
 * Instructions that do nothing on any machine (nopl disp32(%rax)) and mean something here, so that
 * any program may execute them: guest/numatime.h.
 */
#define MARK 0x4e554d00u /* "NUM", and a number in the last byte: report the counters */
/* work that takes as many microseconds as the last byte says, in one instruction */
#define BURN 0x4e554e00u
/* the address space that executes it belongs to the domain that the last byte says; 0: to none */
#define DOMAIN 0x4e554f00u

static struct qemu_plugin_scoreboard *slots;
static qemu_plugin_u64 elapsed;

/* An instruction, as far as it needs to be understood. */
struct instruction {
	const uint8_t *opcode; /* behind the prefixes */
	size_t length;	       /* from there to the end */
	bool repeated;	       /* F3 prefix */
	bool locked;	       /* F0 prefix */
	bool upper;	       /* REX.B: the register in the last operand is one of r8 to r15 */
};

static bool is_prefix(uint8_t byte)
{
	switch (byte) {
	case 0x26: case 0x2e: case 0x36: case 0x3e: case 0x64: case 0x65: case 0x66: case 0x67:
	case 0xf0: case 0xf2: case 0xf3:
		return true;
	}
	return byte >= 0x40 && byte <= 0x4f; /* REX */
}

static struct instruction decode(const uint8_t *bytes, size_t length)
{
	struct instruction result = { .opcode = bytes, .length = length };

	for (; result.length > 1 && is_prefix(*result.opcode); result.opcode++, result.length--)
		result.repeated |= *result.opcode == 0xf3, result.locked |= *result.opcode == 0xf0,
			result.upper = (*result.opcode & 0xf1) == 0x41;
	return result;
}

static bool is_pause(const struct instruction *insn)
{
	return insn->repeated && insn->opcode[0] == 0x90;
}

static bool is_halt(const struct instruction *insn)
{
	return insn->opcode[0] == 0xf4;
}

static bool is_port_access(const struct instruction *insn)
{
	uint8_t byte = insn->opcode[0];

	return (byte >= 0xe4 && byte <= 0xe7) || (byte >= 0xec && byte <= 0xef) ||
	       (byte >= 0x6c && byte <= 0x6f);
}

/*
 * Whether it loads and stores as one: LOCK, and XCHG, which needs no prefix. The line then comes
 * once, for the store.
 */
static bool is_atomic(const struct instruction *insn)
{
	return insn->locked || insn->opcode[0] == 0x86 || insn->opcode[0] == 0x87;
}

static bool is_move_to_cr3(const struct instruction *insn)
{
	return insn->length >= 3 && insn->opcode[0] == 0x0f && insn->opcode[1] == 0x22 &&
	       ((insn->opcode[2] >> 3) & 7) == 3;
}

static bool changes_translations(const struct instruction *insn)
{
	const uint8_t *opcode = insn->opcode;
	unsigned reg;

	if (insn->length < 3 || opcode[0] != 0x0f)
		return false;
	reg = (opcode[2] >> 3) & 7;
	/* MOV to CR3, CR4 */
	return (opcode[1] == 0x22 && (reg == 3 || reg == 4)) ||
	       (opcode[1] == 0x01 && reg == 7 && opcode[2] < 0xc0) ||	      /* INVLPG */
	       (insn->length >= 4 && opcode[1] == 0x38 && opcode[2] == 0x82); /* INVPCID */
}

/* The displacement of a marker instruction, else 0. */
static uint32_t marker(const uint8_t *bytes, size_t length)
{
	uint32_t displacement;

	if (length != 7 || bytes[0] != 0x0f || bytes[1] != 0x1f || bytes[2] != 0x80)
		return 0;
	memcpy(&displacement, bytes + 3, sizeof displacement);
	return displacement;
}

static void on_mark(unsigned vcpu, void *number)
{
	report("mark", (int)(intptr_t)number, (int)vcpu);
}

/* Registers the callbacks of the instruction and gives its fixed cost. */
static uint64_t watch(struct qemu_plugin_insn *handle, const uint8_t *bytes, size_t length)
{
	struct instruction insn = decode(bytes, length);
	uint32_t displacement = marker(bytes, length);

	if (is_move_to_cr3(&insn))
		qemu_plugin_register_vcpu_insn_exec_cb(handle, domain_switch, QEMU_PLUGIN_CB_R_REGS,
						       (void *)(uintptr_t)((insn.opcode[2] & 7) +
									   (insn.upper ? 8 : 0)));
	qemu_plugin_register_vcpu_mem_cb(handle, is_atomic(&insn) ? memory_store : memory_load,
					 QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_R, NULL);
	qemu_plugin_register_vcpu_mem_cb(handle, memory_store, QEMU_PLUGIN_CB_NO_REGS,
					 QEMU_PLUGIN_MEM_W, NULL);
	if ((displacement & ~0xffu) == MARK)
		qemu_plugin_register_vcpu_insn_exec_cb(handle, on_mark, QEMU_PLUGIN_CB_NO_REGS,
						       (void *)(uintptr_t)(displacement & 0xff));
	else if ((displacement & ~0xffu) == BURN)
		return machine.insn_ps + (displacement & 0xff) * PS_PER_US;
	else if ((displacement & ~0xffu) == DOMAIN)
		qemu_plugin_register_vcpu_insn_exec_cb(handle, domain_enter, QEMU_PLUGIN_CB_NO_REGS,
						       (void *)(uintptr_t)(displacement & 0xff));
	else if (changes_translations(&insn))
		qemu_plugin_register_vcpu_insn_exec_cb(handle, memory_forget_translations,
						       QEMU_PLUGIN_CB_NO_REGS, NULL);
	else if (is_halt(&insn))
		qemu_plugin_register_vcpu_insn_exec_cb(handle, clock_halt, QEMU_PLUGIN_CB_NO_REGS,
						       NULL);
	else if (is_pause(&insn))
		return machine.insn_ps + machine.pause_ps;
	else if (is_port_access(&insn))
		return machine.insn_ps + machine.io_ps;
	return machine.insn_ps;
}

/*
 * Has memory.c see the lines that the block's instructions lie in. QEMU finds blocks by physical
 * address, so that of the first instruction holds whenever the block runs. A block may reach into a
 * second page, by one instruction at most.
 */
static void watch_fetching(struct qemu_plugin_tb *tb, size_t count)
{
	struct qemu_plugin_insn *last = qemu_plugin_tb_get_insn(tb, count - 1);
	uint64_t begin = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0));
	uint64_t end = qemu_plugin_insn_vaddr(last) + qemu_plugin_insn_size(last);
	uint64_t next_page = (begin >> PAGE_SHIFT << PAGE_SHIFT) + (1u << PAGE_SHIFT), page;

	page = qemu_physical_page(begin);
	if (page == UINT64_MAX)
		return;
	qemu_plugin_register_vcpu_tb_exec_cb(
		tb, memory_execute, QEMU_PLUGIN_CB_NO_REGS,
		memory_lines(page + (begin & ((1u << PAGE_SHIFT) - 1)),
			     (unsigned)((end < next_page ? end : next_page) - begin),
			     !(begin >> 63))); /* the kernel has the upper half */
}

void translate_block(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t count = qemu_plugin_tb_n_insns(tb);
	uint64_t cost_ps = 0;

	(void)id;
	for (size_t i = 0; i < count; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		uint8_t bytes[16];
		size_t length = qemu_plugin_insn_data(insn, bytes, sizeof bytes);

		cost_ps += watch(insn, bytes, length);
	}
	/* First, in this order: a vCPU whose turn it is not leaves before anything is counted. */
	qemu_plugin_register_vcpu_tb_exec_cond_cb(tb, clock_trip, QEMU_PLUGIN_CB_NO_REGS,
						  QEMU_PLUGIN_COND_GE, elapsed, TRIP_PS, NULL);
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64, elapsed,
							  cost_ps);
	watch_fetching(tb, count);
}

struct slot *translate_slot(unsigned vcpu)
{
	return qemu_plugin_scoreboard_find(slots, vcpu);
}

void translate_init(void)
{
	slots = qemu_plugin_scoreboard_new(sizeof(struct slot));
	elapsed = (qemu_plugin_u64){ slots, offsetof(struct slot, elapsed_ps) };
}
