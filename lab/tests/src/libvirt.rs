//! libvirt in a guest of the lab: its daemon, its domains, their threads and memory.
//!
//! The daemon is Debian's, run by hand: neither systemd nor its packages' scripts set it up. All
//! facts about domains come from `/proc`, none from libvirt or Nearside.

use crate::{
    command::{Signal, await_or_tell, await_that, run, send, stderr, stdout},
    files::{read, status, write},
    memory::{Mapping, mapping_of_size},
};
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
};

/// The configuration of QEMU's driver: no security driver, no mount namespaces, files of root.
const QEMU_CONF: &str = "user = \"root\"\ngroup = \"root\"\nsecurity_driver = \"none\"\n\
                         stdio_handler = \"file\"\nremember_owner = 0\nnamespaces = []\n";

/// The user that libvirt looks for, although it does not use it here. Debian's package creates it.
const USER: &str = "libvirt-qemu:x:64055:64055::/var/lib/libvirt:/bin/false\n";
const GROUP: &str = "libvirt-qemu:x:64055:\n";

/// The firmware of virtual machines, of QEMU's packages. SeaBIOS would do, but under an emulated
/// KVM one start in some dozens never leaves its 16-bit code.
pub const FIRMWARE: &str = "/usr/share/qemu/qboot.rom";

/// The log of libvirt's daemon.
const LOG: &str = "/tmp/libvirtd.log";

/// The root with libvirt's modular daemon (`lab/virtqemud`), if the tests are to use that.
pub(crate) fn modular_root() -> Option<String> {
    std::env::var("NEARSIDE_MODULAR").ok()
}

/// A running libvirtd or virtqemud. Its domains end with it.
#[derive(Debug)]
pub struct Libvirt(Child);

impl Libvirt {
    /// Starts libvirtd, or the modular daemon of a newer Debian, and waits until it answers.
    pub fn start() -> Self {
        match modular_root() {
            Some(root) => Self::start_modular(&root),
            None => {
                prepare("");
                Self::started(&mut Command::new("libvirtd"))
            }
        }
    }

