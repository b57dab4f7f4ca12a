//! libvirt in a guest of the lab: its daemon, its domains, their threads and memory.
//!
//! The daemon is Debian's, run by hand: neither systemd nor its packages' scripts set it up. All
//! facts about domains come from `/proc`, none from libvirt or Nearside.

use crate::{
    command::await_that,
    files::{read, status, write},
    memory::{Mapping, mappings},
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

/// A running libvirtd. Its domains end with it.
#[derive(Debug)]
pub struct Libvirt(Child);

impl Libvirt {
    /// Starts it, and waits until it answers.
    pub fn start() -> Self {
        Command::new("modprobe").args(["-a", "kvm-amd", "tun"]).status().unwrap();
        write("/sys/fs/cgroup/cgroup.subtree_control", "+cpu +cpuset +memory +hugetlb");
        append_once("/etc/passwd", USER);
        append_once("/etc/group", GROUP);
        for folder in ["/run/libvirt", "/etc/libvirt", "/var/lib/libvirt/qemu"] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write("/etc/libvirt/qemu.conf", QEMU_CONF).unwrap();
        fs::write("/etc/libvirt/libvirtd.conf", "auth_unix_rw = \"none\"\n").unwrap();
        let log = fs::File::create("/tmp/libvirtd.log").unwrap();
        let daemon = Command::new("libvirtd").stderr(log).stdin(Stdio::null()).spawn().unwrap();
        let started = Self(daemon);
        await_that("libvirtd answers", || virsh(["version"]).status.success());
        started
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
    Command::new("virsh").args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn append_once(file: &str, line: &str) {
    let text = read(file);
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
        let process = read(&format!("/run/libvirt/qemu/{name}.pid")).parse().unwrap();
        Self { name: name.into(), cells: cells.clone(), process }
    }

    /// The process of its VMM.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// The path of its cgroup.
    pub fn group(&self) -> String {
        // The process is in a group of the emulator's below: `/machine/NAME.libvirt-qemu/emulator`.
        let own = read(&format!("/proc/{}/cgroup", self.process));
        let path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap();
        path.strip_suffix("/emulator").unwrap().to_owned()
    }

    /// Waits until it has touched all of its memory once.
    pub fn await_pass(&self) {
        let serial = format!("/tmp/{}.serial", self.name);
        await_that("the virtual machine touched all of its memory", || {
            Path::new(&serial).exists() && fs::read(&serial).unwrap().ends_with(b".")
        });
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

    /// The CPUs that the emulator may use.
    pub fn emulator(&self) -> String {
        status(self.process, "Cpus_allowed_list")
    }

    /// The mapping of a cell's memory.
    pub fn memory(&self, cell: usize) -> Mapping {
        let bytes = self.cells.memory_mib[cell] << 20;
        let found: Vec<_> = mappings(self.process)
            .into_iter()
            .filter(|mapping| mapping_bytes(self.process, mapping.address) == Some(bytes))
            .collect();
        let [_] = &found[..] else { panic!("{} mappings of {bytes} bytes", found.len()) };
        found.into_iter().next().unwrap()
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = virsh(["destroy", &self.name]);
    }
}

/// The size of the mapping that begins at an address.
fn mapping_bytes(process: u32, address: u64) -> Option<u64> {
    let maps = read(&format!("/proc/{process}/maps"));
    maps.lines().find_map(|line| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (from, to) = (number(from)?, number(to)?);
        (from == address).then(|| to - from)
    })
}
