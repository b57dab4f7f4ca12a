//! The daemon's changes of a virtual machine through a real libvirt, with `virsh` and the kernel as
//! witnesses: `make libvirt-test`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

#[path = "../../../scripts/libvirtd.rs"]
mod libvirtd;

use common::{Made, home};
use libvirtd::{Libvirtd, domain_xml};
use nearside_linux::guest::{Shape, memory_by_cell};
use nearside_policy::{Action, CpuReason, Reason, Step, Transaction};
use nearside_topology::NodeSet;
use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// A made-up host with this machine's first two CPUs, each on a node of its own, and a running
/// domain.
struct Scene {
    made: Made,
    libvirt: Libvirtd,
    name: &'static str,
    path: String,
}

impl Scene {
    fn of(name: &'static str, xml: &str) -> Self {
        let (made, libvirt) = (Made::new("cpuset memory"), Libvirtd::start());
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        assert_ne!(online.trim(), "0", "the tests need two CPUs");
        for (file, text) in [
            ("cpu/online", online.as_str()),
            ("cpu/possible", &fs::read_to_string("/sys/devices/system/cpu/possible").unwrap()),
            ("node/node0/cpulist", "0\n"),
            ("node/node1/cpulist", "1\n"),
        ] {
            made.file(&format!("sys/devices/system/{file}"), text);
        }
        symlink(libvirt.socket().parent().unwrap(), made.path("run/libvirt")).unwrap();
        libvirt.create(xml);
        let id = libvirt.virsh(&["domid", name]).trim().to_owned();
        let path = format!("/machine/qemu-{id}-{name}.libvirt-qemu");
        made.file(&format!("cg{path}/cgroup.events"), "populated 1\n");
        Self { made, libvirt, name, path }
    }

    /// The domain's record gets a home.
    fn settle(&self, node: u32) {
        let mut host = self.made.host();
        let mut session = host.begin().unwrap();
        session.found(&self.path, "machine/*");
        let action = Action::SetHome { part: self.path.as_str().into(), home: home(&[node]) };
        let seen = session.record(&self.path).unwrap().map(|record| session.state_of(&record));
        let steps = vec![Step { action, reason: Reason::Placed }];
        session.apply(&Transaction::new(steps, &seen.unwrap_or_default())).unwrap();
    }

    fn bind(&self) -> Result<bool, String> {
        let mut host = self.made.host();
        let bound = host.begin().unwrap().bind_to_home(&self.path);
        bound.map_err(|refusal| refusal.to_string())
    }

    fn unbind(&self) -> bool {
        self.made.host().begin().unwrap().unbind(&self.path).unwrap()
    }

    fn apply(&self, actions: Vec<Action>) -> Result<(), String> {
        let mut host = self.made.host();
        let mut session = host.begin().unwrap();
        let seen = session.state_of(&session.record(&self.path).unwrap().unwrap());
        let steps = actions.into_iter().map(|action| Step { action, reason: Reason::Placed });
        let transaction = Transaction::new(steps.collect(), &seen);
        session.apply(&transaction).map_err(|refusal| refusal.to_string())
    }

    /// The CPUs of vCPUs 0 and 1, and of the emulator, as virsh prints them.
    fn pins(&self) -> [String; 3] {
        let vcpus = self.libvirt.virsh(&["vcpupin", self.name]);
        let row = |vcpu: &str| {
            let line = vcpus.lines().find(|line| line.split_whitespace().next() == Some(vcpu));
            line.and_then(|line| line.split_whitespace().last()).unwrap().to_owned()
        };
        let emulator = self.libvirt.virsh(&["emulatorpin", self.name]);
        [row("0"), row("1"), emulator.split_whitespace().last().unwrap().to_owned()]
    }

