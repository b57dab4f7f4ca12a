//! The page table of a guest.

use crate::ids::{Extent, Order};
use core::ops::Range;

/// Bits of an entry's word that hold the order.
const ORDER_BITS: u32 = 5;

/// A word for an extent that is to be given up.
const LEAVING: u64 = (1 << ORDER_BITS) - 1;

/// The entry of one guest frame in the page table of a [`Guest`](crate::Guest). It takes 16 bytes.
///
/// An extent is in the entry of its first guest frame, whose number is a multiple of its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    /// The extent that is mapped.
    now: u64,
    /// The extent that an operation is about to map, or [`LEAVING`].
    next: u64,
}

impl Entry {
    /// An entry without an extent.
    pub const EMPTY: Self = Self { now: 0, next: 0 };
}

/// Extents begin below 2^52, so their order fits beside.
fn pack(extent: Extent) -> u64 {
    extent.first().0 << ORDER_BITS | u64::from(extent.order().exponent() + 1)
}

fn unpack(word: u64) -> Option<Extent> {
    let order = (word & LEAVING).checked_sub(1).and_then(|it| Order::new(it as u8))?;
    Some(Extent::at(word >> ORDER_BITS, order))
}

/// A version of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// As it is.
    Now,
    /// The extents that an operation is about to map.
    Next,
}

/// The entries of all guest frames.
#[derive(Debug)]
pub(crate) struct Table<'t>(&'t mut [Entry]);

