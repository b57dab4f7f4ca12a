//! The decision behind `run`: a new domain.

mod cells;
mod whole;

pub use cells::{CellsPlan, StartCells, start_cells};
pub use whole::{WholePlan, start_whole};

use crate::{
    Action, Affinity, Bytes, CellsRefusal, Claim, CostModel, CpuReason, Decision, Home, Limits,
    MemoryPolicy, Observation, Origin, PartId, Plan, Reason, Refusal, Request, Step, Transaction,
    offered::isolated_notice, place,
};
use nearside_topology::{NodeSet, Topology};

/// A domain that is to be started.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// Its name.
    pub name: String,
    /// The request for its home.
    pub request: Request,
    /// The binding of its vCPUs to its home.
    pub affinity: Affinity,
    /// The limits of its use.
    pub limits: Limits,
}

/// The reason why a domain is not started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartRefusal {
    /// An invalid name.
    #[error(
        "{} is no name for a domain: use 1 to 64 letters, digits, '.', '_' and '-', not starting \
         with '.', '-' or a controller as in memory.max",
        quoted(.0)
    )]
    Name(String),
    /// A running domain has the name.
    #[error("a domain named {0} is running: choose another name, or see `nearside show {0}`")]
    Taken(String),
    /// Its limit is below its claim.
    #[error(
        "a memory limit of {} is below the {} that it claims",
        Bytes(*limit_bytes), Bytes(*memory_bytes)
    )]
    Limit {
        /// Its memory limit, in bytes.
        limit_bytes: u64,
        /// The requested memory, in bytes.
        memory_bytes: u64,
    },
    /// No home fits it.
    #[error(transparent)]
    Place(#[from] Refusal),
    /// No homes fit its cells.
    #[error(transparent)]
    Cells(#[from] CellsRefusal),
}

/// The longest name of a domain, in bytes.
pub const MAX_NAME_LENGTH: usize = 64;

/// The first words of the names of a cgroup's files (Linux,
/// `Documentation/admin-guide/cgroup-v2.rst`).
const CONTROLLERS: [&str; 11] =
    ["cgroup", "cpu", "cpuset", "dmem", "hugetlb", "io", "irq", "memory", "misc", "pids", "rdma"];

/// A name as typed, on one line and no longer than a valid name.
pub(crate) fn quoted(name: &str) -> String {
    match name.char_indices().nth(MAX_NAME_LENGTH) {
        Some((cut, _)) => format!("{:?}...", &name[..cut]),
        None => format!("{name:?}"),
    }
}

/// Whether `name` can name a domain.
pub fn is_domain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    // A cgroup's directory contains the kernel's files, whose names begin with a controller's.
    let is_kernels =
        |controller: &str| name.strip_prefix(controller).is_some_and(|rest| rest.starts_with('.'));
    (1..=MAX_NAME_LENGTH).contains(&name.len())
        && !name.starts_with(['.', '-'])
        && name.chars().all(plain)
        && !CONTROLLERS.iter().any(|controller| is_kernels(controller))
}

/// The plan that gives `start` a home and reserves its memory.
pub fn start(
    start: &Start,
    observation: &Observation,
    model: &CostModel,
) -> Result<Plan, StartRefusal> {
    let name = &start.name;
    check(name, start.limits, start.request.memory_bytes, observation)?;
    let observation = &*observation.naming(start.request.nodes.as_ref());
    let decision = place(&start.request, observation, model)?;
    let claim = decision.chosen.claim.clone();
    let topology = &observation.topology;
    let (policy, page_size) = (start.request.policy, start.request.page_size);

    let part = PartId::of(name);
    let mut steps = vec![Step {
        action: Action::Create { part: part.clone(), limits: start.limits },
        reason: Reason::NewDomain,
    }];
    let available = observation.available(page_size);
    let available_bytes = claim.nodes().iter().map(|node| (node, available.on(node))).collect();
    steps.push(Step {
        action: Action::Claim { part: part.clone(), claim },
        reason: Reason::Reserves { available_bytes },
    });
    let home = home_of(start, &decision);
    steps.push(Step {
        action: Action::SetHome { part: part.clone(), home },
        reason: Reason::Placed,
    });
    steps.extend(binding(&part, topology, &decision, start.affinity));

    let named = start.request.nodes.as_ref();
    let mut limits: Vec<_> =
        named.and_then(|nodes| isolated_notice(nodes, topology)).into_iter().collect();
    if decision.chosen.spilled_bytes > 0 {
        limits.push(format!(
            "{} do not fit {} and will come from others (policy {policy})",
            Bytes(decision.chosen.spilled_bytes),
            decision.chosen.nodes.named()
        ));
    }
    let transaction = Transaction::new(steps, observation);
    Ok(Plan { decision: Some(decision), transaction, moves: None, afterwards: None, limits })
}

