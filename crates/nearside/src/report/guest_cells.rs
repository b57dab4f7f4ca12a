//! The cells of a virtual machine in `nearside show`.

use super::{
    domain::{by_node, by_node_bytes, dash, local},
    table::{
        Side::{Left, Right},
        listing,
    },
    units::short,
};
use crate::printable::printable;
use nearside_linux::{
    Unmovable,
    guest::{Guest, Unknown},
};
use nearside_policy::total;
use serde::Serialize;

/// The guest in a cgroup.
#[derive(Debug, Default, Serialize)]
pub(crate) struct GuestCells {
    /// The known facts about it.
    #[serde(flatten)]
    pub(crate) guest: Guest,
    /// The reason why nothing is known; none if it is known.
    pub(crate) unknown: Option<String>,
}

impl From<Result<Guest, Unknown>> for GuestCells {
    fn from(asked: Result<Guest, Unknown>) -> Self {
        match asked {
            Ok(guest) => Self { guest, unknown: None },
            Err(why) => Self { unknown: Some(why.to_string()), ..Self::default() },
        }
    }
}

/// A line for each cell.
pub(crate) fn text(cells: &GuestCells) -> String {
    if let Some(why) = &cells.unknown {
        return format!("\nBy cell of the guest: unknown ({})\n", printable(why));
    }
    let row = |cell: &nearside_linux::guest::GuestCell| {
        let bytes = |bytes: Option<&_>| bytes.map_or("?".into(), by_node_bytes);
        vec![
            dash(cell.cell),
            cell.vcpus.to_string(),
            by_node(&cell.threads),
            bytes(cell.bytes.as_ref()),
            cell.huge_bytes.as_ref().map_or("?".into(), |bytes| short(total(bytes))),
            local(cell.local_share),
        ]
    };
    let columns = [
        ("cell", Left),
        ("vCPUs", Left),
        ("vCPUs at", Left),
        ("memory at", Left),
        ("huge", Right),
        ("local", Right),
    ];
    let rows: Vec<_> = cells.guest.cells.iter().map(row).collect();
    let others = match total(&cells.guest.other_threads) {
        0 => String::new(),
        _ => format!(
            "  other threads at {} (emulator, iothreads, vhost)\n",
            by_node(&cells.guest.other_threads)
        ),
    };
    format!(
        "\nBy cell of the guest (vCPUs: where they run now or ran last)\n{}{others}{}",
        listing(&columns, &rows),
        stays(cells.guest.unmovable)
    )
}

/// The memory that no call moves.
fn stays(unmovable: Unmovable) -> String {
    let device =
        unmovable.vfio.then_some("all guest memory (a VFIO device is attached)".to_owned());
    let memfd = match unmovable.guest_memfd_bytes {
        0 => None,
        bytes => Some(format!("{} of guest_memfd", short(bytes))),
    };
    let reasons: Vec<_> = device.into_iter().chain(memfd).collect();
    match reasons.is_empty() {
        true => String::new(),
        false => format!("  memory that stays where it is: {}\n", reasons.join("; ")),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use nearside_libvirt::VcpuId;
    use nearside_linux::guest::GuestCell;
    use nearside_policy::ByNode;
    use nearside_topology::NodeId;

    pub(crate) fn cells() -> GuestCells {
        let at = |amounts: &[(u32, u64)]| -> ByNode {
            amounts.iter().map(|&(node, amount)| (NodeId(node), amount)).collect()
        };
        let known = GuestCell {
            cell: Some(0),
            vcpus: [VcpuId(0), VcpuId(1)].into(),
            threads: at(&[(0, 2)]),
            bytes: Some(at(&[(0, 3 << 30), (1, 1 << 30)])),
            huge_bytes: Some(at(&[(0, 3 << 30), (1, 1 << 30)])),
            local_share: Some(0.75),
            ..GuestCell::default()
        };
        let unknown = GuestCell {
            cell: Some(1),
            vcpus: [VcpuId(2), VcpuId(3)].into(),
            threads: at(&[(0, 1), (1, 1)]),
            ..GuestCell::default()
        };
        let cells = vec![known, unknown];
        Ok(Guest { cells, other_threads: at(&[(1, 4)]), ..Guest::default() }).into()
    }

    #[test]
    fn each_cell_has_a_line() {
        insta::assert_snapshot!(text(&cells()));
    }

    #[test]
    fn memory_that_stays_has_its_reasons() {
        let stays = |vfio, guest_memfd_bytes| super::stays(Unmovable { vfio, guest_memfd_bytes });
        assert_eq!(stays(false, 0), "");
        assert_eq!(
            stays(true, 2 << 30),
            "  memory that stays where it is: all guest memory (a VFIO device is attached); \
             2G of guest_memfd\n"
        );
    }

    #[test]
    fn a_libvirt_that_does_not_answer_is_named() {
        let why = "libvirt has not answered within 2000 ms".to_owned();
        let cells = GuestCells::from(Err(Unknown::Because(why)));
        assert_eq!(
            text(&cells),
            "\nBy cell of the guest: unknown (libvirt has not answered within 2000 ms)\n"
        );
    }
}
