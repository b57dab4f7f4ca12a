//! Answers, adoptions and lapses on a made-up host: plain files stand for the kernel's.

use super::*;
use crate::{Adopted, actuator::FakeLibvirt, made::Made, store::Lifetime};
use nearside_policy::{ByNode, Described, Machine, Newcomer, Observation, PageSize, Reservation};
use nearside_topology::{NodeId, NodeSet};
use proptest::prelude::*;
use std::{
    fs,
    sync::{Arc, Mutex},
};

const MIB: u64 = 1 << 20;
const NODES: u32 = 4;
const FREE_MIB: u64 = 400;

impl Made {
    /// A host of four nodes, 100 s after its boot.
    fn booted() -> Self {
        let made = Self::of("cpuset memory", NODES, 4 * FREE_MIB * 1024, FREE_MIB * 1024);
        made.file("cg/cgroup.procs", "");
        made.at(100);
        made
    }

    fn at(&self, uptime_s: u64) {
        self.file("proc/uptime", &format!("{uptime_s}.99 1.00\n"));
    }

    fn ask(&self, vcpus: u32, mib: u64) -> Advice {
        let mut host = self.host();
        let topology = host.topology().unwrap();
        advise(&mut host, vcpus, mib * MIB, &CostModel::default(), &topology, || true).unwrap()
    }

    /// libvirt starts a virtual machine at this time, bound to these nodes.
    fn start(&self, number: u32, vcpus: u32, nodes: &NodeSet, at_s: u64) {
        let group = format!("cg{}", path(number));
        let pid = 1000 + number;
        self.file(&format!("{group}/cgroup.events"), "populated 1\n");
        self.file(&format!("{group}/cgroup.procs"), &format!("{pid}\n"));
        for vcpu in 0..vcpus {
            fs::create_dir_all(self.path(&format!("{group}/libvirt/vcpu{vcpu}"))).unwrap();
        }
        fs::create_dir_all(self.path(&format!("{group}/libvirt/emulator"))).unwrap();
        let status = format!("Cpus_allowed_list:\t0-7\nMems_allowed_list:\t{nodes}\n");
        self.file(&format!("proc/{pid}/status"), &status);
        let ticks = 100 * at_s;
        let stat =
            format!("{pid} (qemu) S 1 1 1 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 {ticks} 0 0\n");
        self.file(&format!("proc/{pid}/stat"), &stat);
        self.holds(number, &ByNode::new());
    }

    fn end(&self, number: u32) {
        self.file(&format!("cg{}/cgroup.events", path(number)), "populated 0\n");
    }

    fn holds(&self, number: u32, bytes: &ByNode) {
        let on = |node| bytes.get(&NodeId(node)).copied().unwrap_or(0);
        let all: Vec<_> = (0..NODES).map(|node| format!("N{node}={}", on(node))).collect();
        let stat = format!("anon {}\n", all.join(" "));
        self.file(&format!("cg{}/memory.numa_stat", path(number)), &stat);
    }

    fn has_free(&self, node: u32, kib: u64) {
        let meminfo = format!(
            "Node {node} MemTotal: {} kB\nNode {node} MemFree: {kib} kB\n",
            4 * FREE_MIB * 1024
        );
        self.file(&format!("sys/devices/system/node/node{node}/meminfo"), &meminfo);
    }

    fn newcomers(&self, numbers: impl IntoIterator<Item = u32>) -> Vec<Newcomer> {
        let host = self.host();
        let topology = host.topology().unwrap();
        numbers.into_iter().filter_map(|it| host.newcomer(&path(it), &topology)).collect()
    }

    /// Lets machines of 300 MiB adopt.
    fn adopt(&self, numbers: impl IntoIterator<Item = u32>) -> Vec<(String, String)> {
        let newcomers: Vec<_> =
            self.newcomers(numbers).into_iter().map(|it| described(it, 300)).collect();
        names(self.host().begin().unwrap().adopt(&newcomers).unwrap())
    }

