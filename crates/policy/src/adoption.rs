//! Reservations without an owner, and the domains that adopt them (docs/adr/0015-numad.md).
//!
//! An answer of `numad` reserves memory for a domain without a name. The domain that starts is
//! recognised by the nodes that bind its memory, by its size as far as that is known, and by its
//! start after the answer.

use nearside_topology::NodeSet;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;

/// A reservation that waits for its domain to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unowned {
    /// Its name.
    pub name: String,
    /// The nodes of the answer.
    pub nodes: NodeSet,
    /// The vCPUs that were asked for.
    pub vcpus: u64,
    /// The memory that was asked for, in bytes; 0 if it was unknown.
    pub bytes: u64,
    /// The time of the answer, in seconds since boot.
    pub made_boottime_s: u64,
}

/// A domain that may be the owner of a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newcomer {
    /// The path of its cgroup.
    pub cgroup: String,
    /// The nodes that its memory is bound to.
    pub nodes: NodeSet,
    /// Its vCPUs, if they are known.
    pub vcpus: Option<u64>,
    /// Its memory in bytes, if that is known.
    pub memory_bytes: Option<u64>,
    /// The start of its first process, in seconds since boot.
    pub started_boottime_s: u64,
}

/// The domains that adopt reservations: pairs of indices into `unowned` and `newcomers`. The oldest
/// reservation goes to the domain that started first, and neither is in two pairs.
///
/// `memory_nodes` are the nodes with memory: a manager binds memory to these alone, although the
/// answer may also name nodes that have only CPUs.
pub fn adoptions(
    unowned: &[Unowned],
    newcomers: &[Newcomer],
    memory_nodes: &NodeSet,
) -> Vec<(usize, usize)> {
    let mut oldest: Vec<usize> = (0..unowned.len()).collect();
    oldest.sort_by_key(|&at| (unowned[at].made_boottime_s, &unowned[at].name));
    let mut first: Vec<usize> = (0..newcomers.len()).collect();
    first.sort_by_key(|&at| (newcomers[at].started_boottime_s, &newcomers[at].cgroup));
    let mut taken = BTreeSet::new();
    let mut pairs = Vec::new();
    for reservation in oldest {
        let is_owner = |&newcomer: &usize| {
            !taken.contains(&newcomer)
                && is_owner(&unowned[reservation], &newcomers[newcomer], memory_nodes)
        };
        if let Some(newcomer) = first.iter().copied().find(is_owner) {
            taken.insert(newcomer);
            pairs.push((reservation, newcomer));
        }
    }
    pairs
}

