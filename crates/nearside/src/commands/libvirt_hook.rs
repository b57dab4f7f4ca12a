//! `nearside libvirt-hook`: the filter for domains that libvirt migrates or restores to this host.
//!
//! A filter that fails cancels the migration, and one that hangs stops libvirt. So this command
//! always ends in time with exit code 0, and without an answer the XML is as it was.

use crate::{
    failure::Outcome,
    journal, output,
    race::Race,
    vm::incoming::{Incoming, NotRewritten, Rewritten},
};
use nearside_linux::{Host, Paths, Waiting, reserve_incoming};
use nearside_policy::{CostModel, Observation};
use nearside_topology::Topology;
use std::{
    ffi::{OsStr, OsString},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

/// The name in the system log.
const LOG_NAME: &str = "nearside-hook";

/// The default bound of the whole answer, in seconds.
const DEFAULT_WITHIN: &str = "0.18";

/// The part of that bound for which other starts may hold the lock is a third: the rest is for
/// reading the host, without the lock if need be.
const LOCK_SHARE: u32 = 3;

/// A longer input is dropped, and libvirt keeps its XML. It never sends more than 4 MiB
/// (`REMOTE_STRING_MAX`, `src/remote/remote_protocol.x`).
const MAX_INPUT_BYTES: u64 = 32 << 20;

/// Rewrite the bindings of a domain that libvirt migrates or restores to this host
///
/// libvirt's hook qemu.d/nearside runs it. Before a migration or a restore libvirt passes the
/// domain's XML; the answer is the XML with bindings of this machine, in the shape that `place
/// --libvirt` left in the domain's metadata. In all other operations nothing is printed.
///
/// If there is no answer in time, or any fault, the XML is printed as it was. The exit code is 0;
/// the system log has the reason.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  virsh dumpxml vm | nearside libvirt-hook vm migrate begin -

Exit codes:
  0  always, unless the command line is invalid (2)")]
pub(crate) struct Args {
    /// Answer within this many seconds, a third of which may be spent waiting for other starts
    #[arg(long, value_name = "SECONDS", value_parser = parse_within)]
    #[arg(default_value = DEFAULT_WITHIN, allow_hyphen_values = true)]
    within: Duration,

    /// The folder below which /proc, /sys, /dev and /run lie
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,

    /// The hook's arguments: guest, operation, sub-operation, and one more
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

fn parse_within(text: &str) -> Result<Duration, String> {
    crate::lock::parse_seconds(text).map(Duration::from_secs_f64)
}

/// Whether libvirt takes the output of this operation for the XML
/// (<https://libvirt.org/hooks.html>).
fn is_filter(operation: Option<&OsString>, part: Option<&OsString>) -> bool {
    let is = |word: Option<&OsString>, name: &str| word.is_some_and(|it| it == OsStr::new(name));
    (is(operation, "migrate") || is(operation, "restore")) && is(part, "begin")
}

/// News from the thread that answers.
enum News {
    /// All of the input was read.
    Input(Arc<Vec<u8>>),
    /// The answer is there.
    Answer(Answer),
}

/// An answer: the XML, or none to leave it as it was; and a remark for the log.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answer {
    xml: Option<String>,
    remark: Option<String>,
}

/// Prints the answer within its time. Reading input and host cannot be interrupted, so that happens
/// in a thread, which ends with this process: as after a kill, the store is as it was, or has a
/// reservation that lapses.
pub(crate) fn run(args: &Args) -> Outcome {
    let until = Instant::now() + args.within;
    let [guest, operation, part] = [0, 1, 2].map(|at| args.arguments.get(at));
    if !is_filter(operation, part) {
        return Ok(());
    }
    let (sender, receiver) = mpsc::channel();
    let Args { within, root, .. } = args.clone();
    let race = Arc::new(Race::default());
    let asked = Arc::clone(&race);
    // A thread that cannot start has dropped its sender.
    let _ = thread::Builder::new().spawn(move || {
        let read = read_input();
        let Ok(input) = read.map(Arc::new) else { return };
        let _ = sender.send(News::Input(Arc::clone(&input)));
        let answer = answer(&input, within / LOCK_SHARE, &root, &asked);
        let _ = sender.send(News::Answer(answer));
    });
    let mut input = None;
    let next = || receiver.recv_timeout(until.saturating_duration_since(Instant::now()));
    let answer = loop {
        match next() {
            Ok(News::Input(read)) => input = Some(read),
            Ok(News::Answer(answer)) => break answer,
            Err(error) if race.is_first() => {
                break Answer::without(error, args.within, input.is_some());
            }
            // The reservation is being written. It cannot be stopped, so it is waited for.
            Err(_) => match receiver.recv() {
                Ok(News::Input(read)) => input = Some(read),
                Ok(News::Answer(answer)) => break answer,
                Err(_) => break Answer::unchanged("there was no answer"),
            },
        }
    };
    let guest = guest.map(|guest| guest.to_string_lossy()).unwrap_or_default();
    if let Some(remark) = &answer.remark {
        let remark = format!("{guest}: {remark}");
        output::note([&remark]);
        // libvirt reads the standard error of a hook that fails, and no other.
        journal::warn(&args.root, LOG_NAME, &remark);
    }
    let unchanged = || input.as_ref().map_or(&[][..], |input| &input[..]);
    let text = answer.xml.as_ref().map_or_else(unchanged, String::as_bytes);
    // A reader that is gone needs no answer.
    let _ = write_at_once(text);
    Ok(())
}

/// Writes to standard output without a wait for its reader, if that is a pipe: half an answer,
/// because this process is killed meanwhile, would cancel the migration.
fn write_at_once(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    // Where the pipe cannot be enlarged, or is none, its reader is waited for.
    let _ = rustix::pipe::fcntl_setpipe_size(&out, text.len());
    rustix::io::write(&out, text).map_err(io::Error::from).and_then(|written| {
        let left = text.get(written..).unwrap_or_default();
        out.write_all(left).and_then(|()| out.flush())
    })
}

fn read_input() -> io::Result<Vec<u8>> {
    let mut input = Vec::new();
    io::stdin().lock().take(MAX_INPUT_BYTES + 1).read_to_end(&mut input)?;
    match input.len() as u64 > MAX_INPUT_BYTES {
        true => Err(io::ErrorKind::FileTooLarge.into()),
        false => Ok(input),
    }
}

/// Places the domain. Waits at most this long for the lock. If memory is missing, it waits as long
/// for copies of program text to go, and for the lock once more.
fn answer(input: &[u8], at_most: Duration, root: &Path, race: &Race) -> Answer {
    match Incoming::read(input) {
        Ok(None) => Answer::default(),
        Ok(Some(incoming)) => match placed(&incoming, at_most, root, race) {
            Ok((rewritten, unreserved)) => Answer::of(rewritten, unreserved),
            Err(why) => Answer::unchanged(&why),
        },
        Err(why) => Answer::unchanged(&why),
    }
}

/// The rewritten XML, and the reason if nothing was reserved.
fn placed(
    incoming: &Incoming,
    at_most: Duration,
    root: &Path,
    race: &Race,
) -> Result<(Rewritten, Option<String>), String> {
    let paths = Paths { root: root.into(), state: root.join("run/nearside") };
    let mut host = Host::open(paths).map_err(|error| error.to_string())?;
    host.set_waiting(Waiting { at_most: Some(at_most), ..Waiting::default() });
    let known = host.topology().map_err(|error| error.to_string())?;
    // Under Nearside's scheduler vCPUs stay home without pins.
    let pins_vcpus = !nearside_scheduler::is_in_charge();
    let name = incoming.reservation_name();
    let decide = |seen: &Observation| {
        let rewritten = incoming.rewritten(pins_vcpus, seen, &CostModel::default());
        let wanted = rewritten.as_ref().ok().and_then(|it| it.reservation(incoming));
        (rewritten, wanted)
    };
    let mut reserve = || reserve_incoming(&mut host, &name, &known, decide, || race.is_first());
    let mut reserved = reserve();
    // Copies go node by node, and a cell may need the memory of another one.
    for _ in known.memory_nodes().iter() {
        match &reserved {
            Ok((Err(NotRewritten { lacks: Some(lacks), .. }), _))
                if lacks.copies_go(root, at_most) => {}
            _ => break,
        }
        reserved = reserve();
    }
    match reserved {
        Ok((rewritten, reserved)) => {
            let rewritten = rewritten.map_err(|it| it.why)?;
            Ok((rewritten, reserved.err().map(|refusal| refusal.to_string())))
        }
        Err(refusal) => {
            let seen = unlocked(&mut host, &name, &known)?;
            let rewritten = decide(&seen).0.map_err(|it| it.why)?;
            Ok((rewritten, Some(refusal.to_string())))
        }
    }
}

/// The machine as it is seen without the lock, apart from the reservation of an earlier attempt.
fn unlocked(host: &mut Host, name: &str, known: &Topology) -> Result<Observation, String> {
    let mut seen = host.observe_knowing(known).map_err(|error| error.to_string())?;
    seen.reservations.retain(|reservation| reservation.name != name);
    Ok(seen)
}

impl Answer {
    fn of(rewritten: Rewritten, unreserved: Option<String>) -> Self {
        let mut remarks = Vec::new();
        if !rewritten.worse.is_empty() {
            remarks.push(format!("worse than before: {}", rewritten.worse.join("; ")));
        }
        if let Some(why) = unreserved {
            remarks.push(format!("its memory is not reserved: {why}"));
        }
        let remark = (!remarks.is_empty()).then(|| remarks.join("; "));
        Self { xml: Some(rewritten.xml), remark }
    }

    fn unchanged(why: &str) -> Self {
        Self { xml: None, remark: Some(format!("the XML is unchanged: {why}")) }
    }

    /// The answer if none came from the thread.
    fn without(error: mpsc::RecvTimeoutError, within: Duration, was_read: bool) -> Self {
        let within_s = within.as_secs_f64();
        Self::unchanged(&match (error, was_read) {
            (mpsc::RecvTimeoutError::Timeout, true) => {
                format!("there was no answer after {within_s} s")
            }
            (mpsc::RecvTimeoutError::Timeout, false) => {
                format!("there was no XML after {within_s} s")
            }
            (mpsc::RecvTimeoutError::Disconnected, true) => "there was no answer".into(),
            (mpsc::RecvTimeoutError::Disconnected, false) => "the XML cannot be read".into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_operations_are_filters() {
        let is =
            |operation: &str, part: &str| is_filter(Some(&operation.into()), Some(&part.into()));
        assert!(is("migrate", "begin") && is("restore", "begin"));
        for (operation, part) in [
            ("prepare", "begin"),
            ("start", "begin"),
            ("started", "begin"),
            ("reconnect", "begin"),
            ("release", "end"),
            ("migrate", "end"),
            ("", ""),
        ] {
            assert!(!is(operation, part), "{operation} {part}");
        }
        assert!(!is_filter(None, None));
    }
}