    fn available_mib(&self) -> Vec<u64> {
        let seen = self.host().observe().unwrap();
        let on = |node| seen.available_bytes(NodeId(node), PageSize::Base) / MIB;
        (0..NODES).map(on).collect()
    }
}

/// The names of reservations that domains have adopted, and their owners.
fn names(adopted: Vec<Adopted>) -> Vec<(String, String)> {
    let name = |it: Adopted| {
        it.outcome.unwrap();
        (it.reservation, it.owner)
    };
    adopted.into_iter().map(name).collect()
}

/// A machine of so much memory for which libvirt asked numad.
fn described(newcomer: Newcomer, mib: u64) -> Newcomer {
    let described = Described {
        name: newcomer.cgroup.clone(),
        asked_numad: true,
        vcpus: newcomer.vcpus.unwrap(),
        memory_bytes: mib * MIB,
    };
    Newcomer { described: Some(described), ..newcomer }
}

fn path(number: u32) -> String {
    format!("/machine.slice/machine-qemu\\x2d{number}\\x2dvm.scope")
}

#[test]
fn an_answer_reserves_its_memory_for_a_minute() {
    let made = Made::booted();
    let advice = made.ask(2, 300);
    assert_eq!(advice.nodes.to_string(), "0");
    assert_eq!(made.available_mib(), [100, 400, 400, 400]);
    made.at(159);
    assert_eq!(made.available_mib(), [100, 400, 400, 400]);
    made.at(160);
    assert_eq!(made.available_mib(), [400; 4]);
    // The next answer removes the record that has lapsed, and takes its name again.
    assert_eq!(made.ask(2, 300).reserved.unwrap().name, "numad-1");
    assert_eq!(made.host().reservations().len(), 1);
}

/// Two guests of equal size on the same nodes, of which only the second asked numad. While libvirt
/// refuses or hangs none adopts, and the reservation lasts beyond its minute. It lapses when no
/// guest can be its owner any more.
#[test]
fn while_libvirt_does_not_answer_nothing_is_adopted_and_nothing_lapses() {
    const PINNED: &str = "<domain><name>vm</name><memory unit='MiB'>300</memory><vcpu>2</vcpu>\
        <numatune><memory mode='strict' nodeset='0'/></numatune></domain>";
    const AUTO: &str = "<domain><name>vm</name><memory unit='MiB'>300</memory>\
        <vcpu placement='auto'>2</vcpu></domain>";
    for hangs in [false, true] {
        let made = Made::booted();
        let daemon = Arc::new(Mutex::new(FakeLibvirt::describing(AUTO, 0)));
        if hangs {
            FakeLibvirt::listen(&daemon, &made.path(""));
        }
        let advice = made.ask(2, 300);
        made.start(1, 2, &advice.nodes, 101);
        made.file("proc/1001/cmdline", "qemu-system-x86_64\0-m\x00300\0-smp\x002\0");
        let ask = |number, host: &mut Host| -> (Vec<_>, Option<String>) {
            let [newcomer] = &made.newcomers([number])[..] else { panic!() };
            let described = host.described(newcomer);
            let why = described.as_ref().err().cloned();
            let newcomer = Newcomer { described: described.ok(), ..newcomer.clone() };
            let mut session = host.begin().unwrap();
            let adopted = session.adopt(std::slice::from_ref(&newcomer)).unwrap();
            session.put_off(&[newcomer]).unwrap();
            (names(adopted), why)
        };
        let mut host = made.host();
        for at_s in [101, 140, 185, 230] {
            made.at(at_s);
            let (adopted, why) = ask(1, &mut host);
            assert_eq!(adopted, []);
            let expected =
                if hangs { "has not answered within" } else { "no libvirt daemon listens" };
            assert!(why.as_ref().is_some_and(|it| it.contains(expected)), "{why:?}");
            assert_eq!(made.available_mib(), [100, 400, 400, 400], "at {at_s} s");
        }
        // libvirt answers: the first guest has pins of its own, the second one is the owner.
        if !hangs {
            FakeLibvirt::listen(&daemon, &made.path(""));
        }
        let answers = |xml| FakeLibvirt::describing(xml, u32::MAX);
        *daemon.lock().unwrap() = answers(PINNED);
        let mut host = made.host();
        assert_eq!(ask(1, &mut host), (vec![], None));
        assert_eq!(made.available_mib(), [100, 400, 400, 400]);
        made.start(2, 2, &advice.nodes, 102);
        *daemon.lock().unwrap() = answers(AUTO);
        made.at(289);
        assert_eq!(made.available_mib(), [100, 400, 400, 400]);
        assert_eq!(ask(2, &mut host), (vec![("numad-1".into(), path(2))], None));
        made.at(900);
        assert_eq!(made.available_mib(), [100, 400, 400, 400]);
    }
}

