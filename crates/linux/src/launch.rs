//! Becoming a domain: this process takes its claim, enters its cgroup, takes on affinity and policy, and then executes
//! the command in its own place (docs/adr/0004-run-executes-in-place.md), so that signals and exit codes need no
//! passing on.

use crate::{error::Error, host::Host, store::Record, sys};
use nearside_policy::{CostModel, Home, Machine, Origin, Outcome, Plan, Start, StartRefusal, start};
use std::{
    convert::Infallible,
    ffi::{OsStr, OsString},
    io,
    ops::ControlFlow,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process,
    time::{SystemTime, UNIX_EPOCH},
};

/// What is executed.
#[derive(Debug, Clone)]
pub struct Command {
    program: PathBuf,
    arguments: Vec<OsString>,
}

/// Why a domain was not started. Nothing is left of it.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// There is no such program.
    #[error("{}: command not found", .0.to_string_lossy())]
    NotFound(OsString),
    /// It is there and cannot be executed.
    #[error("{}: cannot be executed: {source}", program.display())]
    NotExecutable {
        /// The program.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It has no place here, or its name is taken.
    #[error(transparent)]
    Refused(#[from] StartRefusal),
    /// The host did not let it happen.
    #[error(transparent)]
    Host(#[from] Error),
}

impl Command {
    /// Finds the program the way a shell does: by path if there is a slash in it, else along `search_path`.
    pub fn find(words: &[OsString], search_path: Option<&OsStr>) -> Result<Self, LaunchError> {
        let (name, arguments) = words.split_first().ok_or_else(|| LaunchError::NotFound(OsString::new()))?;
        let program = match name.as_bytes().contains(&b'/') {
            true => PathBuf::from(name),
            false => std::env::split_paths(search_path.unwrap_or_default())
                .map(|folder| folder.join(name))
                .find(|path| is_executable(path).is_ok())
                .ok_or_else(|| LaunchError::NotFound(name.clone()))?,
        };
        match is_executable(&program) {
            Ok(()) => Ok(Self { program, arguments: arguments.to_vec() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(LaunchError::NotFound(name.clone())),
            Err(source) => Err(LaunchError::NotExecutable { program, source }),
        }
    }

    fn words(&self) -> Vec<String> {
        let all = std::iter::once(self.program.as_os_str()).chain(self.arguments.iter().map(OsString::as_os_str));
        all.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    /// Replaces this process. Comes back only if that fails.
    fn execute(&self) -> LaunchError {
        let source = process::Command::new(&self.program).args(&self.arguments).exec();
        match source.kind() {
            io::ErrorKind::NotFound => LaunchError::NotFound(self.program.clone().into()),
            _ => LaunchError::NotExecutable { program: self.program.clone(), source },
        }
    }
}

fn is_executable(path: &Path) -> io::Result<()> {
    let meta = path.metadata()?;
    match meta.is_file() && meta.permissions().mode() & 0o111 != 0 {
        true => Ok(()),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// What would be done to start a domain.
pub fn plan(host: &mut Host, wish: &Start, model: &CostModel) -> Result<Plan, LaunchError> {
    let observation = host.observe()?;
    Ok(start(wish, &observation, model)?)
}

/// Becomes the domain and executes `command` in it. Returns only if that fails, and then nothing is left behind.
///
/// `tell` is called once with the plan before the command starts, and with what the user should know.
pub fn launch(
    host: &mut Host,
    wish: &Start,
    command: &Command,
    model: &CostModel,
    tell: &mut dyn FnMut(&Plan, &[String]),
) -> Result<Infallible, LaunchError> {
    host.lock()?;
    let back = host.tree().group_of(&host.proc().join("self/cgroup"))?;
    let plan = plan(host, wish, model)?;
    let decision = plan.decision.clone().ok_or_else(|| Error::Refused("the plan has no placement".into()))?;
    let home = Home {
        nodes: decision.chosen.nodes.clone(),
        origin: if wish.request.nodes.is_some() { Origin::Explicit } else { Origin::Auto },
        affinity: wish.affinity,
        policy: wish.request.policy,
    };
    let boot_id = host.boot_id().to_owned();
    host.edit(Record {
        name: wish.name.clone(),
        boot_id,
        cgroup: String::new(),
        inode: 0,
        started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        command: command.words(),
        home,
        claim: decision.chosen.claim.clone(),
        limits: wish.limits,
        decision,
        cpus: None,
        memory_nodes: None,
        policy_nodes: None,
        moving_to: None,
    });
    for step in &plan.steps {
        if let Outcome::Refused { why } = host.apply(&step.action, &mut |_| ControlFlow::Continue(())) {
            let also =
                host.abandon(&back).err().map_or_else(String::new, |also| format!("; nor could it be undone: {also}"));
            return Err(Error::Refused(format!("cannot {}: {why}{also}", step.action)).into());
        }
    }
    tell(&plan, &host.take_notices());
    // The lock is let go by the execution itself, so nobody sees a domain that does not run yet.
    let error = command.execute();
    // What cannot be undone now is swept up by the next start; why the command did not run matters more.
    let _ = host.abandon(&back);
    Err(error)
}

/// Enters a running domain, takes on its memory policy, and executes `command` there. Returns only if that fails.
pub fn enter(host: &mut Host, record: &Record, command: &Command) -> Result<Infallible, LaunchError> {
    host.tree().group(&record.cgroup)?.enter(process::id())?;
    if let Some(nodes) = &record.policy_nodes {
        let policy = record.home.policy;
        sys::set_memory_policy(policy, nodes).map_err(|source| Error::Call {
            what: format!("set memory policy {policy} on {}", nodes.named()),
            source,
        })?;
    }
    if let Some(binding) = record.cpus.as_ref().filter(|_| !host.tree().has("cpuset")) {
        sys::set_cpu_affinity(0, &binding.cpus)
            .map_err(|source| Error::Call { what: format!("run on {}", binding.cpus.named()), source })?;
    }
    Err(command.execute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, mode| {
            let path = folder.path().join(name);
            std::fs::write(&path, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let (good, plain) = (file("good", 0o755), file("plain", 0o644));
        let find = |word: &OsStr| Command::find(&[word.to_owned()], Some(folder.path().as_os_str()));
        assert_eq!(find(OsStr::new("good")).unwrap().program, good);
        assert!(matches!(find(OsStr::new("plain")), Err(LaunchError::NotFound(_))));
        assert!(matches!(find(OsStr::new("none")), Err(LaunchError::NotFound(_))));
        assert!(matches!(find(plain.as_os_str()), Err(LaunchError::NotExecutable { .. })));
        assert!(matches!(find(OsStr::new("/none/such")), Err(LaunchError::NotFound(_))));
        assert!(matches!(find(folder.path().as_os_str()), Err(LaunchError::NotExecutable { .. })));
    }
}
