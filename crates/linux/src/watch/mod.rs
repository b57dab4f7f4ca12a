//! Watching: what the control loop is told once an interval (docs/adr/0008-daemon.md).
//!
//! Most of a host's domains are idle most of the time, so a look costs little where nothing happens: each domain's
//! files are opened once and read again from the beginning (`kept`), only those of domains whose turn it is
//! ([`History::next_look`]), and of the others what was seen before stands. Threads are looked at where CPU time was used
//! (`cpu`), records are read again when their folder has changed ([`Known`]).
//!
//! Who is in: the domains of `nearside run`, and the groups that patterns name ([`Patterns`]), whosever they are (`owner`).

mod cpu;
mod domain;
mod kept;
mod nodes;
mod owner;
mod patterns;

pub(crate) use owner::owner;
pub use patterns::{PatternError, Patterns};

use crate::{
    Error, Host,
    cgroup::{Cgroup, Tree},
    host,
    store::{Known, Record, Store},
    usage::Usage,
};
use domain::{FILES, Look, Watched};
use kept::Buffer;
use nearside_policy::{
    ByNode, ControlObservation, DomainLoad, History, MoveReport, Observation, PartId,
};
use nearside_topology::{Topology, sysfs};
use nodes::NodeWatch;
use patterns::Found;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// Threads of all domains that are looked at in an interval.
const MOST_THREADS: usize = 8192;

/// After so many intervals zones are read again even where a node's free memory is as before: watermarks can be set.
const INTERVALS_OF_ZONES: u64 = 8;

/// Descriptors that are left to others: sockets, the scheduler's maps, what is opened for a moment.
const SPARE_DESCRIPTORS: u64 = 256;

/// Notices that are kept so that they are not said again; those beyond are not said at all.
const MOST_SAID: usize = 1024;

/// The group of systemd itself, which is a scope as others are.
const INIT: &str = "/init.scope";

/// Where Nearside keeps the domains it starts.
const PARENTS: [&str; 2] = ["/nearside", "/nearside.slice"];

/// What an interval's look is told.
#[derive(Debug, Clone, Default)]
pub struct Turn<'a> {
    /// The number of the interval.
    pub interval: u64,
    /// The time, in ns since whenever; it never goes back.
    pub now_ns: u64,
    /// Whether a scheduler that knows node affinity is attached.
    pub soft_affinity: bool,
    /// CPU time by node that it counted since it was attached, by the inode of a domain's cgroup.
    pub scheduler: Option<&'a BTreeMap<u64, ByNode>>,
    /// What became of the pages that were to move.
    pub moved: Vec<MoveReport>,
}

/// Watches this host.
#[derive(Debug)]
pub struct Watcher {
    root: PathBuf,
    tree: Tree,
    store: Store,
    systemd: bool,
    patterns: Patterns,
    /// The path of this process's own group, where the tree shows it.
    own: Option<String>,
    known: Known,
    /// By name, the records of this boot.
    records: BTreeMap<String, Record>,
    /// By name, the domains that run.
    domains: BTreeMap<String, Watched>,
    /// By name, the pattern that found those that were found.
    found_by: BTreeMap<String, String>,
    /// How many domains' files may stay open.
    most_open: u64,
    /// The machine as it was read last, as it is.
    machine: Option<(Topology, String)>,
    nodes: NodeWatch,
    looked_ns: Option<u64>,
    /// The domain that was looked at first in the last interval.
    looked_first: Option<String>,
    buffer: Buffer,
    notices: Vec<String>,
    /// What was said already: what is so in one interval mostly is in the next.
    said: BTreeSet<String>,
}

