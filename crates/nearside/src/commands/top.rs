//! `nearside top`: a live view of nodes and domains.
//!
//! Four threads block, each on a source of its own: keys, signals, samples, the end of the
//! terminal. All of them send to the thread that draws.

use super::why;
use crate::{
    client,
    failure::{Failure, Outcome},
    interval, output,
    sample::{Sample, sample},
    top::{self, Action, Sort, State, Wants},
};
use nearside_linux::sys;
use ratatui::{
    DefaultTerminal,
    crossterm::{
        cursor::Show,
        event::{self, KeyEvent, KeyEventKind},
        execute,
        terminal::{self, EnterAlternateScreen},
    },
    layout::{Position, Rect},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::retry_on_intr,
    process::{getpid, getsid},
};
use signal_hook::{
    consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP},
    iterator::Signals,
    low_level::emulate_default_handler,
};
use std::{
    fmt::Display,
    io::{self, IsTerminal, stdin, stdout},
    mem::ManuallyDrop,
    sync::mpsc::{self, Receiver, Sender, TryRecvError},
    thread,
    time::Duration,
};

/// The shortest interval of a live view.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The longest first sample, since the user waits for it.
const FIRST: Duration = Duration::from_millis(500);

/// Time for the daemon to answer with the status of domains. The screen does not wait for the
/// answer; the next sample does, and asks again.
const ASK_WITHIN: Duration = Duration::from_secs(1);

/// Width of a frame that goes into a pipe, unless COLUMNS is set.
const PIPE_WIDTH: u16 = 160;

/// Watch nodes and domains live: homes, locality, reasons
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside top
  nearside top --sort debt --interval 5
  nearside top --once | head

Keys:
  Up Down j k     select a domain, scroll
  Enter w         why it lives where it does, as `nearside why` tells
  s > <   r       next or previous sort order; reverse it
  /               only names with a text in them; Esc shows all
  a               show or hide other cgroups
  p Space         pause, continue
  ?               all keys and columns
  q Ctrl-C        quit

Environment:
  NO_COLOR        no colours
  COLUMNS         how wide a frame of --once is that goes into a pipe (160)")]
pub(crate) struct Args {
    /// Length of each sample of CPU use
    #[arg(long, value_name = "SECONDS", default_value = "2")]
    #[arg(value_parser = interval::parse, allow_hyphen_values = true)]
    interval: Duration,

    /// Show other cgroups with processes, too
    #[arg(long)]
    all: bool,

    /// Sort order of domains
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,

    /// Show only names that contain this text
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,

    /// Print one frame as text and exit
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    daemon: client::Args,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let mut state = State {
        sort: args.sort,
        filter: args.filter.clone(),
        all: args.all,
        interval: args.interval,
        ..State::default()
    };
    if args.once {
        let seen = sample_and_ask(args.all, args.interval, &args.daemon)?;
        output::note(&seen.unseen);
        return output::print(&top::plain(&state, &seen, width()));
    }
    if !stdout().is_terminal() {
        return Err(Failure::usage(
            "standard output is no terminal: `nearside top --once` prints one frame, \
             `nearside stat --format json` the same data for programs",
        ));
    }
    if args.interval < MIN_INTERVAL {
        return Err(Failure::usage("--interval: a live view needs 0.1 seconds or more"));
    }
    state.live = true;
    state.colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    match live(state, &args.daemon) {
        // The terminal is gone, and with it the reader of an error message.
        Err(_) if is_gone(Some(&Timespec::default())) => Ok(()),
        ended => ended,
    }
}

/// Takes a sample, and adds the answers of the daemon.
fn sample_and_ask(all: bool, interval: Duration, daemon: &client::Args) -> Result<Sample, Failure> {
    let mut seen = sample(all, interval)?;
    let notice = daemon.add_status(&mut seen.stat.domains, ASK_WITHIN).err();
    seen.unseen.extend(notice);
    if seen.stat.domains.is_empty() {
        seen.watched = daemon.watched(ASK_WITHIN);
    }
    Ok(seen)
}

