//! Rights of a peer, decided once for each connection from the kernel's facts about the peer's
//! process.

use super::config;
use nearside_linux::sys;
use nix::unistd::{Gid, Group};
use std::{fmt, io, os::fd::AsFd};
use tokio::net::UnixStream;

/// The process at the other end of a connection, at the time it connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its other groups.
    pub groups: Vec<u32>,
    /// Its number, for messages alone: the process may have ended, and another may have its number.
    /// `None` if it is in a PID namespace that is not below this one.
    pub pid: Option<i32>,
}

impl Caller {
    /// The process at the other end of a connected unix socket.
    ///
    /// The kernel keeps these facts with the socket (`SO_PEERCRED`, `SO_PEERGROUPS`). So a reused
    /// process number cannot mislead, and the groups are those of the process, not of a new login
    /// of its user.
    ///
    /// # Errors
    /// If the kernel does not know; the connection is then closed.
    pub fn of(socket: &UnixStream) -> io::Result<Self> {
        let peer = socket.peer_cred()?;
        // A process without a number in this namespace has 0.
        let pid = peer.pid().filter(|&pid| pid > 0);
        Ok(Self {
            uid: peer.uid(),
            gid: peer.gid(),
            groups: sys::peer_groups(socket.as_fd())?,
            pid,
        })
    }

    fn is_in(&self, group: Option<u32>) -> bool {
        group.is_some_and(|group| self.gid == group || self.groups.contains(&group))
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {} (group {}", self.uid, self.gid)?;
        self.pid.map_or(Ok(()), |pid| write!(f, ", process {pid}"))?;
        write!(f, ")")
    }
}

/// The users and groups that the configuration admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// The user that the daemon runs as. It may do everything, as root may.
    pub own_uid: u32,
    /// Members may read.
    pub read_gid: Option<u32>,
    /// Members may read and change.
    pub admin_gid: Option<u32>,
}

/// Rights of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rights {
    /// None at all.
    None,
    /// To read.
    Read,
    /// To read and to change.
    Change,
}

impl Access {
    /// The access that a configuration describes.
    ///
    /// # Errors
    /// Names a group that does not exist. Without this error its members would be refused for no
    /// visible reason.
    pub fn new(config: &config::Api) -> Result<Self, String> {
        Ok(Self {
            own_uid: rustix::process::geteuid().as_raw(),
            read_gid: config
                .read_group
                .as_deref()
                .map(|name| group("api.read_group", name))
                .transpose()?,
            admin_gid: config
                .admin_group
                .as_deref()
                .map(|name| group("api.admin_group", name))
                .transpose()?,
        })
    }

    /// The rights of a caller.
    pub fn rights(&self, caller: &Caller) -> Rights {
        if self.is_owner(caller) || caller.is_in(self.admin_gid) {
            Rights::Change
        } else if caller.is_in(self.read_gid) {
            Rights::Read
        } else {
            Rights::None
        }
    }

    /// True for root and the daemon's own user, to whom the records belong.
    pub(super) fn is_owner(&self, caller: &Caller) -> bool {
        caller.uid == 0 || caller.uid == self.own_uid
    }

    /// The group that may connect.
    pub(super) fn socket_gid(&self) -> Option<u32> {
        self.read_gid.or(self.admin_gid)
    }
}

fn group(key: &str, name: &str) -> Result<u32, String> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    match Group::from_name(name) {
        Ok(Some(Group { gid, .. })) => Ok(Gid::as_raw(gid)),
        Ok(None) => {
            Err(format!("{key}: there is no group {name}: expected the name of one, or a number"))
        }
        Err(error) => Err(format!("{key}: group {name}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPS: u32 = 200;
    const ADMINS: u32 = 300;

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller { uid, gid, groups: groups.to_vec(), pid: Some(7) }
    }

    #[test]
    fn root_and_administrators_change_the_read_group_reads_and_others_do_nothing() {
        let access = Access { own_uid: 0, read_gid: Some(OPS), admin_gid: Some(ADMINS) };
        let cases = [
            (caller(0, 0, &[]), Rights::Change),
            // Root without its groups is root.
            (caller(0, 1000, &[]), Rights::Change),
            (caller(1000, ADMINS, &[]), Rights::Change),
            (caller(1000, 1000, &[27, ADMINS]), Rights::Change),
            (caller(1000, 1000, &[OPS, ADMINS]), Rights::Change),
            (caller(1000, OPS, &[]), Rights::Read),
            (caller(1000, 1000, &[4, OPS, 27]), Rights::Read),
            (caller(1000, 1000, &[]), Rights::None),
            (caller(OPS, 1000, &[0]), Rights::None),
            (caller(ADMINS, 0, &[]), Rights::None),
        ];
        for (caller, expected) in cases {
            assert_eq!(access.rights(&caller), expected, "{caller:?}");
        }
    }

    #[test]
    fn without_groups_only_root_and_the_daemons_user_have_rights() {
        let access = Access { own_uid: 1000, ..Access::default() };
        assert_eq!(access.rights(&caller(1000, 1000, &[])), Rights::Change);
        assert_eq!(access.rights(&caller(0, 0, &[])), Rights::Change);
        assert_eq!(access.rights(&caller(1001, 1000, &[0, 1000])), Rights::None);
    }

    #[test]
    fn the_kernel_names_user_process_and_groups_of_a_peer() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let caller = runtime.block_on(async {
            let (near, _far) = UnixStream::pair().unwrap();
            Caller::of(&near).unwrap()
        });
        assert_eq!(caller.uid, rustix::process::geteuid().as_raw());
        assert_eq!(caller.pid, Some(std::process::id() as i32));
        let mut groups: Vec<u32> =
            rustix::process::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        let mut of_caller = caller.groups;
        groups.sort_unstable();
        of_caller.sort_unstable();
        assert_eq!(of_caller, groups);
    }

    #[test]
    fn groups_have_names_or_numbers_and_have_to_exist() {
        assert_eq!(group("k", "root"), Ok(0));
        assert_eq!(group("k", "4711"), Ok(4711));
        let error = group("api.read_group", "no-such-group").unwrap_err();
        assert!(error.starts_with("api.read_group: there is no group no-such-group"), "{error}");
    }
}
