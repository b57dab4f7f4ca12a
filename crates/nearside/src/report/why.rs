//! `nearside why`: the decision behind a domain's home.

use super::{
    answers::{ControlAnswer, StatusAnswer, StepAnswer},
    domain::{CONFINED, origin},
    json,
    place_text::vcpus_per_core,
    replicate::first_of,
    show::{Allowed, moved_by},
    table::{
        Side::{Left, Right},
        listing,
    },
    units::{count, size},
};
use crate::{commands::replicate::wide::Wide, printable::printable};
use nearside_linux::{
    cgroup::{Cgroup, Tree},
    store::{Part, Record},
    usage,
};
use nearside_policy::{
    Affinity, Candidate, CostModel, Decision, Home, Origin, PageSize, SlowDown, text::WIDE, total,
};
use nearside_replicas::original::Place;
use nearside_topology::NodeSet;
use serde::Serialize;
use std::{collections::BTreeMap, path::Path};

/// The recorded decision, and the changes since. `shared` are its wide processes.
pub(crate) fn text(record: &Record, decision: &Decision, shared: &BTreeMap<Place, Wide>) -> String {
    [
        heading(record, decision),
        asked(decision),
        affinity(record.part().home.affinity),
        wide(&record.home_nodes(), shared),
        confined(record.parts().any(|part| part.memory_nodes.is_some())),
        chosen(decision),
        runners_up(decision),
        assumptions(decision),
        since(record, decision),
    ]
    .concat()
}

fn heading(record: &Record, decision: &Decision) -> String {
    let who =
        if decision.request.nodes.is_some() { "an operator chose" } else { "placement chose" };
    format!("{}: {who} {}\n", printable(&record.name), decision.chosen.nodes.named())
}

fn asked(decision: &Decision) -> String {
    let request = &decision.request;
    let pages = match request.page_size {
        PageSize::Base => String::new(),
        PageSize::Huge(bytes) => format!(" in pages of {}", size(bytes)),
    };
    let mut text = format!(
        "  request      {} and {}{pages}, policy {}",
        count(request.vcpus as usize, "vCPU"),
        size(request.memory_bytes),
        request.policy
    );
    if let Some(nodes) = &request.nodes {
        text += &format!(", on {}", nodes.named());
    }
    if !request.near.is_empty() {
        text += &format!(", near {}", request.near.iter().copied().collect::<NodeSet>().named());
    }
    text + "\n"
}

/// The current affinity: a decision is about nodes alone.
fn affinity(affinity: Affinity) -> String {
    let means = match affinity {
        Affinity::Soft => "soft: vCPUs prefer the home",
        Affinity::Hard => "hard: vCPUs run only on the home",
    };
    format!("  affinity     {means}\n")
}

/// The consequence for program text of a home of several nodes, or of processes with threads on
/// several nodes.
fn wide(home: &NodeSet, shared: &BTreeMap<Place, Wide>) -> String {
    match first_of(shared) {
        Some(processes) => format!("  text         {processes}: {WIDE}\n"),
        None if home.len() > 1 => format!("  text         {WIDE}\n"),
        None => String::new(),
    }
}

/// The consequence of confined memory for pages that other domains share.
fn confined(is_confined: bool) -> String {
    if is_confined { format!("  shared pages {CONFINED}\n") } else { String::new() }
}

fn chosen(decision: &Decision) -> String {
    let Candidate { slow_down, parts, spilled_bytes, free_after_bytes, .. } = &decision.chosen;
    let mut text = format!(
        "  slow-down    {slow_down} predicted = CPUs {} x memory {} x devices {}\n  \
         leaves       {} available there\n",
        parts.cpu,
        parts.memory,
        parts.devices,
        size(*free_after_bytes)
    );
    if *spilled_bytes > 0 {
        text += &format!(
            "  spills       {} do not fit and come from other nodes\n",
            size(*spilled_bytes)
        );
    }
    let all = if decision.exhaustive { ", all there are" } else { " found by search" };
    text += &format!("  compared     {}{all}\n", count(decision.candidates as usize, "candidate"));
    text + &decision
        .left_out
        .lines()
        .iter()
        .map(|line| format!("  left out     {line}\n"))
        .collect::<String>()
}

