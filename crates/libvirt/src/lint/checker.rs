//! The domain that is checked, and the findings so far.

use crate::{domain::Domain, finding::Finding, position::Span, rule::Rule};
use nearside_topology::Topology;

pub(super) struct Checker<'a> {
    pub(super) domain: &'a Domain,
    host: Option<&'a Topology>,
    findings: Vec<Finding>,
}

impl<'a> Checker<'a> {
    pub(super) fn new(domain: &'a Domain, host: Option<&'a Topology>) -> Self {
        Self { domain, host, findings: Vec::new() }
    }

    /// Whether the host is known to have one node: then it matters to no rule where memory lies.
    pub(super) fn has_one_node(&self) -> bool {
        self.host.is_some_and(|host| host.nodes.len() == 1)
    }

    pub(super) fn report(&mut self, rule: Rule, span: Span, message: impl Into<String>) {
        self.findings.push(Finding::new(self.domain, rule, span, message.into()));
    }

    /// The findings in the order of the text.
    pub(super) fn findings(mut self) -> Vec<Finding> {
        self.findings.sort_by_key(|finding| (finding.span.start, finding.rule));
        self.findings
    }
}
