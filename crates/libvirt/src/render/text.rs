//! Findings for people.

use crate::{finding::Finding, rule::Severity};

/// The findings of the file `name`, one paragraph each, and their number. Of one rule the first ten
/// are written, and the others counted.
pub fn text(name: &str, findings: &[Finding]) -> String {
    if findings.is_empty() {
        return format!("{name}: no findings\n");
    }
    let mut report = String::new();
    for (finding, left_out) in Finding::first_of_each_rule(findings) {
        let (line, column) = (finding.start.line, finding.start.column);
        report += &format!(
            "{name}:{line}:{column}: {}: {} [{}]\n  why: {}\n  fix: {}\n",
            finding.severity(),
            finding.message,
            finding.rule,
            finding.why(),
            finding.fix()
        );
        if let Some(more) = Finding::more_of_this_rule(left_out) {
            report += &format!("  {more}\n");
        }
    }
    let count = |severity| {
        let number = findings.iter().filter(|finding| finding.severity() == severity).count();
        format!("{number} {severity}{}", if number == 1 { "" } else { "s" })
    };
    report + &format!("{}, {}\n", count(Severity::Error), count(Severity::Warning))
}
