//! `docs/lint.md` describes every rule, and no other, in the words of the code.

#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

use nearside_libvirt::{Needs, Rule};

fn row(rule: &Rule) -> String {
    let needs = match rule.needs() {
        Needs::Text => "-",
        Needs::Host => "host",
        Needs::Placement => "placement",
    };
    let (name, severity, summary) = (rule.name(), rule.severity(), rule.summary());
    format!("| `{name}` | {severity} | {needs} | {summary} | {} | {} |", rule.why(), rule.fix())
}

#[test]
fn the_document_and_the_code_have_the_same_rules() {
    let documented: Vec<&str> = include_str!("../../../docs/lint.md")
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    let expected: Vec<String> = Rule::ALL.iter().map(row).collect();
    let missing: Vec<_> =
        expected.iter().filter(|row| !documented.contains(&row.as_str())).cloned().collect();
    assert!(missing.is_empty(), "docs/lint.md lacks these rows:\n{}", missing.join("\n"));
    assert_eq!(documented, expected, "docs/lint.md has other rows, or another order");
}
