// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Guest time.
 *
 * Each vCPU has its own clock: translated code adds what its instructions cost to slot->elapsed_ps,
 * memory.c adds delays. Time passes in rounds. In a round QEMU's thread lets each vCPU in turn run
 * until its clock reaches round_end_ps. When all that are not halted have got there, the machine's
 * time moves to the slowest of them, the timers that are due run, and the next round begins. One
 * that is visited when it is through executes nothing. A round lasts one quantum, or less where a
 * timer is due sooner. So two vCPUs see times that differ by at most about a quantum, and a timer
 * or a wake-up is late by at most that.
 *
 * A vCPU that takes a line from another one gives its turn away at once. Both then do so at the
 * beginning of a round and after each slice of it, until a round passed without that. So two that
 * need the same line get it in turn, not each for a whole round, and a vCPU that waits for the
 * other waits no longer than a slice too long.
 *
 * A vCPU that was halted goes on at the time of its wake-up: when a timer ran, or when another vCPU
 * told it by way of a device. Otherwise a vCPU that passes work on and waits would find it done
 * before it was passed on.
 *
 * When every vCPU is halted, the machine's time jumps to the next timer.
 *
 * QEMU's other threads see the time at which the machine began. Its main loop would otherwise wait,
 * by the host's clock, for timers that are due by the guest's, and poll thousands of times a
 * second: open_round runs them. Where idle time is not skipped at once, for a disk or a network
 * whose timers begin on other threads, they see the time.
 *
 * Nothing here can deadlock: one thread runs all vCPUs, so no vCPU waits for another. One that is
 * not halted is always visited again, and the last to arrive opens the next round.
 */
#include <time.h>

#include "numatime.h"

#define MIN_ROUND_PS (PS_PER_US / 2)
#define SLICE_PS PS_PER_US
/* For a vCPU that still has the line, so that the other one soon takes it. */
#define FIRST_SLICE_PS (SLICE_PS / 20)
/* host time for it to act, where only it can end an idle guest's sleep */
#define OUTSIDE_WORLD_US 200

static uint64_t machine_ps;   /* no vCPU that runs is behind this */
static uint64_t published_ps; /* the time that QEMU's other threads see */
static uint64_t round_end_ps, nearly_end_ps;
static bool at_machine_time; /* the time is machine_ps, not a vCPU's clock */
static volatile uint64_t progress;
static uint64_t rounds, idle_jumps, jumped_ps;
static __thread bool on_vcpu_thread;

/* The vCPU whose code runs, or NULL. */
static struct vcpu *running(void)
{
	static struct vcpu *last = vcpus;
	const void *cpu = qemu_current();

	if (!cpu)
		return NULL;
	for (unsigned i = 0; last->cpu != cpu; i++) {
		if (i == machine.nr_vcpus)
			return NULL;
		last = &vcpus[i];
	}
	return last;
}

uint64_t clock_now_ps(void)
{
	const struct vcpu *v;

	if (!on_vcpu_thread)
		return published_ps;
	v = at_machine_time ? NULL : running();
	return v && vcpu_now_ps(v) > machine_ps ? vcpu_now_ps(v) : machine_ps;
}

/* Lets the vCPU run from now until its clock is at the end; not at all if it is already. */
static void set_budget(struct vcpu *v, uint64_t now_ps, uint64_t end_ps)
{
	v->slot->elapsed_ps = TRIP_PS - (end_ps > now_ps ? end_ps - now_ps : 0);
	v->base_ps = now_ps - v->slot->elapsed_ps;
}

static bool contends(const struct vcpu *v)
{
	return rounds - v->contended_in <= 1;
}

/*
 * Whether the vCPU has nothing left to do in this round. One that contends leaves the round's last
 * part unused: with the other vCPU through, it would have the line for itself.
 */
static bool is_through(const struct vcpu *v)
{
	return vcpu_now_ps(v) >= (contends(v) ? nearly_end_ps : round_end_ps);
}

/* Lets the vCPU run to the end of the round, or of a slice. */
static void go_on(struct vcpu *v)
{
	uint64_t now_ps = vcpu_now_ps(v), end_ps = contends(v) ? nearly_end_ps : round_end_ps;

	v->gave_turn = false;
	set_budget(v, now_ps,
		   contends(v) && now_ps + SLICE_PS < end_ps ? now_ps + SLICE_PS : end_ps);
}

