//! The part of a machine that is offered to domains, in general and to an operator who names nodes.

use crate::Observation;
use nearside_topology::{CpuId, CpuSet, Node, NodeSet, Topology, Withheld};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// CPUs and memory that exist and are not offered.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LeftOut {
    /// Isolated CPUs, except on named nodes.
    pub isolated_cpus: CpuSet,
    /// CPUs and memory that the cgroup above all domains withholds.
    pub withheld: Withheld,
}

impl LeftOut {
    /// The CPUs and memory that are left out for an operator who names these nodes.
    pub fn of(offered: &Topology, named: Option<&NodeSet>) -> Self {
        let all = offered.node_set();
        let nodes = named.map_or_else(|| all.clone(), |named| all.difference(named));
        Self { isolated_cpus: offered.isolated_of(&nodes), withheld: offered.withheld.clone() }
    }

    /// Sentences with the reason; none if everything is offered.
    pub fn lines(&self) -> Vec<String> {
        let Self { isolated_cpus, withheld: Withheld { cpus, memory_nodes, by } } = self;
        let mut lines = Vec::new();
        if !isolated_cpus.is_empty() {
            lines.push(format!(
                "{}: isolated; naming their nodes takes them",
                isolated_cpus.named()
            ));
        }
        if !cpus.is_empty() {
            lines.push(format!(
                "{}: the cgroup {by} does not allow them (cpuset.cpus.effective)",
                cpus.named()
            ));
        }
        if !memory_nodes.is_empty() {
            let memory = memory_nodes.named();
            lines.push(format!(
                "memory of {memory}: the cgroup {by} does not allow it (cpuset.mems.effective)"
            ));
        }
        lines
    }
}

/// Nodes were named that domains may not use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "domains may have no {what} on {}: the cgroup {by} does not allow it ({file})",
    nodes.named()
)]
pub struct NotAllowed {
    /// "memory" or "CPUs".
    what: &'static str,
    /// The nodes.
    nodes: NodeSet,
    /// The path of the cgroup.
    by: String,
    /// The file with the cgroup's limit.
    file: &'static str,
}

/// Refuses a named node whose CPUs, or whose memory, domains may not use. Isolated CPUs are offered
/// by now.
pub(crate) fn check_named(nodes: &NodeSet, topology: &Topology) -> Result<(), NotAllowed> {
    let withheld = &topology.withheld;
    let refuse = |what, nodes: NodeSet, file| match nodes.is_empty() {
        true => Ok(()),
        false => Err(NotAllowed { what, nodes, by: withheld.by.clone(), file }),
    };
    refuse("memory", nodes.intersection(&withheld.memory_nodes), "cpuset.mems.effective")?;
    let node_of = |cpu| topology.cpu(cpu).and_then(|cpu| cpu.node);
    let with_withheld: NodeSet = withheld.cpus.iter().filter_map(node_of).collect();
    let without_cpus = nodes
        .iter()
        .filter(|&node| with_withheld.contains(node) && topology.cpus_of(node).is_empty());
    refuse("CPUs", without_cpus.collect(), "cpuset.cpus.effective")
}

/// Nodes on which domains have no CPU, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct NoCpus {
    /// The nodes.
    pub nodes: NodeSet,
    why: String,
}

impl NoCpus {
    /// The reason on a machine as it is offered to domains.
    pub fn on(nodes: &NodeSet, offered: &Topology) -> Self {
        let is_there = |cpu: &CpuId| {
            let node = offered.cpu(*cpu).filter(|cpu| !cpu.online).and_then(|cpu| cpu.node);
            node.is_some_and(|node| nodes.contains(node))
        };
        let isolated: CpuSet = offered.isolated_of(nodes).iter().filter(is_there).collect();
        let withheld: CpuSet = offered.withheld.cpus.iter().filter(is_there).collect();
        let (named, by) = (nodes.named(), &offered.withheld.by);
        let why = match (isolated.is_empty(), &offered.isolated_partition) {
            (false, Some(partition)) => format!(
                "no CPU of {named} is offered: {} are isolated, because cpuset.cpus.partition of \
                 the cgroup {partition} is isolated: name nodes (--nodes), or write root or member \
                 to that file",
                isolated.named()
            ),
            (false, None) => format!(
                "no CPU of {named} is offered: {} are isolated (isolcpus= or a cpuset partition): \
                 name nodes (--nodes)",
                isolated.named()
            ),
            (true, _) if withheld.is_empty() => format!("no CPU is online on {named}"),
            (true, _) => format!(
                "no CPU of {named} is offered: the cgroup {by} does not allow {} \
                 (cpuset.cpus.effective)",
                withheld.named()
            ),
        };
        Self { nodes: nodes.clone(), why }
    }
}

