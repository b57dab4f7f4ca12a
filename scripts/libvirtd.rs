// For tests: the libvirt daemon that scripts/libvirtd starts.

use std::{
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// A libvirt daemon. It ends with this value, and its guests with it.
#[derive(Debug)]
pub(crate) struct Libvirtd {
    process: Child,
    folder: tempfile::TempDir,
}

impl Libvirtd {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| {})
    }

    /// Starts it after `prepare` has filled its folder: `etc` is its /etc/libvirt.
    pub(crate) fn start_with(prepare: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        prepare(folder.path());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/libvirtd");
        let log = std::fs::File::create(folder.path().join("daemon.log")).unwrap();
        let process = Command::new(script)
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut daemon = Self { process, folder };
        let since = Instant::now();
        while UnixStream::connect(daemon.socket()).is_err() {
            let ended = daemon.process.try_wait().unwrap();
            let log = || std::fs::read_to_string(daemon.folder.path().join("daemon.log"));
            assert!(ended.is_none() && since.elapsed() < Duration::from_secs(60), "{:?}", log());
            thread::sleep(Duration::from_millis(50));
        }
        daemon
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("run/libvirt-sock")
    }

    /// Runs `virsh`, and returns its output.
    pub(crate) fn virsh(&self, arguments: &[&str]) -> String {
        let uri = format!("qemu+unix:///system?socket={}", self.socket().display());
        let done = Command::new("virsh").args(["-q", "-c", &uri]).args(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "virsh {arguments:?}: {errors}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// What the daemon has written.
    #[allow(dead_code, reason = "each test takes its part")]
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("daemon.log")).unwrap()
    }

    /// Runs one `virsh` for many commands, a line each. Returns its output and its errors.
    #[allow(dead_code, reason = "each test takes its part")]
    pub(crate) fn virsh_commands(&self, commands: &str) -> (String, String) {
        let uri = format!("qemu+unix:///system?socket={}", self.socket().display());
        let file = |name| self.folder.path().join(name);
        std::fs::write(file("commands"), commands).unwrap();
        // Thousands of answers do not fit into a pipe that nobody reads.
        let made = |name| std::fs::File::create(file(name)).unwrap();
        Command::new("virsh")
            .args(["-c", &uri])
            .stdin(std::fs::File::open(file("commands")).unwrap())
            .stdout(made("output"))
            .stderr(made("errors"))
            .status()
            .unwrap();
        let read = |name| std::fs::read_to_string(file(name)).unwrap();
        (read("output"), read("errors"))
    }

    /// Starts a domain.
    pub(crate) fn create(&self, xml: &str) {
        let file = self.folder.path().join("domain.xml");
        std::fs::write(&file, xml).unwrap();
        self.virsh(&["create", file.to_str().unwrap()]);
    }

    /// Stops the daemon until the value is dropped. It keeps its socket, and answers nothing.
    #[allow(dead_code, reason = "each test takes its part")]
    pub(crate) fn stop(&self) -> Stopped {
        // The process here is `unshare`; the daemon is the child of its child, the script.
        let child = |pid: u32| {
            let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let first = children.unwrap().split_whitespace().next().map(str::to_owned);
            first.unwrap().parse::<u32>().unwrap()
        };
        let daemon = child(child(self.process.id()));
        signal("-STOP", daemon);
        Stopped { daemon }
    }
}

impl Drop for Libvirtd {
    fn drop(&mut self) {
        // libvirt removes the cgroups of domains that it ends itself.
        let uri = format!("qemu+unix:///system?socket={}", self.socket().display());
        let virsh = |arguments: &[&str]| {
            Command::new("virsh").args(["-q", "-c", &uri]).args(arguments).output()
        };
        let names = virsh(&["list", "--name"]).map(|done| done.stdout).unwrap_or_default();
        for name in String::from_utf8_lossy(&names).split_whitespace() {
            let _ = virsh(&["destroy", name]);
        }
        // `unshare --kill-child` takes all processes of the daemon along.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A daemon that is stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    daemon: u32,
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal("-CONT", self.daemon);
    }
}

fn signal(name: &str, process: u32) {
    let done = Command::new("kill").args([name, &process.to_string()]).status().unwrap();
    assert!(done.success());
}

/// An emulated domain of two cells with a vCPU each, and an iothread.
pub(crate) fn domain_xml(name: &str, more: &str) -> String {
    format!(
        "<domain type='qemu'>
  <name>{name}</name>
  <memory unit='MiB'>64</memory>
  <vcpu>2</vcpu>
  <iothreads>1</iothreads>
  {more}
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <cpu>
    <numa>
      <cell id='0' cpus='0' memory='32' unit='MiB'/>
      <cell id='1' cpus='1' memory='32' unit='MiB'/>
    </numa>
  </cpu>
</domain>
"
    )
}
