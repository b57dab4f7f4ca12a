//! The stage of a scenario: control groups, threads that burn in them, and the scheduler, if it is
//! used.

use crate::{
    judge::{Group, Verdict, Window, judge},
    outcome::Outcome,
    worker::{Log, Work},
};
use nearside_scheduler::{Affinity, Options, Scheduler};
use nearside_topology::NodeId;
use nearside_workloads::clock;
use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

const CGROUPS: &str = "/sys/fs/cgroup";

/// A control group of this stage.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupId(usize);

#[derive(Debug)]
struct Member {
    name: String,
    path: PathBuf,
    workers: Vec<Worker>,
    /// Of workers that have ended.
    logs: Vec<Log>,
}

#[derive(Debug)]
struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(work: &Work) -> Outcome<Self> {
        let list = |values: Vec<String>| values.join(",");
        let mut command = Command::new(env::current_exe()?);
        command
            .arg("worker")
            .arg("--group")
            .arg(&work.group)
            .arg("--threads")
            .arg(work.threads.to_string());
        if !work.cpus.is_empty() {
            command.arg("--cpus").arg(list(work.cpus.iter().map(ToString::to_string).collect()));
        }
        if !work.nap_us.is_empty() {
            command
                .arg("--nap-us")
                .arg(list(work.nap_us.iter().map(ToString::to_string).collect()));
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else {
            return Err("a worker without pipes".into());
        };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn read_line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() { Err("a worker ended early".into()) } else { Ok(line) }
    }

    fn finish(mut self) -> Outcome<Vec<Log>> {
        let logs = serde_json::from_str(&self.read_line()?)?;
        self.child.wait()?;
        Ok(logs)
    }
}

/// See above.
#[derive(Debug)]
pub(crate) struct Stage {
    scheduler: Option<Scheduler>,
    members: Vec<Member>,
    /// The node of each CPU.
    pub(crate) nodes: Vec<usize>,
}

impl Stage {
    /// With Nearside's scheduler in charge, or with the stock one.
    pub(crate) fn new(attach: bool) -> Outcome<Self> {
        fs::write(Path::new(CGROUPS).join("cgroup.subtree_control"), "+cpu +cpuset")?;
        let scheduler = if attach { Some(Scheduler::attach(&Options::default())?) } else { None };
        Ok(Self { scheduler, members: vec![], nodes: nodes_of_cpus()? })
    }

    /// A control group below the root, with a weight and, as `cpu.max` says it, a cap.
    pub(crate) fn group(&mut self, name: &str, weight: u32, cap: Option<&str>) -> Outcome<GroupId> {
        let path = Path::new(CGROUPS).join(name);
        fs::create_dir(&path)?;
        fs::write(path.join("cpu.weight"), weight.to_string())?;
        if let Some(cap) = cap {
            fs::write(path.join("cpu.max"), cap)?;
        }
        self.members.push(Member { name: name.to_owned(), path, workers: vec![], logs: vec![] });
        Ok(GroupId(self.members.len() - 1))
    }

    /// The root cgroup, of whose tasks each weighs as much as a group.
    pub(crate) fn root(&mut self) -> GroupId {
        self.members.push(Member {
            name: "root".to_owned(),
            path: CGROUPS.into(),
            workers: vec![],
            logs: vec![],
        });
        GroupId(self.members.len() - 1)
    }

    /// The group's folder.
    pub(crate) fn folder(&self, group: GroupId) -> &Path {
        &self.members[group.0].path
    }

    /// Makes the group prefer these nodes (as `0,2-3`). The stock scheduler has no preference.
    pub(crate) fn prefer(&mut self, group: GroupId, nodes: &str, home: u32) -> Outcome<()> {
        if let Some(scheduler) = &mut self.scheduler {
            let cgroup = fs::metadata(&self.members[group.0].path)?.ino();
            scheduler
                .set_domain(cgroup, &Affinity { nodes: nodes.parse()?, home: NodeId(home) })?;
        }
        Ok(())
    }

    /// Threads that begin to burn in the group.
    pub(crate) fn burn(
        &mut self,
        group: GroupId,
        threads: usize,
        cpus: &[usize],
        nap_us: &[u64],
    ) -> Outcome<()> {
        let member = &mut self.members[group.0];
        let work = Work {
            group: member.path.clone(),
            threads,
            cpus: cpus.to_vec(),
            nap_us: nap_us.to_vec(),
        };
        member.workers.push(Worker::start(&work)?);
        Ok(())
    }

    /// Waits until all threads of these groups run, and then this long.
    pub(crate) fn settle(&mut self, groups: &[GroupId], settle_ms: u64) -> Outcome<()> {
        for group in groups {
            for worker in &mut self.members[group.0].workers {
                let line = worker.read_line()?;
                if line.trim() != "ready" {
                    return Err(format!("a worker said {line:?}").into());
                }
            }
        }
        thread::sleep(Duration::from_millis(settle_ms));
        Ok(())
    }

    /// Lets this much time pass, between two marks for the plugin.
    pub(crate) fn window(&self, span_ms: u64) -> Window {
        let from_ns = clock::now_ns();
        clock::mark::<1>();
        thread::sleep(Duration::from_millis(span_ms));
        clock::mark::<2>();
        Window { from_ns, to_ns: clock::now_ns() }
    }

    /// Ends the group's threads, and returns when the last of them stopped.
    pub(crate) fn stop(&mut self, group: GroupId) -> Outcome<u64> {
        let member = &mut self.members[group.0];
        // All are stopped before the first one is waited for: until then they are part of the
        // scenario.
        for worker in &mut member.workers {
            worker.input.write_all(b"\n")?;
        }
        for worker in member.workers.drain(..) {
            member.logs.extend(worker.finish()?);
        }
        let ends =
            member.logs.iter().filter_map(|log| log.segments.last()).map(|segment| segment.to_ns);
        ends.max().ok_or_else(|| "no thread ran".into())
    }

    /// Ends everything.
    pub(crate) fn end(&mut self) -> Outcome<Vec<Group>> {
        for worker in self.members.iter_mut().flat_map(|member| &mut member.workers) {
            worker.input.write_all(b"\n")?;
        }
        let mut groups = vec![];
        for member in &mut self.members {
            for worker in member.workers.drain(..) {
                member.logs.extend(worker.finish()?);
            }
            groups
                .push(Group { name: member.name.clone(), logs: std::mem::take(&mut member.logs) });
        }
        Ok(groups)
    }

    /// Ends everything, and judges the window.
    pub(crate) fn verdict(&mut self, window: Window) -> Outcome<Verdict> {
        let groups = self.end()?;
        Ok(judge(&groups, &self.nodes, window))
    }

    /// The scheduler's counters. An error if it ended by itself, which no scenario allows.
    pub(crate) fn statistics(&self) -> Outcome<BTreeMap<&'static str, u64>> {
        let Some(scheduler) = &self.scheduler else { return Ok(BTreeMap::new()) };
        match scheduler.exited() {
            Some(exit) => Err(format!("the scheduler has ended: {exit:?}").into()),
            None => Ok(scheduler.statistics()?.counters.named().collect()),
        }
    }
}

fn nodes_of_cpus() -> Outcome<Vec<usize>> {
    let mut nodes = vec![];
    while let Ok(entries) = fs::read_dir(format!("/sys/devices/system/cpu/cpu{}", nodes.len())) {
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        nodes.push(
            names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).next().unwrap_or(0),
        );
    }
    if nodes.is_empty() { Err("no CPU in /sys".into()) } else { Ok(nodes) }
}
