//! Program text: the node of its page cache, and Nearside's copies of it.

use crate::outcome::Outcome;
use clap::Args;
use rustix::{
    process::{Pid, Signal, kill_process},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use serde_json::Value;
use std::{
    fs,
    fs::File,
    io::Write,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// The socket on which the replicator reports that it is ready (`sd_notify(3)`).
const NOTIFY: &str = "/run/workloads.replicator";

/// Far more than the replicator takes to start, or to copy a file.
const PATIENCE: Duration = Duration::from_secs(30);

/// The text of the workload.
#[derive(Debug, Args)]
pub(crate) struct Text {
    /// Write these files anew from CPU 0, so that its node has their pages
    #[arg(long, value_name = "FILE,..", value_delimiter = ',')]
    text: Vec<PathBuf>,
    /// .. and give each node a copy of them
    #[arg(long, requires_all = ["text", "nearside"])]
    replicas: bool,
}

impl Text {
    /// Has the files' pages where the options say. Domains start afterwards.
    pub(crate) fn prepare(&self, nearside: Option<&Path>) -> Outcome<Option<Replicator>> {
        if !self.text.is_empty() {
            on_first_cpu(|| self.text.iter().try_for_each(|file| write_anew(file)))?;
        }
        match nearside {
            Some(nearside) if self.replicas => Replicator::start(nearside, &self.text).map(Some),
            _ => Ok(None),
        }
    }
}

/// A page is allocated on the node of the CPU that writes it first.
fn on_first_cpu(work: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
    let before = sched_getaffinity(None)?;
    let mut first = CpuSet::new();
    first.set(0);
    sched_setaffinity(None, &first)?;
    let done = work();
    sched_setaffinity(None, &before)?;
    done
}

/// Those that run from the old file go on with it.
fn write_anew(path: &Path) -> Outcome<()> {
    let new = path.with_extension("new");
    let content = fs::read(path)?;
    let mut file = File::create(&new)?;
    file.write_all(&content)?;
    file.set_permissions(fs::metadata(path)?.permissions())?;
    drop(file);
    Ok(fs::rename(new, path)?)
}

/// `nearside replicator`.
#[derive(Debug)]
pub(crate) struct Replicator {
    child: Child,
    nearside: PathBuf,
}

impl Replicator {
    fn start(nearside: &Path, files: &[PathBuf]) -> Outcome<Self> {
        let socket = UnixDatagram::bind(NOTIFY)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut command = Command::new(nearside);
        command.arg("replicator").env("NOTIFY_SOCKET", NOTIFY);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let replicator = Self { child, nearside: nearside.into() };
        let length = socket.recv(&mut [0; 4096])?;
        if length == 0 {
            return Err("the replicator said nothing".into());
        }
        let mut add = replicator.command(&["add"]);
        answer(add.args(files))?;
        // It copies after its answer, and tells nobody when it is done.
        let began = Instant::now();
        while !is_complete(&replicator.status()?, files.len()) {
            if began.elapsed() > PATIENCE {
                return Err(format!("no copies: {}", replicator.status()?).into());
            }
        }
        Ok(replicator)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.nearside);
        command.arg("replicate").args(words);
        command
    }

    /// The files and their copies, as it reports them.
    pub(crate) fn status(&self) -> Outcome<Value> {
        let mut command = self.command(&["status", "--format", "json"]);
        Ok(serde_json::from_slice(&answer(&mut command)?)?)
    }

    pub(crate) fn end(mut self) -> Outcome<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the replicator ended with {status}").into())
        }
    }
}

fn answer(command: &mut Command) -> Outcome<Vec<u8>> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("nearside replicate ended with {}: {said}", output.status).into())
}

fn is_complete(status: &Value, files: usize) -> bool {
    status["files"].as_array().is_some_and(|listed| {
        listed.len() == files && listed.iter().all(|file| file["state"] == "replicated")
    })
}

#[cfg(test)]
mod tests {
    use super::is_complete;
    use serde_json::json;

    #[test]
    fn copies_are_complete_once_each_file_is_replicated() {
        let one = |state: &str| json!({ "files": [{ "path": "/bin/a", "state": state }] });
        assert!(is_complete(&one("replicated"), 1));
        assert!(!is_complete(&one("copying"), 1));
        assert!(!is_complete(&one("replicated"), 2));
        assert!(!is_complete(&json!({}), 1));
    }
}
