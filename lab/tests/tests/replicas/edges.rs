//! Files, processes and privileges at the edges of what copies can be made of.

use super::helper::{Python, Replicator, add, await_state, plugin, status};
use nearside_lab::{Signal, await_that, nearside, read, run, send, stderr, words, write};
use std::{
    fs,
    io::Write as _,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown},
    process::Command,
};

fn done(text: &str) {
    let mut command = words(text);
    let output = Command::new(command.next().unwrap()).args(command).output().unwrap();
    assert!(output.status.success(), "{text}: {}", stderr(&output));
}

#[test]
fn a_set_user_id_program_runs_as_its_owner_from_a_copy() {
    let path = "/tmp/who";
    fs::copy(fs::canonicalize("/usr/bin/id").unwrap(), path).unwrap();
    chown(path, Some(1234), None).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o4755)).unwrap();
    let replicator = Replicator::start("");
    add("", &[path.to_owned()], "replicated");
    let mut domain = Python::at_home("set-user-id", 2);
    let device = domain.eval(&format!("__import__('os').stat('{path}').st_dev"));
    assert_ne!(device, fs::metadata(path).unwrap().dev().to_string(), "it is a copy");
    let ran = format!("__import__('subprocess').check_output(['{path}', '--user'])");
    assert_eq!(domain.eval(&ran), r"b'1234\n'");
    replicator.stop();
}

/// Its copies are being made then, or are there.
#[test]
fn a_file_that_is_written_right_after_it_was_added_has_copies_of_the_new_content_alone() {
    let path = plugin("written-meanwhile");
    fs::write(&path, vec![b'a'; 64 << 20]).unwrap();
    let replicator = Replicator::start("--budget 100M");
    let mut domain = Python::at_home("meanwhile", 3);
    domain.exec(
        "def is_all(path, byte):\n with open(path, 'rb') as file: data = file.read()\n \
         return data.count(byte) == len(data) == 64 << 20",
    );
    for content in [b'b', b'c', b'd'] {
        let output = run(["replicate", "add", "--no-wait", &path]);
        assert!(output.status.success(), "{}", stderr(&output));
        fs::write(&path, vec![content; 64 << 20]).unwrap();
        assert_eq!(status(&path).unwrap()["collapses"], 1);
        let is_new = format!("is_all('{path}', b'{}')", char::from(content));
        assert_eq!(domain.eval(&is_new), "True");
        await_state(&path, "replicated");
        assert_eq!(domain.eval(&is_new), "True", "from the copy");
        assert!(run(["replicate", "remove", &path]).status.success());
    }
    replicator.stop();
    fs::remove_file(&path).unwrap();
}

/// The kernel grants leases on the files of an overlay while the one below is being written.
#[test]
fn a_file_of_an_overlay_has_copies_once_nobody_writes_to_the_one_below() {
    const FOLDER: &str = "/tmp/overlay-written";
    let folders = ["lower", "upper", "work", "shown"].map(|name| format!("{FOLDER}/{name}"));
    folders.iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
    let [lower, upper, work, shown] = folders;
    let below = format!("{lower}/written");
    fs::write(&below, vec![b'a'; 1 << 16]).unwrap();
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    done(&format!("mount -t overlay overlay -o {options} {shown}"));
    let path = format!("{shown}/written");
    let replicator = Replicator::start("");
    let mut writer = fs::File::options().write(true).open(&below).unwrap();
    add("", std::slice::from_ref(&path), "candidate");
    assert_eq!(status(&path).unwrap()["copies"], serde_json::json!({}));
    writer.write_all(b"zzzzzz").unwrap();
    drop(writer);
    await_state(&path, "replicated");
    let mut domain = Python::at_home("overlay-written", 2);
    assert_eq!(domain.eval(&format!("open('{path}', 'rb').read(6)")), "b'zzzzzz'");
    drop(domain);
    replicator.stop();
    done(&format!("umount {shown}"));
}

