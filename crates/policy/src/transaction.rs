//! Changes that are applied as a whole or not at all.
//!
//! A decision is made from an observation without the lock, and carried out with it. In between,
//! a domain may start, end or get another home. So a transaction carries its *needs*: the facts
//! of the observation that its decision stands on. The machine checks them against a fresh
//! observation under the lock that protects the records, then applies every step. A transaction
//! whose needs no longer hold is dropped with the reason, and the next interval decides anew.
//!
//! Moving pages is no part of a transaction ([`PageMove`](crate::PageMove)).

use crate::{
    Action, ByNode, Bytes, CgroupId, Claim, Home, Observation, PageSize, PartId, PartState, Reason,
    Reservation, Step, Subject, Until, total,
};
use nearside_topology::{NodeId, NodeSet};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A change that is applied as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Transaction {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The needs, which must hold under the lock.
    pub needs: Needs,
}

/// The facts that a transaction stands on. They are checked again under the lock.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Needs {
    /// Memory that must be available, as it was observed: by page size, bytes on each node. It is
    /// worked out anew before the transaction is applied.
    pub memory: Vec<(PageSize, ByNode)>,
    /// The parts that are changed, each with its cgroup and its home as they were observed.
    pub parts: BTreeMap<PartId, Observed>,
    /// The parts whose memory has arrived at home: no process may be moving it.
    pub arrived: BTreeSet<PartId>,
    /// The domains that are created: no part may have their names.
    pub free_names: BTreeSet<String>,
    /// The reservations that change or end, each with the path of its owner's cgroup as it was
    /// observed.
    pub reservations: BTreeMap<String, Option<String>>,
    /// The reservations that are made: none may have their names.
    pub free_reservations: BTreeSet<String>,
}

/// A part as its transaction expects it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Observed {
    /// The identity of its domain's cgroup.
    pub cgroup: CgroupId,
    /// Its home; none if it had none.
    pub home: Option<Home>,
}

/// A need that no longer holds.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unmet {
    /// A domain has ended.
    #[error("{0} has ended")]
    Ended(PartId),
    /// A domain has ended and another has its name.
    #[error("{0} has ended, and another domain has its name")]
    Replaced(PartId),
    /// A part has another home by now.
    #[error("another command has changed the home of {part} to {}", home_in_words(home))]
    Rehomed {
        /// The part.
        part: PartId,
        /// Its present home.
        home: Option<Home>,
    },
    /// A process moves its memory, and confines it to its home at the end.
    #[error("process {pid} moves the memory of {part}")]
    HasMover {
        /// The part.
        part: PartId,
        /// The process.
        pid: u32,
    },
    /// Another domain has taken the name.
    #[error("a domain named {0} is running by now")]
    NameTaken(String),
    /// A reservation has ended.
    #[error("reservation {0} has ended")]
    NotReserved(String),
    /// Another reservation has taken the name.
    #[error("a reservation named {0} exists by now")]
    ReservationTaken(String),
    /// A domain has adopted a reservation.
    #[error("reservation {name} belongs to {} by now", owner.as_deref().unwrap_or("no domain"))]
    Adopted {
        /// The reservation.
        name: String,
        /// The path of its owner's cgroup.
        owner: Option<String>,
    },
    /// Another domain or reservation has taken the memory.
    #[error(
        "{} {} {} available by now and {} are needed{}", nodes.named(),
        if nodes.len() == 1 { "has" } else { "have" },
        Bytes(*available_bytes), Bytes(*needed_bytes), page_size.in_words()
    )]
    Memory {
        /// The node, or several that have too little together.
        nodes: NodeSet,
        /// The size of the pages.
        page_size: PageSize,
        /// Bytes that are needed.
        needed_bytes: u64,
        /// Bytes that are available.
        available_bytes: u64,
    },
}

fn home_in_words(home: &Option<Home>) -> String {
    home.as_ref().map_or_else(|| "none".into(), |home| home.nodes.named().to_string())
}

