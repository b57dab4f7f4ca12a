//! The samples of the control loop, one an interval (docs/adr/0008-daemon.md).
//!
//! Most domains of a host are idle most of the time, so a sample costs little without activity. The
//! files of a domain are opened once and read again from the beginning (`kept`). Only domains that
//! are due ([`History::next_sample`]) are read; the last sample stands for the others. Threads are
//! read if CPU time was used (`cpu`), records when their folder has changed ([`Known`]).
//!
//! Samples cover the domains of `nearside run` and the groups that patterns match ([`Patterns`]),
//! of any owner (`owner`).

mod cells;
mod cpu;
mod depth;
mod domain;
mod ended;
mod kept;
mod nodes;
mod patterns;
mod search;

pub use ended::Ended;
pub use patterns::{PatternError, Patterns};

use crate::{
    Error, Host,
    cgroup::{Cgroup, Tree},
    guest::GuestCell,
    host, memory,
    newcomer::newcomer,
    oom::OomKills,
    store::{self, Known, Record, Store},
    usage::Usage,
};
use domain::{FILES, Look, Watched};
use kept::Buffer;
use nearside_policy::{
    ByNode, ControlObservation, History, MoveReport, Newcomer, Observation, Reservation, Unowned,
    adoptions, awaiting, may_adopt,
};
use nearside_topology::{NodeSet, Topology, sysfs};
use nodes::NodeWatch;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use search::{Found, Search};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// The most threads of all domains that are read in an interval.
const MAX_THREADS: usize = 8192;

/// Intervals between two reads of the zones of a node whose free memory is unchanged: an operator
/// can set watermarks.
const INTERVALS_OF_ZONES: u64 = 8;

/// Descriptors kept free for sockets, the scheduler's maps and short reads.
const SPARE_DESCRIPTORS: u64 = 256;

/// The most notices that are remembered to avoid repetition. Further ones are dropped.
const MAX_REPORTED: usize = 1024;

/// The group of systemd itself, which is a scope like others.
const INIT: &str = "/init.scope";

/// The groups of the domains that Nearside starts.
const PARENTS: [&str; 2] = ["/nearside", "/nearside.slice"];

/// The input of an interval's sample.
#[derive(Debug, Clone, Default)]
pub struct Turn<'a> {
    /// The number of the interval.
    pub interval: u64,
    /// The monotonic time in ns.
    pub now_ns: u64,
    /// True if a scheduler that knows node affinity is attached.
    pub soft_affinity: bool,
    /// CPU time by node that it counted since it was attached, by the inode of a domain's cgroup.
    pub scheduler: Option<&'a BTreeMap<u64, ByNode>>,
    /// Reports of the pages that were to move.
    pub moved: &'a [MoveReport],
}

/// Watches this host.
#[derive(Debug)]
pub struct Watcher {
    root: PathBuf,
    tree: Tree,
    store: Store,
    systemd: bool,
    patterns: Patterns,
    search: Search,
    /// The path of this process's own group, if the tree shows it.
    own: Option<String>,
    known: Known,
    /// By name, the records of this boot.
    records: BTreeMap<String, Record>,
    /// True if others than in the search before.
    has_new_records: bool,
    /// By name, the domains that run.
    domains: BTreeMap<String, Watched>,
    /// By name, the domains that patterns match, with or without processes.
    found: BTreeMap<String, Found>,
    /// The domains that ended before the last observation, and after the one before.
    ended: Vec<Ended>,
    /// The most domains whose files may stay open.
    max_open: u64,
    /// The machine as it was read last, and the online CPUs then.
    machine: Option<(Topology, String)>,
    nodes: NodeWatch,
    looked_ns: Option<u64>,
    /// The first domain of the last interval's sample.
    looked_first: Option<String>,
    buffer: Buffer,
    notices: Vec<String>,
    /// Notices that were given. Most conditions hold for many intervals.
    said: BTreeSet<String>,
}

