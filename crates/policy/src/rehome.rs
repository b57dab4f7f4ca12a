//! The decision behind `set`: another home for a running domain.

use crate::{
    Action, Affinity, Available, ByNode, Bytes, Claim, CpuReason, Home, MemoryPolicy, NoCpus,
    NotAllowed, Observation, Origin, Outcome, PageMove, PageSize, PartId, PartState, Plan, Reason,
    StayedWhy, Step, Transaction, debt_bytes,
    offered::{check_named, isolated_notice},
    start::{policy_nodes, quoted},
    total,
};
use nearside_topology::{CpuSet, NodeId, NodeSet, Topology};

/// An operator's request for a running domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rehome {
    /// The domain.
    pub part: PartId,
    /// Its new home.
    pub nodes: NodeSet,
    /// The binding of its vCPUs to the new home; None leaves it as it is.
    pub affinity: Option<Affinity>,
    /// Whether its memory moves at once.
    pub move_memory: bool,
    /// The highest rate, in bytes per second.
    pub rate_bytes_per_s: Option<u64>,
}

/// The reason why a home cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RehomeRefusal {
    /// No domain has this name.
    #[error("there is no domain named {}: `nearside list` shows those that run", quoted(.0))]
    UnknownDomain(String),
    /// The request names no node.
    #[error("the set of nodes is empty: name at least one of {}", .0.named())]
    NoNodes(NodeSet),
    /// A node that the machine does not have.
    #[error("there is no {}: this machine has {}", unknown.named(), known.named())]
    UnknownNodes {
        /// The unknown nodes.
        unknown: NodeSet,
        /// The machine's nodes.
        known: NodeSet,
    },
    /// Nodes that domains may not use.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
    /// The nodes have no CPU.
    #[error(transparent)]
    NoCpus(#[from] NoCpus),
    /// The nodes have no memory.
    #[error("there is no memory on {}", .0.named())]
    NoMemory(NodeSet),
    /// A confined domain would not fit.
    #[error(
        "{} do not fit: {} are available on {}, {} too few ({} bytes)",
        Bytes(*needed_bytes), Bytes(*available_bytes), nodes.named(),
        Bytes(needed_bytes - available_bytes), needed_bytes - available_bytes
    )]
    DoesNotFit {
        /// The nodes.
        nodes: NodeSet,
        /// The memory that it claims or holds elsewhere, in bytes.
        needed_bytes: u64,
        /// Bytes available there.
        available_bytes: u64,
    },
}

/// The default rate of page moves: 1 GiB/s, a few percent of a memory channel's bandwidth, so other
/// users of the channel hardly notice. 100 GiB take under two minutes.
pub const DEFAULT_RATE_BYTES_PER_S: u64 = 1 << 30;

/// The plan that gives a domain the home `wish` names.
///
/// Narrowing `cpuset.mems` migrates pages at once and without limit. So pages move in batches while
/// the former nodes are still allowed, and the last step moves only the remainder. Without
/// `move_memory` all these nodes stay allowed. On a machine of one node the plan is empty.
pub fn rehome(wish: &Rehome, observation: &Observation) -> Result<Plan, RehomeRefusal> {
    let observation = &*observation.naming(Some(&wish.nodes));
    let domain = find(observation, &wish.part)?;
    let topology = &observation.topology;
    let known = topology.node_set();
    let (cpus, memory) = usable(&wish.nodes, topology)?;
    if known.len() == 1 {
        let limits = vec!["this machine has one node: every domain is at home there".into()];
        return Ok(Plan {
            decision: None,
            transaction: Transaction::default(),
            moves: None,
            afterwards: None,
            limits,
        });
    }

    let part = || wish.part.clone();
    let from = domain.home.as_ref().map_or_else(|| known.clone(), |home| home.nodes.clone());
    let policy = domain.home.as_ref().map(|home| home.policy);
    let confining = policy.filter(|policy| policy.confines());
    let new_home = Reason::NewHome { from: from.clone(), to: wish.nodes.clone() };
    let claim = domain
        .claim
        .as_ref()
        .map(|claim| moved_claim(claim, domain, observation, &wish.nodes, &memory));
    if confining.is_some()
        && let Some(claim) = &claim
    {
        check_fit(claim, wish, domain, observation, &memory)?;
    }

    let mut steps = Vec::new();
    let mut step = |action, reason: &Reason| steps.push(Step { action, reason: reason.clone() });
    if let Some(claim) = claim {
        step(Action::Claim { part: part(), claim }, &new_home);
    }
    // More nodes than the home may be allowed, after an interrupted move or a change of home
    // without one.
    let before = domain.memory_nodes.as_ref().unwrap_or(&from);
    let both = before.union(&memory).intersection(&topology.memory_nodes());
    if confining.is_some() {
        step(Action::ConfineMemory { part: part(), nodes: both.clone() }, &Reason::MovesNeedBoth);
    }
    let home = home_after(wish, domain.home.as_ref());
    let on_behalf = match home.affinity {
        Affinity::Hard => CpuReason::Operator,
        Affinity::Soft => CpuReason::Fallback,
    };
    step(Action::BindCpus { part: part(), cpus, on_behalf }, &new_home);
    step(Action::SetHome { part: part(), home: home.clone() }, &new_home);
    let transaction = Transaction::new(steps, observation);
    let moves = wish.move_memory.then(|| {
        let (nodes, rate_bytes_per_s) = (memory.clone(), wish.rate_bytes_per_s);
        let action = PageMove { part: part(), nodes, rate_bytes_per_s, batch: None };
        Step { action, reason: new_home.clone() }
    });
    let narrowed = confining.filter(|_| wish.move_memory && both != memory).map(|policy| {
        let action = Action::ConfineMemory { part: part(), nodes: memory.clone() };
        let steps = vec![Step { action, reason: Reason::PolicyConfines { policy } }];
        // It is applied at the new home.
        Transaction::new(steps, &observation.clone().after(&transaction))
    });
    let mut limits = limits_of(policy, wish, &from, &memory, &both);
    limits.extend(isolated_notice(&wish.nodes, topology));
    Ok(Plan { decision: None, transaction, moves, afterwards: narrowed, limits })
}

