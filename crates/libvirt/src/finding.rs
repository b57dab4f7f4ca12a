//! One broken rule at one place.

use crate::{
    domain::Domain,
    position::{Position, Span},
    rule::{Rule, Severity},
};

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
