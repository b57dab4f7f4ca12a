//! Promises that hold after every event of a run.

use super::{FOUND, MIB, QUIET_INTERVALS, Run};
use crate::daemon::persisted::PersistedState;
use nearside_linux::{folder::Folder, store::Record};
use nearside_policy::HomeBlocker;
use nearside_topology::NodeId;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

impl Run {
    fn fails(&self, why: &str) -> ! {
        panic!("{why}")
    }

    /// Checks what holds at any time. While there is a journal, its domains are left to the next
    /// holder of the lock.
    pub(super) fn check(&mut self) {
        let host = self.made.host();
        let (records, unreadable) = host.records();
        if !unreadable.is_empty() {
            self.fails(&format!("unreadable: {unreadable:?}"));
        }
        let folder = Folder::open(&self.made.path("run/nearside")).unwrap();
        let notices = folder.map(|folder| PersistedState::read(&folder, host.boot_id()).1);
        if let Some(notice) = notices.unwrap_or_default().first() {
            self.fails(notice);
        }
        let journal = self.journal().unwrap_or_default();
        let is_pending = |record: &Record| journal.contains(&format!("{:?}", record.cgroup));
        for record in &records {
            if let Some(why) = self.differs(record).filter(|_| !is_pending(record)) {
                self.fails(&why);
            }
        }
        let by_name: BTreeMap<_, _> =
            records.iter().map(|record| (record.name.as_str(), record)).collect();
        if let Some(lost) = self.claims.keys().find(|name| !by_name.contains_key(name.as_str())) {
            self.fails(&format!("{lost} has lost its record"));
        }
        if let Some(lost) = self.recorded.iter().find(|path| !by_name.contains_key(path.as_str())) {
            self.fails(&format!("{lost} has lost its record"));
        }
        let reservations = host.reservations();
        for node in [NodeId(0), NodeId(1)] {
            let claims = records.iter().flat_map(Record::parts).filter_map(|it| it.claim.as_ref());
            let claimed: u64 = claims.filter_map(|claim| claim.bytes.get(&node)).sum();
            let reserved: u64 = reservations.iter().filter_map(|it| it.bytes.get(&node)).sum();
            if claimed + reserved > 3072 * MIB {
                let (claimed, reserved) = (claimed / MIB, reserved / MIB);
                let why = format!("{claimed} MiB claimed and {reserved} reserved of {}", node.0);
                self.fails(&why);
            }
        }
        let found =
            records.iter().filter(|record| record.found_by.is_some() && !is_pending(record));
        let recorded: BTreeSet<_> = found.map(|record| record.name.clone()).collect();
        self.reached.homes += recorded.difference(&self.recorded).count();
        self.recorded = recorded;
        self.reached.roll_backs += usize::from(self.was_pending && journal.is_empty());
        self.was_pending = !journal.is_empty();
        let of = |it: &Record| {
            let part = it.part();
            let home = (it.home_nodes().to_string(), part.home.origin);
            (it.name.clone(), home, part.cpus.is_some(), part.claim.is_some())
        };
        let mut reserved: Vec<_> =
            reservations.iter().map(|it| (&it.name, it.bytes.values().sum::<u64>())).collect();
        reserved.sort();
        let domains: Vec<_> = records.iter().map(of).collect();
        let state = format!("  {domains:?} {reserved:?} {}", !journal.is_empty());
        self.events.push(state);
    }

    /// How the record of a domain differs from its group, or from itself.
    fn differs(&self, record: &Record) -> Option<String> {
        let setting = |file: &str| {
            let path = self.made.path(format!("cg{}/{file}", record.cgroup));
            fs::read_to_string(path).unwrap_or_default().trim().to_owned()
        };
        let (name, part) = (&record.name, record.part());
        let home = part.home.nodes.to_string();
        let bound_to = part.cpus.as_ref().map(|it| it.cpus.to_string()).unwrap_or_default();
        let cpus = setting("cpuset.cpus");
        if cpus != bound_to {
            return Some(format!("{name} is bound to {cpus:?}, not to {bound_to:?}"));
        }
        let of_home = match &*home {
            "0" => "0-1",
            "1" => "2-3",
            _ => "0-3",
        };
        if !cpus.is_empty() && cpus != of_home {
            return Some(format!("{name} is at home on {home} and bound to {cpus}"));
        }
        let claims = part.claim.as_ref().map(|claim| claim.total_bytes());
        if claims != self.claims.get(name).copied() {
            return Some(format!("{name} claims {claims:?} bytes"));
        }
        let confined = part.memory_nodes.as_ref().map(ToString::to_string).unwrap_or_default();
        let mems = setting("cpuset.mems");
        if mems != confined {
            return Some(format!("{name} is confined to {mems:?}, not to {confined:?}"));
        }
        let claimed = part.claim.as_ref().map(|claim| claim.nodes().to_string());
        claimed
            .filter(|claimed| *claimed != home)
            .map(|claimed| format!("{name} is at home on {home} and claims memory of {claimed}"))
    }

    /// Nothing fails any more. No change stays pending, and every domain gets a home, or the daemon
    /// tells what keeps it from one.
    pub(super) fn come_to_rest(&mut self) {
        for path in FOUND {
            if self.lives(path) {
                self.made.refuse_bindings(path, false);
            }
        }
        let mut lacks = None;
        for _ in 0..QUIET_INTERVALS {
            self.pass_a_second();
            self.look();
            self.check();
            lacks = self.lacks();
            if lacks.is_none() {
                return;
            }
        }
        if let Some(lacks) = lacks {
            self.fails(&lacks);
        }
    }

    /// A pending change, or a domain without a home; none at rest.
    fn lacks(&self) -> Option<String> {
        if self.journal().is_some() {
            return Some("a change is pending".into());
        }
        let Some(daemon) = &self.daemon else { return Some("the daemon does not start".into()) };
        let homeless = |path: &&str| self.lives(path) && !self.recorded.contains(*path);
        FOUND.into_iter().filter(homeless).find_map(|path| {
            let known = daemon.control.controllers.homes.state().parts.get(&path.into());
            match known.and_then(|known| known.status.home_blocker.clone()) {
                Some(HomeBlocker::Refused { .. }) => None,
                blocker => Some(format!("{path} has no home: {blocker:?}")),
            }
        })
    }

    fn journal(&self) -> Option<String> {
        fs::read_to_string(self.made.path("run/nearside/journal.json")).ok()
    }
}
