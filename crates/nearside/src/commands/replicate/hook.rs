//! `nearside replicate hook`: container runtimes run it when a container starts.
//!
//! A hook that fails keeps the container from starting. So this command always ends with exit code
//! 0, and a container that cannot have copies runs from its own files.

use super::home::home_of;
use crate::{failure::Outcome, journal, output};
use nearside_replicas::{
    Client,
    protocol::{Answer, Request},
};
use nearside_topology::{NodeId, type_words::in_plain_words};
use serde::Deserialize;
use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

/// The name in the system log.
const LOG_NAME: &str = "nearside-hook";

/// The longest wait for an answer: the container starts after it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The longest state and the longest configuration of a container, in bytes.
const MAX_BYTES: u64 = 4 << 20;

/// Let containers that start use copies
///
/// Container runtimes (runc, crun) run this as a hook of the stages createRuntime and poststart,
/// with the state of the container on standard input. The container gets the copies of the node
/// where it is at home: that of its domain, else the only one of its cpuset. Its first process and
/// all later ones run from them. /usr/share/containers/oci/hooks.d/nearside-replicas.json has
/// podman and CRI-O run it.
///
/// Without a replicator, or with any fault, the container starts without copies. The exit code is
/// 0; standard error and the system log have the reason.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes:
  0  always, unless the command line is invalid (2)")]
pub(super) struct Hook {
    /// The node whose copies it uses [default: the home of its domain, or the only node of its
    /// cpuset]
    #[arg(long, value_name = "NODE")]
    node: Option<u32>,
}

/// A runtime's description of a container
/// (<https://github.com/opencontainers/runtime-spec/blob/main/runtime.md#state>).
#[derive(Debug, PartialEq, Eq, Deserialize)]
struct State {
    id: String,
    /// Its first process, as the host counts; absent once it has ended.
    #[serde(default)]
    pid: u32,
    /// The folder with its configuration.
    bundle: PathBuf,
}

/// The part of a container's configuration that tells its root.
#[derive(Debug, Deserialize)]
struct Config {
    root: Root,
}

#[derive(Debug, Deserialize)]
struct Root {
    path: PathBuf,
}

pub(super) fn run(args: &Hook, socket: &Path) -> Outcome {
    let read = read(io::stdin().lock()).map_err(|why| ("a container".to_owned(), why));
    let attached = read.and_then(|state| {
        attach(args, &state, socket).map_err(|why| (format!("container {}", state.id), why))
    });
    if let Err((container, why)) = attached {
        let remark = format!("{container} starts without copies of program text: {why}");
        output::note([&remark]);
        // Runtimes drop the standard error of a hook that succeeds.
        journal::warn(Path::new("/"), LOG_NAME, &remark);
    }
    Ok(())
}

fn read(from: impl Read) -> Result<State, String> {
    let text = bounded(from).map_err(|error| format!("its state cannot be read: {error}"))?;
    if text.trim_ascii().is_empty() {
        return Err("standard input is empty; a runtime writes the container's state there".into());
    }
    serde_json::from_slice(&text)
        .map_err(|error| format!("that is no state of one: {}", worded(&error)))
}

fn worded(error: &serde_json::Error) -> String {
    in_plain_words(&error.to_string(), "an object")
}

fn bounded(from: impl Read) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    from.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(io::Error::other(format!("it has more than {} MiB", MAX_BYTES >> 20))),
        false => Ok(text),
    }
}

fn attach(args: &Hook, state: &State, socket: &Path) -> Result<(), String> {
    if state.pid == 0 {
        return Err("it has no process".into());
    }
    // No process here wants copies.
    if !socket.exists() {
        return Ok(());
    }
    let node = match args.node {
        Some(node) => NodeId(node),
        None => match home_of(state.pid).map_err(|failure| failure.message().to_owned())? {
            Ok(node) => node,
            // A container without a home uses the originals.
            Err(_) => return Ok(()),
        },
    };
    let future_root = Some(root(&state.bundle)?);
    let request = Request::Attach { process: state.pid, node, future_root };
    let client = Client::connect(socket, PATIENCE).map_err(|error| error.to_string())?;
    match client.ask(&request, None).map_err(|error| error.to_string())? {
        Answer::Attached(_) => Ok(()),
        Answer::Refused { why } => Err(why),
        other => Err(format!("the replicator's answer does not fit: {other:?}")),
    }
}

/// The root of a container as the host sees it, without links.
fn root(bundle: &Path) -> Result<PathBuf, String> {
    let path = bundle.join("config.json");
    let named = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let text = File::open(&path).and_then(bounded).map_err(|error| named(&error))?;
    let config: Config = serde_json::from_slice(&text).map_err(|error| named(&worded(&error)))?;
    let root = bundle.join(config.root.path);
    fs::canonicalize(&root).map_err(|error| format!("{}: {error}", root.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STATE: &str = r#"{"ociVersion": "1.0", "id": "7", "pid": 4711, "root": "/r/merged",
        "bundle": "/r/userdata", "status": "created", "annotations": {"a": "b"}}"#;

    #[test]
    fn a_state_tells_process_and_bundle() {
        let state = State { id: "7".into(), pid: 4711, bundle: "/r/userdata".into() };
        assert_eq!(read(STATE.as_bytes()), Ok(state));
        let ended = read(r#"{"id": "7", "bundle": "/", "status": "stopped"}"#.as_bytes()).unwrap();
        assert_eq!(ended.pid, 0);
    }

    #[test]
    fn what_is_no_state_is_refused_with_the_reason() {
        let pid = |pid: &str| STATE.replace("4711", pid);
        for (text, reason) in [
            (String::new(), "standard input is empty"),
            ("\n".into(), "standard input is empty"),
            ("{".into(), "EOF"),
            ("[]".into(), "invalid length 0"),
            ("{}".into(), "missing field `id`"),
            (pid("-1"), "invalid value"),
            (pid("4294967296"), "invalid value"),
            (pid("\"1\""), "invalid type"),
            (" ".repeat(usize::try_from(MAX_BYTES).unwrap() + 1), "more than 4 MiB"),
        ] {
            let why = read(text.as_bytes()).unwrap_err();
            assert!(why.contains(reason), "{why}");
        }
    }

    #[test]
    fn the_root_is_that_of_the_configuration_without_links() {
        let folder = tempfile::tempdir().unwrap();
        let bundle = folder.path().canonicalize().unwrap();
        assert!(root(&bundle).unwrap_err().contains("config.json: No such file"));
        let config = |text: &str| fs::write(bundle.join("config.json"), text).unwrap();
        config("{}");
        assert!(root(&bundle).unwrap_err().contains("config.json: missing field `root`"));
        config(r#"{"ociVersion": "1.0", "root": {"path": "link", "readonly": true}}"#);
        assert!(root(&bundle).unwrap_err().contains("link: No such file"));
        fs::create_dir(bundle.join("rootfs")).unwrap();
        std::os::unix::fs::symlink("rootfs", bundle.join("link")).unwrap();
        assert_eq!(root(&bundle), Ok(bundle.join("rootfs")));
    }

    proptest! {
        #[test]
        fn any_input_is_read_or_refused(bytes: Vec<u8>, cut in 0..STATE.len()) {
            let _ = read(bytes.as_slice());
            prop_assert!(read(&STATE.as_bytes()[..cut]).is_err());
        }
    }
}