/// Whether these nodes can be the home of a domain that may use the machine in `observation`.
///
/// # Errors
/// The reason why not.
pub fn may_be_home(nodes: &NodeSet, observation: &Observation) -> Result<(), RehomeRefusal> {
    usable(nodes, &observation.naming(Some(nodes)).topology).map(drop)
}

/// The CPUs and the nodes with memory of a home.
fn usable(nodes: &NodeSet, topology: &Topology) -> Result<(CpuSet, NodeSet), RehomeRefusal> {
    let known = topology.node_set();
    if nodes.is_empty() {
        return Err(RehomeRefusal::NoNodes(known));
    }
    let unknown = nodes.difference(&known);
    if !unknown.is_empty() {
        return Err(RehomeRefusal::UnknownNodes { unknown, known });
    }
    check_named(nodes, topology)?;
    let cpus = topology.cpus_of_nodes(nodes);
    if cpus.is_empty() {
        return Err(NoCpus::on(nodes, topology).into());
    }
    let memory = nodes.intersection(&topology.memory_nodes());
    match memory.is_empty() {
        true => Err(RehomeRefusal::NoMemory(nodes.clone())),
        false => Ok((cpus, memory)),
    }
}

/// The home of a domain once `wish` is carried out.
pub fn home_after(wish: &Rehome, before: Option<&Home>) -> Home {
    let before_or = before.map_or(Affinity::Soft, |home| home.affinity);
    let affinity = wish.affinity.unwrap_or(before_or);
    let policy = before.map_or(MemoryPolicy::Local, |home| home.policy);
    Home { nodes: wish.nodes.clone(), origin: Origin::Explicit, affinity, policy }
}

/// The nodes in the memory policy of processes that a domain starts at its new home; none without a
/// policy.
pub fn later_policy_nodes(home: &Home, claim: &Claim, topology: &Topology) -> Option<NodeSet> {
    policy_nodes(home.policy, &home.nodes.intersection(&topology.memory_nodes()), claim)
}

/// Whether the confinement that follows a move with this outcome may be carried out.
///
/// Busy pages stay where they are when the domain is confined to its new home, which does no harm.
/// But if the new home is full, a confined domain is killed at its next page (`CONSTRAINT_CPUSET`
/// in `mm/oom_kill.c`) or huge page (`SIGBUS`).
pub fn may_go_on(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Applied { .. } => true,
        Outcome::Refused { .. } | Outcome::Partly { interrupted: true, .. } => false,
        Outcome::Partly { stayed, .. } => {
            !stayed.contains_key(&StayedWhy::NoRoom) && !stayed.contains_key(&StayedWhy::NoHugePage)
        }
    }
}

fn find<'a>(observation: &'a Observation, part: &PartId) -> Result<&'a PartState, RehomeRefusal> {
    observation.part(part).ok_or_else(|| RehomeRefusal::UnknownDomain(part.to_string()))
}

/// Notices about changes that Linux allows only the domain itself, and their consequences.
fn limits_of(
    policy: Option<MemoryPolicy>,
    wish: &Rehome,
    from: &NodeSet,
    memory: &NodeSet,
    allowed: &NodeSet,
) -> Vec<String> {
    let mut limits = Vec::new();
    match policy {
        None | Some(MemoryPolicy::Local | MemoryPolicy::Restrictive) => {}
        // Narrowing cpuset.mems rebinds the policy of every task node by node (mpol_rebind_task in
        // mm/mempolicy.c).
        Some(MemoryPolicy::Strict) if wish.move_memory && from.len() < memory.len() => {
            limits.push(format!(
                "processes that run stay bound to as many nodes as before ({}); those that \
                 `nearside exec` starts use all of the new home",
                from.len()
            ));
        }
        Some(MemoryPolicy::Strict) if wish.move_memory || allowed == memory => {}
        Some(MemoryPolicy::Strict) => limits.push(format!(
            "processes that run may use memory of {} until it is moved; those that \
             `nearside exec` starts use the new home",
            allowed.named()
        )),
        Some(_) if *from == wish.nodes => {}
        Some(policy) => limits.push(format!(
            "Linux lets no process change the memory policy of another: processes that run keep \
             {policy} on the old nodes, and so do their children; those that \
             `nearside exec` starts get the new ones"
        )),
    }
    limits
}

