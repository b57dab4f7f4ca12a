//! The signals of the helper, as a descriptor to wait for.

use crate::error::{Error, IoContext};
use nix::sys::{
    signal::{SigSet, SigmaskHow, Signal, pthread_sigmask},
    signalfd::{SfdFlags, SignalFd},
};
use std::{
    fs,
    os::fd::{AsFd, BorrowedFd},
};

/// A lease is being broken. Several signals may be merged into one, and a real-time signal with a
/// descriptor is lost once the queue is full. So it only wakes the helper, which looks at every
/// lease.
const BREAK: Signal = Signal::SIGIO;

/// The helper shall end.
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
        let doing = || "redirecting signals".to_owned();
        let status = fs::read_to_string("/proc/self/status").doing(doing)?;
        let mut set: SigSet = ENDING.into_iter().chain([BREAK]).collect();
        // It comes with the end of the terminal, and nohup(1) has it ignored. A descriptor would
        // get it all the same.
        if is_ignored(Signal::SIGHUP, &status) {
            set.remove(Signal::SIGHUP);
        }
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

/// Whether a `/proc/PID/status` names a signal among those that are ignored.
fn is_ignored(signal: Signal, status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal as u32 - 1) & 1 == 1)
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_of_ignored_signals_begins_with_the_first() {
        let is_ignored = |signal| is_ignored(signal, "SigBlk:\t0001\nSigIgn:\t0000000000001001\n");
        assert!(is_ignored(Signal::SIGHUP) && is_ignored(Signal::SIGPIPE));
        assert!(!is_ignored(Signal::SIGTERM));
        assert!(!super::is_ignored(Signal::SIGHUP, "SigIgn:\tnone\n"));
    }
}
