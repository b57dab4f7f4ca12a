//! Measures how long writers wait for copies of a file to go, and for how long readers of copies
//! see a file that was emptied by an open for reading, as a line of JSON. Beside them it measures
//! how long a process takes to answer over a pipe: on a host that is a virtual machine, the longest
//! waits may be the hypervisor's. For a guest of `lab/run --model`, whose time does not depend on
//! the host:
//!
//! ```text
//! lab/run --model x460-small --with target/release/nearside=/bin/nearside -- \
//!     target/release/collapses --rounds 100
//! ```
//!
//! Readers map the file in mount namespaces of their own, by turns on the nodes.

mod killed;
mod reader;

use clap::{Parser, Subcommand};
use killed::{Killed, Outcome};
use reader::{Reader, now_ns};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env, fs,
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write, stdin},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::{ChildStdin, ChildStdout, Command, ExitCode, Stdio},
};

const FILE_BYTES: usize = 10 << 20;

/// Measure collapses of copies.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    /// Collapses before a writer, and after a file was emptied, each
    #[arg(long, default_value_t = 100)]
    rounds: usize,
    /// Processes that map the file
    #[arg(long, default_value_t = 8)]
    readers: usize,
    /// Processes that only burn CPU time
    #[arg(long, default_value_t = 0)]
    busy: usize,
    #[arg(long, default_value = "/bin/nearside")]
    nearside: PathBuf,
    /// A folder on a file system with leases; made, and removed afterwards
    #[arg(long, default_value = "/run/collapses")]
    folder: PathBuf,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Read a file (for this program itself)
    Read { file: PathBuf },
    /// Burn CPU time (for this program itself)
    Burn,
    /// Answer each line with itself (for this program itself)
    Echo,
}

/// A process that answers, to tell how long the host takes to wake one.
#[derive(Debug)]
struct Echo {
    _child: Killed,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Echo {
    fn start() -> Outcome<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.arg("echo").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Killed(command.spawn()?);
        match (child.0.stdin.take(), child.0.stdout.take()) {
            (Some(input), Some(output)) => {
                Ok(Self { _child: child, input, output: BufReader::new(output) })
            }
            _ => Err("a process without pipes".into()),
        }
    }

    fn ask(&mut self) -> Outcome<()> {
        self.input.write_all(b"\n")?;
        match self.output.read_line(&mut String::new())? {
            0 => Err("a process that answers has ended".into()),
            _ => Ok(()),
        }
    }
}

/// `nearside replicator`.
#[derive(Debug)]
struct Replicator {
    child: Killed,
    nearside: PathBuf,
    folder: PathBuf,
}

impl Replicator {
    fn start(nearside: &Path, folder: PathBuf) -> Outcome<Self> {
        let mut command = Command::new(nearside);
        command.arg("replicator").arg("--folder").arg(&folder).args(["--budget", "256M"]);
        let mut child = Killed(command.stderr(Stdio::piped()).spawn()?);
        let said = child.0.stderr.take().ok_or("a replicator without a log")?;
        let mut said = BufReader::new(said);
        // Where it may do less than elsewhere it says so first.
        let mut before = String::new();
        while !before.contains("answers") {
            if said.read_line(&mut before)? == 0 {
                return Err(format!("the replicator said {before:?}").into());
            }
        }
        std::thread::spawn(move || {
            said.lines().map_while(Result::ok).for_each(|line| eprintln!("{line}"));
        });
        Ok(Self { child, nearside: nearside.into(), folder })
    }

    fn ask(&self, words: &[&str]) -> Outcome<()> {
        let mut command = Command::new(&self.nearside);
        command.arg("replicate").args(words).arg("--socket").arg(self.folder.join("socket"));
        let output = command.output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
    }

    fn end(mut self) -> Outcome<()> {
        kill_process(Pid::from_child(&self.child.0), Signal::TERM)?;
        let status = self.child.0.wait()?;
        if status.success() { Ok(()) } else { Err(format!("it ended with {status}").into()) }
    }
}

