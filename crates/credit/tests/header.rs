//! The promises of `credit.h` about itself, so that BPF can compile it and the kernel can run it
//! with any arguments.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use nearside_credit::{self as credit, Cap, DECISIONS, Grant, Group, Params, Trial};
use proptest::prelude::*;

const HEADER: &str = include_str!("../src/credit.h");
const TRIAL: &str = include_str!("../src/trial.h");

/// The header without its comments.
fn code() -> String {
    let mut parts = HEADER.split("/*");
    let first = parts.next().unwrap().to_owned();
    first + &parts.map(|part| part.split_once("*/").expect("a comment ends").1).collect::<String>()
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

/// The names of all functions in the header.
fn decisions(code: &str) -> Vec<&str> {
    let defined = code
        .split("CREDIT_INLINE ")
        .skip(1)
        .filter_map(|rest| rest.split_once('(')?.0.split(' ').next_back());
    defined.filter(|name| name.starts_with("credit_")).collect()
}

#[test]
fn the_header_needs_nothing_and_never_loops() {
    let code = code();
    for word in ["include", "__int128", "for", "while", "do", "goto", "float", "double"] {
        assert!(!words(&code).any(|other| other == word), "{word}");
    }
}

#[test]
fn the_kernel_is_asked_about_every_decision() {
    let code = code();
    let decisions = decisions(&code);
    assert!(decisions.len() >= 18, "{decisions:?}");
    for name in decisions {
        assert!(words(TRIAL).any(|other| other == name), "{name} is not compared");
    }
    assert_eq!(TRIAL.matches("\tcase ").count() as u64, DECISIONS);
    assert!(TRIAL.contains(&format!("CREDIT_DECISIONS = {DECISIONS} ")));
}

/// Numbers of every magnitude, and the ends of the range more often than chance has it.
fn numbers() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => Just(0),
        1 => prop::sample::select(vec![1, u64::from(u32::MAX), 1 << 63, u64::MAX]),
        4 => (any::<u64>(), 0..64_u32).prop_map(|(number, bits)| number >> bits),
    ]
}

fn trials() -> impl Strategy<Value = Trial> {
    prop::collection::vec(numbers(), 29).prop_map(|n| Trial {
        decision: 0,
        params: Params {
            slice_ns: n[0],
            slice_min_ns: n[1],
            slice_max_ns: n[2],
            wake_bound_ns: n[3],
            lag_bound_ns: n[4],
            ahead_bound_ns: n[5],
            preempt_ns: n[6],
            steal_ns: n[7],
            balance_ns: n[8],
            stay_ns: n[8],
            debt_bound_ns: n[9],
            handover_ns: n[9],
            queue_waits_ns: n[6],
            patience_ns: n[10],
            note_ns: n[8],
            cpus: n[10] as u32,
            steal_slices: n[0] as u32,
        },
        group: Group {
            vtime: n[11],
            front: n[27],
            share: n[12],
            runnable: n[13] as u32,
            reserved: n[14] as u32,
        },
        grant: Grant { tag: n[15], reserved: n[16], slice: n[26], slice_ns: n[17] },
        cap: Cap {
            quota_ns: n[18],
            period_ns: n[19],
            burst_ns: n[20],
            start_ns: n[21],
            budget_ns: n[22] as i64,
        },
        arguments: [n[23], n[24], n[25], n[0], n[28]],
        answer: 0,
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(4096)
    })]

    /// A division by 0 would end the test by a signal; in BPF it gives 0.
    #[test]
    fn every_decision_survives_every_number(trial in trials()) {
        for decision in 0..DECISIONS {
            let (mut once, mut again) = (Trial { decision, ..trial }, Trial { decision, ..trial });
            credit::try_out(&mut once);
            credit::try_out(&mut again);
            prop_assert_eq!(once, again);
        }
    }
}