    fn start_modular(root: &str) -> Self {
        // An earlier test of this guest may have mounted them.
        let is_mounted = Path::new(&format!("{root}/proc/self")).exists();
        for folder in ["/dev", "/proc", "/sys", "/run", "/tmp"].iter().filter(|_| !is_mounted) {
            let target = format!("{root}{folder}");
            let mounted = Command::new("mount").args(["--rbind", folder, &target]).status();
            assert!(mounted.unwrap().success(), "{target}");
        }
        // The kernel of the virtual machines, at its path there.
        let kernel = std::env::var("NEARSIDE_VM").expect("run the tests with lab/test");
        let copy = format!("{root}{kernel}");
        fs::create_dir_all(Path::new(&copy).parent().unwrap()).unwrap();
        fs::copy(kernel, copy).unwrap();
        // Packages' scripts create these.
        append_once(&format!("{root}/etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n");
        append_once(&format!("{root}/etc/group"), "root:x:0:\n");
        prepare(root);
        Self::started(Command::new("chroot").args([root, "/usr/sbin/virtqemud"]))
    }

    fn started(command: &mut Command) -> Self {
        let log = fs::File::create(LOG).unwrap();
        let started = Self(command.stderr(log).stdin(Stdio::null()).spawn().unwrap());
        await_that("libvirt answers", || virsh(["version"]).status.success());
        started
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        send(self.0.id(), signal);
    }
}

/// Loads KVM, hands out the controllers, and configures the daemon below `root`.
fn prepare(root: &str) {
    Command::new("modprobe").args(["-a", "kvm-amd", "tun"]).status().unwrap();
    write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu +cpuset +memory +hugetlb");
    let at = |path: &str| format!("{root}{path}");
    append_once(&at("/etc/passwd"), USER);
    append_once(&at("/etc/group"), GROUP);
    for folder in ["/run/libvirt", "/etc/libvirt", "/var/lib/libvirt/qemu"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    fs::write(at("/etc/libvirt/qemu.conf"), QEMU_CONF).unwrap();
    for daemon in ["libvirtd", "virtqemud"] {
        let path = at(&format!("/etc/libvirt/{daemon}.conf"));
        fs::write(path, "auth_unix_rw = \"none\"\nkeepalive_interval = -1\n").unwrap();
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs virsh to its end.
pub fn virsh<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Output {
    to_libvirt().args(arguments).output().unwrap()
}

/// virsh, connected to the daemon that runs. Debian 12's asks for libvirtd unless told otherwise.
fn to_libvirt() -> Command {
    let is_modular = Path::new("/run/libvirt/virtqemud-sock").exists();
    let mode = if is_modular { "?mode=direct" } else { "" };
    let mut command = Command::new("virsh");
    // An emulated libvirt of twenty starts is silent for longer than virsh bears, and the reverse.
    command.args(["-k", "0", "-c", &format!("qemu:///system{mode}")]).stdin(Stdio::null());
    command
}

/// The CPUs of a node, as the kernel lists them.
pub fn cpus_of(node: u32) -> String {
    format!("{}-{}", 2 * node, 2 * node + 1)
}

/// The domain's XML, completed by `nearside place --libvirt`.
fn placed(xml: &str, flags: &[&str]) -> String {
    fs::write("/tmp/asked.xml", xml).unwrap();
    let output = run(["place", "--libvirt", "/tmp/asked.xml"].iter().chain(flags));
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

/// Begins to create a domain that does not run yet.
pub fn create_paused(name: &str, xml: &str) -> Child {
    let file = format!("/tmp/{name}.xml");
    fs::write(&file, xml).unwrap();
    let mut command = to_libvirt();
    command
        .args(["create", "--paused", &file])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The process of a running domain's VMM.
pub fn process_of(name: &str) -> u32 {
    read(&format!("/run/libvirt/qemu/{name}.pid")).parse().unwrap()
}

fn append_once(file: &str, line: &str) {
    let text = fs::read_to_string(file).unwrap_or_default();
    if !text.lines().any(|known| known == line.trim()) {
        fs::write(file, format!("{text}\n{line}")).unwrap();
    }
}

/// The sizes of a domain's cells, all different: the memory of each is told by its size.
#[derive(Debug, Clone)]
pub struct Cells {
    /// vCPUs of each cell.
    pub vcpus: u32,
    /// Memory of each cell, in MiB.
    pub memory_mib: Vec<u64>,
}

impl Cells {
    /// The XML of a domain that keeps its memory busy, without any binding. `extra` goes before its
    /// devices.
    pub fn xml(&self, name: &str, extra: &str) -> String {
        let kernel =
            std::env::var("NEARSIDE_VM").expect("NEARSIDE_VM: run the tests with lab/test");
        let cell = |(id, mib): (u32, &u64)| {
            let (first, last) = (id * self.vcpus, (id + 1) * self.vcpus - 1);
            format!("      <cell id='{id}' cpus='{first}-{last}' memory='{mib}' unit='MiB'/>\n")
        };
        let cells: String = (0..).zip(&self.memory_mib).map(cell).collect();
        let all_mib: u64 = self.memory_mib.iter().sum();
        let vcpus = self.vcpus * self.memory_mib.len() as u32;
        format!(
            "<domain type='kvm'>
  <name>{name}</name>
  <memory unit='MiB'>{all_mib}</memory>
  <vcpu>{vcpus}</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <loader type='rom'>{FIRMWARE}</loader>
    <kernel>{kernel}</kernel>
  </os>
  <cpu mode='host-passthrough'>
    <numa>
{cells}    </numa>
  </cpu>
{extra}  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <serial type='file'>
      <source path='/tmp/{name}.serial'/>
    </serial>
    <memballoon model='none'/>
  </devices>
</domain>
"
        )
    }
}

/// A running virtual machine of libvirt. It is destroyed when dropped.
#[derive(Debug)]
pub struct Vm {
    name: String,
    cells: Cells,
    process: u32,
}

impl Vm {
    /// Starts a domain from its XML.
    pub fn start(name: &str, cells: &Cells, xml: &str) -> Self {
        let file = format!("/tmp/{name}.xml");
        fs::write(&file, xml).unwrap();
        let created = virsh(["create", &file]);
        assert!(created.status.success(), "{}\n{xml}", String::from_utf8_lossy(&created.stderr));
        Self { name: name.into(), cells: cells.clone(), process: process_of(name) }
    }

    /// Places and starts a virtual machine, and waits until it has touched its memory.
    pub fn start_placed(name: &str, cells: &Cells, extra: &str, flags: &[&str]) -> Self {
        let vm = Self::start(name, cells, &placed(&cells.xml(name, extra), flags));
        vm.await_pass();
        vm
    }

    /// The process of its VMM.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// The path of its cgroup, which is its name to Nearside.
    pub fn cgroup(&self) -> String {
        let group = read(&format!("/proc/{}/cgroup", self.process));
        let names = group.strip_prefix("0::/").unwrap().split('/');
        // Groups of the emulator and of each vCPU are below the machine's, in libvirt/ or not.
        let machine: Vec<_> =
            names.take_while(|name| !["libvirt", "emulator"].contains(name)).collect();
        format!("/{}", machine.join("/"))
    }

    /// How often it has touched all of its memory.
    pub fn passes(&self) -> usize {
        let serial = fs::read(format!("/tmp/{}.serial", self.name)).unwrap();
        serial.iter().filter(|&&byte| byte == b'.').count()
    }

    /// Waits until it has touched all of its memory once.
    pub fn await_pass(&self) {
        let serial = format!("/tmp/{}.serial", self.name);
        let said = || fs::read(&serial).unwrap_or_default();
        await_or_tell(
            "the virtual machine touched all of its memory",
            || said().ends_with(b"."),
            || format!("it said {:?}\n{}", String::from_utf8_lossy(&said()), self.registers()),
        );
    }

    /// The state of its vCPUs, in QEMU's words: where each of them is.
    fn registers(&self) -> String {
        let virsh = to_libvirt();
        let mut limited = Command::new("timeout");
        limited.arg("60").arg(virsh.get_program()).args(virsh.get_args()).stdin(Stdio::null());
        limited.args(["qemu-monitor-command", &self.name, "--hmp", "info registers -a"]);
        stdout(&limited.output().unwrap())
    }

    /// The CPUs that the threads with this start of a name may use, by thread.
    fn allowed(&self, starts_with: &str) -> BTreeMap<String, String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process)).unwrap();
        let mut allowed = BTreeMap::new();
        for task in tasks {
            let thread: u32 = task.unwrap().file_name().to_str().unwrap().parse().unwrap();
            let name = read(&format!("/proc/{}/task/{thread}/comm", self.process));
            if name.starts_with(starts_with) {
                allowed.insert(name, status(thread, "Cpus_allowed_list"));
            }
        }
        allowed
    }

    /// The CPUs that each vCPU may use.
    pub fn vcpus(&self) -> Vec<String> {
        let threads = self.allowed("CPU ");
        let count = self.cells.vcpus * self.cells.memory_mib.len() as u32;
        (0..count).map(|vcpu| threads[&format!("CPU {vcpu}/KVM")].clone()).collect()
    }

    /// The node on which each vCPU runs, or ran last. Nodes have two CPUs each.
    pub fn vcpu_nodes(&self) -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process)).unwrap();
        let mut by_vcpu = BTreeMap::new();
        for task in tasks {
            let folder = task.unwrap().path();
            let name = read(folder.join("comm").to_str().unwrap());
            let vcpu = name.strip_prefix("CPU ").and_then(|name| name.strip_suffix("/KVM"));
            if let Some(vcpu) = vcpu {
                // Field 39, counted from the end of the name (proc_pid_stat(5)).
                let stat = read(folder.join("stat").to_str().unwrap());
                let after_name = stat.rsplit_once(") ").unwrap().1;
                let cpu: u32 = after_name.split(' ').nth(36).unwrap().parse().unwrap();
                by_vcpu.insert(vcpu.parse::<u32>().unwrap(), cpu / 2);
            }
        }
        by_vcpu.into_values().collect()
    }

