//! A home as a `numactl` command line.

use super::guest::lacking;
use nearside_policy::{Guest, MemoryPolicy, PageSize};

/// The command line, to be followed by a command, and a note for each limit of `numactl`.
pub(crate) fn report(guest: &Guest) -> (String, Vec<String>) {
    let Guest { memory_nodes: nodes, primary, policy, .. } = guest;
    let mut notes = Vec::new();
    let memory = match policy {
        MemoryPolicy::Strict => format!(" --membind={nodes}"),
        MemoryPolicy::Preferred => format!(" --preferred={primary}"),
        MemoryPolicy::PreferredMany => format!(" --preferred-many={nodes}"),
        MemoryPolicy::Interleave => format!(" --interleave={nodes}"),
        MemoryPolicy::WeightedInterleave => {
            notes.push("--weighted-interleave needs numactl 2.0.19 and Linux 6.9".into());
            format!(" --weighted-interleave={nodes}")
        }
        MemoryPolicy::Restrictive => {
            notes.push(lacking(
                "numactl",
                *policy,
                "the command's memory is not confined; use nearside run",
            ));
            String::new()
        }
        MemoryPolicy::Local => " --localalloc".into(),
    };
    if guest.page_size != PageSize::Base {
        notes.push("the command itself has to ask for huge pages".into());
    }
    let cpus = match guest.cpu_nodes_have_memory {
        true => format!("--cpunodebind={}", guest.cpu_nodes),
        // It refuses the number of a node without memory.
        false => format!("--physcpubind={}", guest.cpus),
    };
    (format!("numactl {cpus}{memory} --\n"), notes)
}
