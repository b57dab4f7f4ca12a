use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];

/// A host whose replicator does as it is told.
struct Host {
    look: u64,
    found: Vec<Found>,
    held: Vec<Held>,
    namespaces: Vec<DomainNamespace>,
    history: CopyHistory,
    /// Whether processes use the copies of their node.
    are_used: bool,
}

fn distances() -> Distances {
    Distances::new(&NODES, &[10, 21, 21, 21, 10, 21, 21, 21, 10]).unwrap()
}

/// A file with all its text on node 0.
fn found(path: &str, text_bytes: u64, length_bytes: u64, domains: &[&str]) -> Found {
    let candidate = Candidate {
        file: super::super::FileId::default(),
        path: path.into(),
        process: 1,
        nodes: NodeSet::new(),
        domains: domains.iter().map(|it| (*it).into()).collect(),
        bytes: [(NodeId(0), text_bytes)].into(),
        off_home_bytes: text_bytes,
    };
    Found { candidate, length_bytes }
}

fn namespace(id: u64, domain: &str, node: u32) -> DomainNamespace {
    DomainNamespace { id, process: 100, domain: domain.into(), node: NodeId(node) }
}

fn copy(path: &str, nodes: &str) -> CopyOrder {
    CopyOrder::Copy { path: path.into(), nodes: nodes.parse().unwrap() }
}

impl Host {
    /// Domain `a` on node 1 and `b` on node 2 execute a library.
    fn new() -> Self {
        Self {
            look: 0,
            found: vec![found("/lib.so", 2 * MIB, 4 * MIB, &["a", "b"])],
            held: Vec::new(),
            namespaces: vec![namespace(7, "a", 1), namespace(8, "b", 2)],
            history: CopyHistory::default(),
            are_used: true,
        }
    }

    fn look(&mut self) -> Vec<CopyOrder> {
        self.look += 1;
        let turn = CopyTurn {
            look: self.look,
            found: &self.found,
            held: &self.held,
            namespaces: &self.namespaces,
            distances: &distances(),
        };
        let (orders, history) = plan_copies(&turn, &self.history);
        self.history = history;
        for order in &orders {
            match order {
                CopyOrder::Copy { path, nodes } => {
                    self.held.retain(|held| held.path != *path);
                    self.held.push(Held {
                        path: path.clone(),
                        nodes: nodes.clone(),
                        is_automatic: true,
                        ..Held::default()
                    });
                }
                CopyOrder::Remove { path } => self.held.retain(|held| held.path != *path),
                CopyOrder::Attach(_) => {}
            }
        }
        for held in &mut self.held {
            let is_used = |node| {
                self.are_used && self.namespaces.iter().any(|namespace| namespace.node == node)
            };
            held.users = held.nodes.iter().map(|node| (node, is_used(node).into())).collect();
        }
        orders
    }

    fn looks(&mut self, number: u32) -> Vec<CopyOrder> {
        (0..number).flat_map(|_| self.look()).collect()
    }

    fn attach(&self, at: usize) -> CopyOrder {
        CopyOrder::Attach(self.namespaces[at].clone())
    }
}

#[test]
fn a_file_that_pays_in_two_looks_is_copied_and_running_processes_are_told_once() {
    let mut host = Host::new();
    assert_eq!(host.look(), []);
    assert_eq!(host.look(), [copy("/lib.so", "1-2")]);
    assert_eq!(host.look(), [host.attach(0), host.attach(1)]);
    assert_eq!(host.looks(100), []);
}

#[test]
fn only_copies_that_pay_for_their_memory_are_made() {
    // Text of the file, its length, whether the domains have namespaces, the nodes that get it.
    let table = [
        (2 * MIB, 4 * MIB, true, Some("1-2")),
        // 2 MiB that take 2.1 times as long, for 17 MiB and for 18 MiB.
        (2 * MIB, 17 * MIB, true, Some("1-2")),
        (2 * MIB, 18 * MIB, true, None),
        (2 * MIB, 4 * MIB, false, None),
        (0, 4 * MIB, true, None),
    ];
    for (text, length, has_namespaces, expected) in table {
        let mut host = Host::new();
        host.found = vec![found("/lib.so", text, length, &["a", "b"])];
        host.namespaces.retain(|_| has_namespaces);
        let expected: Vec<_> = expected.into_iter().map(|nodes| copy("/lib.so", nodes)).collect();
        assert_eq!(host.looks(2), expected, "{text} of {length}, {has_namespaces}");
    }
}

#[test]
fn a_domain_beside_the_text_gets_no_copy() {
    let mut host = Host::new();
    host.namespaces[0].node = NodeId(0);
    assert_eq!(host.looks(2), [copy("/lib.so", "2")]);
}

#[test]
fn files_of_the_operator_stay_as_they_are() {
    let mut host = Host::new();
    let nodes = "1".parse().unwrap();
    host.held = vec![Held { path: "/lib.so".into(), nodes, ..Held::default() }];
    host.are_used = false;
    let attach = host.attach(0);
    assert_eq!(host.looks(100), [attach]);
}

#[test]
fn a_file_that_the_operator_removes_is_left_alone() {
    let mut host = Host::new();
    host.looks(3);
    host.held.clear();
    assert_eq!(host.looks(MAX_REST_LOOKS as u32 * 2), []);
}

#[test]
fn running_processes_are_told_again_after_a_writer_and_after_a_shortage() {
    let mut host = Host::new();
    host.looks(3);
    host.held[0].collapses += 1;
    assert_eq!(host.look(), [host.attach(0), host.attach(1)]);
    // The copy goes and comes back.
    let nodes = std::mem::replace(&mut host.held[0].nodes, "2".parse().unwrap());
    host.held[0].users.remove(&NodeId(1));
    assert_eq!(host.look().len(), 1, "the node without a copy asks for it again");
    host.held[0].nodes = nodes;
    host.look();
    assert_eq!(host.looks(10), []);
}