#[test]
fn a_reservation_that_waited_in_vain_lapses() {
    let made = Made::booted();
    let advice = made.ask(2, 300);
    made.start(1, 2, &advice.nodes, 101);
    let put_off = || made.host().begin().unwrap().put_off(&made.newcomers([1])).unwrap();
    made.at(150);
    put_off();
    // A guest that starts after the minute is none for which the answer was given.
    made.end(1);
    made.start(1, 2, &advice.nodes, 170);
    made.at(180);
    put_off();
    made.at(209);
    assert_eq!(made.available_mib(), [100, 400, 400, 400]);
    made.at(210);
    assert_eq!(made.available_mib(), [400; 4]);
}

#[test]
fn a_guest_that_libvirt_never_describes_holds_memory_for_ten_minutes() {
    let made = Made::booted();
    let advice = made.ask(2, 300);
    made.start(1, 2, &advice.nodes, 101);
    for at_s in (110..2000).step_by(30) {
        made.at(at_s);
        made.host().begin().unwrap().put_off(&made.newcomers([1])).unwrap();
        let free_mib = if at_s < 700 { 100 } else { 400 };
        assert_eq!(made.available_mib(), [free_mib, 400, 400, 400], "at {at_s} s");
    }
}

#[test]
fn an_answer_for_which_nobody_waits_reserves_nothing() {
    let made = Made::booted();
    let mut host = made.host();
    let topology = host.topology().unwrap();
    let ask = |host: &mut Host, is_awaited| {
        advise(host, 2, 300 * MIB, &CostModel::default(), &topology, || is_awaited)
    };
    assert!(ask(&mut host, false).unwrap_err().to_string().contains("nobody waits"));
    assert_eq!(made.available_mib(), [400; 4]);
    let answered = ask(&mut host, true).unwrap().reserved.unwrap();
    assert_eq!(made.available_mib(), [100, 400, 400, 400]);
    take_back(&mut host, &answered.name).unwrap();
    take_back(&mut host, &answered.name).unwrap();
    assert_eq!(made.available_mib(), [400; 4]);
}

#[test]
fn a_reservation_that_was_adopted_is_not_taken_back() {
    let made = Made::booted();
    let advice = made.ask(2, 300);
    made.start(1, 2, &advice.nodes, 101);
    made.adopt([1]);
    take_back(&mut made.host(), "numad-1").unwrap();
    assert_eq!(made.available_mib(), [100, 400, 400, 400]);
}

#[test]
fn a_reservation_lasts_while_the_time_is_unknown() {
    let made = Made::booted();
    made.ask(2, 300);
    made.file("proc/uptime", "?");
    assert_eq!(made.available_mib(), [100, 400, 400, 400]);
    let mut host = made.host();
    let topology = host.topology().unwrap();
    let refused = advise(&mut host, 2, MIB, &CostModel::default(), &topology, || true).unwrap_err();
    assert!(refused.to_string().contains("proc/uptime"), "{refused}");
}