fn runners_up(decision: &Decision) -> String {
    let columns = [
        ("nodes", Left),
        ("slow-down", Right),
        ("CPUs", Right),
        ("memory", Right),
        ("devices", Right),
        ("leaves", Right),
        ("why not", Left),
    ];
    let operator = decision.request.nodes.is_some();
    let row = |candidate: &Candidate| {
        vec![
            candidate.nodes.to_string(),
            candidate.slow_down.to_string(),
            candidate.parts.cpu.to_string(),
            candidate.parts.memory.to_string(),
            candidate.parts.devices.to_string(),
            super::units::short(candidate.free_after_bytes),
            why_not(candidate, &decision.chosen, operator),
        ]
    };
    let title = if operator { "Placement would have chosen" } else { "Runners-up" };
    match decision.runners_up.is_empty() {
        // The cells of a virtual machine are compared as arrangements, which are not kept.
        true if decision.candidates > 1 => "\nThe other candidates are not recorded.\n".into(),
        true => "\nThere was no other candidate.\n".into(),
        false => {
            format!(
                "\n{title}\n{}",
                listing(&columns, &decision.runners_up.iter().map(row).collect::<Vec<_>>())
            )
        }
    }
}

/// The step of the comparison in which a candidate lost: slow-down, vCPUs per core, free memory,
/// node numbers.
fn why_not(candidate: &Candidate, chosen: &Candidate, operator: bool) -> String {
    if operator && candidate.slow_down <= chosen.slow_down {
        let loss = percent_slower(chosen.slow_down, candidate.slow_down);
        return match candidate.slow_down == chosen.slow_down {
            true => "as fast; the operator chose".into(),
            false => format!("the chosen one is {loss} slower; the operator chose"),
        };
    }
    if candidate.slow_down > chosen.slow_down {
        let (mine, best) = (&candidate.parts, &chosen.parts);
        let parts = [
            ("CPUs", mine.cpu, best.cpu),
            ("memory", mine.memory, best.memory),
            ("devices", mine.devices, best.devices),
        ];
        let worse = parts.into_iter().filter(|(_, mine, best)| mine > best);
        let words: Vec<_> = worse
            .map(|(name, mine, best)| format!("{name} {}", percent_slower(mine, best)))
            .collect();
        let spills = match candidate.spilled_bytes {
            0 => String::new(),
            bytes => format!("; {} would not fit", size(bytes)),
        };
        return format!("slower: {}{spills}", words.join(", "));
    }
    if let Some([mine, best]) = vcpus_per_core(candidate, chosen) {
        return format!("as fast; busier: {mine} vCPUs per core, not {best}");
    }
    match candidate.free_after_bytes < chosen.free_after_bytes {
        true => format!(
            "as fast; leaves {} less",
            size(chosen.free_after_bytes - candidate.free_after_bytes)
        ),
        false => "as good; lower numbers first".into(),
    }
}

fn percent_slower(slow: SlowDown, fast: SlowDown) -> String {
    if slow.is_endless() {
        return "endlessly".into();
    }
    let percent = (slow.factor() / fast.factor() - 1.0) * 100.0;
    if percent < 1.0 { format!("{percent:.2} %") } else { format!("{percent:.0} %") }
}

fn assumptions(decision: &Decision) -> String {
    // Only virtual machines with cells have a share between cells.
    let CostModel {
        smt_gain,
        crowding,
        memory_share,
        device_share,
        cell_share: _,
        vcpu_bandwidth_mb_s,
    } = decision.model;
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    format!(
        "\nThe prediction assumes\n  \
         a second busy thread adds {} to what a core does\n  \
         work taken from other domains' CPUs is lost, and {} more for each vCPU that \
         waits there\n  \
         a vCPU waits for local memory {} of its time, and uses {vcpu_bandwidth_mb_s:.0} MB/s of \
         it\n  \
         a vCPU waits for local devices {} of its time, where any were asked for\n",
        percent(smt_gain),
        percent(crowding),
        percent(memory_share),
        percent(device_share)
    )
}

