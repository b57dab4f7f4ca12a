/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Every decision as a function from numbers to numbers, so that the kernel's build and the host's
 * can be asked the same questions and their answers compared.
 */
#ifndef NEARSIDE_TRIAL_H
#define NEARSIDE_TRIAL_H

#include "credit.h"

enum { CREDIT_DECISIONS = 38 };

struct credit_trial {
	credit_u64 decision; /* below CREDIT_DECISIONS */
	struct credit_params params;
	struct credit_group group;
	struct credit_grant grant;
	struct credit_cap cap;
	credit_u64 arguments[5];
	credit_u64 answer;
};

CREDIT_INLINE void credit_try(struct credit_trial *trial)
{
	credit_u64 a = trial->arguments[0], b = trial->arguments[1], c = trial->arguments[2],
		   d = trial->arguments[3], e = trial->arguments[4];

	switch (trial->decision) {
	case 0:
		trial->answer = (credit_u64)credit_before(a, b);
		break;
	case 1:
		trial->answer = credit_charge(a, b);
		break;
	case 2:
		trial->answer = credit_share(a, b, c);
		break;
	case 3:
		trial->answer = credit_now(a, b, c & 1);
		break;
	case 4:
		trial->answer = credit_slice(&trial->params, (credit_u32)a);
		break;
	case 5:
		trial->answer = credit_tag(&trial->params, &trial->group, a, b & 1);
		break;
	case 6:
		credit_reserve(&trial->group, a, b, c, &trial->grant);
		break;
	case 7:
		credit_settle(&trial->group, &trial->grant, a);
		break;
	case 8:
		trial->answer = (credit_u64)credit_preempts(&trial->params, a, b);
		break;
	case 9:
		trial->answer = (credit_u64)credit_steals(&trial->params, &trial->grant, a, b,
							  (credit_u32)c, d);
		break;
	case 10:
		trial->answer = credit_place(a, b, (credit_u32)c, (credit_u32)d);
		break;
	case 11:
		trial->answer = (credit_u64)credit_returns(&trial->params, a, b & 1);
		break;
	case 12:
		credit_cap_refill(&trial->params, &trial->cap, a);
		break;
	case 13:
		trial->answer = credit_cap_take(&trial->params, &trial->cap, a);
		credit_cap_settle(&trial->cap, b, c);
		break;
	case 14:
		trial->answer = credit_from_afar(&trial->params, &trial->grant, a, (credit_u32)b);
		break;
	case 15:
		trial->answer = credit_resumes(&trial->params, a, b & 1);
		break;
	case 16:
		trial->answer = credit_span(&trial->params, a);
		break;
	case 17:
		trial->answer = credit_own_charge(a, (credit_u32)b);
		break;
	case 18:
		trial->answer = credit_own_rejoins(&trial->params, a, b);
		break;
	case 19:
		trial->answer = credit_own_lag(&trial->params, a, b);
		break;
	case 20:
		trial->answer = (credit_u64)credit_stays((credit_u32)a, (credit_u32)b,
							 (credit_u32)c, (credit_u32)d);
		break;
	case 21:
		trial->answer = credit_ahead(&trial->params, &trial->group);
		break;
	case 22:
		trial->answer = (credit_u64)credit_lets_pass(&trial->params, &trial->grant, a, b,
							     c & 1, c & 2);
		break;
	case 23:
		trial->answer = credit_candidate((credit_u32)a, (credit_u32)b, (credit_u32)c);
		break;
	case 24:
		trial->answer = credit_goes_on(&trial->params, a, b);
		break;
	case 25:
		trial->answer = (credit_u64)credit_sleeps_soon(&trial->params, a);
		break;
	case 26:
		trial->answer = (credit_u64)credit_takes_over(&trial->params, a & 1, (credit_u32)b,
							      a & 2, (credit_u32)c,
							      (credit_u32)(c >> 32), d);
		break;
	case 27:
		trial->answer = (credit_u64)credit_spreads(&trial->params, a);
		break;
	case 28:
		trial->answer = (credit_u64)credit_waits(&trial->params, a, (credit_u32)b,
							 (credit_u32)c, d);
		break;
	case 29:
		trial->answer = (credit_u64)credit_is_seat(&trial->params, a, b, c, (credit_u32)d);
		break;
	case 30:
		trial->answer = credit_talks((credit_u32)a, b & 1);
		break;
	case 31:
		trial->answer = (credit_u64)credit_follows(&trial->params, d & 1, (credit_u32)c,
							   (credit_u32)(c >> 32), a, b);
		break;
	case 32:
		trial->answer = credit_uses(a, b, c & 1);
		break;
	case 33:
		trial->answer = credit_runs(&trial->params, a, b, c & 1);
		break;
	case 34:
		trial->answer = credit_own_lead(&trial->params, &trial->group, a, b, c, d);
		break;
	case 35:
		trial->answer = (credit_u64)credit_own_less(&trial->params, a, b);
		break;
	case 36:
		trial->answer =
			(credit_u64)credit_preempts_own(&trial->params, a, b, c, d, e);
		break;
	case 37:
		trial->answer = credit_own_now(a, b, c, d);
		break;
	}
}

#endif
