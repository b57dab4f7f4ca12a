//! `nearside numad`: answers libvirt's question for nodes, in place of numad.

use crate::{
    failure::{Failure, Outcome},
    journal, output,
    race::Race,
    request::MAX_VCPUS,
    room::Shortage,
};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use nearside_linux::{
    Host, Paths, Refusal, Waiting,
    advise::{self, advise},
};
use nearside_policy::{Advice, Bytes, CostModel, Count, usable_nodes};
use nearside_topology::{NodeSet, Topology, sysfs};
use std::{
    ffi::OsStr,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

/// The name under which this program answers as numad.
pub(crate) const NAME: &str = "numad";

/// The default bound of the whole answer, in seconds. libvirt waits for as long as it takes.
const DEFAULT_WITHIN: &str = "5";

/// The longest wait for the lock to take a reservation back.
const TAKE_BACK_WITHIN: Duration = Duration::from_secs(5);

/// The part of that bound for which other starts may hold the lock: the rest is for reading the
/// host.
const LOCK_SHARE: f64 = 0.8;

/// The part of the wait for the lock for which copies of program text may be awaited to go.
const ROOM_SHARE: f64 = 0.25;

/// Answer which nodes a virtual machine should use, in place of numad
///
/// Prints a node list such as 1-2, as numad -w does, and reserves the machine's memory and vCPUs
/// there for 60 seconds. The domain that starts takes the reservation over. libvirt asks in this
/// way for each domain with placement='auto'.
///
/// If no set of nodes has room, or the time is too short, the answer is every node, or with
/// --refuse none. Then nothing is reserved; standard error and the system log say why.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "\
Examples:
  nearside numad -w 4:8192            nodes for 4 vCPUs and 8 GiB, for example 1-2
  nearside numad --refuse -w 4:8192   no nodes and exit code 1 if none can be reserved

Installed as /usr/bin/numad, this program answers in the same way: see the guide.")]
pub(crate) struct Args {
    /// The number of vCPUs, and the memory in MiB
    #[arg(short = 'w', value_name = "VCPUS[:MIB]", value_parser = parse_size, required = true)]
    #[arg(allow_hyphen_values = true)]
    size: Size,

    /// Answer within this many seconds, four fifths of which may be spent waiting for other starts
    #[arg(long, value_name = "SECONDS", value_parser = parse_within)]
    #[arg(default_value = DEFAULT_WITHIN, allow_hyphen_values = true)]
    within: Duration,

    /// Print no nodes, and exit with code 1, if none could be reserved: libvirt then does not start
    /// the machine
    #[arg(long)]
    refuse: bool,

    /// The folder below which /proc, /sys, /dev and /run lie
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// The size of a virtual machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    vcpus: u32,
    /// 0 if it is unknown.
    memory_bytes: u64,
}

const MIB: u64 = 1 << 20;

/// libvirt passes `%d:%llu`, the memory rounded up to MiB (`virNumaGetAutoPlacementAdvice` in
/// libvirt, `src/util/virnuma.c`). numad's manual makes the memory optional.
fn parse_size(text: &str) -> Result<Size, String> {
    let expected = "expected vCPUs and MiB, as in 4 or 4:8192";
    let number = |digits: &str| match digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => digits.parse::<u64>().ok(),
        false => None,
    };
    let (vcpus, mib) = match text.split_once(':') {
        Some((vcpus, mib)) => (vcpus, number(mib).ok_or(expected)?),
        None => (text, 0),
    };
    let vcpus = number(vcpus).ok_or(expected)?;
    let vcpus = u32::try_from(vcpus).ok().filter(|vcpus| *vcpus <= MAX_VCPUS);
    let vcpus = vcpus.ok_or_else(|| format!("more than {MAX_VCPUS} vCPUs"))?;
    if vcpus == 0 {
        return Err("a virtual machine needs at least 1 vCPU".into());
    }
    let memory_bytes = mib.checked_mul(MIB).ok_or("larger than 64 bits")?;
    Ok(Size { vcpus, memory_bytes })
}

fn parse_within(text: &str) -> Result<Duration, String> {
    crate::lock::parse_seconds(text).map(Duration::from_secs_f64)
}

/// Whether a program of this name answers as numad.
pub(crate) fn is_numad(program: &OsStr) -> bool {
    Path::new(program).file_name() == Some(OsStr::new(NAME))
}

