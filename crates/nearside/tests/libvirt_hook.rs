//! `nearside libvirt-hook` as libvirt runs it, on a made-up host: plain files stand for the
//! kernel's.
#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

#[path = "common/made_host.rs"]
mod made_host;

use made_host::Made;
use std::{
    fs,
    io::Write,
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, Command, Output, Stdio},
};

const MIGRATE: [&str; 4] = ["vm", "migrate", "begin", "-"];

/// A domain of two cells, each with 2 vCPUs and 200 MiB.
const DOMAIN: &str = "<domain type='kvm'>
  <name>vm</name>
  <vcpu>4</vcpu>
  <cpu>
    <numa>
      <cell id='0' cpus='0-1' memory='200' unit='MiB'/>
      <cell id='1' cpus='2-3' memory='200' unit='MiB'/>
    </numa>
  </cpu>
</domain>
";

/// The domain as it runs on nodes 2 and 3 of another host.
fn running() -> String {
    let there = Made::new(4);
    let mut place = Command::new(env!("CARGO_BIN_EXE_nearside"));
    place.args(["place", "--libvirt", "-", "--affinity", "hard", "--nodes", "2,3", "--sysfs"]);
    let output = fed(place.arg(there.path("")), DOMAIN.as_bytes());
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn start(command: &mut Command) -> Child {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    piped.spawn().unwrap()
}

/// Runs a command with this input.
fn fed(command: &mut Command, input: &[u8]) -> Output {
    let mut child = start(command);
    let mut to = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A command that is not interested reads nothing.
            let _ = to.write_all(input);
        });
        child.wait_with_output().unwrap()
    })
}

/// A hook on this host that has a minute.
fn hook(made: &Made, arguments: &[&str]) -> Command {
    within(made, arguments, "60")
}

fn within(made: &Made, arguments: &[&str], seconds: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nearside"));
    command.args(["libvirt-hook", "--within", seconds, "--root"]).arg(made.root());
    command.arg("--").args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Asserts that the input came back as it was, with this remark in the log.
fn assert_unchanged(made: &Made, mut hook: Command, input: &[u8], told: &str) {
    let log = UnixDatagram::bind(made.path("dev/log")).unwrap();
    let output = fed(&mut hook, input);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stdout == input, "{told}: {} bytes came back", output.stdout.len());
    let mut packet = [0; 2048];
    let length = log.recv(&mut packet).unwrap();
    let logged = text(&packet[..length]);
    assert!(logged.starts_with("<28>nearside-hook["), "{logged}");
    assert!(logged.contains("vm: the XML is unchanged: "), "{logged}");
    assert!(logged.contains(told), "{told}: {logged}");
    fs::remove_file(made.path("dev/log")).unwrap();
}

#[test]
fn a_migration_gets_bindings_of_this_machine_and_its_memory_reserved() {
    let made = Made::new(2);
    let before = running();
    assert!(before.contains("<memnode cellid='0' mode='strict' nodeset='2'/>"), "{before}");
    for arguments in [MIGRATE, ["vm", "restore", "begin", "-"]] {
        let output = fed(&mut hook(&made, &arguments), before.as_bytes());
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
        let after = text(&output.stdout);
        assert!(after.contains("<memnode cellid='0' mode='strict' nodeset='0'/>"), "{after}");
        assert!(after.contains("<memnode cellid='1' mode='strict' nodeset='1'/>"), "{after}");
        assert!(after.contains("<vcpupin vcpu='3' cpuset='2-3'/>"), "{after}");
        assert!(after.contains("<sibling id='1' value='20'/>"), "{after}");
        // A second attempt has the reservation of the first.
        let reservations = made.reservations();
        let names: Vec<_> = reservations.keys().map(String::as_str).collect();
        assert_eq!(names, ["incoming-vm"]);
        let bytes = &reservations["incoming-vm"]["subject"]["reservation"]["bytes"];
        assert_eq!(*bytes, serde_json::json!({"0": 200 << 20, "1": 200 << 20}));
    }
}

