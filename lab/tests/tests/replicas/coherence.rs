//! No reader sees stale text.

use super::helper::{Python, Replicator, add, await_state, plugin, status};
use nearside_lab::{Signal, await_that, run, send, stderr};
use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    process::Command,
};

/// Replaces the content of a file.
type Write<'a> = &'a dyn Fn(&[u8]);

fn reading(path: &str) -> String {
    format!("open('{path}', 'rb').read(6)")
}

#[test]
fn writers_of_every_kind_collapse_the_copies_before_they_write() {
    let path = plugin("written.so");
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    let mut readers: Vec<_> =
        (0..4).map(|node| Python::at_home(&format!("reader{node}"), node)).collect();
    let write: &[(&str, Write<'_>)] = &[
        ("write", &|bytes| {
            OpenOptions::new().write(true).open(&path).unwrap().write_all_at(bytes, 0).unwrap();
        }),
        ("truncate", &|bytes| fs::write(&path, bytes).unwrap()),
        ("rename", &|bytes| {
            fs::write("/tmp/written.new", bytes).unwrap();
            fs::rename("/tmp/written.new", &path).unwrap();
        }),
    ];
    for round in 0..12 {
        let (how, write) = write[round % write.len()];
        let content = format!("{round:06}");
        write(content.as_bytes());
        for (node, reader) in readers.iter_mut().enumerate() {
            let expected = format!("b'{content}'");
            assert_eq!(reader.eval(&reading(&path)), expected, "{how} on {node}");
            // Mappings and descriptors of a copy have returned to the original. Those of a file
            // that was renamed over stay with that.
            if round > 0 {
                let before = || format!("b'{:06}'", round - 1);
                let held = if how == "rename" { before() } else { expected };
                assert_eq!(reader.eval("mapped[:6]"), held, "{how} mapped on {node}");
                assert_eq!(reader.eval("file.seek(0) or file.read(6)"), held, "{how} open");
            }
        }
        // After the last close the file is a candidate again, and gets new copies.
        await_that("the copies are back", || {
            status(&path).is_some_and(|it| it["copies"].as_object().unwrap().len() == 4)
        });
        for (node, reader) in readers.iter_mut().enumerate() {
            assert_eq!(reader.eval(&reading(&path)), format!("b'{content}'"), "copy on {node}");
            let open = format!("globals().update(file=open('{path}', 'rb', 0))");
            reader.eval(&open);
            reader
                .eval("globals().update(mapped=__import__('mmap').mmap(file.fileno(), 6, prot=1))");
            assert_eq!(reader.eval("mapped[:6]"), format!("b'{content}'"), "mapped on {node}");
        }
    }
    // It opens nothing.
    let truncated = format!("__import__('os').truncate('{path}', 3)");
    assert_eq!(Python::plain(0).eval(&truncated), "None");
    for reader in &mut readers {
        assert_eq!(reader.eval(&reading(&path)), "b'000'");
        assert_eq!(reader.eval("file.seek(0) or file.read(6)"), "b'000'");
    }
    replicator.stop();
    for reader in &mut readers {
        assert_eq!(reader.eval(&reading(&path)), "b'000'");
    }
}

/// An open for reading that truncates breaks no lease: `do_dentry_open` in `fs/open.c`
/// looks at the access that was asked for.
#[test]
fn a_truncation_without_write_access_collapses_the_copies() {
    let path = plugin("emptied.so");
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    let mut domain = Python::at_home("emptied", 2);
    let length = format!("len(open('{path}', 'rb').read())");
    assert_ne!(domain.eval(&length), "0");
    let mut other = Python::plain(0);
    other.exec(&format!("import os\nos.close(os.open('{path}', os.O_RDONLY | os.O_TRUNC))"));
    await_that("the domain sees the empty file", || domain.eval(&length) == "0");
    // A writer that leaves it empty does not bar it. The replicator sees the close before it
    // answers.
    drop(OpenOptions::new().write(true).open(&path).unwrap());
    assert_eq!(status(&path).unwrap()["state"], "candidate");
    // The next writer finds a file as any other.
    fs::write(&path, "000001").unwrap();
    assert_eq!(domain.eval(&reading(&path)), "b'000001'");
    await_state(&path, "replicated");
    assert_eq!(domain.eval(&reading(&path)), "b'000001'");
    replicator.stop();
}

/// A thread of its own empties copies. The replicator is busy here with another file, for as long
/// as the process that it waits for is stopped.
#[test]
fn a_truncation_without_write_access_is_seen_while_the_replicator_is_busy() {
    let [emptied, written] = ["emptied-meanwhile.so", "written-meanwhile.so"].map(plugin);
    let replicator = Replicator::start("");
    add("", &[emptied.clone(), written.clone()], "replicated");
    let mut domain = Python::at_home("emptied-meanwhile", 2);
    domain.exec(&format!(
        "import mmap, os\nfiles = [open(path, 'rb', 0) for path in ('{emptied}', '{written}')]\n\
         maps = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in files]\n\
         into = os.pipe()[1]"
    ));
    let exchanger = replicator.exchanger();
    send(exchanger, Signal::STOP);
    let writer = {
        let written = written.clone();
        std::thread::spawn(move || fs::write(written, "000001").unwrap())
    };
    let original = fs::metadata(&written).unwrap().dev().to_string();
    let shown = format!("os.stat('{written}').st_dev");
    await_that("the replicator is at the other file", || domain.eval(&shown) == original);
    assert_ne!(domain.eval("os.fstat(files[0].fileno()).st_dev"), original, "it reads a copy");
    let mut other = Python::plain(0);
    other.exec(&format!("import os\nos.close(os.open('{emptied}', os.O_RDONLY | os.O_TRUNC))"));
    await_that("the reader sees the empty file", || {
        domain.eval(&format!("(os.stat('{emptied}').st_size, files[0].read(1))")) == "(0, b'')"
    });
    // The page has gone from the mapping, too: to read it would be SIGBUS.
    domain.exec(
        "try: os.write(into, memoryview(maps[0])[:1])\n\
         except OSError as error: failure = error.errno",
    );
    assert_eq!(domain.eval("failure"), "14", "EFAULT");
    send(exchanger, Signal::CONT);
    writer.join().unwrap();
    assert_eq!(domain.eval("maps[1][:6]"), "b'000001'");
    fs::write(&emptied, "000002").unwrap();
    assert_eq!(domain.eval("maps[0][:6]"), "b'000002'");
    replicator.stop();
}

#[test]
fn mode_owner_capabilities_and_attributes_are_those_of_the_original() {
    let path = plugin("attributes");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
    std::os::unix::fs::chown(&path, Some(1234), Some(42)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
    let python = |expression: &str| Python::plain(0).eval(&expression.replace("PATH", &path));
    // Version 2, effective, cap_net_bind_service (linux/capability.h).
    let capability = r"bytes.fromhex('0100000200040000000000000000000000000000')";
    assert_eq!(
        python(&format!("__import__('os').setxattr('PATH', 'security.capability', {capability})")),
        "None"
    );
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    let mut domain = Python::at_home("attributes", 2);
    let mut ask = |expression: &str| domain.eval(&expression.replace("PATH", &path));
    let seen = "(lambda it: (it.st_mode, it.st_uid, it.st_gid, it.st_size, it.st_mtime_ns))\
                (__import__('os').stat('PATH'))";
    assert_eq!(ask(seen), python(seen));
    assert!(ask(seen).starts_with("(35305, 1234, 42, "), "0o104751: {}", ask(seen));
    let attributes = "{name: __import__('os').getxattr('PATH', name).hex() \
                      for name in __import__('os').listxattr('PATH') \
                      if name != 'trusted.nearside.original'}";
    // By this the next replicator knows a copy that one which was killed has left.
    let noted = "__import__('os').getxattr('PATH', 'trusted.nearside.original').split()[1]";
    assert_eq!(ask(noted), format!("b'{path}'"));
    assert_eq!(ask(attributes), python(attributes));
    assert!(ask(attributes).contains("security.capability"));
    // It runs from a copy, which another device shows.
    assert_ne!(
        ask("__import__('os').stat('PATH').st_dev"),
        fs::metadata(&path).unwrap().dev().to_string()
    );
    // Changes of attributes follow.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    await_that("the mode follows", || {
        ask("oct(__import__('os').stat('PATH').st_mode)") == "'0o100700'"
    });
    std::os::unix::fs::chown(&path, Some(77), None).unwrap();
    await_that("the owner follows", || ask("__import__('os').stat('PATH').st_uid") == "77");
    assert_eq!(python("__import__('os').setxattr('PATH', 'user.colour', b'blue')"), "None");
    assert_eq!(python("__import__('os').setxattr('PATH', 'user.size', b'small')"), "None");
    await_that("new attributes follow", || ask(attributes) == python(attributes));
    assert!(ask(attributes).contains("user.size"), "{}", ask(attributes));
    assert_eq!(python("__import__('os').removexattr('PATH', 'user.size')"), "None");
    await_that("a removal follows", || !ask(attributes).contains("user.size"));
    assert!(ask(attributes).contains("user.colour"));
    assert_eq!(status(&path).unwrap()["collapses"], 0);
    replicator.stop();
}

