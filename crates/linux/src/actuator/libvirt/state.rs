//! Memory of failures: a daemon that does not answer, and refusals that would only be repeated.

use crate::error::Error;
use nearside_libvirt_rpc::{Connection, Error as RpcError, SOCKETS};
use nearside_policy::CellId;
use nearside_topology::CpuSet;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The bound of one call. libvirt answers in milliseconds, unless it is stopped.
const CALL: Duration = Duration::from_secs(2);

/// The bound of all calls of a change. A domain of 256 vCPUs needs some 260.
const CHANGE: Duration = Duration::from_secs(4);

/// For so long libvirt is not asked again after a time-out, and a domain not after a refusal.
const PAUSE: Duration = Duration::from_secs(30);

/// The known state of libvirt's daemon.
#[derive(Debug)]
pub(crate) struct LibvirtState {
    sockets: Vec<PathBuf>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// The time of the last time-out, and its message.
    silent: Option<(Instant, String)>,
    /// Refusals of CPUs for a group, or one of its cells.
    refused: BTreeMap<(String, Option<CellId>), Refused>,
}

#[derive(Debug)]
struct Refused {
    cpus: CpuSet,
    at: Instant,
    why: String,
}

impl LibvirtState {
    /// The daemon of the host below `root`.
    pub(crate) fn of(root: &Path) -> Self {
        let sockets = SOCKETS.iter().map(|socket| root.join(socket.trim_start_matches('/')));
        Self { sockets: sockets.collect(), known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // The state left by a panicking thread is still true.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection for one change.
    pub(super) fn connect(&self) -> Result<Connection, String> {
        let silent = self.known().silent.take_if(|(at, _)| at.elapsed() < PAUSE);
        if let Some((at, why)) = silent {
            let before_s = at.elapsed().as_secs();
            let said = format!("{why} ({before_s} s ago; asked again after {} s)", PAUSE.as_secs());
            self.known().silent = Some((at, why));
            return Err(said);
        }
        let until = Instant::now() + CHANGE;
        let mut connection =
            Connection::open(&self.sockets, CALL).map_err(|it| self.failed(&it))?;
        connection.end_by(until);
        Ok(connection)
    }

    /// The message of a failure. A time-out is remembered.
    pub(super) fn failed(&self, error: &RpcError) -> String {
        let message = error.to_string();
        if matches!(error, RpcError::TimedOut { .. }) {
            self.known().silent = Some((Instant::now(), message.clone()));
        }
        message
    }

    /// Changes the CPUs of a group or of one of its cells, unless the same change was refused a
    /// short while ago: the control loop wants it in every interval.
    pub(super) fn unless_refused(
        &self,
        (path, cell): (&str, Option<CellId>),
        cpus: &CpuSet,
        change: impl FnOnce() -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        self.known().refused.retain(|_, refused| refused.at.elapsed() < PAUSE);
        let key = (path.to_owned(), cell);
        let refused = self.known().refused.get(&key).map(|it| (it.cpus == *cpus, it.why.clone()));
        if let Some((true, why)) = refused {
            return Err(Error::Unchanged(why));
        }
        let changed = change();
        if let Err(Error::Unchanged(why)) = &changed {
            let refused = Refused { cpus: cpus.clone(), at: Instant::now(), why: why.clone() };
            self.known().refused.insert(key, refused);
        }
        changed
    }
}