#[test]
fn two_migrations_at_once_do_not_get_the_same_memory() {
    let made = Made::new(2);
    let before = running();
    // A node has room for one cell of 300 MiB.
    let large = before.replace("'200'", "'300'");
    let names = ["one", "two"].map(|name| large.replace("<name>vm<", &format!("<name>{name}<")));
    let mut children = names.each_ref().map(|_| start(&mut hook(&made, &MIGRATE)));
    for (child, xml) in children.iter_mut().zip(&names) {
        child.stdin.take().unwrap().write_all(xml.as_bytes()).unwrap();
    }
    let outputs = children.map(|child| text(&child.wait_with_output().unwrap().stdout));
    let moved = names.iter().zip(&outputs).filter(|(before, after)| before != after).count();
    assert_eq!(moved, 1, "{outputs:?}");
    assert_eq!(made.reservations().len(), 1);
}

#[test]
fn a_worse_shape_is_one_line_in_the_log() {
    let made = Made::new(1);
    let log = UnixDatagram::bind(made.path("dev/log")).unwrap();
    let small = running().replace("'200'", "'100'");
    let output = fed(&mut hook(&made, &MIGRATE), small.as_bytes());
    assert!(text(&output.stdout).contains("<memnode cellid='1' mode='strict' nodeset='0'/>"));
    let mut packet = [0; 2048];
    let length = log.recv(&mut packet).unwrap();
    let logged = text(&packet[..length]);
    let told = "vm: worse than before: cells 0 and 1 share node 0, they shared none";
    assert!(logged.ends_with(told), "{logged}");
}

#[test]
fn other_operations_print_nothing() {
    let made = Made::new(2);
    for arguments in [
        &["vm", "prepare", "begin", "-"][..],
        &["vm", "started", "begin", "-"],
        &["vm", "release", "end", "-"],
        &["vm", "reconnect", "begin", "-"],
        &["vm", "migrate"],
        &[],
        &["--help", "--version", "--root"],
    ] {
        let output = fed(&mut hook(&made, arguments), running().as_bytes());
        let all = (output.status.code(), output.stdout.len(), text(&output.stderr));
        assert_eq!(all, (Some(0), 0, String::new()), "{arguments:?}");
    }
    assert!(made.reservations().is_empty());
}

#[test]
fn a_domain_that_nearside_has_not_placed_passes_without_a_word() {
    let made = Made::new(2);
    let output = fed(&mut hook(&made, &MIGRATE), DOMAIN.as_bytes());
    assert_eq!((text(&output.stdout), text(&output.stderr)), (DOMAIN.into(), String::new()));
}

#[test]
fn input_that_is_no_domain_comes_back_as_it_was() {
    let made = Made::new(2);
    let entities: String =
        (1..20).map(|n| format!("<!ENTITY e{n} \"&e{};&e{};\">", n - 1, n - 1)).collect();
    let bomb = format!("<!DOCTYPE x [<!ENTITY e0 'x'>{entities}]><domain>&e19;</domain>");
    let damaged = running().replace("\"version\"", "\"verse\"");
    for (input, told) in [
        (&b""[..], "line 1, column 1: "),
        (b"\0\xff\xfe<domain", "line 1, column 2: read the byte 0xff, expected UTF-8"),
        (b"<domain", "line 1, column "),
        (b"<network/>", "read <network>, expected <domain>"),
        (bomb.as_bytes(), "a document type or entities are not accepted"),
        (&vec![b'<'; 10 << 20], "the text has 10485760 bytes, expected at most 1048576"),
        (&[b"<domain>", &vec![b' '; 10 << 20][..], b"</domain>"].concat(), "10485777 bytes"),
        (damaged.as_bytes(), "the metadata of Nearside cannot be read: unknown field `verse`"),
    ] {
        assert_unchanged(&made, hook(&made, &MIGRATE), input, told);
    }
    assert!(made.reservations().is_empty());
}

#[test]
fn a_machine_without_room_leaves_the_xml() {
    let made = Made::new(2);
    let large = running().replace("'200'", "'500'");
    assert_unchanged(&made, hook(&made, &MIGRATE), large.as_bytes(), "do not fit");
}

