//! The target of the crate `vmm`: command lines. `crates/vmm/tests/corpus.rs` includes this file
//! and replays the corpus.

use nearside_topology::NodeId;
use nearside_vmm::{CellPlacement, CommandLine, Placement, complete};

/// Words by blanks (a zero byte, as in /proc/PID/cmdline, is one), with a first line of options
/// before the program.
pub fn vmm(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let words = text.split(|c: char| c.is_whitespace() || c == '\0').collect::<Vec<_>>();
    let first = if words.first() == Some(&"--cells") { 2 } else { 0 };
    let Ok(line) = CommandLine::read(words.get(first..).unwrap_or_default()) else { return };
    check(&line);
    for cells in 1..4 {
        if let Ok(split) = line.split(cells) {
            assert_eq!(split.vm().cells.len(), cells as usize);
            check(&split);
        }
    }
}

fn check(line: &CommandLine) {
    let place = |bytes| CellPlacement {
        bytes: [(NodeId(1), bytes)].into(),
        cpu_nodes: [NodeId(1)].into_iter().collect(),
    };
    let cells = line.vm().cells.iter().map(|cell| place(cell.bytes)).collect();
    let placement = Placement { cells, ..Placement::default() };
    if let Ok(once) = complete(line, &placement) {
        let again = CommandLine::read(&once.words).and_then(|line| complete(&line, &placement));
        assert_eq!(again.map(|completed| completed.words), Ok(once.words));
    }
}