/* How far it may go at the beginning of a round. */
static uint64_t first_end_ps(const struct vcpu *v)
{
	if (v->parked || v->halted || is_through(v))
		return 0;
	return contends(v) ? vcpu_now_ps(v) + FIRST_SLICE_PS : round_end_ps;
}

/* Notes the time of their wake-up for vCPUs that were halted and now have something to do. */
static void note_woken(uint64_t now_ps)
{
	for (unsigned i = 0; i < machine.nr_vcpus; i++) {
		struct vcpu *v = &vcpus[i];

		if (!v->cpu || !(v->parked || v->halted) || v->woken || qemu_is_idle(v->cpu))
			continue;
		v->woken = true;
		v->woken_ps = now_ps;
	}
}

/*
 * The vCPU is about to halt, unless an interrupt waits for it. Whatever it does next comes by
 * clock_trip.
 */
void clock_halt(unsigned vcpu, void *unused)
{
	struct vcpu *v = &vcpus[vcpu];

	(void)unused;
	v->halted = true;
	v->woken = false;
	set_budget(v, vcpu_now_ps(v), 0);
}

/* The vCPU has told a device something: to interrupt another vCPU, for one. */
void clock_tell_device(const struct vcpu *v)
{
	note_woken(vcpu_now_ps(v));
}

/* The vCPU goes on after it was halted. */
static void wake(struct vcpu *v)
{
	uint64_t halted_ps = vcpu_now_ps(v), now_ps = halted_ps;

	if (v->parked && now_ps < machine_ps)
		now_ps = machine_ps;
	if (v->woken && now_ps < v->woken_ps)
		now_ps = v->woken_ps;
	v->count.idle_ps += now_ps - halted_ps;
	v->parked = v->halted = v->woken = false;
	set_budget(v, now_ps, round_end_ps);
}

static int64_t next_timer_ns(void)
{
	int64_t ns;

	at_machine_time = true;
	ns = qemu_next_timer_ns();
	at_machine_time = false;
	return ns;
}

/* Runs the timers that are due and lays out the next round. QEMU's lock is held. */
static void open_round(void)
{
	uint64_t length_ps = machine.quantum_ps;
	int64_t timer_ns;

	at_machine_time = true;
	qemu_run_timers();
	at_machine_time = false;
	note_woken(machine_ps);
	if (machine.idle_pace_us)
		published_ps = machine_ps;
	bandwidth_round(machine_ps);
	timer_ns = next_timer_ns();
	if (timer_ns >= 0 && (uint64_t)timer_ns * PS_PER_NS < length_ps)
		length_ps = (uint64_t)timer_ns * PS_PER_NS;
	if (length_ps < MIN_ROUND_PS)
		length_ps = MIN_ROUND_PS;
	round_end_ps = machine_ps + length_ps;
	nearly_end_ps = round_end_ps - (SLICE_PS < length_ps / 2 ? SLICE_PS : length_ps / 2);
	for (unsigned i = 0; i < machine.nr_vcpus; i++) {
		struct vcpu *v = &vcpus[i];

		v->gave_turn = false;
		if (v->cpu)
			set_budget(v, vcpu_now_ps(v), first_end_ps(v));
	}
	progress++;
	if (machine.time_limit_ps && machine_ps > machine.time_limit_ps)
		give_up(EXIT_TIME_LIMIT, "the guest reached its time limit");
}

/* Begins the next round if no vCPU has anything left to do in this one. */
static bool try_next_round(void)
{
	bool idle[MAX_VCPUS];
	uint64_t slowest_ps = UINT64_MAX;

	for (unsigned i = 0; i < machine.nr_vcpus; i++) {
		struct vcpu *v = &vcpus[i];

		idle[i] = !v->cpu || qemu_is_idle(v->cpu);
		if (idle[i])
			continue;
		if (v->parked || !is_through(v))
			return false; /* just woken, or not there yet */
		if (vcpu_now_ps(v) < slowest_ps)
			slowest_ps = vcpu_now_ps(v);
	}
	for (unsigned i = 0; i < machine.nr_vcpus; i++)
		vcpus[i].parked = idle[i];
	if (slowest_ps != UINT64_MAX && slowest_ps > machine_ps)
		machine_ps = slowest_ps;
	rounds++;
	qemu_lock();
	open_round();
	qemu_unlock();
	return true;
}