/// The message for options of numad that its replacement does not have; none for another error.
pub(crate) fn unsupported(error: &clap::Error) -> Option<String> {
    let option = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(option))) => {
            format!("the option {option} is not supported")
        }
        (ErrorKind::MissingRequiredArgument, _) => "without -w there is nothing to do".into(),
        _ => return None,
    };
    Some(format!(
        "numad: {option}. This numad is a part of Nearside and answers only -w VCPUS[:MIB]; \
         Nearside's daemon (`systemctl start nearside`) takes the place of numad's"
    ))
}

/// The answer: with the name of its reservation, or with the reason why there is none.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    nodes: NodeSet,
    reserved: Result<String, String>,
}

/// Prints the answer within its time. Reading the host cannot be interrupted, so it happens in a
/// thread, which ends with this process. A killed process leaves the store as it was, or a
/// reservation that lapses.
pub(crate) fn run(args: &Args) -> Outcome {
    let Args { size, within, refuse, root } = args.clone();
    let (sender, receiver) = mpsc::channel();
    let race = Arc::new(Race::default());
    let (asked, asked_race) = (root.clone(), Arc::clone(&race));
    // A thread that cannot start has dropped its sender.
    let _ = thread::Builder::new().spawn(move || {
        let _ = sender.send(ask(size, within.mul_f64(LOCK_SHARE), &asked, &asked_race));
    });
    let mut answer = receiver.recv_timeout(within).ok();
    if answer.is_none() && !race.is_first() {
        // The reservation is being written. It cannot be stopped, so it is waited for.
        answer = receiver.recv().ok();
    }
    let answer = match answer {
        Some(answer) => answer?,
        None => {
            let why = format!("there was no answer after {} s", within.as_secs_f64());
            Answer { nodes: listed_nodes(&root)?, reserved: Err(why) }
        }
    };
    if let Err(why) = &answer.reserved {
        let remark = remark(size, &answer.nodes, refuse, why);
        // libvirt drops the standard error of numad.
        journal::warn(&root, NAME, &remark);
        let remark = format!("numad: {remark}");
        if refuse {
            return Err(Failure::could_not(remark));
        }
        output::tell(&remark);
    }
    let mut out = io::stdout().lock();
    let printed = writeln!(out, "{}", answer.nodes).and_then(|()| out.flush());
    printed.map_err(|error| {
        if let Ok(name) = &answer.reserved {
            take_back(name, &root);
        }
        Failure::could_not(format_args!("numad: the answer reached nobody: {error}"))
    })
}

/// The files of the host below `root`.
fn paths(root: &Path) -> Paths {
    Paths { root: root.into(), state: root.join("run/nearside") }
}

/// Ends the reservation of an answer that could not be printed. If that fails it lapses.
fn take_back(name: &str, root: &Path) {
    // Long before the reservation lapses and another question gets its name.
    let waiting = Waiting { at_most: Some(TAKE_BACK_WITHIN), ..Waiting::default() };
    let taken = Host::open(paths(root)).map_err(Refusal::from).and_then(|mut host| {
        host.set_waiting(waiting);
        advise::take_back(&mut host, name)
    });
    if let Err(error) = taken {
        output::tell(&format!("numad: the reservation {name} lasts for a minute: {error}"));
    }
}

/// Places the machine and reserves its memory. Waits at most this long for the lock.
fn ask(size: Size, at_most: Duration, root: &Path, race: &Race) -> Result<Answer, Failure> {
    let mut host = match Host::open(paths(root)) {
        Ok(host) => host,
        // Without a cgroup tree the nodes are known all the same.
        Err(error) => {
            let (topology, _) = sysfs::read(root).map_err(Failure::could_not)?;
            return Ok(answer(&topology, Err(error.to_string())));
        }
    };
    let topology = host.topology().map_err(Failure::could_not)?;
    host.set_waiting(Waiting { at_most: Some(at_most), ..Waiting::default() });
    let Size { vcpus, memory_bytes } = size;
    let model = CostModel::default();
    let is_awaited = || race.is_first();
    let mut ask = || advise(&mut host, vcpus, memory_bytes, &model, &topology, is_awaited);
    let mut advised = ask();
    if let Ok(Advice { nodes, reserved: Err(refusal) }) = &advised
        && let Some(lacks) = Shortage::of_place(refusal, nodes)
        && lacks.copies_go(root, at_most.mul_f64(ROOM_SHARE))
        && let Ok(again) = ask()
    {
        advised = Ok(again);
    }
    let offered = topology.offered(host.allowed().as_ref());
    Ok(answer(&offered, advised.map_err(|refusal| refusal.to_string())))
}

