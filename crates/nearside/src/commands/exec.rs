//! `nearside exec`: another process in a domain that runs.

use super::run;
use crate::{
    domains::{self, open_host},
    failure::{Failure, Outcome},
    lock::{WaitArgs, waiting},
};
use nearside_linux::launch::{self, Command};
use nearside_topology::NodeSet;
use std::ffi::OsString;

/// Run another command in a domain, at its home, with its policy
///
/// Linux cannot change the memory policy of a running process from outside. Processes started this
/// way get the domain's present policy, as after `nearside set`.
#[derive(Debug, clap::Args)]
#[command(override_usage = "nearside exec DOMAIN [--] CMD...")]
#[command(after_help = "\
Examples:
  nearside exec db -- psql -c 'select 1'
  nearside exec db -- bash

Exit codes:
  CMD's own, or 125, 126, 127 as those of `nearside run`")]
pub(crate) struct Args {
    /// The domain, see `nearside list`
    domain: String,

    #[command(flatten)]
    wait: WaitArgs,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Returns only if the command was not started.
pub(crate) fn run(args: &Args) -> Outcome {
    run::own_codes(try_exec(args))
}

fn try_exec(args: &Args) -> Outcome {
    let command =
        Command::find(&args.command, std::env::var_os("PATH").as_deref()).map_err(run::failure)?;
    let mut host = open_host()?;
    let record = domains::named(&host, &args.domain)?;
    if record.found_by.is_some() {
        return Err(Failure::could_not(format_args!(
            "{} was not started by `nearside run`: the program that manages that cgroup starts \
             its processes",
            record.name
        )));
    }
    host.set_waiting(waiting(args.wait.at_most()));
    let ready = |home: &NodeSet| run::copies::join(home, false);
    match launch::enter(&mut host, &record.name, &command, ready) {
        Ok(never) => match never {},
        Err(error) => Err(run::failure(error)),
    }
}
