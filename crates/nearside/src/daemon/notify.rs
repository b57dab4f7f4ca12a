//! Messages to systemd (`sd_notify(3)`). There are none if systemd did not start this process.

use crate::output;
use sd_notify::NotifyState;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// Bound on [`slow`] work: ten times the watchdog of the shipped unit, which work on an emulated
/// host has exceeded. During the start, `TimeoutStartSec=` is the bound.
const SLOW: Duration = Duration::from_secs(300);

/// Whether [`ready`] was sent.
static STARTED: AtomicBool = AtomicBool::new(false);

/// The first interval has ended and the API answers.
pub fn ready(status: &str) {
    STARTED.store(true, Ordering::Relaxed);
    tell(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
}

/// The configuration is being read again, until [`ready`]. `Type=notify-reload` also needs the
/// start time of the reload.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => output::note([format!("telling systemd of the reload: {error}")]),
    }
}

/// The end has begun.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// An interval has ended: the loop is alive. `systemctl status` shows `status`.
pub fn alive(status: &str) {
    tell(&[NotifyState::Watchdog, NotifyState::Status(&one_line(status))]);
}

/// The loop is alive, in the middle of long work. No message is sent before [`ready`]: the first
/// message starts systemd's watchdog, and a start may take longer than its time (loading the
/// scheduler on a slow host does).
pub fn busy() {
    if STARTED.load(Ordering::Relaxed) {
        tell(&[NotifyState::Watchdog]);
    }
}

/// Does work that may take longer than systemd's watchdog waits, within a bound: loading the
/// scheduler on a slow host.
pub fn slow<T>(work: impl FnOnce() -> T) -> T {
    let usual = watchdog().filter(|&usual| usual < SLOW && STARTED.load(Ordering::Relaxed));
    let wait_for = |wait: Duration| {
        let wait_us = u32::try_from(wait.as_micros()).unwrap_or(u32::MAX);
        tell(&[NotifyState::WatchdogUsec(wait_us), NotifyState::Watchdog]);
    };
    if usual.is_some() {
        wait_for(SLOW);
    }
    let done = work();
    if let Some(usual) = usual {
        wait_for(usual);
    }
    done
}

/// systemd's watchdog time: without [`alive`] for that long, systemd ends this process. `None`
/// without a watchdog.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// A status in one line: a line break would begin another message.
fn one_line(status: &str) -> String {
    status.replace(char::is_control, " ")
}

fn tell(states: &[NotifyState<'_>]) {
    // systemd itself acts on a message that is missing.
    if let Err(error) = sd_notify::notify(states) {
        output::note([format!("telling systemd: {error}")]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixDatagram, process::Command};

    /// Set for a copy of this program: the environment of a process with threads cannot be changed
    /// safely.
    const CHILD: &str = "NEARSIDE_TEST_NOTIFIES";

    #[test]
    fn systemd_gets_a_message_for_each_event_of_the_daemon() {
        if std::env::var_os(CHILD).is_some() {
            busy();
            slow(|| ());
            ready("one\nREADY=0");
            slow(|| tell(&[NotifyState::Status("loading")]));
            reloading();
            alive("3 domains");
            stopping();
            assert_eq!(watchdog(), Some(Duration::from_secs(30)));
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "daemon::notify::tests::systemd_gets_a_message_for_each_event_of_the_daemon",
            ])
            .envs([
                (CHILD, "1".as_ref()),
                ("NOTIFY_SOCKET", path.as_os_str()),
                ("WATCHDOG_USEC", "30000000".as_ref()),
            ])
            .env_remove("WATCHDOG_PID")
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
        systemd.set_nonblocking(true).unwrap();
        let receive = || {
            let mut message = [0; 256];
            let length = systemd.recv(&mut message).unwrap();
            String::from_utf8(message[..length].to_vec()).unwrap()
        };
        assert_eq!(receive(), "READY=1\nSTATUS=one READY=0\n");
        assert_eq!(receive(), "WATCHDOG_USEC=300000000\nWATCHDOG=1\n");
        assert_eq!(receive(), "STATUS=loading\n");
        assert_eq!(receive(), "WATCHDOG_USEC=30000000\nWATCHDOG=1\n");
        assert!(receive().starts_with("RELOADING=1\nMONOTONIC_USEC="));
        assert_eq!(receive(), "WATCHDOG=1\nSTATUS=3 domains\n");
        assert_eq!(receive(), "STOPPING=1\n");
        assert!(systemd.recv(&mut [0; 8]).is_err());
    }
}