/// The kernel lets a writer wait for the time that its administrator has set, and no longer.
#[test]
fn a_replicator_that_lets_a_writer_wait_for_too_long_logs_it() {
    const BREAK_TIME: &str = "/proc/sys/fs/lease-break-time";
    let path = plugin("impatient.so");
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    let mut domain = Python::at_home("impatient", 2);
    domain.exec("import mmap");
    domain.exec(&format!("file = open('{path}', 'rb')"));
    domain.exec("text = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)");
    let before = read(BREAK_TIME);
    write(BREAK_TIME, "1");
    send(replicator.child.id(), Signal::STOP);
    let opened = fs::OpenOptions::new().write(true).open(&path);
    write(BREAK_TIME, &before);
    opened.unwrap().write_all_at(b"new", 0).unwrap();
    assert_ne!(domain.eval("text[:3]"), "b'new'", "it maps the copy");
    assert_eq!(replicator.said(), "");
    send(replicator.child.id(), Signal::CONT);
    await_that("the process is back", || domain.eval("text[:3]") == "b'new'");
    await_that("the log", || !replicator.said().is_empty());
    let said = replicator.said();
    assert!(said.contains(&path) && said.contains("fs.lease-break-time"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    await_state(&path, "replicated");
    replicator.stop();
}

#[test]
fn domains_that_end_while_copies_are_made_leave_nothing_bound() {
    let path = plugin("ending");
    fs::write(&path, vec![7; 64 << 20]).unwrap();
    let replicator = Replicator::start("--budget 100M");
    let domains: Vec<_> =
        (0..4).map(|node| Python::at_home(&format!("ending{node}"), node)).collect();
    let output = run(["replicate", "add", "--no-wait", &path]);
    assert!(output.status.success(), "{}", stderr(&output));
    let process = domains[0].child.id();
    drop(domains);
    await_state(&path, "replicated");
    await_that("no namespace has a copy", || {
        let copies = status(&path).unwrap()["copies"].as_object().unwrap().clone();
        copies.len() == 4 && copies.values().all(|copy| copy["namespaces"] == 0)
    });
    let attached = run(words(&format!("replicate attach {process} --node 0")));
    assert_eq!(attached.status.code(), Some(1));
    assert!(stderr(&attached).contains("has ended"), "{}", stderr(&attached));
    replicator.stop();
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_file_of_an_image_is_removed_by_its_path_inside() {
    fs::create_dir_all("/tmp/image-of-tools/opt").unwrap();
    let (inside, outside) = ("/opt/tool", "/tmp/image-of-tools/opt/tool");
    fs::copy(plugin("tool"), outside).unwrap();
    let replicator = Replicator::start("");
    add("--image /tmp/image-of-tools", &[inside.to_owned()], "replicated");
    assert_eq!(run(["replicate", "remove", inside]).status.code(), Some(1));
    let removed = run(words(&format!("replicate remove --image /tmp/image-of-tools {inside}")));
    assert!(removed.status.success(), "{}", stderr(&removed));
    assert!(status(inside).is_none());
    replicator.stop();
}

/// Makes a file system in a file with this command, and mounts it on a folder of this name.
fn mount_disk(name: &str, make: &str) -> String {
    let (folder, disk) = (format!("/tmp/{name}"), format!("/tmp/{name}.disk"));
    fs::create_dir_all(&folder).unwrap();
    done("modprobe loop");
    done(&format!("truncate --size 32M {disk}"));
    done(&format!("{make} {disk}"));
    done(&format!("mount -o loop {disk} {folder}"));
    folder
}

/// Linux has file systems opt in to leases since 7.0, and minix has not.
#[test]
fn a_file_on_a_file_system_without_leases_is_refused() {
    let folder = mount_disk("minix", "mkfs.minix");
    let path = format!("{folder}/unleased");
    fs::write(&path, "text").unwrap();
    let replicator = Replicator::start("");
    let output = run(["replicate", "add", &path]);
    assert_eq!(output.status.code(), Some(1));
    let why = stderr(&output);
    let expected = "its file system (minix) refuses leases (fcntl F_SETLEASE: Invalid argument";
    assert!(why.contains(expected), "{why}");
    // A file that only the kernel's answer bars stays on the list, with the reason.
    let told = status(&path).unwrap();
    assert_eq!(told["state"], "barred", "{told}");
    assert!(told["why"].as_str().unwrap().contains(expected), "{told}");
    // It is not watched, so its place is looked at when the next one there is asked for.
    fs::write(format!("{path}.new"), "new text").unwrap();
    fs::rename(format!("{path}.new"), &path).unwrap();
    assert_eq!(run(["replicate", "add", &path]).status.code(), Some(1));
    let report = nearside_lab::json("replicate status");
    let shown = report["files"].as_array().unwrap().iter().filter(|it| it["path"] == *path);
    assert_eq!(shown.count(), 1, "{report}");
    replicator.stop();
    done(&format!("umount {folder}"));
}

/// A watch alone tells of a truncation that breaks no lease.
#[test]
fn a_file_that_the_kernel_has_no_watch_for_is_refused() {
    const LIMIT: &str = "/proc/sys/fs/inotify/max_user_watches";
    let path = plugin("unwatched");
    let replicator = Replicator::start("");
    let limit = read(LIMIT);
    write(LIMIT, "0");
    let output = run(["replicate", "add", &path]);
    write(LIMIT, &limit);
    assert_eq!(output.status.code(), Some(1));
    let why = stderr(&output);
    let expected = "the kernel does not watch it (fs.inotify.max_user_watches): No space left";
    assert!(why.contains(expected), "{why}");
    add("", &[path], "replicated");
    replicator.stop();
}

/// The kernel checks each page of such a file when it is read.
#[test]
fn a_file_with_fs_verity_is_refused() {
    let folder = mount_disk("verity", "mkfs.ext4 -q -b 4096 -O verity");
    let path = format!("{folder}/sealed");
    fs::write(&path, "text").unwrap();
    let mut python = Python::plain(0);
    // FS_IOC_ENABLE_VERITY of linux/fsverity.h: version 1, SHA-256, blocks of 4096 bytes.
    let sealed = format!(
        "__import__('fcntl').ioctl(open('{path}', 'rb'), 0x40806685, \
         __import__('struct').pack('=III116x', 1, 1, 4096))"
    );
    let answer = python.eval(&sealed);
    assert!(answer.starts_with("b'"), "{answer}");
    let replicator = Replicator::start("");
    let output = run(["replicate", "add", &path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("fs-verity protects it"), "{}", stderr(&output));
    replicator.stop();
    drop(python);
    done(&format!("umount {folder}"));
}

/// Root may lease its own files without a capability, and no others.
#[test]
fn a_replicator_without_cap_lease_says_that_it_is_needed() {
    let path = plugin("of-another");
    chown(&path, Some(1234), None).unwrap();
    let replicator = Replicator::without("lease");
    let output = run(["replicate", "add", &path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("this needs CAP_LEASE"), "{}", stderr(&output));
    // It holds none: a writer that does not wait would be refused.
    let open = format!("__import__('os').open('{path}', 0o4001) > 0");
    assert_eq!(Python::plain(0).eval(&open), "True");
    replicator.stop();
}

#[test]
fn a_replicator_without_cap_sys_admin_says_at_once_that_it_is_needed() {
    let mut command = Command::new("setpriv");
    let program = nearside().get_program().to_owned();
    command.args(["--bounding-set", "-sys_admin"]).arg(program).arg("replicator");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("CAP_SYS_ADMIN"), "{}", stderr(&output));
}