/// The nodes with memory or CPUs, from two small files (`node_states` in Linux,
/// `drivers/base/node.c`).
fn listed_nodes(root: &Path) -> Result<NodeSet, Failure> {
    let list = |name: &str| {
        let path = root.join("sys/devices/system/node").join(name);
        let text = fs::read_to_string(&path).map_err(|error| error.to_string());
        let nodes =
            text.and_then(|text| text.trim().parse::<NodeSet>().map_err(|error| error.to_string()));
        nodes.map_err(|why| Failure::could_not(format_args!("{}: {why}", path.display())))
    };
    Ok(list("has_memory")?.iter().chain(list("has_cpu")?.iter()).collect())
}

/// The answer to print. Without a placement it is every node, which confines nothing.
fn answer(topology: &Topology, advised: Result<Advice, String>) -> Answer {
    match advised {
        Ok(Advice { nodes, reserved }) => {
            let reserved = reserved.map(|it| it.name).map_err(|refusal| refusal.to_string());
            Answer { nodes, reserved }
        }
        Err(why) => Answer { nodes: usable_nodes(topology), reserved: Err(why) },
    }
}

/// The remark on an answer for which nothing was reserved.
fn remark(size: Size, nodes: &NodeSet, refuse: bool, why: &str) -> String {
    let vcpus = Count(size.vcpus.into(), "vCPU");
    let size = format!("{vcpus} and {}", Bytes(size.memory_bytes));
    match refuse {
        true => format!("refused {size}: {why}"),
        false => {
            format!("answered {} for {size}, and reserved nothing: {why}", nodes.named())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::{Node, NodeId};
    use proptest::prelude::*;

    #[test]
    fn a_size_is_vcpus_and_perhaps_mib() {
        let size = |vcpus, mib: u64| Ok(Size { vcpus, memory_bytes: mib * MIB });
        assert_eq!(parse_size("4:8192"), size(4, 8192));
        assert_eq!(parse_size("4"), size(4, 0));
        assert_eq!(parse_size("4:0"), size(4, 0));
        for text in ["", ":", "4:", ":5", "0:5", "-1:5", "+4:5", "4:5:6", "4 :5", "x", "4:5M"] {
            assert!(parse_size(text).is_err(), "{text:?}");
        }
        assert!(parse_size("65537:1").unwrap_err().contains("more than 65536"));
        assert!(parse_size(&format!("1:{}", u64::MAX)).unwrap_err().contains("64 bits"));
    }

    #[test]
    fn a_program_is_numad_by_the_last_part_of_its_path() {
        for (program, expected) in [
            ("numad", true),
            ("/usr/bin/numad", true),
            ("/usr/bin/nearside", false),
            ("/numad/nearside", false),
            ("", false),
        ] {
            assert_eq!(is_numad(OsStr::new(program)), expected, "{program}");
        }
    }

    #[test]
    fn without_a_placement_the_answer_is_every_node_and_a_remark() {
        let node = |id| Node { id: NodeId(id), memory_bytes: 1, ..Node::default() };
        let topology = Topology { nodes: (0..3).map(node).collect(), ..Topology::default() };
        let answer = answer(&topology, Err("process 7 holds the lock".into()));
        assert_eq!(answer.nodes.to_string(), "0-2");
        let size = Size { vcpus: 2, memory_bytes: 512 * MIB };
        let said =
            |refuse| remark(size, &answer.nodes, refuse, answer.reserved.as_ref().unwrap_err());
        assert_eq!(
            said(false),
            "answered nodes 0-2 for 2 vCPUs and 512 MiB, and reserved nothing: process 7 holds the \
             lock"
        );
        assert_eq!(said(true), "refused 2 vCPUs and 512 MiB: process 7 holds the lock");
    }

    proptest! {
        #[test]
        fn every_size_that_libvirt_writes_is_read(
            vcpus in 1..=u16::MAX,
            mib in 0..=u64::MAX / MIB,
        ) {
            let memory_bytes = mib * MIB;
            let size = parse_size(&format!("{vcpus}:{mib}"));
            prop_assert_eq!(size, Ok(Size { vcpus: vcpus.into(), memory_bytes }));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = parse_size(&text);
        }
    }
}
