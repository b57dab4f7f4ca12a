/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The part of QEMU's TCG plugin interface (version 4: QEMU 9.2 to 10.x) that is used here. Debian
 * ships no qemu-plugin.h, so it is declared once more; the words are those of QEMU's
 * docs/devel/tcg-plugins.rst.
 */
#ifndef NUMATIME_PLUGIN_API_H
#define NUMATIME_PLUGIN_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLUGIN_EXPORT __attribute__((visibility("default")))
/*
 * Weak: a QEMU that lacks one shall load the plugin all the same, and then say which version it
 * wanted.
 */
#define PLUGIN_IMPORT __attribute__((weak))
#define PLUGIN_API_VERSION 4

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;

typedef struct {
	const char *target_name;
	struct {
		int min, cur;
	} version;
	bool system_emulation;
	union {
		struct {
			int smp_vcpus, max_vcpus;
		} system;
	};
} qemu_info_t;

struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;
struct qemu_plugin_scoreboard;

typedef struct {
	struct qemu_plugin_scoreboard *score;
	size_t offset;
} qemu_plugin_u64;

enum { QEMU_PLUGIN_INLINE_ADD_U64 = 0 };
enum { QEMU_PLUGIN_COND_GE = 7 };
enum { QEMU_PLUGIN_CB_NO_REGS = 0, QEMU_PLUGIN_CB_R_REGS = 1 };
enum { QEMU_PLUGIN_MEM_R = 1, QEMU_PLUGIN_MEM_W = 2 };

struct qemu_plugin_register;

typedef struct {
	struct qemu_plugin_register *handle;
	const char *name, *feature;
} qemu_plugin_reg_descriptor;

/* GLib's, which QEMU itself loads. */
typedef struct {
	char *data;
	unsigned len;
} GArray;
typedef struct {
	uint8_t *data;
	unsigned len;
} GByteArray;

typedef void (*qemu_plugin_vcpu_simple_cb_t)(qemu_plugin_id_t, unsigned);
typedef void (*qemu_plugin_vcpu_udata_cb_t)(unsigned, void *);
typedef void (*qemu_plugin_vcpu_mem_cb_t)(unsigned, qemu_plugin_meminfo_t, uint64_t address,
					  void *);
typedef void (*qemu_plugin_tb_trans_cb_t)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*qemu_plugin_udata_cb_t)(qemu_plugin_id_t, void *);

PLUGIN_IMPORT void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t,
						     qemu_plugin_vcpu_simple_cb_t);
PLUGIN_IMPORT void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t,
							 qemu_plugin_tb_trans_cb_t);
PLUGIN_IMPORT void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, qemu_plugin_udata_cb_t, void *);
PLUGIN_IMPORT void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(struct qemu_plugin_tb *,
								     int op, qemu_plugin_u64,
								     uint64_t imm);
PLUGIN_IMPORT void qemu_plugin_register_vcpu_tb_exec_cond_cb(struct qemu_plugin_tb *,
							     qemu_plugin_vcpu_udata_cb_t, int flags,
							     int cond, qemu_plugin_u64,
							     uint64_t imm, void *);
PLUGIN_IMPORT void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *,
							  qemu_plugin_vcpu_udata_cb_t, int flags,
							  void *);
PLUGIN_IMPORT void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *,
						    qemu_plugin_vcpu_mem_cb_t, int flags, int rw,
						    void *);
PLUGIN_IMPORT void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *,
							qemu_plugin_vcpu_udata_cb_t, int flags,
							void *);
PLUGIN_IMPORT size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
PLUGIN_IMPORT struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *,
							       size_t);
PLUGIN_IMPORT size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *, void *destination,
					   size_t length);
PLUGIN_IMPORT uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
PLUGIN_IMPORT size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
PLUGIN_IMPORT struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t,
								uint64_t address);
PLUGIN_IMPORT bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *);
PLUGIN_IMPORT uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *);
PLUGIN_IMPORT struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t);
PLUGIN_IMPORT void *qemu_plugin_scoreboard_find(struct qemu_plugin_scoreboard *, unsigned vcpu);
PLUGIN_IMPORT GArray *qemu_plugin_get_registers(void);
PLUGIN_IMPORT int qemu_plugin_read_register(struct qemu_plugin_register *, GByteArray *);
PLUGIN_IMPORT GByteArray *g_byte_array_new(void);
PLUGIN_IMPORT GByteArray *g_byte_array_set_size(GByteArray *, unsigned);

#endif
