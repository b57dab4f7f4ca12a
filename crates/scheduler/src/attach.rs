//! Loading the BPF program, attaching it, changing its domains, and detaching it.

use crate::{
    error::{self, Error},
    exit::Exit,
    machine::Machine,
    skeleton,
    statistics::{Counters, DomainUsage, Statistics},
    thread::Thread,
};
use libbpf_rs::{
    Link, MapCore, MapFlags, OpenObject, PrintLevel,
    btf::{Btf, types},
    skel::{OpenSkel, SkelBuilder},
};
use nearside_credit::Params;
use nearside_topology::{NodeId, NodeSet, sysfs};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    mem::MaybeUninit,
    path::Path,
    ptr,
    time::{Duration, Instant},
};

/// As `ops.name` in `bpf/main.bpf.c`.
const NAME: &str = "nearside";

const STATE: &str = "/sys/kernel/sched_ext/state";
const HOTPLUG: &str = "/sys/kernel/sched_ext/hotplug_seq";
const STATUS: &str = "/proc/self/status";
const ISOLATED: &str = "/sys/devices/system/cpu/isolated";
/// The longest time to detach: the kernel moves every task of the host back, which takes a while on
/// a busy large host. It is shorter than the watchdog of service managers (`WatchdogSec=` in
/// packaging/systemd).
const MAX_DETACH: Duration = Duration::from_secs(20);

/// The options of [`Scheduler::attach`].
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The tunables of the decisions; the machine's defaults if none.
    pub params: Option<Params>,
    /// Test only: the time after which dispatching stops, so that the kernel's watchdog ejects the
    /// scheduler.
    pub stall_after: Option<Duration>,
    /// The time without a turn for some task after which the kernel's watchdog ejects the
    /// scheduler; at most, and by default, 30 s.
    pub watchdog: Option<Duration>,
}

/// The nodes a domain prefers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Affinity {
    /// The nodes its tasks run on while these have room.
    pub nodes: NodeSet,
    /// The one of them that tasks return to first, and that distances count from.
    pub home: NodeId,
}

/// The credit scheduler in charge of this host; dropping it gives the host back to the stock
/// scheduler.
pub struct Scheduler {
    link: Option<Link>,
    skeleton: skeleton::MainSkel<'static>,
    machine: Machine,
    /// The numbers of the domains in the map. Listing the map's keys would visit its whole
    /// capacity.
    domains: BTreeSet<u64>,
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl Scheduler {
    /// Puts the scheduler in charge of this host.
    ///
    /// It reads the machine itself: the caller may know only a part of it (a partition or a slice
    /// withholds the other CPUs), but the scheduler serves all tasks of the host. It reads the
    /// kernel's count of hot-plugged CPUs first, so that the kernel refuses the attachment if a CPU
    /// comes or goes from then on.
    pub fn attach(options: &Options) -> Result<Self, Error> {
        check_host()?;
        let hotplug = read(HOTPLUG)?.parse().unwrap_or(0);
        let (topology, _) = sysfs::read(Path::new("/"))?;
        let machine = Machine::new(&topology)?;
        let params = options.params.unwrap_or_else(|| Params::new(machine.online.iter().sum()));

        let mut open = open()?;
        let kernel = Btf::from_vmlinux()
            .map_err(|e| Error::bpf("reading the kernel's type information", e))?;
        let knows_caps = leave_out_operations(&mut open, &kernel);
        let data = open.maps.rodata_data.as_deref_mut().ok_or(Error::Object)?;
        describe(data, &machine);
        data.reads_caps = !knows_caps;
        data.stall_ns = options.stall_after.map_or(0, |after| after.as_nanos() as u64);
        let state = open.maps.bss_data.as_deref_mut().ok_or(Error::Object)?;
        state.params = tuning(params);
        for (queue, &online) in machine.online.iter().enumerate() {
            state.queue_states[queue].online = online;
        }
        for cpu in topology.cpus.iter().filter(|cpu| cpu.online) {
            if let Some(state) = state.cpu_states.get_mut(cpu.id.0 as usize) {
                state.online = 1;
            }
        }
        let operations = open.struct_ops.nearside_ops_mut();
        operations.hotplug_seq = hotplug;
        if let Some(watchdog) = options.watchdog {
            operations.timeout_ms = watchdog.as_millis() as u32;
        }

        let mut skeleton = open.load().map_err(|e| Error::bpf("loading the BPF program", e))?;
        let link = skeleton.maps.nearside_ops.attach_struct_ops().map_err(|error| {
            // Another scheduler may have come since the check above.
            if read(STATE).is_ok_and(|state| state != "disabled") {
                Error::Busy(name_in_charge())
            } else {
                Error::bpf("attaching the scheduler", error)
            }
        })?;
        let scheduler = Self { link: Some(link), skeleton, machine, domains: BTreeSet::new() };
        // A program that fails during its attachment is ejected, but was attached.
        match scheduler.exited() {
            Some(exit) => Err(Error::Ejected(exit)),
            None => Ok(scheduler),
        }
    }

    /// Makes the tasks of a cgroup (given by the inode of its directory) and of those below it
    /// prefer nodes.
    pub fn set_domain(&mut self, cgroup: u64, affinity: &Affinity) -> Result<(), Error> {
        let (affine, home) = self.places(affinity)?;
        // Its CPU time so far is kept.
        let map = &self.skeleton.maps.domains;
        let old = map
            .lookup(&cgroup.to_ne_bytes(), MapFlags::ANY)
            .map_err(|e| Error::bpf("reading a domain", e))?;
        let mut value = old.unwrap_or_else(|| vec![0; map.value_size() as usize]);
        value[..8].copy_from_slice(&affine.to_ne_bytes());
        value[8..12].copy_from_slice(&home.to_ne_bytes());
        map.update(&cgroup.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(|e| Error::bpf("setting a domain", e))?;
        self.domains.insert(cgroup);
        self.announce_domains();
        Ok(())
    }

    /// Forgets a domain: its tasks have no preference, or that of the nearest domain above them.
    pub fn remove_domain(&mut self, cgroup: u64) -> Result<(), Error> {
        match self.skeleton.maps.domains.delete(&cgroup.to_ne_bytes()) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
                Err(Error::bpf("removing a domain", error))
            }
            _ => {
                self.domains.remove(&cgroup);
                self.announce_domains();
                Ok(())
            }
        }
    }

