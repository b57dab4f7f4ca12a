//! Becoming a domain. This process takes its claim, enters its cgroup, and sets its affinity and
//! memory policy. Then it executes the command in its own place
//! (docs/adr/0004-run-executes-in-place.md), so signals and exit codes need no forwarding.

use crate::{
    confine::{CPUS, bind},
    error::Error,
    escape,
    host::{Host, NewDomain, Refusal, take_policy},
    sys,
};
use nearside_policy::{
    CostModel, Machine, MemoryPolicy, Observation, Plan, Start, StartRefusal, start,
};
use nearside_topology::{NodeSet, Topology};
use std::{
    convert::Infallible,
    ffi::{OsStr, OsString},
    io,
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    process,
};

pub use crate::host::policy_forbidden;

/// The search path of the C library if `PATH` is unset.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The command to execute.
#[derive(Debug, Clone)]
pub struct Command {
    program: PathBuf,
    arguments: Vec<OsString>,
}

/// The reason why a domain was not started. The attempt has left nothing behind.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The program does not exist.
    #[error("{:?}: command not found", .0.to_string_lossy())]
    NotFound(OsString),
    /// The program exists but cannot be executed.
    #[error("{}: cannot be executed: {source}", program.display())]
    NotExecutable {
        /// The program.
        program: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The program exists, but not its interpreter.
    #[error(
        "{}: its interpreter (of its #! line, or the dynamic loader) was not found",
        .0.display()
    )]
    NoInterpreter(PathBuf),
    /// No home fits the domain, or its name is taken.
    #[error(transparent)]
    Refused(#[from] StartRefusal),
    /// The command cannot be completed for its home.
    #[error("{0}")]
    Incomplete(String),
    /// A step was refused, or a need no longer holds.
    #[error(transparent)]
    Change(#[from] Refusal),
    /// The host or the kernel refused.
    #[error(transparent)]
    Host(#[from] Error),
}

impl Command {
    /// Finds the program as execvp(3) does: a name with a slash is a path, any other is searched
    /// for in `search_path`.
    pub fn find(words: &[OsString], search_path: Option<&OsStr>) -> Result<Self, LaunchError> {
        let not_found = || LaunchError::NotFound(words.first().cloned().unwrap_or_default());
        let (name, arguments) =
            words.split_first().filter(|(name, _)| !name.is_empty()).ok_or_else(not_found)?;
        let candidates = match name.as_bytes().contains(&b'/') {
            true => vec![PathBuf::from(name)],
            false => {
                let folders =
                    std::env::split_paths(search_path.unwrap_or(OsStr::new(DEFAULT_PATH)));
                // An empty entry is the working directory.
                folders.map(|folder| Path::new(".").join(folder).join(name)).collect()
            }
        };
        let mut refused = None;
        for program in candidates {
            match is_executable(&program) {
                Ok(()) => return Ok(Self { program, arguments: arguments.to_vec() }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => {
                    refused.get_or_insert(LaunchError::NotExecutable { program, source });
                }
            }
        }
        Err(refused.unwrap_or_else(not_found))
    }

    /// The same program with other arguments.
    #[must_use]
    pub fn with_arguments(self, arguments: Vec<OsString>) -> Self {
        Self { arguments, ..self }
    }

    fn words(&self) -> Vec<String> {
        let all = std::iter::once(self.program.as_os_str())
            .chain(self.arguments.iter().map(OsString::as_os_str));
        all.map(escape::text).collect()
    }

    /// Replaces this process. Comes back only if that fails.
    fn execute(&self) -> LaunchError {
        let source = sys::execute(process::Command::new(&self.program).args(&self.arguments));
        match source.kind() {
            io::ErrorKind::NotFound if self.program.exists() => {
                LaunchError::NoInterpreter(self.program.clone())
            }
            io::ErrorKind::NotFound => LaunchError::NotFound(self.program.clone().into()),
            _ => LaunchError::NotExecutable { program: self.program.clone(), source },
        }
    }
}

fn is_executable(path: &Path) -> io::Result<()> {
    let meta = path.metadata()?;
    match meta.is_file() && meta.permissions().mode() & 0o111 != 0 {
        true => Ok(()),
        false if meta.is_dir() => {
            Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder"))
        }
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// The plan that would start a domain.
pub fn plan(host: &mut Host, wish: &Start, model: &CostModel) -> Result<Plan, LaunchError> {
    let observation = host.observe()?;
    let plan = start(wish, &observation, model)?;
    host.check(&plan.transaction.steps, wish.request.policy)?;
    Ok(plan)
}

/// As [`plan`], with a command that depends on the home.
pub fn plan_decided(
    host: &mut Host,
    subject: Subject<'_>,
    decide: Decide<'_>,
) -> Result<(Plan, Command), LaunchError> {
    let (plan, command) = decide(&host.observe()?)?;
    host.check(&plan.transaction.steps, subject.policy)?;
    Ok((plan, command))
}

/// Becomes the domain and executes `command` in it. Returns only if that fails, and then leaves
/// nothing behind.
///
/// `known` is the machine as read earlier, which shortens the time under the lock. `tell` is called
/// once, before the command starts, with the plan and the notices for the user.
pub fn launch(
    host: &mut Host,
    wish: &Start,
    command: &Command,
    model: &CostModel,
    known: &Topology,
    tell: &mut dyn FnMut(&Plan, &[String]),
) -> Result<Infallible, LaunchError> {
    let subject = Subject { name: &wish.name, policy: wish.request.policy };
    let decide = &mut |seen: &Observation| Ok((start(wish, seen, model)?, command.clone()));
    launch_decided(host, subject, known, decide, tell)
}

/// The domain that a launch is about.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its memory policy.
    pub policy: MemoryPolicy,
}

/// The decision of a launch: the plan, and the command that follows from it.
pub type Decide<'a> = &'a mut dyn FnMut(&Observation) -> Result<(Plan, Command), LaunchError>;

/// As [`launch`], with a command that depends on the home. `decide` is called under the lock.
pub fn launch_decided(
    host: &mut Host,
    subject: Subject<'_>,
    known: &Topology,
    decide: Decide<'_>,
    tell: &mut dyn FnMut(&Plan, &[String]),
) -> Result<Infallible, LaunchError> {
    let back = host.tree().group_of(&host.proc().join("self/cgroup"))?;
    let mut session = host.begin()?;
    let (plan, command) = decide(session.observe(Some(known))?)?;
    session.check_host(&plan.transaction.steps, subject.policy)?;
    let decision = plan.decision.clone();
    let decision = decision.ok_or_else(|| Error::Refused("the plan has no placement".into()))?;
    session.start(&plan.transaction, &NewDomain { command: command.words(), decision })?;
    // A terminal may be stopped or full, so the lock is free before anything is written to it.
    drop(session);
    tell(&plan, &host.take_notices());
    let error = command.execute();
    // The next start removes any remainder. The reason why the command did not run matters more.
    if let Ok(mut session) = host.begin() {
        let _ = session.abandon(subject.name, &back);
    }
    Err(error)
}

/// Enters a running domain, takes on its memory policy, and executes `command`. Returns only if
/// that fails.
///
/// `ready` is called with the home, before the command starts.
pub fn enter(
    host: &mut Host,
    name: &str,
    command: &Command,
    ready: impl FnOnce(&NodeSet),
) -> Result<Infallible, LaunchError> {
    // The lock makes sure that the policy is that of the domain's present home.
    let session = host.begin()?;
    let record = session.record(name)?;
    let record = record.ok_or_else(|| Error::Refused(format!("{name} has ended")))?;
    let group = session.tree().group(&record.cgroup)?;
    group.enter(process::id())?;
    let part = record.part();
    if let Some(nodes) = &part.policy_nodes {
        take_policy(part.home.policy, nodes)?;
    }
    if let Some(binding) = part.cpus.as_ref().filter(|_| !group.has(CPUS.file)) {
        bind(process::id().cast_signed(), &binding.cpus)?;
    }
    drop(session);
    ready(&part.home.nodes);
    Err(command.execute())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_env_finds_them() {
        let root = tempfile::tempdir().unwrap();
        let file = |name: &str, mode| {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let (good, plain, _) =
            (file("a/good", 0o755), file("a/plain", 0o644), file("b/plain", 0o755));
        let (a, both) = (
            root.path().join("a"),
            std::env::join_paths(["a", "b"].map(|name| root.path().join(name))),
        );
        let find = |word: &str, path: &OsStr| {
            Command::find(&[word.into()], Some(path)).map(|found| found.program)
        };
        assert_eq!(find("good", a.as_os_str()).unwrap(), good);
        assert_eq!(
            find("plain", &both.unwrap()).unwrap(),
            root.path().join("b/plain"),
            "the first that can be executed"
        );
        for nowhere in ["none", "", "/none/such"] {
            assert!(
                matches!(find(nowhere, a.as_os_str()), Err(LaunchError::NotFound(_))),
                "{nowhere}"
            );
        }
        let beneath_a_file = plain.join("x");
        for unfit in [Path::new("plain"), &plain, &a, &beneath_a_file] {
            let found = find(unfit.to_str().unwrap(), a.as_os_str());
            assert!(matches!(found, Err(LaunchError::NotExecutable { .. })), "{}", unfit.display());
        }
        let said = |word: &str| find(word, a.as_os_str()).unwrap_err().to_string();
        assert_eq!(said(""), "\"\": command not found");
        assert_eq!(said("none"), "\"none\": command not found");
        assert_eq!(
            said(a.to_str().unwrap()),
            format!("{}: cannot be executed: it is a folder", a.display())
        );
        assert!(Command::find(&["sh".into()], None).is_ok(), "there is a path without PATH");
        assert!(matches!(Command::find(&[], None), Err(LaunchError::NotFound(_))));
    }

    #[test]
    fn an_empty_folder_of_the_path_is_the_working_directory() {
        // Tests run in the folder of their package.
        let found = Command::find(&["Cargo.toml".into()], Some(OsStr::new("/none:")));
        assert!(matches!(
            found,
            Err(LaunchError::NotExecutable { program, .. })
                if program == Path::new("./Cargo.toml")
        ));
    }
}
