//! Guests of monitors that no libvirt runs, by the monitors' command lines.

use nearside_vmm::{CommandLine, Vm, Vmm};
use std::path::Path;

/// The most cells of a guest that one of these processes runs, without a full reading of its
/// command line; 0 if none of them is a monitor with cells. libvirt may run a monitor of any name.
pub(crate) fn cells_of(processes: &[i32], proc: &Path, is_libvirts: bool) -> usize {
    let of = |process: &i32| {
        let line = command_line(*process, proc)?;
        (is_libvirts || monitor(&line).is_some()).then(|| cells(&line))
    };
    processes.iter().filter_map(of).max().unwrap_or(0)
}

/// The QEMU with cells among these processes, and the virtual machine of its command line; none if
/// there is no such process.
///
/// # Errors
/// With the reason, if its command line cannot be read, or there are several virtual machines.
pub(crate) fn qemu_with_cells(processes: &[i32], proc: &Path) -> Option<(i32, Result<Vm, String>)> {
    let lines = processes.iter().filter_map(|&it| Some((it, command_line(it, proc)?)));
    let monitors: Vec<_> = lines.filter(|(_, line)| monitor(line).is_some()).collect();
    let is_qemu = |(_, line): &&(i32, String)| monitor(line) == Some(Vmm::Qemu) && cells(line) > 0;
    let (process, line) = monitors.iter().find(is_qemu)?;
    if monitors.len() > 1 {
        let why = "several virtual machines run in its cgroup: give each a cgroup of its own";
        return Some((*process, Err(why.into())));
    }
    let words: Vec<_> = line.trim_end_matches('\0').split('\0').collect();
    let read = CommandLine::read(&words);
    Some((*process, read.map(|line| line.vm().clone()).map_err(|fault| fault.to_string())))
}

/// The monitor that a command line runs; none for `timeout 60 qemu-system-x86_64`.
fn monitor(command_line: &str) -> Option<Vmm> {
    Vmm::of_program(command_line.split('\0').next()?)
}

fn command_line(process: i32, proc: &Path) -> Option<String> {
    crate::read::text(&proc.join(format!("{process}/cmdline"))).ok()
}

/// The cells that a command line states. QEMU's are `-numa node,...` (libvirt writes them so:
/// `qemuBuildNumaCommandLine`, `src/qemu/qemu_command.c`), those of cloud-hypervisor
/// `--numa guest_numa_id=0,...`. The arguments end with NUL bytes.
fn cells(command_line: &str) -> usize {
    let words: Vec<_> = command_line.split('\0').collect();
    let is_node = |word: &str| word == "node" || word.starts_with("node,");
    let is_cell = |pair: &&[&str]| match pair {
        ["-numa" | "--numa", word] if is_node(word) => true,
        [_, word] => word.starts_with("guest_numa_id="),
        _ => false,
    };
    words.windows(2).filter(is_cell).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "qemu-system-x86_64\0-smp\x002\0-m\x0064M\0\
                       -object\0memory-backend-ram,id=ram-node0,size=32M\0\
                       -object\0memory-backend-ram,id=ram-node1,size=32M\0\
                       -numa\0node,nodeid=0,cpus=0,memdev=ram-node0\0\
                       -numa\0node,nodeid=1,cpus=1,memdev=ram-node1\0\
                       -numa\0dist,src=0,dst=1,val=20\0";

    #[test]
    fn each_numa_node_is_a_cell() {
        assert_eq!(cells(TWO), 2);
        assert_eq!(cells("qemu-system-x86_64\0-name\0node,\0"), 0);
        assert_eq!(cells("-numa\0node\0-numa"), 1);
        assert_eq!(cells("cloud-hypervisor\0--numa\0guest_numa_id=0\0guest_numa_id=1\0"), 2);
        assert_eq!(cells(""), 0);
    }

    #[test]
    fn processes_that_have_ended_have_no_cells() {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path();
        let process = |number: u32, line: &str| {
            let folder = proc.join(number.to_string());
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("cmdline"), line).unwrap();
        };
        process(7, TWO);
        process(8, "qemu-system-x86_64\0-numa\0node,memdev=none\0");
        process(9, "cloud-hypervisor\0--numa\0guest_numa_id=0\0");
        process(10, &format!("timeout\x0060\0{TWO}"));
        let cells = |processes: &[i32], is_libvirts| cells_of(processes, proc, is_libvirts);
        assert_eq!([&[3, 7][..], &[], &[10]].map(|it| cells(it, false)), [2, 0, 0]);
        assert_eq!(cells(&[10], true), 2, "libvirt's");
        let (number, vm) = qemu_with_cells(&[3, 10, 7], proc).unwrap();
        assert_eq!((number, vm.unwrap().cells.len()), (7, 2));
        let why = |processes: &[i32]| qemu_with_cells(processes, proc).unwrap().1.unwrap_err();
        assert!(why(&[8]).contains("no memory backend none"));
        assert!(why(&[9, 7]).contains("several virtual machines"));
        assert!([&[9][..], &[3], &[10]].iter().all(|it| qemu_with_cells(it, proc).is_none()));
    }
}