    /// Makes one thread of a domain prefer other nodes than the domain: a vCPU those of its cell.
    /// It lasts until the thread ends, but counts only while the thread is in a domain.
    pub fn set_thread(&mut self, thread: &Thread, affinity: &Affinity) -> Result<(), Error> {
        let (affine, home) = self.places(affinity)?;
        let mut value = [0; 16];
        value[..8].copy_from_slice(&affine.to_ne_bytes());
        value[8..12].copy_from_slice(&home.to_ne_bytes());
        self.write_thread(thread, &value)
    }

    /// Makes a thread prefer the nodes of its domain again.
    pub fn unset_thread(&mut self, thread: &Thread) -> Result<(), Error> {
        self.write_thread(thread, &[0; 16])
    }

    fn write_thread(&mut self, thread: &Thread, value: &[u8]) -> Result<(), Error> {
        let map = &self.skeleton.maps.threads;
        match map.update(&thread.key(), value, MapFlags::ANY) {
            // It has ended, and its entry with it.
            Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Error::bpf("setting the nodes of a thread", error)),
            Ok(()) => {
                self.announce_domains();
                Ok(())
            }
        }
    }

    /// An affinity in the numbers of the BPF program: a set of nodes, and the home.
    fn places(&self, affinity: &Affinity) -> Result<(u64, u32), Error> {
        let nodes: Vec<NodeId> = affinity.nodes.iter().collect();
        let affine = self.machine.mask(&nodes).map_err(Error::NoSuchNode)?;
        let home = self.machine.index(affinity.home).map_err(Error::NoSuchNode)?;
        if affine == 0 {
            return Err(Error::NoNodes);
        }
        Ok((affine, home as u32))
    }

    /// The counters so far.
    pub fn statistics(&self) -> Result<Statistics, Error> {
        let counters = &self.skeleton.maps.counters;
        let counters = Counters::read(|which| {
            let by_cpu =
                counters.lookup_percpu(&which.to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
            Ok(by_cpu.iter().filter_map(number).sum())
        });
        let counters = counters.map_err(|e| Error::bpf("reading the counters", e))?;
        Ok(Statistics { counters, domains: self.usage()? })
    }

    /// The CPU time of each domain so far, by its cgroup's number.
    pub fn usage(&self) -> Result<BTreeMap<u64, DomainUsage>, Error> {
        let map = &self.skeleton.maps.domains;
        let usage_of = |&cgroup: &u64| match map.lookup(&cgroup.to_ne_bytes(), MapFlags::ANY) {
            Ok(value) => value.map(|value| Ok((cgroup, self.usage_in(&value)))),
            Err(error) => Some(Err(Error::bpf("reading a domain", error))),
        };
        self.domains.iter().filter_map(usage_of).collect()
    }

    /// The CPU time in a domain's entry of the map.
    fn usage_in(&self, entry: &[u8]) -> DomainUsage {
        let used_ns = entry[16..].chunks_exact(8).filter_map(number);
        let by_node =
            self.machine.nodes.iter().copied().zip(used_ns).filter(|&(_, used_ns)| used_ns > 0);
        DomainUsage {
            by_node: by_node.map(|(node, used_ns)| (node, Duration::from_nanos(used_ns))).collect(),
        }
    }

    /// The end of the scheduler's charge; none while it is attached.
    #[allow(unsafe_code)]
    pub fn exited(&self) -> Option<Exit> {
        let data = self.skeleton.maps.bss_data.as_deref()?;
        // SAFETY: a valid reference to memory that the kernel writes to, hence volatile. It writes
        // the kind last.
        let kind = unsafe { ptr::read_volatile(&raw const data.exit_kind) };
        (kind != 0).then(|| Exit {
            kind,
            code: data.exit_code,
            reason: text(&data.exit_reason),
            message: text(&data.exit_message),
        })
    }

    /// Gives the host back, waits until the stock scheduler is in charge again, and returns how
    /// this scheduler ended.
    pub fn detach(mut self) -> Result<Option<Exit>, Error> {
        drop(self.link.take());
        let started = Instant::now();
        // The kernel offers no event for the end, so this file is polled.
        loop {
            let state = read(STATE)?;
            if state == "disabled" {
                return Ok(self.exited());
            }
            if started.elapsed() > MAX_DETACH {
                return Err(Error::StillAttached { state, waited: started.elapsed() });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Makes every task look its domain up again.
    fn announce_domains(&mut self) {
        if let Some(data) = self.skeleton.maps.bss_data.as_deref_mut() {
            data.domains_generation += 1;
        }
    }
}

/// Opens the BPF object; nothing is in the kernel yet.
pub(crate) fn open() -> Result<skeleton::OpenMainSkel<'static>, Error> {
    libbpf_rs::set_print(Some((PrintLevel::Warn, error::keep_warning)));
    // libbpf keeps a pointer to this for as long as the object is open: one word for each attach,
    // never freed.
    let object: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    skeleton::MainSkelBuilder::default()
        .open(object)
        .map_err(|e| Error::bpf("opening the BPF object", e))
}

/// Checks for conditions that the kernel would refuse with only an error number.
pub(crate) fn check_host() -> Result<(), Error> {
    if !Path::new(STATE).exists() {
        return Err(Error::Unsupported);
    }
    if !may_load_bpf(&read(STATUS)?) {
        return Err(Error::Permission);
    }
    let isolated = fs::read_to_string(ISOLATED).unwrap_or_default();
    if !isolated.trim().is_empty() {
        return Err(Error::Isolated(isolated.trim().to_owned()));
    }
    if read(STATE)? != "disabled" {
        return Err(Error::Busy(name_in_charge()));
    }
    Ok(())
}

/// Whether the effective capabilities in a `/proc/PID/status` suffice. The kernel's own error would
/// be ambiguous.
fn may_load_bpf(status: &str) -> bool {
    const SYS_ADMIN: u64 = 1 << 21;
    const PERFMON_AND_BPF: u64 = 1 << 38 | 1 << 39;
    let capabilities = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    capabilities
        .is_some_and(|held| held & SYS_ADMIN != 0 || held & PERFMON_AND_BPF == PERFMON_AND_BPF)
}

fn read(path: &'static str) -> Result<String, Error> {
    fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .map_err(|source| Error::Read { path, source })
}

/// The name of the sched_ext scheduler in charge of the host, attached by any process; none if
/// Linux itself schedules.
pub fn in_charge() -> Option<String> {
    fs::read_to_string("/sys/kernel/sched_ext/root/ops").ok().map(|name| name.trim().to_owned())
}

fn name_in_charge() -> String {
    in_charge().unwrap_or_else(|| "one that is still leaving".to_owned())
}

/// Whether this scheduler is in charge of the host, attached by any process.
pub fn is_in_charge() -> bool {
    in_charge().is_some_and(|name| name == NAME)
}

/// Leaves out the operations that this kernel does not have, because it would refuse the whole
/// scheduler. Returns true if the kernel reports caps.
pub(crate) fn leave_out_operations(
    open: &mut skeleton::OpenMainSkel<'_>,
    kernel: &Btf<'_>,
) -> bool {
    let operations = kernel.type_by_name::<types::Struct<'_>>("sched_ext_ops");
    let known = |name: &str| {
        operations
            .as_ref()
            .is_some_and(|ops| ops.iter().any(|member| member.name.is_some_and(|n| n == name)))
    };
    macro_rules! optional {
        ($($operation:ident: $program:ident),+) => {$(
            if !known(stringify!($operation)) {
                open.struct_ops.nearside_ops_mut().$operation = ptr::null_mut();
                open.progs.$program.set_autoload(false);
            }
        )+};
    }
    // Without CONFIG_EXT_GROUP_SCHED none of these exist; the last came with 6.17.
    optional!(
        cgroup_init: nearside_cgroup_init,
        cgroup_exit: nearside_cgroup_exit,
        cgroup_move: nearside_cgroup_move,
        cgroup_set_weight: nearside_cgroup_set_weight,
        cgroup_set_bandwidth: nearside_cgroup_set_bandwidth
    );
    known("cgroup_set_bandwidth")
}

/// Writes the machine into the program's read-only data.
fn describe(data: &mut skeleton::types::rodata, machine: &Machine) {
    data.cpu_count = machine.cpu_queue.keys().last().map_or(0, |cpu| cpu.0 + 1);
    data.queue_count = machine.queue_node.len() as u32;
    data.node_count = machine.nodes.len() as u32;
    data.has_smt = machine.smt;
    data.cpu_queue.fill(u16::MAX);
    for (cpu, &queue) in &machine.cpu_queue {
        data.cpu_queue[cpu.0 as usize] = queue as u16;
    }
    let mut next = 0;
    for (queue, cpus) in machine.cpus_by_queue().iter().enumerate() {
        data.queue_first[queue] = next as u16;
        data.queue_size[queue] = cpus.len() as u16;
        for (position, cpu) in cpus.iter().enumerate() {
            data.queue_cpus[next] = cpu.0 as u16;
            data.cpu_position[cpu.0 as usize] = position as u16;
            next += 1;
        }
    }
    for (queue, &node) in machine.queue_node.iter().enumerate() {
        data.queue_node[queue] = node as u16;
        data.queue_is_node[queue] =
            machine.queue_node.iter().filter(|&&other| other == node).count() == 1;
        for (place, &other) in machine.order[queue].iter().enumerate() {
            data.queue_order[queue][place] = other as u16;
        }
    }
    for (index, node) in machine.nodes.iter().enumerate() {
        data.node_id[index] = node.0 as u16;
        data.node_queue[index] = machine.node_queue[index] as u16;
        data.node_distance[index][..machine.nodes.len()].copy_from_slice(&machine.distances[index]);
    }
}

/// These numbers in the generated type.
pub(crate) fn tuning(params: Params) -> skeleton::types::credit_params {
    skeleton::types::credit_params {
        slice_ns: params.slice_ns,
        slice_min_ns: params.slice_min_ns,
        slice_max_ns: params.slice_max_ns,
        wake_bound_ns: params.wake_bound_ns,
        lag_bound_ns: params.lag_bound_ns,
        ahead_bound_ns: params.ahead_bound_ns,
        preempt_ns: params.preempt_ns,
        steal_ns: params.steal_ns,
        balance_ns: params.balance_ns,
        stay_ns: params.stay_ns,
        debt_bound_ns: params.debt_bound_ns,
        handover_ns: params.handover_ns,
        queue_waits_ns: params.queue_waits_ns,
        patience_ns: params.patience_ns,
        note_ns: params.note_ns,
        cpus: params.cpus,
        steal_slices: params.steal_slices,
    }
}

fn number(bytes: impl AsRef<[u8]>) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.as_ref().try_into().ok()?))
}

fn text(characters: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