/// The differences between the domain's current home and claim and the decision.
fn since(record: &Record, decision: &Decision) -> String {
    let mut changes = Vec::new();
    let Part { home, claim, moving_to, mover, .. } = record.part();
    if home.nodes != decision.chosen.nodes {
        changes.push(format!("the home is now {} ({})", home.nodes.named(), origin(home.origin)));
    } else if home.origin == Origin::Explicit && decision.request.nodes.is_none() {
        changes.push(format!("an operator confirmed {}", home.nodes.named()));
    }
    if let Some(claim) = claim.as_ref().filter(|claim| **claim != decision.chosen.claim) {
        changes.push(format!(
            "the claim is now {} and {} on {}",
            size(claim.total_bytes()),
            count(total(&claim.vcpus) as usize, "vCPU"),
            claim.nodes().named()
        ));
    }
    match (moving_to, mover) {
        (None, _) => {}
        (Some(nodes), Some(mover)) => {
            changes.push(format!("its memory moves to {} ({})", nodes.named(), moved_by(mover)));
        }
        (Some(nodes), None) => {
            changes.push(format!("a move of its memory to {} was interrupted", nodes.named()));
        }
    }
    let lines: String = changes.iter().map(|change| format!("  {change}\n")).collect();
    if lines.is_empty() { "\nNo change since.\n".into() } else { format!("\nSince then\n{lines}") }
}

/// The facts about a domain, and the daemon's answer if one runs.
#[derive(Debug, Serialize)]
pub(crate) struct Controlled<T> {
    #[serde(flatten)]
    pub(crate) told: T,
    #[serde(flatten)]
    pub(crate) control: Option<ControlAnswer>,
}

/// The status of a domain in the control loop, and the steps that concern it.
pub(crate) fn control_text(control: &Option<ControlAnswer>) -> String {
    let Some(ControlAnswer { status, status_of_cells, steps }) = control else {
        return String::new();
    };
    let own = status.iter().map(|status| ("status".to_owned(), status));
    let of_cells = status_of_cells.iter().map(|(cell, status)| (format!("cell {cell}"), status));
    let line = |(label, status): (String, &StatusAnswer)| {
        format!("  {label:<13}{}\n", printable(&status.text))
    };
    let statuses: String = own.chain(of_cells).map(line).collect();
    let step = |step: &StepAnswer| {
        format!("  does         {} ({})\n", printable(&step.text), printable(&step.because))
    };
    let steps: String = steps.iter().map(step).collect();
    format!("\nControl loop\n{statuses}{steps}")
}

/// Facts about a cgroup that Nearside did not start, with or without a home.
#[derive(Debug, Serialize)]
pub(crate) struct Unplaced {
    /// Its path.
    pub(crate) name: String,
    /// Its path.
    pub(crate) cgroup: String,
    /// Its home, if it has one.
    #[serde(serialize_with = "json::home")]
    pub(crate) home: Option<Home>,
    /// The pattern that found it.
    pub(crate) found_by: Option<String>,
    /// The limits of its cgroup.
    pub(crate) allowed: Allowed,
    /// The memory policies of its mappings, in the kernel's words, with the bytes under each.
    pub(crate) policies: std::collections::BTreeMap<String, u64>,
}

impl Unplaced {
    /// Reads the limits of a group and the mappings of all its processes.
    pub(crate) fn read(tree: &Tree, proc: &Path, group: &Cgroup, record: Option<&Record>) -> Self {
        let policies = usage::mapped(group, proc).policies;
        Self {
            name: group.path().into(),
            cgroup: group.path().into(),
            home: record.map(Record::whole_home),
            found_by: record.and_then(|record| record.found_by.clone()),
            allowed: Allowed::read(tree, group),
            policies: policies.into_iter().map(|(policy, bytes)| (policy, total(&bytes))).collect(),
        }
    }
}