/// The claim on the new home: vCPUs evenly over its nodes with CPUs, bytes where they fit best.
fn moved_claim(
    claim: &Claim,
    domain: &PartState,
    observation: &Observation,
    nodes: &NodeSet,
    memory: &NodeSet,
) -> Claim {
    let topology = &observation.topology;
    let with_cpus: Vec<_> =
        nodes.iter().filter(|&node| !topology.cpus_of(node).is_empty()).collect();
    let all_vcpus = total(&claim.vcpus);
    let share = |at: usize| {
        let (n, at) = (with_cpus.len() as u64, at as u64);
        all_vcpus / n + u64::from(at < all_vcpus % n)
    };
    let vcpus = with_cpus.iter().enumerate().map(|(at, &node)| (node, share(at))).collect();

    let room = Room::new(claim, domain, observation);
    let unit = match claim.page_size {
        PageSize::Base => 1,
        PageSize::Huge(bytes) => bytes.max(1),
    };
    let mut left = claim.total_bytes();
    let mut bytes = ByNode::new();
    // The new home comes first. A domain that is not confined keeps the rest of its claim
    // elsewhere, so that no claim exceeds the memory of its node.
    let elsewhere = topology.memory_nodes().difference(memory);
    for nodes in [memory, &elsewhere] {
        share_out(&mut left, &mut bytes, nodes, unit, |node| room.on(node));
    }
    if let Some(first) = memory.first().filter(|_| left > 0) {
        *bytes.entry(first).or_default() += left;
    }
    Claim { bytes, vcpus, page_size: claim.page_size }
}

/// Shares bytes out in proportion to the room on each node, in whole pages and up to that room.
fn share_out(
    left: &mut u64,
    bytes: &mut ByNode,
    nodes: &NodeSet,
    unit: u64,
    room: impl Fn(NodeId) -> u64,
) {
    let all = *left;
    let all_room: u128 = nodes.iter().map(|node| u128::from(room(node))).sum();
    for node in nodes.iter() {
        let share = (u128::from(all) * u128::from(room(node))).div_ceil(all_room.max(1));
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let share = share.checked_next_multiple_of(unit).unwrap_or(share);
        let share = share.min(room(node) / unit * unit).min(*left);
        bytes.insert(node, share);
        *left -= share;
    }
    // Rounding to pages may leave some room unused.
    for node in nodes.iter() {
        let given = bytes.entry(node).or_default();
        let more = ((room(node) / unit * unit).saturating_sub(*given)).min(*left);
        *given += more;
        *left -= more;
    }
    bytes.retain(|_, amount| *amount > 0);
}

/// The memory for a domain at another home: the available part, its own claim left out, and its
/// resident memory there.
struct Room<'a> {
    available: Available,
    held: &'a ByNode,
}

impl<'a> Room<'a> {
    fn new(claim: &Claim, domain: &'a PartState, observation: &Observation) -> Self {
        let available = observation.available_without(claim.page_size, Some(domain));
        Self { available, held: &domain.resident_bytes }
    }

    fn on(&self, node: NodeId) -> u64 {
        self.available.on(node).saturating_add(self.held.get(&node).copied().unwrap_or(0))
    }

    /// The sum over several nodes, if memory elsewhere is given back because it moves.
    fn on_nodes(&self, nodes: &NodeSet, moves: bool) -> u64 {
        let elsewhere = debt_bytes(self.held, nodes);
        let available = self.available.on_nodes(nodes, if moves { elsewhere } else { 0 });
        available.saturating_add(total(self.held).saturating_sub(elsewhere))
    }
}

/// A confined domain needs room at its new home for all the memory that it may come to hold there.
fn check_fit(
    moved: &Claim,
    wish: &Rehome,
    domain: &PartState,
    observation: &Observation,
    memory: &NodeSet,
) -> Result<(), RehomeRefusal> {
    let claim = domain.claim.as_ref().unwrap_or(moved);
    let available_bytes = Room::new(claim, domain, observation).on_nodes(memory, wish.move_memory);
    let needed_bytes = match wish.move_memory {
        // Its memory beyond the claim needs room as well.
        true => moved.total_bytes().max(total(&domain.resident_bytes)),
        // Memory elsewhere stays there for now. The daemon brings it home later, so its place is
        // reserved.
        false => moved.total_bytes(),
    };
    if needed_bytes > available_bytes {
        return Err(RehomeRefusal::DoesNotFit {
            nodes: memory.clone(),
            needed_bytes,
            available_bytes,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
