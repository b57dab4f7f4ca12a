//! The last look at each guest. Reading its cells takes long, and its monitor may have to be asked;
//! so a look is remembered for as long as the QEMU that was looked at runs. In another one, even of
//! the same group, its threads and addresses would be wrong.

use crate::{
    guest::{Guest, GuestCell, Unknown},
    vm::QemuProcess,
};
use std::{collections::BTreeMap, path::Path};

/// The last look at each guest, by the path of its group.
#[derive(Debug, Default)]
pub(super) struct Looks(BTreeMap<String, Look>);

/// The cells of a guest, and the process that they were read from.
#[derive(Debug)]
struct Look {
    process: QemuProcess,
    cells: Vec<GuestCell>,
}

impl Looks {
    /// Keeps what was seen in a group. An earlier look stays if this one failed.
    pub(super) fn keep(&mut self, path: &str, seen: Option<&Result<Guest, Unknown>>) {
        match seen {
            Some(Ok(Guest { process: Some(process), cells, .. })) => {
                self.0.insert(path.into(), Look { process: *process, cells: cells.clone() });
            }
            Some(Ok(_)) | None => drop(self.0.remove(path)),
            Some(Err(_)) => {}
        }
    }

    /// The cells of the guest in a group; none unless the QEMU that was looked at still runs.
    pub(super) fn remembered(&self, path: &str, proc: &Path) -> Option<&[GuestCell]> {
        let look = self.0.get(path)?;
        look.process.runs(proc).then_some(&look.cells[..])
    }

    /// Forgets the groups that have ended.
    pub(super) fn keep_only(&mut self, lives: impl Fn(&str) -> bool) {
        self.0.retain(|path, _| lives(path));
    }
}
