//! Frames that are taken out of use.

use crate::{
    error::Error,
    ids::{Extent, Frame, Order},
    machine::Machine,
    withheld::FrameState,
};

/// The one that takes frames of a machine offline, back online, and poisons them. The machine has
/// a table for them, from [`Machine::with_withheld`].
///
/// ```
/// use core::sync::atomic::AtomicU64;
/// use nearside_frames::{
///     Cache, Error, Frame, FrameState, Heap, Keeper, Machine, Memory, Metadata, Node, Order, Zone,
/// };
///
/// let memory = [Memory::new(Node(0), Zone::Normal, 0, 4096)];
/// let metadata = Metadata::of(&memory)?;
/// let table = [const { AtomicU64::new(0) }; 64];
/// let machine = Machine::new(&memory, &[10], &metadata.slices())?.with_withheld(&table);
/// let mut keeper = Keeper::new(&machine)?;
///
/// keeper.offline(Frame(9))?;
/// assert_eq!(Heap::of(&machine).free_frames(Node(0)), 4095);
/// keeper.online(Frame(9))?;
///
/// // A page in use that turns out to be broken does not become free.
/// let mut cache = Cache::new(&machine, Node(0))?;
/// let page = cache.allocate(Order::BASE)?;
/// assert_eq!(keeper.poison(page.first())?, FrameState::Marked);
/// cache.free(page)?;
/// let withheld: Vec<_> = Heap::of(&machine).withheld().collect();
/// assert_eq!(withheld, [(page.first(), FrameState::Poisoned)]);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Keeper<'m> {
    machine: &'m Machine<'m>,
}

impl<'m> Keeper<'m> {
    /// The keeper of a machine, until it is dropped.
    ///
    /// # Errors
    /// [`Error::SecondKeeper`] if the machine has one.
    pub fn new(machine: &'m Machine<'m>) -> Result<Self, Error> {
        if machine.withheld().set_keeper(true) {
            return Err(Error::SecondKeeper);
        }
        Ok(Self { machine })
    }

    /// Takes a free frame offline.
    ///
    /// # Errors
    /// [`Error::NotFree`] if it is not free in its region: it is in use, in a cache, on its way
    /// from or to one, or withheld already. [`Error::ClaimRefused`] if all free frames of its node
    /// are claimed, [`Error::TableFull`], and [`Error::Foreign`].
    pub fn offline(&mut self, frame: Frame) -> Result<(), Error> {
        let at = self.region_of(frame)?;
        let Some(region) = self.machine.region(at) else { return Ok(()) };
        if self.state_of(frame).is_some() {
            return Err(Error::NotFree(frame));
        }
        let withheld = self.machine.withheld();
        if !withheld.has_room() {
            return Err(Error::TableFull { entries: withheld.size() });
        }
        let account = self.machine.account(region.node);
        if !account.take(1) {
            return Err(Error::ClaimRefused {
                node: region.node,
                frames: 1,
                unclaimed_frames: account.unclaimed(),
                claimed_frames: account.claimed(),
            });
        }
        if !region.take_frame(frame) {
            account.add(1);
            return Err(Error::NotFree(frame));
        }
        // The entry comes after the frame: its owner may be about to free it before, rightly.
        withheld.insert(frame, FrameState::Offline);
        Ok(())
    }

    /// Brings a frame back that is offline. It is free then.
    ///
    /// # Errors
    /// [`Error::NotOffline`], and [`Error::Foreign`].
    pub fn online(&mut self, frame: Frame) -> Result<(), Error> {
        self.region_of(frame)?;
        if self.state_of(frame) != Some(FrameState::Offline) {
            return Err(Error::NotOffline(frame));
        }
        self.machine.withheld().remove(frame, FrameState::Offline);
        self.machine.give_extent(Extent::at(frame.0, Order::BASE))
    }

    /// Poisons a frame: it is never handed out again. A free one is taken out at once. One that is
    /// in use, or free in a cache, is marked. Its new state.
    ///
    /// A claim is a promise of frames that are sound: if all free frames of the node are claimed,
    /// the last frame of a claim may be missing then.
    ///
    /// # Errors
    /// [`Error::TableFull`], and [`Error::Foreign`].
    pub fn poison(&mut self, frame: Frame) -> Result<FrameState, Error> {
        let at = self.region_of(frame)?;
        let withheld = self.machine.withheld();
        match self.state_of(frame) {
            Some(FrameState::Offline) => withheld.poison_offline(frame),
            None if !withheld.insert(frame, FrameState::Marked) => {
                return Err(Error::TableFull { entries: withheld.size() });
            }
            None => {
                if let Some(region) = self.machine.region(at)
                    && region.take_frame(frame)
                {
                    withheld.settle(frame);
                    self.machine.account(region.node).correct(1);
                }
            }
            Some(_) => {}
        }
        Ok(self.state_of(frame).unwrap_or(FrameState::Poisoned))
    }

    fn region_of(&self, frame: Frame) -> Result<usize, Error> {
        let page = Extent::at(frame.0, Order::BASE);
        self.machine.region_of(page).ok_or(Error::Foreign(page))
    }

    fn state_of(&self, frame: Frame) -> Option<FrameState> {
        self.machine.withheld().within(frame.0, 1).next().map(|(_, state)| state)
    }
}

impl Drop for Keeper<'_> {
    fn drop(&mut self) {
        self.machine.withheld().set_keeper(false);
    }
}
