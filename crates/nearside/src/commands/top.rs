//! `nearside top`: a live view of nodes and domains.
//!
//! Four threads wait, each for what it alone can wait for: keys, signals, the end of a look, the end of the terminal. All of
//! them send to the one that draws.

use super::why;
use crate::{
    client,
    failure::{Failure, Outcome},
    interval,
    look::{Look, look},
    output,
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

/// The shortest time between two frames that show something new.
const SHORTEST: Duration = Duration::from_millis(100);

/// The first look takes no longer than this: somebody waits for it.
const FIRST: Duration = Duration::from_millis(500);

/// How long the daemon has to say how the domains stand. The screen does not wait for that, but the next look does, and may ask
/// again.
const ASK_WITHIN: Duration = Duration::from_secs(1);

/// How wide a frame is that goes into a pipe, unless COLUMNS says otherwise.
const PIPE_WIDTH: u16 = 160;

/// Watch nodes and domains live: who lives where, how local, and why
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside top
  nearside top --sort debt --interval 5
  nearside top --once | head

Keys:
  Up Down j k     select a domain, scroll
  Enter w         why it lives where it does, as `nearside why` tells
  s > <   r       sort by another column; the other way round
  /               only names with a text in them; Esc shows all
  a               cgroups that Nearside did not start, too
  p Space         stand still, go on
  ?               all keys and columns
  q Ctrl-C        quit

Environment:
  NO_COLOR        no colours
  COLUMNS         how wide a frame of --once is that goes into a pipe (160)")]
pub(crate) struct Args {
    /// For how long each look watches CPUs and threads
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = interval::parse, allow_hyphen_values = true)]
    interval: Duration,

    /// Show cgroups that Nearside did not start, too
    #[arg(long)]
    all: bool,

    /// What to sort domains by
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,

    /// Show only names with this in them
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,

    /// Print one frame as text and end
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
        let seen = look_and_ask(args.all, args.interval, &args.daemon)?;
        output::note(&seen.unseen);
        return output::print(&top::plain(&state, &seen, width()));
    }
    if !stdout().is_terminal() {
        return Err(Failure::usage(
            "standard output is no terminal: `nearside top --once` prints one frame, `nearside stat --format json` the \
             same for programs",
        ));
    }
    if args.interval < SHORTEST {
        return Err(Failure::usage("--interval: a live view needs 0.1 seconds or more"));
    }
    state.live = true;
    state.colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    match live(state, &args.daemon) {
        // Nobody watches any more, and nobody could read what is wrong.
        Err(_) if is_gone(Some(&Timespec::default())) => Ok(()),
        ended => ended,
    }
}

/// Looks, and adds what only the daemon knows.
fn look_and_ask(all: bool, interval: Duration, daemon: &client::Args) -> Result<Look, Failure> {
    let mut seen = look(all, interval)?;
    let notice = daemon.add_standing(&mut seen.stat.domains, ASK_WITHIN).err();
    seen.unseen.extend(notice);
    Ok(seen)
}

/// How wide one frame is.
fn width() -> u16 {
    if stdout().is_terminal()
        && let Ok((width, _)) = terminal::size()
    {
        return width;
    }
    let columns = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    columns.filter(|&columns| columns > 0).unwrap_or(PIPE_WIDTH)
}

/// What there is to wait for.
enum Event {
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    /// No more keys will come.
    NoKeys(io::Error),
    Signal(i32),
    /// The terminal is gone.
    Gone,
    Seen(Result<Box<Look>, Failure>),
    Explained {
        domain: String,
        text: String,
    },
}

