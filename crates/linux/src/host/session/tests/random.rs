//! Random transactions over domains and reservations, with refusals and kills.

use super::{FREE_MIB, MIB, Made, NODES, going, kill, nodes, reservations::wanted};
use crate::store::{Lifetime, Record, Reservation};
use nearside_policy::{Action, CgroupId, Observation, Reason, Step, Transaction, Until};
use nearside_topology::NodeId;
use proptest::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::symlink,
};

/// A change of one or two subjects. Numbers choose among the subjects there are.
#[derive(Debug, Clone)]
enum Change {
    /// A domain gets a home on a node.
    Move { one: usize, node: u32 },
    /// Two domains exchange homes.
    Exchange { one: usize, other: usize },
    /// A domain gets a home on a node, and a process begins to move its memory there.
    BeginMove { one: usize, node: u32 },
    /// The move of a domain's memory ends.
    EndMove { one: usize, is_complete: bool },
    /// Memory is reserved.
    Reserve { node: u32, mib: u64 },
    /// A reservation ends.
    Release { which: usize },
    /// A domain adopts a reservation.
    Adopt { which: usize, one: usize },
    /// The end of a reservation is put off.
    PutOff { which: usize },
}

#[derive(Debug, Clone)]
enum Event {
    /// Changes are applied as one transaction.
    Apply(Attempt),
    /// Another process starts a domain, if its claim fits.
    Start { node: u32, mib: u64 },
    /// A domain ends.
    End { one: usize },
    /// Time passes.
    Wait { seconds: u64 },
}

#[derive(Debug, Clone)]
struct Attempt {
    changes: Vec<Change>,
    /// Whether the transaction is applied in the place of the next one.
    is_late: bool,
    /// A domain and the file of its cgroup that the kernel refuses to change.
    refusal: Option<(usize, &'static str)>,
    /// The steps and records after which the process is killed.
    kill: Option<(usize, usize)>,
}

fn changes() -> impl Strategy<Value = Change> {
    let (one, other, which) = (0..8_usize, 0..8_usize, 0..4_usize);
    prop_oneof![
        3 => (one.clone(), 0..NODES).prop_map(|(one, node)| Change::Move { one, node }),
        2 => (one.clone(), other).prop_map(|(one, other)| Change::Exchange { one, other }),
        2 => (one.clone(), 0..NODES).prop_map(|(one, node)| Change::BeginMove { one, node }),
        1 => (one.clone(), any::<bool>())
            .prop_map(|(one, is_complete)| Change::EndMove { one, is_complete }),
        3 => (0..NODES, 1..200_u64).prop_map(|(node, mib)| Change::Reserve { node, mib }),
        2 => which.clone().prop_map(|which| Change::Release { which }),
        2 => (which.clone(), one).prop_map(|(which, one)| Change::Adopt { which, one }),
        1 => which.prop_map(|which| Change::PutOff { which }),
    ]
}

fn events() -> impl Strategy<Value = Event> {
    let files = prop_oneof![Just("cpuset.cpus"), Just("cpuset.mems")];
    let refusal = proptest::option::of((0..8_usize, files));
    let kill = proptest::option::weighted(0.3, (0..=12_usize, 0..=4_usize));
    let changes = proptest::collection::vec(changes(), 1..=3);
    let is_late = proptest::bool::weighted(0.3);
    let attempt =
        (changes, is_late, refusal, kill).prop_map(|(changes, is_late, refusal, kill)| {
            Event::Apply(Attempt { changes, is_late, refusal, kill })
        });
    prop_oneof![
        8 => attempt,
        2 => (0..NODES, 1..200_u64).prop_map(|(node, mib)| Event::Start { node, mib }),
        1 => (0..8_usize).prop_map(|one| Event::End { one }),
        1 => (1..60_u64).prop_map(|seconds| Event::Wait { seconds }),
    ]
}

/// The records of a host and the bindings in force.
#[derive(Debug, Clone, PartialEq)]
struct State {
    /// Domains by name, each with the CPUs and memory nodes of its cgroup.
    domains: Vec<(Record, String, String)>,
    /// Reservations by name.
    reservations: Vec<Reservation>,
}

impl State {
    fn of(made: &Made) -> Self {
        let host = made.host();
        let mut reservations = host.store.reservations(&host.tree);
        reservations.sort_by(|one, other| one.name.cmp(&other.name));
        Self { domains: made.state(), reservations }
    }

    fn domain(&self, number: usize) -> Option<&Record> {
        let number = number.checked_rem(self.domains.len())?;
        Some(&self.domains[number].0)
    }

    fn reservation(&self, number: usize) -> Option<&Reservation> {
        let number = number.checked_rem(self.reservations.len())?;
        Some(&self.reservations[number])
    }

