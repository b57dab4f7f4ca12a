//! The System Locality Information Table: distances between proximity domains (ACPI 6.6, section 5.2.17).

use super::{
    bytes::u64_at,
    finding::{Effect, Finding},
    header::Table,
};
use crate::{
    distance::{Distance, Distances},
    id::Pxm,
};
use alloc::{format, vec::Vec};

const COUNT: usize = 36;
const FIRST_DISTANCE: usize = 44;

/// A System Locality Information Table whose distances make sense.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Slit {
    /// How many localities there are: the proximity domains 0 to this number, less one.
    pub localities: usize,
    // Row by row, localities * localities values.
    distances: Vec<Distance>,
}

impl Slit {
    /// The distance that memory in `to` has from `from`; none where the table does not reach that far.
    pub fn get(&self, from: Pxm, to: Pxm) -> Option<Distance> {
        let (from, to) = (from.0 as usize, to.0 as usize);
        if from >= self.localities || to >= self.localities {
            return None;
        }
        self.distances.get(from * self.localities + to).copied()
    }

    /// Reads the table. Linux ignores one in which a diagonal is not 10 or anything else is 10 or less
    /// (`slit_valid` in `drivers/acpi/numa/srat.c`), and so does this.
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
        for (from, to, distance) in slit.pairs() {
            let offset = FIRST_DISTANCE + from * localities + to;
            let read = || format!("distance {distance} from PXM {from} to {to}");
            if from == to && distance != Distances::LOCAL {
                return reject(offset, read(), format!("{}", Distances::LOCAL));
            }
            if from != to && distance <= Distances::LOCAL {
                return reject(offset, read(), format!("more than {}", Distances::LOCAL));
            }
        }
        slit.note_oddities(table, findings);
        Ok(slit)
    }

    /// Distances may be asymmetric and places unreachable; both are rare enough to be worth a look.
    fn note_oddities(&self, table: &Table<'_>, findings: &mut Vec<Finding>) {
        let back = |from, to| self.distances.get(to * self.localities + from).copied();
        let mut asymmetric =
            self.pairs().filter(|&(from, to, there)| from < to && back(from, to) != Some(there));
        if let Some((from, to, there)) = asymmetric.next() {
            let here = back(from, to).unwrap_or_default();
            let more = asymmetric.count();
            let read =
                format!("PXM {from} to {to} is {there}, back {here} (and {more} more such pairs)");
            let offset = FIRST_DISTANCE + from * self.localities + to;
            findings.push(table.finding(
                offset,
                Effect::Noted,
                read,
                "the same distance both ways",
            ));
        }
        let mut unreachable =
            self.pairs().filter(|&(.., distance)| distance == Distances::UNREACHABLE);
        if let Some((from, to, distance)) = unreachable.next() {
            let more = unreachable.count();
            let read = format!(
                "distance {distance} (unreachable) from PXM {from} to {to} (and {more} more such)"
            );
            let offset = FIRST_DISTANCE + from * self.localities + to;
            findings.push(table.finding(
                offset,
                Effect::Noted,
                read,
                "a way from every domain to every other",
            ));
        }
    }

    fn pairs(&self) -> impl Iterator<Item = (usize, usize, Distance)> + '_ {
        let n = self.localities;
        self.distances.iter().enumerate().map(move |(at, &distance)| (at / n, at % n, distance))
    }
}