/// Without CAP_SETFCAP, copies cannot have capabilities.
#[test]
fn copies_return_once_the_file_has_attributes_that_they_can_have() {
    let path = plugin("capable");
    let set = |call: &str| assert_eq!(Python::plain(0).eval(&call.replace("PATH", &path)), "None");
    let capable = || {
        set("__import__('os').setxattr('PATH', 'security.capability', \
             bytes.fromhex('0100000200040000000000000000000000000000'))");
    };
    let plain = || set("__import__('os').removexattr('PATH', 'security.capability')");
    let replicator = Replicator::without("setfcap");
    add("", std::slice::from_ref(&path), "replicated");
    let mut domain = Python::at_home("capable", 2);
    let has = format!("'security.capability' in __import__('os').listxattr('{path}')");
    let original = fs::metadata(&path).unwrap().dev().to_string();
    let device = format!("__import__('os').stat('{path}').st_dev");
    assert_ne!(domain.eval(&device), original);
    capable();
    await_that("the copies are gone", || domain.eval(&has) == "True");
    assert_eq!(domain.eval(&device), original);
    let unfit = status(&path).unwrap();
    assert_eq!(unfit["state"], "candidate", "{unfit}");
    assert!(unfit["refused"]["2"]["unfit"].as_str().unwrap().contains("security.capability"));
    plain();
    await_state(&path, "replicated");
    assert_ne!(domain.eval(&device), original);
    assert!(run(["replicate", "remove", &path]).status.success());

    capable();
    let output = run(["replicate", "add", &path]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    assert!(said.contains("a copy cannot have its attribute security.capability"), "{said}");
    plain();
    await_state(&path, "replicated");
    replicator.stop();
}

#[test]
fn a_copy_that_is_executed_follows_the_mode_of_its_original() {
    let program = "/tmp/executed".to_owned();
    fs::copy(fs::canonicalize("/usr/bin/sleep").unwrap(), &program).unwrap();
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&program), "replicated");
    let mut domain = Python::at_home("executed", 1);
    domain.exec(&format!("running = __import__('subprocess').Popen(['{program}', 'inf'])"));
    fs::set_permissions(&program, fs::Permissions::from_mode(0o711)).unwrap();
    let seen = format!("__import__('os').stat('{program}')");
    await_that("the mode of the copy", || {
        domain.eval(&format!("oct({seen}.st_mode)")) == "'0o100711'"
    });
    let original = fs::metadata(&program).unwrap().dev().to_string();
    assert_ne!(domain.eval(&format!("{seen}.st_dev")), original, "it is the copy");
    assert_eq!(status(&program).unwrap()["collapses"], 0);
    domain.exec("running.kill()");
    replicator.stop();
}

