//! The System Locality Information Table: distances between proximity domains (ACPI 6.6, section
//! 5.2.17).

use super::{
    bytes::u64_at,
    finding::{Effect, Finding},
    header::Table,
};
use crate::{
    distance::{Distance, Distances},
    id::Pxm,
};
use alloc::{format, string::String, vec::Vec};

const COUNT: usize = 36;
const FIRST_DISTANCE: usize = 44;

/// The most senseless distances that get a finding each.
const MAX_FAULTS: usize = 16;

/// A System Locality Information Table whose distances make sense.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slit {
    /// The number of localities: the proximity domains from 0 to this number, less one.
    pub localities: usize,
    // Row by row, localities * localities values.
    distances: Vec<Distance>,
}

/// The number of further findings of a kind, in brackets; nothing where there are none.
fn more_such(count: usize, noun: &str) -> String {
    match count {
        0 => String::new(),
        _ => format!(" (and {count} more such{noun})"),
    }
}

impl Slit {
    /// The distance from `from` to memory in `to`; none where the table does not reach that far.
    pub fn get(&self, from: Pxm, to: Pxm) -> Option<Distance> {
        let (from, to) = (from.0 as usize, to.0 as usize);
        if from >= self.localities || to >= self.localities {
            return None;
        }
        self.distances.get(from * self.localities + to).copied()
    }

    /// Reads the table. Linux ignores one in which a diagonal is not 10 or anything else is 10 or
    /// less (`slit_valid` in `drivers/acpi/numa/srat.c`), and so does this. Every such distance is
    /// a finding, up to [`MAX_FAULTS`] of them.
    pub(super) fn parse(table: &Table<'_>, findings: &mut Vec<Finding>) -> Result<Self, Finding> {
        let reject = |offset, read, expected| {
            Err(table.finding(offset, Effect::TableIgnored, read, expected))
        };
        let Some(count) = u64_at(table.bytes, COUNT) else {
            let read = format!("a length of {} bytes", table.bytes.len());
            return reject(4, read, format!("at least {FIRST_DISTANCE}"));
        };
        let stored = table.bytes.get(FIRST_DISTANCE..).unwrap_or(&[]);
        let localities = usize::try_from(count).ok();
        let values =
            localities.and_then(|n| n.checked_mul(n)).and_then(|values| stored.get(..values));
        let (Some(localities), Some(distances)) = (localities, values) else {
            let expected = format!("as many as {} distances are for", stored.len());
            return reject(COUNT, format!("{count} localities"), expected);
        };
        if stored.len() > distances.len() {
            let (read, expected) =
                (format!("{} distances", stored.len()), format!("{}", distances.len()));
            findings.push(table.finding(FIRST_DISTANCE, Effect::Noted, read, expected));
        }
        let slit = Self { localities, distances: distances.to_vec() };
        let mut faults = slit.faults(table);
        match faults.pop() {
            None => {
                slit.note_oddities(table, findings);
                Ok(slit)
            }
            Some(last) => {
                findings.append(&mut faults);
                Err(last)
            }
        }
    }

    /// The distances that make no sense, one by one, and how many there are beyond the bound.
    fn faults(&self, table: &Table<'_>) -> Vec<Finding> {
        let mut senseless = self.pairs().filter(|&(from, to, distance)| {
            if from == to { distance != Distances::LOCAL } else { distance <= Distances::LOCAL }
        });
        let fault =
            |offset, read, expected| table.finding(offset, Effect::TableIgnored, read, expected);
        let each = |(from, to, distance)| {
            let more_than = if from == to { "" } else { "more than " };
            let read = format!("distance {distance} from PXM {from} to {to}");
            fault(self.offset(from, to), read, format!("{more_than}{}", Distances::LOCAL))
        };
        let mut faults: Vec<_> = senseless.by_ref().take(MAX_FAULTS).map(each).collect();
        if let Some((from, to, _)) = senseless.next() {
            let read = format!("{} more such distances", 1 + senseless.count());
            faults.push(fault(self.offset(from, to), read, "none".into()));
        }
        faults
    }

    /// The place of a distance in the table.
    pub(super) fn offset(&self, from: usize, to: usize) -> usize {
        FIRST_DISTANCE + from * self.localities + to
    }

    /// Notes asymmetric distances, which are allowed, and rare.
    fn note_oddities(&self, table: &Table<'_>, findings: &mut Vec<Finding>) {
        let back = |from, to| self.distances.get(to * self.localities + from).copied();
        let mut asymmetric =
            self.pairs().filter(|&(from, to, there)| from < to && back(from, to) != Some(there));
        if let Some((from, to, there)) = asymmetric.next() {
            let here = back(from, to).unwrap_or_default();
            let more = more_such(asymmetric.count(), " pairs");
            let read = format!("PXM {from} to {to} is {there}, back {here}{more}");
            let offset = self.offset(from, to);
            findings.push(table.finding(
                offset,
                Effect::Noted,
                read,
                "the same distance both ways",
            ));
        }
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize, Distance)> + '_ {
        let n = self.localities;
        self.distances.iter().enumerate().map(move |(at, &distance)| (at / n, at % n, distance))
    }
}
