//! Looks one after the other: what moves, and what stays.

use super::*;
use crate::{replication::NodeMemory, total};
use nearside_topology::{NodeId, NodeSet};
use proptest::prelude::*;
use std::collections::BTreeMap;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn set(list: &str) -> NodeSet {
    list.parse().unwrap()
}

fn memory(free_bytes: u64) -> BTreeMap<NodeId, NodeMemory> {
    let node = NodeMemory { total_bytes: 64 * GIB, allocatable_bytes: free_bytes };
    (0..4).map(|number| (NodeId(number), node)).collect()
}

/// A text of 1 MiB, with its pages on these nodes in turn.
fn file(on: &[u32], homes: &[&str]) -> TextFile {
    let pages = MIB / (4 * KIB);
    let run = |page| {
        let node = NodeId(on[page as usize % on.len()]);
        Run { start: page * 4 * KIB, end: (page + 1) * 4 * KIB, node }
    };
    let users = homes.iter().enumerate();
    TextFile {
        path: "/usr/bin/db".into(),
        extent: 0..MIB,
        runs: (0..pages).map(run).collect(),
        users: users.map(|(at, home)| (format!("domain{at}"), Some(set(home)))).collect(),
        ..TextFile::default()
    }
}

/// The file after an order was carried out.
fn moved(file: &TextFile, order: &Order) -> TextFile {
    let mut file = file.clone();
    for run in &mut file.runs {
        let piece = order.pages.iter().find(|(it, _)| (it.start..it.end).contains(&run.start));
        run.node = piece.map_or(run.node, |(_, to)| *to);
    }
    file
}

/// A host that looks again and again.
#[derive(Default)]
struct Host {
    history: TextHistory,
    look: u64,
    moves: Vec<u64>,
}

impl Host {
    /// Looks, carries the orders out, and gives the file's state and the file afterwards.
    fn look(
        &mut self,
        file: &TextFile,
        free_bytes: u64,
        budget_bytes: u64,
    ) -> (TextPlan, TextFile) {
        self.look += 1;
        let memory = memory(free_bytes);
        let turn = Turn { look: self.look, memory: &memory, budget_bytes };
        let (plan, history) = plan(std::slice::from_ref(file), &turn, &self.history);
        self.history = history;
        let Some(order) = plan.orders.first() else { return (plan, file.clone()) };
        let after = moved(file, order);
        let moved_bytes = order.bytes();
        let there_bytes = order.there_bytes + moved_bytes;
        let placed = Placed { tried_bytes: moved_bytes, moved_bytes, there_bytes };
        self.history.settle(self.look, file.id, placed);
        self.moves.push(self.look);
        (plan, after)
    }

    fn state(&mut self, file: &TextFile) -> (TextState, TextFile) {
        let (plan, after) = self.look(file, 60 * GIB, u64::MAX);
        (plan.files[0].state, after)
    }
}

#[test]
fn the_first_two_looks_decide() {
    use TextState::{CopiesPay, InPlace, Moving, NoHome, Shared, Unconfirmed};
    type Row<'a> = (&'a [u32], &'a [&'a str], [TextState; 3]);
    let table: [Row<'_>; 7] = [
        (&[0], &["2"], [Unconfirmed, Moving, InPlace]),
        (&[0, 1, 2], &["2", "2"], [Unconfirmed, Moving, InPlace]),
        (&[2], &["2"], [InPlace; 3]),
        (&[0], &["0-1"], [Unconfirmed, Moving, InPlace]),
        (&[0], &["1", "2"], [CopiesPay; 3]),
        (&[0], &["0-1", "2-3"], [Shared; 3]),
        (&[0], &[], [NoHome; 3]),
    ];
    for (on, homes, expected) in table {
        let (mut host, mut text) = (Host::default(), file(on, homes));
        for expected in expected {
            let (state, after) = host.state(&text);
            assert_eq!(state, expected, "on {on:?} for {homes:?}, look {}", host.look);
            text = after;
        }
        if let [home] = homes
            && !home.contains('-')
        {
            assert_eq!(text.bytes(), [(home.parse().map(NodeId).unwrap(), MIB)].into());
        }
    }
}

#[test]
fn a_wide_domains_text_lies_in_equal_parts_on_its_home() {
    let (mut host, text) = (Host::default(), file(&[3], &["0-1"]));
    let (_, text) = host.state(&text);
    let (_, text) = host.state(&text);
    assert_eq!(text.bytes(), [(NodeId(0), MIB / 2), (NodeId(1), MIB / 2)].into());
}

#[test]
fn text_without_room_stays() {
    // The reserve of a node is 2 GiB, and twice of it remains.
    for (free_bytes, state) in
        [(4 * GIB + MIB, TextState::Moving), (4 * GIB + MIB - 1, TextState::NoRoom)]
    {
        let (mut host, text) = (Host::default(), file(&[0], &["2"]));
        host.look(&text, free_bytes, u64::MAX);
        let (plan, after) = host.look(&text, free_bytes, u64::MAX);
        assert_eq!(plan.files[0].state, state);
        assert_eq!(after == text, state == TextState::NoRoom);
    }
}

#[test]
fn a_budget_is_spent_over_several_looks() {
    let (mut host, mut text) = (Host::default(), file(&[0], &["2"]));
    (_, text) = host.look(&text, 60 * GIB, 400 * KIB);
    for (there, is_cut) in [(400 * KIB, true), (800 * KIB, true), (MIB, false)] {
        let (plan, after) = host.look(&text, 60 * GIB, 400 * KIB);
        assert_eq!((after.bytes()[&NodeId(2)], plan.is_cut), (there, is_cut));
        text = after;
    }
}

