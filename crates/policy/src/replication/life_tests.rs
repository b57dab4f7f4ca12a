use super::*;
use proptest::prelude::*;

fn nodes(ids: impl IntoIterator<Item = u32>) -> NodeSet {
    ids.into_iter().map(NodeId).collect()
}

fn no_room() -> CopyRefusal {
    CopyRefusal::NoRoom("the budget is spent".into())
}

/// A file with copies on nodes 0 and 1.
fn replicated() -> Life {
    let mut life = Life::default();
    assert_eq!(life.take(Event::Want(nodes([0, 1]))), [Effect::TakeLease]);
    let copies = [Effect::Copy(NodeId(0)), Effect::Copy(NodeId(1))];
    assert_eq!(life.take(Event::Leased), copies);
    assert_eq!(life.state(), &State::Copying);
    assert_eq!(life.take(Event::Copied(NodeId(0))), []);
    assert_eq!(life.take(Event::Copied(NodeId(1))), []);
    assert_eq!(life.state(), &State::Replicated);
    life
}

#[test]
fn a_writer_collapses_all_copies_and_the_last_close_brings_them_back() {
    let mut life = replicated();
    assert_eq!(life.take(Event::Writer), [Effect::Collapse]);
    assert_eq!(life.state(), &State::Collapsing);
    assert_eq!(life.take(Event::Collapsed), [], "the writer has the file");
    assert_eq!(life.state(), &State::Candidate);
    assert!(life.has_writer());
    assert_eq!(life.take(Event::WriterClosed), [Effect::TakeLease]);
    // Another writer has it still.
    assert_eq!(life.take(Event::BusyWriter), []);
    assert_eq!(life.take(Event::WriterClosed), [Effect::TakeLease]);
    assert_eq!(life.take(Event::Leased).len(), 2);
}

#[test]
fn a_writer_that_closes_during_the_collapse_is_not_waited_for() {
    let mut life = replicated();
    life.take(Event::Writer);
    assert_eq!(life.take(Event::WriterClosed), []);
    assert_eq!(life.take(Event::Collapsed), [Effect::TakeLease]);
}

#[test]
fn answers_that_a_collapse_has_overtaken_change_nothing() {
    let mut life = Life::default();
    life.take(Event::Want(nodes([0, 1])));
    life.take(Event::Leased);
    assert_eq!(life.take(Event::Writer), [Effect::Collapse]);
    assert_eq!(life.take(Event::Copied(NodeId(0))), []);
    assert_eq!(life.take(Event::NotCopied(NodeId(1), no_room())), []);
    assert!(life.copied().is_empty() && life.refused().is_empty());
}

#[test]
fn a_node_without_room_has_no_copy_and_others_keep_theirs() {
    let mut life = Life::default();
    life.take(Event::Want(nodes([0, 1])));
    life.take(Event::Leased);
    life.take(Event::NotCopied(NodeId(0), no_room()));
    assert_eq!(life.take(Event::Copied(NodeId(1))), []);
    assert_eq!(life.state(), &State::Replicated);
    assert_eq!(life.refused(), [(NodeId(0), no_room())]);
    // A later wish tries again.
    assert_eq!(life.take(Event::Want(nodes([0, 1]))), [Effect::Copy(NodeId(0))]);
}

#[test]
fn without_any_copy_the_lease_is_released() {
    let mut life = Life::default();
    life.take(Event::Want(nodes([0])));
    life.take(Event::Leased);
    assert_eq!(life.take(Event::NotCopied(NodeId(0), no_room())), [Effect::ReleaseLease]);
    assert_eq!(life.state(), &State::Candidate);
}

#[test]
fn short_memory_takes_the_copy_of_that_node_alone() {
    let mut life = replicated();
    assert_eq!(life.take(Event::Short(NodeId(1))), [Effect::Withdraw(NodeId(1))]);
    assert_eq!(life.take(Event::Short(NodeId(1))), [], "it has gone");
    assert_eq!(life.copied(), &nodes([0]));
    let last = [Effect::Withdraw(NodeId(0)), Effect::ReleaseLease];
    assert_eq!(life.take(Event::Short(NodeId(0))), last);
}