#[test]
fn a_domain_adopts_its_reservation_and_its_memory_counts_once() {
    let made = Made::booted();
    let advice = made.ask(2, 300);
    made.start(1, 2, &advice.nodes, 101);
    // A domain of another size, and one that ran before.
    made.start(2, 3, &advice.nodes, 101);
    made.start(3, 2, &advice.nodes, 99);
    assert_eq!(made.adopt([3, 2, 1]), [("numad-1".into(), path(1))]);
    assert_eq!(made.adopt([1, 2, 3]), [], "it is adopted once");
    made.at(1000);
    assert_eq!(made.available_mib(), [100, 400, 400, 400], "it lasts as long as its domain");
    made.holds(1, &[(NodeId(0), 100 * MIB)].into());
    made.has_free(0, 300 * 1024);
    assert_eq!(made.available_mib(), [100, 400, 400, 400]);
    made.holds(1, &[(NodeId(0), 300 * MIB)].into());
    made.has_free(0, 100 * 1024);
    assert_eq!(made.available_mib(), [100, 400, 400, 400]);
    // Its manager has moved half of it.
    made.holds(1, &[(NodeId(0), 150 * MIB), (NodeId(3), 150 * MIB)].into());
    made.has_free(0, 250 * 1024);
    made.has_free(3, 250 * 1024);
    assert_eq!(made.available_mib(), [250, 400, 400, 250]);
    made.end(1);
    made.holds(1, &ByNode::new());
    made.has_free(0, FREE_MIB * 1024);
    made.has_free(3, FREE_MIB * 1024);
    assert_eq!(made.available_mib(), [400; 4]);
}

#[test]
fn a_machine_without_the_groups_of_its_vcpus_is_of_unknown_size() {
    let made = Made::booted();
    made.start(1, 0, &[NodeId(1)].into(), 101);
    let newcomers = made.newcomers([1, 2]);
    assert_eq!(newcomers.len(), 1, "the second one does not exist");
    assert_eq!((newcomers[0].vcpus, newcomers[0].nodes.to_string()), (None, "1".into()));
}

#[test]
fn memory_is_reserved_whole_or_not_at_all() {
    let made = Made::booted();
    let mut host = made.host();
    let mut session = host.begin().unwrap();
    let reserving = |wanted: &Reservation| {
        let until = Until::Seconds(60);
        Transaction::reserving(wanted.clone(), until, &Observation::default())
    };
    let bytes: ByNode = [(NodeId(0), 100 * MIB), (NodeId(1), 500 * MIB)].into();
    let wanted = Reservation { name: "numad-1".into(), bytes, ..Reservation::default() };
    let refused = session.apply(&reserving(&wanted)).unwrap_err().to_string();
    assert_eq!(refused, "node 1 has 400 MiB available by now and 500 MiB are needed");
    let wanted = Reservation { bytes: [(NodeId(0), 300 * MIB)].into(), ..wanted };
    session.apply(&reserving(&wanted)).unwrap();
    let second = Reservation { name: "numad-2".into(), ..wanted };
    assert!(session.apply(&reserving(&second)).is_err(), "the session knows its own reservations");
    drop(session);
    let reservations = host.store().reservations(host.tree());
    let (boot_id, made_boottime_s) = ("b".into(), None);
    let expected = Lifetime::Term { boot_id, expires_boottime_s: 160, made_boottime_s };
    assert_eq!((reservations.len(), &reservations[0].lifetime), (1, &expected));
}

/// A virtual machine of the property test.
#[derive(Debug)]
struct Vm {
    vcpus: u32,
    mib: u64,
    nodes: NodeSet,
    /// Memory that it was promised, by node; empty once the promise has lapsed.
    promised: ByNode,
    reservation: String,
    is_started: bool,
    is_adopted: bool,
    held: ByNode,
}

