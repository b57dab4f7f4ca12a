//! The memory of one guest.

use crate::{
    cache::Cache,
    claim::Claim,
    error::Error,
    ids::{Extent, Frame, Node, Order},
    machine::Machine,
    memory::MAX_NODES,
    policy::Request,
    table::{Entry, Table, Version},
};
use core::ops::Range;

/// The way by which a guest gets its memory.
#[derive(Debug)]
pub enum Source<'s, 'm> {
    /// A cache, with the request's nodes and zones. The operation sets the order.
    Cache(&'s mut Cache<'m>, Request<'s>),
    /// A claim.
    Claim(&'s mut Claim<'m>),
}

impl<'m> Source<'_, 'm> {
    fn machine(&self) -> &'m Machine<'m> {
        match self {
            Self::Cache(cache, _) => cache.machine(),
            Self::Claim(claim) => claim.machine(),
        }
    }

    fn take(&mut self, order: Order) -> Result<Extent, Error> {
        match self {
            Self::Cache(cache, request) => cache.allocate_with(&Request { order, ..*request }),
            Self::Claim(claim) => claim.allocate(order),
        }
    }

    fn give(&mut self, extent: Extent) -> Result<(), Error> {
        match self {
            Self::Cache(cache, _) => cache.free(extent),
            Self::Claim(claim) => claim.free(extent),
        }
    }
}

/// Contents that have to be copied from frames that a guest gives up to those in their place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The first guest frame.
    pub guest_frame: u64,
    /// The first frame that the guest gives up.
    pub from: Frame,
    /// The first frame in its place.
    pub to: Frame,
    /// The number of frames.
    pub frames: u64,
}

/// The memory of one guest: its guest frames, and the extents behind them.
///
/// The caller supplies the page table, an [`Entry`] for each guest frame. Each operation is done as
/// a whole or not at all. If it is refused, the error tells why, and what was free at that moment.
/// The extents that it had got so far go back to where they came from.
///
/// A [`DoubleFree`](Error::DoubleFree) is told last: somebody else has freed a frame of this guest.
/// If such a frame was to be given up, the operation is done nevertheless.
///
/// Dropping it frees its memory.
///
/// ```
/// use nearside_frames::{
///     Cache, Claim, Entry, Error, Guest, Machine, Memory, Metadata, Node, Order, Request, Source,
///     Zone,
/// };
///
/// let memory = [
///     Memory::new(Node(0), Zone::Normal, 0, 4096),
///     Memory::new(Node(1), Zone::Normal, 4096, 4096),
/// ];
/// let metadata = Metadata::of(&memory)?;
/// let machine = Machine::new(&memory, &[10, 20, 20, 10], &metadata.slices())?;
///
/// let mut table = [Entry::EMPTY; 2048];
/// let mut guest = Guest::new(&machine, &mut table);
///
/// // Two huge pages that are promised to this guest, and two pages from where there is room.
/// let mut claim = Claim::new(&machine, Node(0), 1024)?;
/// guest.populate(&mut Source::Claim(&mut claim), Order::HUGE, &[0, 512])?;
/// let mut cache = Cache::new(&machine, Node(0))?;
/// let request = Request::default();
/// let first = guest.increase(&mut Source::Cache(&mut cache, request), Order::BASE, 2)?;
/// assert_eq!((first, guest.held_frames(Node(0))), (1024, 1026));
///
/// // The first huge page moves. The caller copies it, and could refuse.
/// guest.move_to(Node(1), 0..512, |transfer| transfer.frames == 512)?;
/// assert_eq!((guest.held_frames(Node(0)), guest.held_frames(Node(1))), (514, 512));
/// guest.decrease(&[0, 1025])?;
/// assert_eq!(guest.frame_of(0), None);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Guest<'m, 't> {
    machine: &'m Machine<'m>,
    table: Table<'t>,
    held: [u64; MAX_NODES],
}

impl<'m, 't> Guest<'m, 't> {
    /// A guest without memory, whose guest frames are numbered from 0. The table is overwritten.
    pub fn new(machine: &'m Machine<'m>, table: &'t mut [Entry]) -> Self {
        Self { machine, table: Table::new(table), held: [0; MAX_NODES] }
    }

    /// Frames that the guest holds on a node.
    pub fn held_frames(&self, node: Node) -> u64 {
        self.held.get(usize::from(node.0)).copied().unwrap_or(0)
    }

    /// The extent that has a guest frame, and the guest frame at which it begins.
    pub fn extent_of(&self, guest_frame: u64) -> Option<(u64, Extent)> {
        self.table.covering(Version::Now, guest_frame)
    }