/// The nodes whose memory to leave out, attempt by attempt: all lower memory tiers, then all but
/// the fastest of them, and so on; nothing in the last attempt.
///
/// Memory of a lower tier is the last resort, however near: the tier has slow memory, and the
/// kernel lets cold pages sink there.
pub(crate) fn tiers_to_leave_out(topology: &Topology) -> Vec<NodeSet> {
    let lower = topology.lower_memory_tiers();
    let all = lower.iter().fold(NodeSet::new(), |all, nodes| all.union(nodes));
    let fewer = lower.iter().scan(all.clone(), |left, nodes| {
        *left = left.difference(nodes);
        Some(left.clone())
    });
    std::iter::once(all).chain(fewer).collect()
}

impl Observation {
    /// As if these nodes had no memory.
    pub(crate) fn without_memory_of(&self, nodes: &NodeSet) -> Self {
        let mut topology = self.topology.clone();
        for node in topology.nodes.iter_mut().filter(|node| nodes.contains(node.id)) {
            *node = Node { id: node.id, pxm: node.pxm, ..Node::default() };
        }
        Self { topology, ..self.clone() }
    }

    /// As offered to an operator who names these nodes: their isolated CPUs count. Placement does
    /// not offer isolated CPUs by itself, because the scheduler spreads no threads over them.
    pub fn naming(&self, nodes: Option<&NodeSet>) -> Cow<'_, Self> {
        match nodes {
            Some(nodes) if !self.topology.isolated_of(nodes).is_empty() => {
                let topology = self.topology.clone().with_isolated_of(nodes);
                Cow::Owned(Self { topology, ..self.clone() })
            }
            _ => Cow::Borrowed(self),
        }
    }
}

