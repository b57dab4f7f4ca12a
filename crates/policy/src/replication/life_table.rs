//! Every event in every state.

use super::*;

fn nodes(ids: &[u32]) -> NodeSet {
    ids.iter().copied().map(NodeId).collect()
}

fn life(events: &[Event]) -> Life {
    let mut life = Life::default();
    life.take(Event::Want(nodes(&[0, 1])));
    events.iter().for_each(|event| _ = life.take(event.clone()));
    life
}

/// A file in each state, nodes 0 and 1 being wanted. A candidate has asked for the lease, unless a
/// writer is there. Node 0 has its copy where copies are being made, no room where it is full, and
/// has lost its copy to new attributes where it is unfit.
fn states() -> [(&'static str, Life); 11] {
    let copied = |node| Event::Copied(NodeId(node));
    let (name, error) = ("user.x".into(), "it is too long".into());
    let attribute = Bar::Attribute { name, error };
    let whole = [Event::Leased, copied(0), copied(1)];
    let then = |event: &[Event]| life(&[&whole, event].concat());
    [
        ("candidate", life(&[])),
        ("candidate, writer", life(&[Event::BusyWriter])),
        ("copying", life(&[Event::Leased, copied(0)])),
        ("replicated", then(&[])),
        ("replicated, 0 full", then(&[Event::Short(NodeId(0))])),
        ("replicated, 0 unfit", then(&[unfit(0)])),
        ("collapsing, writer", then(&[Event::Writer])),
        ("collapsing, replaced", then(&[Event::Replaced])),
        ("collapsing, unwanted", then(&[Event::Want(NodeSet::new())])),
        ("barred", life(&[Event::Barred(Bar::Empty)])),
        ("barred by an attribute", life(&[Event::Barred(attribute)])),
    ]
}

fn unfit(node: u32) -> Event {
    Event::Unfit(NodeId(node), "it cannot be changed".into())
}

fn events() -> [(&'static str, Event); 20] {
    let full = CopyRefusal::NoRoom("the budget is spent".into());
    let failed = CopyRefusal::Failed("it cannot be read".into());
    [
        ("want 0-1", Event::Want(nodes(&[0, 1]))),
        ("want 1-2", Event::Want(nodes(&[1, 2]))),
        ("want none", Event::Want(NodeSet::new())),
        ("leased", Event::Leased),
        ("busy writer", Event::BusyWriter),
        ("barred", Event::Barred(Bar::Empty)),
        ("copied 1", Event::Copied(NodeId(1))),
        ("no room for 1", Event::NotCopied(NodeId(1), full)),
        ("1 failed", Event::NotCopied(NodeId(1), failed)),
        ("1 elsewhere", Event::NotCopied(NodeId(1), CopyRefusal::NotLocal { local_percent: 9 })),
        ("1 not fit", Event::NotCopied(NodeId(1), CopyRefusal::Unfit("it has changed".into()))),
        ("writer", Event::Writer),
        ("collapsed", Event::Collapsed),
        ("writer closed", Event::WriterClosed),
        ("short 0", Event::Short(NodeId(0))),
        ("short 1", Event::Short(NodeId(1))),
        ("unfit 1", unfit(1)),
        ("attributes", Event::Attributes),
        ("room 0", Event::Room(NodeId(0))),
        ("replaced", Event::Replaced),
    ]
}

/// The state after an event, if it is another one, and the effects.
fn outcome(mut life: Life, event: Event) -> String {
    let before = life.state().clone();
    let effects = life.take(event).into_iter().map(|effect| match effect {
        Effect::TakeLease => "take lease".into(),
        Effect::Copy(node) => format!("copy {node}"),
        Effect::Withdraw(node) => format!("withdraw {node}"),
        Effect::Collapse => "collapse".into(),
        Effect::ReleaseLease => "release lease".into(),
        Effect::Forget => "forget".into(),
    });
    let state = (*life.state() != before).then(|| match life.state() {
        State::Candidate => "candidate",
        State::Copying => "copying",
        State::Replicated => "replicated",
        State::Collapsing => "collapsing",
        State::Barred(_) => "barred",
    });
    let words: Vec<_> = state.map(str::to_uppercase).into_iter().chain(effects).collect();
    words.join(", ")
}

/// A state in capitals is the one after the event. Without words, the state stays and nothing is to
/// be done.
const TABLE: &str = "
candidate
  want 0-1       take lease
  want 1-2       take lease
  want none      forget
  leased         COPYING, copy 0, copy 1
  busy writer
  barred         BARRED
  copied 1
  no room for 1
  1 failed
  1 elsewhere
  1 not fit
  writer
  collapsed
  writer closed  take lease
  short 0
  short 1
  unfit 1
  attributes
  room 0
  replaced       forget

candidate, writer
  want 0-1
  want 1-2
  want none      forget
  leased         COPYING, copy 0, copy 1
  busy writer
  barred         BARRED
  copied 1
  no room for 1
  1 failed
  1 elsewhere
  1 not fit
  writer
  collapsed
  writer closed  take lease
  short 0
  short 1
  unfit 1
  attributes
  room 0
  replaced       forget

copying
  want 0-1
  want 1-2       withdraw 0, copy 2
  want none      COLLAPSING, collapse
  leased
  busy writer
  barred         BARRED, withdraw 0, withdraw 1, release lease
  copied 1       REPLICATED
  no room for 1  REPLICATED
  1 failed       REPLICATED
  1 elsewhere    REPLICATED
  1 not fit      REPLICATED
  writer         COLLAPSING, collapse
  collapsed
  writer closed
  short 0        withdraw 0
  short 1        REPLICATED, withdraw 1
  unfit 1        REPLICATED, withdraw 1
  attributes
  room 0
  replaced       COLLAPSING, collapse

replicated
  want 0-1
  want 1-2       COPYING, withdraw 0, copy 2
  want none      COLLAPSING, collapse
  leased
  busy writer
  barred
  copied 1
  no room for 1
  1 failed
  1 elsewhere
  1 not fit
  writer         COLLAPSING, collapse
  collapsed
  writer closed
  short 0        withdraw 0
  short 1        withdraw 1
  unfit 1        withdraw 1
  attributes
  room 0
  replaced       COLLAPSING, collapse

replicated, 0 full
  want 0-1       COPYING, copy 0
  want 1-2       COPYING, copy 2
  want none      COLLAPSING, collapse
  leased
  busy writer
  barred
  copied 1
  no room for 1
  1 failed
  1 elsewhere
  1 not fit
  writer         COLLAPSING, collapse
  collapsed
  writer closed
  short 0
  short 1        CANDIDATE, withdraw 1, release lease
  unfit 1        CANDIDATE, withdraw 1, release lease
  attributes
  room 0         COPYING, copy 0
  replaced       COLLAPSING, collapse

replicated, 0 unfit
  want 0-1       COPYING, copy 0
  want 1-2       COPYING, copy 2
  want none      COLLAPSING, collapse
  leased
  busy writer
  barred
  copied 1
  no room for 1
  1 failed
  1 elsewhere
  1 not fit
  writer         COLLAPSING, collapse
  collapsed
  writer closed
  short 0
  short 1        CANDIDATE, withdraw 1, release lease
  unfit 1        CANDIDATE, withdraw 1, release lease
  attributes     COPYING, copy 0
  room 0
  replaced       COLLAPSING, collapse

collapsing, writer
  want 0-1
  want 1-2
  want none
  leased
  busy writer
  barred
  copied 1
  no room for 1
  1 failed
  1 elsewhere
  1 not fit
  writer
  collapsed      CANDIDATE
  writer closed
  short 0
  short 1
  unfit 1
  attributes
  room 0
  replaced

collapsing, replaced
  want 0-1
  want 1-2
  want none
  leased
  busy writer
  barred
  copied 1
  no room for 1
  1 failed
  1 elsewhere
  1 not fit
  writer
  collapsed      CANDIDATE, forget
  writer closed
  short 0
  short 1
  unfit 1
  attributes
  room 0
  replaced

collapsing, unwanted
  want 0-1
  want 1-2
  want none
  leased
  busy writer
  barred
  copied 1
  no room for 1
  1 failed
  1 elsewhere
  1 not fit
  writer
  collapsed      CANDIDATE, forget
  writer closed
  short 0
  short 1
  unfit 1
  attributes
  room 0
  replaced

barred
  want 0-1       CANDIDATE, take lease
  want 1-2       CANDIDATE, take lease
  want none      forget
  leased
  busy writer
  barred
  copied 1
  no room for 1
  1 failed
  1 elsewhere
  1 not fit
  writer
  collapsed
  writer closed
  short 0
  short 1
  unfit 1
  attributes
  room 0
  replaced       forget

barred by an attribute
  want 0-1       CANDIDATE, take lease
  want 1-2       CANDIDATE, take lease
  want none      forget
  leased
  busy writer
  barred
  copied 1
  no room for 1
  1 failed
  1 elsewhere
  1 not fit
  writer
  collapsed
  writer closed
  short 0
  short 1
  unfit 1
  attributes     CANDIDATE, take lease
  room 0
  replaced       forget
";

#[test]
fn each_event_in_each_state_does_what_the_table_says() {
    let mut table = String::new();
    for (state, life) in states() {
        table += &format!("\n{state}\n");
        for (event, it) in events() {
            let outcome = outcome(life.clone(), it);
            table += format!("  {event:14} {outcome}").trim_end();
            table += "\n";
        }
    }
    assert_eq!(table, TABLE, "{table}");
}