impl Host {
    /// Begins to watch. Lets this process have as many open files as it may, for each domain keeps some.
    pub fn watcher(&self, patterns: Patterns) -> Watcher {
        Watcher {
            root: self.root().into(),
            tree: self.tree().clone(),
            store: self.store().clone(),
            systemd: self.booted_with_systemd(),
            patterns,
            own: self
                .tree()
                .group_of(&self.proc().join("self/cgroup"))
                .ok()
                .map(|group| group.path().to_owned()),
            known: Known::default(),
            records: BTreeMap::new(),
            domains: BTreeMap::new(),
            found_by: BTreeMap::new(),
            most_open: raise_open_files().saturating_sub(SPARE_DESCRIPTORS) / FILES,
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
    /// Looks for groups by other patterns from now on.
    pub fn set_patterns(&mut self, patterns: Patterns) {
        self.patterns = patterns;
    }

    /// What is recorded of the domains that run, in the order of their names.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values().filter(|record| self.domains.contains_key(&record.name))
    }

    /// The pattern by which a domain was found, whether it has a record yet or not.
    pub fn found_by(&self, domain: &str) -> Option<&str> {
        self.found_by.get(domain).map(String::as_str)
    }

    /// Domains that have a record because a pattern found them that is none any more, and that no other names.
    pub fn no_longer_named(&self) -> Vec<String> {
        let unnamed = self.records.values().filter(|record| !stays(&self.patterns, record));
        let names = unnamed.map(|record| record.name.clone());
        names.filter(|name| !self.found_by.contains_key(name)).collect()
    }

    /// The inode of a domain's cgroup, by which a scheduler knows it.
    pub fn cgroup_inode(&self, domain: &str) -> Option<u64> {
        self.domains.get(domain).map(Watched::inode)
    }

    /// What a domain used when it was looked at last.
    pub fn usage(&self, domain: &str) -> Option<Usage> {
        self.domains.get(domain).map(Watched::usage)
    }

    /// The path of a domain's cgroup.
    pub fn cgroup_path(&self, domain: &str) -> Option<&str> {
        self.domains.get(domain).map(Watched::path)
    }

    /// Takes what has to be said to the user; the same is said once.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// What there is to see in this interval.
    ///
    /// # Errors
    /// Where the records or the machine cannot be read. What was seen before stays for the next look.
    pub fn look(&mut self, history: &History, turn: Turn<'_>) -> Result<ControlObservation, Error> {
        self.read_records()?;
        self.find();
        // CPUs and devices are read again when CPUs have come or gone.
        let (before, online) = match self.machine.take() {
            Some((machine, online)) if online == self.online_cpus() => (machine, online),
            _ => (self.machine(sysfs::read)?, self.online_cpus()),
        };
        let allowed = host::allowed(&self.tree, self.systemd);
        let offered = before.clone().offered(allowed.as_ref());
        let loads = self.look_at_domains(history, &turn, &offered);
        // Free memory after what is resident: what is touched in between then counts twice instead of not at all.
        let machine = match turn.interval.is_multiple_of(INTERVALS_OF_ZONES) {
            true => self.machine(|root| sysfs::read_again(&before, root))?,
            false => self.machine(|root| sysfs::read_changes(&before, root))?,
        };
        let length_ns = self.looked_ns.map_or(0, |before| turn.now_ns.saturating_sub(before));
        self.looked_ns = Some(turn.now_ns);
        let happened = self.nodes.look(&machine, length_ns, &mut self.buffer);
        let domains = &self.domains;
        let states = domains
            .iter()
            .map(|(name, watched)| watched.state(name, self.records.get(name)))
            .collect();
        let topology = machine.clone().offered(allowed.as_ref());
        let reservations =
            self.known.reservations(&self.store, &self.tree).map(Into::into).collect();
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
            moved: turn.moved,
        })
    }

    /// Which CPUs are online, as the kernel writes it.
    fn online_cpus(&self) -> String {
        std::fs::read_to_string(self.root.join("sys/devices/system/cpu/online")).unwrap_or_default()
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
        if self.said.len() < MOST_SAID && self.said.insert(notice.clone()) {
            self.notices.push(notice);
        }
    }

    /// Looks at those whose turn it is; forgets those that have ended.
    fn look_at_domains(
        &mut self,
        history: &History,
        turn: &Turn<'_>,
        offered: &Topology,
    ) -> BTreeMap<PartId, DomainLoad> {
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
            threads_left: MOST_THREADS,
            is_short: false,
        };
        let mut loads = BTreeMap::new();
        let moved: BTreeSet<&str> = turn.moved.iter().map(|report| report.part.domain()).collect();
        let (records, buffer) = (&self.records, &mut self.buffer);
        // The history may be of a daemon before this one, which knew a domain that this one has not seen yet.
        let is_due = |name: &str, watched: &Watched| {
            history.next_look(&PartId::of(name)) <= turn.interval || watched.is_new()
        };
        let mut due: Vec<_> =
            self.domains.iter_mut().filter(|(name, watched)| is_due(name, watched)).collect();
        // Whoever comes first may leave no threads for the others, so that is another one each time.
        let first = due.partition_point(|(name, _)| {
            self.looked_first.as_ref().is_some_and(|before| *name <= before)
        });
        due.rotate_left(first);
        self.looked_first = due.first().map(|(name, _)| (*name).clone());
        let mut ended: Vec<String> = Vec::new();
        for (name, watched) in due {
            if watched.is_populated(buffer) {
                let load = watched.look(
                    &mut look,
                    records.get(name),
                    moved.contains(name.as_str()),
                    buffer,
                );
                loads.extend(load.map(|load| (PartId::of(name), load)));
            } else {
                ended.push(name.clone());
            }
        }
        let is_short = look.is_short;
        for name in ended {
            self.domains.remove(&name);
        }
        if is_short {
            let most = format!(
                "domains have more than {MOST_THREADS} busy threads: they are looked at in turn"
            );
            self.say(format!("{most}, so where they run is known some intervals later"));
        }
        loads
    }

    /// Takes in what has changed in the records.
    fn read_records(&mut self) -> Result<(), Error> {
        if !self.known.refresh(&self.store)? {
            return Ok(());
        }
        let broken: Vec<_> = self.known.broken().map(str::to_owned).collect();
        broken.into_iter().for_each(|broken| self.say(broken));
        let records = self.known.records(&self.store);
        self.records = records.map(|record| (record.name.clone(), record.clone())).collect();
        // Those that were found and have no record are looked for in each interval anyway.
        let (records, found_by) = (&self.records, &self.found_by);
        self.domains.retain(|name, watched| match records.get(name) {
            Some(record) => watched.inode() == record.inode,
            None => found_by.contains_key(name),
        });
        Ok(())
    }

    /// Takes in the groups that have a record or are named by a pattern, and lets go of those that are gone.
    fn find(&mut self) {
        let found = self.named_by_patterns();
        // A group of that path may have ended and be there again.
        self.records
            .retain(|name, record| found.get(name).is_none_or(|found| found.inode == record.inode));
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
            let mut watched = Watched::new(group, inode, open < self.most_open);
            if watched.is_populated(&mut self.buffer) {
                open += u64::from(watched.stays_open());
                self.domains.insert(name, watched);
            }
        }
        self.found_by = found.into_iter().map(|(name, found)| (name, found.pattern)).collect();
    }

    /// The groups that patterns name and that are no part of another domain, nor have one as a part, nor this process, nor
    /// what runs the host.
    fn named_by_patterns(&self) -> BTreeMap<String, Found> {
        let own: BTreeSet<&str> =
            self.records.values().map(|record| record.cgroup.as_str()).collect();
        let above_own: BTreeSet<&str> = own.iter().flat_map(|path| ancestors(path)).collect();
        let mut found: BTreeMap<String, Found> = BTreeMap::new();
        // In the order of their paths: whoever is within another comes after it.
        for group in self.patterns.find(&self.tree) {
            let path = group.group.path();
            let this = self.own.as_deref().unwrap_or("/");
            let is_hosts =
                path == INIT || path == this || ancestors(this).any(|above| above == path);
            // What lies directly in the tree's root is all services, or all users, or all machines.
            let is_all =
                ancestors(path).next().is_none() && path.ends_with(".slice") && !group.by_name;
            if is_hosts || is_all {
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

/// Whether a domain with a record stays one where no pattern names its group now: one that was found goes with its pattern.
fn stays(patterns: &Patterns, record: &Record) -> bool {
    record.found_by.as_deref().is_none_or(|pattern| patterns.has(pattern))
}

/// The groups above one.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| &path[..at]).filter(|above| !above.is_empty())
}

/// Lets this process have as many open files as its hard limit says; says how many those are.
fn raise_open_files() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(_) => current.unwrap_or(u64::MAX),
    }
}
