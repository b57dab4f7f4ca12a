//! Placement: which set of nodes becomes a domain's home.

use crate::{
    Bytes, Candidate, Claim, CostModel, Decision, LeftOut, NoCpus, Observation, PageSize, Refusal,
    Request, SlowDown,
    cost::{Ask, Costing, Unfit},
    index::{Index, NodeIndex},
    offered::{check_named, tiers_to_leave_out},
    ranking::Ranking,
    search,
    view::View,
};
use nearside_topology::{NodeSet, Topology};

/// Up to this many nodes every set is evaluated.
pub const EXHAUSTIVE_NODES: usize = 12;

// The unit in which ordinary memory is promised. A machine with larger pages rounds up once more,
// by less than a page.
const BASE_PAGE_BYTES: u64 = 4096;

/// The way to find candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Every set on a machine of up to [`EXHAUSTIVE_NODES`] nodes, the search on a larger one.
    BySize,
    /// The search even on a small machine, to measure its distance from the best.
    Search,
}

/// The home for `request` on the observed machine: the candidate with the least slow-down. Among
/// equals the one with fewer vCPUs a core wins, then more free memory afterwards, then the lowest
/// numbers.
///
/// Memory of a lower tier than that of all nodes with CPUs counts only if the domain fits nowhere
/// else, or if the request names nodes.
///
/// A candidate is a set of nodes, each with a vCPU or a page: a node with neither is no part of a
/// home. If the request names nodes, they are the home, even if another set is better.
///
/// # Errors
/// A [`Refusal`] if the request is invalid on this machine or does not fit it.
pub fn place(
    request: &Request,
    observation: &Observation,
    model: &CostModel,
) -> Result<Decision, Refusal> {
    place_with(Method::BySize, request, observation, model)
}

/// [`place`] with a given way to find candidates.
///
/// # Errors
/// As [`place`].
pub fn place_with(
    method: Method,
    request: &Request,
    observation: &Observation,
    model: &CostModel,
) -> Result<Decision, Refusal> {
    for left_out in tiers_to_leave_out(&observation.topology) {
        if left_out.is_empty() || request.nodes.is_some() {
            break;
        }
        let without = observation.without_memory_of(&left_out);
        if let Ok(decision) = decide(method, request, &without, model) {
            return Ok(decision);
        }
    }
    decide(method, request, observation, model)
}

/// The decision on all memory of the observed machine.
fn decide(
    method: Method,
    request: &Request,
    observation: &Observation,
    model: &CostModel,
) -> Result<Decision, Refusal> {
    let observation = &*observation.naming(request.nodes.as_ref());
    let topology = &observation.topology;
    let page_bytes = check(request, topology)?;
    let pages = request.memory_bytes.div_ceil(page_bytes);
    let needed_bytes = pages.saturating_mul(page_bytes);
    check_machine(request.page_size, needed_bytes, topology)?;

    let view = View::new(observation, request.page_size, page_bytes, model);
    let near = request.near.iter().filter_map(|&node| view.index_of(node)).collect();
    let ask = Ask {
        vcpus: request.vcpus.into(),
        pages,
        policy: request.policy,
        stays_home: request.policy.confines(),
        page_size: request.page_size,
        near,
    };
    let mut costing = Costing::new(&view, &ask, model);
    let does_not_fit = |available_pages: u64, nodes: &NodeSet, where_: String| {
        let available_bytes = available_pages.saturating_mul(page_bytes);
        let short_by_bytes = needed_bytes.saturating_sub(available_bytes);
        let page_size = request.page_size;
        unknown_memory(page_size, needed_bytes, nodes, topology).unwrap_or(Refusal::DoesNotFit {
            needed_bytes,
            available_bytes,
            short_by_bytes,
            where_,
            page_size,
        })
    };

    let explicit = match &request.nodes {
        None => None,
        Some(nodes) => {
            let set: Vec<NodeIndex> = nodes.iter().filter_map(|node| view.index_of(node)).collect();
            let chosen =
                candidate(&mut costing, &set, page_bytes).map_err(|unfit| match unfit {
                    Unfit::NoCpus | Unfit::TooSlow => NoCpus::on(nodes, topology).into(),
                    Unfit::TooSmall(room) if request.policy.confines() => does_not_fit(
                        room.pages,
                        nodes,
                        format!("{} (policy {})", nodes.named(), request.policy),
                    ),
                    Unfit::TooSmall(room) => {
                        does_not_fit(room.pages, &topology.node_set(), topology.node_set().named())
                    }
                })?;
            Some((set, chosen))
        }
    };

    let exhaustive = method == Method::BySize && view.nodes.len() <= EXHAUSTIVE_NODES;
    let mut ranking = Ranking::default();
    if exhaustive {
        evaluate_all(&mut costing, &mut ranking);
    } else {
        search::search(&mut costing, &mut ranking);
    }
    let best = ranking.best().map(|set| set.to_vec()).collect::<Vec<_>>();
    let mut candidates =
        best.iter().filter_map(|set| candidate(&mut costing, set, page_bytes).ok());
    let (chosen, runners_up) = match explicit {
        Some((set, chosen)) => {
            let others = best.iter().filter(|other| **other != set).take(Ranking::RUNNERS_UP);
            let others =
                others.filter_map(|set| candidate(&mut costing, set, page_bytes).ok()).collect();
            (chosen, others)
        }
        None => {
            let nodes = topology.node_set();
            let chosen = candidates.next().ok_or_else(|| match ranking.max_pages() {
                None => NoCpus::on(&nodes, topology).into(),
                Some(pages) => does_not_fit(pages, &nodes, nodes.named()),
            })?;
            (chosen, candidates.take(Ranking::RUNNERS_UP).collect())
        }
    };
    Ok(Decision {
        request: request.clone(),
        chosen,
        runners_up,
        left_out: LeftOut::of(topology, request.nodes.as_ref()),
        candidates: ranking.evaluated(),
        exhaustive,
        model: *model,
    })
}

