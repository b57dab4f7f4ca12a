//! The command lines of `lines/`, and a host of four nodes.

use nearside_topology::{Distances, NodeId};
use nearside_vmm::{CellPlacement, CommandLine, CommandLineError, Placement, Vm};
use std::path::Path;

/// Names and texts, by name.
pub(crate) fn lines() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lines");
    let mut lines: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    lines.sort();
    lines
}

/// Reads a text: words by blanks, and a first line `--cells N`.
pub(crate) fn read(text: &str) -> Result<CommandLine, CommandLineError> {
    let (cells, words) = match text.strip_prefix("--cells ") {
        Some(rest) => rest.split_once('\n').map(|(n, words)| (Some(n), words)).unwrap(),
        None => (None, text),
    };
    let line = CommandLine::read(&words.split_whitespace().collect::<Vec<_>>())?;
    cells.map_or(Ok(line.clone()), |cells| line.split(cells.parse().unwrap()))
}

/// Cell 0 on node 0, cell 1 on node 3, and so on; a cell of more than 8 vCPUs on two nodes.
pub(crate) fn placement(vm: &Vm) -> Placement {
    let ids = [0, 1, 2, 3].map(NodeId);
    let table = [10, 12, 21, 21, 12, 10, 21, 21, 21, 21, 10, 12, 21, 21, 12, 10];
    let cells = vm.cells.iter().enumerate().map(|(id, cell)| {
        let node = NodeId([0, 3, 1, 2][id % 4]);
        let half = cell.bytes / 2;
        let bytes = match cell.vcpus.len() > 8 {
            true => [(node, cell.bytes - half), (NodeId(node.0 ^ 1), half)].into(),
            false => [(node, cell.bytes)].into(),
        };
        CellPlacement { cpu_nodes: [node].into_iter().collect(), bytes }
    });
    let distances = Some(Distances::new(&ids, &table).unwrap());
    Placement { cells: cells.collect(), distances, ..Placement::default() }
}
