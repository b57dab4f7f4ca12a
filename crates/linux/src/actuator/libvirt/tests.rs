//! The actuator against a daemon in software, which keeps pins and answers as libvirt does.

use super::*;
use crate::actuator::contract::SharedThreads;
use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::Mutex,
    thread,
};

const PATH: &str = "/machine.slice/machine-qemu\\x2d7\\x2dvm.scope";

const XML: &str = "<domain><name>vm</name><vcpu>2</vcpu></domain>";
const CELLS: &str = "<domain><name>vm</name><vcpu>2</vcpu><cpu><numa>\
    <cell id='0' cpus='0' memory='1'/><cell id='1' cpus='1' memory='1'/></numa></cpu></domain>";
const RESTRICTIVE: &str = "<domain><name>vm</name><vcpu>2</vcpu>\
    <numatune><memory mode='restrictive' nodeset='0-1'/></numatune></domain>";

/// The state of the daemon: masks of the first byte, for CPUs 0 to 7.
#[derive(Debug, Clone)]
pub(crate) struct Daemon {
    xml: &'static str,
    name: &'static str,
    vcpus: [u8; 2],
    emulator: u8,
    iothread: u8,
    nodeset: Option<String>,
    /// The pins, by their order, that are refused.
    refused: &'static [u32],
    pins: u32,
    /// Number of calls that are answered; later ones are not.
    calls_left: u32,
    connections: u32,
}

impl Default for Daemon {
    fn default() -> Self {
        Self {
            xml: XML,
            name: "vm",
            vcpus: [0xff; 2],
            emulator: 0xff,
            iothread: 0xff,
            nodeset: None,
            refused: &[],
            pins: 0,
            calls_left: u32::MAX,
            connections: 0,
        }
    }
}

fn word(value: u32) -> Vec<u8> {
    value.to_be_bytes().into()
}

fn text(text: &str) -> Vec<u8> {
    let padding = text.len().wrapping_neg() % 4;
    [word(text.len() as u32), text.as_bytes().to_vec(), vec![0; padding]].concat()
}

fn mask(first: u8) -> Vec<u8> {
    let mut mask = vec![0; 2048];
    mask[0] = first;
    mask
}

impl Daemon {
    /// One that describes its domain so, and hangs after so many calls.
    pub(crate) fn describing(xml: &'static str, calls_left: u32) -> Self {
        Self { xml, calls_left, ..Self::default() }
    }

    /// Serves the host below `root`.
    pub(crate) fn listen(daemon: &Arc<Mutex<Self>>, root: &Path) {
        let run = root.join("run/libvirt");
        std::fs::create_dir_all(&run).unwrap();
        let listener = UnixListener::bind(run.join("libvirt-sock")).unwrap();
        let daemon = Arc::clone(daemon);
        thread::spawn(move || {
            for stream in listener.incoming() {
                daemon.lock().unwrap().connections += 1;
                let daemon = Arc::clone(&daemon);
                thread::spawn(move || serve(stream.unwrap(), &daemon));
            }
        });
    }

    /// The answer to a call: its status and payload; none if it hangs. The arguments of calls about
    /// a domain begin with 28 bytes: `vm`, its UUID, its number.
    fn answer(&mut self, procedure: u32, arguments: &[u8]) -> Option<(u32, Vec<u8>)> {
        self.calls_left = self.calls_left.checked_sub(1)?;
        let at = |word: usize| arguments[28 + 4 * word..][..4].to_vec();
        let number = |word| u32::from_be_bytes(at(word).try_into().unwrap());
        if matches!(procedure, 225 | 279 | 352) {
            self.pins += 1;
            if self.refused.contains(&self.pins) {
                let payload = [word(38), word(10), word(1), text("no such CPU")].concat();
                return Some((1, payload));
            }
        }
        let answer = match procedure {
            66 => [word(1), word(0)].concat(),
            22 => [text(self.name), b"0123456789abcdef".to_vec(), word(7)].concat(),
            14 => text(self.xml),
            151 => word(1),
            230 => [word(4096), mask(self.vcpus[0]), mask(self.vcpus[1]), word(2)].concat(),
            280 => [word(2048), mask(self.emulator), word(1)].concat(),
            351 => [word(1), word(1), word(1), vec![self.iothread, 0, 0, 0], word(1)].concat(),
            225 => {
                self.vcpus[number(0) as usize] = at(2)[0];
                Vec::new()
            }
            279 => {
                self.emulator = at(1)[0];
                Vec::new()
            }
            352 => {
                self.iothread = at(2)[0];
                Vec::new()
            }
            254 => {
                let nodes = &arguments[28 + 4 * 7..][..number(6) as usize];
                self.nodeset = Some(String::from_utf8(nodes.to_vec()).unwrap());
                Vec::new()
            }
            _ => Vec::new(),
        };
        Some((0, answer))
    }

