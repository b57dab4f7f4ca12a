//! The contenders that place domains, and the domains.

use crate::{
    outcome::Outcome,
    text::{Replicator, Text},
    workload::Domain,
};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    env, fs,
    fs::File,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

const CGROUPS: &str = "/sys/fs/cgroup";
const BALANCING: &str = "/sys/kernel/debug/sched/numa_balancing";
const NODES: &str = "/sys/devices/system/node";
const SCHEDULER_STATE: &str = "/sys/kernel/sched_ext/state";
const CONTROLLERS: &str = "+cpu +cpuset +memory";

/// The socket on which the daemon reports that it is ready (`sd_notify(3)`), its configuration, and
/// its output.
const NOTIFY: &str = "/run/workloads.notify";
const CONFIGURATION: &str = "/run/workloads.toml";
const JOURNAL: &str = "/run/workloads.journal";

/// The daemon reports in each interval; this is far more than one interval takes.
const TELLS_WITHIN: Duration = Duration::from_secs(30);

/// The number of intervals before the measurement.
const SETTLING_INTERVALS: u32 = 5;

/// An interval of the daemon's control loop, as `packaging/nearside.toml` has it.
const INTERVAL: Duration = Duration::from_secs(2);

/// The contender that places the domains. By default the stock kernel, without NUMA balancing.
#[derive(Debug, Args)]
pub(crate) struct Contender {
    /// The kernel's NUMA balancing
    #[arg(long)]
    balancing: bool,
    /// Nearside: this binary's `run` and `daemon`
    #[arg(long)]
    nearside: Option<PathBuf>,
    /// A static binding: the node of each domain
    #[arg(long, value_delimiter = ',')]
    pins: Vec<usize>,
    /// A static binding to the nodes that this binary of numad advises
    #[arg(long)]
    numad: Option<PathBuf>,
    /// .. its `run` alone: each domain is bound to its home, and nobody watches
    #[arg(long, requires = "nearside")]
    without_daemon: bool,
    /// A shared object below each domain's program, as LD_PRELOAD has it
    #[arg(long)]
    preload: Option<PathBuf>,
    #[command(flatten)]
    text: Text,
    /// Divide the control intervals of all contenders by this
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    faster: u32,
}

