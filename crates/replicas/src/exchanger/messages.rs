//! Requests of the helper to its child, and the answers: lines of JSON.

use crate::{
    file_id::FileId,
    remap::{Exchange, Keep, Operation, Report, Segment},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    io::{self, BufRead, Read, Write},
};

/// The longest message in either direction, in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// Attempts to detach a process that cannot be stopped for now.
const DETACH_ATTEMPTS: u32 = 16;

/// A request. The answer has each process that it is about, with the outcome.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    /// Exchanges.
    Exchange(Task),
    /// Those in processes that are held.
    Finish,
}

/// Exchanges of the same files in some processes.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) processes: Vec<u32>,
    pub(super) operation: Operation,
    pub(super) exchanges: Vec<Exchange>,
    /// Attempts to stop a process.
    pub(super) attempts: u32,
    /// Whether processes are only stopped for now, and exchanged once the helper asks for that.
    pub(super) holds: bool,
}

/// The outcome for a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Exchanged {
    /// Its mappings were exchanged, as far as they can be.
    Done {
        /// The addresses that map another file than before, in bytes.
        bytes: u64,
        /// How long its threads were stopped, in microseconds.
        stopped_us: u64,
        /// The addresses that map a copy as before, in bytes.
        kept_bytes: u64,
        /// A mapping that keeps a copy, with the reason, other than pages written by the process.
        kept: Option<String>,
    },
    /// It is stopped, and will be exchanged.
    Held,
    /// It uses none of the files.
    Unconcerned,
    /// It has ended.
    Gone,
    /// It was left as it was.
    LeftAlone {
        /// The reason.
        why: String,
        /// Whether another attempt is of use.
        again: bool,
    },
}

impl Task {
    pub(super) fn to_detach(processes: Vec<u32>, exchanges: Vec<Exchange>, holds: bool) -> Self {
        let (operation, attempts) = (Operation::Detach, DETACH_ATTEMPTS);
        Self { processes, operation, exchanges, attempts, holds }
    }

    /// The files that processes are to give up.
    pub(super) fn files(&self) -> BTreeSet<FileId> {
        self.exchanges.iter().map(|exchange| exchange.from).collect()
    }
}

impl Exchanged {
    pub(super) fn done(process: u32, report: &Report) -> Self {
        let kept = report.kept.iter().find(|kept| kept.why != Keep::PrivatePages);
        let kept = kept.map(|kept| {
            let addresses = &kept.segment.addresses;
            format!("process {process}: {:x}-{:x}: {}", addresses.start, addresses.end, kept.why)
        });
        Self::Done {
            bytes: report.changed.iter().map(Segment::bytes).sum(),
            stopped_us: report.stopped.as_micros().try_into().unwrap_or(u64::MAX),
            kept_bytes: report.kept.iter().map(|kept| kept.bytes).sum(),
            kept,
        }
    }

    /// A thread of the child has failed.
    pub(super) fn failed(process: u32) -> Self {
        Self::LeftAlone { why: format!("process {process}: the exchanger failed"), again: true }
    }

    /// Whether it is of no use to ask again. A process amid `execve(2)` has no mapping yet. One
    /// that uses none of the files gets none any more, since no path names them.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Done { bytes, kept_bytes, .. } => bytes + kept_bytes > 0,
            Self::Gone => false,
            Self::Held | Self::Unconcerned | Self::LeftAlone { .. } => true,
        }
    }

    /// Whether the process has used a copy, and another attempt would change nothing.
    pub(super) fn is_settled(&self) -> bool {
        match self {
            Self::Done { .. } => self.is_final(),
            Self::LeftAlone { again, .. } => !again,
            Self::Held | Self::Unconcerned | Self::Gone => false,
        }
    }

    /// Why the process still uses a copy.
    pub(crate) fn still_uses(self) -> Option<String> {
        match self {
            Self::Done { kept, .. } => kept,
            Self::Held | Self::Unconcerned | Self::Gone => None,
            Self::LeftAlone { why, .. } => Some(why),
        }
    }
}

pub(super) fn write_line(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// The next message; none at the end of the input, also in the middle of a line.
pub(super) fn read_line<T: for<'a> Deserialize<'a>>(
    from: &mut impl BufRead,
) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(MAX_BYTES).read_until(b'\n', &mut line)?;
    match line.strip_suffix(b"\n") {
        Some(line) => Ok(Some(serde_json::from_slice(line)?)),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remap::{Kept, maps};

    #[test]
    fn a_task_and_the_end_of_input() {
        let file = |inode| FileId { device: 1, inode };
        let exchange = Exchange { path: "/usr/bin/db".into(), from: file(1), to: file(2) };
        let task = Task {
            processes: vec![7, 8],
            operation: Operation::Attach,
            exchanges: vec![exchange],
            attempts: 8,
            holds: false,
        };
        let request = Request::Exchange(task);
        let mut bytes = Vec::new();
        write_line(&mut bytes, &request).unwrap();
        let mut input = &bytes[..];
        assert_eq!(read_line::<Request>(&mut input).unwrap(), Some(request));
        assert_eq!(read_line::<Request>(&mut input).unwrap(), None);
        // The helper was killed while it wrote.
        assert_eq!(read_line::<Request>(&mut &bytes[..9]).unwrap(), None);
        assert!(read_line::<Request>(&mut &b"{}\n"[..]).is_err());
    }

    #[test]
    fn a_sealed_mapping_keeps_its_copy_and_written_pages_are_no_news() {
        let kept = |why| {
            let line = b"7f000-8f000 r-xp 00000000 00:2a 7 /usr/lib/a.so";
            Kept { segment: maps(line).remove(0), bytes: 4096, why }
        };
        let report = |kept| Report { kept, ..Report::default() };
        let written = report(vec![kept(Keep::PrivatePages)]);
        assert!(Exchanged::done(7, &written).is_final());
        assert_eq!(Exchanged::done(7, &written).still_uses(), None);
        let sealed = Keep::Unchangeable("it is sealed (mseal)");
        let sealed = report(vec![kept(Keep::PrivatePages), kept(sealed)]);
        let why = "process 7: 7f000-8f000: it is sealed (mseal)".to_owned();
        assert_eq!(Exchanged::done(7, &sealed).still_uses(), Some(why));
        assert!(!Exchanged::done(7, &report(vec![])).is_final(), "it may have no mapping yet");
    }
}
