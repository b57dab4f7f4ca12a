//! The steps that give a part a home, and its claim there.

use super::{
    amounts::{Amounts, page_bytes, split, sum},
    evaluation::Evaluation,
    model::PartModel,
};
use crate::{
    Action, Affinity, ByNode, Claim, CpuReason, Home, Origin, PageSize, PartState, Reason, Step,
    index::NodeIndex,
};
use nearside_topology::{NodeId, NodeSet, Topology};

/// The steps before a home is known: claim, confinement, CPUs. Without a scheduler that knows node
/// affinity, a soft home binds CPUs, too.
pub(super) fn before_home(
    state: &PartState,
    home: &Home,
    claim: Claim,
    topology: &Topology,
    soft_affinity: bool,
    reason: &Reason,
) -> Vec<Step> {
    let part = || state.id.clone();
    let mut steps =
        vec![Step { action: Action::Claim { part: part(), claim }, reason: reason.clone() }];
    if home.policy.confines() {
        // Pages move between two nodes that are both allowed.
        let former = state.home.as_ref().map_or_else(NodeSet::new, |home| home.nodes.clone());
        let allowed = state.memory_nodes.as_ref().unwrap_or(&former);
        let nodes = allowed.union(&home.nodes).intersection(&topology.memory_nodes());
        let action = Action::ConfineMemory { part: part(), nodes };
        steps.push(Step { action, reason: Reason::MovesNeedBoth });
    }
    let on_behalf = match home.affinity {
        Affinity::Hard => Some(CpuReason::Operator),
        Affinity::Soft if soft_affinity => None,
        Affinity::Soft => Some(CpuReason::Fallback),
    };
    // A binding of another program stays as it is.
    if let Some(on_behalf) = on_behalf.filter(|_| home.origin == Origin::Auto) {
        let cpus = topology.cpus_of_nodes(&home.nodes);
        let action = Action::BindCpus { part: part(), cpus, on_behalf };
        steps.push(Step { action, reason: reason.clone() });
    }
    steps
}

/// The claim of a part at a home: as much as before, on the nodes where its pages and vCPUs are
/// expected.
pub(super) fn claim_at(
    before: Option<&Claim>,
    part: &PartModel,
    there: &Evaluation,
    id: impl Fn(NodeIndex) -> NodeId,
) -> Claim {
    let bytes = before.map_or(part.needed_bytes, Claim::total_bytes);
    let unit = match part.page_size {
        PageSize::Base => 1,
        huge @ PageSize::Huge(_) => page_bytes(huge),
    };
    let vcpus = before.map_or_else(
        || part.demand_milli.div_ceil(1000).max(1),
        |claim| claim.vcpus.values().copied().fold(0, u64::saturating_add),
    );
    let by_node = |amounts: Amounts, unit: u64| {
        let some = amounts.into_iter().filter(|(_, n)| *n > 0);
        some.map(|(i, n)| (id(i), n.saturating_mul(unit))).collect()
    };
    Claim {
        bytes: by_node(split(bytes.div_ceil(unit), &there.pages), unit),
        vcpus: by_node(split(vcpus, &there.load_milli), 1),
        page_size: part.page_size,
    }
}

/// The claim of a part on the nodes to which another program binds it: the memory that it has
/// there, and vCPUs for its demand by `cores`.
pub(super) fn adopted_claim(
    state: &PartState,
    part: &PartModel,
    nodes: &NodeSet,
    cores: &Amounts,
    id: impl Fn(NodeIndex) -> NodeId,
) -> Claim {
    let held = state.resident_bytes.iter().filter(|(node, _)| nodes.contains(**node));
    let vcpus = split(part.demand_milli.div_ceil(1000).max(1), cores).into_iter();
    let vcpus = vcpus.filter(|(_, vcpus)| *vcpus > 0).map(|(i, vcpus)| (id(i), vcpus));
    Claim {
        bytes: held.map(|(&node, &bytes)| (node, bytes)).collect(),
        vcpus: vcpus.collect(),
        page_size: part.page_size,
    }
}

