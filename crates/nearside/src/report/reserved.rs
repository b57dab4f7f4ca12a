//! Memory that is reserved for something that is no domain.

use super::{
    domain::{by_node, by_node_bytes},
    table::{Side::Left, listing},
};
use crate::printable::printable;
use nearside_policy::{ByNode, Purpose, Reservation};
use serde::Serialize;

/// A reservation.
#[derive(Debug, Serialize)]
pub(crate) struct Reserved<'a> {
    name: &'a str,
    /// The word of the purpose.
    purpose: &'static str,
    /// The name of a guest that migrates to this host.
    guest: Option<&'a str>,
    /// The path of the cgroup whose domain has taken it over.
    owner: Option<&'a str>,
    /// Its memory that is not resident yet.
    outstanding_bytes: &'a ByNode,
    vcpus: &'a ByNode,
}

impl<'a> Reserved<'a> {
    /// All of them, by name.
    pub(crate) fn all(reservations: &'a [Reservation]) -> Vec<Self> {
        let mut all: Vec<_> = reservations.iter().map(Self::new).collect();
        all.sort_by_key(|it| it.name);
        all
    }

    fn new(reservation: &'a Reservation) -> Self {
        let (purpose, guest) = match &reservation.purpose {
            Purpose::StartingGuest => ("starting-guest", None),
            Purpose::IncomingGuest(name) => ("incoming-guest", Some(name.as_str())),
            Purpose::Copies => ("copies", None),
            Purpose::Unknown => ("unknown", None),
        };
        Self {
            name: &reservation.name,
            purpose,
            guest,
            owner: reservation.owner.as_deref(),
            outstanding_bytes: &reservation.bytes,
            vcpus: &reservation.vcpus,
        }
    }

    /// The purpose in words.
    fn purpose(&self) -> String {
        match (self.owner, self.guest, self.purpose) {
            (None, _, "unknown") => "a subject whose record cannot be read".into(),
            (Some(owner), _, "unknown") => {
                format!("the domain in {}, whose record cannot be read", printable(owner))
            }
            (Some(owner), ..) => format!("the guest in {}", printable(owner)),
            (None, Some(guest), _) => format!("the guest {}, which moves here", printable(guest)),
            (None, None, "copies") => "copies of files, while they are made".into(),
            _ => "a guest that is about to start".into(),
        }
    }
}

/// A line for each reservation.
pub(crate) fn text(reserved: &[Reserved<'_>]) -> String {
    let columns = [("name", Left), ("memory at", Left), ("vCPUs at", Left), ("for", Left)];
    let row = |it: &Reserved<'_>| {
        let (memory, vcpus) = (by_node_bytes(it.outstanding_bytes), by_node(it.vcpus));
        vec![printable(it.name), memory, vcpus, it.purpose()]
    };
    match reserved.is_empty() {
        true => String::new(),
        false => {
            let rows: Vec<_> = reserved.iter().map(row).collect();
            format!("\nReserved\n{}", listing(&columns, &rows))
        }
    }
}

/// Invented reservations for the tests of reports.
#[cfg(test)]
pub(crate) mod examples {
    use super::*;
    use nearside_topology::NodeId;

    pub(crate) fn reservations() -> Vec<Reservation> {
        let reserved = |name: &str, purpose, owner: Option<&str>, vcpus| Reservation {
            name: name.into(),
            purpose,
            owner: owner.map(str::to_owned),
            bytes: [(NodeId(0), 512 << 20), (NodeId(2), 1 << 30)].into(),
            vcpus,
            ..Reservation::default()
        };
        let vcpus = || ByNode::from([(NodeId(0), 1), (NodeId(2), 2)]);
        let incoming = Purpose::IncomingGuest("db".into());
        vec![
            reserved("numad-2", Purpose::StartingGuest, None, vcpus()),
            reserved("incoming+db", incoming, None, vcpus()),
            reserved("copies-7", Purpose::Copies, None, ByNode::new()),
            reserved("web.json", Purpose::Unknown, Some("/nearside/web"), vcpus()),
            reserved("numad-1", Purpose::StartingGuest, Some("/machine.slice/vm"), vcpus()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reservation_says_what_it_is_for() {
        let reservations = examples::reservations();
        insta::assert_snapshot!("reserved", text(&Reserved::all(&reservations)));
        assert_eq!(text(&[]), "");
    }
}