/// See above.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    contender: &'a Contender,
    daemon: Option<Daemon>,
    replicator: Option<Replicator>,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(contender: &'a Contender) -> Outcome<Self> {
        fs::write("/proc/sys/kernel/numa_balancing", if contender.balancing { "1" } else { "0" })?;
        if contender.balancing {
            // A scan takes as much less as it comes more often: as many bytes a second as by
            // default.
            for name in
                ["scan_delay_ms", "scan_period_min_ms", "scan_period_max_ms", "scan_size_mb"]
            {
                let path = Path::new(BALANCING).join(name);
                let value: u32 = fs::read_to_string(&path)?.trim().parse()?;
                fs::write(path, (value / contender.faster).max(1).to_string())?;
            }
        }
        let daemon = match &contender.nearside {
            Some(_) if contender.without_daemon => None,
            Some(nearside) => Some(Daemon::start(nearside, contender.interval())?),
            None => {
                fs::write(Path::new(CGROUPS).join("cgroup.subtree_control"), CONTROLLERS)?;
                fs::create_dir(domains_folder())?;
                fs::write(domains_folder().join("cgroup.subtree_control"), CONTROLLERS)?;
                None
            }
        };
        let replicator = contender.text.prepare(contender.nearside.as_deref())?;
        Ok(Self { contender, daemon, replicator })
    }

    /// Makes a place for a domain, where that is not part of starting it.
    pub(crate) fn make_place(&self, number: usize, domain: &Domain) -> Outcome<()> {
        if self.contender.nearside.is_some() {
            return Ok(());
        }
        let group = group_of(number);
        fs::create_dir(&group)?;
        let nodes = match (&self.contender.numad, self.contender.pins.get(number)) {
            (Some(numad), _) => numad_advice(numad, domain)?,
            (None, Some(node)) => node.to_string(),
            (None, None) => return Ok(()),
        };
        let cpus: Vec<_> = numbers(nodes.trim())?
            .into_iter()
            .map(|node| fs::read_to_string(format!("{NODES}/node{node}/cpulist")))
            .collect::<Result<_, _>>()?;
        fs::write(
            group.join("cpuset.cpus"),
            cpus.iter().map(|list| list.trim()).collect::<Vec<_>>().join(","),
        )?;
        fs::write(group.join("cpuset.mems"), nodes.trim())?;
        Ok(())
    }

    /// numad goes by memory in use: to advise on a domain it has to see those before it.
    pub(crate) fn starts_one_by_one(&self) -> bool {
        self.contender.numad.is_some()
    }

    /// Starts a domain, as this contender's users would.
    pub(crate) fn start(&self, number: usize, domain: &Domain) -> Outcome<Started> {
        let own = env::current_exe()?;
        let mut command = if let Some(nearside) = &self.contender.nearside {
            let mut command = Command::new(nearside);
            let (vcpus, memory) = (domain.vcpus.to_string(), format!("{}M", domain.memory_mib));
            command.args([
                "run",
                "--quiet",
                "--name",
                &format!("d{number}"),
                "--cpus",
                &vcpus,
                "--memory",
                &memory,
                "--",
            ]);
            command.arg(own).arg("domain");
            command
        } else {
            let mut command = Command::new(own);
            command.args(["domain", "--group"]).arg(group_of(number));
            command
        };
        if let Some(object) = &self.contender.preload {
            command.env("LD_PRELOAD", object);
        }
        let mut child =
            command.args(&domain.program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => {
                Ok(Started { child, input, output: BufReader::new(output) })
            }
            _ => Err("a domain without pipes".into()),
        }
    }

    /// Lets every contender observe the domains for the same time before the work begins. Attaching
    /// the scheduler takes most of a second of one CPU, because the kernel verifies it. A host does
    /// that once, so it ends before.
    pub(crate) fn settle(&mut self) -> Outcome<()> {
        if let Some(daemon) = &mut self.daemon {
            daemon.wait_for_scheduler()?;
        }
        thread::sleep(SETTLING_INTERVALS * self.contender.interval());
        Ok(())
    }

    /// The `sched_ext` scheduler in charge, if there is one.
    pub(crate) fn scheduler() -> Option<String> {
        fs::read_to_string("/sys/kernel/sched_ext/root/ops").ok().map(|name| name.trim().to_owned())
    }

    /// The nodes of each domain's home, by its name; none under contenders without homes.
    pub(crate) fn homes(&self) -> Outcome<Option<BTreeMap<String, Value>>> {
        let Some(nearside) = &self.contender.nearside else { return Ok(None) };
        let output = Command::new(nearside).args(["list", "--format", "json"]).output()?;
        let listed: Value = serde_json::from_slice(&output.stdout)?;
        let domains = listed["domains"].as_array().ok_or("a list without domains")?;
        let home = |domain: &Value| {
            let name = domain["name"].as_str().ok_or("a domain without a name")?;
            Ok((name.to_owned(), domain["home"]["nodes"].clone()))
        };
        domains.iter().map(home).collect::<Outcome<_>>().map(Some)
    }

    /// The copies of the text, as the replicator reports them; none without one.
    pub(crate) fn copies(&self) -> Outcome<Option<Value>> {
        self.replicator.as_ref().map(Replicator::status).transpose()
    }

    /// Ends the daemon and gives its messages.
    pub(crate) fn end(mut self) -> Outcome<Vec<String>> {
        self.replicator.take().map_or(Ok(()), Replicator::end)?;
        self.daemon.take().map_or(Ok(vec![]), Daemon::end)
    }
}

impl Contender {
    fn interval(&self) -> Duration {
        INTERVAL / self.faster
    }
}

fn domains_folder() -> PathBuf {
    Path::new(CGROUPS).join("domains")
}

fn group_of(number: usize) -> PathBuf {
    domains_folder().join(format!("d{number}"))
}

