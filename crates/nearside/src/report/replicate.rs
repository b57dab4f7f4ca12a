//! `nearside replicate status`: files and their copies.

use super::{
    table::{
        Side::{Left, Right},
        listing,
    },
    units::size,
};
use crate::{commands::replicate::wide::Wide, printable::printable};
use nearside_linux::escape;
use nearside_policy::{ByNode, replication::CopyRefusal, text::WIDE};
use nearside_replicas::{
    original::Place,
    protocol::{Attached, FileStatus, LeftAlone, Status},
};
use nearside_topology::{NodeId, NodeSet};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The JSON of the report.
#[derive(Debug, Serialize)]
pub(crate) struct StatusJson<'a> {
    files: Vec<FileJson<'a>>,
    kept_bytes: &'a ByNode,
}

#[derive(Debug, Serialize)]
struct FileJson<'a> {
    #[serde(flatten)]
    status: &'a FileStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    wide: Option<&'a Wide>,
}

impl<'a> StatusJson<'a> {
    pub(crate) fn new(status: &'a Status, wide: &'a BTreeMap<Place, Wide>) -> Self {
        let file = |status: &'a FileStatus| FileJson { status, wide: wide.get(&status.place) };
        let files = status.files.iter().map(file).collect();
        Self { files, kept_bytes: &status.kept_bytes }
    }
}

/// The price of copies before they are made.
#[derive(Debug, Serialize)]
pub(crate) struct PriceJson {
    /// The files that could have copies.
    pub(crate) files: usize,
    /// The memory of the copies, by the node that holds them.
    pub(crate) bytes: ByNode,
    /// The most memory for copies, by node, where the replicator has no `--budget`.
    pub(crate) budget_bytes: ByNode,
}

/// The price for people.
pub(crate) fn price_text(price: &PriceJson) -> String {
    let columns = [("node", Right), ("files", Right), ("copies", Right), ("budget", Right)];
    let row = |(node, bytes): (&NodeId, &u64)| {
        let budget = price.budget_bytes.get(node).copied().unwrap_or(0);
        vec![node.to_string(), price.files.to_string(), size(*bytes), size(budget)]
    };
    let rows: Vec<_> = price.bytes.iter().map(row).collect();
    listing(&columns, &rows)
}

/// The report for people.
pub(crate) fn status_text(status: &Status, wide: &BTreeMap<Place, Wide>) -> String {
    let mut text = files_text(&status.files, wide);
    if !status.kept_bytes.is_empty() {
        let kept = status.kept_bytes.iter();
        let kept = kept.map(|(node, bytes)| format!("{} on node {node}", size(*bytes)));
        let kept = kept.collect::<Vec<_>>().join(", ");
        text += &format!("\nProcesses keep memory of copies that have gone: {kept}\n");
    }
    text
}

fn files_text(files: &[FileStatus], wide: &BTreeMap<Place, Wide>) -> String {
    if files.is_empty() {
        return "No file has copies. `nearside replicate add PATH` gives it some.\n".into();
    }
    let columns = [
        ("file", Left),
        ("size", Right),
        ("state", Left),
        ("node", Right),
        ("copy", Right),
        ("users", Right),
        ("gain", Right),
    ];
    let rows: Vec<_> = files.iter().flat_map(rows).collect();
    let mut text = listing(&columns, &rows);
    if files.iter().any(|file| file.automatic) {
        text += "\n* the daemon asked for it (replicate_text)\n";
    }
    let mut told: Vec<_> = files.iter().flat_map(reasons).collect();
    told.extend(shared(files, wide));
    if !told.is_empty() {
        text += "\n";
        text += &told.join("");
    }
    text
}

