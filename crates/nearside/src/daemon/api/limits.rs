//! Bounds on the resources of peers.

use std::time::Duration;

/// Length of the largest body that is read; the largest sensible one names 1,024 nodes.
pub(super) const MAX_BODY_BYTES: usize = 64 << 10;
/// Length of a request line with its headers, roughly. A cgroup's path has at most 4,096 bytes, and
/// three times as many if each of them is percent-encoded.
pub(super) const MAX_HEAD_BYTES: usize = 32 << 10;
/// Headers of one request.
pub(super) const MAX_HEADERS: usize = 64;
/// Changes under way at once, those in root's own share not counted.
pub(super) const MAX_CHANGES: u32 = 16;
/// Changes of root under way at once in addition to [`MAX_CHANGES`].
pub(super) const MAX_ROOT_CHANGES: u32 = 4;
/// Bytes of an unwanted body that are read and dropped before a connection is closed.
pub(super) const MAX_DRAINED_BYTES: usize = 4 << 20;

/// The limits of a peer: its connections, requests, bytes and time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Connections of one user at once. Root has as many in addition to those of all other users,
    /// so an administrator always gets in.
    pub connections_of_a_user: usize,
    /// Age at which a connection takes no further request. A request under way goes on for as long
    /// as an answer may take.
    pub connection: Duration,
    /// Time for a head to arrive, and for the next request.
    pub head: Duration,
    /// Time for a body to arrive.
    pub body: Duration,
    /// Time for the control loop to make a change.
    pub answer: Duration,
    /// Delay of an answer with status 403, so that one user cannot fill the logs with refusals.
    pub refusal: Duration,
    /// Time for a peer to read its last answer, and to end its body, before its connection is
    /// closed.
    pub linger: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            connections_of_a_user: 16,
            connection: Duration::from_secs(60),
            head: Duration::from_secs(10),
            body: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            refusal: Duration::from_secs(1),
            linger: Duration::from_secs(2),
        }
    }
}
