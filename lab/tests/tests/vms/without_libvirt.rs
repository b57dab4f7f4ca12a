//! Cells of a QEMU that no libvirt runs.

use super::live::homes;
use nearside_lab::{
    Mapping, await_that,
    daemon::Daemon,
    libvirt::{FIRMWARE, cpus_of},
    mapping, read, run, status, stderr, write,
};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    process::{Child, Command, Stdio},
};

/// The group of the virtual machine, by its path in the tree.
const GROUP: &str = "/qemu/alone";
const TREE: &str = "/sys/fs/cgroup";

/// The sizes of its cells in MiB. They tell the mappings.
const CELLS_MIB: [u64; 2] = [64, 68];

/// A QEMU with two cells of one vCPU each. Its threads have no names. It has a QMP socket for
/// Nearside, and another one for the test.
struct Qemu(Child);

impl Qemu {
    fn start() -> Self {
        let loaded = Command::new("modprobe").arg("kvm-amd").status().unwrap();
        assert!(loaded.success());
        fs::create_dir_all(format!("{TREE}{GROUP}")).unwrap();
        let kernel = std::env::var("NEARSIDE_VM").unwrap();
        // The backend of cell 1 is created first.
        let line = format!(
            "echo $$ > {TREE}{GROUP}/cgroup.procs; exec qemu-system-x86_64 -accel kvm -cpu host \
             -machine pc -nodefaults -display none -name alone,debug-threads=off -smp 2 -m 132M \
             -bios {FIRMWARE} -kernel {kernel} -serial file:/tmp/alone.serial \
             -qmp unix:/run/nearside-alone.qmp,server=on,wait=off \
             -qmp unix:/run/alone.qmp,server=on,wait=off \
             -object memory-backend-ram,id=b,size=68M -object memory-backend-ram,id=a,size=64M \
             -numa node,cpus=0,memdev=a -numa node,cpus=1,memdev=b"
        );
        let started = Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).spawn().unwrap();
        let mut qemu = Self(started);
        await_that("the virtual machine touched all of its memory", || {
            assert_eq!(qemu.0.try_wait().unwrap(), None, "QEMU has ended");
            fs::read("/tmp/alone.serial").is_ok_and(|serial| serial.ends_with(b"."))
        });
        qemu
    }

    /// The thread of each vCPU, by QEMU's word.
    fn threads(&self) -> Vec<u32> {
        let mut stream = UnixStream::connect("/run/alone.qmp").unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut answer =
            || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
        assert!(answer()["QMP"].is_object());
        let mut ask = |command: &str| {
            writeln!(stream, "{}", json!({ "execute": command })).unwrap();
            loop {
                let answer = answer();
                if answer.get("event").is_none() {
                    return answer["return"].clone();
                }
            }
        };
        ask("qmp_capabilities");
        let vcpus = ask("query-cpus-fast");
        let thread = |vcpu: &Value| vcpu["thread-id"].as_u64().unwrap() as u32;
        vcpus.as_array().unwrap().iter().map(thread).collect()
    }

    fn memory(&self, cell: usize) -> Mapping {
        let maps = read(&format!("/proc/{}/maps", self.0.id()));
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let starts: Vec<_> = maps
            .lines()
            .filter_map(|line| line.split_once(' ')?.0.split_once('-'))
            .map(|(from, to)| (number(from), number(to)))
            .filter(|(from, to)| to - from == CELLS_MIB[cell] << 20)
            .collect();
        let [(start, _)] = starts[..] else { panic!("{} mappings", starts.len()) };
        mapping(self.0.id(), start)
    }

    /// Whether a cell's vCPU may run on a node alone, and 95 % of its memory is there.
    fn is_at(&self, threads: &[u32], cell: usize, node: u32) -> bool {
        let bytes = self.memory(cell).bytes;
        let on = bytes.get(&node).copied().unwrap_or(0);
        on * 100 >= bytes.values().sum::<u64>() * 95
            && status(threads[cell], "Cpus_allowed_list") == cpus_of(node)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The daemon tells the cells by QEMU's command line, and the vCPUs by its monitor.
#[test]
fn cells_of_a_qemu_without_libvirt_have_homes_and_move() {
    // Where it moves pages, Nearside leaves memory to it.
    write("/proc/sys/kernel/numa_balancing", "0");
    let qemu = Qemu::start();
    let threads = qemu.threads();
    let daemon = Daemon::start("found = [\"qemu/*\"]\nscheduler = \"off\"");
    // A busy QEMU may not answer in time, and then nothing is known of its cells.
    let mut at = Vec::new();
    await_that("each cell has a home of its own, and is there", || {
        at = homes(GROUP).unwrap_or_default();
        at.len() == 2
            && at[0] != at[1]
            && qemu.is_at(&threads, 0, at[0])
            && qemu.is_at(&threads, 1, at[1])
    });
    let free = (0..4).find(|node| !at.contains(node)).unwrap();
    let set = run(["set", GROUP, "--cell", "1", "--nodes", &free.to_string()]);
    assert!(set.status.success(), "{}", stderr(&set));
    at[1] = free;
    await_that("the cell has moved, and the other stays", || {
        qemu.is_at(&threads, 0, at[0]) && qemu.is_at(&threads, 1, at[1])
    });
    // The emulator serves both.
    let both: Vec<_> = at.iter().flat_map(|node| [2 * node, 2 * node + 1]).collect();
    let emulator = super::cpus(&status(qemu.0.id(), "Cpus_allowed_list"));
    assert_eq!(emulator, both.into_iter().collect());
    daemon.stop();
}