    /// Claims and reservations by node, in MiB.
    fn promised_mib(&self) -> [u64; NODES as usize] {
        let mut sums = [0; NODES as usize];
        let claims = self.domains.iter().filter_map(|(record, ..)| record.part().claim.as_ref());
        let reserved = self.reservations.iter().map(|reservation| &reservation.bytes);
        for (node, bytes) in claims.map(|claim| &claim.bytes).chain(reserved).flatten() {
            sums[node.0 as usize] += bytes / MIB;
        }
        sums
    }

    /// The steps of these changes, which are numbered from `number` on. A change whose subjects are
    /// missing, or are changed by an earlier one, is left out.
    fn steps(&self, changes: &[Change], number: usize) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for (at, change) in changes.iter().enumerate() {
            let more = self.steps_of(change, &format!("r{number}.{at}")).unwrap_or_default();
            let changed: BTreeSet<_> = steps.iter().map(|step| step.action.subject()).collect();
            if more.iter().all(|step| !changed.contains(&step.action.subject())) {
                steps.extend(more);
            }
        }
        steps
    }

    fn steps_of(&self, change: &Change, new_name: &str) -> Option<Vec<Step>> {
        let step = |action| Step { action, reason: Reason::NotNeeded };
        let go = |record: &Record, node: u32| {
            let mib = record.part().claim.as_ref().map_or(0, |claim| claim.total_bytes() / MIB);
            going(&record.name, node, mib)
        };
        let name = |which| Some(self.reservation(which)?.name.clone());
        let steps = match *change {
            Change::Move { one, node } => go(self.domain(one)?, node),
            Change::Exchange { one, other } => {
                let (one, other) = (self.domain(one)?, self.domain(other)?);
                if one.name == other.name {
                    return None;
                }
                [go(one, node_of(other)), go(other, node_of(one))].concat()
            }
            Change::BeginMove { one, node } => {
                let record = self.domain(one)?;
                let (part, nodes) = (record.name.as_str().into(), nodes(node));
                let begin = Action::BeginMove { part, nodes, rate_bytes_per_s: None };
                [go(record, node), vec![step(begin)]].concat()
            }
            Change::EndMove { one, is_complete } => {
                let part = self.domain(one)?.name.as_str().into();
                vec![step(Action::EndMove { part, is_complete })]
            }
            Change::Reserve { node, mib } => {
                let reservation = wanted(new_name, node, mib);
                vec![step(Action::Reserve { reservation, until: Until::Seconds(60) })]
            }
            Change::Release { which } => vec![step(Action::Release { name: name(which)? })],
            Change::Adopt { which, one } => {
                let owner = self.domain(one)?;
                let (cgroup, owner) = (CgroupId(owner.inode), owner.cgroup.clone());
                vec![step(Action::Adopt { name: name(which)?, owner, cgroup })]
            }
            Change::PutOff { which } => vec![step(Action::PutOff { name: name(which)? })],
        };
        Some(steps)
    }
}

fn node_of(record: &Record) -> u32 {
    record.part().home.nodes.first().unwrap().0
}

/// Checks that the state after a transaction is the one before with all of its steps, and no other
/// change.
fn check_changed(before: &State, after: &State, steps: &[Step]) -> Result<(), TestCaseError> {
    let by_name = |state: &State| -> BTreeMap<_, _> {
        let each = |it: &(Record, String, String)| (it.0.name.clone(), it.clone());
        state.domains.iter().map(each).collect()
    };
    let (mut expected, found) = (by_name(before), by_name(after));
    let of = |state: &State| -> BTreeMap<_, _> {
        state.reservations.iter().map(|it| (it.name.clone(), it.clone())).collect()
    };
    let (mut reserved, reserved_after) = (of(before), of(after));
    for Step { action, .. } in steps {
        if let Some(part) = action.part() {
            let (record, cpus, mems) = expected.get_mut(part.domain()).unwrap();
            let actual = found[part.domain()].0.part();
            let part = record.parts.iter_mut().next().unwrap();
            match action {
                Action::Claim { claim, .. } => part.claim = Some(claim.clone()),
                Action::ConfineMemory { nodes, .. } => {
                    part.memory_nodes = Some(nodes.clone());
                    *mems = nodes.to_string();
                }
                Action::BindCpus { cpus: wanted, on_behalf, .. } => {
                    let (cpus, on_behalf) = (wanted.clone(), *on_behalf);
                    part.cpus = Some(crate::store::CpuBinding { cpus, on_behalf });
                }
                Action::SetHome { home, .. } => {
                    if part.home.nodes != home.nodes {
                        // A new home ends a move to the former one.
                        (part.moving_to, part.mover) = (None, None);
                    }
                    part.policy_nodes = Some(home.nodes.clone());
                    part.home = home.clone();
                }
                Action::BeginMove { nodes, .. } => {
                    part.moving_to = Some(nodes.clone());
                    prop_assert_eq!(actual.mover.as_ref().unwrap().pid, std::process::id());
                    part.mover.clone_from(&actual.mover);
                }
                Action::EndMove { is_complete, .. } => {
                    part.mover = None;
                    part.moving_to = part.moving_to.take().filter(|_| !is_complete);
                }
                other => panic!("{other}"),
            }
            if let Action::BindCpus { cpus: wanted, .. } = action {
                *cpus = wanted.to_string();
            }
            continue;
        }
        match action {
            Action::Reserve { reservation, .. } => {
                let made = &reserved_after[&reservation.name];
                prop_assert_eq!(&made.bytes, &reservation.bytes);
                prop_assert!(expiry_s(&made.lifetime).is_some());
                reserved.insert(reservation.name.clone(), made.clone());
            }
            Action::Release { name } => drop(reserved.remove(name)),
            Action::Adopt { name, owner, .. } => {
                let adopted = &reserved_after[name];
                prop_assert_eq!(adopted.owner(), Some(owner.as_str()));
                reserved.get_mut(name).unwrap().lifetime = adopted.lifetime.clone();
            }
            Action::PutOff { name } => {
                let (was, is) = (&reserved[name].lifetime, &reserved_after[name].lifetime);
                prop_assert!(expiry_s(is) >= expiry_s(was), "{:?}, {:?}", was, is);
                let lifetime = is.clone();
                reserved.get_mut(name).unwrap().lifetime = lifetime;
            }
            other => panic!("{other}"),
        }
    }
    prop_assert_eq!(found, expected);
    prop_assert_eq!(reserved_after, reserved);
    Ok(())
}