impl Transaction {
    /// A transaction of these steps. It needs what `seen` shows of the parts that they change.
    pub fn new(steps: Vec<Step>, seen: &Observation) -> Self {
        let memory = demands(&steps, seen).into_iter().map(|it| (it.page_size, it.bytes));
        let memory = memory.filter(|(_, bytes)| !bytes.is_empty()).collect();
        let mut needs = Needs { memory, ..Needs::default() };
        let mut released = BTreeSet::new();
        for step in &steps {
            let id = match &step.action {
                Action::Release { name } | Action::Adopt { name, .. } | Action::PutOff { name } => {
                    let owner = seen.reservation(name).and_then(|it| it.owner.clone());
                    needs.reservations.insert(name.clone(), owner);
                    if matches!(step.action, Action::Release { .. }) {
                        released.insert(name.as_str());
                    }
                    continue;
                }
                Action::Reserve { reservation, .. } => {
                    // A reservation may take the place of one that ends in a step before.
                    if !released.contains(reservation.name.as_str()) {
                        needs.free_reservations.insert(reservation.name.clone());
                    }
                    continue;
                }
                action => action.part(),
            };
            let Some(id) = id else { continue };
            if step.reason == Reason::Arrived {
                needs.arrived.insert(id.clone());
            }
            if matches!(step.action, Action::Create { .. }) {
                needs.free_names.insert(id.domain().to_owned());
            } else if let Some(part) = seen.part(id) {
                let observed = Observed { cgroup: part.cgroup, home: part.home.clone() };
                needs.parts.insert(id.clone(), observed);
            }
        }
        Self { steps, needs }
    }

    /// Reserves memory for something that is no domain. A reservation of the same name that no
    /// domain has adopted ends.
    pub fn reserving(reservation: Reservation, until: Until, seen: &Observation) -> Self {
        let is_replaced = seen.reservation(&reservation.name).is_some_and(|it| it.owner.is_none());
        let release = is_replaced.then(|| Action::Release { name: reservation.name.clone() });
        let release = release.map(|action| Step { action, reason: Reason::NotNeeded });
        let nodes = reservation.bytes.keys();
        let available = seen.available(reservation.page_size);
        let available_bytes = nodes.map(|node| (*node, available.on(*node))).collect();
        let reserve = Action::Reserve { reservation, until };
        let reserve = Step { action: reserve, reason: Reason::Reserves { available_bytes } };
        Self::new(release.into_iter().chain([reserve]).collect(), seen)
    }

    /// Whether its needs hold in a fresh observation. The memory that its steps need is worked out
    /// anew: resident memory and claims may have changed since the decision.
    ///
    /// # Errors
    /// The first need that does not hold.
    pub fn check(&self, fresh: &Observation) -> Result<(), Unmet> {
        self.needs.check_subjects(fresh)?;
        let check = |fresh: &Observation| {
            demands(&self.steps, fresh).iter().try_for_each(|demand| demand.check(fresh))
        };
        let released = self.released();
        match released.is_empty() {
            true => check(fresh),
            // Their promises end. The fresh figures tell how much of their memory is still free.
            false => check(&fresh.without(&released)),
        }
    }

    /// The names of the reservations that it ends.
    fn released(&self) -> BTreeSet<&str> {
        let names = self.steps.iter().filter_map(|step| match &step.action {
            Action::Release { name } => Some(name.as_str()),
            _ => None,
        });
        names.collect()
    }

    /// Whether its steps claim or reserve memory.
    pub fn claims_memory(&self) -> bool {
        let claims =
            |action: &Action| matches!(action, Action::Claim { .. } | Action::Reserve { .. });
        self.steps.iter().any(|step| claims(&step.action))
    }

    /// Whether its steps claim or reserve any bytes.
    pub fn claims_bytes(&self) -> bool {
        let claims = |step: &Step| match &step.action {
            Action::Claim { claim, .. } => claim.total_bytes() > 0,
            Action::Reserve { reservation, .. } => total(&reservation.bytes) > 0,
            _ => false,
        };
        self.steps.iter().any(claims)
    }