// Refuses a request that is invalid on this machine; returns the size of a page in bytes.
pub(crate) fn check(request: &Request, topology: &Topology) -> Result<u64, Refusal> {
    if request.vcpus == 0 {
        return Err(Refusal::NoVcpus);
    }
    if request.memory_bytes == 0 {
        return Err(Refusal::NoMemory);
    }
    let known = topology.node_set();
    if request.nodes.as_ref().is_some_and(NodeSet::is_empty) {
        return Err(Refusal::NoNodes { known });
    }
    let named = request.nodes.iter().flat_map(NodeSet::iter).chain(request.near.iter().copied());
    if let Some(node) = named.into_iter().find(|&node| topology.node(node).is_none()) {
        return Err(Refusal::UnknownNode { node, known });
    }
    if let Some(nodes) = &request.nodes {
        check_named(nodes, topology)?;
    }
    match request.page_size {
        PageSize::Base => Ok(BASE_PAGE_BYTES),
        PageSize::Huge(page_bytes) => {
            let pools = || topology.nodes.iter().flat_map(|node| &node.huge_pages);
            if page_bytes >= BASE_PAGE_BYTES && pools().any(|pool| pool.page_bytes == page_bytes) {
                return Ok(page_bytes);
            }
            let mut sizes: Vec<u64> = pools().map(|pool| pool.page_bytes).collect();
            sizes.sort_unstable();
            sizes.dedup();
            let sizes: Vec<String> =
                sizes.into_iter().map(|bytes| Bytes(bytes).to_string()).collect();
            let known = match sizes.is_empty() {
                true => "it has no huge pages".into(),
                false => format!("its huge pages are of {}", sizes.join(" or ")),
            };
            Err(Refusal::NoHugePages { page_bytes, known })
        }
    }
}

pub(crate) fn check_machine(
    page_size: PageSize,
    needed_bytes: u64,
    topology: &Topology,
) -> Result<(), Refusal> {
    let machine_bytes = match page_size {
        PageSize::Base => topology.memory_bytes(),
        PageSize::Huge(page_bytes) => {
            let pools = topology.nodes.iter().flat_map(|node| &node.huge_pages);
            let of_size = pools.filter(|pool| pool.page_bytes == page_bytes);
            of_size
                .map(|pool| pool.total_pages.saturating_mul(page_bytes))
                .fold(0, u64::saturating_add)
        }
    };
    match page_size {
        PageSize::Huge(page_bytes) if machine_bytes == 0 => Err(Refusal::NoPool { page_bytes }),
        _ if needed_bytes > machine_bytes => {
            let unknown = unknown_memory(page_size, needed_bytes, &topology.node_set(), topology);
            Err(unknown.unwrap_or(Refusal::MoreThanMachine {
                needed_bytes,
                machine_bytes,
                page_size,
            }))
        }
        _ => Ok(()),
    }
}

// The message for a request beyond the known memory, if some nodes may have more ordinary memory.
pub(crate) fn unknown_memory(
    page_size: PageSize,
    needed_bytes: u64,
    nodes: &NodeSet,
    topology: &Topology,
) -> Option<Refusal> {
    let nodes = topology.nodes_of_unknown_memory().intersection(nodes);
    let machine = topology.source.clone();
    (page_size == PageSize::Base && !nodes.is_empty()).then_some(Refusal::UnknownMemory {
        needed_bytes,
        nodes,
        machine,
    })
}

pub(crate) fn evaluate_all(costing: &mut Costing<'_>, ranking: &mut Ranking) {
    let n = costing.view.nodes.len();
    let mut set = Vec::with_capacity(n);
    for members in 1_u32..1 << n {
        set.clear();
        set.extend(costing.view.nodes.indices().filter(|i| members & (1 << i.position()) != 0));
        ranking.evaluate(costing, &set);
    }
}

// A set in the form of a decision.
fn candidate(
    costing: &mut Costing<'_>,
    set: &[NodeIndex],
    page_bytes: u64,
) -> Result<Candidate, Unfit> {
    let prediction = costing.predict(set, SlowDown(u64::MAX))?;
    let id = |i: NodeIndex| costing.view.nodes[i].id;
    let layout = costing.layout();
    let bytes =
        layout.pages().map(|(i, pages)| (id(i), pages.saturating_mul(page_bytes))).collect();
    let vcpus = layout.vcpus().map(|(i, vcpus)| (id(i), vcpus)).collect();
    let page_size = costing.ask.page_size;
    Ok(Candidate {
        nodes: set.iter().map(|&i| id(i)).collect::<NodeSet>(),
        slow_down: prediction.slow_down,
        parts: prediction.parts,
        vcpus_per_core_ppm: Some(prediction.vcpus_per_core_ppm),
        claim: Claim { bytes, vcpus, page_size },
        spilled_bytes: prediction.spilled_pages.saturating_mul(page_bytes),
        free_after_bytes: prediction.free_after_pages.saturating_mul(page_bytes),
    })
}

#[cfg(test)]
mod tests;