fn nodes() -> usize {
    let is_there =
        |node: &usize| Path::new(&format!("/sys/devices/system/node/node{node}")).exists();
    (0..).take_while(is_there).count().max(1)
}

fn spread(mut waits_ns: Vec<u64>) -> serde_json::Value {
    waits_ns.sort_unstable();
    // The least one that so many percent do not exceed.
    let at = |percent: usize| waits_ns[(waits_ns.len() * percent).div_ceil(100).max(1) - 1];
    let ms = |wait_ns: u64| wait_ns as f64 / 1e6;
    serde_json::json!({
        "median_ms": ms(at(50)), "p99_ms": ms(at(99)), "longest_ms": ms(at(100)),
    })
}

fn measure(args: &Args) -> Outcome<()> {
    let file = args.folder.join("file");
    let content = vec![7; FILE_BYTES];
    fs::write(&file, &content)?;
    let replicator = Replicator::start(&args.nearside, args.folder.join("replicator"))?;
    let nodes = nodes();
    let mut readers = vec![];
    for each in 0..args.readers {
        let node = each % nodes;
        let reader = Reader::start(&file, node)?;
        replicator.ask(&["attach", &reader.id(), "--node", &node.to_string()])?;
        readers.push(reader);
    }
    replicator.ask(&["add", file.to_str().ok_or("a folder whose name is not UTF-8")?])?;
    let burn = || Command::new(env::current_exe()?).arg("burn").spawn().map(Killed);
    let busy = (0..args.busy).map(|_| burn()).collect::<Result<Vec<_>, _>>()?;
    let original = fs::metadata(&file)?.dev();
    let mut echo = Echo::start()?;
    let (mut answered, mut opened, mut emptied) = (vec![], vec![], vec![]);
    for _ in 0..args.rounds {
        Reader::ask_all(&mut readers, &format!("map {original}"))?;
        // It answers once it has brought the copies everywhere.
        replicator.ask(&["status"])?;
        let began_ns = now_ns();
        echo.ask()?;
        answered.push(now_ns() - began_ns);
        let began_ns = now_ns();
        let writer = OpenOptions::new().write(true).open(&file)?;
        opened.push(now_ns() - began_ns);
        drop(writer);
        Reader::ask_all(&mut readers, &format!("map {original}"))?;
        replicator.ask(&["status"])?;
        let answers = Reader::begin_all(&mut readers, "watch")?;
        let began_ns = now_ns();
        drop(File::options().read(true).custom_flags(libc::O_TRUNC).open(&file)?);
        let mut longest_ns = 0;
        for last_stale_ns in answers.read()? {
            longest_ns = longest_ns.max(last_stale_ns.saturating_sub(began_ns));
        }
        emptied.push(longest_ns);
        fs::write(&file, &content)?;
    }
    let line = serde_json::json!({
        "rounds": args.rounds, "readers": args.readers, "busy": args.busy,
        "a process answers over a pipe": spread(answered),
        "a writer waits for its open": spread(opened),
        "the last look that shows the content of an emptied file begins": spread(emptied),
    });
    println!("{line}");
    drop((readers, busy));
    replicator.end()
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.part {
        Some(Part::Read { file }) => reader::serve(file),
        Some(Part::Burn) => loop {
            std::hint::spin_loop();
        },
        Some(Part::Echo) => {
            let lines = stdin().lines().map_while(Result::ok);
            lines.for_each(|line| println!("{line}"));
            Ok(())
        }
        None if args.rounds == 0 || args.readers == 0 => {
            Err("--rounds and --readers are 1 or more".into())
        }
        None => fs::create_dir(&args.folder).map_err(Into::into).and_then(|()| {
            let done = measure(&args);
            fs::remove_dir_all(&args.folder)?;
            done
        }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("collapses: {error}");
            ExitCode::FAILURE
        }
    }
}