impl<'t> Table<'t> {
    /// A table without extents.
    pub(crate) fn new(entries: &'t mut [Entry]) -> Self {
        entries.fill(Entry::EMPTY);
        Self(entries)
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn entry(&mut self, gfn: u64) -> Option<&mut Entry> {
        self.0.get_mut(usize::try_from(gfn).ok()?)
    }

    /// The extent that begins at a guest frame.
    pub(crate) fn at(&self, version: Version, gfn: u64) -> Option<Extent> {
        let entry = self.0.get(usize::try_from(gfn).ok()?)?;
        unpack(if version == Version::Now { entry.now } else { entry.next })
    }

    /// The extent that has a guest frame, and the guest frame where it begins.
    pub(crate) fn covering(&self, version: Version, gfn: u64) -> Option<(u64, Extent)> {
        (0..=Order::MAX.exponent()).filter_map(Order::new).find_map(|order| {
            let first = gfn / order.frames() * order.frames();
            let extent = self.at(version, first)?;
            (extent.order() == order).then_some((first, extent))
        })
    }

    /// Whether an extent of this order may begin at a guest frame: the number is a multiple of the
    /// size, and the table reaches so far.
    pub(crate) fn has_place(&self, gfn: u64, order: Order) -> bool {
        let end = gfn.checked_add(order.frames());
        gfn.is_multiple_of(order.frames()) && end.is_some_and(|end| end <= self.len())
    }

    /// The first guest frame of a place that is mapped, or about to be.
    pub(crate) fn obstacle(&self, gfns: Range<u64>) -> Option<u64> {
        let covers = |version| self.covering(version, gfns.start).is_some();
        if !gfns.is_empty() && (covers(Version::Now) || covers(Version::Next)) {
            return Some(gfns.start);
        }
        gfns.into_iter().find(|gfn| {
            self.at(Version::Now, *gfn).is_some() || self.at(Version::Next, *gfn).is_some()
        })
    }

    /// The first run of so many guest frames without an extent, from a multiple of the order's size
    /// on.
    pub(crate) fn first_hole(&self, order: Order, frames: u64) -> Option<u64> {
        let mut first: u64 = 0;
        loop {
            let end = first.checked_add(frames).filter(|end| *end <= self.len())?;
            let Some(gfn) = self.obstacle(first..end) else { return Some(first) };
            let after = match self.covering(Version::Now, gfn) {
                Some((at, extent)) => at + extent.frames(),
                None => gfn + 1,
            };
            first = after.next_multiple_of(order.frames());
        }
    }

    /// A guest frame at which a range cuts an extent in two, if there is one.
    pub(crate) fn cut(&self, gfns: &Range<u64>) -> Option<u64> {
        let ends = [gfns.start, gfns.end];
        ends.into_iter()
            .find(|gfn| self.covering(Version::Now, *gfn).is_some_and(|(first, _)| first < *gfn))
    }

    /// The first guest frame of a range without an extent.
    pub(crate) fn hole(&self, gfns: Range<u64>) -> Option<u64> {
        let mut gfn = gfns.start;
        while gfn < gfns.end {
            match self.covering(Version::Now, gfn) {
                Some((first, extent)) => gfn = first + extent.frames(),
                None => return Some(gfn),
            }
        }
        None
    }

    /// Notes an extent that an operation is about to map.
    pub(crate) fn stage(&mut self, gfn: u64, extent: Extent) {
        if let Some(entry) = self.entry(gfn) {
            entry.next = pack(extent);
        }
    }

    /// Notes that an operation is about to give up the extent that begins at a guest frame. False
    /// if none begins there, or it is noted already.
    pub(crate) fn stage_leaving(&mut self, gfn: u64) -> bool {
        let Some(entry) = self.entry(gfn) else { return false };
        let is_new = entry.now != 0 && entry.next == 0;
        if is_new {
            entry.next = LEAVING;
        }
        is_new
    }

    /// Forgets what was noted at a guest frame: the extent that was about to be mapped.
    pub(crate) fn unstage(&mut self, gfn: u64) -> Option<Extent> {
        unpack(core::mem::take(&mut self.entry(gfn)?.next))
    }

    /// Carries out what was noted at a guest frame: the extent that goes, and the one that comes.
    pub(crate) fn commit(&mut self, gfn: u64) -> (Option<Extent>, Option<Extent>) {
        let Some(entry) = self.entry(gfn).filter(|it| it.next != 0) else { return (None, None) };
        let (before, next) = (entry.now, core::mem::take(&mut entry.next));
        entry.now = if next == LEAVING { 0 } else { next };
        (unpack(before), unpack(next))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn order(order: u8) -> Order {
        Order::new(order).unwrap()
    }

    /// Sixteen guest frames: 4 to 7 have an extent, and so has 9.
    fn table(entries: &mut [Entry; 16]) -> Table<'_> {
        let mut table = Table::new(entries);
        for (gfn, extent) in [(4, Extent::at(40, order(2))), (9, Extent::at(7, order(0)))] {
            table.stage(gfn, extent);
            assert_eq!(table.commit(gfn), (None, Some(extent)));
        }
        table
    }

    #[test]
    fn a_word_has_every_extent() {
        for extent in [Extent::at(0, order(0)), Extent::at((1 << 52) - (1 << 15), order(15))] {
            assert_eq!(unpack(pack(extent)), Some(extent));
        }
        assert_eq!((unpack(0), unpack(LEAVING)), (None, None));
    }

    #[test]
    fn every_guest_frame_of_an_extent_finds_it() {
        let mut entries = [Entry::EMPTY; 16];
        let table = table(&mut entries);
        for gfn in 0..20 {
            let first = table.covering(Version::Now, gfn).map(|(first, _)| first);
            let expected =
                [(4..8, 4), (9..10, 9)].into_iter().find(|(gfns, _)| gfns.contains(&gfn));
            let expected = expected.map(|(_, first)| first);
            assert_eq!(first, expected, "{gfn}");
        }
    }

    #[test]
    fn holes_and_cuts_are_found() {
        let mut entries = [Entry::EMPTY; 16];
        let table = table(&mut entries);
        for (exponent, frames, expected) in
            [(0, 4, Some(0)), (0, 5, Some(10)), (2, 4, Some(0)), (1, 6, Some(10)), (0, 7, None)]
        {
            assert_eq!(table.first_hole(order(exponent), frames), expected, "{exponent} {frames}");
        }
        for (gfns, expected) in
            [(4..8, None), (0..16, None), (5..8, Some(5)), (0..6, Some(6)), (9..10, None)]
        {
            assert_eq!(table.cut(&gfns), expected, "{gfns:?}");
        }
        assert_eq!((table.hole(4..8), table.hole(4..10)), (None, Some(8)));
        assert_eq!((table.obstacle(6..8), table.obstacle(0..8)), (Some(6), Some(4)));
        assert!(!table.has_place(15, order(1)) && !table.has_place(16, order(0)));
    }
}
