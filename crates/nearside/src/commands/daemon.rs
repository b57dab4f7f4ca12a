//! `nearside daemon`: keeps domains at home while it runs.

use crate::{
    daemon::{
        access::Access,
        api::{Api, Groups, Limits, Server},
        audit::AuditLog,
        config::{Config, DEFAULT_PATH},
        control_loop::ControlLoop,
        inbox::Inbox,
        scheduler::SchedulerControl,
        snapshot::Event,
    },
    domains::open_host,
    failure::{Failure, Outcome},
    output,
};
use nearside_linux::{Paths, folder::Folder};
use nearside_scheduler::Options;
use rustix::{
    fs::FlockOperation,
    io::Errno,
    process::{geteuid, getpid},
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

/// The file that the one daemon of a host holds a lock on.
const LOCK: &str = "daemon.lock";

/// What may wait for the loop: changes, and what signals say.
const MOST_EVENTS: usize = 64;

/// Keep domains at home: attach the scheduler, change homes that do not serve, bring memory home, answer the API
///
/// Runs until SIGTERM or SIGINT; SIGHUP reads the configuration again. Domains go on without it: killed, it loses nothing but
/// the scheduler, and the next one goes on where it was.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside daemon --check-config
  sudo nearside daemon
  sudo curl --unix-socket /run/nearside/api.socket http://localhost/domains

Exit codes:
  0  told to stop
  1  could not be started: no root, a configuration that is wrong, another daemon
  2  the command line was not understood")]
pub(crate) struct Args {
    /// The configuration [default: /etc/nearside/daemon.toml, where there is one]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,

    /// Say whether the configuration is right, and do nothing
    #[arg(long)]
    check_config: bool,

    /// For tests: the scheduler stops dispatching after so many milliseconds, so that the kernel ejects it
    #[arg(long, hide = true, value_name = "MS")]
    stall_scheduler_after_ms: Option<u64>,

    /// For tests: after how many milliseconds without a turn for some task the kernel ejects the scheduler
    #[arg(long, hide = true, value_name = "MS")]
    scheduler_watchdog_ms: Option<u64>,
}

impl Args {
    fn path(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new(DEFAULT_PATH))
    }
}

pub(crate) fn run(args: &Args) -> Outcome {
    let config = Config::read(args.path(), args.config.is_some()).map_err(Failure::could_not)?;
    let in_file = |error| Failure::could_not(format_args!("{}: {error}", args.path().display()));
    let access = Access::new(&config.api).map_err(in_file)?;
    if args.check_config {
        let path = args.path();
        return output::print(&match path.exists() {
            true => format!("{}: right\n", path.display()),
            false => format!("there is no {}: the defaults hold\n", path.display()),
        });
    }
    if !geteuid().is_root() {
        return Err(Failure::could_not("the daemon changes other users' domains: it needs root"));
    }
    let state = Folder::make(&Paths::default().state).map_err(Failure::could_not)?;
    let _lock = only_one(&state)?;
    let host = open_host()?;
    let watcher = host.watcher(config.found.clone());

    let (sender, events) = sync_channel(MOST_EVENTS);
    hear_signals(sender.clone())?;
    let groups = Groups { tree: host.tree().clone(), proc: host.proc() };
    let api = Api::new(access, AuditLog::new(&config.audit.log), sender, Limits::default(), groups);
    let server = Server::start(Arc::clone(&api), &config.api.socket).map_err(Failure::could_not)?;
    output::note([format!(
        "daemon {} started, the API answers at {}",
        env!("CARGO_PKG_VERSION"),
        config.api.socket.display()
    )]);
    let scheduler = SchedulerControl::new(Options {
        stall_after: args.stall_scheduler_after_ms.map(Duration::from_millis),
        watchdog: args.scheduler_watchdog_ms.map(Duration::from_millis),
        ..Options::default()
    });
    let mut control_loop =
        ControlLoop::new(host, watcher, config, state, scheduler, Arc::clone(&api));
    control_loop.run(&Inbox::new(events), |control_loop| reload(control_loop, &api, args));
    server.stop();
    Ok(())
}

/// Makes sure that no other daemon runs, as long as the answer is held.
fn only_one(state: &Folder) -> Result<OwnedFd, Failure> {
    let lock = state.lock_file(LOCK).map_err(Failure::could_not)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            // Only for people: what counts is the lock.
            let holder = format!("{}\n", getpid().as_raw_nonzero());
            let _ = rustix::fs::ftruncate(&lock, 0)
                .and_then(|()| rustix::io::pwrite(&lock, holder.as_bytes(), 0));
            Ok(lock)
        }
        Err(Errno::WOULDBLOCK) => {
            let held_by = state.read(LOCK).ok().flatten().unwrap_or_default();
            let path = state.path().join(LOCK);
            let (held_by, path) = (String::from_utf8_lossy(&held_by), path.display());
            Err(Failure::could_not(format_args!(
                "another daemon runs: process {} holds {path}",
                held_by.trim()
            )))
        }
        Err(error) => {
            Err(Failure::could_not(format_args!("{}: {error}", state.path().join(LOCK).display())))
        }
    }
}

/// Tells the loop of signals, from a thread of its own.
fn hear_signals(events: SyncSender<Event>) -> Result<(), Failure> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(Failure::could_not)?;
    let hear = move || {
        for signal in signals.forever() {
            let event = if signal == SIGHUP { Event::Reload } else { Event::Stop };
            if events.send(event).is_err() {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("nearside-signals".into())
        .spawn(hear)
        .map(drop)
        .map_err(Failure::could_not)
}

/// Reads the configuration again. One that is wrong changes nothing.
fn reload(control_loop: &mut ControlLoop, api: &Api, args: &Args) {
    // Whoever rotated the audit log waits for that, whatever the configuration is.
    api.reopen_audit();
    let path = args.path();
    let (config, note) = match control_loop.config().reloaded(path, args.config.is_some()) {
        Ok(new) => new,
        Err(error) => return output::note([format!("{error}; the configuration stays as it was")]),
    };
    output::note(note);
    let access = match Access::new(&config.api) {
        Ok(access) => access,
        Err(error) => {
            return output::note([format!(
                "{}: {error}; the configuration stays as it was",
                path.display()
            )]);
        }
    };
    output::note(api.reconfigure(access, &config.audit.log).err());
    control_loop.reconfigure(config);
    output::note([match path.exists() {
        true => format!("{}: read again", path.display()),
        false => format!("there is no {}: the defaults hold", path.display()),
    }]);
}