/// The facts as text.
/// The text without a decision. `shared` are the wide processes.
pub(crate) fn unplaced_text(unplaced: &Unplaced, shared: &BTreeMap<Place, Wide>) -> String {
    let Allowed { cpus, cpus_effective, mems, mems_effective, .. } = &unplaced.allowed;
    let bound = |own: &Option<String>, effective: &Option<String>, what| match (
        own.as_deref(),
        effective,
    ) {
        (Some(""), Some(effective)) => {
            format!("its cpuset sets no {what}: {effective}, as its parent")
        }
        (Some(_), Some(effective)) => format!("its cpuset allows only {what} {effective}"),
        (None, Some(effective)) => format!("it has no cpuset of its own: {effective}"),
        (_, None) => format!("any {what}: the cgroup tree has no cpuset controller"),
    };
    let policies: Vec<String> = unplaced
        .policies
        .iter()
        .map(|(policy, bytes)| format!("{policy} ({})", size(*bytes)))
        .collect();
    let policies = match policies.is_empty() {
        true => "none that is readable".into(),
        false => policies.join(", "),
    };
    let why = match (&unplaced.home, &unplaced.found_by) {
        (Some(home), Some(pattern)) => format!(
            "found by the pattern {}\n  home         {} ({}); `nearside run` made no decision \
             for it",
            printable(pattern),
            home.nodes.named(),
            origin(home.origin)
        ),
        _ => "no home: Nearside did not start it".into(),
    };
    format!(
        "{}: {why}\n  CPUs         {}\n  memory       {}\n  policies     {policies}\n{}{}",
        printable(&unplaced.cgroup),
        bound(cpus, cpus_effective, "CPUs"),
        bound(mems, mems_effective, "nodes"),
        wide(&unplaced.home.as_ref().map(|home| home.nodes.clone()).unwrap_or_default(), shared),
        confined(unplaced.allowed.confines()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::domain::examples::{self, nodes};
    use nearside_topology::NodeId;

    /// No wide processes.
    fn none() -> BTreeMap<Place, Wide> {
        BTreeMap::new()
    }

    #[test]
    fn wide_processes_and_homes_are_told_once() {
        let place = |path: &str| Place { image: None, path: path.into() };
        let process = Wide { process: 47, nodes: vec![NodeId(0), NodeId(2)], others: 1 };
        let shared = [(place("/a"), process.clone()), (place("/b"), process)].into();
        let processes = "/a: process 47 on nodes 0,2 and another one like it, and 1 more file: ";
        for (home, shared, who) in [
            (1, &none(), None),
            (2, &none(), Some("")),
            (1, &shared, Some(processes)),
            (2, &shared, Some(processes)),
        ] {
            let line = who.map(|who| format!("  text         {who}{WIDE}\n")).unwrap_or_default();
            assert_eq!(wide(&(0..home).map(NodeId).collect(), shared), line);
        }
    }

    #[test]
    fn decision_by_placement() {
        let record = examples::record();
        insta::assert_snapshot!(
            "why",
            text(&record, record.part().decision.as_ref().unwrap(), &none())
        );
    }

    #[test]
    fn confined_memory_has_a_consequence_for_other_domains() {
        let mut record = examples::record();
        let decision = record.part().decision.clone().unwrap();
        assert!(text(&record, &decision, &none()).contains(CONFINED));
        record.part_mut().memory_nodes = None;
        assert!(!text(&record, &decision, &none()).contains(CONFINED));
    }

    #[test]
    fn decision_by_an_operator_and_later_changes() {
        let mut record = examples::record();
        let mut decision = record.part_mut().decision.take().unwrap();
        decision.request.nodes = Some(nodes(&[3]));
        decision.chosen = examples::candidate(&[3], [1.25, 1.1, 1.0], 900);
        record.part_mut().home = Home {
            nodes: nodes(&[0, 2]),
            origin: Origin::Explicit,
            affinity: Affinity::Hard,
            ..record.part().home
        };
        record.part_mut().claim = Some(examples::candidate(&[0, 2], [1.0; 3], 0).claim);
        record.part_mut().moving_to = Some(nodes(&[0, 2]));
        decision.left_out = examples::left_out();
        insta::assert_snapshot!("why_explicit", text(&record, &decision, &none()));
    }

    #[test]
    fn candidate_loses_in_one_step_of_the_comparison() {
        let chosen = examples::candidate(&[1], [1.0; 3], 1000);
        let cases = [
            (examples::candidate(&[2], [1.0; 3], 1000), false, "as good; lower numbers first"),
            (examples::candidate(&[0], [1.0; 3], 900), false, "as fast; leaves 100 MiB less"),
            (
                Candidate {
                    vcpus_per_core_ppm: Some(1_500_000),
                    ..examples::candidate(&[0], [1.0; 3], 1100)
                },
                false,
                "as fast; busier: 1.50 vCPUs per core, not 0.50",
            ),
            (
                Candidate {
                    vcpus_per_core_ppm: Some(500_003),
                    ..examples::candidate(&[0], [1.0; 3], 1100)
                },
                false,
                "as fast; busier: 0.500003 vCPUs per core, not 0.500000",
            ),
            (
                Candidate { vcpus_per_core_ppm: None, ..examples::candidate(&[0], [1.0; 3], 900) },
                false,
                "as fast; leaves 100 MiB less",
            ),
            (
                examples::candidate(&[0], [1.0, 1.25, 1.001], 9),
                false,
                "slower: memory 25 %, devices 0.10 %",
            ),
            (examples::candidate(&[0], [1.0; 3], 900), true, "as fast; the operator chose"),
            (
                examples::candidate(&[0], [0.5, 1.0, 1.0], 900),
                true,
                "the chosen one is 100 % slower; the operator chose",
            ),
        ];
        for (candidate, operator, expected) in cases {
            assert_eq!(why_not(&candidate, &chosen, operator), expected);
        }
    }

    #[test]
    fn decision_without_vcpus_per_core_is_read() {
        let record = examples::record();
        let mut written = serde_json::to_value(record.part().decision.as_ref().unwrap()).unwrap();
        written["chosen"].as_object_mut().unwrap().remove("vcpus_per_core_ppm").unwrap();
        let decision: Decision = serde_json::from_value(written).unwrap();
        assert_eq!(decision.chosen.vcpus_per_core_ppm, None);
        assert!(text(&record, &decision, &none()).contains("as fast; leaves 500 MiB less"));
    }

    #[test]
    fn cgroup_without_a_home_shows_its_limits() {
        let some = |text: &str| Some(text.to_owned());
        let allowed = Allowed {
            cpus: some("0-1"),
            cpus_effective: some("0-1"),
            mems: some(""),
            mems_effective: some("0-3"),
            ..Allowed::default()
        };
        let policies = [("bind:1".to_owned(), 1 << 20), ("default".to_owned(), 4096)].into();
        let path = || "/machine.slice/vm.scope".to_owned();
        let mut unplaced = Unplaced {
            name: path(),
            cgroup: path(),
            home: None,
            found_by: None,
            allowed,
            policies,
        };
        insta::assert_snapshot!("why_unplaced", unplaced_text(&unplaced, &none()));
        unplaced.home = Some(examples::record().part().home.clone());
        unplaced.found_by = Some("machine.slice/*".into());
        insta::assert_snapshot!("why_found", unplaced_text(&unplaced, &none()));
        assert!(!unplaced_text(&unplaced, &none()).contains(CONFINED));
        unplaced.allowed.mems = some("1");
        assert!(
            unplaced_text(&unplaced, &none()).ends_with(&format!("  shared pages {CONFINED}\n"))
        );
    }
}
