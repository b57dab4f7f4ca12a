//! An attacker who renames folders and places links while the helper binds copies.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

mod common;

use nearside_replicas::{
    FileId,
    namespace::{Bound, Namespace, Visitor},
};
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    mount::{OpenTreeFlags, open_tree},
};
use std::{
    fs,
    io::{BufRead, BufReader},
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt, symlink},
    },
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

#[test]
fn an_attacker_cannot_redirect_a_bind() {
    attacked(300);
}

#[test]
#[ignore = "long: make replicas-race"]
fn an_attacker_cannot_redirect_a_bind_in_100_000_rounds() {
    attacked(100_000);
}

/// A process in a mount namespace of its own. Dropping this ends it.
struct Domain(Child);

impl Domain {
    fn start() -> Self {
        let mut command = Command::new("unshare");
        let command = command.args(["--mount", "sh", "-c", "echo ready; read -r line"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    /// Everything that it sees in those of these that are folders. An absolute link would lead out
    /// of its namespace.
    fn sees(&self, folders: &[PathBuf]) -> Vec<FileId> {
        let root = PathBuf::from(format!("/proc/{}/root", self.0.id()));
        let within = |folder: &PathBuf| root.join(folder.strip_prefix("/").unwrap());
        let folders = folders.iter().map(within);
        let folders = folders.filter(|it| fs::symlink_metadata(it).unwrap().is_dir());
        let entries = folders.flat_map(|folder| fs::read_dir(folder).unwrap());
        let links = entries.map(|entry| fs::symlink_metadata(entry.unwrap().path()).unwrap());
        links.map(|it| FileId { device: it.dev(), inode: it.ino() }).collect()
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `served/file` is the original, and the two other files must never be covered. The attacker swaps
/// the folder for a link to another one and for a third, and the file in it for a link.
pub(crate) fn attacked(rounds: u32) {
    if !common::is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for place in ["served", "protected", "decoy"] {
        fs::create_dir(at(place)).unwrap();
        fs::write(at(place).join("file"), place).unwrap();
    }
    symlink(at("protected"), at("link")).unwrap();
    symlink(at("protected/file"), at("served/link")).unwrap();
    fs::write(at("copy"), "served").unwrap();
    let id = |name: &str| FileId::at(&at(name)).unwrap();
    let (original, copy) = (id("served/file"), id("copy"));
    let others = [id("protected/file"), id("decoy/file")];

    let domain = Domain::start();
    let namespace = Namespace::of(domain.0.id()).unwrap();
    let ended = AtomicBool::new(false);
    // Held by the attacker for each round, and by the test while it looks.
    let names = Mutex::new(());
    // The attacker, which comes back to the mutex at once, leaves it to the test.
    let is_looking = AtomicBool::new(false);
    let (mut bound, mut elsewhere) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let exchange = |one: &str, other: &str| {
                let flags = RenameFlags::EXCHANGE;
                let _ = renameat_with(CWD, at(one), CWD, at(other), flags);
            };
            while !ended.load(Ordering::Relaxed) {
                if is_looking.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                    continue;
                }
                let _names = names.lock().unwrap_or_else(PoisonError::into_inner);
                exchange("served", "link");
                exchange("served/file", "served/link");
                exchange("served", "decoy");
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let visitor = Visitor::new(Namespace::own().unwrap()).unwrap();
            let look = |shows_copy: bool, round: u32| {
                is_looking.store(true, Ordering::Relaxed);
                let _names = names.lock().unwrap();
                is_looking.store(false, Ordering::Relaxed);
                let seen = domain.sees(&["served", "link", "protected", "decoy"].map(at));
                assert!(others.iter().all(|other| seen.contains(other)), "round {round}");
                assert_eq!(seen.contains(&copy), shows_copy, "round {round}");
            };
            let mut round = 0;
            // A busy host may give one of both no turn in so many rounds.
            while round < rounds || (bound == 0 || elsewhere == 0) && round < 1_000 * rounds {
                let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
                let tree = open_tree(CWD, at("copy"), flags).unwrap();
                let path = at("served/file");
                // A rename in the middle of the look-up is a failure that the kernel reports.
                match visitor.bind(&namespace, None, tree, &path, original) {
                    Ok(Bound::Mount(mount)) => {
                        bound += 1;
                        look(true, round);
                        visitor.unbind(&namespace, &[mount.as_fd()]).unwrap();
                    }
                    Ok(Bound::NotThere | Bound::Shared) | Err(_) => elsewhere += 1,
                }
                look(false, round);
                round += 1;
            }
        }));
        ended.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    assert!(bound > 0 && elsewhere > 0, "{bound} bound, {elsewhere} refused: no race");
    println!("{bound} binds to the original, {elsewhere} refused");
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", domain.0.id())).unwrap();
    assert!(!mounts.contains(folder.path().to_str().unwrap()), "{mounts}");
}
