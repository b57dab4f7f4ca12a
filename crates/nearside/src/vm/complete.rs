//! A domain's XML with the bindings of the homes that placement chose for its cells.

use super::{
    placement::placement,
    request::{VmRequest, request},
};
use nearside_libvirt::{
    Domain, Finding, MemoryMode, Rule, Severity, complete, contradictions, lint,
};
use nearside_policy::{CellsDecision, CellsRefusal, CostModel, Observation, place_cells_within};
use nearside_topology::{NodeSet, Topology};

/// The choices of the operator that are not in the XML.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wish {
    /// The mode of memory that the XML gives no mode.
    pub(crate) mode: Option<MemoryMode>,
    /// The nodes that the cells may have.
    pub(crate) nodes: Option<NodeSet>,
    /// Whether vCPUs are bound. It is false where soft affinity keeps them home.
    pub(crate) pins_vcpus: bool,
}

/// A completed domain.
#[derive(Debug)]
pub(crate) struct Completed {
    pub(crate) xml: String,
    pub(crate) decision: CellsDecision,
    /// The operator's bindings that the homes differ from.
    pub(crate) contradictions: Vec<Finding>,
    /// Assumptions.
    pub(crate) notes: Vec<String>,
}

/// The reason why a domain cannot be completed.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The XML contradicts itself or the host.
    Errors(Vec<Finding>),
    /// Its cells fit nowhere.
    Cells(CellsRefusal),
}

/// Places `domain` on the observed machine and completes its XML.
pub(crate) fn completed(
    domain: &Domain,
    wish: &Wish,
    observation: &Observation,
    model: &CostModel,
) -> Result<Completed, Refused> {
    let offered = &observation.topology;
    let errors = errors(domain, offered);
    if !errors.is_empty() {
        return Err(Refused::Errors(errors));
    }
    let VmRequest { cells, bounds, mode, notes } =
        request(domain, wish.mode, wish.nodes.clone(), offered);
    let decision =
        place_cells_within(&cells, &bounds, observation, model).map_err(Refused::Cells)?;
    let placement = placement(domain, &decision, mode, wish.pins_vcpus, offered);
    Ok(Completed {
        xml: complete(domain, &placement),
        contradictions: contradictions(domain, &placement),
        decision,
        notes,
    })
}

/// The errors of the XML that a completion does not mend.
pub(crate) fn errors(domain: &Domain, offered: &Topology) -> Vec<Finding> {
    // An operator may bind threads to isolated CPUs, which are not offered and yet online.
    let host = offered.clone().with_isolated_of(&offered.node_set());
    let mut findings = lint(domain, Some(&host));
    findings.retain(|it| {
        // The nodeset that is missing is added.
        it.severity() == Severity::Error && it.rule != Rule::StaticWithoutNodeset
    });
    findings
}
