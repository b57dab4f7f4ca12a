//! The cells of a guest, by libvirt's XML or by the command line of its monitor.

use nearside_libvirt::{CellId, Domain, VcpuId, VcpuSet};
use nearside_topology::NodeSet;
use nearside_vmm::{PageSize, Vm};

/// The cells of a guest; one without a number if it has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape(pub(crate) Vec<CellShape>);

/// A cell as its monitor was told to make it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CellShape {
    pub(crate) cell: Option<CellId>,
    pub(crate) vcpus: VcpuSet,
    /// The nodes that its memory is bound to; none if it is bound to none.
    pub(crate) bound_nodes: Option<NodeSet>,
    pub(crate) bytes: u64,
    /// The name of its memory backend.
    pub(crate) backend: String,
    /// The file that the backend maps, if the command line names one.
    pub(crate) file: Option<String>,
    /// The place of its backend among those of the guest, in the order of their creation.
    pub(crate) place: usize,
}

impl From<&Domain> for Shape {
    fn from(domain: &Domain) -> Self {
        // libvirt lists the backends by cell, and names them (`qemuBuildMemCellBackendStr`,
        // `src/qemu/qemu_command.c`).
        let cell = |(place, cell): (usize, &nearside_libvirt::Cell)| CellShape {
            cell: Some(cell.id),
            vcpus: domain.vcpus_of(cell),
            bound_nodes: domain.memory_nodes(Some(cell)).cloned(),
            bytes: cell.memory_bytes.value,
            backend: format!("ram-node{}", cell.id),
            file: None,
            place,
        };
        let whole = || CellShape {
            cell: None,
            vcpus: domain.vcpus.all(),
            bound_nodes: domain.memory_nodes(None).cloned(),
            bytes: domain.memory_bytes(),
            backend: MACHINE_BACKEND.into(),
            file: None,
            place: 0,
        };
        match domain.cells.is_empty() {
            true => Self(vec![whole()]),
            false => Self(domain.cells.iter().enumerate().map(cell).collect()),
        }
    }
}

/// The memory of a guest without cells (QEMU, `default_ram_id` in `hw/i386/pc_piix.c`).
const MACHINE_BACKEND: &str = "pc.ram";

impl From<&Vm> for Shape {
    fn from(vm: &Vm) -> Self {
        let cell = |(number, cell): (u32, &nearside_vmm::Cell)| {
            let backend = match (cell.backends.first(), vm.states_cells) {
                (Some(backend), _) => backend,
                (None, false) => MACHINE_BACKEND,
                // Cells without backends are slices of one mapping.
                (None, true) => "",
            };
            let file = match &cell.page_size {
                PageSize::Path(path) if !backend.is_empty() => Some(path.clone()),
                _ => None,
            };
            CellShape {
                cell: vm.states_cells.then_some(CellId(number)),
                vcpus: cell.vcpus.iter().map(|vcpu| VcpuId(vcpu.0)).collect(),
                bound_nodes: cell.host_nodes.clone(),
                bytes: cell.bytes,
                backend: backend.into(),
                file,
                place: vm.backends.iter().position(|it| it == backend).unwrap_or_default(),
            }
        };
        Self((0..).zip(&vm.cells).map(cell).collect())
    }
}

impl Shape {
    /// The cell of a vCPU; none if the guest has no cells, or the vCPU is of none.
    pub(crate) fn cell_of(&self, vcpu: VcpuId) -> Option<CellId> {
        self.0.iter().find(|cell| cell.vcpus.contains(vcpu))?.cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_vmm::CommandLine;

    fn of_line(line: &str) -> Shape {
        let words: Vec<_> = line.split_whitespace().collect();
        Shape::from(CommandLine::read(&words).unwrap().vm())
    }

    #[test]
    fn a_command_line_names_the_cells_and_their_backends() {
        let shape = of_line(
            "qemu-system-x86_64 -smp 3 -m 96M \
             -object memory-backend-ram,id=b,size=64M,host-nodes=1,policy=bind \
             -object memory-backend-file,id=a,size=32M,mem-path=/dev/shm/vm-a \
             -numa node,nodeid=0,cpus=0,memdev=a -numa node,nodeid=1,cpus=1-2,memdev=b",
        );
        let [first, second] = &shape.0[..] else { panic!("two cells") };
        assert_eq!((first.cell, &*first.backend, first.place), (Some(CellId(0)), "a", 1));
        assert_eq!((first.file.as_deref(), first.bytes), (Some("/dev/shm/vm-a"), 32 << 20));
        assert_eq!((second.cell, &*second.backend, second.place), (Some(CellId(1)), "b", 0));
        assert_eq!(second.bound_nodes, Some("1".parse().unwrap()));
        assert_eq!(
            [0, 1, 2, 3].map(|it| shape.cell_of(VcpuId(it)).map(|it| it.0)),
            [Some(0), Some(1), Some(1), None]
        );
    }

    #[test]
    fn a_guest_without_cells_has_one_without_a_number() {
        let shape = of_line("qemu-system-x86_64 -smp 2 -m 64M");
        let [whole] = &shape.0[..] else { panic!("one") };
        assert_eq!((whole.cell, &*whole.backend, whole.bytes), (None, "pc.ram", 64 << 20));
        assert_eq!(whole.vcpus.to_string(), "0-1");
        assert_eq!(shape.cell_of(VcpuId(0)), None);
    }
}
