//! Reservations without an owner, and the domains that adopt them (docs/adr/0015-numad.md).
//!
//! An answer of `numad` reserves memory for a domain without a name. The domain that starts is
//! recognised by the nodes that bind its memory, by its size, and by its start after the answer.
//! A domain that migrates to this host is recognised by its name in place of its size.

use crate::{Purpose, advice::RESERVED_FOR_S};
use nearside_topology::NodeSet;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;

/// A reservation that waits for its domain to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unowned {
    /// Its name.
    pub name: String,
    /// Its purpose.
    pub purpose: Purpose,
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
    /// Its vCPUs, if its groups tell.
    pub vcpus: Option<u64>,
    /// The start of its first process, in seconds since boot.
    pub started_boottime_s: u64,
    /// The domain as its manager describes it; without this, it adopts nothing.
    pub described: Option<Described>,
}

/// A domain as its manager describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// Whether the manager asked `numad` for its nodes.
    pub asked_numad: bool,
    /// The vCPUs that it started with.
    pub vcpus: u64,
    /// All of its memory, in bytes.
    pub memory_bytes: u64,
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

/// Whether a domain may be the owner of any of the reservations, as far as its groups tell. The
/// nodes are those of [`adoptions`].
pub fn may_adopt(unowned: &[Unowned], newcomer: &Newcomer, memory_nodes: &NodeSet) -> bool {
    unowned.iter().any(|unowned| fits(unowned, newcomer, memory_nodes))
}

/// The reservations that wait for an answer: indices into `unowned` of those that a domain may own
/// which its manager has not described yet. They must not lapse meanwhile: their owner may be
/// there, and it takes memory. The nodes are those of [`adoptions`].
pub fn awaiting(unowned: &[Unowned], newcomers: &[Newcomer], memory_nodes: &NodeSet) -> Vec<usize> {
    let may_own = |unowned: &Unowned| {
        let unknown = newcomers.iter().filter(|it| it.described.is_none());
        unknown.into_iter().any(|newcomer| fits(unowned, newcomer, memory_nodes))
    };
    (0..unowned.len()).filter(|&at| may_own(&unowned[at])).collect()
}

fn is_owner(unowned: &Unowned, newcomer: &Newcomer, memory_nodes: &NodeSet) -> bool {
    // libvirt rounds the memory up to MiB (virNumaGetAutoPlacementAdvice in src/util/virnuma.c).
    let is_size = |bytes: u64| bytes.div_ceil(MIB) == unowned.bytes / MIB;
    let is_it = |domain: &Described| match &unowned.purpose {
        Purpose::IncomingGuest(name) => domain.name == *name,
        Purpose::StartingGuest => {
            domain.asked_numad
                && domain.vcpus == unowned.vcpus
                && (unowned.bytes == 0 || is_size(domain.memory_bytes))
        }
        Purpose::Copies | Purpose::Unknown => false,
    };
    newcomer.described.as_ref().is_some_and(is_it) && fits(unowned, newcomer, memory_nodes)
}

