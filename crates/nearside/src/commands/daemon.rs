//! `nearside daemon`: keeps domains at home while it runs.

use crate::{
    daemon::{
        api::{Api, Groups, Limits, Server},
        audit::AuditLog,
        config::{Config, DEFAULT_PATH},
        control_loop::ControlLoop,
        inbox::Inbox,
        preflight,
        scheduler::SchedulerControl,
        snapshot::Event,
    },
    domains::open_host,
    failure::{Failure, Outcome},
    output,
};
use nearside_linux::{LockFile, Paths, folder::Folder};
use nearside_scheduler::Options;
use rustix::process::{geteuid, getpid};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

/// The file that a running daemon locks; there is one daemon per host.
const LOCK: &str = "daemon.lock";

/// The file has a process id.
const MAX_LOCK_BYTES: u64 = 64;

/// Capacity of the queue of events (changes and signals) for the loop.
const MAX_EVENTS: usize = 64;

/// Keep domains at home: schedule, re-home, move memory, answer the API
///
/// Runs until SIGTERM or SIGINT; SIGHUP reloads the configuration. Domains run on without the
/// daemon. If it is killed, only the scheduler ends, and the next daemon continues from the
/// persisted state.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside daemon --check-config
  sudo nearside daemon
  sudo curl --unix-socket /run/nearside/api.socket http://localhost/domains

Exit codes:
  0  stopped by a signal
  1  could not start: not root, invalid configuration, or another daemon runs
  2  invalid command line")]
pub(crate) struct Args {
    /// Configuration file [default: /etc/nearside/daemon.toml, if it exists]
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,

    /// Check the configuration and exit
    #[arg(long)]
    check_config: bool,

    /// For tests: the scheduler stops dispatching after so many milliseconds, so that the kernel
    /// ejects it
    #[arg(long, hide = true, value_name = "MS")]
    stall_scheduler_after_ms: Option<u64>,

    /// For tests: the kernel ejects the scheduler when a task has waited for so many milliseconds
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
    let access = preflight::check(&config).map_err(in_file)?;
    if args.check_config {
        let path = args.path();
        return output::print(&match path.exists() {
            true => format!("{}: right\n", path.display()),
            false => format!("there is no {}: defaults apply\n", path.display()),
        });
    }
    if !geteuid().is_root() {
        return Err(Failure::could_not("the daemon changes other users' domains: it needs root"));
    }
    let state = Folder::make(&Paths::default().state).map_err(Failure::could_not)?;
    let _lock = only_one(&state)?;
    let host = open_host()?;
    let watcher = host.watcher(config.found.clone());

    let (sender, events) = sync_channel(MAX_EVENTS);
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

/// Takes the lock of the one daemon; another daemon cannot start as long as the returned file is
/// open.
fn only_one(state: &Folder) -> Result<LockFile, Failure> {
    let lock = state.lock_file(LOCK).map_err(Failure::could_not)?;
    match lock.try_lock() {
        Ok(true) => {
            // For people only: the lock decides.
            let holder = format!("{}\n", getpid().as_raw_nonzero());
            let _ = rustix::fs::ftruncate(&lock, 0)
                .and_then(|()| rustix::io::pwrite(&lock, holder.as_bytes(), 0));
            Ok(lock)
        }
        Ok(false) => {
            let held_by = state.read_within(LOCK, MAX_LOCK_BYTES).ok().flatten();
            let held_by = held_by.unwrap_or_else(|| "unknown".into());
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

/// Sends signals to the loop, from a thread of its own.
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

/// Reads the configuration again. An invalid one changes nothing.
fn reload(control_loop: &mut ControlLoop, api: &Api, args: &Args) {
    // Log rotation waits for this, whether or not the configuration is valid.
    api.reopen_audit();
    let path = args.path();
    let (config, note) = match control_loop.config().reloaded(path, args.config.is_some()) {
        Ok(new) => new,
        Err(error) => {
            return output::note([format!("{error}; the earlier configuration stays in force")]);
        }
    };
    output::note(note);
    let access = match preflight::check_reloaded(&config) {
        Ok(access) => access,
        Err(error) => {
            return output::note([format!(
                "{}: {error}; the earlier configuration stays in force",
                path.display()
            )]);
        }
    };
    output::note(api.reconfigure(access, &config.audit.log).err());
    control_loop.reconfigure(config);
    output::note([match path.exists() {
        true => format!("{}: read again", path.display()),
        false => format!("there is no {}: defaults apply", path.display()),
    }]);
}
