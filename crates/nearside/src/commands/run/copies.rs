//! Copies of program text: a command joins those of its node.

use crate::{output, room};
use nearside_replicas::{Client, private_mounts, protocol};
use nearside_topology::NodeSet;
use std::path::Path;

/// Gives the command the copies of program text of its node, if a replicator runs. Without one, and
/// at a home of several nodes, the command uses the original files: one address space has one page
/// per address, so its threads on several nodes share one copy of a file.
pub(in crate::commands) fn join(home: &NodeSet, quiet: bool) {
    let socket = Path::new(protocol::SOCKET);
    let (Some(node), 1, true) = (home.first(), home.len(), socket.exists()) else { return };
    let join = || {
        let client = Client::connect(socket, room::PATIENCE)?;
        private_mounts()?;
        client.join(node)
    };
    if let Err(error) = join()
        && !quiet
    {
        output::note([format!("program text is not local: {error}")]);
    }
}
