//! The number of a guest's cells, by QEMU's command line: the daemon needs no more, and asks no
//! other program for it.

use std::path::Path;

/// The cells of the guest that one of these processes runs; 0 if none of them is a QEMU with cells.
pub(crate) fn cells_of(processes: &[i32], proc: &Path) -> usize {
    let of = |process: &i32| {
        let line = crate::read::text(&proc.join(format!("{process}/cmdline")));
        line.map_or(0, |line| cells(&line))
    };
    processes.iter().map(of).max().unwrap_or(0)
}

/// libvirt writes each cell as `-numa node,nodeid=0,...` (`qemuBuildNumaCommandLine`,
/// `src/qemu/qemu_command.c`); the arguments end with NUL bytes.
fn cells(command_line: &str) -> usize {
    let arguments: Vec<_> = command_line.split('\0').collect();
    let is_cell = |pair: &&[&str]| match pair {
        ["-numa", value] => *value == "node" || value.starts_with("node,"),
        _ => false,
    };
    arguments.windows(2).filter(is_cell).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_numa_node_is_a_cell() {
        let line = "qemu-system-x86_64\0-smp\x002\0-numa\0node,nodeid=0,cpus=0,memdev=ram-node0\0\
                    -numa\0node,nodeid=1,cpus=1,memdev=ram-node1\0-numa\0dist,src=0,dst=1,val=20\0";
        assert_eq!(cells(line), 2);
        assert_eq!(cells("qemu-system-x86_64\0-name\0node,\0"), 0);
        assert_eq!(cells("-numa\0node\0-numa"), 1);
        assert_eq!(cells(""), 0);
    }

    #[test]
    fn processes_that_have_ended_have_no_cells() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("7")).unwrap();
        std::fs::write(folder.path().join("7/cmdline"), "qemu\0-numa\0node,nodeid=0\0").unwrap();
        assert_eq!(cells_of(&[3, 7], folder.path()), 1);
        assert_eq!(cells_of(&[], folder.path()), 0);
    }
}