/// Refuses a name that cannot be given, and a limit below the claim.
fn check(
    name: &str,
    limits: Limits,
    memory_bytes: u64,
    observation: &Observation,
) -> Result<(), StartRefusal> {
    if !is_domain_name(name) {
        return Err(StartRefusal::Name(name.into()));
    }
    if observation.parts.iter().any(|part| part.id.domain() == name) {
        return Err(StartRefusal::Taken(name.into()));
    }
    match limits.memory_bytes.filter(|&limit| limit < memory_bytes) {
        Some(limit_bytes) => Err(StartRefusal::Limit { limit_bytes, memory_bytes }),
        None => Ok(()),
    }
}

/// The home that the decision gives it.
fn home_of(start: &Start, decision: &Decision) -> Home {
    Home {
        nodes: decision.chosen.nodes.clone(),
        origin: if start.request.nodes.is_some() { Origin::Explicit } else { Origin::Auto },
        affinity: start.affinity,
        policy: start.request.policy,
    }
}

/// The steps that bind a new domain to its home. On a machine of one node there are none: every CPU
/// and page is at home, and binding would only cost.
fn binding(
    part: &PartId,
    topology: &Topology,
    decision: &Decision,
    affinity: Affinity,
) -> Vec<Step> {
    if topology.nodes.len() <= 1 {
        return Vec::new();
    }
    let policy = decision.request.policy;
    let home = &decision.chosen.nodes;
    let memory = home.intersection(&topology.memory_nodes());
    let mut steps = Vec::new();
    if policy.confines() {
        steps.push(Step {
            action: Action::ConfineMemory { part: part.clone(), nodes: memory.clone() },
            reason: Reason::PolicyConfines { policy },
        });
    }
    let cpus = topology.cpus_of_nodes(home);
    let everywhere = cpus == topology.cpus_of_nodes(&topology.node_set());
    match affinity {
        Affinity::Soft if everywhere => {}
        Affinity::Soft => steps.push(Step {
            action: Action::BindCpus { part: part.clone(), cpus, on_behalf: CpuReason::Fallback },
            reason: Reason::NoScheduler,
        }),
        Affinity::Hard => steps.push(Step {
            action: Action::BindCpus { part: part.clone(), cpus, on_behalf: CpuReason::Operator },
            reason: Reason::HardAffinity,
        }),
    }
    if let Some(nodes) = policy_nodes(policy, &memory, &decision.chosen.claim) {
        steps.push(Step {
            action: Action::SetMemoryPolicy { part: part.clone(), policy, nodes },
            reason: Reason::PolicyAsked { policy },
        });
    }
    steps
}