/// A notice about a named home, if the scheduler leaves some of its CPUs alone.
pub(crate) fn isolated_notice(nodes: &NodeSet, topology: &Topology) -> Option<String> {
    let isolated = topology.isolated_of(nodes);
    (!isolated.is_empty()).then(|| {
        format!(
            "the home has isolated CPUs ({isolated}): the kernel moves no thread between them, \
             so each has to be bound by its own program"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Action, Affinity, Claim, CostModel, Limits, MemoryPolicy, PageSize, PartState, Plan,
        Refusal, Rehome, RehomeRefusal, Request, Start, StartRefusal, rehome, start,
    };
    use nearside_topology::{Allowed, Cpu, CpuId, CpuSet, Distances, Node, NodeId};

    const MIB: u64 = 1 << 20;

    /// Three nodes of two CPUs and 1 GiB each. CPUs 2 and 3 of node 1 are isolated; node 2 is not
    /// for domains.
    fn machine() -> Observation {
        let ids = [0, 1, 2].map(NodeId);
        let topology = Topology {
            nodes: ids.map(|id| Node { id, memory_bytes: 1024 * MIB, ..Node::default() }).into(),
            cpus: (0..6).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 2))).collect(),
            distances: Distances::uniform(&ids),
            isolated_cpus: CpuSet::from([CpuId(2), CpuId(3)]),
            ..Topology::default()
        };
        let allowed = |cpus: &str, nodes: &str| Allowed {
            cpus: cpus.parse().unwrap(),
            memory_nodes: nodes.parse().unwrap(),
            isolated_cpus: CpuSet::new(),
            by: "/x".into(),
            isolated_partition: None,
        };
        Observation {
            topology: topology.offered(Some(&allowed("0-3", "0-1"))),
            ..Observation::default()
        }
    }

    fn begin(nodes: Option<&str>, seen: &Observation) -> Result<Plan, StartRefusal> {
        let request = Request {
            vcpus: 2,
            memory_bytes: 600 * MIB,
            page_size: PageSize::Base,
            policy: MemoryPolicy::Strict,
            nodes: nodes.map(|nodes| nodes.parse().unwrap()),
            near: Vec::new(),
        };
        let wish = Start {
            name: "db".into(),
            request,
            affinity: Affinity::Hard,
            limits: Limits::default(),
        };
        start(&wish, seen, &CostModel::default())
    }

    fn cpus(plan: &Plan) -> String {
        let bound = plan.transaction.steps.iter().find_map(|step| match &step.action {
            Action::BindCpus { cpus, .. } => Some(cpus.to_string()),
            _ => None,
        });
        bound.unwrap_or_default()
    }

    #[test]
    fn placement_takes_what_is_offered_and_binds_to_no_more() {
        let mut seen = machine();
        let plan = begin(None, &seen).unwrap();
        assert_eq!((cpus(&plan).as_str(), plan.limits.len()), ("0-1", 0));
        let decision = plan.decision.unwrap();
        let left_out = [
            "CPUs 2-3: isolated; naming their nodes takes them",
            "CPUs 4-5: the cgroup /x does not allow them (cpuset.cpus.effective)",
            "memory of node 2: the cgroup /x does not allow it (cpuset.mems.effective)",
        ];
        assert_eq!(decision.left_out.lines(), left_out);
        let claim = Some(decision.chosen.claim);
        seen.parts.push(PartState { id: "first".into(), claim, ..PartState::default() });
        // Node 1 has memory, and no CPU that is offered.
        let plan = begin(None, &seen).unwrap();
        assert_eq!(
            (cpus(&plan).as_str(), plan.decision.unwrap().chosen.nodes),
            ("0-1", "0-1".parse().unwrap())
        );
    }

    #[test]
    fn isolated_cpus_are_offered_if_their_node_is_named() {
        let plan = begin(Some("1"), &machine()).unwrap();
        assert_eq!(cpus(&plan), "2-3");
        assert!(plan.decision.unwrap().left_out.isolated_cpus.is_empty());
        assert!(
            plan.limits[0].starts_with("the home has isolated CPUs (2-3)"),
            "{:?}",
            plan.limits
        );
        let mut seen = machine();
        let claim = Some(Claim { bytes: [(NodeId(0), 100 * MIB)].into(), ..Claim::default() });
        seen.parts.push(PartState { id: "db".into(), claim, ..PartState::default() });
        let wish = |nodes: &str| Rehome {
            part: "db".into(),
            affinity: None,
            nodes: nodes.parse().unwrap(),
            move_memory: true,
            rate_bytes_per_s: None,
        };
        let plan = rehome(&wish("1"), &seen).unwrap();
        assert_eq!(cpus(&plan), "2-3");
        assert!(
            plan.limits.iter().any(|limit| limit.starts_with("the home has isolated CPUs (2-3)")),
            "{:?}",
            plan.limits
        );
        let refusal = rehome(&wish("0,2"), &seen).unwrap_err();
        assert!(matches!(refusal, RehomeRefusal::NotAllowed(_)), "{refusal}");
    }

    #[test]
    fn naming_a_withheld_node_is_refused_with_the_cgroup() {
        let told = |seen: &Observation, nodes: &str| match begin(Some(nodes), seen) {
            Err(StartRefusal::Place(Refusal::NotAllowed(refusal))) => refusal.to_string(),
            other => panic!("{other:?}"),
        };
        let memory = "domains may have no memory on node 2: the cgroup /x does not allow it \
                      (cpuset.mems.effective)";
        assert_eq!(told(&machine(), "0,2"), memory);
        let mut without_cpus = machine();
        without_cpus.topology.withheld.memory_nodes = NodeSet::new();
        let cpus = "domains may have no CPUs on node 2: the cgroup /x does not allow it \
                    (cpuset.cpus.effective)";
        assert_eq!(told(&without_cpus, "2"), cpus);
    }

    #[test]
    fn a_machine_without_cpus_for_domains_tells_why() {
        let told = |isolated: &str, partition: Option<&str>| {
            let mut seen = machine();
            seen.topology.cpus.iter_mut().for_each(|cpu| cpu.online = true);
            seen.topology.isolated_cpus = CpuSet::new();
            let allowed = Allowed {
                cpus: "0-3".parse().unwrap(),
                memory_nodes: "0-2".parse().unwrap(),
                isolated_cpus: isolated.parse().unwrap(),
                by: "/nearside".into(),
                isolated_partition: partition.map(Into::into),
            };
            seen.topology = seen.topology.offered(Some(&allowed));
            begin(None, &seen).unwrap_err().to_string()
        };
        assert_eq!(
            told("0-3", Some("/nearside")),
            "no CPU of nodes 0-2 is offered: CPUs 0-3 are isolated, because cpuset.cpus.partition \
             of the cgroup /nearside is isolated: name nodes (--nodes), or write root or member \
             to that file"
        );
        assert_eq!(
            told("0-3", None),
            "no CPU of nodes 0-2 is offered: CPUs 0-3 are isolated (isolcpus= or a cpuset \
             partition): name nodes (--nodes)"
        );
        let mut without = machine().topology;
        without.withheld.cpus = "4-5".parse().unwrap();
        without.withheld.by = "/x".into();
        without.cpus.iter_mut().for_each(|cpu| cpu.online = false);
        assert_eq!(
            NoCpus::on(&"2".parse().unwrap(), &without).to_string(),
            "no CPU of node 2 is offered: the cgroup /x does not allow CPUs 4-5 \
             (cpuset.cpus.effective)"
        );
    }

    #[test]
    fn offline_cpus_of_a_named_node_are_not_blamed_on_the_cgroup() {
        let mut seen = machine();
        // CPUs 0 and 1 of node 0 go offline, and so leave cpuset.cpus.effective.
        seen.topology.cpus.iter_mut().take(2).for_each(|cpu| cpu.online = false);
        let allowed = Allowed {
            cpus: "2-3".parse().unwrap(),
            memory_nodes: "0-1".parse().unwrap(),
            isolated_cpus: CpuSet::new(),
            by: "/x".into(),
            isolated_partition: None,
        };
        seen.topology = seen.topology.offered(Some(&allowed));
        let refusal = begin(Some("0"), &seen).unwrap_err();
        assert_eq!(refusal.to_string(), "no CPU is online on node 0");
        seen.parts.push(PartState { id: "db".into(), ..PartState::default() });
        let wish = Rehome {
            part: "db".into(),
            nodes: "0".parse().unwrap(),
            affinity: None,
            move_memory: false,
            rate_bytes_per_s: None,
        };
        let refusal = rehome(&wish, &seen).unwrap_err();
        assert_eq!(refusal.to_string(), "no CPU is online on node 0");
    }
}
