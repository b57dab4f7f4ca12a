//! Files of `-readconfig`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

use nearside_topology::NodeId;
use nearside_vmm::{
    Cell, CellPlacement, CommandLine, CommandLineError, Completed, Placement, complete,
};

/// The start of Proxmox' file for q35.
const PROXMOX: &str = "[device \"ehci\"]
  driver = \"ich9-usb-ehci1\"
  multifunction = \"on\"
  bus = \"pcie.0\"
  addr = \"1d.7\"

[device \"pcidmi\"]
  driver = \"i82801b11-bridge\"
";

fn read(words: &str, file: &str) -> Result<CommandLine, CommandLineError> {
    let words: Vec<_> = words.split_whitespace().collect();
    assert_eq!(CommandLine::config_files(&words), ["/q35.cfg"]);
    CommandLine::read_with(&words, &[("/q35.cfg".into(), file.into())].into())
}

fn completed(line: &CommandLine) -> Result<Completed, CommandLineError> {
    let place = |(node, cell): (u32, &Cell)| CellPlacement {
        bytes: [(NodeId(node), cell.bytes)].into(),
        cpu_nodes: [NodeId(node)].into_iter().collect(),
    };
    let cells = [0, 3].into_iter().zip(&line.vm().cells).map(place).collect();
    complete(line, &Placement { cells, ..Placement::default() })
}

fn fault(words: &str, file: &str) -> String {
    read(words, file).and_then(|line| completed(&line)).unwrap_err().to_string()
}

#[test]
fn a_file_of_devices_stands_in_no_ones_way() {
    let words = "kvm -id 101 -smp 4,sockets=1,cores=4,maxcpus=4 -m 1024 \
                 -object memory-backend-ram,id=ram-node0,size=1024M \
                 -numa node,nodeid=0,cpus=0-3,memdev=ram-node0 -readconfig /q35.cfg \
                 -machine type=q35";
    let line = read(words, PROXMOX).unwrap();
    assert_eq!((line.vm().vcpus, line.vm().bytes), (4, 1 << 30));
    let words = completed(&line).unwrap().words;
    let bound = "memory-backend-ram,id=ram-node0,size=1024M,host-nodes=0,policy=bind";
    assert!(words.contains(&bound.into()), "{words:?}");
    let plain = read("kvm -smp 4 -m 1G -readconfig /q35.cfg", PROXMOX).unwrap();
    let words = completed(&plain.split(2).unwrap()).unwrap().words;
    assert!(words.iter().any(|word| word.ends_with("host-nodes=3,policy=bind")), "{words:?}");
}

#[test]
fn a_file_states_vcpus_memory_and_devices() {
    let file = "[machine]\n type = \"q35\"\n[memory]\n size = \"512\"\n maxmem = \"4G\"\n\
                [smp-opts]\n cpus = \"2\"\n maxcpus = \"8\"\n\
                [device \"d0\"]\n driver = \"pc-dimm\"\n memdev = \"a\"\n";
    let words = "qemu-system-x86_64 -readconfig /q35.cfg -object memory-backend-ram,id=a,size=1G";
    let line = read(words, file).unwrap();
    let vm = line.vm();
    assert_eq!((vm.vcpus, vm.max_vcpus, vm.bytes), (2, 8, 512 << 20));
    let device = &vm.cells[0].devices[0];
    assert_eq!((device.backend.as_str(), device.bytes), ("a", 1 << 30));
    let words = completed(&line).unwrap().words;
    let bound = "memory-backend-ram,id=a,size=1G,host-nodes=0,policy=bind";
    assert!(words.contains(&bound.into()), "{words:?}");
}

#[test]
fn memory_in_a_file_is_named_where_it_cannot_be_bound() {
    let cell = "[numa]\n type = \"node\"\n memdev = \"r0\"\n";
    let file = format!(
        "[memory]\n size = \"64\"\n[object \"r0\"]\n qom-type = \"memory-backend-ram\"\n \
         size = \"64M\"\n{cell}"
    );
    let words = "kvm -readconfig /q35.cfg";
    let why = fault(words, &file);
    let expected = "argument 2 (\"/q35.cfg\"): memory backend r0 is in this file, where it cannot \
                    be bound: state it as an argument";
    assert_eq!(why, expected);
    // A backend that is bound stays as it is.
    let bound = file.replace("size = \"64M\"", "size = \"64M\"\n host-nodes = \"0\"");
    assert!(completed(&read(words, &bound).unwrap()).is_ok());
    let why = fault(words, "[numa]\n type = \"node\"\n");
    assert!(why.contains("cell 0 is in this file"), "{why}");
}

#[test]
fn a_fault_in_a_file_has_its_line_and_section() {
    let words = "kvm -readconfig /q35.cfg";
    let why = fault(words, "[device \"a\"]\n driver = \"b\"\n\n[memory]\n size = \"x\"\n");
    assert!(why.starts_with("argument 2 (\"/q35.cfg\"): line 4, [memory]: \"x\" is no"), "{why}");
    let why = fault(words, "size = \"4G\"\n");
    assert!(why.contains("line 1"), "{why}");
    let unread = CommandLine::read(&["kvm", "-readconfig", "/q35.cfg"]).unwrap_err();
    assert!(unread.to_string().contains("which is not read"), "{unread}");
}
