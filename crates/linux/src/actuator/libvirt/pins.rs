//! The pins that bind a libvirt domain to CPUs, or free it again: a pure function of the domain's
//! XML and the pins of its threads.

use crate::actuator::contract::{PartThreads, SharedThreads};
use nearside_libvirt::{CellId, Domain, IothreadId, VcpuId, VcpuSet};
use nearside_topology::{CpuSet, Topology};
use std::fmt;

/// A thread that libvirt pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thread {
    Vcpu(VcpuId),
    /// All threads that are no vCPU and no iothread.
    Emulator,
    Iothread(IothreadId),
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vcpu(vcpu) => write!(f, "vCPU {vcpu}"),
            Self::Emulator => write!(f, "the emulator"),
            Self::Iothread(iothread) => write!(f, "iothread {iothread}"),
        }
    }
}

/// Other CPUs for a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pin {
    pub(super) thread: Thread,
    pub(super) from: CpuSet,
    pub(super) to: CpuSet,
}

/// The CPUs that each thread of a running domain may run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pinned {
    /// By vCPU.
    pub(super) vcpus: Vec<CpuSet>,
    pub(super) emulator: CpuSet,
    pub(super) iothreads: Vec<(IothreadId, CpuSet)>,
}

/// The CPUs of the host.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HostCpus {
    pub(super) online: CpuSet,
    /// Those that may ever be online.
    pub(super) possible: CpuSet,
    /// The nodes of CPUs and disks; none for a domain whose iothreads serve no disk of the host.
    pub(super) topology: Option<Topology>,
}

/// The CPUs that threads get of those of their part.
struct Wanted<'a> {
    domain: &'a Domain,
    host: &'a HostCpus,
}

impl Wanted<'_> {
    /// An iothread gets the CPUs near the disks that it serves, any other thread all CPUs.
    fn of(&self, thread: Thread, cpus: &CpuSet) -> CpuSet {
        match (thread, &self.host.topology) {
            (Thread::Iothread(id), Some(topology)) => {
                self.domain.iothreads.cpus_near_disks(id, cpus, topology)
            }
            _ => cpus.clone(),
        }
    }

    /// Whether a pin is that of a former binding.
    fn is_pin_of(&self, thread: Thread, pin: &CpuSet, bound: &CpuSet) -> bool {
        pin == bound || *pin == self.of(thread, bound)
    }
}

/// The pins that bind the threads of a part to `cpus`. The emulator and the iothreads serve all
/// cells: they get the CPUs of all of them, and an iothread those of them that are near its disks.
///
/// # Errors
/// With the reason, if a vCPU has a pin that Nearside has not made, or the part is not one of the
/// domain.
pub(super) fn bind(
    domain: &Domain,
    now: &Pinned,
    threads: PartThreads<'_>,
    cpus: &CpuSet,
    host: &HostCpus,
) -> Result<Vec<Pin>, String> {
    if threads.cell.is_none() && domain.cells.len() > 1 {
        return Err(format!(
            "it has {} cells and one home: its pins would collapse all cells onto the same CPUs",
            domain.cells.len()
        ));
    }
    let wanted = Wanted { domain, host };
    let may_change = |thread: Thread, pin: &CpuSet| {
        let mut bindings = threads.own.iter().copied().chain([cpus]);
        host.online.is_subset(pin) || bindings.any(|it| wanted.is_pin_of(thread, pin, it))
    };
    let all = pins_of(domain, now, threads)?;
    let is_explicit = |(thread, pin): &&(Thread, CpuSet)| {
        matches!(thread, Thread::Vcpu(_)) && !may_change(*thread, pin)
    };
    let explicit = all.iter().find(is_explicit);
    if let Some((thread, pin)) = explicit {
        return Err(format!(
            "{thread} is pinned to {} already (vcpupin, cpuset or placement='auto'): change the \
             pin there (virsh vcpupin)",
            pin.named()
        ));
    }
    // An operator's pin of the emulator or an iothread stays as it is.
    let changes = all.into_iter().filter_map(|(thread, from)| {
        let to = wanted.of(thread, cpus);
        (may_change(thread, &from) && from != to).then_some(Pin { thread, from, to })
    });
    Ok(changes.chain(shared_pins(now, threads, &wanted)).collect())
}

