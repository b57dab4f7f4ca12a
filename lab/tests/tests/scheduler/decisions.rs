//! The kernel's build of the decisions against the host's.

use nearside_credit::{self as credit, Cap, Grant, Group, Params, Trial};

/// A cheap source of numbers, large and small ones alike.
struct Random(u64);

impl Random {
    fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> (self.0 % 64)
    }

    fn trial(&mut self) -> Trial {
        let mut n = || self.number();
        Trial {
            decision: n() % credit::DECISIONS,
            params: Params {
                slice_ns: n() >> 24,
                slice_min_ns: n() >> 24,
                slice_max_ns: n() >> 24,
                wake_bound_ns: n() >> 16,
                lag_bound_ns: n() >> 16,
                ahead_bound_ns: n() >> 16,
                preempt_ns: n() >> 16,
                steal_ns: n() >> 16,
                balance_ns: n(),
                stay_ns: n(),
                debt_bound_ns: n(),
                handover_ns: n(),
                queue_waits_ns: n(),
                patience_ns: n(),
                note_ns: n(),
                cpus: n() as u32,
                steal_slices: n() as u32,
            },
            group: Group {
                vtime: n(),
                front: n(),
                share: n(),
                runnable: n() as u32,
                reserved: n() as u32,
            },
            grant: Grant { tag: n(), reserved: n(), slice: n(), slice_ns: n() },
            cap: Cap {
                quota_ns: n() >> 24,
                period_ns: n() >> 24,
                burst_ns: n() >> 24,
                start_ns: n(),
                budget_ns: (n() >> 8) as i64 - (n() >> 8) as i64,
            },
            arguments: [n(), n(), n(), n(), n()],
            answer: 0,
        }
    }
}

#[test]
fn the_kernel_decides_as_the_host_does() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let questions: Vec<Trial> = (0..100_000).map(|_| random.trial()).collect();
    let mut here = questions.clone();
    here.iter_mut().for_each(credit::try_out);
    let mut there = questions.clone();
    nearside_scheduler::try_in_kernel(&mut there).unwrap();
    for ((question, here), there) in questions.iter().zip(&here).zip(&there) {
        assert_eq!(here, there, "{question:?}");
    }
}
