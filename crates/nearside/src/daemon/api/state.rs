//! The state that all requests share.

use super::{changes::Changes, limits::Limits};
use crate::daemon::{
    access::{Access, Caller, Rights},
    audit::AuditLog,
    published::Published,
    snapshot::Event,
    socket::Socket,
};
use nearside_linux::cgroup::Tree;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, mpsc::SyncSender},
};
use tokio::sync::Semaphore;

/// Sources of facts that no snapshot has.
#[derive(Debug)]
pub struct Groups {
    /// The cgroups.
    pub tree: Tree,
    /// The kernel's figures of processes (`/proc`).
    pub proc: PathBuf,
}

/// The source of answers, and the destination of changes.
#[derive(Debug)]
pub struct Api {
    /// The control loop's snapshots.
    pub published: Published,
    pub(super) access: RwLock<Access>,
    pub(super) events: SyncSender<Event>,
    pub(super) limits: Limits,
    pub(super) groups: Groups,
    pub(super) changes: Changes,
    /// One permit. Reading `numa_maps` blocks a process that maps memory meanwhile, so at most one
    /// such read is under way.
    pub(super) looks: Arc<Semaphore>,
    audit: Mutex<AuditLog>,
    socket: Mutex<Option<Socket>>,
}

impl Api {
    /// An API without a snapshot yet. Changes go into `events`, and are refused while that is full.
    pub fn new(
        access: Access,
        audit: AuditLog,
        events: SyncSender<Event>,
        limits: Limits,
        groups: Groups,
    ) -> Arc<Self> {
        Arc::new(Self {
            published: Published::default(),
            access: RwLock::new(access),
            events,
            limits,
            groups,
            changes: Changes::default(),
            looks: Arc::new(Semaphore::new(1)),
            audit: Mutex::new(audit),
            socket: Mutex::default(),
        })
    }

    /// Applies a changed configuration. Open connections keep their rights. The socket gets its new
    /// group, and the audit log is opened again.
    ///
    /// # Errors
    /// If the socket could not be given to the new group, or is no longer in its place.
    pub fn reconfigure(&self, access: Access, audit_log: &Path) -> Result<(), String> {
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = access;
        self.audit().reopen(audit_log);
        self.socket().as_ref().map_or(Ok(()), |socket| socket.give(&access))
    }

    /// Opens the audit log again at its path, because logs may have been rotated.
    pub fn reopen_audit(&self) {
        self.audit().reopen_here();
    }

    pub(super) fn access(&self) -> Access {
        *self.access.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn rights(&self, caller: &Caller) -> Rights {
        self.access().rights(caller)
    }

    pub(super) fn audit(&self) -> MutexGuard<'_, AuditLog> {
        self.audit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn socket(&self) -> MutexGuard<'_, Option<Socket>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