#[test]
fn the_lock_in_other_hands_costs_the_reservation_and_nothing_else() {
    let made = Made::new(2);
    let before = running();
    fed(&mut hook(&made, &MIGRATE), before.as_bytes());
    let lock = fs::File::options().write(true).open(made.path("run/nearside/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    // The domain's own reservation of an earlier attempt does not count; those of others do.
    let output = fed(&mut within(&made, &MIGRATE, "6"), before.as_bytes());
    let remark = text(&output.stderr);
    assert!(remark.contains("vm: its memory is not reserved: "), "{remark}");
    assert!(remark.contains("run/nearside/lock (waited 2 s)"), "{remark}");
    assert!(text(&output.stdout).contains("<memnode cellid='1' mode='strict' nodeset='1'/>"));
    let other = before.replace("<name>vm<", "<name>other<").replace("'200'", "'300'");
    assert_unchanged(&made, within(&made, &MIGRATE, "3"), other.as_bytes(), "do not fit");
}

#[test]
fn a_host_that_cannot_be_read_in_time_leaves_the_xml() {
    let made = Made::new(2);
    let before = running();
    // Opening a FIFO blocks until its other end is open.
    let boot_id = made.path("proc/sys/kernel/random/boot_id");
    fs::remove_file(&boot_id).unwrap();
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, &boot_id, kind, mode, 0).unwrap();
    let told = "there was no answer after 1 s";
    assert_unchanged(&made, within(&made, &MIGRATE, "1"), before.as_bytes(), told);
}

#[test]
fn a_host_that_is_none_leaves_the_xml() {
    let made = Made::new(2);
    made.file("proc/self/mountinfo", "");
    assert_unchanged(&made, hook(&made, &MIGRATE), running().as_bytes(), "cgroup");
}

#[test]
fn a_writer_that_never_ends_gets_no_answer_and_no_failure() {
    let made = Made::new(2);
    let mut child = start(&mut within(&made, &MIGRATE, "0.2"));
    let kept = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    drop(kept);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    assert!(text(&output.stderr).contains("there was no XML after 0.2 s"));
}

/// The script that libvirt runs, with this program in place of the installed one.
fn script(folder: &Path, program: &str) -> std::path::PathBuf {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/libvirt/qemu.d/nearside");
    let script = fs::read_to_string(file).unwrap();
    assert!(script.contains(" /usr/bin/nearside libvirt-hook "));
    let installed = folder.join("nearside");
    // A busy machine may take long to start it.
    let bound = if program == HANGING { " KILL 0.2 " } else { " KILL 60 " };
    let script = script.replace("/usr/bin/nearside", program).replace(" KILL 0.2 ", bound);
    fs::write(&installed, script).unwrap();
    installed
}

/// A program that answers after ten minutes.
const HANGING: &str = "sh -c 'sleep 600; echo late' --";

/// libvirt may be slow to read, or gone. An answer that is read late is whole all the same.
#[test]
fn an_answer_of_any_size_and_content_waits_for_no_reader() {
    let made = Made::new(2);
    let folder = tempfile::tempdir().unwrap();
    let padding = " ".repeat(700 << 10);
    for input in [DOMAIN.replace("</domain>", &format!("{padding}</domain>")), "a\0b\n\n".into()] {
        let mut child = start(&mut hook(&made, &MIGRATE));
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        // The answer is read after the end of the hook alone.
        assert_eq!(child.wait().unwrap().code(), Some(0));
        let output = child.wait_with_output().unwrap();
        assert!(output.stdout == input.as_bytes(), "{} bytes came back", output.stdout.len());
        let output = fed(
            Command::new("sh")
                .arg(script(folder.path(), env!("CARGO_BIN_EXE_nearside")))
                .args(MIGRATE),
            input.as_bytes(),
        );
        assert!(output.stdout == input.as_bytes(), "{} bytes came back", output.stdout.len());
    }
}

#[test]
fn the_installed_script_never_fails() {
    let folder = tempfile::tempdir().unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let script = script(folder.path(), program);
        let output = fed(Command::new("sh").arg(script).args(arguments), DOMAIN.as_bytes());
        assert_eq!(output.status.code(), Some(0), "{program}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(run(env!("CARGO_BIN_EXE_nearside"), &MIGRATE), DOMAIN);
    assert_eq!(run(env!("CARGO_BIN_EXE_nearside"), &["vm", "start", "begin", "-"]), "");
    let failing = folder.path().join("failing");
    fs::write(&failing, "#!/bin/sh\nexit 1\n").unwrap();
    let killed = folder.path().join("killed");
    fs::write(&killed, "#!/bin/sh\nkill -9 $$\n").unwrap();
    for program in [&failing, &killed] {
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(program, executable).unwrap();
        assert_eq!(run(program.to_str().unwrap(), &MIGRATE), "");
    }
    assert_eq!(run("/nowhere/nearside", &MIGRATE), "");
    assert_eq!(run(HANGING, &MIGRATE), "");
}
