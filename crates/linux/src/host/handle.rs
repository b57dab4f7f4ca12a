//! The handle of a host: its files, and the observation of its machine and domains.

use super::{looks::Looks, walks::Walks};
use crate::{
    actuator::{Actuators, PARENT},
    cgroup::{Cgroup, Tree},
    error::{Error, IoContext},
    huge, memory,
    newcomer::{described, newcomer},
    store::{self, LockWait, Part, Record, Store, Subject},
    systemd::{SLICE, Systemd},
    vm::Monitors,
};
use nearside_policy::{
    Action, CellId, CgroupId, Described, Limits, MemoryPolicy, Newcomer, Observation, PartId,
    PartState, Reservation, Step,
};
use nearside_topology::{Allowed, CpuSet, Topology, sysfs};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// The locations of the host's files.
#[derive(Debug, Clone)]
pub struct Paths {
    /// The root below which `proc`, `sys` and `run` lie.
    pub root: PathBuf,
    /// The folder of records.
    pub state: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self { root: "/".into(), state: "/run/nearside".into() }
    }
}

/// How to wait for the lock.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// The longest wait; without one, until the lock is free.
    pub at_most: Option<Duration>,
    /// Called once, after two seconds of waiting, with the process that holds the lock.
    pub notify: fn(&LockWait),
    /// Called again and again while waiting.
    pub meanwhile: fn(),
}

impl Default for Waiting {
    fn default() -> Self {
        Self { at_most: None, notify: |_| {}, meanwhile: || {} }
    }
}

/// This host.
#[derive(Debug)]
pub struct Host {
    paths: Paths,
    pub(super) tree: Tree,
    pub(super) store: Store,
    pub(super) actuators: Actuators,
    pub(super) waiting: Waiting,
    /// Notices for the user about steps that could not be done, without harm.
    pub(super) notices: Vec<String>,
    /// Notices that were given once and are not repeated.
    pub(super) told: BTreeSet<String>,
    pub(super) walks: Walks,
    /// How often batches were begun.
    pub(super) batch_turns: usize,
    pub(super) looks: Looks,
    pub(super) monitors: Monitors,
}

impl Host {
    /// Finds the host's cgroup tree and records. Changes nothing.
    pub fn open(paths: Paths) -> Result<Self, Error> {
        let tree = Tree::find(&paths.root.join("proc/self/mountinfo"))?;
        let boot_id_file = paths.root.join("proc/sys/kernel/random/boot_id");
        let boot_id = fs::read_to_string(&boot_id_file).at(&boot_id_file)?;
        let store = Store::new(&paths.state, &boot_id).with_proc(&paths.root.join("proc"));
        let actuators = Actuators::new(paths.root.clone(), Systemd::runs(&paths.root));
        Ok(Self {
            paths,
            tree,
            store,
            actuators,
            waiting: Waiting::default(),
            notices: Vec::new(),
            told: BTreeSet::new(),
            walks: Walks::default(),
            batch_turns: 0,
            looks: Looks::default(),
            monitors: Monitors::default(),
        })
    }

    /// The cgroup tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The `proc` folder.
    pub fn proc(&self) -> PathBuf {
        self.paths.root.join("proc")
    }

