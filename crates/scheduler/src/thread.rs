//! A thread that the kernel cannot mistake for another.

use rustix::{
    fs::OFlags,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

/// One thread of any process. It names the same thread even after its number has been given to
/// another.
#[derive(Debug)]
pub struct Thread(OwnedFd);

impl Thread {
    /// The thread that has this number now. Check afterwards that it is the one you mean: the
    /// number may have been given to another before.
    ///
    /// # Errors
    /// `ESRCH` if there is none; `EINVAL` before Linux 6.9.
    pub fn open(number: i32) -> io::Result<Self> {
        // PIDFD_THREAD of include/uapi/linux/pidfd.h, which rustix does not name.
        let of_thread = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());
        // `from_raw` takes no negative number.
        let pid = (number > 0).then(|| Pid::from_raw(number)).flatten();
        let number = pid.ok_or(rustix::io::Errno::SRCH)?;
        Ok(Self(pidfd_open(number, of_thread)?))
    }

    /// The key of its entry in a map of the kind task storage.
    pub(crate) fn key(&self) -> [u8; 4] {
        self.0.as_raw_fd().to_ne_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_without_a_thread_is_refused() {
        for number in [0, -1, i32::MAX] {
            let refused = Thread::open(number).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::SRCH.raw_os_error()));
        }
    }

    #[test]
    fn a_thread_that_leads_no_process_can_be_opened() {
        let number = std::thread::spawn(|| {
            let own = rustix::thread::gettid().as_raw_pid();
            (own, Thread::open(own).map(drop))
        });
        let (number, opened) = number.join().unwrap();
        assert_ne!(number, std::process::id().cast_signed());
        opened.unwrap();
    }
}
