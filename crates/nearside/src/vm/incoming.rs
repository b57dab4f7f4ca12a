//! A domain that libvirt migrates or restores to this host: its XML with bindings of this machine,
//! in the shape that its metadata tell (docs/adr/0017-migration.md).
//!
//! Only values that Nearside wrote change. The guest keeps its distances, because a guest that runs
//! has read them; and cells that had a binding of their own keep one, because QEMU names the memory
//! of others differently.

use super::{complete::errors, placement::placement, request::request, shape};
use crate::room::Shortage;
use nearside_libvirt::{CellId, Domain, Keep, Metadata, Written, complete, operators, strip};
use nearside_policy::{
    ByNode, CellsDecision, CostModel, Observation, PageSize, Purpose, Reservation,
};
use std::collections::BTreeSet;

/// An incoming domain that Nearside has placed before.
#[derive(Debug)]
pub(crate) struct Incoming {
    domain: Domain,
    metadata: Metadata,
}

/// The XML for this machine.
#[derive(Debug)]
pub(crate) struct Rewritten {
    pub(crate) xml: String,
    /// A line for each thing that is worse than the shape of the intent.
    pub(crate) worse: Vec<String>,
    decision: CellsDecision,
}

/// Why its bindings stay as they are.
#[derive(Debug)]
pub(crate) struct NotRewritten {
    pub(crate) why: String,
    /// The memory that it lacks here, if that is the reason.
    pub(crate) lacks: Option<Shortage>,
}

impl From<String> for NotRewritten {
    fn from(why: String) -> Self {
        Self { why, lacks: None }
    }
}

impl Incoming {
    /// Reads a domain's XML; none if Nearside has not placed the domain.
    ///
    /// # Errors
    /// With the reason, if the text is no domain, or its metadata cannot be read.
    pub(crate) fn read(xml: &[u8]) -> Result<Option<Self>, String> {
        let domain = Domain::from_bytes(xml).map_err(|error| error.to_string())?;
        let metadata = Metadata::of(&domain)
            .map_err(|error| format!("the metadata of Nearside cannot be read: {error}"))?;
        Ok(metadata.map(|metadata| Self { domain, metadata }))
    }

    /// The name of its reservation. A second attempt has the same one.
    pub(crate) fn reservation_name(&self) -> String {
        format!("incoming-{}", self.name())
    }

    fn name(&self) -> &str {
        self.domain.name.as_ref().map_or("", |name| &name.value)
    }

    /// Places it on the observed machine and rewrites its bindings.
    ///
    /// # Errors
    /// With the reason, if its bindings have to stay as they are.
    pub(crate) fn rewritten(
        &self,
        pins_vcpus: bool,
        observation: &Observation,
        model: &CostModel,
    ) -> Result<Rewritten, NotRewritten> {
        let Self { domain, metadata: Metadata { intent, wrote } } = self;
        let host = &observation.topology;
        let stripped = strip(domain, &self.metadata, Keep::Distances);
        let stripped = stripped.map_err(|error| error.to_string())?;
        if stripped.text() == domain.text() {
            return Err("it has no binding that Nearside wrote".to_owned().into());
        }
        let rest = operators(domain, &self.metadata, Keep::Distances);
        if let Some(error) = errors(&rest, host).first() {
            return Err(format!("{}: {} [{}]", error.start, error.message, error.rule).into());
        }
        let mut asked = request(&rest, Some(intent.mode), None, host);
        let (cells, were) = (asked.cells.cells.len(), intent.cells.len());
        if cells != were {
            return Err(format!("it has {cells} cells, its metadata tell of {were}").into());
        }
        let near = &mut asked.cells.distances;
        *near = near.take().or_else(|| intent.home_distances.clone());
        let decision =
            shape::place_in_shape(intent, &asked.cells, &asked.bounds, observation, model)
                .map_err(|refusal| NotRewritten {
                    why: refusal.to_string(),
                    lacks: Shortage::of_cells(&refusal, &host.memory_nodes()),
                })?;
        let mut placed = placement(&rest, &decision, asked.mode, pins_vcpus, host);
        placed.distances = None;
        let completed = Domain::read(&complete(&stripped, &placed));
        let completed = completed.map_err(|error| error.to_string())?;
        if bound_cells(&completed) != bound_cells(domain) {
            return Err("other cells than before would have a <memnode>".to_owned().into());
        }
        let wrote = Written {
            distances: wrote.distances.clone(),
            ..Written::between(&stripped, &completed)
        };
        let metadata = Metadata { intent: intent.clone(), wrote };
        let xml = metadata.write_to(&completed).map_err(|error| error.to_string())?;
        Ok(Rewritten { xml, worse: shape::worse(intent, &decision, host), decision })
    }
}

impl Rewritten {
    /// The memory and vCPUs of its homes, to be reserved until it runs. None if its cells have
    /// pages of several sizes, which one reservation cannot hold.
    pub(crate) fn reservation(&self, incoming: &Incoming) -> Option<Reservation> {
        let claims = || self.decision.cells.iter().map(|cell| &cell.home.claim);
        let sizes: BTreeSet<PageSize> = claims().map(|claim| claim.page_size).collect();
        let page_size = sizes
            .into_iter()
            .next()
            .filter(|size| claims().all(|claim| claim.page_size == *size))?;
        let bytes = sum(claims().map(|claim| &claim.bytes));
        let vcpus = sum(claims().map(|claim| &claim.vcpus));
        let (name, guest) = (incoming.reservation_name(), incoming.name().into());
        let purpose = Purpose::IncomingGuest(guest);
        Some(Reservation { name, purpose, owner: None, bytes, vcpus, page_size })
    }
}

fn sum<'a>(amounts: impl Iterator<Item = &'a ByNode>) -> ByNode {
    let mut sum = ByNode::new();
    for (&node, &amount) in amounts.flatten() {
        let of_node: &mut u64 = sum.entry(node).or_default();
        *of_node = of_node.saturating_add(amount);
    }
    sum
}

/// The cells with a binding of their own.
fn bound_cells(domain: &Domain) -> BTreeSet<CellId> {
    let memnodes = domain.numatune.iter().flat_map(|numatune| &numatune.memnodes);
    memnodes.map(|memnode| memnode.cell.value).collect()
}

#[cfg(test)]
mod tests;