    /// The root below which the host's files lie.
    pub fn root(&self) -> &Path {
        &self.paths.root
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn booted_with_systemd(&self) -> bool {
        self.actuators.booted_with_systemd()
    }

    /// The boot.
    pub fn boot_id(&self) -> &str {
        self.store.boot_id()
    }

    /// The records of all domains that live, and the errors of records that cannot be read.
    pub fn records(&self) -> (Vec<Record>, Vec<Error>) {
        self.store.records(&self.tree)
    }

    /// The record of one domain that lives.
    ///
    /// # Errors
    /// If it cannot be read, and its domain may live.
    pub fn record(&self, name: &str) -> Result<Option<Record>, Error> {
        self.store.living(name, &self.tree)
    }

    /// Whether a change was left unfinished: its process was killed, or its undo was refused.
    /// [`begin`](Self::begin) tries to roll it back. It may also be under way in another process.
    ///
    /// # Errors
    /// If the records cannot be trusted.
    pub fn has_unfinished_change(&self) -> Result<bool, Error> {
        self.store.has_journal()
    }

    /// Sets how [`begin`](Self::begin) waits for the lock.
    pub fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    /// The machine, without its domains.
    ///
    /// # Errors
    /// If the machine cannot be read.
    pub fn topology(&self) -> Result<Topology, Error> {
        Ok(self.machine(None)?.0)
    }

    /// The machine. CPUs and devices are taken from `known` if the same CPUs are online: on a large
    /// machine, reading them takes thousands of files.
    fn machine(&self, known: Option<&Topology>) -> Result<(Topology, Vec<sysfs::Note>), Error> {
        let root = &self.paths.root;
        let read = match known.filter(|known| has_its_cpus(known, root)) {
            Some(known) => sysfs::read_again(known, root),
            None => sysfs::read(root),
        };
        read.map_err(|error| Error::Refused(error.to_string()))
    }

    /// The CPUs and nodes that the cgroup above all domains allows them; none without a cpuset
    /// controller.
    pub fn allowed(&self) -> Option<Allowed> {
        allowed(&self.tree, self.booted_with_systemd())
    }

    /// The machine as the cgroup at `path` may use it.
    ///
    /// # Errors
    /// If the machine cannot be read.
    pub fn offered_to(&self, path: &str) -> Result<Topology, Error> {
        let allowed = effective(&self.tree, path).or_else(|| self.allowed());
        Ok(self.topology()?.offered(allowed.as_ref()))
    }

    /// Checks that the owner of a domain's cgroup lets Nearside confine it.
    ///
    /// # Errors
    /// With the reason if the owner would take the change back, or keep it for longer than the
    /// domain lives.
    pub fn may_bind(&self, record: &Record) -> Result<(), Error> {
        match record.found_by {
            None => Ok(()),
            Some(_) if self.binds_by_thread(&record.cgroup, record.part().cell) => {
                self.actuators.may_bind_threads(&self.tree.group(&record.cgroup)?)
            }
            Some(_) => self.actuators.may_bind(&self.tree.group(&record.cgroup)?),
        }
    }

    /// Whether Nearside binds the threads of a part one by one: of a cell, unless libvirt does so.
    /// Every other owner binds the whole group.
    pub(super) fn binds_by_thread(&self, cgroup: &str, cell: Option<CellId>) -> bool {
        cell.is_some() && !self.actuators.is_libvirts(cgroup)
    }

    /// The domain of libvirt in a group, as libvirt describes it now.
    ///
    /// # Errors
    /// With the reason, if the group is no QEMU domain of libvirt, or libvirt cannot be asked.
    pub fn libvirt_domain(&self, group: &Cgroup) -> Result<nearside_libvirt::Domain, String> {
        self.actuators.libvirt_domain(group)
    }

    /// The domain with this name, as libvirt describes it now.
    ///
    /// # Errors
    /// With the reason, if libvirt knows none, or cannot be asked.
    pub fn libvirt_domain_named(&self, name: &str) -> Result<nearside_libvirt::Domain, String> {
        self.actuators.libvirt_domain_named(name)
    }

    /// Takes the notices for the user.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Adds a notice for the user, once.
    pub(super) fn notice(&mut self, notice: &str) {
        if !self.notices.iter().any(|known| known == notice) {
            self.notices.push(notice.into());
        }
    }

    /// Adds a notice for the user, once in the life of this handle: each session finds its reason.
    pub(super) fn notice_once(&mut self, notice: &str) {
        if self.told.insert(notice.into()) {
            self.notice(notice);
        }
    }

    /// Reads the machine and its domains. CPUs and devices are as in `known`.
    pub(super) fn observe_from(&mut self, known: Option<&Topology>) -> Result<Observation, Error> {
        let subjects = match self.store.subjects(&self.tree) {
            Ok(subjects) => {
                self.notices.extend(subjects.unreadable.iter().map(|it| it.error.to_string()));
                subjects.counted()
            }
            Err(error) => {
                self.notices.push(error.to_string());
                Vec::new()
            }
        };
        self.observe_subjects(subjects, known)
    }

    /// Reads the machine and the memory of these subjects. CPUs and devices are as in `known`.
    pub(super) fn observe_subjects(
        &mut self,
        subjects: Vec<Subject>,
        known: Option<&Topology>,
    ) -> Result<Observation, Error> {
        let proc = self.proc();
        let memory = memory::Reader::new(&proc);
        let (mut records, mut reservations) = (Vec::new(), Vec::new());
        for subject in subjects {
            match subject {
                Subject::Domain(record) => records.push(record),
                Subject::Reservation(reservation) => {
                    reservations.push(self.unfilled(&reservation, memory))
                }
            }
        }
        records.sort_by(|a, b| a.name.cmp(&b.name));
        // Resident memory is read before free memory. So pages touched in between count twice
        // rather than not at all.
        let states = records
            .iter()
            .map(|record| self.states(record, memory))
            .collect::<Result<Vec<_>, _>>()?;
        let (topology, notes) = self.machine(known)?;
        self.notices.extend(notes.iter().filter(|note| note.about_memory).map(ToString::to_string));
        Ok(Observation {
            topology: topology.offered(self.allowed().as_ref()),
            parts: states.into_iter().flatten().collect(),
            reservations,
        })
    }

    /// Reads the machine and its domains without the lock. CPUs and devices are as in `known`.
    ///
    /// # Errors
    /// If the machine cannot be read.
    pub fn observe_knowing(&mut self, known: &Topology) -> Result<Observation, Error> {
        self.observe_from(Some(known))
    }

    /// Memory that is reserved for subjects that live and are no domains.
    pub fn reservations(&self) -> Vec<Reservation> {
        let proc = self.proc();
        let memory = memory::Reader::new(&proc);
        let reservations = self.store.reservations(&self.tree);
        reservations.iter().map(|it| self.unfilled(it, memory)).collect()
    }

    /// The virtual machine of libvirt in the cgroup at `path`, as one that may
    /// [`adopt`](super::Session::adopt) a reservation. `topology` is the machine as domains may use
    /// it. None if libvirt did not make the group, or no process is in it.
    pub fn newcomer(&self, path: &str, topology: &Topology) -> Option<Newcomer> {
        let group = self.tree.group(path).ok()?;
        newcomer(&group, &self.proc(), self.booted_with_systemd(), topology)
    }

    /// A virtual machine as libvirt describes it. Nothing else tells whether libvirt asked `numad`
    /// for it: a guest of equal size that was pinned to the same nodes has the same command line.
    ///
    /// # Errors
    /// With the reason, if libvirt does not describe it.
    pub fn described(&self, newcomer: &Newcomer) -> Result<Described, String> {
        let group = self.tree.group(&newcomer.cgroup).map_err(|error| error.to_string())?;
        self.libvirt_domain(&group).map(|domain| described(&domain))
    }

    /// A reservation less the memory that its owner holds.
    pub(super) fn unfilled(
        &self,
        reservation: &store::Reservation,
        memory: memory::Reader<'_>,
    ) -> Reservation {
        let owner = reservation.owner().and_then(|path| self.tree.group(path).ok());
        let claim = reservation.claim();
        let resident = owner.map(|group| memory.of_group(&group).compared_to(claim.as_ref()));
        reservation.unfilled(&resident.unwrap_or_default())
    }

    /// The parts of a recorded domain. The memory of a domain's cgroup counts for its first part.
    fn states(&self, record: &Record, memory: memory::Reader<'_>) -> Result<Vec<PartState>, Error> {
        let group = self.tree.group(&record.cgroup)?;
        let memory = memory.of_group(&group);
        let mut states: Vec<_> = record.parts().map(|part| part_of(record, part)).collect();
        let (Some(first), Some(part)) = (states.first_mut(), record.parts().next()) else {
            return Ok(states);
        };
        let claim = part.claim.as_ref();
        first.resident_bytes = memory.compared_to(claim);
        first.kernel_bytes = memory.kept_by_kernel(claim);
        first.unmapped_bytes = memory.unmapped_by_any(claim);
        first.reserved_bytes = claim.map_or(0, |claim| {
            huge::reserved_bytes(&group, &self.proc(), claim, &first.resident_bytes)
        });
        Ok(states)
    }

    /// A cgroup that a pattern found and that has no record yet.
    pub(super) fn found_state(&self, id: &PartId) -> Option<PartState> {
        let group = self.tree.group(id.domain()).ok().filter(Cgroup::populated)?;
        let memory = memory::of_group(&group, &self.proc());
        Some(PartState {
            id: id.clone(),
            cgroup: CgroupId(group.inode().ok()?),
            resident_bytes: memory.compared_to(None),
            kernel_bytes: memory.kept_by_kernel(None),
            unmapped_bytes: memory.unmapped_by_any(None),
            ..PartState::default()
        })
    }

    /// Refuses steps that this host cannot take, and adds notices for those it skips.
    pub(crate) fn check(&mut self, steps: &[Step], policy: MemoryPolicy) -> Result<(), Error> {
        for step in steps {
            match &step.action {
                Action::Create { limits, .. } => self.refuse_limits_without_controllers(*limits)?,
                Action::ConfineMemory { .. } if !self.tree.has("cpuset") => {
                    self.go_without_cpuset(Some(policy))?
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Without a cpuset a cgroup cannot confine memory. Policy `restrictive` needs that; the other
    /// policies do without.
    pub(super) fn go_without_cpuset(&mut self, policy: Option<MemoryPolicy>) -> Result<(), Error> {
        if policy == Some(MemoryPolicy::Restrictive) {
            return Err(Error::Refused(
                "policy restrictive needs the cpuset controller, which this cgroup does not have: \
                 strict works without"
                    .into(),
            ));
        }
        self.notice(
            "the domain's cgroup has no cpuset controller: the memory policy alone keeps memory \
             on its nodes",
        );
        Ok(())
    }

    pub(super) fn refuse_limits_without_controllers(&self, limits: Limits) -> Result<(), Error> {
        let asked = [
            ("cpu", "--cpu-limit", limits.cpus.is_some()),
            ("memory", "--memory-limit", limits.memory_bytes.is_some()),
        ];
        match asked.into_iter().find(|(controller, _, asked)| *asked && !self.tree.has(controller))
        {
            None => Ok(()),
            Some((controller, flag, _)) => Err(Error::Refused(format!(
                "{flag} needs the {controller} controller, which the cgroup v2 tree at {} does \
                 not have",
                self.tree.root().display()
            ))),
        }
    }
}

/// A part as it is recorded.
pub(super) fn part_of(record: &Record, part: &Part) -> PartState {
    PartState {
        id: record.id_of(part),
        cgroup: CgroupId(record.inode),
        home: Some(part.home.clone()),
        claim: part.claim.clone(),
        memory_nodes: part.memory_nodes.clone(),
        mover: part.mover.as_ref().map(|mover| mover.pid),
        ..PartState::default()
    }
}

/// Whether the CPUs that are online are those of a topology.
fn has_its_cpus(known: &Topology, root: &Path) -> bool {
    let online = crate::read::text(&root.join("sys/devices/system/cpu/online"));
    let online = online.ok().and_then(|text| text.trim().parse::<CpuSet>().ok());
    let its: CpuSet = known.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.id).collect();
    online == Some(its)
}

/// The CPUs and nodes that the cgroup above all domains allows them; none without a cpuset
/// controller.
pub(crate) fn allowed(tree: &Tree, booted_with_systemd: bool) -> Option<Allowed> {
    let parent = if booted_with_systemd { format!("/{SLICE}") } else { PARENT.into() };
    // A cgroup that does not exist yet will be allowed the same as its parent.
    effective(tree, &parent).or_else(|| effective(tree, "/"))
}

/// The CPUs and nodes that a cgroup is allowed; none if it has no cpuset.
fn effective(tree: &Tree, path: &str) -> Option<Allowed> {
    let read = |path: &str, file: &str| tree.group(path).ok()?.read(file).ok().flatten();
    // Before Linux 6.8 the kernel does not list them; CPUs of other groups' partitions are
    // missing in the allowed set anyway.
    let isolated_cpus = || read("/", "cpuset.cpus.isolated")?.trim().parse().ok();
    let is_isolated = |path: &&str| {
        read(path, "cpuset.cpus.partition").is_some_and(|kind| kind.trim() == "isolated")
    };
    let mut above = Path::new(path).ancestors().filter_map(Path::to_str);
    Some(Allowed {
        cpus: read(path, "cpuset.cpus.effective")?.trim().parse().ok()?,
        memory_nodes: read(path, "cpuset.mems.effective")?.trim().parse().ok()?,
        isolated_cpus: isolated_cpus().unwrap_or_default(),
        by: path.into(),
        isolated_partition: above.find(is_isolated).map(str::to_owned),
    })
}