/// The share of each node in a load, in parts per million.
pub(super) fn share_ppm(load_milli: &Amounts, id: impl Fn(NodeIndex) -> NodeId) -> ByNode {
    let all = sum(load_milli).max(1);
    let share = |&(i, milli): &(NodeIndex, u64)| (id(i), milli.saturating_mul(1_000_000) / all);
    load_milli.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        MemoryPolicy,
        controllers::homes::{
            fixture::{GIB, learned, part, seen},
            model::HostModel,
            tuning::Tuning,
        },
        index::Index,
    };

    fn at(nodes: &[(usize, u64)]) -> Amounts {
        nodes.iter().map(|&(node, amount)| (NodeIndex::at(node), amount)).collect()
    }

    fn id(node: NodeIndex) -> NodeId {
        NodeId(u32::try_from(node.position()).unwrap())
    }

    fn by_node(of: &[(u32, u64)]) -> ByNode {
        of.iter().map(|&(node, amount)| (NodeId(node), amount)).collect()
    }

    /// `db` of the fixture: 2 vCPUs and 4 GiB on node 0.
    fn db() -> (PartState, PartModel, Topology) {
        let (tuning, seen) = (Tuning::default(), seen(1, 0, [0, 0]));
        let learned = learned(&tuning, &seen);
        let model = HostModel::new(&tuning, &seen, &learned).part(part(0)).clone();
        let state = seen.machine.parts[0].clone();
        (state, model, seen.machine.topology)
    }

    /// What the steps to node 1 do, in words.
    fn to_node_1(home: impl Fn(Home) -> Home, soft_affinity: bool) -> Vec<String> {
        let (state, _, topology) = db();
        let home = home(Home { nodes: [NodeId(1)].into(), ..state.home.clone().unwrap() });
        let claim = state.claim.clone().unwrap();
        let steps = before_home(&state, &home, claim, &topology, soft_affinity, &Reason::Placed);
        let word = |step: &Step| match &step.action {
            Action::Claim { .. } => "claim".to_owned(),
            Action::ConfineMemory { nodes, .. } => format!("memory on {nodes}"),
            Action::BindCpus { cpus, on_behalf, .. } => format!("CPUs {cpus} {on_behalf:?}"),
            other => panic!("{other}"),
        };
        steps.iter().map(word).collect()
    }

    #[test]
    fn a_soft_home_binds_cpus_only_without_a_scheduler() {
        assert_eq!(to_node_1(|home| home, true), ["claim"]);
        assert_eq!(to_node_1(|home| home, false), ["claim", "CPUs 2-3 Fallback"]);
    }

    #[test]
    fn memory_may_be_on_both_nodes_while_it_moves_and_a_hard_home_binds() {
        let strict = |home| Home { policy: MemoryPolicy::Strict, affinity: Affinity::Hard, ..home };
        assert_eq!(to_node_1(strict, true), ["claim", "memory on 0-1", "CPUs 2-3 Operator"]);
    }

    #[test]
    fn a_binding_of_another_program_is_not_replaced() {
        let adopted = |home| Home { origin: Origin::Adopted, affinity: Affinity::Hard, ..home };
        assert_eq!(to_node_1(adopted, true), ["claim"]);
    }

    fn evaluation(pages: &[(usize, u64)], load_milli: &[(usize, u64)]) -> Evaluation {
        let (pages, load_milli) = (at(pages), at(load_milli));
        Evaluation { pages, load_milli, ..Evaluation::impossible(&[]) }
    }

    #[test]
    fn a_claim_is_as_large_as_before_and_lies_where_pages_and_vcpus_are_expected() {
        let (state, part, _) = db();
        let there = evaluation(&[(0, 1), (1, 3)], &[(0, 0), (1, 2000)]);
        let claim = claim_at(state.claim.as_ref(), &part, &there, id);
        assert_eq!(claim.bytes, by_node(&[(0, GIB), (1, 3 * GIB)]));
        assert_eq!(claim.vcpus, by_node(&[(1, 2)]), "no entry without a vCPU");
    }

    #[test]
    fn a_first_claim_comes_from_demand_and_memory_in_whole_pages() {
        let (_, part, _) = db();
        let huge = PartModel {
            page_size: PageSize::Huge(2 << 20),
            needed_bytes: (5 << 20) + 1,
            demand_milli: 1001,
            ..part
        };
        let claim = claim_at(None, &huge, &evaluation(&[(0, 1), (1, 1)], &[(0, 1)]), id);
        // Three huge pages, the second of which is on node 1 by the rounding of the running sum.
        assert_eq!(claim.bytes, by_node(&[(0, 2 << 20), (1, 4 << 20)]));
        assert_eq!(claim.vcpus, by_node(&[(0, 2)]));
        let idle = PartModel { demand_milli: 0, ..huge };
        assert_eq!(
            claim_at(None, &idle, &evaluation(&[], &[(0, 1)]), id).vcpus,
            by_node(&[(0, 1)])
        );
    }

    #[test]
    fn an_adopted_part_claims_the_memory_that_it_has_on_those_nodes() {
        let (mut state, part, _) = db();
        state.resident_bytes = by_node(&[(0, GIB), (1, 2 * GIB)]);
        let part = PartModel { demand_milli: 2500, ..part };
        let claim = adopted_claim(&state, &part, &[NodeId(1)].into(), &at(&[(1, 2000)]), id);
        assert_eq!((claim.bytes, claim.vcpus), (by_node(&[(1, 2 * GIB)]), by_node(&[(1, 3)])));
    }

    #[test]
    fn shares_are_parts_per_million_of_the_load() {
        assert_eq!(
            share_ppm(&at(&[(0, 500), (1, 1500)]), id),
            by_node(&[(0, 250_000), (1, 750_000)])
        );
        assert_eq!(share_ppm(&at(&[(1, 0)]), id), by_node(&[(1, 0)]), "without a load");
    }
}
