//! Processes that still have a copy after it has gone.
//!
//! A process amid `open(2)` or `execve(2)` shows a copy neither in its maps nor among its
//! descriptors, and one outside of all domains may have been sent a descriptor. So users of a copy
//! are looked for again once the writer has gone on. The kernel tells whether any process has the
//! copy open or mapped (`Remains::is_held`), though not which.

use super::{
    Replicator,
    file::{Whose, Withdrawn},
};
use crate::{
    file_id::{FileId, Identity},
    users::Use,
};
use nearside_linux::escape;
use std::{
    collections::BTreeSet,
    fs, mem,
    path::PathBuf,
    time::{Duration, Instant},
};

/// The looks, each with the time since the one before. The second one is made for copies that are
/// held by none of the processes found.
const LOOKS: [(Whose, Duration); 2] =
    [(Whose::WithCopies, Duration::from_millis(20)), (Whose::All, Duration::from_millis(200))];

impl Replicator {
    /// Looks for users of copies again, later than `since`, when the writer went on.
    pub(super) fn look_late(&mut self, withdrawn: Withdrawn, since: Instant) {
        if withdrawn.is_replaced {
            return;
        }
        self.late.push(Withdrawn { next_look: since + LOOKS[0].1, ..withdrawn });
    }

    /// The time until that.
    pub(super) fn until_late(&self) -> Option<Duration> {
        let next = self.late.iter().map(|late| late.next_look).min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// Looks for users of the copies of one file whose time has come. Others have their turn after
    /// the writers that wait by then.
    pub(super) fn look_for_late_users(&mut self) {
        let now = Instant::now();
        let Some(due) = self.late.iter().position(|late| late.next_look <= now) else { return };
        let mut late = self.late.swap_remove(due);
        if self.is_replaced_since(&late) {
            return;
        }
        let whose = LOOKS[late.looks].0;
        self.return_processes(&mut late, whose, None);
        let held = self.held_of(&late);
        if held.is_empty() {
            return;
        }
        if is_explained(&held, late.settled.iter().copied()) {
            return;
        }
        late.looks += 1;
        match LOOKS.get(late.looks) {
            Some((_, wait)) => {
                late.next_look = Instant::now() + *wait;
                self.late.push(late);
            }
            // A child of a process that has ended may have one as its executable.
            None if is_explained(&held, processes().into_iter()) => {}
            None => {
                let path = escape::text(&late.place.path);
                log!("a process that was not found keeps a copy of {path}");
            }
        }
    }

    /// Makes the looks that are left, at the end.
    pub(super) fn look_for_last_users(&mut self) {
        for mut late in mem::take(&mut self.late) {
            if self.is_replaced_since(&late) {
                continue;
            }
            self.return_processes(&mut late, Whose::WithCopies, None);
            let held = self.held_of(&late);
            if !is_explained(&held, late.settled.iter().copied()) {
                self.return_processes(&mut late, Whose::All, None);
            }
        }
    }

    /// Whether the place of a file names another one by now, which may have got its inode, or none.
    fn is_replaced_since(&self, gone: &Withdrawn) -> bool {
        // It was elsewhere before.
        if gone.moved.is_some() {
            return false;
        }
        let there = self.visitor.open_on_host(&gone.place.on_host());
        let there = there.and_then(|file| Identity::of(file).ok());
        there.is_none() || there != gone.identity
    }

    /// Those copies that any process still has.
    fn held_of(&self, gone: &Withdrawn) -> BTreeSet<FileId> {
        let copies: BTreeSet<_> = gone.copies.iter().map(|(_, copy)| copy.id).collect();
        let remains = self.remains.iter().filter(|it| copies.contains(&it.copy) && it.is_held());
        remains.map(|it| it.copy).collect()
    }
}

/// Whether each of these copies has a user among these processes.
fn is_explained(copies: &BTreeSet<FileId>, processes: impl Iterator<Item = u32> + Clone) -> bool {
    let uses = |process: u32, copy: FileId| {
        FileId::at(&PathBuf::from(format!("/proc/{process}/exe"))).is_ok_and(|it| it == copy)
            || matches!(Use::of(&[copy].into(), process), Use::Some(_))
    };
    copies.iter().all(|copy| processes.clone().any(|process| uses(process, *copy)))
}

/// All processes but this one, which has each of the copies that it asks the kernel about open.
fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|it| it.file_name().to_str()?.parse().ok());
    numbers.filter(|process| *process != std::process::id()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, process::Command, process::Stdio};

    #[test]
    fn a_copy_is_explained_by_a_process_that_has_it_open_or_was_started_from_it() {
        let folder = tempfile::tempdir().unwrap();
        let (program, data) = (folder.path().join("cat"), folder.path().join("data"));
        fs::copy(fs::canonicalize("/bin/cat").unwrap(), &program).unwrap();
        fs::write(&data, "data").unwrap();
        let start = |program: &std::path::Path, input: Stdio| {
            Command::new(program).arg("-").stdin(input).stdout(Stdio::piped()).spawn().unwrap()
        };
        let (executable, opened) = (FileId::at(&program).unwrap(), FileId::at(&data).unwrap());
        let mut child = start(&program, Stdio::piped());
        let own = File::open(&data).unwrap();
        let explained = |copies: &[FileId], process| {
            is_explained(&copies.iter().copied().collect(), [process].into_iter())
        };
        assert!(explained(&[executable], child.id()));
        assert!(!explained(&[executable, opened], child.id()), "one of them alone");
        assert!(explained(&[opened], std::process::id()));
        assert!(!processes().contains(&std::process::id()));
        assert!(processes().contains(&child.id()));
        drop((own, child.stdin.take()));
        child.wait().unwrap();
    }
}