/// Width of a frame in columns.
fn width() -> u16 {
    if stdout().is_terminal()
        && let Ok((width, _)) = terminal::size()
    {
        return width;
    }
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    columns.filter(|&columns| columns > 0).unwrap_or(PIPE_WIDTH)
}

/// Events of the live view.
enum Event {
    Key(KeyEvent),
    /// The size of the terminal changed.
    Resized,
    /// No more keys will come.
    NoKeys(io::Error),
    Signal(i32),
    /// The terminal is gone.
    Gone,
    Sampled(Result<Box<Sample>, Failure>),
    Explained {
        domain: String,
        text: String,
    },
}

fn live(mut state: State, daemon: &client::Args) -> Outcome {
    let (sender, events) = mpsc::channel();
    let (wishes, wanted) = mpsc::channel();
    // Before the terminal is changed: an error below must not leave it changed.
    hear_signals(sender.clone())?;
    let mut screen = Screen::open().map_err(failed)?;
    let (keys, samples, wants, interval) =
        (sender.clone(), sender.clone(), state.wants(), state.interval);
    spawn("nearside-keys", move || read_keys(&keys))?;
    let asked = daemon.clone();
    let sample = move |wants: Wants, interval| sample_and_ask(wants.all, interval, &asked);
    let gone = sender.clone();
    spawn("nearside-terminal", move || {
        if is_gone(None) {
            // The receiver is gone: the view ends.
            let _ = gone.send(Event::Gone);
        }
    })?;
    spawn("nearside-samples", move || keep_sampling(wants, interval, sample, &wanted, &samples))?;
    let mut seen: Option<Box<Sample>> = None;
    loop {
        state.size = screen.terminal.size().map_err(failed)?;
        screen.terminal.draw(|frame| top::draw(frame, &state, seen.as_deref())).map_err(failed)?;
        match events.recv().map_err(failed)? {
            Event::Key(key) => match state.key(key, seen.as_deref()) {
                Action::Nothing => {}
                Action::Sample => {
                    // The sampling thread ends only when the view ends.
                    let _ = wishes.send(state.wants());
                }
                Action::Explain(domain) => explain(domain, daemon.clone(), sender.clone())?,
                Action::Suspend => screen.suspend().map_err(failed)?,
                Action::Quit => return Ok(()),
            },
            Event::Resized => {}
            Event::NoKeys(error) => {
                return Err(Failure::could_not(format_args!("keys cannot be read: {error}")));
            }
            Event::Signal(SIGTSTP) => screen.suspend().map_err(failed)?,
            Event::Signal(SIGCONT) => screen.enter().map_err(failed)?,
            Event::Signal(signal) => {
                drop(screen);
                return emulate_default_handler(signal).map_err(failed);
            }
            Event::Gone => return Ok(()),
            // This sample had begun when the user paused.
            Event::Sampled(_) if state.wants().paused => {}
            Event::Sampled(Ok(sample)) => (seen, state.problem) = (Some(sample), None),
            Event::Sampled(Err(failure)) => state.problem = Some(failure.message().to_owned()),
            Event::Explained { domain, text } => state.explained(&domain, text),
        }
    }
}

fn failed(error: impl Display) -> Failure {
    Failure::could_not(format_args!("terminal: {error}"))
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Outcome {
    let spawned = thread::Builder::new().name(name.into()).spawn(work);
    spawned.map(drop).map_err(|error| Failure::could_not(format_args!("{name}: {error}")))
}

/// A signal that the parent process ignores (`nohup`) stays ignored.
fn hear_signals(events: Sender<Event>) -> Outcome {
    let all = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT];
    let heard = all.into_iter().filter(|&signal| !sys::is_ignored(signal));
    let mut signals = Signals::new(heard).map_err(failed)?;
    spawn("nearside-signals", move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    })
}