#[test]
fn copies_return_to_a_node_that_has_room_again() {
    let mut life = replicated();
    assert_eq!(life.take(Event::Room(NodeId(1))), [], "it has one");
    life.take(Event::Short(NodeId(1)));
    assert_eq!(life.take(Event::Room(NodeId(1))), [Effect::Copy(NodeId(1))]);
    life.take(Event::Copied(NodeId(1)));
    // All copies have gone, and the lease with them.
    life.take(Event::Short(NodeId(0)));
    life.take(Event::Short(NodeId(1)));
    assert_eq!(life.take(Event::Room(NodeId(1))), [Effect::TakeLease]);
    assert_eq!(life.take(Event::Leased), [Effect::Copy(NodeId(1))], "node 0 has no room yet");
}

#[test]
fn a_copy_that_failed_for_another_reason_is_not_made_again() {
    let mut life = Life::default();
    life.take(Event::Want(nodes([0, 1])));
    life.take(Event::Leased);
    life.take(Event::NotCopied(NodeId(0), CopyRefusal::Failed("it cannot be read".into())));
    life.take(Event::Copied(NodeId(1)));
    assert_eq!(life.take(Event::Room(NodeId(0))), []);
}

#[test]
fn a_copy_that_the_kernel_placed_elsewhere_is_made_again_once_its_node_has_room() {
    let mut life = Life::default();
    life.take(Event::Want(nodes([0, 1])));
    life.take(Event::Leased);
    life.take(Event::NotCopied(NodeId(0), CopyRefusal::NotLocal { local_percent: 50 }));
    life.take(Event::Copied(NodeId(1)));
    assert_eq!(life.take(Event::Room(NodeId(0))), [Effect::Copy(NodeId(0))]);
}

#[test]
fn a_copy_that_could_not_follow_returns_with_the_next_attributes() {
    let mut life = replicated();
    let unfit = |node| Event::Unfit(NodeId(node), "it is too long".into());
    assert_eq!(life.take(unfit(1)), [Effect::Withdraw(NodeId(1))]);
    assert_eq!(life.take(Event::Room(NodeId(1))), [], "room is not what it lacks");
    assert_eq!(life.take(Event::Attributes), [Effect::Copy(NodeId(1))]);
    assert_eq!(life.take(Event::Attributes), [], "it is being made");
    life.take(Event::Copied(NodeId(1)));
    // The last copy gives the lease back.
    life.take(unfit(0));
    life.take(unfit(1));
    assert_eq!(life.take(Event::Attributes), [Effect::TakeLease]);
    assert_eq!(life.take(Event::Leased).len(), 2);
    // It got them while it was made.
    let unfit = CopyRefusal::Unfit("it is too long".into());
    life.take(Event::NotCopied(NodeId(0), unfit));
    assert_eq!(life.take(Event::Attributes), [Effect::Copy(NodeId(0))]);
}

#[test]
fn a_closed_writer_brings_no_copy_to_a_node_without_room() {
    let mut life = replicated();
    life.take(Event::Short(NodeId(0)));
    life.take(Event::Short(NodeId(1)));
    life.take(Event::Room(NodeId(1)));
    life.take(Event::BusyWriter);
    assert_eq!(life.take(Event::WriterClosed), [Effect::TakeLease]);
    assert_eq!(life.take(Event::Leased), [Effect::Copy(NodeId(1))]);
}

#[test]
fn a_replaced_file_is_forgotten_after_its_collapse() {
    let mut life = replicated();
    assert_eq!(life.take(Event::Replaced), [Effect::Collapse]);
    assert_eq!(life.take(Event::Collapsed), [Effect::Forget]);
    let mut candidate = Life::default();
    assert_eq!(candidate.take(Event::Replaced), [Effect::Forget]);
}

#[test]
fn a_wish_for_no_nodes_removes_all_copies() {
    let mut life = replicated();
    assert_eq!(life.take(Event::Want(nodes([1, 2]))), {
        [Effect::Withdraw(NodeId(0)), Effect::Copy(NodeId(2))]
    });
    assert_eq!(life.take(Event::Want(NodeSet::new())), [Effect::Collapse]);
    assert_eq!(life.take(Event::Collapsed), [Effect::Forget]);
}

#[test]
fn a_barred_file_tries_again_only_when_it_is_asked_to() {
    let mut life = Life::default();
    life.take(Event::Want(nodes([0])));
    assert_eq!(life.take(Event::Barred(Bar::Empty)), []);
    assert_eq!(life.take(Event::WriterClosed), []);
    assert_eq!(life.state(), &State::Barred(Bar::Empty));
    assert_eq!(life.take(Event::Want(nodes([0, 1]))), [Effect::TakeLease]);
    assert_eq!(life.take(Event::Barred(Bar::Empty)), []);
    assert_eq!(life.take(Event::Want(NodeSet::new())), [Effect::Forget]);
}