/// The nodes that numad would bind such a domain to: what libvirt asks it for a machine with
/// `placement='auto'`.
fn numad_advice(numad: &Path, domain: &Domain) -> Outcome<String> {
    fs::create_dir_all("/var/log")?;
    fs::create_dir_all("/var/run")?;
    let output = Command::new(numad)
        .arg("-w")
        .arg(format!("{}:{}", domain.vcpus, domain.memory_mib))
        .output()?;
    if !output.status.success() {
        return Err(format!(
            "numad ended with {}; it said:\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
        .into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The numbers in a list of the kernel: `0-2,5` is 0, 1, 2 and 5.
fn numbers(list: &str) -> Outcome<Vec<usize>> {
    let mut named = vec![];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        named.extend(first.parse::<usize>()?..=last.parse()?);
    }
    Ok(named)
}

/// `nearside daemon`.
#[derive(Debug)]
struct Daemon {
    child: Child,
    /// Its messages of each interval.
    told: mpsc::Receiver<Vec<u8>>,
}

impl Daemon {
    fn start(nearside: &Path, interval: Duration) -> Outcome<Self> {
        let configuration = format!(
            "interval = \"{}ms\"\n[audit]\nlog = \"/run/workloads.audit\"\n",
            interval.as_millis()
        );
        fs::write(CONFIGURATION, configuration)?;
        let (sender, told) = mpsc::channel();
        listen(UnixDatagram::bind(NOTIFY)?, sender);
        let mut command = Command::new(nearside);
        command.args(["daemon", "--config", CONFIGURATION]).env("NOTIFY_SOCKET", NOTIFY);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(JOURNAL)?)
            .spawn()?;
        let mut daemon = Self { child, told };
        while !daemon.listen()?.split(|&byte| byte == b'\n').any(|line| line == b"READY=1") {}
        Ok(daemon)
    }

    fn listen(&mut self) -> Outcome<Vec<u8>> {
        let said = || fs::read_to_string(JOURNAL).unwrap_or_default();
        self.told
            .recv_timeout(TELLS_WITHIN)
            .map_err(|_| format!("the daemon is silent; it said:\n{}", said()).into())
    }

    /// Until it is attached, where it will be: on several nodes.
    fn wait_for_scheduler(&mut self) -> Outcome<()> {
        if fs::read_to_string(format!("{NODES}/has_cpu"))?.contains([',', '-']) {
            while fs::read_to_string(SCHEDULER_STATE)?.trim() != "enabled" {
                self.listen()?;
            }
        }
        Ok(())
    }

    fn end(mut self) -> Outcome<Vec<String>> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let status = self.child.wait()?;
        let said = fs::read_to_string(JOURNAL)?;
        if status.success() {
            Ok(said.lines().map(str::to_owned).collect())
        } else {
            Err(format!("the daemon ended with {status}; it said:\n{said}").into())
        }
    }
}

/// Reads all messages of the daemon: it would wait for its reader otherwise, and fall behind.
fn listen(socket: UnixDatagram, told: mpsc::Sender<Vec<u8>>) {
    thread::spawn(move || {
        let mut message = [0; 4096];
        while let Ok(length) = socket.recv(&mut message)
            && told.send(message[..length].to_vec()).is_ok()
        {}
    });
}

/// A domain that was started.
#[derive(Debug)]
pub(crate) struct Started {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Started {
    fn read_line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            Err("a domain ended early".into())
        } else {
            Ok(line.trim().to_owned())
        }
    }

    pub(crate) fn wait_until_ready(&mut self) -> Outcome<()> {
        match self.read_line()?.as_str() {
            "ready" => Ok(()),
            other => Err(format!("a domain said {other:?}").into()),
        }
    }

    pub(crate) fn go(&mut self) -> Outcome<()> {
        Ok(self.input.write_all(b"\n")?)
    }

    /// When it had done its work, and how long each of its requests took, in nanoseconds.
    pub(crate) fn wait_until_done(&mut self) -> Outcome<(u64, Vec<u64>)> {
        let line = self.read_line()?;
        let mut numbers = line.split(' ').map(str::parse);
        let done_ns = numbers.next().ok_or("a domain did not say when it was done")??;
        Ok((done_ns, numbers.collect::<Result<_, _>>()?))
    }

    /// Its own memory on each node, tmpfs included. `memory.numa_stat` has lines such as `anon
    /// N0=4096 N1=0`.
    pub(crate) fn memory_bytes(&self) -> Outcome<BTreeMap<String, u64>> {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", self.child.id()))?;
        let group = groups
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .ok_or("a domain without a cgroup")?;
        let stat = fs::read_to_string(Path::new(CGROUPS).join(group).join("memory.numa_stat"))?;
        let mut bytes = BTreeMap::new();
        for line in
            stat.lines().filter(|line| line.starts_with("anon ") || line.starts_with("shmem "))
        {
            for (node, more) in
                line.split_whitespace().filter_map(|word| word.strip_prefix('N')?.split_once('='))
            {
                *bytes.entry(node.to_owned()).or_default() += more.parse::<u64>()?;
            }
        }
        Ok(bytes)
    }

    pub(crate) fn end(self) -> Outcome<()> {
        let Self { mut child, input, .. } = self;
        drop(input);
        let status = child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("a domain ended with {status}").into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn a_list_names_numbers() {
        assert_eq!(numbers("0-2,5").unwrap(), [0, 1, 2, 5]);
        assert_eq!(numbers("3").unwrap(), [3]);
        numbers("").unwrap_err();
        numbers("0-").unwrap_err();
    }
}