#[derive(Debug, Clone)]
enum Event {
    Ask { vcpus: u32, mib: u64 },
    Start(prop::sample::Index),
    Touch(prop::sample::Index, u64),
    Adopt,
    Lapse,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let vm = any::<prop::sample::Index>;
    let event = prop_oneof![
        4 => (1..5_u32, 1..56_u64).prop_map(|(vcpus, mib)| Event::Ask { vcpus, mib }),
        4 => vm().prop_map(Event::Start),
        3 => (vm(), 0..=100_u64).prop_map(|(vm, percent)| Event::Touch(vm, percent)),
        3 => Just(Event::Adopt),
        1 => Just(Event::Lapse),
    ];
    proptest::collection::vec(event, 1..16)
}

fn on(bytes: &ByNode, node: u32) -> u64 {
    bytes.get(&NodeId(node)).copied().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_sequence_of_starts_adoptions_and_lapses_promises_memory_twice(events in events()) {
        let (made, mut now_s, mut vms) = (Made::booted(), 100, Vec::<Vm>::new());
        for event in events {
            match event {
                Event::Ask { vcpus, mib } => {
                    // Each has a size of its own, so that each adopts its own reservation.
                    let mib = mib * 16 + vms.len() as u64;
                    let advice = made.ask(vcpus, mib);
                    let reserved = advice.reserved.unwrap_or_default();
                    vms.push(Vm {
                        vcpus,
                        mib,
                        nodes: advice.nodes,
                        promised: reserved.bytes,
                        reservation: reserved.name,
                        is_started: false,
                        is_adopted: false,
                        held: ByNode::new(),
                    });
                }
                Event::Start(at) if !vms.is_empty() => {
                    let at = at.index(vms.len());
                    let vm = &mut vms[at];
                    if !vm.is_started {
                        vm.is_started = true;
                        made.start(at as u32, vm.vcpus, &vm.nodes, now_s);
                    }
                }
                Event::Touch(at, percent) if !vms.is_empty() => {
                    let at = at.index(vms.len());
                    let vm = &mut vms[at];
                    // Memory beyond promises may come from those of others: no record prevents it.
                    if vm.is_started {
                        for (&node, &bytes) in &vm.promised {
                            let held = vm.held.entry(node).or_default();
                            *held = (*held).max(bytes / 4096 * percent / 100 * 4096);
                        }
                        made.holds(at as u32, &vm.held);
                    }
                }
                Event::Adopt => {
                    let started = vms.iter().enumerate().filter(|(_, vm)| vm.is_started);
                    let newcomers: Vec<_> = started
                        .flat_map(|(at, vm)| {
                            let mib = vm.mib;
                            let newcomers = made.newcomers([at as u32]);
                            newcomers.into_iter().map(move |it| described(it, mib))
                        })
                        .collect();
                    let adopted = made.host().begin().unwrap().adopt(&newcomers).unwrap();
                    for (reservation, owner) in names(adopted) {
                        let at = (0..vms.len()).find(|&at| path(at as u32) == owner).unwrap();
                        prop_assert_eq!(&vms[at].reservation, &reservation);
                        vms[at].is_adopted = true;
                    }
                }
                Event::Lapse => {
                    now_s += 61;
                    made.at(now_s);
                    for vm in vms.iter_mut().filter(|vm| !vm.is_adopted) {
                        vm.promised.clear();
                    }
                }
                _ => {}
            }
            let seen = {
                for node in 0..NODES {
                    let held: u64 = vms.iter().map(|vm| on(&vm.held, node)).sum();
                    made.has_free(node, FREE_MIB * 1024 - held / 1024);
                }
                made.host().observe().unwrap()
            };
            for node in 0..NODES {
                let held: u64 = vms.iter().map(|vm| on(&vm.held, node)).sum();
                let open = |vm: &Vm| on(&vm.promised, node).saturating_sub(on(&vm.held, node));
                let open: u64 = vms.iter().map(open).sum();
                let free = FREE_MIB * MIB - held;
                prop_assert!(open <= free, "node {node}: {open} of {free}: {vms:?}");
                let available = seen.available_bytes(NodeId(node), PageSize::Base);
                prop_assert!(available + open <= free, "node {node}: {available} offered: {vms:?}");
            }
        }
    }
}
