/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The decisions as functions that Rust can call. */
#include "trial.h"

int nearside_credit_before(credit_v a, credit_v b)
{
	return credit_before(a, b);
}
credit_u64 nearside_credit_share(credit_u64 parent, credit_u64 weight, credit_u64 weights)
{
	return credit_share(parent, weight, weights);
}
credit_v nearside_credit_charge(credit_ns used, credit_u64 share)
{
	return credit_charge(used, share);
}
credit_v nearside_credit_now(credit_v now, credit_v tag, int waited)
{
	return credit_now(now, tag, waited);
}
credit_ns nearside_credit_slice(const struct credit_params *params, credit_u32 weight)
{
	return credit_slice(params, weight);
}
credit_v nearside_credit_tag(const struct credit_params *params, const struct credit_group *group,
			     credit_v now, int woken)
{
	return credit_tag(params, group, now, woken);
}
credit_v nearside_credit_own_lead(const struct credit_params *params,
				  const struct credit_group *group, credit_v now, credit_v tag,
				  credit_v own_now, credit_v own)
{
	return credit_own_lead(params, group, now, tag, own_now, own);
}
credit_ns nearside_credit_uses(credit_ns slice, credit_ns runs, int woken)
{
	return credit_uses(slice, runs, woken);
}
void nearside_credit_reserve(struct credit_group *group, credit_v tag, credit_ns slice,
			     credit_ns uses, struct credit_grant *grant)
{
	credit_reserve(group, tag, slice, uses, grant);
}
void nearside_credit_settle(struct credit_group *group, const struct credit_grant *grant,
			    credit_ns used)
{
	credit_settle(group, grant, used);
}
credit_v nearside_credit_own_charge(credit_ns used, credit_u32 weight)
{
	return credit_own_charge(used, weight);
}
credit_v nearside_credit_own_now(credit_v own_now, credit_v own, credit_ns uses, credit_ns slice)
{
	return credit_own_now(own_now, own, uses, slice);
}
credit_v nearside_credit_own_rejoins(const struct credit_params *params, credit_v own_now,
				     credit_v own)
{
	return credit_own_rejoins(params, own_now, own);
}
credit_v nearside_credit_own_lag(const struct credit_params *params, credit_v own_now, credit_v own)
{
	return credit_own_lag(params, own_now, own);
}
credit_ns nearside_credit_resumes(const struct credit_params *params, credit_ns left, int others)
{
	return credit_resumes(params, left, others);
}
int nearside_credit_preempts(const struct credit_params *params, credit_v woken, credit_v running)
{
	return credit_preempts(params, woken, running);
}
int nearside_credit_preempts_own(const struct credit_params *params, credit_v own,
				 credit_v running_own, credit_v woken, credit_v running,
				 credit_ns ran)
{
	return credit_preempts_own(params, own, running_own, woken, running, ran);
}
credit_v nearside_credit_from_afar(const struct credit_params *params,
				   const struct credit_grant *grant, credit_v tag,
				   credit_u32 distance)
{
	return credit_from_afar(params, grant, tag, distance);
}
int nearside_credit_steals(const struct credit_params *params, const struct credit_grant *grant,
			   credit_v own, credit_v other, credit_u32 distance, credit_ns awake)
{
	return credit_steals(params, grant, own, other, distance, awake);
}
int nearside_credit_lets_pass(const struct credit_params *params, const struct credit_grant *grant,
			      credit_v first, credit_v tag, int woken, int beside)
{
	return credit_lets_pass(params, grant, first, tag, woken, beside);
}
int nearside_credit_is_seat(const struct credit_params *params, credit_u64 share, credit_u64 affine,
			    credit_u64 allowed, credit_u32 node)
{
	return credit_is_seat(params, share, affine, allowed, node);
}
credit_u32 nearside_credit_talks(credit_u32 average, int same)
{
	return credit_talks(average, same);
}
int nearside_credit_follows(const struct credit_params *params, int follows, credit_u32 talks,
			    credit_u32 others, credit_ns runs, credit_ns other_runs)
{
	return credit_follows(params, follows, talks, others, runs, other_runs);
}
credit_u32 nearside_credit_candidate(credit_u32 start, credit_u32 index, credit_u32 count)
{
	return credit_candidate(start, index, count);
}
credit_u32 nearside_credit_place(credit_u64 affine, credit_u64 allowed, credit_u32 home,
				 credit_u32 node)
{
	return credit_place(affine, allowed, home, node);
}
int nearside_credit_stays(credit_u32 wait_at_home, credit_u32 cpus_at_home, credit_u32 wait_here,
			  credit_u32 cpus_here)
{
	return credit_stays(wait_at_home, cpus_at_home, wait_here, cpus_here);
}
int nearside_credit_returns(const struct credit_params *params, credit_ns stayed, int room)
{
	return credit_returns(params, stayed, room);
}
int nearside_credit_waits(const struct credit_params *params, credit_ns runs, credit_u32 waiting,
			  credit_u32 cpus, credit_ns waited)
{
	return credit_waits(params, runs, waiting, cpus, waited);
}
int nearside_credit_spreads(const struct credit_params *params, credit_u64 share)
{
	return credit_spreads(params, share);
}
credit_ns nearside_credit_goes_on(const struct credit_params *params, credit_ns average,
				  credit_ns went_on)
{
	return credit_goes_on(params, average, went_on);
}
credit_ns nearside_credit_runs(const struct credit_params *params, credit_ns average, credit_ns ran,
			       int is_first)
{
	return credit_runs(params, average, ran, is_first);
}
int nearside_credit_sleeps_soon(const struct credit_params *params, credit_ns average)
{
	return credit_sleeps_soon(params, average);
}
int nearside_credit_takes_over(const struct credit_params *params, int same_group, credit_u32 place,
			       int same_node, credit_u32 before, credit_u32 waiting,
			       credit_ns looked)
{
	return credit_takes_over(params, same_group, place, same_node, before, waiting, looked);
}
void nearside_credit_cap_refill(const struct credit_params *params, struct credit_cap *cap,
				credit_ns now)
{
	credit_cap_refill(params, cap, now);
}
credit_ns nearside_credit_cap_take(const struct credit_params *params, struct credit_cap *cap,
				   credit_ns wanted)
{
	return credit_cap_take(params, cap, wanted);
}
void nearside_credit_cap_settle(struct credit_cap *cap, credit_ns taken, credit_ns used)
{
	credit_cap_settle(cap, taken, used);
}
void nearside_credit_try(struct credit_trial *trial)
{
	credit_try(trial);
}

/* For the test that Rust's idea of the structs is C's. */
const credit_u64 nearside_credit_sizes[] = {
	sizeof(struct credit_params), sizeof(struct credit_group), sizeof(struct credit_grant),
	sizeof(struct credit_cap),    sizeof(struct credit_trial),
};