#[test]
fn a_copy_may_do_no_more_than_the_original_on_its_mount() {
    let folder = "/tmp/nosuid";
    fs::create_dir_all(folder).unwrap();
    let mount = ["-t", "tmpfs", "-o", "nosuid,noexec", "tmpfs", folder];
    assert!(Command::new("mount").args(mount).status().unwrap().success());
    let paths = ["nosuid/setuid", "setuid"].map(plugin);
    let replicator = Replicator::start("");
    add("", &paths, "replicated");
    let mut domain = Python::at_home("nosuid", 1);
    let mounts = domain.eval("open('/proc/self/mountinfo').read()").replace("\\n", "\n");
    let flags = |path: &str| {
        let mut lines = mounts.lines().filter(|line| line.contains("nearside-text"));
        let line = lines.find(|line| line.split(' ').nth(4) == Some(path)).unwrap();
        ["nosuid", "noexec", "ro"].map(|flag| line.split([' ', ',']).any(|it| it == flag))
    };
    assert_eq!(paths.each_ref().map(|path| flags(path)), [[true; 3], [false, false, true]]);
    replicator.stop();
}

/// As the guide says, also that `replicate remove` frees the file.
#[test]
fn a_program_in_a_domain_gets_erofs_when_it_writes_to_a_file_with_a_copy() {
    let path = plugin("read-only.so");
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    let mut domain = Python::at_home("read-only", 1);
    // The answer of a call of the C library, and the error number.
    let mut call = |call: String| {
        domain.eval(&format!(
            "(lambda ctypes: (lambda c: (c.{call}, ctypes.get_errno()))\
             (ctypes.CDLL(None, use_errno=True)))(__import__('ctypes'))"
        ))
    };
    let write = format!("open(b'{path}', 2)");
    assert_eq!(call(write.clone()), format!("(-1, {})", libc::EROFS));
    let rename = call(format!("rename(b'{path}', b'{path}.new')"));
    assert_eq!(rename, format!("(-1, {})", libc::EBUSY));
    assert!(run(["replicate", "remove", &path]).status.success());
    let opened = call(write);
    assert!(!opened.starts_with("(-1"), "{opened}");
    replicator.stop();
}

