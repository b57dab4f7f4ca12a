//! One broken rule at one place.

use crate::{
    domain::Domain,
    position::{Position, Span},
    rule::{Rule, Severity},
};
use std::{cmp::Ordering, collections::BTreeMap};

/// The findings of one rule that people read one by one.
const SHOWN_OF_A_RULE: usize = 10;

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// The bytes that break it.
    pub span: Span,
    /// The place of the first of them.
    pub start: Position,
    /// The place behind the last of them.
    pub end: Position,
    /// The fault: one sentence with the values.
    pub message: String,
}

impl Finding {
    pub(crate) fn new(domain: &Domain, rule: Rule, span: Span, message: String) -> Self {
        let (start, end) = (domain.position(span.start), domain.position(span.end));
        Self { rule, span, start, end, message }
    }

    /// The first ten findings of each rule, in their order. The tenth has the number of those of
    /// its rule that are left out.
    pub fn first_of_each_rule(findings: &[Self]) -> Vec<(&Self, usize)> {
        let mut counts: BTreeMap<Rule, usize> = BTreeMap::new();
        for finding in findings {
            *counts.entry(finding.rule).or_default() += 1;
        }
        let mut shown: BTreeMap<Rule, usize> = BTreeMap::new();
        let mut first = Vec::new();
        for finding in findings {
            let at = shown.entry(finding.rule).or_default();
            *at += 1;
            match (*at).cmp(&SHOWN_OF_A_RULE) {
                Ordering::Less => first.push((finding, 0)),
                Ordering::Equal => {
                    let all = counts.get(&finding.rule).copied().unwrap_or(0);
                    first.push((finding, all.saturating_sub(SHOWN_OF_A_RULE)));
                }
                Ordering::Greater => {}
            }
        }
        first
    }

    /// The line for findings that are left out; none if there are none.
    pub fn more_of_this_rule(left_out: usize) -> Option<String> {
        let digits = left_out.to_string();
        let mut number = String::new();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                number.push(',');
            }
            number.push(digit);
        }
        (left_out > 0).then(|| format!(".. and {number} more of this rule"))
    }

    /// The weight of the finding.
    pub fn severity(&self) -> Severity {
        self.rule.severity()
    }

    /// Why it matters.
    pub fn why(&self) -> &'static str {
        self.rule.why()
    }

    /// The remedy.
    pub fn fix(&self) -> &'static str {
        self.rule.fix()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{lint, render::text};

    fn findings(count: usize) -> Vec<Finding> {
        let pins: String =
            (1..=count).map(|vcpu| format!("<vcpupin vcpu='{vcpu}' cpuset='0'/>")).collect();
        let text = format!("<domain><memory>8</memory><cputune>{pins}</cputune></domain>");
        lint(&Domain::read(&text).unwrap(), None)
    }

    #[test]
    fn findings_of_a_rule_are_counted_after_ten() {
        let ten = findings(10);
        assert_eq!(ten.len(), 10);
        assert!(Finding::first_of_each_rule(&ten).iter().all(|(_, more)| *more == 0));
        let report = text("vm.xml", &findings(16_383));
        assert_eq!(report.matches("[vcpupin-for-missing-vcpu]").count(), 10);
        assert_eq!(report.matches("  .. and 16,373 more of this rule\n").count(), 1);
        assert!(report.ends_with("\n0 errors, 16383 warnings\n"), "{report}");
        assert!(report.len() < 4096, "{}", report.len());
    }

    #[test]
    fn numbers_of_findings_have_commas() {
        let shown = [0, 1, 999, 1000, 1_234_567].map(Finding::more_of_this_rule);
        let expected = ["1", "999", "1,000", "1,234,567"];
        let expected = expected.map(|it| Some(format!(".. and {it} more of this rule")));
        assert_eq!((&shown[0], &shown[1..]), (&None, &expected[..]));
    }
}
