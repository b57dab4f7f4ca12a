//! Findings as SARIF 2.1.0 (OASIS), which code hosts and editors read.

use crate::{
    finding::Finding,
    rule::{Rule, Severity},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

/// Bytes that stand in a path of a URI as they are (RFC 3986, 3.3).
const PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// The findings of the file `name` as a SARIF log of one run.
///
/// # Errors
/// None in practice: the object has keys that are text and values that JSON knows.
pub fn sarif(name: &str, findings: &[Finding]) -> serde_json::Result<String> {
    let results: Vec<Value> = findings.iter().map(|finding| result(name, finding)).collect();
    let rules: Vec<Value> = Rule::ALL.iter().map(|rule| described(*rule)).collect();
    let driver = json!({
        "name": "nearside",
        "semanticVersion": env!("CARGO_PKG_VERSION"),
        "rules": rules,
    });
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": driver},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    });
    serde_json::to_string_pretty(&log).map(|json| json + "\n")
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

fn described(rule: Rule) -> Value {
    json!({
        "id": rule.name(),
        "shortDescription": {"text": rule.summary()},
        "fullDescription": {"text": rule.why()},
        "help": {"text": rule.fix()},
        "defaultConfiguration": {"level": level(rule.severity())},
    })
}

fn result(name: &str, finding: &Finding) -> Value {
    let index = Rule::ALL.iter().position(|rule| *rule == finding.rule);
    let message = format!("{}. {} {}", finding.message, finding.why(), finding.fix());
    json!({
        "ruleId": finding.rule.name(),
        "ruleIndex": index,
        "level": level(finding.severity()),
        "message": {"text": message},
        "locations": [{
            "physicalLocation": {
                "artifactLocation": {"uri": uri(name)},
                "region": {
                    "startLine": finding.start.line,
                    "startColumn": finding.start.column,
                    "endLine": finding.end.line,
                    "endColumn": finding.end.column,
                },
            },
        }],
    })
}

/// A path as a reference to a URI. An absolute one gets its scheme.
fn uri(name: &str) -> String {
    let path = utf8_percent_encode(name, PATH);
    if name.starts_with('/') { format!("file://{path}") } else { path.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped() {
        assert_eq!(uri("vms/my vm.xml"), "vms/my%20vm.xml");
        assert_eq!(uri("/etc/ä.xml"), "file:///etc/%C3%A4.xml");
    }
}