    /// The subjects it changes, each once, in their order.
    pub fn subjects(&self) -> BTreeSet<Subject<'_>> {
        self.steps.iter().map(|step| step.action.subject()).collect()
    }

    /// The parts it changes, each once, in their order.
    pub fn parts(&self) -> BTreeSet<&PartId> {
        self.steps.iter().filter_map(|step| step.action.part()).collect()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The steps of one part, in order.
    pub fn steps_of<'a>(&'a self, part: &'a PartId) -> impl Iterator<Item = &'a Step> {
        self.steps.iter().filter(move |step| step.action.part() == Some(part))
    }
}

impl Needs {
    /// Whether parts, reservations and names are as expected.
    fn check_subjects(&self, fresh: &Observation) -> Result<(), Unmet> {
        for name in &self.free_names {
            if fresh.parts.iter().any(|part| part.id.domain() == name) {
                return Err(Unmet::NameTaken(name.clone()));
            }
        }
        for (id, expected) in &self.parts {
            let Some(part) = fresh.part(id) else { return Err(Unmet::Ended(id.clone())) };
            if part.cgroup != expected.cgroup {
                return Err(Unmet::Replaced(id.clone()));
            }
            if part.home != expected.home {
                return Err(Unmet::Rehomed { part: id.clone(), home: part.home.clone() });
            }
            if let Some(pid) = part.mover.filter(|_| self.arrived.contains(id)) {
                return Err(Unmet::HasMover { part: id.clone(), pid });
            }
        }
        for name in &self.free_reservations {
            if fresh.reservation(name).is_some() {
                return Err(Unmet::ReservationTaken(name.clone()));
            }
        }
        for (name, expected) in &self.reservations {
            let Some(reservation) = fresh.reservation(name) else {
                return Err(Unmet::NotReserved(name.clone()));
            };
            if reservation.owner != *expected {
                let owner = reservation.owner.clone();
                return Err(Unmet::Adopted { name: name.clone(), owner });
            }
        }
        Ok(())
    }
}

/// Memory that the claims of a transaction need in pages of one size.
#[derive(Debug, Default)]
struct Demand {
    page_size: PageSize,
    /// Bytes on each node that needs some.
    bytes: ByNode,
    /// Bytes that the same claims give back on other nodes.
    given_back_bytes: u64,
}

impl Demand {
    /// Whether each node has the memory, and all of them together: reserved huge pages are on no
    /// node before they are touched.
    fn check(&self, fresh: &Observation) -> Result<(), Unmet> {
        let available = fresh.available(self.page_size);
        let on = |nodes: &NodeSet| available.on_nodes(nodes, self.given_back_bytes);
        let check = |nodes: NodeSet, needed_bytes: u64| {
            let available_bytes = on(&nodes);
            let page_size = self.page_size;
            match available_bytes < needed_bytes {
                true => Err(Unmet::Memory { nodes, page_size, needed_bytes, available_bytes }),
                false => Ok(()),
            }
        };
        for (&node, &needed_bytes) in &self.bytes {
            check(NodeSet::from([node]), needed_bytes)?;
        }
        check(self.bytes.keys().copied().collect(), crate::total(&self.bytes))
    }
}

impl Observation {
    /// The machine without these reservations.
    pub fn without(&self, ended: &BTreeSet<&str>) -> Self {
        let mut left = self.clone();
        left.reservations.retain(|reservation| !ended.contains(reservation.name.as_str()));
        left
    }

    /// The machine once a transaction is applied: claims and homes change at once, memory later.
    pub fn after(mut self, transaction: &Transaction) -> Self {
        for step in &transaction.steps {
            self.change(&step.action);
        }
        self
    }

    // A virtual machine is created with its first cell; the others follow with their claims.
    fn adds_cell(&self, action: &Action, id: &PartId) -> bool {
        matches!(action, Action::Claim { .. })
            && id.cell().is_some()
            && self.part(id).is_none()
            && self.parts.iter().any(|part| part.id.domain() == id.domain())
    }

