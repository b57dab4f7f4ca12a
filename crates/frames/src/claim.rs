//! Frames that are promised to one owner.

use crate::{
    error::Error,
    ids::{Extent, Node, Order},
    machine::Machine,
    sync::spin_loop,
};

/// Searches for a single frame. A promised frame is out of sight for some instructions, while
/// another thread takes a page of the same chunk or makes the chunk whole. With an operating system
/// that thread may have lost its CPU, for nearly a tenth of a second where its group has used up
/// its CPU time (`cpu.max`, with the usual period). Then the last searches, 50 us or more apart,
/// take at least 0.8 s.
const SEARCHES: u32 = if cfg!(feature = "std") { SPINS + (1 << 14) } else { 1 << 20 };

/// The searches that follow each other at once.
const SPINS: u32 = 1 << 10;

/// Free frames of one node that are promised to an owner: nobody else is given them.
///
/// A claim is a number of frames, in all zones of the node. It is granted if so many frames are
/// free there, outside of caches, beyond those that are claimed already. Extents under the claim
/// come from zone Movable first, then Normal, Dma32 and Dma.
///
/// Dropping it gives up what is left of it.
///
/// ```
/// use nearside_frames::{Claim, Error, Heap, Machine, Memory, Metadata, Node, Order, Zone};
///
/// let memory = [Memory::new(Node(0), Zone::Normal, 0, 4096)];
/// let metadata = Metadata::of(&memory)?;
/// let machine = Machine::new(&memory, &[10], &metadata.slices())?;
///
/// let mut claim = Claim::new(&machine, Node(0), 1024)?;
/// let huge = claim.allocate(Order::HUGE)?;
/// assert_eq!(claim.frames(), 512);
/// assert_eq!(Heap::of(&machine).unclaimed_frames(Node(0)), 3072);
/// // Another owner is told at once.
/// let refused = Claim::new(&machine, Node(0), 3073);
/// assert!(matches!(refused, Err(Error::ClaimRefused { unclaimed_frames: 3072, .. })));
/// claim.free(huge)?;
/// assert_eq!(claim.frames(), 1024);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct Claim<'m> {
    machine: &'m Machine<'m>,
    node: Node,
    frames: u64,
}

impl<'m> Claim<'m> {
    /// Claims so many frames on a node, all of them or none.
    ///
    /// # Errors
    /// [`Error::ClaimRefused`] if fewer are free and unclaimed, and [`Error::UnknownNode`].
    pub fn new(machine: &'m Machine<'m>, node: Node, frames: u64) -> Result<Self, Error> {
        if !machine.has_node(node) {
            return Err(Error::UnknownNode(node));
        }
        let account = machine.account(node);
        if !account.claim(frames) {
            return Err(Error::ClaimRefused {
                node,
                frames,
                unclaimed_frames: account.unclaimed(),
                claimed_frames: account.claimed(),
            });
        }
        Ok(Self { machine, node, frames })
    }

    /// Its node.
    pub fn node(&self) -> Node {
        self.node
    }

    /// The frames that are left in it.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    pub(crate) fn machine(&self) -> &'m Machine<'m> {
        self.machine
    }

    /// Allocates an extent under the claim, which has so many frames less then.
    ///
    /// A single frame is always found, unless claimed frames have been poisoned, double frees have
    /// spoilt the count, or another thread stands still in the middle of an allocation for long. It
    /// waits for such a thread: with the feature `std` it sleeps in between, for about a second in
    /// all, and else it searches a million times.
    ///
    /// # Errors
    /// [`Error::ClaimExceeded`] if the claim has fewer frames left, [`Error::Fragmented`] if the
    /// node has no such extent in one piece, and [`Error::DoubleFree`] if a frame that was freed
    /// before was free already. The claim stays as it was.
    pub fn allocate(&mut self, order: Order) -> Result<Extent, Error> {
        let frames = order.frames();
        let Some(left) = self.frames.checked_sub(frames) else {
            return Err(Error::ClaimExceeded { node: self.node, frames, left_frames: self.frames });
        };
        let searches = if order == Order::BASE { SEARCHES } else { 1 };
        let mut fault = None;
        for search in 0..searches {
            let Some(extent) = self.machine.draw_from(self.node, order, &mut fault) else {
                wait(search);
                continue;
            };
            self.frames = left;
            self.machine.account(self.node).take_claimed(frames);
            return match fault {
                None => Ok(extent),
                Some(fault) => self.free(extent).and(Err(fault)),
            };
        }
        let free_frames = self.machine.free_frames(self.node);
        Err(fault.unwrap_or(Error::Fragmented { node: self.node, order, free_frames }))
    }

    /// Frees an extent of the claim's node, whose frames are claimed again.
    ///
    /// # Errors
    /// [`Error::Foreign`] if the extent is not on the claim's node. [`Error::DoubleFree`] if some
    /// of it is free, as in [`Cache::free`](crate::Cache::free); the claim grows by the others.
    pub fn free(&mut self, extent: Extent) -> Result<(), Error> {
        if self.machine.node_of(extent) != Some(self.node) {
            return Err(Error::Foreign(extent));
        }
        let (frames, given) = self.machine.give_claimed(extent);
        self.frames += frames;
        self.machine.account(self.node).add_claimed(frames);
        given
    }
}

/// Waits for the thread that has the frames of a chunk in its hands.
fn wait(search: u32) {
    #[cfg(feature = "std")]
    if search >= SPINS {
        std::thread::sleep(core::time::Duration::from_micros(50));
        return;
    }
    let _ = search;
    spin_loop();
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.machine.account(self.node).end_claim(self.frames);
    }
}

#[cfg(test)]
#[cfg(all(feature = "std", not(loom)))]
mod tests {
    use super::*;
    use crate::{Memory, Metadata, Zone};
    use std::{thread, time::Duration};

    #[test]
    fn a_promised_frame_is_waited_for_while_a_thread_that_has_it_stands_still() {
        let memory = [Memory::new(Node(0), Zone::Normal, 0, 100)];
        let metadata = Metadata::of(&memory).unwrap();
        let machine = Machine::new(&memory, &[10], &metadata.slices()).unwrap();
        let mut claim = Claim::new(&machine, Node(0), 1).unwrap();
        // All frames of the chunk, as an allocation of any other thread takes them for some
        // instructions.
        let region = machine.region(0).unwrap();
        let (chunk, free) = region.claim_for(Order::BASE).unwrap();
        thread::scope(|scope| {
            let found = scope.spawn(|| claim.allocate(Order::BASE).unwrap());
            thread::sleep(Duration::from_millis(300));
            region.give(chunk, &free).unwrap();
            assert_eq!(found.join().unwrap().frames(), 1);
        });
    }
}