#[test]
fn copies_follow_a_domain_that_moves() {
    let mut host = Host::new();
    host.found = vec![found("/lib.so", 2 * MIB, 4 * MIB, &["a"])];
    host.namespaces = vec![namespace(7, "a", 1)];
    host.looks(3);
    // While it runs from a copy, no domain executes the original.
    host.found.clear();
    host.namespaces[0].node = NodeId(2);
    assert_eq!(host.look(), [copy("/lib.so", "1-2")]);
    assert_eq!(host.look(), [host.attach(0)]);
    assert_eq!(host.looks(UNUSED_LOOKS), [copy("/lib.so", "2")]);
    assert_eq!(host.looks(UNUSED_LOOKS), []);
}

#[test]
fn copies_that_nobody_uses_go_and_come_back_ever_more_rarely() {
    let mut host = Host::new();
    host.are_used = false;
    let mut copied_at = Vec::new();
    for _ in 0..1000 {
        if host.look().contains(&copy("/lib.so", "1-2")) {
            copied_at.push(host.look);
        }
    }
    let pauses: Vec<_> = copied_at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.len() >= 2 && pauses.windows(2).all(|pair| pair[0] < pair[1]), "{pauses:?}");
    assert!(host.look().is_empty() || host.held.len() <= 1);
}

#[test]
fn a_file_that_was_refused_rests() {
    let mut host = Host::new();
    host.looks(2);
    host.held.clear();
    host.history.refused(host.look, "/lib.so");
    assert_eq!(host.looks(FIRST_REST_LOOKS as u32), []);
    assert_eq!(host.looks(3).first(), Some(&copy("/lib.so", "1-2")));
}

#[test]
fn an_order_that_was_not_carried_out_comes_again() {
    let mut host = Host::new();
    let orders = host.looks(2);
    assert_eq!(orders, [copy("/lib.so", "1-2")]);
    host.held.clear();
    host.history.not_done(&orders[0]);
    assert_eq!(host.look(), orders);
    host.look();
    host.history.not_done(&host.attach(0));
    assert_eq!(host.looks(10), [host.attach(0)]);
}

#[test]
fn another_replicator_gets_the_files_again() {
    let mut host = Host::new();
    host.looks(3);
    host.held.clear();
    host.history.forget_replicator();
    assert_eq!(host.looks(3), [copy("/lib.so", "1-2"), host.attach(0), host.attach(1)]);
}

prop_compose! {
    fn any_held()(
        path in 0_u8..6,
        nodes in prop::collection::btree_set(0_u32..3, 1..=3),
        users in 0_u32..2,
        collapses in 0_u64..3,
        is_automatic in any::<bool>(),
    ) -> Held {
        let nodes: NodeSet = nodes.into_iter().map(NodeId).collect();
        let users = nodes.iter().map(|node| (node, users)).collect();
        Held { path: path.to_string(), nodes, users, collapses, is_automatic }
    }
}

prop_compose! {
    fn any_found()(
        path in 0_u8..6,
        mib in 0_u64..8,
        domains in prop::sample::subsequence(vec!["a", "b"], 0..=2),
    ) -> Found {
        found(&path.to_string(), mib * MIB, MIB, &domains)
    }
}

proptest! {
    #[test]
    fn an_operators_file_is_never_touched_and_a_used_copy_never_goes(
        looks in prop::collection::vec(
            (
                prop::collection::vec(any_held(), 0..6),
                prop::collection::vec(any_found(), 0..6),
                prop::collection::vec((0_u64..4, 0_u32..3), 0..4),
            ),
            1..80,
        ),
    ) {
        let mut history = CopyHistory::default();
        for (look, (mut held, found, namespaces)) in (1..).zip(looks) {
            held.sort_by(|a, b| a.path.cmp(&b.path));
            held.dedup_by(|a, b| a.path == b.path);
            let mut namespaces: Vec<_> = namespaces
                .into_iter()
                .map(|(id, node)| namespace(id, if id % 2 == 0 { "a" } else { "b" }, node))
                .collect();
            namespaces.dedup_by_key(|namespace| namespace.id);
            let turn = CopyTurn {
                look,
                found: &found,
                held: &held,
                namespaces: &namespaces,
                distances: &distances(),
            };
            let (orders, after) = plan_copies(&turn, &history);
            history = after;
            for order in &orders {
                let (path, nodes) = match order {
                    CopyOrder::Copy { path, nodes } => (path, nodes.clone()),
                    CopyOrder::Remove { path } => (path, NodeSet::new()),
                    CopyOrder::Attach(namespace) => {
                        prop_assert!(namespaces.contains(namespace));
                        continue;
                    }
                };
                if let Some(held) = held.iter().find(|held| held.path == *path) {
                    prop_assert!(held.is_automatic);
                    prop_assert!(nodes != held.nodes);
                    let gone = held.nodes.difference(&nodes);
                    prop_assert!(gone.iter().all(|node| held.users.get(&node) == Some(&0)));
                }
            }
            let paths: Vec<_> = orders
                .iter()
                .filter_map(|order| match order {
                    CopyOrder::Copy { path, .. } | CopyOrder::Remove { path } => Some(path),
                    CopyOrder::Attach(_) => None,
                })
                .collect();
            let distinct: BTreeSet<_> = paths.iter().collect();
            prop_assert_eq!(distinct.len(), paths.len());
        }
    }
}