/// The pins of the emulator and the iothreads after the change of a cell.
fn shared_pins(now: &Pinned, threads: PartThreads<'_>, wanted: &Wanted<'_>) -> Vec<Pin> {
    let SharedThreads { before, after } = threads.shared;
    if threads.cell.is_none() {
        return Vec::new();
    }
    let is_free = |pin: &CpuSet| wanted.host.online.is_subset(pin);
    let pin_of = |(thread, from): (Thread, &CpuSet)| {
        let was_bound = before.is_some_and(|before| wanted.is_pin_of(thread, from, before));
        let to = match after {
            Some(after) => wanted.of(thread, after),
            None => wanted.host.possible.clone(),
        };
        let may_change = match after {
            Some(_) => was_bound || is_free(from),
            None => was_bound && !is_free(from),
        };
        (may_change && *from != to).then(|| Pin { thread, from: from.clone(), to })
    };
    shared_threads(now).filter_map(pin_of).collect()
}

fn shared_threads(now: &Pinned) -> impl Iterator<Item = (Thread, &CpuSet)> {
    let iothreads = now.iothreads.iter().map(|(id, pin)| (Thread::Iothread(*id), pin));
    [(Thread::Emulator, &now.emulator)].into_iter().chain(iothreads)
}

/// The pins that free the threads of a part. Pins that Nearside has not made stay.
///
/// libvirt has no call to remove a pin: one to all CPUs is as good.
pub(super) fn free(
    domain: &Domain,
    now: &Pinned,
    threads: PartThreads<'_>,
    host: &HostCpus,
) -> Result<Vec<Pin>, String> {
    let wanted = Wanted { domain, host };
    let is_own = |(thread, pin): &(Thread, CpuSet)| {
        let mut own = threads.own.iter();
        !host.online.is_subset(pin) && own.any(|it| wanted.is_pin_of(*thread, pin, it))
    };
    let own = pins_of(domain, now, threads)?.into_iter().filter(is_own);
    let pins = own.map(|(thread, from)| Pin { thread, from, to: host.possible.clone() });
    Ok(pins.chain(shared_pins(now, threads, &wanted)).collect())
}

