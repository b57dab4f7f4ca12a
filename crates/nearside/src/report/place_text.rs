//! A decision of placement as tables, and its reasons as sentences.

use super::{
    table::{Side, table, wrapped},
    units::{count, size},
};
use nearside_policy::{Candidate, Decision, Observation, PageSize, SlowDown};
use nearside_topology::NodeId;

/// The whole report.
pub(crate) fn report(decision: &Decision, observation: &Observation) -> String {
    let chosen = &decision.chosen;
    let mut report = format!(
        "home: {}, predicted slow-down {} ({}, {}, {} of {})\n",
        chosen.nodes.named(),
        chosen.slow_down,
        decision.request.policy,
        count(decision.request.vcpus as usize, "vCPU"),
        size(chosen.claim.total_bytes()),
        pages(decision.request.page_size),
    );
    report += &claim(chosen, observation);
    report += &candidates(decision);
    report += "\nWhy\n";
    for reason in reasons(decision) {
        let words: Vec<String> = reason.split(' ').map(Into::into).collect();
        report += &format!("  - {}\n", wrapped(&words, 4));
    }
    report
}

fn pages(page_size: PageSize) -> String {
    match page_size {
        // The size of base pages differs between kernels.
        PageSize::Base => "base pages".into(),
        PageSize::Huge(bytes) => format!("{} pages", size(bytes)),
    }
}

fn claim(chosen: &Candidate, observation: &Observation) -> String {
    use Side::Right;
    let columns = [
        ("node", Right),
        ("vCPUs", Right),
        ("of cores", Right),
        ("busy", Right),
        ("memory", Right),
        ("of free", Right),
    ];
    let row = |node: NodeId| {
        vec![
            node.to_string(),
            chosen.claim.vcpus.get(&node).copied().unwrap_or(0).to_string(),
            observation.topology.cores_of(node).to_string(),
            observation.claimed_vcpus(node).to_string(),
            size(chosen.claim.bytes.get(&node).copied().unwrap_or(0)),
            size(observation.available_bytes(node, chosen.claim.page_size)),
        ]
    };
    let rows: Vec<_> = chosen.claim.nodes().union(&chosen.nodes).iter().map(row).collect();
    table("Claim", &columns, &rows)
}

fn candidates(decision: &Decision) -> String {
    use Side::{Left, Right};
    let columns = [
        ("", Left),
        ("nodes", Left),
        ("slow-down", Right),
        ("= CPU", Right),
        ("x memory", Right),
        ("x devices", Right),
        ("from others", Right),
        ("available", Right),
    ];
    let row = |(place, candidate): (String, &Candidate)| {
        vec![
            place,
            candidate.nodes.to_string(),
            candidate.slow_down.to_string(),
            candidate.parts.cpu.to_string(),
            candidate.parts.memory.to_string(),
            candidate.parts.devices.to_string(),
            size(candidate.spilled_bytes),
            size(candidate.free_after_bytes),
        ]
    };
    let others = decision.runners_up.iter().enumerate();
    let others = others.map(|(at, other)| {
        (format!("{}.", at + 1 + usize::from(decision.request.nodes.is_none())), other)
    });
    let rows: Vec<_> =
        std::iter::once(("chosen".into(), &decision.chosen)).chain(others).map(row).collect();
    table("Candidates", &columns, &rows)
}

/// The reasons for the home, as sentences with figures.
pub(crate) fn reasons(decision: &Decision) -> Vec<String> {
    let chosen = &decision.chosen;
    let mut reasons = Vec::new();
    let seen = match (decision.exhaustive, decision.candidates) {
        (true, 1) => "there is only one set of nodes".into(),
        (true, sets) => format!("compared all {sets} sets of nodes"),
        (false, sets) => format!("searched {sets} sets of nodes"),
    };
    match (&decision.request.nodes, decision.runners_up.first()) {
        (Some(_), None) => {
            reasons.push("the operator chose these nodes; no other set is possible".into())
        }
        (Some(_), Some(other)) => reasons.push(format!(
            "the operator chose these nodes; placement would have chosen {}: {}",
            other.nodes.named(),
            against(other, chosen)
        )),
        (None, None) => reasons.push(format!("{seen}; no other is possible")),
        (None, Some(other)) => reasons.push(format!(
            "{seen}; the next best is {}: {}",
            other.nodes.named(),
            against(other, chosen)
        )),
    }
    let part = |part: SlowDown, what: &str| {
        let known = (part > SlowDown::NONE).then_some(part);
        known.map(|part| match part.is_endless() {
            true => "no CPU of its home is online".into(),
            false => format!("{what}: {part} times as long"),
        })
    };
    reasons
        .extend(part(chosen.parts.cpu, "vCPUs share cores with each other or with other domains"));
    reasons.extend(part(chosen.parts.memory, "memory is remote, or its bandwidth is exhausted"));
    reasons.extend(part(chosen.parts.devices, "devices are remote"));
    if chosen.spilled_bytes > 0 {
        reasons.push(format!(
            "{} do not fit on {} and come from other nodes",
            size(chosen.spilled_bytes),
            chosen.nodes.named()
        ));
    }
    reasons.extend(decision.left_out.lines().into_iter().map(|line| format!("left out: {line}")));
    let model = decision.model;
    reasons.push(format!(
        "assumed: a vCPU waits {:.0} % of its time for memory, a busy SMT sibling adds {:.0} % of \
         a core, a vCPU uses {:.0} MB/s",
        model.memory_share * 100.0,
        model.smt_gain * 100.0,
        model.vcpu_bandwidth_mb_s,
    ));
    reasons
}

/// vCPUs per core on each of two candidates, with as many digits as show the difference; none if a
/// figure is unknown or both are equal.
pub(crate) fn vcpus_per_core(one: &Candidate, other: &Candidate) -> Option<[String; 2]> {
    let both = [one.vcpus_per_core_ppm?, other.vcpus_per_core_ppm?];
    let in_digits = |digits| both.map(|ppm| format!("{:.digits$}", ppm as f64 / 1e6));
    [2, 4, 6].map(in_digits).into_iter().find(|[one, other]| one != other)
}

// The consequence of `other` in place of `chosen`.
fn against(other: &Candidate, chosen: &Candidate) -> String {
    match (other.slow_down.is_endless(), chosen.slow_down.is_endless()) {
        (true, false) => return "none of its CPUs is online".into(),
        (false, true) => return "it has CPUs that are online".into(),
        _ => {}
    }
    let percent = (other.slow_down.factor() / chosen.slow_down.factor() - 1.0) * 100.0;
    if other.slow_down > chosen.slow_down {
        return format!("{percent:.1} % slower");
    }
    if other.slow_down < chosen.slow_down {
        return format!("{:.1} % faster", -percent);
    }
    if let Some([of_other, of_chosen]) = vcpus_per_core(other, chosen) {
        return format!("as fast, {of_other} vCPUs per core against {of_chosen}");
    }
    let (of_other, of_chosen) = (other.free_after_bytes, chosen.free_after_bytes);
    match (size(of_other), size(of_chosen)) {
        _ if of_other == of_chosen => {
            "as fast, with as much memory left; lowest node numbers first".into()
        }
        // The rounded figures are equal, but the exact difference decides.
        (left, as_much) if left == as_much => {
            format!("as fast, {of_other} bytes left against {of_chosen}")
        }
        (left, more) => format!("as fast, {left} left against {more}"),
    }
}