/// Waits at most the given time for the terminal to end, and returns true if it did. A terminal can
/// end without a SIGHUP for this session. A reader of keys would then read end-of-file again and
/// again.
fn is_gone(at_most: Option<&Timespec>) -> bool {
    let (input, output) = (stdin(), stdout());
    // POLLHUP is reported without being requested.
    let mut watched = vec![PollFd::new(&output, PollFlags::empty())];
    if input.is_terminal() {
        watched.push(PollFd::new(&input, PollFlags::empty()));
    }
    retry_on_intr(|| poll(&mut watched, at_most)).is_ok_and(|gone| gone > 0)
}

fn read_keys(events: &Sender<Event>) {
    loop {
        let event = match event::read() {
            Ok(event::Event::Key(key)) if key.kind == KeyEventKind::Press => Event::Key(key),
            Ok(event::Event::Resize(..)) => Event::Resized,
            Ok(_) => continue,
            Err(error) => {
                // The receiver is gone: the view ends.
                let _ = events.send(Event::NoKeys(error));
                return;
            }
        };
        if events.send(event).is_err() {
            return;
        }
    }
}

/// Takes sample after sample.
fn keep_sampling(
    mut wants: Wants,
    interval: Duration,
    sample: impl Fn(Wants, Duration) -> Result<Sample, Failure>,
    wanted: &Receiver<Wants>,
    events: &Sender<Event>,
) {
    let mut length = FIRST.min(interval);
    loop {
        loop {
            let newer = match wants.paused {
                true => wanted.recv().map_err(TryRecvError::from),
                false => wanted.try_recv(),
            };
            match newer {
                Ok(newer) => (wants, length) = (newer, FIRST.min(interval)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        let seen = sample(wants, length).map(Box::new);
        let has_failed = seen.is_err();
        if events.send(Event::Sampled(seen)).is_err() {
            return;
        }
        if has_failed && let Ok(newer) = wanted.recv_timeout(interval) {
            wants = newer;
        }
        length = interval;
    }
}

/// Finds the reasons for a domain's home in a thread of its own, since that may read every mapping
/// of its processes.
fn explain(domain: String, daemon: client::Args, events: Sender<Event>) -> Outcome {
    spawn("nearside-why", move || {
        let text =
            why::text(&domain, &daemon).unwrap_or_else(|failure| failure.message().to_owned());
        // The receiver is gone: the view ends.
        let _ = events.send(Event::Explained { domain, text });
    })
}

/// The terminal in the state of the view: raw mode and the alternate screen.
struct Screen {
    /// Never dropped: its `drop` shows the cursor once more, and panics if terminal and standard
    /// error are gone.
    terminal: ManuallyDrop<DefaultTerminal>,
}

impl Screen {
    fn open() -> io::Result<Self> {
        // A panic in any thread ends the view. The hook that the library put before this one
        // restores the terminal.
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let _ = execute!(stdout(), Show);
            tell(panic);
            std::process::exit(101);
        }));
        let terminal = ratatui::try_init().inspect_err(|_| give_back())?;
        Ok(Self { terminal: ManuallyDrop::new(terminal) })
    }

    /// Takes the terminal again after a stop, whatever state other programs left it in.
    fn enter(&mut self) -> io::Result<()> {
        terminal::disable_raw_mode()?;
        terminal::enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)?;
        let size = self.terminal.size()?;
        // This makes the next frame draw everything.
        self.terminal.resize(Rect::from((Position::ORIGIN, size)))
    }

    /// Stops until SIGCONT, which arrives as any other signal. A session leader does not stop: it
    /// has no shell that would continue it.
    fn suspend(&mut self) -> io::Result<()> {
        if getsid(None)? == getpid() {
            return Ok(());
        }
        give_back();
        emulate_default_handler(SIGTSTP)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Restores the terminal. A failure means that the terminal is gone.
fn give_back() {
    let _ = ratatui::try_restore();
    let _ = execute!(stdout(), Show);
}
