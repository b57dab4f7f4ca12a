//! Findings for people.

use crate::{finding::Finding, rule::Severity};

/// The findings of the file `name`, one paragraph each, and their number.
pub fn text(name: &str, findings: &[Finding]) -> String {
    if findings.is_empty() {
        return format!("{name}: no findings\n");
    }
    let mut report = String::new();
    for finding in findings {
        let (line, column) = (finding.start.line, finding.start.column);
        report += &format!(
            "{name}:{line}:{column}: {}: {} [{}]\n  why: {}\n  fix: {}\n",
            finding.severity(),
            finding.message,
            finding.rule,
            finding.why(),
            finding.fix()
        );
    }
    let count = |severity| {
        let number = findings.iter().filter(|finding| finding.severity() == severity).count();
        format!("{number} {severity}{}", if number == 1 { "" } else { "s" })
    };
    report + &format!("{}, {}\n", count(Severity::Error), count(Severity::Warning))
}