    /// Carries the change of claims, homes and reservations over that an action makes.
    pub fn change(&mut self, action: &Action) {
        let id = match action {
            Action::Reserve { reservation, .. } => {
                return self.reservations.push(reservation.clone());
            }
            Action::Release { name } => return self.reservations.retain(|it| it.name != *name),
            Action::Adopt { name, owner, .. } => {
                let adopted = self.reservations.iter_mut().find(|it| it.name == *name);
                return adopted.into_iter().for_each(|it| it.owner = Some(owner.clone()));
            }
            action => action.part(),
        };
        let Some(id) = id else { return };
        if matches!(action, Action::Create { .. }) || self.adds_cell(action, id) {
            // Every domain that Nearside starts has a claim; one that a pattern found has none.
            let claim = Some(Claim::default());
            self.parts.push(PartState { id: id.clone(), claim, ..PartState::default() });
            self.parts.sort_by(|a, b| a.id.cmp(&b.id));
        }
        let Some(part) = self.parts.iter_mut().find(|part| part.id == *id) else { return };
        match action {
            Action::Claim { claim, .. } if part.claim.is_some() => {
                part.claim = Some(claim.clone());
            }
            Action::SetHome { home, .. } => part.home = Some(home.clone()),
            Action::ConfineMemory { nodes, .. } => part.memory_nodes = Some(nodes.clone()),
            Action::Forget { .. } => part.home = None,
            _ => {}
        }
    }
}

/// Memory that the steps need, by page size and node, in bytes: all that the new claims reserve
/// beyond resident memory, less what the same parts reserve now and less memory that leaves; and
/// the new reservations.
///
/// Example: A claims 400 MiB on node 0 and holds them, B claims and holds 300 MiB on node 1, and
/// both exchange homes. Node 1 needs 400 - 300 = 100 MiB, node 0 needs 300 - 400, which is
/// nothing.
fn demands(steps: &[Step], seen: &Observation) -> Vec<Demand> {
    let mut sums = Sums::default();
    for step in steps {
        match &step.action {
            Action::Claim { part, claim } => sums.add_claim(part, claim, seen),
            Action::Reserve { reservation, .. } => sums.add_reservation(reservation),
            _ => {}
        }
    }
    let bytes = |amount: i128| u64::try_from(amount).unwrap_or(u64::MAX);
    let demand = |(page_size, sum): (PageSize, BTreeMap<NodeId, i128>)| {
        let needed = sum.iter().filter(|(_, amount)| **amount > 0);
        let given_back: i128 = sum.values().filter(|amount| **amount < 0).map(|it| -it).sum();
        Demand {
            page_size,
            bytes: needed.map(|(&node, &amount)| (node, bytes(amount))).collect(),
            given_back_bytes: bytes(given_back),
        }
    };
    sums.0.into_iter().map(demand).collect()
}

/// By page size: bytes by node that are needed, less those that are given back.
#[derive(Default)]
struct Sums(Vec<(PageSize, BTreeMap<NodeId, i128>)>);

impl Sums {
    fn of(&mut self, page_size: PageSize) -> &mut BTreeMap<NodeId, i128> {
        let at = self.0.iter().position(|(size, _)| *size == page_size);
        let at = at.unwrap_or_else(|| {
            self.0.push((page_size, BTreeMap::new()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    fn add_claim(&mut self, id: &PartId, claim: &Claim, seen: &Observation) {
        let none = PartState::default();
        let part = seen.part(id).unwrap_or(&none);
        let sum = self.of(claim.page_size);
        let held = |node| part.resident_bytes.get(&node).copied().unwrap_or(0);
        for (&node, &bytes) in &claim.bytes {
            *sum.entry(node).or_default() += i128::from(bytes.saturating_sub(held(node)));
        }
        for (node, bytes) in part.outstanding_bytes() {
            *sum.entry(node).or_default() -= i128::from(bytes);
        }
        let staying = part.staying_bytes();
        for (&node, &bytes) in &part.resident_bytes {
            if claim.bytes.get(&node).is_none_or(|&claimed| claimed == 0) {
                let stays = staying.get(&node).copied().unwrap_or(0);
                *sum.entry(node).or_default() -= i128::from(bytes.saturating_sub(stays));
            }
        }
    }

    fn add_reservation(&mut self, reservation: &Reservation) {
        let sum = self.of(reservation.page_size);
        for (&node, &bytes) in &reservation.bytes {
            *sum.entry(node).or_default() += i128::from(bytes);
        }
    }
}

#[cfg(test)]
mod tests;
