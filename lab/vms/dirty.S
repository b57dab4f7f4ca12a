/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The smallest virtual machine that keeps its memory and its vCPUs busy: a multiboot kernel (the
 * Multiboot Specification, version 0.6.96) of some hundred bytes, in place of an operating system
 * that would take half a minute to boot in a nested guest.
 *
 * The first vCPU adds one to a word of each page of all memory, again and again. It writes "UP" to
 * the serial port once it runs, and a dot after each pass. The other vCPUs spin.
 */
#define MULTIBOOT_MAGIC 0x1badb002
#define MULTIBOOT_MEMORY_INFO 2 /* the loader fills in mem_upper */

#define PAGE 4096
#define FIRST_PAGE 0x200000 /* behind this program */
#define SERIAL 0x3f8	    /* COM1, and its line status: */
#define SERIAL_STATUS (SERIAL + 5)
#define SERIAL_CAN_SEND 0x20

/* The local APIC (Intel SDM volume 3, "Advanced Programmable Interrupt Controller"). */
#define APIC_SPURIOUS 0xfee000f0
#define APIC_ENABLE 0x1ff
#define APIC_COMMAND 0xfee00300
#define APIC_INIT_OTHERS 0xc4500
#define APIC_START_OTHERS 0xc4608 /* at the page with this number, 8: */
#define OTHERS_START 0x8000

	.section .multiboot, "a"
	.align 4
	.long MULTIBOOT_MAGIC, MULTIBOOT_MEMORY_INFO
	.long -(MULTIBOOT_MAGIC + MULTIBOOT_MEMORY_INFO)

	.text
	.code32
	.globl start
start:
	mov $stack_end, %esp
	mov 8(%ebx), %ebp /* mem_upper: KiB above the first MiB */
	shl $10, %ebp
	add $0x100000, %ebp

	/* The others begin in real mode, in the first MiB. */
	mov $others, %esi
	mov $OTHERS_START, %edi
	mov $(others_end - others), %ecx
	rep movsb
	movl $APIC_ENABLE, APIC_SPURIOUS
	movl $APIC_INIT_OTHERS, APIC_COMMAND
	mov $2000000, %ecx
wait:	pause
	loop wait
	movl $APIC_START_OTHERS, APIC_COMMAND

	mov $'U', %al
	call send
	mov $'P', %al
	call send
	mov $'\n', %al
	call send
pass:
	mov $FIRST_PAGE, %edi
touch:	incl (%edi)
	add $PAGE, %edi
	cmp %ebp, %edi
	jb touch
	mov $'.', %al
	call send
	jmp pass

/* Sends the character in AL. */
send:
	mov %al, %ah
	mov $SERIAL_STATUS, %edx
ready:	in (%dx), %al
	test $SERIAL_CAN_SEND, %al
	jz ready
	mov %ah, %al
	mov $SERIAL, %edx
	out %al, (%dx)
	ret

	.code16
others:
	cli
spin:	pause
	jmp spin
others_end:

	.bss
	.align 16
	.skip 4096
stack_end:
