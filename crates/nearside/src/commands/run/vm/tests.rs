//! Command lines on a made-up machine of four nodes: requests, homes and completed lines.

#[path = "../../../../../topology/tests/common/mod.rs"]
mod fixtures;

use super::*;
use clap::Parser;
use nearside_linux::sys;
use nearside_policy::{CostModel, Observation, place_cells_within};
use nearside_topology::{Cpu, Node, NodeId};

const MIB: u64 = 1 << 20;

/// Four nodes of 4 CPUs and 4 GiB.
fn machine() -> Topology {
    let ids = [0, 1, 2, 3].map(NodeId);
    let table = [10, 12, 21, 21, 12, 10, 21, 21, 21, 21, 10, 12, 21, 21, 12, 10];
    let node = |id| Node { id, memory_bytes: 4096 * MIB, ..Node::default() };
    Topology {
        nodes: ids.into_iter().map(node).collect(),
        cpus: (0..16).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 4))).collect(),
        distances: Distances::new(&ids, &table).unwrap(),
        ..Topology::default()
    }
}

#[derive(Debug, clap::Parser)]
struct Flags {
    #[command(flatten)]
    request: RequestArgs,
    #[arg(long)]
    vm: bool,
}

fn start(line: &str) -> Result<VmStart, String> {
    start_on(line, &machine())
}

fn start_on(line: &str, topology: &Topology) -> Result<VmStart, String> {
    let flags = Flags::try_parse_from(["run", "--vm"]).unwrap();
    assert!(flags.vm);
    let words: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
    let start = VmStart::read(&words, None, &flags.request, topology);
    start.map_err(|failure| failure.message().to_string())
}

/// vCPUs and MiB of each cell.
fn sizes(start: &VmStart) -> Vec<(u32, u64)> {
    start.request.cells.iter().map(|cell| (cell.vcpus, cell.memory_bytes / MIB)).collect()
}

fn placed(start: &VmStart) -> (CellsDecision, Result<Completed, String>) {
    placed_on(start, machine())
}

fn placed_on(start: &VmStart, topology: Topology) -> (CellsDecision, Result<Completed, String>) {
    let seen = Observation::of(topology.clone());
    let model = CostModel::default();
    let decision = place_cells_within(&start.request, &start.bounds(), &seen, &model).unwrap();
    let completed = start.complete(&decision, &topology);
    (decision, completed)
}

const TWO_CELLS: &str = "qemu-system-x86_64 -machine q35 -smp 2 -m 256M,slots=4,maxmem=4G \
    -object memory-backend-ram,id=ram-node0,size=128M -numa node,nodeid=0,cpus=0,memdev=ram-node0 \
    -object memory-backend-ram,id=ram-node1,size=128M -numa node,nodeid=1,cpus=1,memdev=ram-node1";

#[test]
fn memory_of_devices_is_claimed_by_its_cell_and_bound_to_its_home() {
    let line = format!(
        "{TWO_CELLS} -object memory-backend-ram,id=mem-dimm0,size=512M \
         -device pc-dimm,id=dimm0,memdev=mem-dimm0,node=0 \
         -object memory-backend-ram,id=mem-vm1,size=512M \
         -device virtio-mem-pci,id=vm1,memdev=mem-vm1,node=1,requested-size=256M"
    );
    let start = start(&line).unwrap();
    assert_eq!(sizes(&start), [(1, 640), (1, 384)]);
    let (decision, completed) = placed(&start);
    let completed = completed.unwrap();
    for (placed, backend) in decision.cells.iter().zip(["mem-dimm0", "mem-vm1"]) {
        let claimed: u64 = placed.home.claim.bytes.values().sum();
        assert_eq!(claimed / MIB, [640, 384][placed.cell.0 as usize]);
        let home = placed.home.nodes.to_string();
        let bound = format!("id={backend},size=512M,host-nodes={home},policy=bind");
        assert!(completed.words.iter().any(|word| word.ends_with(&bound)), "{completed:?}");
    }
}

#[test]
fn memory_of_a_device_with_other_pages_is_bound_and_not_claimed() {
    let line = format!(
        "{TWO_CELLS} -object memory-backend-memfd,id=h,size=512M,hugetlb=on,hugetlbsize=2M \
         -device pc-dimm,memdev=h,node=1 \
         -object memory-backend-file,id=nv,size=64M,mem-path=/var/nv -device nvdimm,memdev=nv"
    );
    let start = start(&line).unwrap();
    assert_eq!(sizes(&start), [(1, 192), (1, 128)]);
    let completed = placed(&start).1.unwrap();
    let note = "cell 1: memory h of a device has pages of another size, and is not claimed";
    assert!(completed.notes.contains(&note.into()), "{:?}", completed.notes);
    let bound = |word: &String| word.contains("id=h,") && word.contains(",host-nodes=");
    assert!(completed.words.iter().any(bound), "{completed:?}");
}

/// Each device as XML, as the arguments that libvirt makes of it, the MiB of both cells, and the
/// number of notes on memory that is not claimed.
const DEVICES: [(&str, &str, [u64; 2], usize); 13] = [
    ("", "", [128, 128], 0),
    (
        "<memory model='dimm'><target><size unit='MiB'>512</size><node>1</node></target></memory>",
        "-object memory-backend-ram,id=m,size=512M -device pc-dimm,node=1,memdev=m",
        [128, 640],
        0,
    ),
    (
        "<memory model='dimm'><target><size unit='MiB'>512</size></target></memory>",
        "-object memory-backend-ram,id=m,size=512M -device pc-dimm,memdev=m",
        [640, 128],
        0,
    ),
    (
        "<memory model='dimm'><source><nodemask>2</nodemask></source>\
         <target><size unit='MiB'>512</size><node>1</node></target></memory>",
        "-object memory-backend-ram,id=m,size=512M,host-nodes=2,policy=bind \
         -device pc-dimm,node=1,memdev=m",
        [128, 640],
        0,
    ),
    (
        "<memory model='dimm'><source><pagesize unit='MiB'>2</pagesize></source>\
         <target><size unit='MiB'>512</size><node>1</node></target></memory>",
        "-object memory-backend-memfd,id=m,size=512M,hugetlb=on,hugetlbsize=2M \
         -device pc-dimm,node=1,memdev=m",
        [128, 128],
        1,
    ),
    (
        "<memory model='dimm'><source><pagesize unit='KiB'>4</pagesize></source>\
         <target><size unit='MiB'>512</size><node>0</node></target></memory>",
        "-object memory-backend-ram,id=m,size=512M -device pc-dimm,node=0,memdev=m",
        [640, 128],
        0,
    ),
    (
        "<memory model='nvdimm'><source><path>/var/nv</path></source>\
         <target><size unit='MiB'>64</size><node>1</node></target></memory>",
        "-object memory-backend-file,id=m,size=64M,mem-path=/var/nv,share=on \
         -device nvdimm,node=1,memdev=m",
        [128, 192],
        0,
    ),
    (
        "<memory model='virtio-mem'><target><size unit='MiB'>512</size><node>1</node>\
         <block unit='MiB'>2</block><requested unit='MiB'>256</requested></target></memory>",
        "-object memory-backend-ram,id=m,size=512M,reserve=off \
         -device virtio-mem-pci,node=1,block-size=2097152,requested-size=268435456,memdev=m",
        [128, 384],
        0,
    ),
    (
        "<memory model='virtio-mem'><target><size unit='MiB'>512</size><node>1</node>\
         <block unit='MiB'>2</block></target></memory>",
        "-object memory-backend-ram,id=m,size=512M,reserve=off \
         -device virtio-mem-pci,node=1,block-size=2097152,requested-size=0,memdev=m",
        [128, 128],
        0,
    ),
    (
        "<memory model='virtio-pmem'><source><path>/var/pm</path></source>\
         <target><size unit='MiB'>64</size></target></memory>",
        "-object memory-backend-file,id=m,size=64M,mem-path=/var/pm,share=on \
         -device virtio-pmem-pci,memdev=m",
        [192, 128],
        0,
    ),
    (
        "<memory model='sgx-epc'><target><size unit='MiB'>64</size><node>1</node></target>\
         </memory>",
        "-object memory-backend-epc,id=m,size=64M,prealloc=on -M sgx-epc.0.memdev=m",
        [128, 128],
        0,
    ),
    (
        "<shmem name='s'><model type='ivshmem-plain'/><size unit='M'>0</size></shmem>\
         <shmem name='t'><model type='ivshmem-plain'/><size>1048576</size></shmem>",
        "-object memory-backend-file,id=s,mem-path=/dev/shm/s,size=4194304,share=on \
         -device ivshmem-plain,memdev=s \
         -object memory-backend-file,id=t,mem-path=/dev/shm/t,size=1048576,share=on \
         -device ivshmem-plain,memdev=t",
        [133, 128],
        0,
    ),
    (
        "<shmem name='s'><model type='ivshmem'/><size unit='M'>4</size>\
         <server path='/s'/></shmem>",
        "-chardev socket,id=c,path=/s -device ivshmem-doorbell,chardev=c",
        [128, 128],
        0,
    ),
];

/// A guest with the cells of [`TWO_CELLS`] as XML.
fn two_cells_as_xml(tuned: &str, backing: &str, devices: &str) -> crate::vm::request::VmRequest {
    let xml = format!(
        "<domain type='kvm'><name>vm</name><maxMemory slots='4' unit='GiB'>4</maxMemory>\
         <memory unit='MiB'>256</memory>{backing}<vcpu>2</vcpu><numatune>{tuned}</numatune>\
         <cpu><numa><cell id='0' cpus='0' memory='128' unit='MiB'/>\
         <cell id='1' cpus='1' memory='128' unit='MiB'/></numa></cpu>\
         <devices>{devices}</devices></domain>"
    );
    let domain = nearside_libvirt::Domain::read(&xml).unwrap();
    crate::vm::request::request(&domain, None, None, &machine())
}

#[test]
fn a_guest_claims_the_same_as_xml_and_as_command_line() {
    let not_claimed =
        |notes: &[String]| notes.iter().filter(|it| it.contains("and is not claimed")).count();
    for (xml, line, mib, notes) in DEVICES {
        let start = start(&format!("{TWO_CELLS} {line}")).unwrap();
        let domain = two_cells_as_xml("", "", xml);
        assert_eq!(sizes(&start), mib.map(|mib| (1, mib)), "{line}");
        assert_eq!(domain.cells.cells, start.request.cells, "{xml}");
        assert_eq!(not_claimed(&start.notes), notes, "{:?}", start.notes);
        assert_eq!(not_claimed(&domain.notes), notes, "{:?}", domain.notes);
        assert_eq!(domain.bounds, start.bounds());
    }
}

#[test]
fn a_guest_of_huge_pages_claims_the_same_as_xml_and_as_command_line() {
    let huge = "memory-backend-memfd,hugetlb=on,hugetlbsize=2M,id=";
    let backing = "<memoryBacking><hugepages><page size='2' unit='MiB'/></hugepages>\
        </memoryBacking>";
    for (xml, line, mib, notes) in DEVICES {
        let has_own_pages = xml.contains("pagesize");
        // libvirt gives RAM of devices the pages of its cell; files have their own.
        let line = match has_own_pages {
            true => line.to_owned(),
            false => line.replace("memory-backend-ram,id=", huge),
        };
        let cells = TWO_CELLS.replace("memory-backend-ram,id=", huge);
        let start = start(&format!("{cells} {line}")).unwrap();
        let domain = two_cells_as_xml("", backing, xml);
        assert_eq!(domain.cells.cells, start.request.cells, "{xml}");
        if !has_own_pages && !line.contains("memory-backend-file") {
            assert_eq!(sizes(&start), mib.map(|mib| (1, mib)), "{line}");
            assert_eq!(notes, 0);
        }
    }
}

/// `run --vm` confines the process, which has to reach the memory of the device. `place --libvirt`
/// pins vCPUs, which belong beside their cell's own memory.
#[test]
fn nodes_of_a_device_widen_the_home_of_a_process_and_not_the_pins_of_a_cell() {
    let bound = "id=ram-node1,size=128M,host-nodes=3,policy=bind";
    let cells = TWO_CELLS.replace("id=ram-node1,size=128M", bound);
    let (xml, line, ..) = DEVICES[3];
    let start = start(&format!("{cells} {line}")).unwrap();
    let tuned = "<memnode cellid='1' mode='strict' nodeset='3'/>";
    let domain = two_cells_as_xml(tuned, "", xml);
    assert_eq!(start.bounds(), [None, Some("2-3".parse().unwrap())]);
    assert_eq!(domain.bounds, [None, Some("3".parse().unwrap())]);
}

#[test]
fn memory_of_a_device_that_is_bound_elsewhere_is_refused_with_its_name() {
    let line = "kvm -smp 2 -m 128M,slots=2,maxmem=1G \
        -object memory-backend-ram,id=a,size=128M,host-nodes=2,policy=bind -numa node,memdev=a \
        -object memory-backend-ram,id=d,size=128M,host-nodes=0,policy=bind \
        -device pc-dimm,memdev=d";
    let mut start = start(line).unwrap();
    assert_eq!(start.request.nodes, Some("0,2".parse().unwrap()));
    start.request.nodes = Some("2".parse().unwrap());
    let why = placed(&start).1.unwrap_err();
    assert!(why.starts_with("cell 0: memory backend d: the command line binds"), "{why}");
}

#[test]
fn vcpus_that_are_plugged_in_at_the_start_are_claimed() {
    for (line, expected) in [
        ("qemu-system-x86_64 -smp 2,maxcpus=64 -m 128M", vec![(2, 128)]),
        ("kvm -M smp.cpus=2,smp.maxcpus=64 -M memory.size=128M", vec![(2, 128)]),
        (
            "qemu-system-x86_64 -machine q35 -m 256M,slots=10,maxmem=5000M \
             -object memory-backend-file,id=dimm1,size=256M,mem-path=/dev/shm,share=on \
             -numa node,memdev=dimm1 -smp 1,cores=1,threads=1,sockets=128,maxcpus=128",
            vec![(1, 256)],
        ),
        ("cloud-hypervisor --cpus boot=2,max=64 --memory size=128M", vec![(2, 128)]),
        (
            "kvm -smp 3,maxcpus=8 -m 128M -object memory-backend-ram,id=a,size=64M \
             -object memory-backend-ram,id=b,size=64M -numa node,cpus=0-1,cpus=4-5,memdev=a \
             -numa node,cpus=2-3,cpus=6-7,memdev=b",
            vec![(2, 64), (1, 64)],
        ),
    ] {
        let start = start(line).unwrap();
        assert_eq!(sizes(&start), expected, "{line}");
        let (decision, _) = placed(&start);
        let homes: Vec<_> = decision.cells.iter().map(|cell| cell.home.nodes.len()).collect();
        assert!(homes.iter().all(|nodes| *nodes == 1), "{line}: {homes:?}");
    }
}

#[test]
fn a_binding_to_no_node_of_the_host_is_named_with_its_cell() {
    let line = "kvm -smp 4 -m 512 \
        -object memory-backend-ram,id=a,size=256M,host-nodes=0,policy=bind \
        -numa node,nodeid=0,cpus=0-1,memdev=a \
        -object memory-backend-ram,id=b,size=256M,host-nodes=7,policy=bind \
        -numa node,nodeid=1,cpus=2-3,memdev=b";
    let why = start(line).unwrap_err();
    let expected = "cell 1: memory backend b (argument 10): there is no node 7: this machine has \
                    nodes 0-3";
    assert_eq!(why, expected);
    let line = "cloud-hypervisor --cpus boot=2 --memory size=0 --memory-zone \
        id=a,size=64M,host_numa_node=0 id=b,size=64M,host_numa_node=9 id=c,size=64M --numa \
        guest_numa_id=0,cpus=[0],memory_zones=[a] guest_numa_id=1,cpus=[1],memory_zones=[b,c]";
    let why = start(line).unwrap_err();
    assert!(why.starts_with("cell 1: memory zone b (argument 7): there is no node 9"), "{why}");
}

#[test]
fn a_file_of_readconfig_is_read_or_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("q35.cfg");
    std::fs::write(&path, "[device \"ehci\"]\n  driver = \"ich9-usb-ehci1\"\n").unwrap();
    let line = |path: &Path| {
        format!(
            "kvm -id 101 -smp 4,sockets=1,cores=4,maxcpus=4 -m 1024 \
             -object memory-backend-ram,id=ram-node0,size=1024M \
             -numa node,nodeid=0,cpus=0-3,memdev=ram-node0 -readconfig {} -machine type=q35",
            path.display()
        )
    };
    let read = start(&line(&path)).unwrap();
    assert_eq!(sizes(&read), [(4, 1024)]);
    assert!(placed(&read).1.is_ok());
    for (path, expected) in [
        (folder.path().join("none.cfg"), "none.cfg\" of -readconfig: No such file"),
        (folder.path().to_owned(), "it is a folder, expected a regular file"),
    ] {
        let why = start(&line(&path)).unwrap_err();
        assert!(why.contains(expected), "{why}");
    }
}

/// The machine, whose node 2 has no CPUs.
fn machine_with_memory_alone() -> Topology {
    let mut topology = machine();
    topology.cpus.retain(|cpu| cpu.node != Some(NodeId(2)));
    topology
}

/// A cell of all vCPUs, and the cell that `rest` states.
fn beside(rest: &str) -> VmStart {
    let first = "kvm -smp 4 -m 384M,slots=2,maxmem=4G \
        -object memory-backend-ram,id=a,size=384M -numa node,nodeid=0,cpus=0-3,memdev=a";
    start(&format!("{first} {rest}")).unwrap()
}

#[test]
fn a_cell_of_memory_alone_is_on_a_node_without_cpus() {
    let line = "kvm -smp 4 -m 512M -object memory-backend-ram,id=a,size=384M \
        -numa node,nodeid=0,cpus=0-3,memdev=a -object memory-backend-ram,id=b,size=128M BOUND \
        -numa node,nodeid=1,memdev=b";
    let free = start(&line.replace(" BOUND", "")).unwrap();
    assert_eq!(sizes(&free), [(4, 384), (0, 128)]);
    let (decision, completed) = placed_on(&free, machine_with_memory_alone());
    let homes = |decision: &CellsDecision| -> Vec<String> {
        decision.cells.iter().map(|cell| cell.home.nodes.to_string()).collect()
    };
    assert_eq!(homes(&decision), ["3", "2"]);
    let bound = "memory-backend-ram,id=b,size=128M,host-nodes=2,policy=bind";
    assert!(completed.unwrap().words.contains(&bound.into()));
    assert_eq!(free.affinity(&decision, &machine_with_memory_alone()), ["0-3:12-15"]);
    // The operator's nodes stay.
    let bound = start(&line.replace(" BOUND", ",host-nodes=0,policy=bind")).unwrap();
    let (decision, completed) = placed_on(&bound, machine_with_memory_alone());
    assert_eq!(homes(&decision)[1], "0");
    let own = "memory-backend-ram,id=b,size=128M,host-nodes=0,policy=bind";
    assert!(completed.unwrap().words.contains(&own.into()));
}