fn any_refusal() -> impl Strategy<Value = CopyRefusal> {
    prop_oneof![
        Just(no_room()),
        Just(CopyRefusal::NotLocal { local_percent: 9 }),
        Just(CopyRefusal::Unfit("it has changed".into())),
        Just(CopyRefusal::Failed("it cannot be read".into())),
    ]
}

fn any_event() -> impl Strategy<Value = Event> {
    let node = (0..4_u32).prop_map(NodeId);
    prop_oneof![
        prop::collection::vec(0..4_u32, 0..4).prop_map(|ids| Event::Want(nodes(ids))),
        Just(Event::Leased),
        Just(Event::BusyWriter),
        Just(Event::Barred(Bar::Empty)),
        Just(Event::Barred(Bar::Attribute { name: "user.x".into(), error: "too long".into() })),
        node.clone().prop_map(Event::Copied),
        (node.clone(), any_refusal()).prop_map(|(node, why)| Event::NotCopied(node, why)),
        Just(Event::Writer),
        Just(Event::Collapsed),
        Just(Event::WriterClosed),
        node.clone().prop_map(Event::Short),
        node.clone().prop_map(|node| Event::Unfit(node, "it cannot be changed".into())),
        node.prop_map(Event::Room),
        Just(Event::Attributes),
        Just(Event::Replaced),
    ]
}

/// The world as the effects leave it.
#[derive(Default)]
struct World {
    leased: bool,
    /// Copies that exist: they are being made, or in use.
    copies: NodeSet,
    asked: bool,
    forgotten: bool,
}

impl World {
    fn act(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::TakeLease => {
                    assert!(!self.leased, "a second lease");
                    self.asked = true;
                }
                Effect::Copy(node) => {
                    assert!(self.leased, "a copy without a lease");
                    assert!(self.copies.insert(node), "a second copy on {node}");
                }
                Effect::Withdraw(node) => assert!(self.copies.remove(node), "no copy on {node}"),
                Effect::Collapse => {
                    assert!(self.leased);
                    self.copies = NodeSet::new();
                }
                Effect::ReleaseLease => {
                    assert!(self.leased && self.copies.is_empty(), "copies without a lease");
                    self.leased = false;
                }
                Effect::Forget => self.forgotten = true,
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever happens in whichever order: a copy exists under a lease alone, no node has two,
    /// and after a writer has come, its copies are gone before the lease is.
    #[test]
    fn copies_exist_under_a_lease_alone(events in prop::collection::vec(any_event(), 0..60)) {
        let (mut life, mut world) = (Life::default(), World::default());
        for event in events {
            // Only events that can happen in this world.
            match &event {
                Event::Leased => {
                    if !std::mem::take(&mut world.asked) { continue }
                    world.leased = true;
                }
                Event::BusyWriter | Event::Barred(_)
                    if !world.leased && !std::mem::take(&mut world.asked) => continue,
                Event::BusyWriter | Event::Barred(_) if !world.leased => {}
                Event::Copied(node) | Event::NotCopied(node, _)
                    if life.state() == &State::Collapsing || !world.copies.contains(*node) => {}
                Event::NotCopied(node, _) => {
                    if life.copied().contains(*node) { continue }
                    world.copies.remove(*node);
                }
                Event::Collapsed => {
                    if life.state() != &State::Collapsing { continue }
                    world.leased = false;
                }
                Event::Writer if !world.leased => continue,
                // The answer to a wish for a lease comes before the next event.
                _ if world.asked => continue,
                _ => {}
            }
            // Copies left behind by a withdrawn lease were being made: their maker is told to stop.
            let before = life.is_leased();
            let effects = life.take(event);
            if before && effects.contains(&Effect::ReleaseLease) {
                let going: NodeSet = effects.iter().filter_map(|effect| match effect {
                    Effect::Withdraw(node) => Some(*node),
                    _ => None,
                }).collect();
                prop_assert!(world.copies.is_subset(&going), "{:?} {going:?}", world.copies);
            }
            world.act(effects);
            prop_assert_eq!(life.is_leased(), world.leased);
            prop_assert!(life.copied().is_subset(&world.copies));
            if world.forgotten {
                prop_assert!(!world.leased && world.copies.is_empty());
                break;
            }
        }
    }
}