    /// The frame behind a guest frame.
    pub fn frame_of(&self, guest_frame: u64) -> Option<Frame> {
        let (first, extent) = self.extent_of(guest_frame)?;
        Some(Frame(extent.first().0 + (guest_frame - first)))
    }

    /// Adds so many extents at the first guest frames in a row that have none. The first of these
    /// guest frames.
    ///
    /// # Errors
    /// [`Error::NoGuestFrames`] if the table has no such guest frames, and those of the source.
    pub fn increase(
        &mut self,
        source: &mut Source<'_, 'm>,
        order: Order,
        extents: u64,
    ) -> Result<u64, Error> {
        let place = extents.checked_mul(order.frames());
        let first = place.and_then(|frames| self.table.first_hole(order, frames));
        let first = first.ok_or(Error::NoGuestFrames { order, extents })?;
        self.add(source, order, (0..extents).map(|at| first + at * order.frames()))?;
        Ok(first)
    }

    /// Adds an extent at each of these guest frames.
    ///
    /// # Errors
    /// [`Error::NoPlace`] if a number is no multiple of the size or beyond the table,
    /// [`Error::Mapped`] if a guest frame has an extent, or would get two, and those of the source.
    pub fn populate(
        &mut self,
        source: &mut Source<'_, 'm>,
        order: Order,
        guest_frames: &[u64],
    ) -> Result<(), Error> {
        self.add(source, order, guest_frames.iter().copied())
    }

    /// Gives up the extents that begin at these guest frames.
    ///
    /// # Errors
    /// [`Error::Unmapped`] if no extent begins at one of them, or it is named twice.
    pub fn decrease(&mut self, guest_frames: &[u64]) -> Result<(), Error> {
        let all = guest_frames.iter().copied();
        for (done, gfn) in all.clone().enumerate() {
            if !self.table.stage_leaving(gfn) {
                for gfn in all.take(done) {
                    self.table.unstage(gfn);
                }
                return Err(Error::Unmapped(gfn));
            }
        }
        self.commit(all)
    }

    /// Exchanges the extents of a range of guest frames for others of this order: 512 pages for a
    /// huge page, or the reverse. `copy` gets each piece of their contents, and says whether it has
    /// been copied; the guest must not change it meanwhile.
    ///
    /// # Errors
    /// [`Error::NoPlace`] if the range does not consist of places of this order,
    /// [`Error::Unmapped`] for a guest frame without an extent, [`Error::Cut`] if an extent is in
    /// the range only in part, [`Error::NotCopied`], and those of the source.
    pub fn exchange(
        &mut self,
        source: &mut Source<'_, 'm>,
        guest_frames: Range<u64>,
        order: Order,
        copy: impl FnMut(Transfer) -> bool,
    ) -> Result<(), Error> {
        self.check(source, &guest_frames)?;
        if let Some(gfn) = self.table.hole(guest_frames.clone()) {
            return Err(Error::Unmapped(gfn));
        }
        for gfn in guest_frames.clone().step_by(order.frames() as usize) {
            let is_within = guest_frames.end - gfn >= order.frames();
            let extent = if is_within && self.table.has_place(gfn, order) {
                source.take(order)
            } else {
                Err(Error::NoPlace { guest_frame: gfn, order })
            };
            match extent {
                Ok(extent) => self.table.stage(gfn, extent),
                Err(error) => return self.undo(source, guest_frames).and(Err(error)),
            }
        }
        for gfn in guest_frames.clone() {
            // It leaves also where no new extent begins.
            self.table.stage_leaving(gfn);
        }
        self.replace(source, guest_frames, copy)
    }

    /// Moves the extents of a range of guest frames to a node. Those that are there stay. `copy` is
    /// called as in [`exchange`](Self::exchange). Guest frames without an extent remain so.
    ///
    /// # Errors
    /// [`Error::ClaimRefused`] if too few frames are free and unclaimed on the node,
    /// [`Error::Fragmented`] if they are not in pieces of these sizes, [`Error::UnknownNode`],
    /// [`Error::Cut`] and [`Error::NotCopied`].
    pub fn move_to(
        &mut self,
        node: Node,
        guest_frames: Range<u64>,
        copy: impl FnMut(Transfer) -> bool,
    ) -> Result<(), Error> {
        let away = |guest: &Self, gfn| {
            let extent = guest.table.at(Version::Now, gfn)?;
            (guest.machine.node_of(extent) != Some(node)).then_some(extent)
        };
        let end = guest_frames.end.min(self.table.len());
        let guest_frames = guest_frames.start..end;
        let extents = guest_frames.clone().filter_map(|gfn| away(self, gfn));
        let mut claim = Claim::new(self.machine, node, extents.map(Extent::frames).sum())?;
        let mut source = Source::Claim(&mut claim);
        self.check(&source, &guest_frames)?;
        for gfn in guest_frames.clone() {
            let Some(extent) = away(self, gfn) else { continue };
            match source.take(extent.order()) {
                Ok(extent) => self.table.stage(gfn, extent),
                Err(error) => return self.undo(&mut source, guest_frames).and(Err(error)),
            }
        }
        self.replace(&mut source, guest_frames, copy)
    }

