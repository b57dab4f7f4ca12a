//! This host as a machine: what is observed of it, and how actions are applied to it.

mod batch;
mod fallback;
mod found;

pub use batch::Batches;
pub use fallback::wants_fallback;

use crate::{
    cgroup::{Cgroup, Tree},
    confine::{
        CPUS, Cpuset, MEMORY_NODES, bind, bind_each, confines_nothing, is_in_force, possible_cpus,
        wait_for_starts,
    },
    error::{Error, IoContext},
    huge,
    launch::take_policy,
    memory, migrate,
    store::{CpuBinding, Locked, Record, Store},
    systemd::{SLICE, Systemd},
};
use batch::Walks;
use nearside_policy::{
    Action, CgroupId, CpuReason, Home, Limits, Machine, MemoryPolicy, Observation, Outcome,
    PageMove, PartId, PartState, Progress, Step, Transaction, later_policy_nodes, may_go_on,
};
use nearside_topology::{Allowed, CpuSet, Id, IdSet, NodeSet, Topology, sysfs};
use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How often a long move looks whether its domain is still its own to change.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The group below which domains live where systemd does not own the tree.
const PARENT: &str = "/nearside";

/// The controllers that domains are given where the tree has them.
const CONTROLLERS: [&str; 4] = ["cpuset", "cpu", "memory", "hugetlb"];

/// What is said where threads were faster.
const ESCAPED: &str =
    "threads were started faster than they could be bound: some may run on other CPUs";

/// The period of `cpu.max`, in microseconds (the kernel's default).
const CPU_PERIOD_US: u64 = 100_000;

/// Where the host's files are.
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

/// Who owns the cgroup tree and has to be asked for changes.
#[derive(Debug)]
enum Owner {
    Nobody,
    Systemd(Systemd),
}

/// This host.
#[derive(Debug)]
pub struct Host {
    paths: Paths,
    tree: Tree,
    store: Store,
    booted_with_systemd: bool,
    owner: Option<Owner>,
    lock: Option<Locked>,
    /// For how long somebody else who holds the lock is waited for, and what is done meanwhile, again and again; where none
    /// is given, until it is let go.
    patience: Option<(Duration, fn())>,
    /// The record of the domain that is being made or changed.
    current: Option<Record>,
    /// What could not be done and does no harm, for the user to know.
    notices: Vec<String>,
    /// The machine, if it was read for what is about to be done.
    known: Option<Topology>,
    walks: Walks,
}