fn fits(unowned: &Unowned, newcomer: &Newcomer, memory_nodes: &NodeSet) -> bool {
    let nodes = unowned.nodes.intersection(memory_nodes);
    // A domain that nothing binds looks like one that was bound to every node.
    let is_bound = nodes != *memory_nodes;
    // A reservation that waits for an answer lasts longer than it did for its owner to start.
    let made_s = unowned.made_boottime_s;
    let started = made_s..=made_s.saturating_add(RESERVED_FOR_S);
    newcomer.vcpus.map_or(is_bound, |vcpus| vcpus == unowned.vcpus)
        && newcomer.nodes == nodes
        && started.contains(&newcomer.started_boottime_s)
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
        let (purpose, nodes) = (Purpose::StartingGuest, nodes(on));
        Unowned { name, purpose, nodes, vcpus: 2, bytes: 500 * MIB, made_boottime_s }
    }

    fn incoming(guest: &str, on: &[u32], made_boottime_s: u64) -> Unowned {
        let purpose = Purpose::IncomingGuest(guest.into());
        Unowned { purpose, ..unowned("incoming", on, made_boottime_s) }
    }

    fn newcomer(on: &[u32], started_boottime_s: u64) -> Newcomer {
        let name = started_boottime_s.to_string();
        Newcomer {
            cgroup: format!("/machine.slice/{name}.scope"),
            nodes: nodes(on),
            vcpus: Some(2),
            started_boottime_s,
            described: Some(Described {
                name,
                asked_numad: true,
                vcpus: 2,
                memory_bytes: 500 * MIB,
            }),
        }
    }

    fn described(change: impl Fn(&mut Described)) -> Newcomer {
        let mut domain = newcomer(&[1], 101);
        domain.described.iter_mut().for_each(change);
        domain
    }

    #[test]
    fn a_reservation_goes_to_a_domain_on_its_nodes_of_its_size_that_started_later() {
        let reservation = [unowned("numad-1", &[1], 100)];
        let of_vcpus = |vcpus| Newcomer { vcpus, ..newcomer(&[1], 101) };
        // Whether its groups exclude it, and whether it adopts.
        let cases: [(&str, Newcomer, bool, bool); 12] = [
            ("as it was asked for", newcomer(&[1], 101), true, true),
            ("started in the same second", newcomer(&[1], 100), true, true),
            ("on another node", newcomer(&[2], 101), false, false),
            ("on more nodes", newcomer(&[1, 2], 101), false, false),
            ("started before the answer", newcomer(&[1], 99), false, false),
            ("of another number of vCPUs", of_vcpus(Some(4)), false, false),
            ("without the groups of its vCPUs", of_vcpus(None), true, true),
            ("described with more vCPUs", described(|it| it.vcpus = 4), true, false),
            ("rounded up to MiB", described(|it| it.memory_bytes -= 1), true, true),
            ("of more memory", described(|it| it.memory_bytes += MIB), true, false),
            ("with bindings of its own", described(|it| it.asked_numad = false), true, false),
            ("unknown", Newcomer { described: None, ..newcomer(&[1], 101) }, true, false),
        ];
        let all = nodes(&[0, 1, 2]);
        for (what, domain, may, adopts) in cases {
            assert_eq!(may_adopt(&reservation, &domain, &all), may, "a domain {what}");
            let pairs = adoptions(&reservation, &[domain], &all);
            assert_eq!(!pairs.is_empty(), adopts, "a domain {what}");
        }
    }

    #[test]
    fn a_reservation_waits_while_a_domain_that_may_own_it_is_not_described() {
        let all = nodes(&[0, 1, 2]);
        let reservations = [unowned("numad-1", &[1], 100), incoming("db", &[2], 100)];
        let unknown = |on: &[u32], at| Newcomer { described: None, ..newcomer(on, at) };
        for (what, domains, waiting) in [
            ("no domain", vec![], vec![]),
            ("its domain", vec![unknown(&[1], 101)], vec![0]),
            ("both domains", vec![unknown(&[2], 160), unknown(&[1], 101)], vec![0, 1]),
            ("a domain that is described", vec![newcomer(&[1], 101)], vec![]),
            ("a domain on another node", vec![unknown(&[0], 101)], vec![]),
            ("a domain that started before", vec![unknown(&[1], 99)], vec![]),
            ("a domain that started after its time", vec![unknown(&[1], 161)], vec![]),
        ] {
            assert_eq!(awaiting(&reservations, &domains, &all), waiting, "{what}");
            assert!(
                domains.iter().all(|it| it.described.is_some())
                    || adoptions(&reservations, &domains, &all).is_empty(),
                "{what}"
            );
        }
    }

    #[test]
    fn a_domain_that_migrated_is_known_by_its_name() {
        let all = nodes(&[0, 1, 2]);
        let reservation = [incoming("db", &[1], 100)];
        let migrated = described(|it| {
            (it.name, it.asked_numad, it.memory_bytes) = ("db".into(), false, 512 * MIB);
        });
        assert_eq!(adoptions(&reservation, &[migrated], &all), [(0, 0)]);
        assert_eq!(adoptions(&reservation, &[newcomer(&[1], 101)], &all), []);
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
