//! The memory policy of this process.

use crate::{
    error::{Error, IoContext},
    sys,
};
use nearside_policy::MemoryPolicy;
use nearside_topology::NodeSet;
use std::io;

/// Sets the memory policy of this process, which the command that it executes inherits.
pub(crate) fn take_policy(policy: MemoryPolicy, nodes: &NodeSet) -> Result<(), Error> {
    match sys::set_memory_policy(policy, nodes) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(policy_forbidden(policy))
        }
        set => set.doing(&format!("set memory policy {policy} on {}", nodes.named())),
    }
}

/// The error if a seccomp filter forbids memory policies.
pub fn policy_forbidden(policy: MemoryPolicy) -> Error {
    Error::NotPermitted {
        what: format!("set memory policy {policy}"),
        needs: "the system call set_mempolicy, which a seccomp filter forbids here (in a \
        container: allow it in its \
                profile, or add CAP_SYS_NICE; --policy restrictive does without)",
    }
}