impl Host {
    /// Finds the host's cgroup tree and records. Changes nothing.
    pub fn open(paths: Paths) -> Result<Self, Error> {
        let tree = Tree::find(&paths.root.join("proc/self/mountinfo"))?;
        let boot_id_file = paths.root.join("proc/sys/kernel/random/boot_id");
        let boot_id = fs::read_to_string(&boot_id_file).at(&boot_id_file)?;
        let store = Store::new(&paths.state, &boot_id).with_proc(&paths.root.join("proc"));
        let booted_with_systemd = Systemd::runs(&paths.root);
        Ok(Self {
            paths,
            tree,
            store,
            booted_with_systemd,
            owner: None,
            lock: None,
            patience: None,
            current: None,
            notices: Vec::new(),
            known: None,
            walks: Walks::default(),
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
        self.booted_with_systemd
    }

    /// Which boot this is.
    pub fn boot_id(&self) -> &str {
        self.store.boot_id()
    }

    /// The records of all domains that live, and what is wrong with records that cannot be read.
    pub fn records(&self) -> (Vec<Record>, Vec<Error>) {
        self.store.records(&self.tree)
    }

    /// The record of one domain that lives.
    pub fn record(&self, name: &str) -> Option<Record> {
        self.records().0.into_iter().find(|record| record.name == name)
    }

    /// The machine, without its domains; what could not be read of it is said when it is observed. The next observation
    /// takes CPUs and devices from here: others wait for the lock meanwhile, and on a large machine they are thousands
    /// of files.
    pub fn topology(&mut self) -> Result<Topology, Error> {
        let (topology, _) = self.machine()?;
        self.known = Some(topology.clone());
        Ok(topology)
    }

    fn machine(&mut self) -> Result<(Topology, Vec<sysfs::Note>), Error> {
        let read = match self.known.take() {
            Some(known) => sysfs::read_again(&known, &self.paths.root),
            None => sysfs::read(&self.paths.root),
        };
        read.map_err(|error| Error::Refused(error.to_string()))
    }

    /// What the group above all domains allows them; none where there is no cpuset controller.
    pub fn allowed(&self) -> Option<Allowed> {
        allowed(&self.tree, self.booted_with_systemd)
    }

    /// The machine as the group at `path` may use it.
    ///
    /// # Errors
    /// Where the machine cannot be read.
    pub fn offered_to(&mut self, path: &str) -> Result<Topology, Error> {
        let allowed = effective(&self.tree, path).or_else(|| self.allowed());
        Ok(self.topology()?.offered(allowed.as_ref()))
    }

    /// Keeps others from changing anything until this is dropped or executes another program, and sweeps up what dead
    /// domains left.
    pub fn lock(&mut self) -> Result<(), Error> {
        if self.lock.is_none() {
            let lock = match self.patience {
                None => self.store.lock()?,
                Some((at_most, meanwhile)) => {
                    self.store.lock_within(at_most, meanwhile, &self.proc())?
                }
            };
            let parent = (!self.booted_with_systemd).then_some(PARENT);
            // A domain whose record cannot be read may hold a claim: nothing is promised until somebody has looked.
            if let Some(unreadable) = lock.sweep(&self.tree, parent)?.into_iter().next() {
                return Err(unreadable);
            }
            self.lock = Some(lock);
        }
        Ok(())
    }

    /// Waits for the lock not longer than this from now on, and calls `meanwhile` again and again as long as it waits.
    pub fn wait_for_lock_at_most(&mut self, at_most: Duration, meanwhile: fn()) {
        self.patience = Some((at_most, meanwhile));
    }

    /// Lets others change things again.
    pub fn unlock(&mut self) {
        self.lock = None;
    }

    /// The record that the following actions are about; it is written with the next of them.
    pub fn edit(&mut self, record: Record) {
        self.current = Some(record);
    }

    /// The record being edited.
    pub fn edited(&mut self) -> Option<&mut Record> {
        self.current.as_mut()
    }

    /// Writes the record being edited.
    pub fn save(&mut self) -> Result<(), Error> {
        match (&self.lock, &self.current) {
            (Some(lock), Some(record)) => lock.put(record),
            _ => Err(Error::Refused("no domain is being changed".into())),
        }
    }

    /// Takes back a domain that this process was about to become: leaves its cgroup for `back` and forgets it.
    pub fn abandon(&mut self, back: &Cgroup) -> Result<(), Error> {
        let Some(record) = self.current.take() else { return Ok(()) };
        if let Some(lock) = &self.lock {
            lock.remove(&record.name)?;
        }
        // A scope of systemd's goes with its last process, which this one is.
        if !self.booted_with_systemd && !record.cgroup.is_empty() {
            let group = self.tree.group(&record.cgroup)?;
            if group.exists() {
                back.enter(std::process::id())?;
                group.remove().at(group.directory())?;
            }
        }
        Ok(())
    }

    /// Takes what has to be said to the user.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    fn owner(&mut self) -> Result<&Owner, Error> {
        if self.owner.is_none() {
            let systemd = self.booted_with_systemd;
            self.owner =
                Some(if systemd { Owner::Systemd(Systemd::connect()?) } else { Owner::Nobody });
        }
        Ok(self.owner.as_ref().unwrap_or(&Owner::Nobody))
    }

    fn create(&mut self, domain: &str, limits: Limits) -> Result<(), Error> {
        self.refuse_limits_without_controllers(limits)?;
        let group = match self.owner()? {
            Owner::Systemd(systemd) => {
                systemd.start_scope(domain, limits)?;
                self.tree.group_of(&self.proc().join("self/cgroup"))?
            }
            Owner::Nobody => self.create_directly(domain, limits)?,
        };
        let inode = group.inode().at(group.directory())?;
        let record = self
            .current
            .as_mut()
            .ok_or_else(|| Error::Refused(format!("{domain} has no record")))?;
        record.cgroup = group.path().into();
        record.inode = inode;
        Ok(())
    }

    fn create_directly(&mut self, domain: &str, limits: Limits) -> Result<Cgroup, Error> {
        let (root, parent) = (self.tree.group("/")?, self.tree.group(PARENT)?);
        let group = self.tree.group(&format!("{PARENT}/{domain}"))?;
        if !parent.exists() {
            parent.create()?;
        }
        // Where a controller cannot be enabled the domain does without, and what needs it says so.
        for above in [&root, &parent] {
            CONTROLLERS.iter().for_each(|controller| drop(above.enable_below(&[controller])));
        }
        group.create()?;
        let made = (|| {
            for (file, asked) in
                [("cpu.max", limits.cpus.is_some()), ("memory.max", limits.memory_bytes.is_some())]
            {
                if asked && !group.has(file) {
                    return Err(Error::Refused(format!(
                        "{} has no {file}: its controller cannot be enabled here",
                        group.path()
                    )));
                }
            }
            if let Some(cpus) = limits.cpus {
                let quota_us = (cpus * CPU_PERIOD_US as f64) as u64;
                group.write("cpu.max", &format!("{quota_us} {CPU_PERIOD_US}"))?;
            }
            if let Some(bytes) = limits.memory_bytes {
                group.write("memory.max", &bytes.to_string())?;
            }
            group.enter(std::process::id())
        })();
        if let Err(error) = made {
            // Nothing is in it yet, so nothing is lost if this fails: the next who holds the lock sweeps it away.
            let _ = group.remove();
            return Err(error);
        }
        Ok(group)
    }

    /// Refuses what of a plan this host cannot do, and notices what it will do without, before anything is done.
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

    /// What becomes of a confinement of memory where a group has no cpuset.
    fn go_without_cpuset(&mut self, policy: Option<MemoryPolicy>) -> Result<(), Error> {
        if policy == Some(MemoryPolicy::Restrictive) {
            return Err(Error::Refused(
                "policy restrictive needs the cpuset controller, which this cgroup does not have: strict works without"
                    .into(),
            ));
        }
        self.notice("the domain's cgroup has no cpuset controller: the memory policy alone keeps memory on its nodes");
        Ok(())
    }

    fn refuse_limits_without_controllers(&self, limits: Limits) -> Result<(), Error> {
        let asked = [
            ("cpu", "--cpu-limit", limits.cpus.is_some()),
            ("memory", "--memory-limit", limits.memory_bytes.is_some()),
        ];
        match asked.into_iter().find(|(controller, _, asked)| *asked && !self.tree.has(controller))
        {
            None => Ok(()),
            Some((controller, flag, _)) => Err(Error::Refused(format!(
                "{flag} needs the {controller} controller, which the cgroup v2 tree at {} does not have",
                self.tree.root().display()
            ))),
        }
    }

    fn confine_memory(&mut self, nodes: &NodeSet) -> Result<(), Error> {
        let group = self.current_group()?;
        self.refuse_other_owners()?;
        if !self.set_cpuset(&group, MEMORY_NODES, nodes)? {
            let policy = self.current.as_ref().map(|record| record.part().home.policy);
            self.go_without_cpuset(policy)?;
        }
        self.change(|record| record.part_mut().memory_nodes = Some(nodes.clone()))
    }

    fn bind_cpus(&mut self, cpus: &CpuSet, on_behalf: CpuReason) -> Result<(), Error> {
        let group = self.current_group()?;
        self.refuse_other_owners()?;
        if on_behalf == CpuReason::Fallback {
            return self.stand_in(cpus);
        }
        if !self.set_cpuset(&group, CPUS, cpus)? {
            self.notice(
                "the domain's cgroup has no cpuset controller: hard affinity is that of its processes, which they may \
                 change",
            );
            if !bind_each(|| group.all_threads(), |thread| bind(thread, cpus), wait_for_starts)? {
                self.notice(ESCAPED);
            }
        }
        self.change(|record| {
            record.part_mut().cpus =
                Some(CpuBinding { cpus: cpus.clone(), on_behalf, replaces: None })
        })
    }

    /// Confines a group by its cpuset. False where it has none; systemd enables the controller when it is first needed.
    fn set_cpuset<T: Id>(
        &mut self,
        group: &Cgroup,
        set: Cpuset,
        wanted: &IdSet<T>,
    ) -> Result<bool, Error> {
        if !self.tree.has("cpuset") {
            return Ok(false);
        }
        let is_set = match self.owner()? {
            Owner::Systemd(systemd) => systemd.set(&unit(group), set.property, wanted)?,
            Owner::Nobody if group.has(set.file) => {
                group.write(set.file, &wanted.to_string()).map(|()| true)?
            }
            Owner::Nobody => false,
        };
        Ok(is_set && is_in_force(group, set, wanted)?)
    }

    /// Allows a group the CPUs that the one above it may use. False where it has no such set.
    fn clear_cpus(&mut self, group: &Cgroup) -> Result<bool, Error> {
        if !self.tree.has("cpuset") || !group.has(CPUS.file) {
            return Ok(false);
        }
        // Older kernels (6.16 is one) let no group with processes have an empty set (`validate_change` in
        // `kernel/cgroup/cpuset.c`): it gets all CPUs that there may ever be.
        let root = self.paths.root.clone();
        match self.owner()? {
            Owner::Systemd(systemd) => {
                let is_set = systemd.set(&unit(group), CPUS.property, &CpuSet::new())?;
                match is_set && !confines_nothing(group, CPUS)? {
                    true => systemd.set(&unit(group), CPUS.property, &possible_cpus(&root)?),
                    false => Ok(is_set),
                }
            }
            // An empty line: nothing at all would never reach the kernel's own function.
            Owner::Nobody => match group.write(CPUS.file, "\n") {
                Err(Error::Write { source, .. }) if source.raw_os_error() == Some(libc::ENOSPC) => {
                    group.write(CPUS.file, &possible_cpus(&root)?.to_string()).map(|()| true)
                }
                written => written.map(|()| true),
            },
        }
    }

    /// Has something said to the user, once.
    fn notice(&mut self, notice: &str) {
        if !self.notices.iter().any(|said| said == notice) {
            self.notices.push(notice.into());
        }
    }

    fn move_all_pages(
        &mut self,
        nodes: &NodeSet,
        rate_bytes_per_s: Option<u64>,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Outcome, Error> {
        let group = self.current_group()?;
        let topology = self.topology()?;
        self.change(|record| record.part_mut().moving_to = Some(nodes.clone()))?;
        let claim = self
            .current
            .as_ref()
            .and_then(|record| record.part().claim.clone())
            .unwrap_or_default();
        let (ours, store) = (self.current.clone(), self.store.clone());
        let is_ours = || ours.as_ref().is_some_and(|ours| is_unchanged(&store, ours));
        // Moving takes minutes; others may start and stop domains meanwhile, and even change this one: the last wins.
        self.unlock();
        let mut go_on = while_so(is_ours, progress);
        let moved = migrate::move_group(
            &group,
            &self.proc(),
            &topology,
            nodes,
            &claim,
            rate_bytes_per_s,
            &mut go_on,
        );
        self.lock()?;
        // A group counts as populated for a moment after its last process has exited; its list of processes does not
        // show that one any more.
        let has_ended = group.all_processes().is_empty();
        if has_ended || !is_ours() {
            if let (true, Some(lock), Some(ours)) = (has_ended, &self.lock, &self.current) {
                lock.remove(&ours.name)?;
            }
            self.current = None;
            let why = match has_ended {
                false => "another command has changed the domain meanwhile",
                true => "the domain has ended",
            };
            return Err(Error::Refused(format!(
                "{why} ({} MiB had moved)",
                moved.moved_bytes >> 20
            )));
        }
        if !moved.interrupted {
            self.change(|record| record.part_mut().moving_to = None)?;
        }
        let is_confined =
            self.current.as_ref().is_some_and(|record| record.part().memory_nodes.is_some());
        let outcome = moved.clone().into_outcome();
        self.notices.extend(
            moved.notices(is_confined && group.has(MEMORY_NODES.file) && may_go_on(&outcome)),
        );
        Ok(outcome)
    }

    fn current_group(&self) -> Result<Cgroup, Error> {
        let record = self
            .current
            .as_ref()
            .ok_or_else(|| Error::Refused("no domain is being changed".into()))?;
        self.tree.group(&record.cgroup)
    }

    fn change(&mut self, edit: impl FnOnce(&mut Record)) -> Result<(), Error> {
        if let Some(record) = &mut self.current {
            edit(record);
        }
        self.save()
    }

    /// Applies one step.
    pub fn apply_step(&mut self, action: &Action) -> Outcome {
        self.try_apply(action).unwrap_or_else(|error| Outcome::Refused { why: error.to_string() })
    }

    fn try_apply(&mut self, action: &Action) -> Result<Outcome, Error> {
        let done = match action {
            Action::Create { part, limits } => self.create(part.domain(), *limits),
            // What was found has what it holds, and no more is promised to it.
            Action::Claim { claim, .. } => self.change(|record| {
                if record.found_by.is_none() {
                    record.part_mut().claim = Some(claim.clone());
                }
            }),
            Action::SetHome { home, .. } => self.set_home(home),
            Action::ConfineMemory { nodes, .. } => self.confine_memory(nodes),
            Action::BindCpus { cpus, on_behalf, .. } => self.bind_cpus(cpus, *on_behalf),
            Action::SetMemoryPolicy { policy, nodes, .. } => {
                take_policy(*policy, nodes)?;
                self.change(|record| record.part_mut().policy_nodes = Some(nodes.clone()))
            }
            Action::UnbindCpus { part } => self.lift_fallback(part.domain()).map(drop),
            Action::Forget { part } => self.forget_found(part.domain()).map(drop),
        };
        done.map(|()| Outcome::Applied { moved_bytes: 0 })
    }
}

/// Whether nobody has changed what is recorded of a domain.
fn is_unchanged(store: &Store, record: &Record) -> bool {
    store.record(&record.name).is_ok_and(|now| now.as_ref() == Some(record))
}

/// Goes on as `progress` says while `is_so`, which is looked at now and then.
fn while_so<'a>(
    is_so: impl Fn() -> bool + 'a,
    progress: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> impl FnMut(Progress) -> ControlFlow<()> + 'a {
    let mut looked = Instant::now();
    move |so_far| {
        if looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            if !is_so() {
                return ControlFlow::Break(());
            }
        }
        progress(so_far)
    }
}

