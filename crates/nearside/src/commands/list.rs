//! `nearside list`: the running domains.

use crate::{
    client, domains,
    failure::{Failure, Outcome},
    interval,
    output::{self, Format},
    report::{
        list::{self, List},
        reserved::Reserved,
        units::count,
    },
};
use nearside_linux::cgroup::Tree;
use std::time::Duration;

/// List the domains with their homes, claims and local shares, and reserved memory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nearside list -n
  nearside list --all --format json

Columns:
  memory  resident memory / claimed memory
  local   local share: probability that a memory access is local
  debt    own memory that lies off the home
  ... at  how much on which node, as in 0:512M 3:1.5G; threads include helpers
  status  status in the control loop, if the daemon runs (details: `nearside why`)")]
pub(crate) struct Args {
    /// Show memory and threads by node, too
    #[arg(short, long)]
    nodes: bool,

    /// List other cgroups with processes, too (except the root, which is the whole host)
    #[arg(long)]
    all: bool,

    /// Time over which CPU use is sampled
    #[arg(long, value_name = "SECONDS", default_value = "0.2")]
    #[arg(value_parser = interval::parse, allow_hyphen_values = true)]
    interval: Duration,

    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    #[command(flatten)]
    daemon: client::Args,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let host = domains::open_host()?;
    let topology = host.topology().map_err(Failure::could_not)?;
    let (found, broken) = domains::running(&host, args.all)?;
    let has_unreadable = !broken.is_empty();
    output::note(broken);
    let interval = if found.is_empty() { Duration::ZERO } else { args.interval };
    let mut domains = domains::sample(&host, &found, &topology, interval);
    args.daemon.tell_status(&mut domains);
    output::note(domains::hidden(&domains));
    if domains.is_empty() {
        output::note([none(has_unreadable, args.daemon.watched(client::READ_WITHIN), host.tree())]);
    }
    let reservations = host.reservations();
    let list = List { domains: &domains, reservations: Reserved::all(&reservations) };
    args.format.print(&list, |data| list::text(data, args.nodes))
}

/// The note beside an empty list. An unreadable record may be that of a running domain, and the
/// daemon may watch found domains that have no record, because they have no home: on a host of one
/// node there is nothing to choose.
fn none(has_unreadable: bool, watched: usize, tree: &Tree) -> String {
    let instead = instead(tree);
    if watched > 0 {
        let (found, have) =
            (count(watched, "found domain"), if watched == 1 { "has" } else { "have" });
        let unreadable = match has_unreadable {
            true => "; another one, whose record cannot be read, may run",
            false => "",
        };
        return format!(
            "no domain has a home: the daemon watches {found} that {have} none{unreadable}; \
             `nearside list --all` lists their cgroups, `nearside why PATH` tells the status of one"
        );
    }
    match has_unreadable {
        true => {
            format!("no domain is listed, but one whose record cannot be read may run{instead}")
        }
        false => format!("no domain runs: `nearside run` starts one{instead}"),
    }
}

/// The commands that show the processes outside domains.
fn instead(tree: &Tree) -> &'static str {
    let in_root = || {
        tree.group("/")
            .and_then(|root| root.processes())
            .is_ok_and(|processes| !processes.is_empty())
    };
    match tree.populated_groups().is_empty() {
        false => "; `nearside list --all` lists other cgroups, too",
        true if in_root() => "; all processes are in the root group: `nearside show /`",
        true => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn unreadable_record_is_no_proof_that_no_domain_runs() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "").unwrap();
        let tree = Tree::at(root.path()).unwrap();
        assert_eq!(none(false, 0, &tree), "no domain runs: `nearside run` starts one");
        let expected = "no domain is listed, but one whose record cannot be read may run";
        assert_eq!(none(true, 0, &tree), expected);
    }

    #[test]
    fn domains_that_the_daemon_watches_run() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "").unwrap();
        let tree = Tree::at(root.path()).unwrap();
        let told = none(false, 1000, &tree);
        assert!(told.contains("the daemon watches 1000 found domains that have none"), "{told}");
        assert!(
            told.contains("`nearside list --all`") && !told.contains("no domain runs"),
            "{told}"
        );
        assert!(none(false, 1, &tree).contains("watches 1 found domain that has none;"));
        assert!(none(true, 2, &tree).contains("whose record cannot be read, may run"));
    }

    #[test]
    fn empty_list_points_to_the_groups_that_have_processes() {
        let root = tempfile::tempdir().unwrap();
        let group = |path: &str, processes: &str| {
            fs::create_dir_all(root.path().join(path)).unwrap();
            fs::write(root.path().join(path).join("cgroup.procs"), processes).unwrap();
        };
        fs::write(root.path().join("cgroup.controllers"), "").unwrap();
        let tree = Tree::at(root.path()).unwrap();
        assert_eq!(instead(&tree), "", "no process is visible");
        group("", "1\n2\n");
        group("empty.slice", "");
        assert!(
            instead(&tree).ends_with("in the root group: `nearside show /`"),
            "{}",
            instead(&tree)
        );
        group("full.slice/a.service", "3\n");
        assert!(instead(&tree).contains("`nearside list --all`"), "{}", instead(&tree));
    }
}
