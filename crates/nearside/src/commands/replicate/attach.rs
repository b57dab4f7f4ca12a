//! `nearside replicate attach`: running processes use copies.

use super::home::{home_of, home_of_domain};
use crate::{
    domains::{argument, named, open_host},
    failure::{Failure, Outcome},
    output::{self, Format},
    report::replicate::attached_text,
};
use nearside_replicas::{
    Client,
    protocol::{Answer, Attached, LeftAlone, Request},
};
use nearside_topology::NodeId;
use rustix::process::geteuid;
use std::{collections::BTreeMap, fs};

/// Let running processes use copies
///
/// All processes in the mount namespace of PID, or in those of a domain, go on from the copies of
/// its node, with the same paths in /proc/PID/maps. Each is stopped for some milliseconds.
/// Processes that are traced, run under seccomp, or execute 32-bit code are left alone, and so are
/// pages that a process has written. A process in the host's own mount namespace cannot have
/// copies: `nearside run` beside a replicator and systemd's PrivateMounts=yes give it one of its
/// own.
#[derive(Debug, clap::Args)]
pub(super) struct Attach {
    /// A process, or the name of a domain
    #[arg(value_name = "PID|DOMAIN", value_parser = argument())]
    whose: String,

    /// The node whose copies it uses [default: the home of its domain, or the only node of its
    /// cpuset]
    #[arg(long, value_name = "NODE")]
    node: Option<u32>,

    /// The format of the report
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(super) fn run(args: &Attach, connect: impl FnOnce() -> Result<Client, Failure>) -> Outcome {
    let named = args.node.map(known).transpose()?;
    let (processes, home) = match args.whose.parse() {
        Ok(process) => (vec![process], named.is_none().then(|| home_of(process)).transpose()?),
        Err(_) => {
            let (processes, home) = of_domain(&args.whose)?;
            (processes, Some(home))
        }
    };
    let home = || home.unwrap_or_else(|| Err("it has no home".into()));
    let node = named.map_or_else(home, Ok).map_err(|why| {
        Failure::could_not(format!("{why}: name the node whose copies it uses with --node"))
    })?;
    let client = connect()?;
    let mut asked = Vec::new();
    for process in processes {
        asked.push((process, attach(&client, process, node)?));
    }
    let attached = all(asked).map_err(Failure::could_not)?;
    output::print(&match args.format {
        Format::Text => attached_text(&attached),
        Format::Json => output::json(&attached)?,
    })
}

/// The outcome, or why the replicator refuses.
fn attach(
    client: &Client,
    process: u32,
    node: NodeId,
) -> Result<Result<Attached, String>, Failure> {
    let request = Request::Attach { process, node, future_root: None };
    match client.ask(&request, None).map_err(Failure::could_not)? {
        Answer::Attached(attached) => Ok(Ok(attached)),
        Answer::Refused { why } => Ok(Err(why)),
        other => {
            Err(Failure::could_not(format!("the replicator's answer does not fit: {other:?}")))
        }
    }
}

/// The outcomes for all mount namespaces of a domain as one. Fails if all are refused.
fn all(asked: Vec<(u32, Result<Attached, String>)>) -> Result<Attached, String> {
    let (mut all, mut refused, mut any) = (Attached::default(), None, false);
    for (process, outcome) in asked {
        match outcome {
            Ok(one) => {
                any = true;
                all.copies = all.copies.max(one.copies);
                all.processes += one.processes;
                all.bytes += one.bytes;
                all.stopped_us = all.stopped_us.max(one.stopped_us);
                all.left_alone.extend(one.left_alone);
                all.others_left_alone += one.others_left_alone;
                all.managers.extend(one.managers);
            }
            Err(why) => {
                refused = refused.or_else(|| Some(why.clone()));
                all.left_alone.push(LeftAlone { process, why, again: false });
            }
        }
    }
    match refused {
        Some(why) if !any => Err(why),
        _ => Ok(all),
    }
}

/// A process of each mount namespace of a domain, at least one, and its home or why that is not one
/// node.
fn of_domain(name: &str) -> Result<(Vec<u32>, Result<NodeId, String>), Failure> {
    let host = open_host()?;
    let record = named(&host, name)?;
    let group = host.tree().group(&record.cgroup).map_err(Failure::could_not)?;
    let namespace = |process: u32| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let all = group.all_processes().into_iter().filter_map(|process| u32::try_from(process).ok());
    let all = all.filter_map(|process| Some((namespace(process)?, process)));
    let processes = one_of_each(all, namespace(1).as_ref());
    match processes.is_empty() {
        true if !geteuid().is_root() => {
            Err(Failure::could_not("not permitted to look at its processes: this needs root"))
        }
        true => Err(Failure::could_not(format_args!("{name} has no process"))),
        false => Ok((processes, home_of_domain(&record))),
    }
}

/// A process of each mount namespace but the host's, which has no copies; one of that if there is
/// no other, for the replicator's refusal.
fn one_of_each<N: Ord>(all: impl Iterator<Item = (N, u32)>, host: Option<&N>) -> Vec<u32> {
    let mut namespaces = BTreeMap::new();
    for (namespace, process) in all {
        namespaces.entry(namespace).or_insert(process);
    }
    let (hosts, others): (Vec<_>, Vec<_>) =
        namespaces.into_iter().partition(|(namespace, _)| Some(namespace) == host);
    let asked = if others.is_empty() { hosts } else { others };
    asked.into_iter().map(|(_, process)| process).collect()
}

/// A node that this machine has.
fn known(node: u32) -> Result<NodeId, Failure> {
    let topology = open_host()?.topology().map_err(Failure::could_not)?;
    let known = topology.node_set();
    match known.contains(NodeId(node)) {
        true => Ok(NodeId(node)),
        false => Err(Failure::usage(format_args!(
            "--node: there is no node {node}: this machine has {}",
            known.named()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_namespace_of_a_domain_is_asked_once_and_the_hosts_alone_for_its_refusal() {
        let asked = |all: &[(u8, u32)]| one_of_each(all.iter().copied(), Some(&1));
        assert_eq!(asked(&[(1, 10), (7, 11), (7, 12), (5, 13)]), [13, 11]);
        assert_eq!(asked(&[(1, 10), (1, 11)]), [10]);
        assert_eq!(asked(&[]), [0; 0]);
    }

    #[test]
    fn outcomes_of_several_namespaces_are_one() {
        let attached = |processes, stopped_us| {
            let managers = vec![processes as u32];
            let (bytes, others_left_alone) = (10, 1);
            let left_alone = vec![];
            Ok(Attached {
                copies: 3,
                processes,
                bytes,
                stopped_us,
                left_alone,
                others_left_alone,
                managers,
            })
        };
        let refused = || Err("it has ended".to_owned());
        let left = LeftAlone { process: 3, why: "it has ended".into(), again: false };
        assert_eq!(
            all(vec![(1, attached(2, 50)), (2, attached(1, 70)), (3, refused())]).unwrap(),
            Attached {
                copies: 3,
                processes: 3,
                bytes: 20,
                stopped_us: 70,
                left_alone: vec![left],
                others_left_alone: 2,
                managers: vec![2, 1],
            }
        );
        assert_eq!(all(vec![(3, refused())]).unwrap_err(), "it has ended");
    }
}