impl Machine for Host {
    type Error = Error;

    fn observe(&mut self) -> Result<Observation, Error> {
        let (records, broken) = self.records();
        self.notices.extend(broken.iter().map(ToString::to_string));
        let proc = self.proc();
        let state = |record: Record| {
            let group = self.tree.group(&record.cgroup)?;
            let (memory, claim) = (memory::of_group(&group, &proc), record.part().claim.as_ref());
            let (resident_bytes, kernel_bytes) =
                (memory.compared_to(claim), memory.kept_by_kernel(claim));
            let unmapped_bytes = memory.unmapped_by_any(claim);
            let reserved_bytes = claim
                .map_or(0, |claim| huge::reserved_bytes(&group, &proc, claim, &resident_bytes));
            Ok(PartState {
                id: PartId::of(record.name.as_str()),
                cgroup: CgroupId(record.inode),
                home: Some(record.part().home.clone()),
                claim: record.part().claim.clone(),
                memory_nodes: record.part().memory_nodes.clone(),
                resident_bytes,
                kernel_bytes,
                unmapped_bytes,
                reserved_bytes,
            })
        };
        // Residents before free memory: what is touched in between then counts twice instead of not at all.
        let domains = records.into_iter().map(state).collect::<Result<_, Error>>()?;
        let (topology, notes) = self.machine()?;
        self.notices.extend(notes.iter().filter(|note| note.about_memory).map(ToString::to_string));
        Ok(Observation {
            topology: topology.offered(self.allowed().as_ref()),
            parts: domains,
            reservations: self.store.reservations(&self.tree).iter().map(Into::into).collect(),
        })
    }

