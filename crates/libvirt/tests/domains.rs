//! Each domain of `domains/` with its findings and its completion, as a snapshot.

#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

mod common;

use nearside_libvirt::{
    Domain, Needs, Rule, complete, contradictions, lint,
    render::{text, unified_diff},
};
use std::{collections::BTreeSet, fmt::Write};

/// The findings in short: the reasons and remedies are those of the rules.
fn short(name: &str, findings: &[nearside_libvirt::Finding]) -> String {
    let report = text(name, findings);
    let explains = |line: &&str| line.starts_with("  why: ") || line.starts_with("  fix: ");
    report.lines().filter(|line| !explains(line)).fold(String::new(), |all, line| all + line + "\n")
}

fn report(name: &str, bytes: &[u8]) -> String {
    let domain = match Domain::from_bytes(bytes) {
        Ok(domain) => domain,
        Err(error) => return format!("{error}\n"),
    };
    let file = format!("{name}.xml");
    let placement = common::placement(name, &domain);
    let completed = complete(&domain, &placement);
    let again = Domain::read(&completed).unwrap();
    assert_eq!(complete(&again, &placement), completed, "{name}: completed twice");
    let mut report = String::new();
    writeln!(report, "# alone\n{}", short(&file, &lint(&domain, None))).unwrap();
    writeln!(report, "# on the host\n{}", short(&file, &lint(&domain, Some(&common::host()))))
        .unwrap();
    let against = contradictions(&domain, &placement);
    writeln!(report, "# against the placement\n{}", short(&file, &against)).unwrap();
    let diff = unified_diff(&file, domain.text(), &completed);
    writeln!(report, "# completed\n{diff}").unwrap();
    let after = lint(&again, Some(&common::host()));
    writeln!(report, "# completed, on the host\n{}", short(&file, &after)).unwrap();
    report
}

#[test]
fn every_domain_has_its_findings_and_its_completion() {
    let domains = common::domains();
    assert!(domains.len() >= 60);
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| {
        for (name, bytes) in &domains {
            insta::assert_snapshot!(name.clone(), report(name, bytes));
        }
    });
}

#[test]
fn some_domain_breaks_each_rule_and_is_named_by_its_kind() {
    let host = common::host();
    let mut broken = BTreeSet::new();
    for (name, bytes) in common::domains() {
        let domain = Domain::from_bytes(&bytes);
        assert_eq!(domain.is_err(), name.starts_with("malformed-"), "{name}: {domain:?}");
        let Ok(domain) = domain else { continue };
        let placed = contradictions(&domain, &common::placement(&name, &domain));
        let findings = lint(&domain, Some(&host));
        assert!(!name.starts_with("bad-") || !findings.is_empty(), "{name}");
        broken.extend(findings.into_iter().chain(placed).map(|finding| finding.rule));
    }
    let unbroken: Vec<_> = Rule::ALL.iter().filter(|rule| !broken.contains(rule)).collect();
    assert!(unbroken.is_empty(), "{unbroken:?}");
}

#[test]
fn rules_about_the_host_need_one() {
    for (_, bytes) in common::domains() {
        let Ok(domain) = Domain::from_bytes(&bytes) else { continue };
        assert!(lint(&domain, None).iter().all(|finding| finding.rule.needs() == Needs::Text));
    }
}