#[test]
fn candidates_come_most_bytes_off_home_first() {
    let with = |path: &str, on: &[u32], homes: &[&str], inode| TextFile {
        path: path.into(),
        id: FileId { inode, ..FileId::default() },
        ..file(on, homes)
    };
    let files = [
        with("half", &[0, 1], &["0", "1"], 1),
        with("far", &[3], &["0", "1"], 2),
        with("near", &[1], &["1"], 3),
    ];
    let memory = memory(60 * GIB);
    let turn = Turn { look: 1, memory: &memory, budget_bytes: u64::MAX };
    let (plan, _) = plan(&files, &turn, &TextHistory::default());
    let found = plan.candidates.iter().map(|it| (it.path.as_str(), it.off_home_bytes));
    assert_eq!(found.collect::<Vec<_>>(), [("far", 2 * MIB), ("half", MIB)]);
}

#[test]
fn text_that_another_mover_takes_back_rests_ever_longer() {
    let (mut host, text) = (Host::default(), file(&[0], &["2"]));
    for _ in 0..2000 {
        // Whatever was moved is back at the next look.
        host.state(&text);
    }
    let rests: Vec<_> = host.moves.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(rests.windows(2).all(|pair| pair[0] <= pair[1]), "{rests:?}");
    assert!(rests.len() < 16 && rests.last() > Some(&200), "{rests:?}");
}

#[test]
fn text_that_does_not_move_rests() {
    let (mut history, text) = (TextHistory::default(), file(&[0], &["2"]));
    let memory = memory(60 * GIB);
    let mut tries = Vec::new();
    for look in 1..200 {
        let turn = Turn { look, memory: &memory, budget_bytes: u64::MAX };
        let (plan, next) = plan(std::slice::from_ref(&text), &turn, &history);
        history = next;
        if let [order] = &plan.orders[..] {
            tries.push(look);
            let placed = Placed { tried_bytes: order.bytes(), ..Placed::default() };
            history.settle(look, order.file, placed);
        }
    }
    assert_eq!(tries, [2, 6, 14, 30, 62, 126]);
}

#[test]
fn a_home_that_changes_takes_the_text_along_and_then_ever_more_slowly() {
    let (mut host, mut text) = (Host::default(), file(&[0], &["2"]));
    for round in 0..2000_u64 {
        let home = if round / 4 % 2 == 0 { "2" } else { "3" };
        text.users = [("db".to_owned(), Some(set(home)))].into();
        (_, text) = host.state(&text);
    }
    assert!(host.moves.len() < 20, "{:?}", host.moves);
}

fn homes() -> impl Strategy<Value = Vec<Option<NodeSet>>> {
    let home = prop::collection::btree_set(0_u32..4, 1..3)
        .prop_map(|nodes| Some(nodes.into_iter().map(NodeId).collect::<NodeSet>()));
    prop::collection::vec(prop_oneof![9 => home, 1 => Just(None)], 0..4)
}

proptest! {
    #[test]
    fn text_moves_only_onto_the_common_home_of_all_its_users(
        on in prop::collection::vec(0_u32..4, 1..5),
        each_look in prop::collection::vec((homes(), any::<bool>()), 1..12),
        free_bytes in prop_oneof![Just(60 * GIB), 0..8 * GIB],
        budget_pages in 1_u64..512,
    ) {
        let (mut host, mut text) = (Host::default(), file(&on, &[]));
        for (homes, is_busy_outside) in each_look {
            let named = homes.iter().enumerate();
            text.users = named.map(|(at, home)| (at.to_string(), home.clone())).collect();
            text.is_busy_outside = is_busy_outside;
            let budget_bytes = budget_pages * 4 * KIB;
            let (plan, after) = host.look(&text, free_bytes, budget_bytes);
            prop_assert_eq!(total(&after.bytes()), MIB, "no byte more or less");
            for order in &plan.orders {
                prop_assert!(!is_busy_outside && !homes.is_empty());
                prop_assert!(homes.iter().all(|home| home.as_ref() == Some(&order.to)));
                prop_assert!(order.bytes() <= budget_bytes);
                prop_assert!(free_bytes >= 4 * GIB);
                for (run, to) in &order.pages {
                    prop_assert!(order.to.contains(*to) && run.node != *to && run.bytes() > 0);
                    prop_assert_eq!(run.bytes() % (4 * KIB), 0);
                }
            }
            for candidate in &plan.candidates {
                prop_assert!(candidate.off_home_bytes > 0 && !candidate.nodes.is_empty());
                prop_assert!(plan.orders.is_empty());
            }
            text = after;
        }
    }

    /// Once users stay, text comes to its place and then never moves again.
    #[test]
    fn text_settles(on in prop::collection::vec(0_u32..4, 1..5), home in "[0-3]|0-1|1-3|0,2") {
        let (mut host, mut text) = (Host::default(), file(&on, &[&home]));
        for _ in 0..20 {
            (_, text) = host.state(&text);
        }
        prop_assert!(host.moves.len() <= 1);
        prop_assert_eq!(host.state(&text).0, TextState::InPlace);
        let home = set(&home);
        prop_assert!(text.bytes().keys().all(|node| home.contains(*node)));
    }
}
