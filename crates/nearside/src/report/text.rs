//! JSON of the text of domains, as the daemon's API sends it.

use super::json;
use crate::daemon::copies::CopiesReport;
use crate::daemon::text::{TextFileReport, TextReport};
use nearside_policy::{
    ByNode,
    text::{Candidate, FileState, TextState, WIDE},
};
use nearside_topology::NodeId;
use serde::Serialize;
use std::collections::BTreeMap;

/// The text of all domains.
#[derive(Serialize)]
pub(crate) struct TextJson<'a> {
    moved_bytes: u64,
    files: Vec<FileJson<'a>>,
    candidates: Vec<CandidateJson<'a>>,
    copies: CopiesJson<'a>,
    wide: &'a BTreeMap<String, usize>,
    wide_text: &'static str,
}

#[derive(Serialize)]
struct CopiesJson<'a> {
    files: usize,
    bytes: u64,
    why: Option<&'a str>,
}

#[derive(Serialize)]
struct FileJson<'a> {
    path: &'a str,
    file: String,
    bytes: &'a ByNode,
    domains: &'a [String],
    nodes: Option<Vec<NodeId>>,
    off_home_bytes: u64,
    moved_bytes: u64,
    state: &'static str,
    text: String,
}

#[derive(Serialize)]
struct CandidateJson<'a> {
    path: &'a str,
    file: String,
    process: i32,
    nodes: Vec<NodeId>,
    domains: &'a [String],
    off_home_bytes: u64,
}

/// The word for a state.
pub(crate) const fn word(state: TextState) -> &'static str {
    match state {
        TextState::InPlace => "in-place",
        TextState::Moving => "moving",
        TextState::Unconfirmed => "unconfirmed",
        TextState::Resting { .. } => "resting",
        TextState::NoRoom => "no-room",
        TextState::CopiesPay => "copies-pay",
        TextState::Shared => "shared",
        TextState::NoHome => "no-home",
    }
}

impl<'a> TextJson<'a> {
    pub(crate) fn new(report: &'a TextReport) -> Self {
        let TextReport { moved_bytes, files, candidates, copies, wide } = report;
        let CopiesReport { files: copied, bytes, why } = copies;
        Self {
            moved_bytes: *moved_bytes,
            files: files.iter().map(FileJson::new).collect(),
            candidates: candidates.iter().map(CandidateJson::new).collect(),
            copies: CopiesJson { files: *copied, bytes: *bytes, why: why.as_deref() },
            wide,
            wide_text: WIDE,
        }
    }
}

impl<'a> FileJson<'a> {
    fn new(report: &'a TextFileReport) -> Self {
        let TextFileReport { state, moved_bytes } = report;
        let FileState { file, path, bytes, domains, nodes, off_home_bytes, state } = state;
        Self {
            path,
            file: file.to_string(),
            bytes,
            domains,
            nodes: nodes.as_ref().map(json::members),
            off_home_bytes: *off_home_bytes,
            moved_bytes: *moved_bytes,
            state: word(*state),
            text: state.to_string(),
        }
    }
}

impl<'a> CandidateJson<'a> {
    fn new(candidate: &'a Candidate) -> Self {
        let Candidate { file, path, process, nodes, domains, off_home_bytes, bytes: _ } = candidate;
        Self {
            path,
            file: file.to_string(),
            process: *process,
            nodes: json::members(nodes),
            domains,
            off_home_bytes: *off_home_bytes,
        }
    }
}
