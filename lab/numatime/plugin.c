// SPDX-License-Identifier: GPL-2.0-or-later
/* QEMU's entry point. */
#include <stdio.h>
#include <string.h>

#include "numatime.h"

PLUGIN_EXPORT
int qemu_plugin_version = PLUGIN_API_VERSION;

struct vcpu vcpus[MAX_VCPUS];

static void on_vcpu(qemu_plugin_id_t id, unsigned vcpu)
{
	(void)id;
	if (vcpu >= machine.nr_vcpus)
		give_up(EXIT_UNSUITABLE, "more vCPUs than -smp named");
	clock_add_vcpu(vcpu);
}

static void on_exit_of_qemu(qemu_plugin_id_t id, void *unused)
{
	(void)id, (void)unused;
	report("exit", 0, -1);
}

PLUGIN_EXPORT
int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int count, char **arguments)
{
	if (!info->system_emulation || strcmp(info->target_name, "x86_64") ||
	    info->system.max_vcpus > MAX_VCPUS) {
		fprintf(stderr, "numatime: this needs qemu-system-x86_64 with at most %d vCPUs\n",
			MAX_VCPUS);
		return -1;
	}
	if (!qemu_is_known()) {
		fprintf(stderr, "numatime: this QEMU is not laid out as QEMU 10.0, for which the "
				"plugin was written\n");
		return -1;
	}
	machine.nr_vcpus = (unsigned)info->system.smp_vcpus;
	if (!arguments_parse(count, arguments))
		return -1;
	for (unsigned i = 0; i < machine.nr_vcpus; i++)
		vcpus[i].node = machine.node_of_vcpu[i];
	memory_init();
	bandwidth_init();
	translate_init();
	qemu_plugin_register_vcpu_init_cb(id, on_vcpu);
	qemu_plugin_register_vcpu_tb_trans_cb(id, translate_block);
	qemu_plugin_register_atexit_cb(id, on_exit_of_qemu, NULL);
	return 0;
}