fn is_owner(unowned: &Unowned, newcomer: &Newcomer, memory_nodes: &NodeSet) -> bool {
    let nodes = unowned.nodes.intersection(memory_nodes);
    // A domain that nothing binds looks like one that was bound to every node.
    let is_bound = nodes != *memory_nodes;
    let has_vcpus = newcomer.vcpus.map_or(is_bound, |vcpus| vcpus == unowned.vcpus);
    // libvirt rounds the memory up to MiB (virNumaGetAutoPlacementAdvice in src/util/virnuma.c).
    let is_size = |bytes: u64| bytes.div_ceil(MIB) == unowned.bytes / MIB;
    has_vcpus
        && newcomer.nodes == nodes
        && (unowned.bytes == 0 || newcomer.memory_bytes.is_none_or(is_size))
        && newcomer.started_boottime_s >= unowned.made_boottime_s
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::NodeId;
    use proptest::prelude::*;

    fn nodes(nodes: &[u32]) -> NodeSet {
        nodes.iter().copied().map(NodeId).collect()
    }

    fn unowned(name: &str, on: &[u32], made_boottime_s: u64) -> Unowned {
        let name = name.into();
        Unowned { name, nodes: nodes(on), vcpus: 2, bytes: 500 * MIB, made_boottime_s }
    }

    fn newcomer(on: &[u32], started_boottime_s: u64) -> Newcomer {
        let cgroup = format!("/machine.slice/{started_boottime_s}.scope");
        Newcomer {
            cgroup,
            nodes: nodes(on),
            vcpus: Some(2),
            memory_bytes: None,
            started_boottime_s,
        }
    }

    #[test]
    fn a_reservation_goes_to_a_domain_on_its_nodes_of_its_size_that_started_later() {
        let reservation = unowned("numad-1", &[1], 100);
        let with = |change: &dyn Fn(&mut Newcomer)| {
            let mut domain = newcomer(&[1], 101);
            change(&mut domain);
            domain
        };
        let cases: [(&str, Newcomer, bool); 9] = [
            ("as it was asked for", newcomer(&[1], 101), true),
            ("started in the same second", newcomer(&[1], 100), true),
            ("on another node", newcomer(&[2], 101), false),
            ("on more nodes", newcomer(&[1, 2], 101), false),
            ("started before the answer", newcomer(&[1], 99), false),
            ("of another number of vCPUs", with(&|it| it.vcpus = Some(4)), false),
            ("of unknown size", with(&|it| it.vcpus = None), true),
            ("rounded up to MiB", with(&|it| it.memory_bytes = Some(500 * MIB - 1)), true),
            ("of more memory", with(&|it| it.memory_bytes = Some(501 * MIB)), false),
        ];
        let all = nodes(&[0, 1, 2]);
        for (what, domain, adopts) in cases {
            let pairs = adoptions(std::slice::from_ref(&reservation), &[domain], &all);
            assert_eq!(!pairs.is_empty(), adopts, "a domain {what}");
        }
    }

    #[test]
    fn an_answer_of_every_node_needs_a_domain_of_known_size() {
        let all = nodes(&[0, 1]);
        let wide = [unowned("numad-1", &[0, 1], 100)];
        let mut domain = newcomer(&[0, 1], 101);
        assert_eq!(adoptions(&wide, std::slice::from_ref(&domain), &all), [(0, 0)]);
        domain.vcpus = None;
        assert_eq!(adoptions(&wide, &[domain], &all), []);
    }

    #[test]
    fn nodes_without_memory_do_not_bind_memory() {
        let answer = [unowned("numad-1", &[1, 2], 100)];
        assert_eq!(adoptions(&answer, &[newcomer(&[1], 101)], &nodes(&[0, 1])), [(0, 0)]);
    }

    #[test]
    fn equal_domains_adopt_in_the_order_of_their_starts() {
        let all = nodes(&[0, 1]);
        let answers = [unowned("numad-2", &[1], 103), unowned("numad-1", &[1], 100)];
        let domains = [newcomer(&[1], 104), newcomer(&[1], 101)];
        assert_eq!(adoptions(&answers, &domains, &all), [(1, 1), (0, 0)]);
    }

    proptest! {
        #[test]
        fn no_reservation_and_no_domain_is_in_two_pairs(
            made in proptest::collection::vec((0..3_u32, 0..9_u64), 0..8),
            started in proptest::collection::vec((0..3_u32, 0..9_u64), 0..8),
        ) {
            let answers: Vec<_> =
                made.iter().map(|&(node, at)| unowned("numad", &[node], at)).collect();
            let domains: Vec<_> = started.iter().map(|&(node, at)| newcomer(&[node], at)).collect();
            let all = nodes(&[0, 1, 2]);
            let pairs = adoptions(&answers, &domains, &all);
            let reservations: BTreeSet<_> = pairs.iter().map(|pair| pair.0).collect();
            let owners: BTreeSet<_> = pairs.iter().map(|pair| pair.1).collect();
            prop_assert_eq!((reservations.len(), owners.len()), (pairs.len(), pairs.len()));
            for (reservation, domain) in &pairs {
                prop_assert!(is_owner(&answers[*reservation], &domains[*domain], &all));
            }
            // A pair that is left out has no other half.
            let left = answers.iter().enumerate().filter(|(at, _)| !reservations.contains(at));
            for (at, answer) in left {
                let free = domains.iter().enumerate().filter(|(at, _)| !owners.contains(at));
                prop_assert!(!free.into_iter().any(|(_, it)| is_owner(answer, it, &all)), "{at}");
            }
        }
    }
}