fn plural(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

fn files_with_copies(files: usize) -> String {
    match files {
        0 => "no file has a copy in its mount namespace".into(),
        1 => "1 file has a copy in its mount namespace".into(),
        _ => format!("{files} files have copies in its mount namespace"),
    }
}

/// The outcome for running processes, for people.
pub(crate) fn attached_text(attached: &Attached) -> String {
    let files = files_with_copies(attached.copies);
    let mut text = match attached.processes {
        0 if attached.left_alone.is_empty() && attached.copies > 0 => {
            format!("{files}; no process there maps text of an original\n")
        }
        0 => format!("{files}; no process was changed\n"),
        number => format!(
            "{} of text in {} now comes from copies; {files}; the longest stop took {}.{} ms\n",
            size(attached.bytes),
            plural(number, "process", "processes"),
            attached.stopped_us / 1000,
            attached.stopped_us % 1000 / 100,
        ),
    };
    for LeftAlone { why, again, .. } in &attached.left_alone {
        let for_now = if *again { " for now" } else { "" };
        text += &format!("left alone{for_now}: {why}\n");
    }
    if attached.others_left_alone > 0 {
        text += &format!("left alone: {} more\n", attached.others_left_alone);
    }
    for process in &attached.managers {
        text += &format!("process {process} is a package manager: copies come once it has ended\n");
    }
    text
}

/// A line for each node of a file. The file itself is named once.
fn rows(file: &FileStatus) -> Vec<Vec<String>> {
    let name = || {
        [
            printable(&escape::text(file.place.on_host())),
            size(file.bytes),
            format!("{}{}", file.state, if file.automatic { " *" } else { "" }),
        ]
    };
    let nodes: BTreeSet<NodeId> = file.serving.keys().copied().collect();
    let line = |(at, node): (usize, &NodeId)| {
        let mut row: Vec<String> = if at == 0 { name().into() } else { vec![String::new(); 3] };
        let serving = file.serving.get(node);
        let copy = serving.and_then(|copy| Some((copy, file.copies.get(copy)?)));
        row.push(node.0.to_string());
        match copy {
            Some((copy, status)) if copy == node => {
                row.extend([size(status.bytes), status.users.to_string()]);
            }
            Some((copy, _)) => row.extend([format!("that of {}", copy.0), String::new()]),
            None => row.extend(["-".into(), String::new()]),
        }
        let gain = file.gain_percent.get(node);
        row.push(gain.map_or(String::new(), |percent| format!("{percent} %")));
        row
    };
    nodes.iter().enumerate().map(line).collect()
}

/// Why a file, or a node of it, has no copy, a line each.
pub(crate) fn reasons(file: &FileStatus) -> Vec<String> {
    let path = printable(&escape::text(file.place.on_host()));
    let all = file.why.iter().map(|why| format!("{path}: {why}\n"));
    let mut by_why = Vec::<(&CopyRefusal, NodeSet)>::new();
    for (&node, why) in &file.refused {
        match by_why.iter_mut().find(|(of_another, _)| *of_another == why) {
            Some((_, nodes)) => _ = nodes.insert(node),
            None => by_why.push((why, [node].into())),
        }
    }
    let by_why = by_why.into_iter().map(|(why, nodes)| {
        let have = if nodes.len() == 1 { "has" } else { "have" };
        format!("{path}: {} {have} no copy: {why}\n", nodes.named())
    });
    all.chain(by_why).collect()
}

/// Why wide processes use one copy, a line for all files that have the same ones.
fn shared(files: &[FileStatus], wide: &BTreeMap<Place, Wide>) -> Vec<String> {
    let mut told: Vec<(&Wide, &FileStatus, usize)> = Vec::new();
    for (file, wide) in files.iter().filter_map(|file| Some((file, wide.get(&file.place)?))) {
        match told.iter_mut().find(|(of_another, ..)| *of_another == wide) {
            Some((_, _, others)) => *others += 1,
            None => told.push((wide, file, 0)),
        }
    }
    let line = |(wide, first, others): (&Wide, &FileStatus, usize)| {
        let path = printable(&escape::text(first.place.on_host()));
        let more = match others {
            0 => String::new(),
            others => format!(" and {}", plural(others, "more file", "more files")),
        };
        format!("{path}{more}: {}: {WIDE}\n", processes(wide))
    };
    told.into_iter().map(line).collect()
}

/// The wide processes of the first of these files, and the number of other files.
pub(crate) fn first_of(wide: &BTreeMap<Place, Wide>) -> Option<String> {
    let (place, first) = wide.first_key_value()?;
    let path = printable(&escape::text(place.on_host()));
    let others = match wide.len() - 1 {
        0 => String::new(),
        1 => ", and 1 more file".into(),
        others => format!(", and {others} more files"),
    };
    Some(format!("{path}: {}{others}", processes(first)))
}

/// The wide processes of a file.
fn processes(wide: &Wide) -> String {
    let nodes: NodeSet = wide.nodes.iter().copied().collect();
    let others = match wide.others {
        0 => String::new(),
        1 => " and another one like it".into(),
        others => format!(" and {others} others like it"),
    };
    format!("process {} on {}{others}", wide.process, nodes.named())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_replicas::protocol::CopyStatus;

    fn place(path: &str) -> Place {
        Place { image: None, path: path.into() }
    }

    fn node(id: u32) -> NodeId {
        NodeId(id)
    }

    #[test]
    fn attached_processes_and_those_left_alone() {
        let left = |process, why: &str, again| LeftAlone { process, why: why.into(), again };
        let some = Attached {
            copies: 3,
            processes: 1,
            bytes: 5 << 20,
            stopped_us: 1_640,
            left_alone: vec![
                left(7, "process 7: it runs under seccomp", false),
                left(8, "process 8: thread 9 traces it already", true),
            ],
            ..Attached::default()
        };
        insta::assert_snapshot!(attached_text(&some));
        insta::assert_snapshot!("attached_none", attached_text(&Attached::default()));
        let bound = attached_text(&Attached { copies: 1, ..Attached::default() });
        assert!(bound.ends_with("; no process there maps text of an original\n"), "{bound}");
        let all_left = Attached { copies: 1, left_alone: some.left_alone, ..Attached::default() };
        let more = Attached { others_left_alone: 5, managers: vec![12], ..Attached::default() };
        assert!(attached_text(&more).ends_with(
            "; no process was changed\nleft alone: 5 more\nprocess 12 is a package manager: copies \
             come once it has ended\n"
        ));
        let text = attached_text(&all_left);
        assert!(
            text.starts_with("1 file has a copy in its mount namespace; no process was changed\n"),
            "{text}"
        );
    }

    #[test]
    fn files_with_copies_without_and_barred_ones() {
        let copy = |bytes, users| CopyStatus { bytes, users, namespaces: 1 };
        let plain = FileStatus {
            place: place("/usr/lib/x86_64-linux-gnu/libc.so.6"),
            bytes: 1_922_136,
            state: "replicated".into(),
            why: None,
            copies: [(node(0), copy(2 << 20, 12)), (node(2), copy(2 << 20, 3))].into(),
            serving: [0, 1, 2, 3].map(|id| (node(id), node(id & 2))).into(),
            gain_percent: [(node(0), 0), (node(1), 0), (node(2), 110), (node(3), 110)].into(),
            refused: [].into(),
            collapses: 0,
            automatic: false,
        };
        let full = FileStatus {
            place: place("/opt/app/plugin\n.so"),
            bytes: 40_000,
            copies: [(node(0), copy(40_960, 0))].into(),
            serving: [0, 1].map(|id| (node(id), node(id))).into(),
            gain_percent: [(node(0), 0)].into(),
            automatic: true,
            refused: [
                (node(1), CopyRefusal::NoRoom("memory is short there".into())),
                (node(2), CopyRefusal::NoRoom("memory is short there".into())),
                (node(3), CopyRefusal::NotLocal { local_percent: 40 }),
            ]
            .into(),
            ..plain.clone()
        };
        let written = FileStatus {
            place: place("/srv/tool"),
            state: "candidate".into(),
            why: Some("it is open for writing".into()),
            copies: [].into(),
            serving: [(node(0), node(0))].into(),
            gain_percent: [].into(),
            ..plain.clone()
        };
        let wide = |process, others| Wide { process, nodes: vec![node(0), node(2)], others };
        let shared = [
            (plain.place.clone(), wide(4711, 2)),
            (full.place.clone(), wide(7, 0)),
            (written.place.clone(), wide(4711, 2)),
        ]
        .into();
        let kept_bytes = [(node(1), 3 << 20), (node(2), 100 << 20)].into();
        let status = Status { files: vec![plain, full, written], kept_bytes };
        insta::assert_snapshot!(status_text(&status, &shared));
        insta::assert_snapshot!(
            "replicate_none",
            status_text(&Status::default(), &BTreeMap::new())
        );
    }
}
