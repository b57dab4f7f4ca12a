//! A QEMU monitor that answers anything. `crates/vmm/tests/corpus.rs` includes this file and
//! replays the corpus.

use nearside_vmm::{QmpDialogue, QmpStep};

const ANSWERS_BEFORE: &[u8] = b"{\"QMP\": {}}\n{\"return\": {}}\n";

/// Reads the input as a whole dialogue, and as the answer about vCPUs, in pieces of several sizes:
/// the size of the pieces makes no difference.
pub fn qmp(input: &[u8]) {
    for before in [&[][..], ANSWERS_BEFORE] {
        let all = [before, input].concat();
        let whole = outcome(&all, all.len().max(1));
        for piece in [1, 7] {
            assert_eq!(outcome(&all, piece), whole);
        }
    }
}

fn outcome(bytes: &[u8], piece: usize) -> Result<Option<QmpStep>, String> {
    let mut dialogue = QmpDialogue::default();
    for piece in bytes.chunks(piece) {
        let mut step = dialogue.take(piece)?;
        // Lines that came together are taken one by one.
        while let QmpStep::Send(_) = step {
            step = dialogue.take(&[])?;
        }
        if let QmpStep::Threads(_) = step {
            return Ok(Some(step));
        }
    }
    Ok(None)
}