/// A second one would take the first one's copies for leftovers.
#[test]
fn a_second_replicator_is_refused() {
    let replicator = Replicator::start("");
    // So it would with another folder.
    for (folder, why) in [
        ("/run/nearside-replicas", "another replicator runs: stop it"),
        ("/run/other", "another replicator runs, with the folder /run/nearside-replicas: stop it"),
    ] {
        let output = run(["replicator", "--folder", folder]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
    replicator.stop();
}

#[test]
fn a_file_that_goes_takes_its_copies_along_and_has_some_again_when_it_comes_back() {
    let path = plugin("going.so");
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    let mut domain = Python::at_home("going", 1);
    domain.load(&[], &path);
    fs::remove_file(&path).unwrap();
    let is_away =
        || status(&path).is_some_and(|it| it["why"] == "no file at its place can have copies");
    await_that("it is away", is_away);
    assert!(domain.eval(&reading(&path)).contains("No such file"));
    assert_eq!(domain.eval(&format!("__import__('ctypes').CDLL('{path}').crc32(0, 0, 0)")), "0");
    // As install(1) does: the new file is there before it has content.
    let mut new = fs::File::create_new(&path).unwrap();
    await_that("the empty file is seen", || !is_away());
    new.write_all(b"000001").unwrap();
    drop(new);
    await_state(&path, "replicated");
    assert_eq!(domain.eval(&reading(&path)), "b'000001'");
    // A wish for a place without a file can be taken back.
    fs::remove_file(&path).unwrap();
    await_that("it is away", is_away);
    // Also where a link has come to the place, which gets no copies.
    std::os::unix::fs::symlink("/usr/bin/true", &path).unwrap();
    assert!(run(["replicate", "remove", &path]).status.success());
    assert!(status(&path).is_none());
    replicator.stop();
}

#[test]
fn a_file_that_is_renamed_over_another_one_leaves_the_wish_for_its_former_place() {
    let [new, old] = ["renamed.new", "renamed"].map(plugin);
    let replicator = Replicator::start("");
    add("", &[new.clone(), old.clone()], "replicated");
    let mut domain = Python::at_home("renamed", 1);
    fs::write(&new, "000001").unwrap();
    await_state(&new, "replicated");
    fs::rename(&new, &old).unwrap();
    await_that("the wish for the former place waits", || {
        status(&new).is_some_and(|it| it["why"] == "no file at its place can have copies")
    });
    await_state(&old, "replicated");
    assert_eq!(domain.eval(&reading(&old)), "b'000001'");
    fs::write(&new, "000002").unwrap();
    await_state(&new, "replicated");
    assert_eq!(domain.eval(&reading(&new)), "b'000002'");
    fs::write(&old, "000003").unwrap();
    await_state(&old, "replicated");
    assert_eq!(domain.eval(&reading(&old)), "b'000003'");
    // A second name has no copies. Once the first has gone, it is the file's place.
    let second = format!("{old}.second");
    fs::hard_link(&old, &second).unwrap();
    let refused = run(["replicate", "add", &second]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains(&format!("another name of {old}")), "{}", stderr(&refused));
    assert!(status(&second).is_none() && status(&old).is_some());
    fs::remove_file(&old).unwrap();
    add("", std::slice::from_ref(&second), "replicated");
    let device = format!("__import__('os').stat('{second}').st_dev");
    assert_ne!(domain.eval(&device), fs::metadata(&second).unwrap().dev().to_string());
    replicator.stop();
}

/// The file still has a name, and processes that use its copies.
#[test]
fn what_is_written_to_a_file_is_seen_also_once_another_one_has_its_former_place() {
    let folder = "/tmp/moved";
    fs::create_dir_all(folder).unwrap();
    let path = plugin("moved/text.so");
    let replicator = Replicator::start("");
    type Move<'a> = &'a dyn Fn() -> String;
    let moves: &[(&str, Move<'_>)] = &[
        ("the file", &|| {
            fs::rename(&path, "/tmp/moved.so").unwrap();
            "/tmp/moved.so".into()
        }),
        ("its folder", &|| {
            fs::rename(folder, "/tmp/moved.old").unwrap();
            fs::create_dir(folder).unwrap();
            "/tmp/moved.old/text.so".into()
        }),
    ];
    for (round, (what, make)) in moves.iter().enumerate() {
        add("", std::slice::from_ref(&path), "replicated");
        let mut domain = Python::at_home(&format!("moved{round}"), 1);
        // A namespace of its own, with the copies of the domain that it was made from.
        let mut stray = Python::at_home_in_namespace(&format!("stray{round}"), 2);
        for user in [&mut domain, &mut stray] {
            user.exec(&format!("import mmap\nfile = open('{path}', 'rb', 0)"));
            user.exec("mapped = mmap.mmap(file.fileno(), 6, prot=mmap.PROT_READ)");
            let device = user.eval("__import__('os').fstat(file.fileno()).st_dev");
            assert_ne!(device, fs::metadata(&path).unwrap().dev().to_string());
        }
        let now = make();
        fs::write(&path, "000001").unwrap();
        let written = OpenOptions::new().write(true).open(&now).unwrap();
        written.write_all_at(b"000002", 0).unwrap();
        for user in [&mut domain, &mut stray] {
            assert_eq!(user.eval("mapped[:6]"), "b'000002'", "{what} has moved");
            assert_eq!(user.eval("file.read(6)"), "b'000002'", "{what} has moved");
            assert_eq!(user.eval(&reading(&path)), "b'000001'");
        }
    }
    replicator.stop();
}

#[test]
fn a_file_goes_with_its_file_system() {
    let folder = "/tmp/unmounted";
    fs::create_dir_all(folder).unwrap();
    let mount = ["-t", "tmpfs", "tmpfs", folder];
    assert!(Command::new("mount").args(mount).status().unwrap().success());
    let path = plugin("unmounted/file");
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    assert!(Command::new("umount").arg(folder).status().unwrap().success());
    await_that("it is away", || {
        status(&path).is_some_and(|it| it["why"] == "no file at its place can have copies")
    });
    replicator.stop();
}

#[test]
fn a_replicator_ends_with_its_terminal_in_order() {
    let path = plugin("hung-up.so");
    let mut replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    let mut domain = Python::at_home("hung-up", 1);
    let device = format!("__import__('os').stat('{path}').st_dev");
    let original = fs::metadata(&path).unwrap().dev().to_string();
    assert_ne!(domain.eval(&device), original);
    send(replicator.child.id(), Signal::HUP);
    assert_eq!(replicator.child.wait().unwrap().code(), Some(0));
    assert_eq!(domain.eval(&device), original);
}

#[test]
fn a_killed_replicator_leaves_nothing_that_its_successor_does_not_clear() {
    let path = plugin("killed.so");
    let mut replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    let mut domain = Python::at_home("killed", 3);
    let mounts = "open('/proc/self/mountinfo').read().count('nearside-text')";
    assert_eq!(domain.eval(mounts), "1");
    domain.exec(&format!(
        "import mmap\nwith open('{path}', 'rb') as it: \
         mapped = mmap.mmap(it.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)"
    ));
    replicator.kill();
    fs::write(&path, "000000").unwrap();
    assert_ne!(domain.eval("mapped[:6]"), "b'000000'");
    let _next = Replicator::again("");
    assert_eq!(domain.eval(mounts), "0");
    assert_eq!(domain.eval("mapped[:6]"), "b'000000'");
    assert_eq!(domain.eval(&reading(&path)), "b'000000'");
    fs::write(&path, "000001").unwrap();
    assert_eq!(domain.eval("mapped[:6]"), "b'000001'");
    assert!(run(["replicate", "status"]).status.success());
}

#[test]
fn removing_gives_all_domains_the_original_back() {
    let path = plugin("removed.so");
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    let mut domain = Python::at_home("removed", 3);
    let device = format!("__import__('os').stat('{path}').st_dev");
    let original = fs::metadata(&path).unwrap().dev().to_string();
    assert_ne!(domain.eval(&device), original);
    assert!(run(["replicate", "remove", &path]).status.success());
    assert_eq!(domain.eval(&device), original);
    assert!(status(&path).is_none());
    assert_eq!(run(["replicate", "remove", &path]).status.code(), Some(1));
    // A file that is added later is bound in domains that run already.
    add("--nodes 3", std::slice::from_ref(&path), "replicated");
    await_state(&path, "replicated");
    assert_ne!(domain.eval(&device), original);
    replicator.stop();
}

/// A process outside of all domains has a copy by a descriptor that a domain has sent.
#[test]
fn a_descriptor_of_a_copy_that_has_left_its_domain_shows_what_is_written_next() {
    let path = plugin("sent.so");
    let replicator = Replicator::start("");
    add("", std::slice::from_ref(&path), "replicated");
    let (mut domain, mut other) = (Python::at_home("sender", 1), Python::plain(3));
    other.exec(
        "import os, socket\nlistener = socket.socket(socket.AF_UNIX)\n\
         listener.bind('/tmp/sent.socket')\nlistener.listen()",
    );
    domain.exec(&format!(
        "import socket\nclient = socket.socket(socket.AF_UNIX)\n\
         client.connect('/tmp/sent.socket')\n\
         with open('{path}', 'rb', 0) as file: socket.send_fds(client, [b'x'], [file.fileno()])"
    ));
    other.exec("_, [copy], _, _ = socket.recv_fds(listener.accept()[0], 1, 1)");
    let original = fs::metadata(&path).unwrap().dev().to_string();
    assert_ne!(other.eval("os.fstat(copy).st_dev"), original);
    fs::write(&path, "000001").unwrap();
    // The writer does not wait for this process.
    await_that("it has the original", || other.eval("os.fstat(copy).st_dev") == original);
    assert_eq!(other.eval("os.pread(copy, 6, 0)"), "b'000001'");
    await_that("nobody keeps memory of copies", || {
        nearside_lab::json("replicate status")["kept_bytes"]
            .as_object()
            .is_none_or(|it| it.is_empty())
    });
    await_state(&path, "replicated");
    assert!(!replicator.said().contains("a process that was not found"), "{}", replicator.said());
    replicator.stop();
}