    /// Refuses a source of another machine, and a range that cuts extents or leaves the table.
    fn check(&self, source: &Source<'_, 'm>, guest_frames: &Range<u64>) -> Result<(), Error> {
        if !core::ptr::eq(source.machine(), self.machine) {
            return Err(Error::OtherMachine);
        }
        if guest_frames.end > self.table.len() {
            return Err(Error::Unmapped(self.table.len().max(guest_frames.start)));
        }
        self.table.cut(guest_frames).map_or(Ok(()), |gfn| Err(Error::Cut(gfn)))
    }

    fn add(
        &mut self,
        source: &mut Source<'_, 'm>,
        order: Order,
        guest_frames: impl Iterator<Item = u64> + Clone,
    ) -> Result<(), Error> {
        self.check(source, &(0..0))?;
        for (done, gfn) in guest_frames.clone().enumerate() {
            let place = match gfn {
                gfn if !self.table.has_place(gfn, order) => {
                    Err(Error::NoPlace { guest_frame: gfn, order })
                }
                gfn => match self.table.obstacle(gfn..gfn + order.frames()) {
                    Some(gfn) => Err(Error::Mapped(gfn)),
                    None => Ok(()),
                },
            };
            match place.and_then(|()| source.take(order)) {
                Ok(extent) => self.table.stage(gfn, extent),
                Err(error) => return self.undo(source, guest_frames.take(done)).and(Err(error)),
            }
        }
        self.commit(guest_frames)
    }

    /// Copies the contents of a range, and then carries out what was noted there.
    fn replace(
        &mut self,
        source: &mut Source<'_, 'm>,
        guest_frames: Range<u64>,
        mut copy: impl FnMut(Transfer) -> bool,
    ) -> Result<(), Error> {
        let mut gfn = guest_frames.start;
        while gfn < guest_frames.end {
            let now = self.table.covering(Version::Now, gfn);
            let next = self.table.covering(Version::Next, gfn);
            let (Some(now), Some(next)) = (now, next) else {
                gfn += 1;
                continue;
            };
            let left = |(first, extent): (u64, Extent)| first + extent.frames() - gfn;
            let frame = |(first, extent): (u64, Extent)| Frame(extent.first().0 + (gfn - first));
            let frames = left(now).min(left(next));
            if !copy(Transfer { guest_frame: gfn, from: frame(now), to: frame(next), frames }) {
                return self.undo(source, guest_frames).and(Err(Error::NotCopied(gfn)));
            }
            gfn += frames;
        }
        self.commit(guest_frames)
    }

    /// Gives the extents back that were about to be mapped.
    fn undo(
        &mut self,
        source: &mut Source<'_, 'm>,
        guest_frames: impl Iterator<Item = u64>,
    ) -> Result<(), Error> {
        let mut all = Ok(());
        for gfn in guest_frames {
            if let Some(extent) = self.table.unstage(gfn) {
                all = all.and(source.give(extent));
            }
        }
        all
    }

    /// Carries out what was noted, and frees the extents that go.
    fn commit(&mut self, guest_frames: impl Iterator<Item = u64>) -> Result<(), Error> {
        let mut all = Ok(());
        for gfn in guest_frames {
            let (before, next) = self.table.commit(gfn);
            if let Some(held) = next.and_then(|it| self.held_on(it)) {
                *held.0 += held.1;
            }
            if let Some(before) = before {
                if let Some(held) = self.held_on(before) {
                    *held.0 -= held.1;
                }
                all = all.and(self.machine.give_extent(before));
            }
        }
        all
    }

    /// The count of frames on an extent's node, and the extent's frames.
    fn held_on(&mut self, extent: Extent) -> Option<(&mut u64, u64)> {
        let node = self.machine.node_of(extent)?;
        Some((self.held.get_mut(usize::from(node.0))?, extent.frames()))
    }
}

impl Drop for Guest<'_, '_> {
    fn drop(&mut self) {
        for gfn in 0..self.table.len() {
            // Some are left there if a caller's copy has panicked.
            let staged = self.table.unstage(gfn);
            self.table.stage_leaving(gfn);
            let (now, _) = self.table.commit(gfn);
            for extent in [staged, now].into_iter().flatten() {
                if self.machine.give_extent(extent).is_err() {
                    self.machine.add_late_fault();
                }
            }
        }
    }
}