/* Whether another one that contends can go on if the vCPU gives its turn away. */
static bool turn_helps(const struct vcpu *v)
{
	for (unsigned i = 0; i < machine.nr_vcpus; i++) {
		const struct vcpu *other = &vcpus[i];

		if (other != v && other->cpu && !other->parked && contends(other) &&
		    !is_through(other))
			return true;
	}
	return false;
}

/* The vCPU has a line now that the other one had. */
void clock_contend(struct vcpu *v, struct vcpu *other)
{
	v->contended_in = other->contended_in = rounds;
	if (turn_helps(v))
		set_budget(v, vcpu_now_ps(v), 0);
}

/* Translated code calls this at the beginning of a block, when the vCPU's budget is used up. */
void clock_trip(unsigned vcpu, void *unused)
{
	struct vcpu *v = &vcpus[vcpu];

	(void)unused;
	progress++;
	if (v->parked || v->halted) { /* its first code since then */
		wake(v);
		if (vcpu_now_ps(v) < round_end_ps)
			return;
	}
	if (!is_through(v)) {
		if (v->gave_turn || !turn_helps(v)) {
			go_on(v);
			return;
		}
		v->gave_turn = true;
	} else if (try_next_round() && !is_through(v))
		return;
	qemu_leave(v->cpu); /* the next one's turn */
}

static bool all_parked(void)
{
	for (unsigned i = 0; i < machine.nr_vcpus; i++)
		if (vcpus[i].cpu && !qemu_is_idle(vcpus[i].cpu))
			return false;
	return true;
}

/*
 * QEMU's thread has found this vCPU halted, and sleeps when it has found that of all of them.
 * Instead, idle time is skipped at the last one. QEMU's lock is held. False: look at every vCPU
 * again.
 */
bool clock_all_idle(void *cpu)
{
	int64_t timer_ns;

	if (!on_vcpu_thread || cpu != vcpus[machine.nr_vcpus - 1].cpu)
		return true;
	timer_ns = next_timer_ns();
	if (timer_ns < 0 || machine.idle_pace_us) {
		long us = timer_ns < 0 ? OUTSIDE_WORLD_US : machine.idle_pace_us;

		qemu_unlock();
		nanosleep(&(struct timespec){ .tv_nsec = us * 1000 }, NULL);
		qemu_lock();
		timer_ns = next_timer_ns(); /* others may have set one meanwhile */
		/* Where the guest has no disk and no network, nothing would ever end this. */
		progress += timer_ns >= 0 || machine.idle_pace_us;
		if (timer_ns < 0 || !all_parked())
			return false;
	}
	for (unsigned i = 0; i < machine.nr_vcpus; i++)
		vcpus[i].parked = true;
	machine_ps += (uint64_t)timer_ns * PS_PER_NS;
	idle_jumps++;
	jumped_ps += (uint64_t)timer_ns * PS_PER_NS;
	open_round();
	return false;
}

/* A vCPU begins to exist. Called on the thread that will run it. */
void clock_add_vcpu(unsigned vcpu)
{
	static bool hooked;

	if (hooked && !on_vcpu_thread)
		give_up(EXIT_UNSUITABLE, "this needs -accel tcg,thread=single");
	on_vcpu_thread = true;
	vcpus[vcpu].cpu = qemu_vcpu(vcpu);
	qemu_translate_for_many(vcpus[vcpu].cpu);
	for (unsigned i = 0; i <= vcpu; i++) /* the scoreboard may have moved */
		vcpus[i].slot = translate_slot(i);
	set_budget(&vcpus[vcpu], machine_ps, 0);
	if (!hooked) {
		hooked = true;
		qemu_hook();
		watchdog_start();
	}
}

uint64_t clock_progress(void)
{
	return progress;
}

struct clock_summary clock_summary(void)
{
	return (struct clock_summary){ machine_ps, rounds, idle_jumps, jumped_ps };
}