    fn pins(&self) -> ([u8; 2], u8, u8) {
        (self.vcpus, self.emulator, self.iothread)
    }
}

/// A made-up host with a daemon.
struct Scene {
    folder: tempfile::TempDir,
    daemon: Arc<Mutex<Daemon>>,
    libvirt: Libvirt,
}

impl Scene {
    fn of(daemon: Daemon) -> Self {
        let scene = Self::without_daemon();
        *scene.daemon.lock().unwrap() = daemon;
        Daemon::listen(&scene.daemon, scene.folder.path());
        scene
    }

    fn without_daemon() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cpu = folder.path().join("sys/devices/system/cpu");
        std::fs::create_dir_all(&cpu).unwrap();
        for file in ["online", "possible"] {
            std::fs::write(cpu.join(file), "0-7\n").unwrap();
        }
        std::fs::write(folder.path().join("cgroup.controllers"), "").unwrap();
        let state = Arc::new(LibvirtState::of(folder.path()));
        let libvirt = Libvirt::new(state, folder.path().into());
        Self { folder, daemon: Arc::default(), libvirt }
    }

    fn group(&self) -> Cgroup {
        Tree::at(self.folder.path()).unwrap().group(PATH).unwrap()
    }

    fn bind(&self, own: &[&CpuSet], cpus: &str) -> Result<bool, Error> {
        let threads = PartThreads { cell: None, own, shared: SharedThreads::default() };
        self.libvirt.set_cpus(&self.group(), threads, &set(cpus))
    }

    fn daemon(&self) -> Daemon {
        self.daemon.lock().unwrap().clone()
    }
}