    fn apply(&mut self, transaction: &Transaction) -> Outcome {
        for step in &transaction.steps {
            if let refused @ Outcome::Refused { .. } = self.apply_step(&step.action) {
                return refused;
            }
        }
        Outcome::Applied { moved_bytes: 0 }
    }

    fn move_pages(
        &mut self,
        pages: &PageMove,
        progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Outcome {
        let moved = match pages.batch {
            Some(_) => self.move_batch(pages, progress),
            None => self.move_all_pages(&pages.nodes, pages.rate_bytes_per_s, progress),
        };
        moved.unwrap_or_else(|error| Outcome::Refused { why: error.to_string() })
    }
}

/// What the group above all domains allows them; none where there is no cpuset controller.
pub(crate) fn allowed(tree: &Tree, booted_with_systemd: bool) -> Option<Allowed> {
    let parent = if booted_with_systemd { format!("/{SLICE}") } else { PARENT.into() };
    // What a group that is not made yet will be allowed is what the one above it is.
    effective(tree, &parent).or_else(|| effective(tree, "/"))
}

/// What a group is allowed; none where it has no cpuset.
fn effective(tree: &Tree, path: &str) -> Option<Allowed> {
    let read = |path: &str, file: &str| tree.group(path).ok()?.read(file).ok().flatten();
    // Before Linux 6.8 nobody tells; CPUs of other groups' partitions are missing in what is allowed, anyway.
    let isolated_cpus = || read("/", "cpuset.cpus.isolated")?.trim().parse().ok();
    Some(Allowed {
        cpus: read(path, "cpuset.cpus.effective")?.trim().parse().ok()?,
        memory_nodes: read(path, "cpuset.mems.effective")?.trim().parse().ok()?,
        isolated_cpus: isolated_cpus().unwrap_or_default(),
        by: path.into(),
    })
}

/// The unit of systemd's that a group belongs to: its last component.
fn unit(group: &Cgroup) -> String {
    group.path().rsplit('/').next().unwrap_or_default().to_owned()
}
