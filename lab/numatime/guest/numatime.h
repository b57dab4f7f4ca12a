/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Messages of a program in the guest to the plugin. Each is one instruction that does nothing on
 * other machines.
 */
#ifndef NUMATIME_GUEST_H
#define NUMATIME_GUEST_H

/*
 * This process, with all its threads, belongs to a domain from here on: their work is counted for
 * it. id: 1 to 255, a constant; 0: to none. Repeat it after fork and exec, and 0 at the end: a
 * later process may get the same page table.
 */
#define NUMATIME_DOMAIN(id) \
	__asm__ volatile(".byte 0x0f, 0x1f, 0x80; .long 0x4e554f00 + %c0" : : "i"(id) : "memory")
/* Report all counters; id: 0 to 255, a constant. */
#define NUMATIME_MARK(id) \
	__asm__ volatile(".byte 0x0f, 0x1f, 0x80; .long 0x4e554d00 + %c0" : : "i"(id) : "memory")
/* Work that takes so many microseconds: 0 to 255, a constant. */
#define NUMATIME_BURN(us) \
	__asm__ volatile(".byte 0x0f, 0x1f, 0x80; .long 0x4e554e00 + %c0" : : "i"(us) : "memory")

#endif
