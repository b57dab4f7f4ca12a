//! Debian's podman with crun and AppArmor, unpacked (`lab/packages containers`), on an ext4 of its
//! own; and an image of Python and dpkg.

use super::helper::{PYTHON, Python};
use nearside_lab::nearside;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The folder of images and containers.
const DISK: &str = "/run/containers-disk";
/// The folder of the host that podman sees.
pub(crate) const SHARED: &str = "/tmp/shared";
const IMAGE: &str = "nearside-lab";
const HOOKS: &str = "/run/nearside-hooks";
const HOOK: &str = include_str!("../../../../packaging/oci/nearside-replicas.json");

/// Podman with its image.
pub(crate) struct Podman {
    root: PathBuf,
}

impl Podman {
    /// `files`: contents of the image beside its programs.
    pub(crate) fn with_image(files: &[(&str, &str)]) -> Self {
        let root = std::env::var_os("NEARSIDE_CONTAINERS").expect("run the tests with lab/test");
        let podman = Self { root: root.into() };
        done("modprobe loop");
        fs::create_dir_all(DISK).unwrap();
        fs::create_dir_all(SHARED).unwrap();
        done("truncate --size 400M /tmp/disk");
        done("mkfs.ext4 -q /tmp/disk");
        done(&format!("mount -o loop /tmp/disk {DISK}"));
        podman.configure();
        let folder = Path::new("/tmp/image-root");
        fill(folder);
        for (path, content) in files {
            let path = folder.join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        done(&format!("tar --create --file /tmp/image.tar --directory {} .", folder.display()));
        podman.run(&["import", "--quiet", "/tmp/image.tar", IMAGE]);
        podman
    }

    fn configure(&self) {
        let root = self.root.display();
        let storage = format!(
            "[storage]\ndriver = \"overlay\"\ngraphroot = \"{DISK}/graph\"\n\
             runroot = \"/run/containers-lab\"\n"
        );
        let engine = format!(
            "[containers]\nseccomp_profile = \"{root}/usr/share/containers/seccomp.json\"\n\
             [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\n\
             conmon_path = [\"{root}/usr/bin/conmon\"]\nruntime = \"crun\"\n\
             [engine.runtimes]\ncrun = [\"{root}/usr/bin/crun\"]\n"
        );
        fs::create_dir_all("/etc/containers").unwrap();
        let accept = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
        fs::write("/etc/containers/policy.json", accept).unwrap();
        fs::write("/run/storage.conf", storage).unwrap();
        fs::write("/run/containers.conf", engine).unwrap();
        // Podman looks for it in few places.
        let parser = Path::new("/usr/sbin/apparmor_parser");
        if !parser.exists() {
            std::os::unix::fs::symlink(self.root.join("sbin/apparmor_parser"), parser).unwrap();
        }
        fs::create_dir_all(HOOKS).unwrap();
        let hook = HOOK.replace("/usr/bin/nearside", nearside().get_program().to_str().unwrap());
        fs::write(Path::new(HOOKS).join("nearside-replicas.json"), hook).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.root.join("usr/bin/podman"));
        command
            .env("LD_LIBRARY_PATH", self.root.join("usr/lib/x86_64-linux-gnu"))
            .env("CONTAINERS_STORAGE_CONF", "/run/storage.conf")
            .env("CONTAINERS_CONF", "/run/containers.conf");
        command
    }

    /// The output of podman with these arguments, which succeeds.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = self.command().args(arguments).stdin(Stdio::null()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "podman {arguments:?}: {error}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Makes a container that will evaluate Python at home on a node. Returns its root on the host.
    pub(crate) fn create(&self, name: &str, node: u32, flags: &[&str]) -> String {
        let cpus = format!("{}-{}", 2 * node, 2 * node + 1);
        let node = node.to_string();
        let shared = format!("{SHARED}:{SHARED}:ro");
        let mut arguments = vec!["create", "--interactive", "--network", "none", "--name", name];
        arguments.extend(["--cpuset-mems", &node, "--cpuset-cpus", &cpus, "--volume", &shared]);
        arguments.extend(flags);
        arguments.extend([IMAGE, PYTHON, "-S", "-c", super::helper::LOOP]);
        self.run(&arguments);
        self.run(&["mount", name])
    }

    /// Starts a container, with or without Nearside's hook.
    pub(crate) fn start(&self, name: &str, with_hook: bool) -> Container {
        let mut command = self.command();
        if with_hook {
            command.args(["--hooks-dir", HOOKS]);
        }
        let python = Python::spawn(command.args(["start", "--attach", "--interactive", name]));
        let process = self.run(&["inspect", "--format", "{{.State.Pid}}", name]);
        Container { python, process: process.parse().unwrap() }
    }

    /// Removes the image, and the file system of all of it.
    pub(crate) fn end(self) {
        self.run(&["rmi", IMAGE]);
        // Podman may have mounted its folder of overlays over itself there.
        done(&format!("umount --recursive {DISK}"));
    }
}

/// A running container.
pub(crate) struct Container {
    pub(crate) python: Python,
    /// Its first process.
    pub(crate) process: u32,
}

/// Runs a command of the host.
pub(crate) fn done(line: &str) {
    let mut words = line.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Programs of the host with their libraries, and the modules that Python needs.
fn fill(folder: &Path) {
    let busybox = ["sh", "rm", "diff", "sleep"];
    let dpkg = ["dpkg", "dpkg-deb", "dpkg-split", "tar"];
    let mut files: BTreeSet<PathBuf> = ["/bin/busybox".into(), PYTHON.into()].into();
    files.extend(dpkg.map(|name| Path::new("/usr/bin").join(name)));
    let mut python = Python::plain(0);
    let modules = "[it.__file__ for it in (__import__('ctypes'), __import__('subprocess')) and \
                   list(__import__('sys').modules.values()) if getattr(it, '__file__', None)]";
    let modules: Vec<String> =
        serde_json::from_str(&python.eval(modules).replace('\'', "\"")).expect("a list of paths");
    let programs = files.clone().into_iter();
    files.extend(modules.iter().map(PathBuf::from));
    let libraries = modules.iter().filter(|file| file.ends_with(".so")).map(PathBuf::from);
    for program in programs.chain(libraries) {
        let output = Command::new("ldd").arg(program).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
        files.extend(paths.map(PathBuf::from));
    }
    fs::create_dir_all(folder.join("usr")).unwrap();
    for top in ["bin", "sbin", "lib", "lib64"] {
        fs::create_dir_all(folder.join("usr").join(top)).unwrap();
        std::os::unix::fs::symlink(format!("usr/{top}"), folder.join(top)).unwrap();
    }
    for part in ["tmp", "etc", "var/lib/dpkg/info", "var/lib/dpkg/updates"] {
        fs::create_dir_all(folder.join(part)).unwrap();
    }
    for database in ["status", "available"] {
        fs::write(folder.join("var/lib/dpkg").join(database), "").unwrap();
    }
    for file in files {
        let inside = folder.join(file.strip_prefix("/").unwrap());
        fs::create_dir_all(inside.parent().unwrap()).unwrap();
        fs::copy(&file, inside).unwrap();
    }
    for name in busybox {
        std::os::unix::fs::symlink("busybox", folder.join("usr/bin").join(name)).unwrap();
    }
}
