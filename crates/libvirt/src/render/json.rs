//! Findings as JSON; `docs/formats.md` describes the keys.

use crate::{
    finding::Finding,
    rule::{Rule, Severity},
};
use serde::Serialize;

#[derive(Serialize)]
struct Report<'a> {
    source: &'a str,
    findings: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    rule: Rule,
    severity: Severity,
    line: usize,
    column: usize,
    message: &'a str,
    why: &'static str,
    fix: &'static str,
}

/// The findings of the file `name` as one JSON object.
///
/// # Errors
/// None in practice: the object has keys that are text and values that JSON knows.
pub fn json(name: &str, findings: &[Finding]) -> serde_json::Result<String> {
    let findings = findings.iter().map(|finding| Entry {
        rule: finding.rule,
        severity: finding.severity(),
        line: finding.start.line,
        column: finding.start.column,
        message: &finding.message,
        why: finding.why(),
        fix: finding.fix(),
    });
    let report = Report { source: name, findings: findings.collect() };
    serde_json::to_string_pretty(&report).map(|json| json + "\n")
}