fn live(mut state: State, daemon: &client::Args) -> Outcome {
    let (sender, events) = mpsc::channel();
    let (wishes, wanted) = mpsc::channel();
    // Before the terminal is changed, so that it is given back whatever comes.
    hear_signals(sender.clone())?;
    let mut screen = Screen::open().map_err(failed)?;
    let (keys, looks, wants, interval) =
        (sender.clone(), sender.clone(), state.wants(), state.interval);
    spawn("nearside-keys", move || read_keys(&keys))?;
    let asked = daemon.clone();
    let look = move |wants: Wants, interval| look_and_ask(wants.all, interval, &asked);
    let gone = sender.clone();
    spawn("nearside-terminal", move || {
        if is_gone(None) {
            // If nobody listens any more, nobody needs to know.
            let _ = gone.send(Event::Gone);
        }
    })?;
    spawn("nearside-looks", move || keep_looking(wants, interval, look, &wanted, &looks))?;
    let mut seen: Option<Box<Look>> = None;
    loop {
        state.size = screen.terminal.size().map_err(failed)?;
        screen.terminal.draw(|frame| top::draw(frame, &state, seen.as_deref())).map_err(failed)?;
        match events.recv().map_err(failed)? {
            Event::Key(key) => match state.key(key, seen.as_deref()) {
                Action::Nothing => {}
                Action::Look => {
                    // Whoever looks has ended only where this is about to end, too.
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
            // This one was under way when the user asked for a pause.
            Event::Seen(_) if state.wants().paused => {}
            Event::Seen(Ok(look)) => (seen, state.trouble) = (Some(look), None),
            Event::Seen(Err(failure)) => state.trouble = Some(failure.message().to_owned()),
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

/// What whoever started this had it ignore (`nohup`) stays ignored.
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

/// Whether the terminal is gone; waits for that, at most for so long. A terminal that goes away with a SIGHUP for others only
/// (another session's, one that whoever started this ignores) is at its end for whoever reads keys, who would read again and again.
fn is_gone(at_most: Option<&Timespec>) -> bool {
    let (input, output) = (stdin(), stdout());
    // To be hung up is told without being asked for.
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
                // If nobody listens any more, nobody needs to know.
                let _ = events.send(Event::NoKeys(error));
                return;
            }
        };
        if events.send(event).is_err() {
            return;
        }
    }
}

/// Looks again and again.
fn keep_looking(
    mut wants: Wants,
    interval: Duration,
    look: impl Fn(Wants, Duration) -> Result<Look, Failure>,
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
        let seen = look(wants, length).map(Box::new);
        let has_failed = seen.is_err();
        if events.send(Event::Seen(seen)).is_err() {
            return;
        }
        if has_failed && let Ok(newer) = wanted.recv_timeout(interval) {
            wants = newer;
        }
        length = interval;
    }
}

/// Finds out in its own time why a domain lives where it does: that may read every mapping of its processes.
fn explain(domain: String, daemon: client::Args, events: Sender<Event>) -> Outcome {
    spawn("nearside-why", move || {
        let text =
            why::text(&domain, &daemon).unwrap_or_else(|failure| failure.message().to_owned());
        // If nobody listens any more, nobody needs to know.
        let _ = events.send(Event::Explained { domain, text });
    })
}

/// The terminal while it is ours: without its line editing, and with a screen beside the one that was there.
struct Screen {
    /// Not dropped: that would show the cursor once more, and where terminal and standard error are gone it would panic.
    terminal: ManuallyDrop<DefaultTerminal>,
}

impl Screen {
    fn open() -> io::Result<Self> {
        // After a panic in any thread there is nothing to wait for. The library puts a hook of its own before this one,
        // which gives the terminal back.
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let _ = execute!(stdout(), Show);
            tell(panic);
            std::process::exit(101);
        }));
        let terminal = ratatui::try_init().inspect_err(|_| give_back())?;
        Ok(Self { terminal: ManuallyDrop::new(terminal) })
    }

    /// Takes the terminal again after a stop, in whatever state others left it.
    fn enter(&mut self) -> io::Result<()> {
        terminal::disable_raw_mode()?;
        terminal::enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)?;
        let size = self.terminal.size()?;
        // Which draws everything anew.
        self.terminal.resize(Rect::from((Position::ORIGIN, size)))
    }

    /// Stops until SIGCONT, which is heard as any signal is. Whoever leads a session has no shell that would send it.
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

/// Gives the terminal back as it was. If that fails it is gone.
fn give_back() {
    let _ = ratatui::try_restore();
    let _ = execute!(stdout(), Show);
}
