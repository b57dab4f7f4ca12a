//! A file that one process at a time has locked.

use rustix::{
    fs::{FlockOperation, flock},
    io::{Errno, retry_on_intr},
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A file for a lock (`flock`) that one process at a time holds. The lock ends when this is
/// dropped. When the process executes a program or dies, it ends with the last child that shares
/// the open file.
///
/// A child that another thread has just forked shares it until it executes its program. Closing the
/// file alone would leave the lock with that child, so dropping this unlocks it.
#[derive(Debug)]
pub struct LockFile(OwnedFd);

impl LockFile {
    pub(crate) fn new(file: OwnedFd) -> Self {
        Self(file)
    }

    /// Tries to take the lock. False if another process has it.
    ///
    /// # Errors
    /// Those of `flock`, such as `ENOLCK` on a file system without locks.
    pub fn try_lock(&self) -> Result<bool, Errno> {
        match retry_on_intr(|| flock(&self.0, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for LockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use crate::folder::Folder;

    #[test]
    fn the_lock_ends_although_a_forked_child_shares_the_file() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::make(&root.path().join("own")).unwrap();
        let held = folder.lock_file("lock").unwrap();
        assert!(held.try_lock().unwrap());
        // A copied descriptor shares the open file as a forked child does.
        let _childs = rustix::io::dup(&held).unwrap();
        let other = folder.lock_file("lock").unwrap();
        assert!(!other.try_lock().unwrap());
        drop(held);
        assert!(other.try_lock().unwrap());
    }
}
