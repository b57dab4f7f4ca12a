//! One domain: gets ready, says so, does its work when a line comes, says when it was done and how
//! long each of its requests took, and holds its memory until its input ends.

use crate::{
    outcome::Outcome,
    server::Server,
    threads::{Lock, Stream},
    warehouse::Warehouse,
};
use clap::{Args, Subcommand};
use nearside_workloads::clock;
use std::{
    fs, io, iter,
    path::{Path, PathBuf},
    process::{self, Stdio},
};

/// A domain.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The control group to go to first
    #[arg(long)]
    group: Option<PathBuf>,
    #[command(subcommand)]
    work: Work,
}

#[derive(Debug, Subcommand)]
enum Work {
    Warehouse(Warehouse),
    Stream(Stream),
    Lock(Lock),
    Server(Server),
    Command(Command),
}

/// Run a command, in a new folder on tmpfs.
#[derive(Debug, Args)]
struct Command {
    #[arg(last = true, required = true)]
    words: Vec<String>,
}

impl Command {
    fn run(&self) -> Outcome<()> {
        let folder = Path::new("/run/domains").join(process::id().to_string());
        fs::create_dir_all(&folder)?;
        get_ready()?;
        let (program, arguments) = self.words.split_first().ok_or("no command")?;
        let output = process::Command::new(program)
            .args(arguments)
            .current_dir(&folder)
            .stdin(Stdio::null())
            .output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        Err(format!("{program} ended with {}; it said:\n{said}", output.status).into())
    }
}

fn wait_for_line() -> io::Result<()> {
    io::stdin().read_line(&mut String::new()).map(drop)
}

fn get_ready() -> io::Result<()> {
    println!("ready");
    wait_for_line()
}

pub(crate) fn run(options: &Options) -> Outcome<()> {
    if let Some(group) = &options.group {
        fs::write(group.join("cgroup.procs"), "0")?;
    }
    let mut took_ns = vec![];
    match &options.work {
        Work::Warehouse(work) => work.run(get_ready)?,
        Work::Stream(work) => work.run(get_ready)?,
        Work::Lock(work) => work.run(get_ready)?,
        Work::Server(work) => took_ns = work.run(get_ready)?,
        Work::Command(command) => command.run()?,
    }
    let words: Vec<_> =
        iter::once(clock::now_ns()).chain(took_ns).map(|ns| ns.to_string()).collect();
    println!("{}", words.join(" "));
    wait_for_line()?;
    Ok(())
}
