//! Files that a program or a server serves: real FUSE and NFS (`lab/packages file-systems`).

use super::{
    helper::{Python, Replicator, add, await_state, plugin, status},
    podman::done,
};
use nearside_lab::{Signal, await_that, run, send, stderr, words};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

/// A program of those packages.
fn program(path: &str) -> Command {
    let root = std::env::var_os("NEARSIDE_FILE_SYSTEMS").expect("run the tests with lab/test");
    let root = PathBuf::from(root);
    let folders = ["usr/lib", "lib"].map(|lib| root.join(lib).join("x86_64-linux-gnu"));
    let mut command = Command::new(root.join(path));
    command.env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap());
    command
}

fn finished(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn is_mounted(point: &str) -> bool {
    fs::read_to_string("/proc/mounts").unwrap().contains(&format!(" {point} "))
}

/// Files served by fuse-overlayfs. Dropping this ends the server and its mount.
struct Fuse {
    server: Child,
    point: String,
}

impl Fuse {
    /// Serves a file `text` at this folder.
    fn serve(point: &str) -> Self {
        let parts = ["lower", "upper", "work"].map(|part| format!("{point}.{part}"));
        parts.iter().for_each(|part| fs::create_dir_all(part).unwrap());
        fs::create_dir_all(point).unwrap();
        fs::write(format!("{}/text", parts[0]), "text").unwrap();
        let [lower, upper, work] = parts;
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let mut command = program("usr/bin/fuse-overlayfs");
        let server = command.args(["-f", "-o", &options, point]).spawn().unwrap();
        await_that("it is mounted", || is_mounted(point));
        Self { server, point: point.into() }
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--lazy", &self.point]).status();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A server that answers nothing. Dropping this lets it go on: a process with an open file of it
/// could not end otherwise.
struct Silent(u32);

impl Silent {
    fn new(fuse: &Fuse) -> Self {
        send(fuse.server.id(), Signal::STOP);
        Self(fuse.server.id())
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        send(self.0, Signal::CONT);
    }
}

/// Why copies of a file are refused.
fn refused(file: &str) -> String {
    let output = run(["replicate", "add", file]);
    assert_eq!(output.status.code(), Some(1));
    // That of an overlay stays in the list, barred: its layers may change.
    if status(file).is_some() {
        await_state(file, "barred");
        assert!(run(["replicate", "remove", file]).status.success());
    }
    stderr(&output)
}

#[test]
fn files_on_fuse_and_nfs_and_on_an_overlay_of_them_are_refused() {
    let fuse = Fuse::serve("/tmp/fuse");
    for module in ["nfsd", "nfsv4"] {
        done(&format!("modprobe {module}"));
    }
    done("ip link set lo up");
    done("mount -t nfsd nfsd /proc/fs/nfsd");
    for folder in ["/var/lib/nfs/v4recovery", "/tmp/served", "/tmp/nfs"] {
        fs::create_dir_all(folder).unwrap();
    }
    done("mount -t tmpfs served /tmp/served");
    fs::write("/tmp/served/text", "text").unwrap();
    for state in ["etab", "rmtab"] {
        fs::write(format!("/var/lib/nfs/{state}"), "").unwrap();
    }
    let options = "rw,no_root_squash,insecure,no_subtree_check,fsid=0";
    finished(program("usr/sbin/exportfs").args(["-i", "-o", options, "127.0.0.1:/tmp/served"]));
    let mut exports = program("usr/sbin/rpc.mountd");
    exports.args(["--foreground", "-N", "3", "-u"]).stderr(Stdio::null());
    let mut exports = exports.spawn().unwrap();
    finished(program("usr/sbin/rpc.nfsd").args(["-N", "3", "-U", "2"]));
    let options = "vers=4.2,addr=127.0.0.1,clientaddr=127.0.0.1";
    done(&format!("mount -i -t nfs4 -o {options} 127.0.0.1:/ /tmp/nfs"));
    let replicator = Replicator::start("");
    for (folder, kind) in [("fuse", "fuse"), ("nfs", "nfs4")] {
        let why = refused(&format!("/tmp/{folder}/text"));
        assert!(why.contains(kind) && why.contains("lease"), "{why}");
        let shown = format!("/tmp/{folder}-below");
        fs::create_dir_all(&shown).unwrap();
        fs::create_dir_all("/tmp/empty").unwrap();
        done(&format!("mount -t overlay -o lowerdir=/tmp/empty:/tmp/{folder} overlay {shown}"));
        let why = refused(&format!("{shown}/text"));
        assert!(why.contains(kind), "{why}");
        done(&format!("umount {shown}"));
    }
    replicator.stop();
    done("umount /tmp/nfs");
    finished(program("usr/sbin/rpc.nfsd").arg("0"));
    exports.kill().unwrap();
    exports.wait().unwrap();
    done("umount /proc/fs/nfsd");
    done("umount /tmp/served");
    drop(fuse);
}

/// Sends the file that it has opened while its server answered.
const SENDER: &str = r#"
import array, os, socket
file = os.open('/tmp/silent/text', os.O_PATH)
request = b'{"add": {"place": {"path": "/tmp/silent/text"}}}'
def add():
    helper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    helper.connect('/run/nearside-replicas/socket')
    files = array.array('i', [file])
    helper.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
    return helper.recv(1 << 16).decode()
"#;

/// A tenant's server may stop at any time. The helper must not wait for it, since writers wait for
/// the helper.
#[test]
fn a_fuse_server_that_does_not_answer_holds_nobody_up() {
    let beside = plugin("beside-fuse.so");
    let below = "/tmp/below-fuse/text".to_owned();
    fs::create_dir_all("/tmp/below-fuse").unwrap();
    fs::copy(&beside, &below).unwrap();
    let fuse = Fuse::serve("/tmp/silent");
    fs::copy("/usr/bin/cat", "/tmp/silent/cat").unwrap();
    let mut sender = Python::plain(0);
    sender.exec(SENDER);
    let mut domain = Python::in_namespace(1);
    domain.load(&[], &beside);
    domain.exec("held = open('/tmp/silent/text')");
    let mut other = Python::in_namespace(2);
    let mount = "['mount', '--bind', '/tmp/silent', '/tmp/below-fuse']";
    let mounted = other.eval(&format!("__import__('subprocess').run({mount}).returncode"));
    assert_eq!(mounted, "0");
    let replicator = Replicator::start("");
    for (python, node) in [(&domain, 1), (&other, 2)] {
        let process = python.child.id();
        let output = run(words(&format!("replicate attach {process} --node {node}")));
        assert!(output.status.success(), "{}", stderr(&output));
    }
    add("", std::slice::from_ref(&beside), "replicated");
    domain.exec(EXECUTOR);
    domain.exec(&format!("execute('{beside}')"));
    let original = fs::metadata(&beside).unwrap().dev().to_string();
    assert_ne!(domain.eval("device_held()"), original, "it is a copy");
    // Package managers of a domain are looked for. Here the server has them, one of them unseen.
    let mut late = Python::in_namespace(3);
    late.exec(MANAGERS);
    let silent = Silent::new(&fuse);
    let process = late.child.id();
    let output = run(words(&format!("replicate attach {process} --node 3")));
    assert!(output.status.success(), "{}", stderr(&output));
    let barred = sender.eval("add()");
    assert!(barred.contains("foreign-file-system") && barred.contains("fuse"), "{barred}");
    add("", std::slice::from_ref(&below), "replicated");
    for file in [&beside, &below] {
        fs::write(file, "written").unwrap();
        await_state(file, "replicated");
        assert_eq!(status(file).unwrap()["collapses"], 1);
    }
    assert_eq!(domain.eval("device_held()"), original, "it was returned to the original");
    assert_eq!(domain.eval(&format!("open('{beside}', 'rb').read()")), "b'written'");
    replicator.stop();
    drop((silent, late, other, domain, sender));
}

/// Shows programs of the server as package managers.
const MANAGERS: &str = "
import os, subprocess
subprocess.run(['mount', '-t', 'tmpfs', 'none', '/usr/local/bin'], check=True)
os.symlink('/tmp/silent/cat', '/usr/local/bin/dpkg')
os.symlink('/tmp/silent/nothing/dnf', '/usr/local/bin/dnf')
os.stat('/usr/local/bin/dpkg')
";

/// Executes a program of the server that holds a file open.
const EXECUTOR: &str = "
import os, subprocess
def execute(path):
    global program
    file = os.open(path, os.O_RDONLY)
    pipe = subprocess.PIPE
    program = subprocess.Popen(['/tmp/silent/cat'], stdin=pipe, stdout=pipe, pass_fds=[file])
    program.stdin.write(b'it runs'), program.stdin.flush()
    assert program.stdout.read(7) == b'it runs'
    os.close(file)
    program.held = file
def device_held(): return os.stat(f'/proc/{program.pid}/fd/{program.held}').st_dev
";
