//! Copies of program text: a command joins those of its node, and they give way to its claim.

use crate::output;
use nearside_linux::launch::LaunchError;
use nearside_policy::{PageSize, Refusal, StartRefusal};
use nearside_replicas::{Client, private_mounts, protocol};
use nearside_topology::{NodeSet, Topology};
use std::{path::Path, time::Duration};

/// The longest time that a start waits for the replicator. It goes on without copies.
const REPLICATOR_PATIENCE: Duration = Duration::from_secs(2);

/// Gives the command the copies of program text of its node, if a replicator runs. Without one, and
/// at a home of several nodes, the command uses the original files: one address space has one page
/// per address, so its threads on several nodes share one copy of a file.
pub(in crate::commands) fn join(home: &NodeSet, quiet: bool) {
    let socket = Path::new(protocol::SOCKET);
    let (Some(node), 1, true) = (home.first(), home.len(), socket.exists()) else { return };
    let join = || {
        let client = Client::connect(socket, REPLICATOR_PATIENCE)?;
        private_mounts()?;
        client.join(node)
    };
    if let Err(error) = join()
        && !quiet
    {
        output::note([format!("program text is not local: {error}")]);
    }
}

/// Has copies of program text go if they are what the memory is short of. Says whether any went.
pub(super) fn make_room(error: &LaunchError, nodes: Option<&NodeSet>, topology: &Topology) -> bool {
    let LaunchError::Refused(StartRefusal::Place(Refusal::DoesNotFit {
        short_by_bytes,
        page_size: PageSize::Base,
        ..
    })) = error
    else {
        return false;
    };
    let nodes = nodes.cloned().unwrap_or_else(|| topology.memory_nodes());
    let request = protocol::Request::MakeRoom { nodes, bytes: *short_by_bytes };
    // Without a replicator there are no copies.
    let answer = Client::connect(Path::new(protocol::SOCKET), REPLICATOR_PATIENCE)
        .and_then(|client| client.ask(&request, None));
    matches!(answer, Ok(protocol::Answer::Room { freed_bytes }) if freed_bytes > 0)
}