/// The threads of a part with their CPUs.
fn pins_of(
    domain: &Domain,
    now: &Pinned,
    threads: PartThreads<'_>,
) -> Result<Vec<(Thread, CpuSet)>, String> {
    let vcpus: VcpuSet = match threads.cell {
        None => domain.vcpus.all(),
        Some(cell) => {
            let cell = CellId(cell.0);
            let found = domain.cell(cell).ok_or_else(|| format!("it has no cell {cell}"))?;
            domain.vcpus_of(found)
        }
    };
    // libvirt pins no vCPU that is not plugged in.
    let online = vcpus.intersection(&domain.vcpus.online());
    let pin_of = |vcpu: VcpuId| {
        let pin = now.vcpus.get(vcpu.0 as usize).cloned();
        pin.map(|pin| (Thread::Vcpu(vcpu), pin))
    };
    let mut pins: Vec<_> = online.iter().filter_map(pin_of).collect();
    if threads.cell.is_none() {
        pins.extend(shared_threads(now).map(|(thread, pin)| (thread, pin.clone())));
    }
    Ok(pins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_policy::CellId as PolicyCell;
    use nearside_topology::{Cpu, CpuId, Device, DeviceKind, Distances, Node, NodeId};
    use proptest::prelude::*;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    /// Two vCPUs of no cell, or of as many cells.
    fn domain(cells: u32) -> Domain {
        let cell = |id| format!("<cell id='{id}' cpus='{id}' memory='1'/>");
        let cells: String = (0..cells).map(cell).collect();
        let cpu = if cells.is_empty() { String::new() } else { format!("<numa>{cells}</numa>") };
        Domain::read(&format!("<domain><vcpu>2</vcpu><cpu>{cpu}</cpu></domain>")).unwrap()
    }

    fn host() -> HostCpus {
        HostCpus { online: set("0-7"), possible: set("0-15"), topology: None }
    }

    fn pinned(vcpus: [&str; 2], emulator: &str, iothread: &str) -> Pinned {
        Pinned {
            vcpus: vcpus.map(set).into(),
            emulator: set(emulator),
            iothreads: vec![(IothreadId(1), set(iothread))],
        }
    }

    fn whole<'a>(own: &'a [&'a CpuSet]) -> PartThreads<'a> {
        PartThreads { cell: None, own, shared: SharedThreads::default() }
    }

    /// `vCPU 0: 0-7 > 0-3`.
    fn text(pins: Result<Vec<Pin>, String>) -> Vec<String> {
        match pins {
            Err(why) => vec![why],
            Ok(pins) => pins
                .iter()
                .map(|pin| format!("{}: {} > {}", pin.thread, pin.from, pin.to))
                .collect(),
        }
    }

    #[test]
    fn a_domain_without_pins_is_bound_with_all_its_threads() {
        let free = pinned(["0-7", "0-15"], "0-7", "0-7");
        assert_eq!(
            text(bind(&domain(0), &free, whole(&[]), &set("0-3"), &host())),
            [
                "vCPU 0: 0-7 > 0-3",
                "vCPU 1: 0-15 > 0-3",
                "the emulator: 0-7 > 0-3",
                "iothread 1: 0-7 > 0-3"
            ]
        );
    }

    #[test]
    fn own_pins_change_and_equal_ones_stay() {
        let own = set("0-3");
        let now = pinned(["0-3", "4-7"], "0-3", "4-7");
        assert_eq!(
            text(bind(&domain(1), &now, whole(&[&own]), &set("4-7"), &host())),
            ["vCPU 0: 0-3 > 4-7", "the emulator: 0-3 > 4-7"]
        );
    }

    #[test]
    fn an_operators_pin_of_a_vcpu_is_respected() {
        let now = pinned(["0-7", "5"], "0-7", "0-7");
        let refused = text(bind(&domain(0), &now, whole(&[&set("0-3")]), &set("0-3"), &host()));
        assert!(refused[0].starts_with("vCPU 1 is pinned to CPU 5 already"), "{refused:?}");
        assert_eq!(text(free(&domain(0), &now, whole(&[&set("0-3")]), &host())), [""; 0]);
    }

    #[test]
    fn an_operators_pins_of_other_threads_stay() {
        let now = pinned(["0-7", "0-7"], "6-7", "5");
        assert_eq!(
            text(bind(&domain(0), &now, whole(&[]), &set("0-3"), &host())),
            ["vCPU 0: 0-7 > 0-3", "vCPU 1: 0-7 > 0-3"]
        );
    }

    #[test]
    fn cells_are_bound_one_by_one_and_never_together() {
        let free = pinned(["0-7", "0-7"], "0-7", "0-7");
        let refused = text(bind(&domain(2), &free, whole(&[]), &set("0-3"), &host()));
        assert!(refused[0].contains("2 cells and one home"), "{refused:?}");
        let cell = |cell| PartThreads {
            cell: Some(PolicyCell(cell)),
            own: &[],
            shared: SharedThreads::default(),
        };
        assert_eq!(
            text(bind(&domain(2), &free, cell(1), &set("4-7"), &host())),
            ["vCPU 1: 0-7 > 4-7"]
        );
        assert_eq!(
            text(bind(&domain(2), &free, cell(2), &set("4-7"), &host())),
            ["it has no cell 2"]
        );
    }

    #[test]
    fn the_emulator_gets_the_cpus_of_all_cells() {
        let (first, both) = (set("0-1"), set("0-3"));
        let of = |cell, own, before, after| PartThreads {
            cell: Some(PolicyCell(cell)),
            own,
            shared: SharedThreads { before, after },
        };
        let own = &[&first][..];
        let pins = |now: &Pinned, threads, cpus: &str| {
            text(bind(&domain(2), now, threads, &set(cpus), &host()))
        };
        // The other cell is not bound yet.
        let free = pinned(["0-7", "0-7"], "0-7", "6");
        assert_eq!(pins(&free, of(0, &[], None, None), "0-1"), ["vCPU 0: 0-7 > 0-1"]);
        assert_eq!(
            pins(&free, of(1, &[], None, Some(&both)), "2-3"),
            ["vCPU 1: 0-7 > 2-3", "the emulator: 0-7 > 0-3"],
            "an operator's pin of an iothread stays"
        );
        // One cell moves.
        let bound = pinned(["0-1", "2-3"], "0-3", "0-3");
        let later = set("2-5");
        assert_eq!(
            pins(&bound, of(0, own, Some(&both), Some(&later)), "4-5"),
            ["vCPU 0: 0-1 > 4-5", "the emulator: 0-3 > 2-5", "iothread 1: 0-3 > 2-5"]
        );
        // One cell is freed.
        assert_eq!(
            text(free_of(&bound, of(0, own, Some(&both), None))),
            ["vCPU 0: 0-1 > 0-15", "the emulator: 0-3 > 0-15", "iothread 1: 0-3 > 0-15"]
        );
        let elsewhere = pinned(["0-1", "2-3"], "6", "0-7");
        assert_eq!(
            text(free_of(&elsewhere, of(0, own, Some(&both), None))),
            ["vCPU 0: 0-1 > 0-15"]
        );
    }

    #[test]
    fn an_iothread_gets_the_cpus_near_its_disk() {
        let xml = "<domain><vcpu>2</vcpu><iothreads>1</iothreads><devices><disk type='block'>\
                   <driver iothread='1'/><source dev='/dev/nvme0n1p2'/></disk></devices></domain>";
        let domain = Domain::read(xml).unwrap();
        // Four nodes of two CPUs; the disk is at node 1.
        let ids = [0, 1, 2, 3].map(NodeId);
        let disk = Device {
            kind: DeviceKind::Block,
            name: "nvme0n1".into(),
            node: Some(NodeId(1)),
            class: None,
        };
        let topology = Topology {
            nodes: ids.map(|id| Node { id, ..Node::default() }).into(),
            cpus: (0..8).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 2))).collect(),
            distances: Distances::uniform(&ids),
            devices: vec![disk],
            ..Topology::default()
        };
        let host = HostCpus { topology: Some(topology), ..host() };
        let free_now = pinned(["0-7", "0-7"], "0-7", "0-7");
        assert_eq!(
            text(bind(&domain, &free_now, whole(&[]), &set("0-3"), &host)).last().unwrap(),
            "iothread 1: 0-7 > 2-3"
        );
        // Its pin counts as Nearside's later.
        let bound = pinned(["0-3", "0-3"], "0-3", "2-3");
        let own = set("0-3");
        assert_eq!(
            text(bind(&domain, &bound, whole(&[&own]), &set("4-7"), &host)).last().unwrap(),
            "iothread 1: 2-3 > 4-5"
        );
        assert_eq!(
            text(free(&domain, &bound, whole(&[&own]), &host)).last().unwrap(),
            "iothread 1: 2-3 > 0-15"
        );
    }

    fn free_of(now: &Pinned, threads: PartThreads<'_>) -> Result<Vec<Pin>, String> {
        free(&domain(2), now, threads, &host())
    }

    #[test]
    fn vcpus_that_are_not_plugged_in_have_no_pin() {
        let domain = Domain::read("<domain><vcpu current='1'>2</vcpu></domain>").unwrap();
        let now = pinned(["0-7", "0-7"], "0-3", "0-3");
        assert_eq!(
            text(bind(&domain, &now, whole(&[]), &set("0-3"), &host())),
            ["vCPU 0: 0-7 > 0-3"]
        );
    }

    proptest! {
        /// Binding and freeing again gives every thread the CPUs that it had, or all of them.
        #[test]
        fn freeing_undoes_binding(
            pins in proptest::collection::vec(0_usize..4, 4),
            to in 1_usize..4,
        ) {
            let sets = ["0-7", "0-3", "4-7", "5"];
            let at = |index: usize| sets[pins[index]];
            let before = pinned([at(0), at(1)], at(2), at(3));
            let to = set(sets[to]);
            let Ok(bound) = bind(&domain(0), &before, whole(&[]), &to, &host()) else {
                return Ok(());
            };
            let mut after = before.clone();
            apply(&mut after, &bound);
            prop_assert!(after.vcpus.iter().all(|pin| *pin == to));
            let freed = free(&domain(0), &after, whole(&[&to]), &host()).unwrap();
            apply(&mut after, &freed);
            let same = |was: &CpuSet, is: &CpuSet| {
                was == is || host().online.is_subset(was) && host().online.is_subset(is)
                    // A pin that equals Nearside's cannot be told from it.
                    || *was == to && *is == host().possible
            };
            prop_assert!(before.vcpus.iter().zip(&after.vcpus).all(|(was, is)| same(was, is)));
            prop_assert!(same(&before.emulator, &after.emulator));
            prop_assert!(same(&before.iothreads[0].1, &after.iothreads[0].1));
        }
    }

    fn apply(pinned: &mut Pinned, pins: &[Pin]) {
        for pin in pins {
            let to = pin.to.clone();
            match pin.thread {
                Thread::Vcpu(vcpu) => pinned.vcpus[vcpu.0 as usize] = to,
                Thread::Emulator => pinned.emulator = to,
                Thread::Iothread(_) => pinned.iothreads[0].1 = to,
            }
        }
    }
}
