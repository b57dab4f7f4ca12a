//! The signals of the helper, as a descriptor to wait for.

use crate::error::{Error, IoContext};
use nix::sys::{
    signal::{SigSet, SigmaskHow, Signal, pthread_sigmask},
    signalfd::{SfdFlags, SignalFd},
};
use std::os::fd::{AsFd, BorrowedFd};

/// A lease is being broken. Several signals may be merged into one, and a real-time signal with a
/// descriptor is lost once the queue is full. So it only wakes the helper, which looks at every
/// lease.
const BREAK: Signal = Signal::SIGIO;

/// The helper shall end: copies without a lease must not stay. `SIGHUP` comes with the end of the
/// terminal that it was started on.
const ENDING: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// Signals that are taken from a descriptor.
#[derive(Debug)]
pub(crate) struct Signals {
    file: SignalFd,
}

/// The signals that were there.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Taken {
    pub(crate) is_break: bool,
    pub(crate) is_end: bool,
}

impl Signals {
    /// Redirects the signals to a descriptor. To be called before threads exist, since a thread
    /// that does not block a signal gets it.
    pub(crate) fn redirect() -> Result<Self, Error> {
        let set: SigSet = ENDING.into_iter().chain([BREAK]).collect();
        let doing = || "redirecting signals".to_owned();
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&set), None).doing(doing)?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        Ok(Self { file: SignalFd::with_flags(&set, flags).doing(doing)? })
    }

    /// Takes all signals that are there.
    pub(crate) fn take(&self) -> Taken {
        let mut taken = Taken::default();
        while let Ok(Some(signal)) = self.file.read_signal() {
            let is = |it: Signal| signal.ssi_signo == it as u32;
            taken.is_break |= is(BREAK);
            taken.is_end |= ENDING.into_iter().any(is);
        }
        taken
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