    /// The CPUs that the kernel allows the thread of a vCPU.
    fn allowed(&self, vcpu: u32) -> String {
        let name = format!("CPU {vcpu}/TCG\n");
        let is_vcpu =
            |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm == name);
        let task = tasks_of(self.name).into_iter().find(is_vcpu).unwrap();
        let status = fs::read_to_string(task.join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    }
}

/// The threads of the QEMU that runs a domain.
fn tasks_of(domain: &str) -> Vec<PathBuf> {
    let guest = format!("guest={domain},");
    let is_its = |process: &PathBuf| {
        let command = fs::read(process.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(&guest)
    };
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let process = processes.filter(|path| path.join("task").is_dir()).find(is_its).unwrap();
    fs::read_dir(process.join("task")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A domain without cells.
fn plain(name: &str, more: &str) -> String {
    let xml = domain_xml(name, more);
    let (before, rest) = xml.split_once("<cpu>").unwrap();
    format!("{before}{}", rest.split_once("</cpu>").unwrap().1)
}

#[test]
#[ignore = "starts a libvirt daemon as root: make libvirt-test"]
fn a_domain_is_bound_to_its_home_and_freed_through_libvirt() {
    let name = "nearside-bound";
    let scene = Scene::of(name, &plain(name, ""));
    let [all, ..] = scene.pins();
    scene.settle(1);
    assert_eq!(scene.bind(), Ok(true));
    assert_eq!(scene.pins(), ["1", "1", "1"]);
    assert_eq!(scene.allowed(0), "1");
    assert!(scene.libvirt.virsh(&["dumpxml", name]).contains("<vcpupin vcpu='0' cpuset='1'/>"));
    assert_eq!(scene.bind(), Ok(false), "it is bound");

    // Memory stays as it is, because this domain has no numatune; the whole transaction is undone.
    let part = || scene.path.as_str().into();
    let refused = scene.apply(vec![
        Action::SetHome { part: part(), home: home(&[0]) },
        Action::BindCpus {
            part: part(),
            cpus: "0".parse().unwrap(),
            on_behalf: CpuReason::Fallback,
        },
        Action::ConfineMemory { part: part(), nodes: "0".parse::<NodeSet>().unwrap() },
    ]);
    assert!(refused.as_ref().unwrap_err().contains("no numatune"), "{refused:?}");
    assert_eq!(scene.pins(), ["1", "1", "1"]);
    assert_eq!(scene.allowed(1), "1");

    assert!(scene.unbind());
    assert_eq!(scene.pins(), [all.clone(), all.clone(), all.clone()]);
    assert_eq!(scene.allowed(0), all);
}

#[test]
#[ignore = "starts a libvirt daemon as root: make libvirt-test"]
fn an_operators_pins_and_cells_are_refused() {
    let name = "nearside-pinned";
    let pinned = "<cputune><vcpupin vcpu='1' cpuset='0'/></cputune>";
    let scene = Scene::of(name, &plain(name, pinned));
    scene.settle(1);
    let refused = scene.bind().unwrap_err();
    assert!(refused.contains("vCPU 1 is pinned to CPU 0 already"), "{refused}");
    assert_eq!(scene.pins()[1], "0");
    assert_ne!(scene.pins()[0], "1");

    let name = "nearside-cells";
    let scene = Scene::of(name, &domain_xml(name, ""));
    let before = scene.pins();
    scene.settle(1);
    let refused = scene.bind().unwrap_err();
    assert!(refused.contains("2 cells and one home"), "{refused}");
    assert_eq!(scene.pins(), before);
}

#[test]
#[ignore = "starts a libvirt daemon as root: make libvirt-test"]
fn each_cell_has_its_threads_and_memory() {
    let name = "nearside-evidence";
    for backing in ["", "<memoryBacking><source type='memfd'/></memoryBacking>"] {
        let scene = Scene::of(name, &domain_xml(name, backing));
        let tasks = tasks_of(name);
        let process = tasks[0].parent().unwrap().parent().unwrap();
        let numbers: Vec<_> = tasks.iter().map(|task| task.file_name().unwrap()).collect();
        let lines: Vec<_> = numbers.iter().map(|number| number.to_str().unwrap()).collect();
        let number = process.file_name().unwrap().to_str().unwrap();
        let group = format!("cg{}", scene.path);
        scene.made.file(&format!("{group}/cgroup.threads"), &lines.join("\n"));
        scene.made.file(&format!("{group}/cgroup.procs"), number);
        for line in &lines {
            symlink(format!("/proc/{line}"), scene.made.path(&format!("proc/{line}"))).unwrap();
        }
        let host = scene.made.host();
        let group = host.tree().group(&scene.path).unwrap();
        let topology = host.topology().unwrap();
        let look = || host.guest(&group, &topology).unwrap().unwrap();
        // The firmware writes to both cells once it runs.
        let until = Instant::now() + Duration::from_secs(120);
        let mut guest = look();
        while guest.cells.iter().any(|cell| cell.bytes.as_ref().unwrap().is_empty())
            && Instant::now() < until
        {
            thread::sleep(Duration::from_millis(10));
            guest = look();
        }
        assert_eq!(guest.cells.len(), 2);
        for (cell, number) in guest.cells.iter().zip(0..) {
            assert_eq!((cell.cell, cell.vcpus.to_string()), (Some(number), number.to_string()));
            assert_eq!(cell.threads.values().sum::<u64>(), 1, "{cell:?}");
            let bytes: u64 = cell.bytes.as_ref().unwrap().values().sum();
            assert!(bytes > 0 && bytes <= 32 << 20, "{cell:?}");
        }
        let others: u64 = guest.other_threads.values().sum();
        assert_eq!(others + 2, lines.len() as u64);

        // QEMU itself tells where the memory lies. Cell 1 begins after the 32 MiB of cell 0.
        let read = |file: &str| fs::read_to_string(process.join(file)).unwrap();
        let xml = scene.libvirt.virsh(&["dumpxml", name]);
        let domain = nearside_libvirt::Domain::read(&xml).unwrap();
        let memory = memory_by_cell(&Shape::from(&domain), &read("maps"), &read("numa_maps"));
        let starts: Vec<_> = memory.values().map(|it| it.mapping.start).collect();
        let host_address = |guest_address: usize| {
            let ask = format!("gpa2hva {guest_address:#x}");
            let said = scene.libvirt.virsh(&["qemu-monitor-command", name, "--hmp", &ask]);
            let address = said.split_whitespace().last().unwrap().trim_start_matches("0x");
            usize::from_str_radix(address, 16).unwrap()
        };
        let second = 32 << 20;
        assert_eq!(starts, [host_address(0), host_address(second)]);
    }
}

#[test]
#[ignore = "starts a libvirt daemon as root: make libvirt-test"]
fn a_stopped_libvirt_costs_a_domain_nothing() {
    let name = "nearside-stopped";
    let scene = Scene::of(name, &plain(name, ""));
    scene.settle(1);
    let before = scene.pins();
    let stopped = scene.libvirt.stop();
    let refused = scene.bind().unwrap_err();
    assert!(refused.contains("has not answered within 2000 ms"), "{refused}");
    assert!(!scene.made.path("run/nearside/journal.json").exists(), "other domains go on");
    drop(stopped);
    // libvirt reads the requests that were sent meanwhile, and finds its clients gone.
    thread::sleep(Duration::from_millis(200));
    assert_eq!(scene.pins(), before);
    assert_eq!(scene.bind(), Ok(true));
    // A libvirt that is gone leaves the pins, and the roll-back goes on without them.
    let stopped = scene.libvirt.stop();
    assert!(scene.unbind_fails());
    drop(stopped);
    assert_eq!(scene.pins(), ["1", "1", "1"]);
}

impl Scene {
    fn unbind_fails(&self) -> bool {
        self.made.host().begin().unwrap().unbind(&self.path).is_err()
    }
}