impl Host {
    /// Starts to watch. Raises this process's limit of open files to the hard limit, because the
    /// files of each domain stay open.
    pub fn watcher(&self, patterns: Patterns) -> Watcher {
        Watcher {
            root: self.root().into(),
            tree: self.tree().clone(),
            store: self.store().clone(),
            systemd: self.booted_with_systemd(),
            patterns,
            search: Search::default(),
            own: self
                .tree()
                .group_of(&self.proc().join("self/cgroup"))
                .ok()
                .map(|group| group.path().to_owned()),
            known: Known::default(),
            records: BTreeMap::new(),
            has_new_records: false,
            domains: BTreeMap::new(),
            found: BTreeMap::new(),
            ended: Vec::new(),
            max_open: raise_open_files().saturating_sub(SPARE_DESCRIPTORS) / FILES,
            machine: None,
            nodes: NodeWatch::new(self.root()),
            looked_ns: None,
            looked_first: None,
            buffer: Buffer::default(),
            notices: Vec::new(),
            said: BTreeSet::new(),
        }
    }
}

impl Watcher {
    /// Replaces the patterns.
    pub fn set_patterns(&mut self, patterns: Patterns) {
        self.patterns = patterns;
        self.search = Search::default();
    }

    /// The records of the domains that run, in the order of their names.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values().filter(|record| self.domains.contains_key(&record.name))
    }

    /// The pattern that found a domain, which need not have a record yet.
    pub fn found_by(&self, domain: &str) -> Option<&str> {
        self.found.get(domain).map(|found| found.pattern.as_str())
    }

    /// Domains that have a record because of a pattern that was removed, and that no other pattern
    /// matches.
    pub fn no_longer_named(&self) -> Vec<String> {
        let unnamed = self.records.values().filter(|record| !stays(&self.patterns, record));
        let names = unnamed.map(|record| record.name.clone());
        names.filter(|name| !self.found.contains_key(name)).collect()
    }

    /// The found groups with a guest of several cells, which are to be looked at.
    pub fn found_with_cells(&self) -> impl Iterator<Item = &str> {
        let has_cells = |name: &&str| self.domains.get(*name).is_some_and(Watched::has_cells);
        self.found().filter(has_cells)
    }

    /// Sets the cells of a found guest as they were looked at; none for a guest of one part.
    pub fn set_cells(&mut self, domain: &str, cells: Vec<GuestCell>) {
        if let Some(watched) = self.domains.get_mut(domain) {
            watched.set_cells(cells);
        }
    }

    /// The guests whose cells are known, by their domains.
    pub fn cells(&self) -> BTreeMap<String, Vec<GuestCell>> {
        let known = self.domains.iter().filter(|(_, watched)| !watched.cells().is_empty());
        known.map(|(name, watched)| (name.clone(), watched.cells().to_vec())).collect()
    }

    /// Domains whose record has other parts than their guest has cells. They are to be forgotten.
    pub fn outdated(&self) -> Vec<String> {
        let is_outdated = |(name, record): &(&String, &Record)| {
            let watched = self.domains.get(*name);
            watched.is_some_and(|watched| watched.has_other_parts(record))
        };
        self.records.iter().filter(is_outdated).map(|(name, _)| name.clone()).collect()
    }

    /// The paths of the groups that patterns match.
    pub fn found(&self) -> impl Iterator<Item = &str> {
        self.found.keys().map(String::as_str)
    }

    /// The machine as it was sampled last.
    pub fn topology(&self) -> Option<&Topology> {
        self.machine.as_ref().map(|(machine, _)| machine)
    }

    /// The inode of a domain's cgroup, by which a scheduler knows it.
    pub fn cgroup_inode(&self, domain: &str) -> Option<u64> {
        self.domains.get(domain).map(Watched::inode)
    }

    /// The domains that the last observation found at their end. Those whose cgroup was removed
    /// before are missing.
    pub fn ended(&self) -> &[Ended] {
        &self.ended
    }

    /// The nodes that a domain's memory cannot leave, whoever bound it; none if nothing binds it.
    pub fn bound_memory_nodes(&self, domain: &str) -> Option<NodeSet> {
        self.domains.get(domain)?.bound_memory_nodes(domain, self.records.get(domain))
    }

    /// The last sample of a domain's use.
    pub fn usage(&self, domain: &str) -> Option<Usage> {
        self.domains.get(domain).map(Watched::usage)
    }

    /// The kills for lack of memory in a domain, as of its last sample.
    pub fn oom_kills(&self, domain: &str) -> Option<OomKills> {
        self.domains.get(domain)?.oom_kills()
    }

    /// The path of a domain's cgroup.
    pub fn cgroup_path(&self, domain: &str) -> Option<&str> {
        self.domains.get(domain).map(Watched::path)
    }

    /// Virtual machines of libvirt that may adopt a reservation, as far as their groups tell. None
    /// while no reservation waits for its domain.
    pub fn newcomers(&self) -> Vec<Newcomer> {
        let Some((unowned, offered)) = self.unowned() else { return Vec::new() };
        let reservations: Vec<_> = self.known.reservations(&self.store, &self.tree).collect();
        let is_owner =
            |path: &str| reservations.iter().any(|reservation| reservation.owner() == Some(path));
        let found = self.found.keys().filter(|path| !is_owner(path));
        let groups = found.filter_map(|path| self.tree.group(path).ok());
        let (proc, memory_nodes) = (self.root.join("proc"), offered.memory_nodes());
        let newcomers = groups.filter_map(|group| newcomer(&group, &proc, self.systemd, &offered));
        newcomers.filter(|it| may_adopt(&unowned, it, &memory_nodes)).collect()
    }

    /// Those newcomers that adopt a reservation. A session decides again, under the lock.
    pub fn adopters(&self, mut newcomers: Vec<Newcomer>) -> Vec<Newcomer> {
        let Some((unowned, offered)) = self.unowned() else { return Vec::new() };
        let pairs = adoptions(&unowned, &newcomers, &offered.memory_nodes());
        let adopters: BTreeSet<_> = pairs.into_iter().map(|(_, at)| at).collect();
        let mut at = 0..;
        newcomers.retain(|_| at.next().is_some_and(|at| adopters.contains(&at)));
        newcomers
    }

    /// Whether a reservation would lapse before it is known which of the newcomers it belongs to.
    pub fn must_put_off(&self, newcomers: &[Newcomer]) -> bool {
        let Some((unowned, offered)) = self.unowned() else { return false };
        let waiting = awaiting(&unowned, newcomers, &offered.memory_nodes());
        let names: BTreeSet<_> = waiting.iter().map(|&at| unowned[at].name.as_str()).collect();
        let mut reservations = self.known.reservations(&self.store, &self.tree);
        reservations.any(|it| names.contains(it.name.as_str()) && self.store.put_off(it).is_some())
    }

    /// The reservations that wait for their domains, and the machine as domains may use it. None
    /// if no reservation waits.
    fn unowned(&self) -> Option<(Vec<Unowned>, Topology)> {
        let (machine, _) = self.machine.as_ref()?;
        let reservations = self.known.reservations(&self.store, &self.tree);
        let unowned: Vec<_> = reservations.filter_map(|it| it.unowned()).collect();
        if unowned.is_empty() {
            return None;
        }
        let allowed = host::allowed(&self.tree, self.systemd);
        Some((unowned, machine.clone().offered(allowed.as_ref())))
    }

    /// The reservations that last, less the memory that their owners held in the last sample.
    fn reservations(&self) -> Vec<Reservation> {
        let unfilled = |reservation: &store::Reservation| {
            let claim = reservation.claim();
            let claim = claim.as_ref();
            let resident = match reservation.owner().map(|path| (path, self.domains.get(path))) {
                Some((_, Some(owner))) => owner.resident_for(claim),
                // No pattern names the owner any more.
                Some((path, None)) => {
                    let group = self.tree.group(path).ok();
                    let memory = group.map(|it| memory::of_group(&it, &self.root.join("proc")));
                    memory.unwrap_or_default().compared_to(claim)
                }
                None => ByNode::new(),
            };
            reservation.unfilled(&resident)
        };
        self.known.reservations(&self.store, &self.tree).map(unfilled).collect()
    }

    /// Takes the notices for the user; each is given once.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Samples the host.
    ///
    /// # Errors
    /// If the records or the machine cannot be read. The next observation has the loads that were
    /// sampled until then; the caller passes the reports of moved pages again.
    pub fn observe(
        &mut self,
        history: &History,
        turn: Turn<'_>,
    ) -> Result<ControlObservation, Error> {
        self.read_records()?;
        self.find();
        let root = self.root.clone();
        let (before, online) = match self.machine.take() {
            Some((machine, online)) if online == online_cpus(&root) => (machine, online),
            _ => {
                self.domains.values_mut().for_each(Watched::stir);
                read_after(|| online_cpus(&root), || self.machine(sysfs::read))?
            }
        };
        let allowed = host::allowed(&self.tree, self.systemd);
        let offered = before.clone().offered(allowed.as_ref());
        self.sample_domains(history, &turn, &offered);
        // Free memory is read after resident memory. So pages touched in between count twice rather
        // than not at all.
        let machine = match turn.interval.is_multiple_of(INTERVALS_OF_ZONES) {
            true => self.machine(|root| sysfs::read_again(&before, root))?,
            false => self.machine(|root| sysfs::read_changes(&before, root))?,
        };
        let length_ns = self.looked_ns.map_or(0, |before| turn.now_ns.saturating_sub(before));
        self.looked_ns = Some(turn.now_ns);
        let happened = self.nodes.observe(&machine, length_ns, &mut self.buffer);
        let loads = self.domains.values_mut().flat_map(Watched::take_loads).collect();
        let domains = &self.domains;
        let states = domains
            .iter()
            .flat_map(|(name, watched)| watched.states(name, self.records.get(name)))
            .collect();
        let topology = machine.clone().offered(allowed.as_ref());
        let reservations = self.reservations();
        self.machine = Some((machine, online));
        Ok(ControlObservation {
            interval: turn.interval,
            length_ns,
            machine: Observation { topology, parts: states, reservations },
            loads,
            nodes: happened.nodes,
            memory_stall_ppm: happened.memory_stall_ppm,
            soft_affinity: turn.soft_affinity,
            numa_balancing: self.numa_balancing(),
            moved: turn.moved.to_vec(),
        })
    }

    fn numa_balancing(&self) -> Option<u64> {
        std::fs::read_to_string(self.root.join("proc/sys/kernel/numa_balancing"))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    fn machine(
        &mut self,
        read: impl FnOnce(&Path) -> Result<(Topology, Vec<sysfs::Note>), sysfs::Error>,
    ) -> Result<Topology, Error> {
        let read = read(&self.root);
        let (machine, notes) = read.map_err(|error| Error::Refused(error.to_string()))?;
        notes.iter().filter(|note| note.about_memory).for_each(|note| self.say(note.to_string()));
        Ok(machine)
    }

    fn say(&mut self, notice: String) {
        if self.said.len() < MAX_REPORTED && self.said.insert(notice.clone()) {
            self.notices.push(notice);
        }
    }

    /// Samples the domains that are due, and forgets those that have ended.
    fn sample_domains(&mut self, history: &History, turn: &Turn<'_>, offered: &Topology) {
        let proc = self.root.join("proc");
        let mut look = Look {
            now_ns: turn.now_ns,
            interval: turn.interval,
            proc: &proc,
            offered,
            has_huge_pages: offered
                .nodes
                .iter()
                .flat_map(|node| &node.huge_pages)
                .any(|pool| pool.total_pages > 0),
            systemd: self.systemd,
            scheduler: turn.scheduler,
            threads_left: MAX_THREADS,
            is_short: false,
        };
        let moved: BTreeSet<&str> = turn.moved.iter().map(|report| report.part.domain()).collect();
        let (records, buffer) = (&self.records, &mut self.buffer);
        // The history may come from an earlier daemon, with a domain that this one has not sampled
        // yet.
        let is_due = |name: &str, watched: &Watched| {
            let mut parts = watched.ids(name, records.get(name)).into_iter();
            parts.any(|id| history.next_sample(&id) <= turn.interval) || watched.is_new()
        };
        let mut due: Vec<_> =
            self.domains.iter_mut().filter(|(name, watched)| is_due(name, watched)).collect();
        // The first domain may use up the bound of threads, so each interval starts with another
        // one.
        let first = due.partition_point(|(name, _)| {
            self.looked_first.as_ref().is_some_and(|before| *name <= before)
        });
        due.rotate_left(first);
        self.looked_first = due.first().map(|(name, _)| (*name).clone());
        let mut ended: Vec<Ended> = Vec::new();
        for (name, watched) in due {
            if watched.is_populated(buffer) {
                let domain = (name.as_str(), records.get(name));
                let has_moved = moved.contains(name.as_str());
                watched.observe(&mut look, domain, has_moved, buffer);
            } else {
                let record = records.get(name);
                ended.push(Ended {
                    name: name.clone(),
                    oom_kills: watched.read_oom_kills(buffer),
                    bound_memory_nodes: watched.bound_memory_nodes(name, record),
                    was_found: record.is_none_or(|record| record.found_by.is_some()),
                });
            }
        }
        let is_short = look.is_short;
        for ended in &ended {
            self.domains.remove(&ended.name);
        }
        self.ended = ended;
        if is_short {
            let most = format!(
                "domains have more than {MAX_THREADS} busy threads: they are looked at in turn"
            );
            self.say(format!("{most}, so where they run is known some intervals later"));
        }
    }

    /// Reads the records that have changed.
    fn read_records(&mut self) -> Result<(), Error> {
        if !self.known.refresh(&self.store)? {
            return Ok(());
        }
        let broken: Vec<_> = self.known.broken().map(ToString::to_string).collect();
        broken.into_iter().for_each(|broken| self.say(broken));
        let records = self.known.records(&self.store);
        let records = records.map(|record| (record.name.clone(), record.clone())).collect();
        let before = std::mem::replace(&mut self.records, records);
        for (name, watched) in &mut self.domains {
            if before.get(name) != self.records.get(name) {
                watched.stir();
            }
        }
        self.has_new_records = true;
        // Found domains without a record are searched for in each interval anyway.
        let (records, found) = (&self.records, &self.found);
        self.domains.retain(|name, watched| match (records.get(name), found.get(name)) {
            (None, found) => found.is_some(),
            // The record may be of a group that has ended, whose path another group has.
            (Some(record), found) => {
                let inodes = [Some(record.inode), found.map(|found| found.inode)];
                inodes.contains(&Some(watched.inode()))
            }
        });
        Ok(())
    }

    /// Adds the groups that have a record or match a pattern, and drops those that are gone.
    fn find(&mut self) {
        let has_new_records = std::mem::take(&mut self.has_new_records);
        if self.search.look(&self.patterns, &self.tree) || has_new_records {
            self.found = self.named_by_patterns();
        }
        let (found, all) = (&self.found, self.records.len());
        // The group may have ended, and another of that path may have started.
        self.records
            .retain(|name, record| found.get(name).is_none_or(|found| found.inode == record.inode));
        self.has_new_records = self.records.len() < all;
        let (records, patterns) = (&self.records, &self.patterns);
        self.domains.retain(|name, watched| match found.get(name) {
            Some(found) => watched.inode() == found.inode,
            None => records.get(name).is_some_and(|record| stays(patterns, record)),
        });
        let is_there = |group: &Cgroup, record: &Record| {
            group.inode().is_ok_and(|inode| inode == record.inode)
        };
        let recorded = self.records.iter().filter_map(|(name, record)| {
            let is_new = !self.domains.contains_key(name)
                && !found.contains_key(name)
                && stays(patterns, record);
            let group = self
                .tree
                .group(&record.cgroup)
                .ok()
                .filter(|group| is_new && is_there(group, record))?;
            Some((name.clone(), group, record.inode))
        });
        let named = found.iter().filter(|(name, _)| !self.domains.contains_key(*name));
        let named = named.map(|(name, found)| (name.clone(), found.group.clone(), found.inode));
        let new: Vec<_> = recorded.chain(named).collect();
        let mut open = self.domains.values().filter(|watched| watched.stays_open()).count() as u64;
        for (name, group, inode) in new {
            let mut watched = Watched::new(group, inode, open < self.max_open);
            if watched.is_populated(&mut self.buffer) {
                open += u64::from(watched.stays_open());
                self.domains.insert(name, watched);
            }
        }
    }

    /// The groups that patterns match, without those inside or around another domain, this process,
    /// or the processes that run the host. A domain whose record cannot be read is not found anew.
    fn named_by_patterns(&self) -> BTreeMap<String, Found> {
        let unreadable: Vec<_> = self.known.unreadable_living(&self.store, &self.tree).collect();
        let may_be_any = unreadable.iter().any(|record| record.may_be_in_any_own_cgroup());
        let unreadable: Vec<_> = unreadable.iter().filter_map(|record| record.cgroup()).collect();
        let own: BTreeSet<&str> = self
            .records
            .values()
            .map(|record| record.cgroup.as_str())
            .chain(unreadable.iter().map(AsRef::as_ref))
            .collect();
        let above_own: BTreeSet<&str> = own.iter().flat_map(|path| ancestors(path)).collect();
        let mut found: BTreeMap<String, Found> = BTreeMap::new();
        // In the order of paths, a group comes after the group that contains it.
        for group in self.search.found() {
            let path = group.group.path();
            let this = self.own.as_deref().unwrap_or("/");
            let is_hosts =
                path == INIT || path == this || ancestors(this).any(|above| above == path);
            // A group directly below the tree's root holds all services, all users or all machines.
            let is_all =
                ancestors(path).next().is_none() && path.ends_with(".slice") && !group.by_name;
            let is_in_own = || ancestors(path).any(|above| PARENTS.contains(&above));
            if is_hosts || is_all || may_be_any && is_in_own() {
                continue;
            }
            let is_started = own.contains(path) && !self.records.contains_key(path);
            let is_part =
                ancestors(path).any(|above| own.contains(above) || found.contains_key(above));
            if !is_started && !is_part && !above_own.contains(path) && !PARENTS.contains(&path) {
                found.insert(path.to_owned(), group);
            }
        }
        found
    }
}