fn serve(mut stream: UnixStream, daemon: &Mutex<Daemon>) {
    let mut header = [0; 28];
    while stream.read_exact(&mut header).is_ok() {
        let field = |at: usize| u32::from_be_bytes(header[4 * at..][..4].try_into().unwrap());
        let mut arguments = vec![0; field(0) as usize - 28];
        stream.read_exact(&mut arguments).unwrap();
        let Some((status, payload)) = daemon.lock().unwrap().answer(field(3), &arguments) else {
            // Until the client gives up.
            let _ = stream.read_to_end(&mut Vec::new());
            return;
        };
        let mut reply = header;
        reply[..4].copy_from_slice(&word(28 + payload.len() as u32));
        reply[16..20].copy_from_slice(&word(1));
        reply[24..].copy_from_slice(&word(status));
        stream.write_all(&[&reply[..], &payload].concat()).unwrap();
    }
}

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// The message of a refusal that has changed nothing.
fn unchanged(result: Result<bool, Error>) -> String {
    match result {
        Err(Error::Unchanged(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_threads_are_bound_and_freed_again() {
    let scene = Scene::of(Daemon::default());
    assert!(scene.bind(&[], "0-3").unwrap());
    assert_eq!(scene.daemon().pins(), ([0x0f; 2], 0x0f, 0x0f));
    let own = set("0-3");
    assert!(scene.bind(&[&own], "4-7").unwrap());
    assert_eq!(scene.daemon().pins(), ([0xf0; 2], 0xf0, 0xf0));
    let threads = PartThreads { cell: None, own: &[&set("4-7")], shared: SharedThreads::default() };
    assert!(scene.libvirt.clear_cpus(&scene.group(), threads).unwrap());
    assert_eq!(scene.daemon().pins(), ([0xff; 2], 0xff, 0xff));
}

#[test]
fn an_operators_pin_is_refused_and_the_refusal_remembered() {
    let scene = Scene::of(Daemon { vcpus: [0xff, 1], ..Daemon::default() });
    let why = unchanged(scene.bind(&[], "0-3"));
    assert!(why.contains("vCPU 1 is pinned to CPU 0 already"), "{why}");
    assert!(why.contains("virsh vcpupin"), "{why}");
    assert_eq!(scene.daemon().pins(), ([0xff, 1], 0xff, 0xff));
    assert_eq!(unchanged(scene.bind(&[], "0-3")), why);
    assert_eq!(scene.daemon().connections, 1, "libvirt is not asked again");
    unchanged(scene.bind(&[], "4-7"));
    assert_eq!(scene.daemon().connections, 2, "another wish is another question");
}

#[test]
fn a_refused_pin_takes_the_others_back() {
    let scene = Scene::of(Daemon { refused: &[3], ..Daemon::default() });
    let why = unchanged(scene.bind(&[], "0-3"));
    assert!(why.contains("vm: the emulator: libvirt: no such CPU"), "{why}");
    assert_eq!(scene.daemon().pins(), ([0xff; 2], 0xff, 0xff));
    // The second pin is refused, and so is taking the first one back: that is left to the caller.
    let scene = Scene::of(Daemon { refused: &[2, 3], ..Daemon::default() });
    assert!(matches!(scene.bind(&[], "0-3"), Err(Error::Refused(_))));
    assert_eq!(scene.daemon().vcpus, [0x0f, 0xff]);
}

#[test]
fn cells_are_bound_one_by_one() {
    let scene = Scene::of(Daemon { xml: CELLS, ..Daemon::default() });
    let why = unchanged(scene.bind(&[], "0-3"));
    assert!(why.contains("2 cells and one home"), "{why}");
    let cell = PartThreads {
        cell: Some(nearside_policy::CellId(1)),
        own: &[],
        shared: SharedThreads::default(),
    };
    assert!(scene.libvirt.set_cpus(&scene.group(), cell, &set("4-7")).unwrap());
    assert_eq!(scene.daemon().pins(), ([0xff, 0xf0], 0xff, 0xff));
}

#[test]
fn memory_nodes_are_set_where_the_mode_permits() {
    let nodes = "1".parse().unwrap();
    let scene = Scene::of(Daemon { xml: RESTRICTIVE, ..Daemon::default() });
    assert!(scene.libvirt.set_memory_nodes(&scene.group(), &nodes).unwrap());
    assert_eq!(scene.daemon().nodeset.as_deref(), Some("1"));
    assert!(scene.libvirt.set_memory_nodes(&scene.group(), &NodeSet::new()).unwrap());
    assert_eq!(scene.daemon().nodeset.as_deref(), Some("0-1"), "what is configured");
    let scene = Scene::of(Daemon::default());
    let why = unchanged(scene.libvirt.set_memory_nodes(&scene.group(), &nodes));
    assert!(why.contains("no numatune"), "{why}");
    assert_eq!(scene.daemon().nodeset, None);
}

#[test]
fn another_domain_with_the_number_is_left_alone() {
    let scene = Scene::of(Daemon { name: "db", ..Daemon::default() });
    let why = unchanged(scene.bind(&[], "0-3"));
    assert!(why.contains("libvirt's domain 7 is db now"), "{why}");
}

#[test]
fn an_absent_daemon_is_named() {
    let scene = Scene::without_daemon();
    let why = unchanged(scene.bind(&[], "0-3"));
    assert!(why.contains("no libvirt daemon listens on"), "{why}");
    assert!(why.contains("run/libvirt/virtqemud-sock"), "{why}");
}

/// The only test that waits: the bound of a call is two seconds.
#[test]
fn a_daemon_that_hangs_costs_its_bound_once() {
    let hangs = Scene::of(Daemon { calls_left: 0, ..Daemon::default() });
    let why = unchanged(hangs.bind(&[], "0-3"));
    assert!(why.contains("libvirt has not answered within 2000 ms"), "{why}");
    let threads = PartThreads { cell: None, own: &[&set("0-3")], shared: SharedThreads::default() };
    let why = unchanged(hangs.libvirt.clear_cpus(&hangs.group(), threads));
    assert!(why.contains("asked again after 30 s"), "{why}");
    assert_eq!(hangs.daemon().connections, 1, "it is not asked again");

    // A pin that was not answered may have taken effect.
    let midway = Scene::of(Daemon { calls_left: 8, ..Daemon::default() });
    assert!(matches!(midway.bind(&[], "0-3"), Err(Error::Refused(_))));
    assert_eq!(midway.daemon().vcpus, [0x0f, 0xff]);
}
