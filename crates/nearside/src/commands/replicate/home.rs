//! The node whose copies a process uses.

use crate::{
    domains::{find as find_domain, open_host},
    failure::Failure,
};
use nearside_linux::store::Record;
use nearside_topology::{NodeId, NodeSet};
use std::{fs, path::Path};

/// The node where a process is at home, or why that is not one node: the home of its domain, else
/// the node whose memory alone it may use (cpuset.mems).
pub(super) fn home_of(process: u32) -> Result<Result<NodeId, String>, Failure> {
    if !Path::new(&format!("/proc/{process}")).exists() {
        return Err(Failure::could_not(format_args!("there is no process {process}")));
    }
    let host = open_host()?;
    let cgroup = host
        .tree()
        .group_of(format!("/proc/{process}/cgroup").as_ref())
        .map_err(Failure::could_not)?;
    let (_, record) = find_domain(&host, cgroup.path())?;
    let (whose, home) = match record {
        Some(record) => return Ok(home_of_domain(&record)),
        None => {
            let status = fs::read(format!("/proc/{process}/status"));
            let status = status
                .map_err(|error| Failure::could_not(format!("/proc/{process}/status: {error}")))?;
            // The name of a process need not be UTF-8.
            let status = String::from_utf8_lossy(&status);
            let whose = format!("process {process} belongs to no domain and may use memory of");
            (whose, allowed_nodes(&status))
        }
    };
    Ok(only_node(&whose, &home))
}

/// The home of a domain, or why that is not one node.
pub(super) fn home_of_domain(record: &Record) -> Result<NodeId, String> {
    only_node(&format!("{} is at home on", record.name), &record.whole_home().nodes)
}

fn only_node(whose: &str, nodes: &NodeSet) -> Result<NodeId, String> {
    match (nodes.first(), nodes.len()) {
        (Some(node), 1) => Ok(node),
        _ => Err(format!(
            "{whose} {}, but one address space can use only one copy of a file",
            nodes.named()
        )),
    }
}

/// The nodes of a `/proc/PID/status` whose memory the process may use.
fn allowed_nodes(status: &str) -> NodeSet {
    let nodes = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    nodes.and_then(|nodes| nodes.trim().parse().ok()).unwrap_or_default()
}