/// The CPUs that are online, as the kernel writes them.
fn online_cpus(root: &Path) -> String {
    std::fs::read_to_string(root.join("sys/devices/system/cpu/online")).unwrap_or_default()
}

/// Reads the list of online CPUs and then the machine. If the list changes in between, the next
/// sample sees another list and reads the machine again.
fn read_after(
    online: impl FnOnce() -> String,
    machine: impl FnOnce() -> Result<Topology, Error>,
) -> Result<(Topology, String), Error> {
    let online = online();
    Ok((machine()?, online))
}

/// True if a domain with a record remains although no pattern matches its group. A found domain
/// ends with its pattern.
fn stays(patterns: &Patterns, record: &Record) -> bool {
    record.found_by.as_deref().is_none_or(|pattern| patterns.has(pattern))
}

/// The groups above one.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at]).filter(|above| !above.is_empty())
}

/// Raises this process's limit of open files to its hard limit, and returns the limit.
pub fn raise_open_files() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(_) => current.unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn cpus_that_change_during_a_read_are_read_again() {
        let online = Cell::new("0-1");
        let read = || {
            online.set("0-3");
            Ok(Topology::default())
        };
        let (_, seen) = read_after(|| online.get().into(), read).unwrap();
        assert_ne!(seen, online.get(), "the next sample reads again");
    }
}