    /// The node of each cell's memory. Asserts that all of a cell's memory is on one node, and that
    /// its vCPUs may run on that node's CPUs only.
    pub fn nodes_of_cells(&self) -> Vec<u32> {
        let (vcpus, of_cell) = (self.vcpus(), self.cells.vcpus as usize);
        let node_of = |cell: usize| {
            let memory = self.memory(cell);
            let nodes: Vec<u32> = memory.bytes.keys().copied().collect();
            let [node] = nodes[..] else { panic!("cell {cell} on several nodes: {memory:?}") };
            let own = &vcpus[cell * of_cell..][..of_cell];
            assert!(own.iter().all(|cpus| *cpus == cpus_of(node)), "cell {cell}: {vcpus:?}");
            node
        };
        (0..self.cells.memory_mib.len()).map(node_of).collect()
    }

    /// The CPUs that the emulator may use.
    pub fn emulator(&self) -> String {
        status(self.process, "Cpus_allowed_list")
    }

    /// The mapping of a cell's memory.
    pub fn memory(&self, cell: usize) -> Mapping {
        let bytes = self.cells.memory_mib[cell] << 20;
        mapping_of_size(self.process, bytes).unwrap_or_else(|| panic!("no mapping of {bytes}"))
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = virsh(["destroy", &self.name]);
    }
}
