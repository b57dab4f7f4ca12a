//! The interval that the loop publishes: what it observed, decided and did.

use super::{
    api::Api,
    duties::Duties,
    site::Site,
    snapshot::{Seen, SeenDomain},
};
use nearside_linux::counters::{Counters, counters};
use nearside_policy::{ControlObservation, ControlPlan, History, PartState};
use nearside_topology::NodeId;
use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

/// Publishes intervals.
#[derive(Debug)]
pub(super) struct Publisher {
    pub(super) api: Arc<Api>,
    /// The counters of each node in the interval before.
    counted: BTreeMap<NodeId, Option<Counters>>,
}

/// The decisions of an interval.
pub(super) struct Decided {
    pub(super) plan: ControlPlan,
    /// The state of the homes controller after them.
    pub(super) history: Arc<History>,
    /// The configured length of an interval.
    pub(super) interval: Duration,
}

impl Publisher {
    /// Nothing was published yet.
    pub(super) fn new(api: Arc<Api>) -> Self {
        Self { api, counted: BTreeMap::new() }
    }

    /// Publishes an interval.
    pub(super) fn publish(
        &mut self,
        seen: ControlObservation,
        decided: Decided,
        site: &Site,
        duties: &Duties,
    ) {
        let (Decided { plan, history, interval }, scheduling) = (decided, &duties.scheduling);
        let ControlObservation { machine, length_ns, numa_balancing, .. } = seen;
        let root = site.host.root();
        let counted: BTreeMap<NodeId, Option<Counters>> =
            machine.topology.nodes.iter().map(|node| (node.id, counters(root, node.id))).collect();
        let before = mem::replace(&mut self.counted, counted.clone());
        let counters = counted
            .into_iter()
            .map(|(node, now)| (node, [before.get(&node).copied().flatten(), now]))
            .collect();
        let records: BTreeMap<&str, _> =
            site.watcher.records().map(|record| (record.name.as_str(), record)).collect();
        let mut guests = site.watcher.cells();
        // Parts are in the order of their domains.
        let domain = |parts: &[PartState]| {
            let name = parts.first().map(|part| part.id.domain()).unwrap_or_default();
            SeenDomain {
                cgroup: site.watcher.cgroup_path(name).unwrap_or_default().to_owned(),
                record: records.get(name).map(|&record| record.clone()),
                usage: site.watcher.usage(name).unwrap_or_default(),
                reserved_bytes: parts.iter().map(|part| part.reserved_bytes).sum(),
                cells: guests.remove(name).unwrap_or_default(),
                counters_at_first: scheduling.cells.counters_at_first(name),
            }
        };
        let by_domain = machine.parts.chunk_by(|a, b| a.id.domain() == b.id.domain());
        let domains = by_domain.map(domain).collect();
        self.api.published.publish(Seen {
            topology: machine.topology,
            domains,
            reservations: machine.reservations,
            counters,
            length: Duration::from_nanos(length_ns),
            interval,
            plan,
            history,
            totals: site.totals.clone(),
            text: duties.text.report(),
            scheduler_attached: scheduling.is_attached(),
            numa_balancing,
        });
    }
}