/// The end of a reservation in seconds since boot; none if it lasts as long as a domain.
fn expiry_s(lifetime: &Lifetime) -> Option<u64> {
    match lifetime {
        Lifetime::Term { expires_boottime_s, .. } => Some(*expires_boottime_s),
        Lifetime::Cgroup { .. } | Lifetime::Lease { .. } => None,
    }
}

/// Applies a transaction, or dies within it. After a kill, the next two holders of the lock roll
/// back: the first one while the kernel still refuses, the second one once it obeys again.
fn attempt(made: &Made, transaction: &Transaction, attempt: &Attempt) -> Result<(), String> {
    let state = State::of(made);
    let refusing =
        attempt.refusal.and_then(|(one, file)| Some((state.domain(one)?.name.clone(), file)));
    if let Some((name, file)) = &refusing {
        made.refuse(name, file);
    }
    let applied = match attempt.kill {
        Some((steps, records)) if transaction.check(&seen(made)).is_ok() => {
            kill(made, transaction, steps, records);
            drop(made.host().begin().unwrap());
            Err("killed".to_owned())
        }
        _ => made.host().begin().unwrap().apply(transaction).map_err(|why| why.to_string()),
    };
    if let Some((name, file)) = &refusing {
        made.obey(name, file);
    }
    drop(made.host().begin().unwrap());
    applied
}

fn seen(made: &Made) -> Observation {
    made.host().observe_from(None).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each transaction is applied as a whole or not at all, some of them in the interval after
    /// their plan, and promises never exceed a node.
    #[test]
    fn transactions_hold_as_a_whole_or_not_at_all(
        events in proptest::collection::vec(events(), 1..24),
    ) {
        let made = Made::new();
        let mut uptime_s = 100;
        made.file("proc/uptime", "100.00 1.00\n");
        symlink("/proc/self", made.path(&format!("proc/{}", std::process::id()))).unwrap();
        made.domain("d0", 0, 150);
        made.domain("d1", 1, 250);
        let mut late: Option<Transaction> = None;
        for (number, event) in events.into_iter().enumerate() {
            let before = State::of(&made);
            match event {
                Event::Apply(it) => {
                    let steps = before.steps(&it.changes, number);
                    let planned = Transaction::new(steps, &seen(&made));
                    let transaction = match it.is_late {
                        true => late.replace(planned),
                        false => late.take().or(Some(planned)),
                    };
                    let Some(transaction) = transaction.filter(|it| !it.is_empty()) else {
                        continue;
                    };
                    let applied = attempt(&made, &transaction, &it);
                    let after = State::of(&made);
                    match applied {
                        Ok(()) => check_changed(&before, &after, &transaction.steps)?,
                        Err(why) => prop_assert_eq!(after, before, "{}", why),
                    }
                }
                Event::Start { node, mib } => {
                    let seen = seen(&made);
                    if seen.available_bytes(NodeId(node), Default::default()) >= mib * MIB {
                        made.domain(&format!("s{number}"), node, mib);
                    }
                }
                Event::End { one } => {
                    if let Some(record) = before.domain(one) {
                        let events = format!("cg{}/cgroup.events", record.cgroup);
                        made.file(&events, "populated 0\n");
                    }
                }
                Event::Wait { seconds } => {
                    uptime_s += seconds;
                    made.file("proc/uptime", &format!("{uptime_s}.00 1.00\n"));
                }
            }
            prop_assert!(!made.journal().exists());
            let promised_mib = State::of(&made).promised_mib();
            prop_assert!(promised_mib.iter().all(|&mib| mib <= FREE_MIB), "{:?}", promised_mib);
        }
    }
}
