//! `nearside replicate`: copies of program text on the nodes that execute it.

mod attach;
mod home;
mod hook;
mod price;
pub(crate) mod wide;

use crate::{
    domains::{named, open_host},
    failure::{Failure, Outcome},
    output::{self, Format},
    progress::Counter,
    report::replicate::{PriceJson, StatusJson, price_text, reasons, status_text},
    request::parse_node_set,
};
use clap::Subcommand;
use nearside_linux::escape;
use nearside_policy::replication::{CopyRefusal, Ratio, serving};
use nearside_replicas::{
    Client,
    original::{Place, check},
    protocol::{Answer, FileStatus, Request, SOCKET},
};
use nearside_topology::NodeSet;
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use std::{
    collections::BTreeSet,
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

/// The longest wait for an answer. Copies are made after it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time between the first two looks at copies that are being made. It doubles with each look.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Copy program text to the nodes that execute it
///
/// Each node gets a copy of an executable or a library in its own memory, and domains at home
/// there run from it, under the same path. A copy goes as soon as somebody writes to the original,
/// replaces it, or needs the memory. Processes use the copies that were there when `nearside run`
/// or `nearside exec` started them, and later ones once `attach` is told of them.
///
/// A process with threads on several nodes has one copy of a file for all of them: Linux has one
/// page per address and address space.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sudo nearside replicator &
  sudo nearside replicate add /usr/lib/x86_64-linux-gnu/libc.so.6 /usr/bin/postgres
  sudo nearside replicate add --domain db /usr/lib/postgresql/15/bin/postgres
  sudo nearside replicate add /srv/model/weights.bin
  sudo nearside replicate add --dry-run --nodes 0-3 --ratio 1:2 /opt/app/lib/*.so
  sudo nearside replicate attach db
  sudo nearside replicate attach 4711
  sudo nearside replicate status
  sudo nearside replicate remove /usr/bin/postgres
  sudo nearside replicate remove --image $(sudo podman mount db) /usr/bin/db

Exit codes:
  0  done; a copy that has to wait for room, a writer, or a file is named with the reason
  1  could not
  2  invalid command line
  3  partly done: some of the files, or of their copies")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,

    /// The socket of the replicator
    #[arg(long, value_name = "PATH", default_value = SOCKET, global = true)]
    socket: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Give files copies
    Add(Add),
    /// Take copies away
    Remove(Remove),
    /// Let running processes use copies
    Attach(attach::Attach),
    /// Let containers that start use copies
    Hook(hook::Hook),
    /// Show files and their copies
    Status(Status),
}

#[derive(Debug, clap::Args)]
struct Add {
    /// Executables, libraries, and data files that are only read. Links are followed
    #[arg(required = true, value_name = "PATH")]
    files: Vec<PathBuf>,

    /// Copies on the home of this domain alone
    #[arg(long, conflicts_with = "nodes")]
    domain: Option<String>,

    /// The root of a container, as the host sees it. The paths are those inside
    #[arg(long, value_name = "ROOT")]
    image: Option<PathBuf>,

    /// The nodes that use copies, such as 0-1 or all [default: all]
    #[arg(long, value_name = "SET", allow_hyphen_values = true)]
    nodes: Option<String>,

    /// One copy for N nodes, which they read over the shortest distance
    #[arg(long, value_name = "1:N", default_value = "1:1")]
    ratio: Ratio,

    /// Return at once. Processes that start before the copies are complete use the originals
    #[arg(long, conflicts_with = "dry_run")]
    no_wait: bool,

    /// Print the memory that the copies would take on each node, and make none. Whether a file
    /// can have copies is told when they are asked for
    #[arg(long)]
    dry_run: bool,

    /// The format of the report of --dry-run
    #[arg(long, value_enum, default_value_t, requires = "dry_run")]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct Remove {
    /// Files with copies
    #[arg(required = true, value_name = "PATH")]
    files: Vec<PathBuf>,

    /// The root of the container whose files they are, as for `add`
    #[arg(long, value_name = "ROOT")]
    image: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Status {
    /// The format of the report
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let connect = || Client::connect(&args.socket, PATIENCE).map_err(Failure::could_not);
    match &args.command {
        Command::Add(add) => run_add(add, connect),
        Command::Remove(remove) => run_remove(remove, &connect()?),
        Command::Attach(attach) => attach::run(attach, connect),
        Command::Hook(hook) => hook::run(hook, &args.socket),
        Command::Status(asked) => {
            let client = connect()?;
            let status = client.status().map_err(Failure::could_not)?;
            let topology = open_host()?.topology().map_err(Failure::could_not)?;
            let helper = client.helper().map_err(Failure::could_not)?;
            let wide = wide::of(&status.files, helper, &topology);
            output::print(&match asked.format {
                Format::Text => status_text(&status, &wide),
                Format::Json => output::json(&StatusJson::new(&status, &wide))?,
            })
        }
    }
}

fn run_add(args: &Add, connect: impl FnOnce() -> Result<Client, Failure>) -> Outcome {
    let nodes = nodes(args)?;
    if args.dry_run {
        return run_price(args, nodes.as_ref());
    }
    let client = connect()?;
    let mut added = BTreeSet::new();
    let mut refused = each(&args.files, |path| {
        let (file, place) = find(path, args.image.as_deref())?;
        let request = Request::Add {
            place: place.clone(),
            nodes: nodes.clone(),
            ratio: args.ratio,
            automatic: false,
        };
        let answer = client.ask(&request, Some(file.as_fd())).map_err(|error| error.to_string());
        if matches!(answer, Ok(Answer::Done)) {
            added.insert(place);
        }
        answer
    });
    if args.no_wait {
        return outcome(&args.files, &refused);
    }
    match await_copies(&client, &added) {
        Ok((without, has_some)) => {
            refused.extend(without);
            match outcome(&args.files, &refused) {
                Err(_) if has_some => Err(Failure::partly(told(&refused))),
                outcome => outcome,
            }
        }
        Err(failure) => outcome(&args.files, &refused).and(Err(failure)),
    }
}

/// Waits until no copy of these files is being made. Names nodes without a copy. Returns the files
/// that turned out to have none, or whose copying failed, each with its reason, and whether any of
/// these has copies on other nodes.
fn await_copies(client: &Client, added: &BTreeSet<Place>) -> Result<(Vec<String>, bool), Failure> {
    let meter = Counter::new("copying", added.len());
    let mut pause = FIRST_PAUSE;
    loop {
        let mut files = client.status().map_err(Failure::could_not)?.files;
        files.retain(|file| added.contains(&file.place));
        let is_changing = |file: &&FileStatus| ["copying", "collapsing"].contains(&&*file.state);
        let changing = files.iter().filter(is_changing).count();
        if changing == 0 {
            meter.end();
            let failed = |file: &FileStatus| {
                file.refused.values().any(|why| matches!(why, CopyRefusal::Failed(_)))
            };
            let (without, others): (Vec<_>, Vec<_>) =
                files.iter().partition(|file| file.state == "barred" || failed(file));
            let lines = |files: Vec<&FileStatus>| {
                let lines = files.into_iter().map(|file| reasons(file).concat());
                let lines = lines.map(|line| line.trim_end().replace('\n', "\nnearside: "));
                lines.filter(|line| !line.is_empty()).collect::<Vec<_>>()
            };
            output::note(lines(others));
            let has_some = without.iter().any(|file| !file.copies.is_empty());
            return Ok((lines(without), has_some));
        }
        meter.show(added.len() - changing);
        std::thread::sleep(pause);
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// Prints the price of the copies. Names the files that could have none.
fn run_price(args: &Add, nodes: Option<&NodeSet>) -> Outcome {
    let topology = open_host()?.topology().map_err(Failure::could_not)?;
    let length = |path: &Path| -> Result<u64, String> {
        let (file, _) = find(path, args.image.as_deref())?;
        let text = |error: io::Error| error.to_string();
        check(&file, None).map_err(text)?.map_err(|bar| bar.to_string())?;
        let stat = rustix::fs::fstat(&file).map_err(|error| text(error.into()))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    };
    let (mut lengths, mut refused) = (Vec::new(), Vec::new());
    for path in &args.files {
        match length(path) {
            Ok(bytes) => lengths.push(bytes),
            Err(why) => refused.push(format!("{}: {why}", escape::text(path))),
        }
    }
    let with_cpus = topology.cpus.iter().filter_map(|cpu| cpu.node).collect();
    let nodes = nodes.unwrap_or(&with_cpus);
    let holders = serving(nodes, args.ratio, &topology).into_values().collect();
    let price = PriceJson {
        files: lengths.len(),
        bytes: price::price(&lengths, &holders),
        budget_bytes: price::budgets(&topology),
    };
    let above =
        price.bytes.iter().filter(|(node, bytes)| price.budget_bytes.get(node) < Some(bytes));
    let above: NodeSet = above.map(|(node, _)| *node).collect();
    output::note((!above.is_empty()).then(|| {
        let nodes = above.named();
        format!("{nodes}: more than the default budget (`nearside replicator --budget` changes it)")
    }));
    match args.format {
        Format::Text if lengths.is_empty() => {}
        Format::Text => output::print(&price_text(&price))?,
        Format::Json => output::print(&output::json(&price)?)?,
    }
    outcome(&args.files, &refused)
}

/// The nodes that shall use copies; none for all.
fn nodes(args: &Add) -> Result<Option<NodeSet>, Failure> {
    if args.domain.is_none() && args.nodes.is_none() {
        return Ok(None);
    }
    let host = open_host()?;
    if let Some(text) = &args.nodes {
        let topology = host.topology().map_err(Failure::could_not)?;
        return parse_node_set(text, &topology).map(Some);
    }
    let record = args.domain.as_deref().map(|domain| named(&host, domain)).transpose()?;
    Ok(record.map(|record| record.part().home.nodes.clone()))
}

fn run_remove(args: &Remove, client: &Client) -> Outcome {
    let refused = each(&args.files, |path| {
        let image = args.image.as_deref();
        let found = find(path, image).ok();
        // A file that has been removed since has its path alone.
        let root = |image: &Path| fs::canonicalize(image).unwrap_or_else(|_| image.into());
        let path = if image.is_none() { place_of(path) } else { path.to_path_buf() };
        let named = Place { image: image.map(root), path };
        let ask = |place: &Place, file| {
            let request = Request::Remove { path: place.on_host(), automatic: false };
            client.ask(&request, file).map_err(|error| error.to_string())
        };
        match &found {
            None => ask(&named, None),
            Some((file, place)) => match ask(place, Some(file.as_fd())) {
                // A link has come to the place of the file.
                Ok(Answer::Refused { .. }) if *place != named => ask(&named, None),
                answer => answer,
            },
        }
    });
    outcome(&args.files, &refused)
}

/// The path without links above its last part, which need not exist.
fn place_of(path: &Path) -> PathBuf {
    let Some(name) = path.file_name() else { return path.into() };
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let above = fs::canonicalize(above.unwrap_or(Path::new(".")));
    above.map_or_else(|_| path.into(), |above| above.join(name))
}

/// Asks for each file. Returns those that were refused, each with its reason.
fn each(files: &[PathBuf], mut ask: impl FnMut(&Path) -> Result<Answer, String>) -> Vec<String> {
    let mut refused = Vec::new();
    for path in files {
        let why = match ask(path) {
            Ok(Answer::Done) => continue,
            Ok(Answer::Barred { bar }) => bar.to_string(),
            Ok(Answer::Refused { why }) | Err(why) => why,
            Ok(other) => format!("the replicator's answer does not fit: {other:?}"),
        };
        refused.push(format!("{}: {why}", escape::text(path)));
    }
    refused
}

/// Names the files that were refused, each with its reason.
fn outcome(files: &[PathBuf], refused: &[String]) -> Outcome {
    match refused.len() {
        0 => Ok(()),
        all if all == files.len() => Err(Failure::could_not(told(refused))),
        _ => Err(Failure::partly(told(refused))),
    }
}

/// A line for each.
fn told(refused: &[String]) -> String {
    refused.join("\nnearside: ")
}

/// The file, not opened for reading yet, and its place without links. With an image, the path and
/// all links are those of the image.
fn find(path: &Path, image: Option<&Path>) -> Result<(OwnedFd, Place), String> {
    let text = |error: io::Error| error.to_string();
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let Some(image) = image else {
        let path = fs::canonicalize(path).map_err(text)?;
        let file = open(&path, flags | OFlags::NOFOLLOW, Mode::empty());
        return Ok((file.map_err(|error| text(error.into()))?, Place { image: None, path }));
    };
    let root = || -> io::Result<_> {
        let image = fs::canonicalize(image)?;
        let root = open(&image, flags | OFlags::DIRECTORY, Mode::empty())?;
        Ok((image, root))
    };
    let (image, root) = root().map_err(|error| format!("{}: {error}", escape::text(image)))?;
    let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = openat2(&root, path, flags, Mode::empty(), within);
    let file =
        file.map_err(|error| format!("in {}: {}", escape::text(&image), text(error.into())))?;
    // The helper compares what it finds there with the descriptor.
    let real = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(text)?;
    let inside = real.strip_prefix(&image).map_err(|_| format!("{} moves", escape::text(&real)))?;
    Ok((file, Place { path: Path::new("/").join(inside), image: Some(image) }))
}
