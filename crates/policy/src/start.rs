//! The decision behind `run`: a new domain.

use crate::{
    Action, Affinity, CostModel, CpuReason, Decision, Limits, MemoryPolicy, Observation, Plan, Reason, Refusal,
    Request, Step, place,
};
use nearside_topology::{NodeSet, Topology};

/// A domain that is to be started.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// Its name.
    pub name: String,
    /// What it asks for.
    pub request: Request,
    /// How its vCPUs are bound to its home.
    pub affinity: Affinity,
    /// What it may use at most.
    pub limits: Limits,
}

/// Why a domain is not started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartRefusal {
    /// A name that cannot be a directory's, a unit's or a word's.
    #[error(
        "\"{0}\" is no name for a domain: use 1 to 64 letters, digits, '.', '_' and '-', not starting with '.' or '-'"
    )]
    Name(String),
    /// There is one of that name already.
    #[error("a domain named {0} is running: choose another name, or see `nearside show {0}`")]
    Taken(String),
    /// It has no place here.
    #[error(transparent)]
    Place(#[from] Refusal),
}

/// The longest name of a domain, in bytes.
pub const MAX_NAME_LENGTH: usize = 64;

/// Whether `name` can name a domain.
pub fn is_domain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=MAX_NAME_LENGTH).contains(&name.len()) && !name.starts_with(['.', '-']) && name.chars().all(plain)
}

/// What has to be done so that `start` gets a home and nobody else counts on it.
pub fn start(start: &Start, observation: &Observation, model: &CostModel) -> Result<Plan, StartRefusal> {
    let name = &start.name;
    if !is_domain_name(name) {
        return Err(StartRefusal::Name(name.clone()));
    }
    if observation.domains.iter().any(|domain| domain.name == *name) {
        return Err(StartRefusal::Taken(name.clone()));
    }
    let decision = place(&start.request, observation, model)?;
    let claim = decision.chosen.claim.clone();
    let topology = &observation.topology;
    let (policy, page_size) = (start.request.policy, start.request.page_size);

    let mut steps =
        vec![Step { action: Action::Create { domain: name.clone(), limits: start.limits }, reason: Reason::NewDomain }];
    let on = |node| (node, observation.unclaimed_bytes(node, page_size));
    let unclaimed_bytes = claim.nodes().iter().map(on).collect();
    steps.push(Step {
        action: Action::Claim { domain: name.clone(), claim },
        reason: Reason::Promise { unclaimed_bytes },
    });
    steps.extend(binding(name, topology, &decision, start.affinity));

    let mut limits = Vec::new();
    if decision.chosen.spilled_bytes > 0 {
        limits.push(format!(
            "{} MiB do not fit nodes {} and will come from others (policy {policy})",
            decision.chosen.spilled_bytes >> 20,
            decision.chosen.nodes
        ));
    }
    Ok(Plan { decision: Some(decision), steps, limits })
}

/// The steps that bind a new domain to its home. On a machine of one node there are none: every CPU and every page is
/// at home, and binding would only cost.
fn binding(domain: &str, topology: &Topology, decision: &Decision, affinity: Affinity) -> Vec<Step> {
    if topology.nodes.len() <= 1 {
        return Vec::new();
    }
    let domain = domain.to_owned();
    let policy = decision.request.policy;
    let home = &decision.chosen.nodes;
    let memory = home.intersection(&topology.memory_nodes());
    let mut steps = Vec::new();
    if policy.confines() {
        steps.push(Step {
            action: Action::ConfineMemory { domain: domain.clone(), nodes: memory.clone() },
            reason: Reason::PolicyConfines { policy },
        });
    }
    let cpus = topology.cpus_of_nodes(home);
    let everywhere = cpus == topology.cpus_of_nodes(&topology.node_set());
    match affinity {
        Affinity::Soft if everywhere => {}
        Affinity::Soft => steps.push(Step {
            action: Action::BindCpus { domain: domain.clone(), cpus, on_behalf: CpuReason::Fallback },
            reason: Reason::NoScheduler,
        }),
        Affinity::Hard => steps.push(Step {
            action: Action::BindCpus { domain: domain.clone(), cpus, on_behalf: CpuReason::Operator },
            reason: Reason::HardAffinity,
        }),
    }
    if let Some(nodes) = policy_nodes(policy, &memory, decision) {
        steps.push(Step {
            action: Action::SetMemoryPolicy { domain, policy, nodes },
            reason: Reason::PolicyAsked { policy },
        });
    }
    steps
}

/// The nodes to name in a task's memory policy; none where the policy is not a task's or would have no node to name.
pub(crate) fn policy_nodes(policy: MemoryPolicy, memory: &NodeSet, decision: &Decision) -> Option<NodeSet> {
    match policy {
        MemoryPolicy::Restrictive => None,
        MemoryPolicy::Local => Some(NodeSet::new()),
        MemoryPolicy::Preferred => {
            let bytes = |node| decision.chosen.claim.bytes.get(&node).copied().unwrap_or(0);
            let most = memory.iter().max_by_key(|&node| (bytes(node), std::cmp::Reverse(node)));
            most.map(|node| NodeSet::from([node]))
        }
        _ => Some(memory.clone()).filter(|nodes| !nodes.is_empty()),
    }
}
