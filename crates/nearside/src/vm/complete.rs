//! A domain's XML with the bindings of the homes that placement chose for its cells.

use super::{
    placement::placement,
    request::{VmRequest, request},
    shape::intent,
};
use nearside_libvirt::{
    Domain, Finding, Keep, MemoryMode, Metadata, Rule, Severity, Written, complete, contradictions,
    lint, operators, strip,
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
    /// Whether the XML gets Nearside's metadata.
    pub(crate) metadata: bool,
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

/// Places `domain` on the observed machine and completes its XML. Bindings that Nearside wrote
/// earlier are chosen anew.
pub(crate) fn completed(
    domain: &Domain,
    wish: &Wish,
    observation: &Observation,
    model: &CostModel,
) -> Result<Completed, Refused> {
    let offered = &observation.topology;
    let known = Metadata::of(domain);
    let earlier = known.as_ref().ok().and_then(Option::as_ref);
    let rest = earlier.map(|earlier| operators(domain, earlier, Keep::Nothing));
    let rest = rest.as_ref().unwrap_or(domain);
    let errors = errors(rest, offered);
    if !errors.is_empty() {
        return Err(Refused::Errors(errors));
    }
    let mode = earlier.filter(|_| rest.written_mode().is_none()).map(|it| it.intent.mode);
    let mut request = request(rest, wish.mode.or(mode), wish.nodes.clone(), offered);
    let decision = place_cells_within(&request.cells, &request.bounds, observation, model)
        .map_err(Refused::Cells)?;
    let placement = placement(rest, &decision, request.mode, wish.pins_vcpus, offered);
    let mut notes = std::mem::take(&mut request.notes);
    if let Err(error) = &known {
        notes.push(format!(
            "the metadata of Nearside stay as they are, and all bindings count as the operator's: \
             {error}"
        ));
    }
    let stripped = earlier.and_then(|earlier| strip(domain, earlier, Keep::Nothing).ok());
    let stripped = stripped.as_ref().unwrap_or(domain);
    let text = complete(stripped, &placement);
    notes.extend(without_cpus(&text, offered));
    let xml = match known {
        Ok(_) => with_metadata(stripped, text, wish.metadata, &request, offered),
        Err(_) => text,
    };
    Ok(Completed { xml, contradictions: contradictions(rest, &placement), decision, notes })
}

/// The completed text with the metadata that belong to it. `before` lacks the values that Nearside
/// wrote.
fn with_metadata(
    before: &Domain,
    text: String,
    is_wanted: bool,
    request: &VmRequest,
    host: &Topology,
) -> String {
    // A text that has become too long for a domain keeps its bindings alone.
    let Ok(after) = Domain::read(&text) else { return text };
    let wrote = Written::between(before, &after);
    if !is_wanted || wrote.is_empty() {
        return Metadata::remove_from(&after);
    }
    let intent = intent(&after, request, host);
    Metadata { intent, wrote }.write_to(&after).unwrap_or(text)
}

/// Notes on homes of memory alone, which a completion may choose and some versions of libvirt
/// refuse.
fn without_cpus(completed: &str, offered: &Topology) -> Vec<String> {
    let Ok(domain) = Domain::read(completed) else { return Vec::new() };
    let findings = lint(&domain, Some(&as_host(offered))).into_iter();
    let findings = findings.filter(|it| it.rule == Rule::PreallocationWithoutCpus);
    findings.map(|it| format!("{}. {}", it.message, it.rule.why())).collect()
}

/// The host behind an offered topology. An operator may bind threads to isolated CPUs, which are
/// not offered and yet online.
fn as_host(offered: &Topology) -> Topology {
    offered.clone().with_isolated_of(&offered.node_set())
}

/// The errors of the XML that a completion does not mend.
pub(crate) fn errors(domain: &Domain, offered: &Topology) -> Vec<Finding> {
    let mut findings = lint(domain, Some(&as_host(offered)));
    findings.retain(|it| {
        // The nodeset that is missing is added.
        it.severity() == Severity::Error && it.rule != Rule::StaticWithoutNodeset
    });
    findings
}