#[test]
fn a_cell_of_memory_that_comes_later_or_of_none_claims_a_page() {
    let page = sys::page_bytes();
    for (rest, bytes) in [
        ("-numa node", page),
        (
            "-numa node -object memory-backend-ram,id=v,size=1G \
             -device virtio-mem-pci,memdev=v,node=1",
            page,
        ),
        (
            "-numa node -object memory-backend-ram,id=v,size=1G \
             -device virtio-mem-pci,memdev=v,node=1,requested-size=256M",
            256 * MIB,
        ),
    ] {
        let start = beside(rest);
        assert_eq!((start.request.cells[1].vcpus, start.request.cells[1].memory_bytes), (0, bytes));
        let (decision, completed) = placed(&start);
        let words = completed.unwrap().words;
        let home = decision.cells[1].home.nodes.to_string();
        let has_device = rest.contains("id=v");
        let bound = format!("id=v,size=1G,host-nodes={home},policy=bind");
        assert_eq!(words.iter().any(|word| word.ends_with(&bound)), has_device, "{words:?}");
    }
}

#[test]
fn odd_machines_bind_cells_to_memory_and_vcpus_to_cpus() {
    for name in fixtures::ODD {
        let root = fixtures::unpacked(name).unwrap();
        let (topology, _) = nearside_topology::sysfs::read(root.path()).unwrap();
        let memory = topology.memory_nodes();
        let cpus = topology.cpus_of_nodes(&topology.node_set());
        let many = cpus.len() * 5 / 8 + 1;
        let (half, last) = (many / 2, many - 1);
        for line in [
            "kvm -smp 2 -m 1G".into(),
            format!("kvm -smp {many} -m 1G"),
            format!(
                "kvm -smp {many} -m 1G -object memory-backend-ram,id=a,size=512M \
                 -numa node,cpus=0-{half},memdev=a -object memory-backend-ram,id=b,size=512M \
                 -numa node,cpus={}-{last},memdev=b",
                half + 1
            ),
            format!(
                "kvm -smp {many} -m 1G -object memory-backend-ram,id=a,size=512M \
                 -numa node,cpus=0-{last},memdev=a -object memory-backend-ram,id=b,size=512M \
                 -numa node,memdev=b"
            ),
            format!("cloud-hypervisor --cpus boot={many} --memory size=1G"),
            format!(
                "cloud-hypervisor --cpus boot={many} --memory size=0 --memory-zone \
                 id=a,size=512M id=b,size=512M --numa \
                 guest_numa_id=0,cpus=[0-{half}],memory_zones=[a] \
                 guest_numa_id=1,cpus=[{}-{last}],memory_zones=[b]",
                half + 1
            ),
        ] {
            let start = start_on(&line, &topology).unwrap();
            let (decision, completed) = placed_on(&start, topology.clone());
            let words = completed.unwrap_or_else(|error| panic!("{name}: {line}: {error}")).words;
            let at = format!("{name}: {words:?}");
            let lists = words.iter().flat_map(|word| word.split(','));
            let lists = lists.filter_map(|it| {
                it.strip_prefix("host-nodes=").or(it.strip_prefix("host_numa_node="))
            });
            let bound: Vec<NodeSet> = lists.map(|list| list.parse().unwrap()).collect();
            assert!(!bound.is_empty() && bound.iter().all(|it| it.is_subset(&memory)), "{at}");
            for argument in start.affinity(&decision, &topology) {
                let own: CpuSet = argument.split_once(':').unwrap().1.parse().unwrap();
                assert!(!own.is_empty() && own.is_subset(&cpus), "{argument}: {at}");
            }
            let home = decision.cells.iter().map(|cell| &cell.home.claim);
            let vcpus: u64 = home.flat_map(|claim| claim.vcpus.values()).sum();
            assert_eq!(vcpus, u64::from(start.vcpus()), "{at}");
        }
    }
}