/// The nodes in a task's memory policy; none if the policy is not a task's, or has no node to name.
pub(crate) fn policy_nodes(
    policy: MemoryPolicy,
    memory: &NodeSet,
    claim: &Claim,
) -> Option<NodeSet> {
    match policy {
        MemoryPolicy::Restrictive => None,
        MemoryPolicy::Local => Some(NodeSet::new()),
        MemoryPolicy::Preferred => {
            let bytes = |node| claim.bytes.get(&node).copied().unwrap_or(0);
            let most = memory.iter().max_by_key(|&node| (bytes(node), std::cmp::Reverse(node)));
            most.map(|node| NodeSet::from([node]))
        }
        _ => Some(memory.clone()).filter(|nodes| !nodes.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PageSize, PartState};
    use nearside_topology::{Cpu, CpuId, Distances, Node, NodeId};

    const MIB: u64 = 1 << 20;

    fn machine(nodes: u32) -> Observation {
        let ids: Vec<_> = (0..nodes).map(NodeId).collect();
        let topology = Topology {
            nodes: ids
                .iter()
                .map(|&id| Node { id, memory_bytes: 1024 * MIB, ..Node::default() })
                .collect(),
            cpus: (0..2 * nodes).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 2))).collect(),
            distances: Distances::uniform(&ids),
            ..Topology::default()
        };
        Observation::of(topology)
    }

    fn wish(name: &str, policy: MemoryPolicy) -> Start {
        let request = Request {
            vcpus: 2,
            memory_bytes: 600 * MIB,
            page_size: PageSize::Base,
            policy,
            nodes: None,
            near: Vec::new(),
        };
        Start { name: name.into(), request, affinity: Affinity::Soft, limits: Limits::default() }
    }

    fn words(plan: &Plan) -> Vec<String> {
        plan.transaction.steps.iter().map(|step| step.action.to_string()).collect()
    }

    fn begin(wish: &Start, observation: &Observation) -> Result<Plan, StartRefusal> {
        start(wish, observation, &CostModel::default())
    }

    #[test]
    fn a_strict_domain_is_confined_bound_and_given_its_policy() {
        let plan = begin(&wish("db", MemoryPolicy::Strict), &machine(4)).unwrap();
        let expected = [
            "create domain db",
            "claim node 0: 2 vCPUs, 600 MiB",
            "make node 0 the home",
            "allow memory on node 0 only",
            "run on CPUs 0-1 for the time being",
            "set memory policy strict on node 0",
        ];
        assert_eq!(words(&plan), expected);
    }

    #[test]
    fn only_policies_that_confine_touch_cpuset_mems() {
        for policy in MemoryPolicy::ALL {
            let plan = begin(&wish("db", policy), &machine(2)).unwrap();
            let confined = plan
                .transaction
                .steps
                .iter()
                .any(|step| matches!(step.action, Action::ConfineMemory { .. }));
            assert_eq!(confined, policy.confines(), "{policy}");
            let set = plan
                .transaction
                .steps
                .iter()
                .any(|step| matches!(step.action, Action::SetMemoryPolicy { .. }));
            assert_eq!(set, policy != MemoryPolicy::Restrictive, "{policy}");
        }
    }

    #[test]
    fn on_one_node_nothing_is_bound() {
        for policy in MemoryPolicy::ALL {
            let plan = begin(&wish("db", policy), &machine(1)).unwrap();
            assert_eq!(
                words(&plan),
                ["create domain db", "claim node 0: 2 vCPUs, 600 MiB", "make node 0 the home"],
                "{policy}"
            );
        }
    }

    #[test]
    fn soft_affinity_to_the_whole_machine_binds_no_cpus_and_hard_affinity_does() {
        let mut wish = wish("db", MemoryPolicy::Interleave);
        wish.request.nodes = Some(NodeSet::from([NodeId(0), NodeId(1)]));
        let binds = |plan: &Plan| {
            plan.transaction.steps.iter().any(|step| matches!(step.action, Action::BindCpus { .. }))
        };
        assert!(!binds(&begin(&wish, &machine(2)).unwrap()));
        wish.affinity = Affinity::Hard;
        assert!(binds(&begin(&wish, &machine(2)).unwrap()));
    }

    #[test]
    fn two_domains_of_one_name_are_refused() {
        let mut observation = machine(2);
        observation.parts.push(PartState { id: "db".into(), ..PartState::default() });
        let refusal = begin(&wish("db", MemoryPolicy::Strict), &observation);
        assert_eq!(refusal, Err(StartRefusal::Taken("db".into())));
    }

    #[test]
    fn names_are_safe_as_directories_and_units() {
        for name in [
            "",
            ".",
            "..",
            "a/b",
            "cgroup.procs",
            "memory.max",
            "-rf",
            "a b",
            "a\n",
            "ä",
            "x".repeat(65).as_str(),
        ] {
            assert_eq!(
                begin(&wish(name, MemoryPolicy::Strict), &machine(1)),
                Err(StartRefusal::Name(name.into())),
                "{name:?}"
            );
        }
        let long = StartRefusal::Name("\n".repeat(65)).to_string();
        assert!(long.starts_with(&format!("\"{}\"... is no name", "\\n".repeat(64))), "{long}");
        for name in ["a", "db-1", "web_2.example", "x".repeat(64).as_str()] {
            assert!(is_domain_name(name), "{name}");
        }
    }

    #[test]
    fn outstanding_claims_of_others_are_not_available() {
        let mut observation = machine(1);
        let bytes = [(NodeId(0), 500 * MIB)].into();
        let claim = Some(Claim { bytes, ..Claim::default() });
        observation.parts.push(PartState { id: "other".into(), claim, ..PartState::default() });
        let refusal = begin(&wish("db", MemoryPolicy::Strict), &observation).unwrap_err();
        assert!(refusal.to_string().contains("too few"), "{refusal}");
        // Once it holds its memory the claim no longer counts, because the machine's free figure
        // includes it.
        observation.parts[0].resident_bytes = [(NodeId(0), 500 * MIB)].into();
        assert!(begin(&wish("db", MemoryPolicy::Strict), &observation).is_ok());
    }
}
