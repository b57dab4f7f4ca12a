//! The events of the loop, in order. Any thread can test for waiting events without taking one.

use super::snapshot::Event;
use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    time::Duration,
};

/// The most events taken out of the channel in advance. Beyond them the channel fills up, and
/// senders get an error.
const MAX_WAITING: usize = 64;

/// Events that have arrived and were not taken yet.
#[derive(Debug)]
pub(crate) struct Inbox(Mutex<Waiting>);

#[derive(Debug)]
struct Waiting {
    channel: Receiver<Event>,
    came: VecDeque<Event>,
}

impl Inbox {
    /// The inbox of a channel.
    pub(crate) fn new(channel: Receiver<Event>) -> Self {
        Self(Mutex::new(Waiting { channel, came: VecDeque::new() }))
    }

    /// True if an event waits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.look().came.is_empty()
    }

    /// True if the loop is to end.
    pub(super) fn is_to_end(&self) -> bool {
        self.look().end().is_some()
    }

    /// The next event; none if none arrives within the pause. `Stop` comes before all other events.
    pub(super) fn next(&self, pause: Duration) -> Option<Event> {
        let mut waiting = self.look();
        if let Some(at) = waiting.end() {
            return waiting.came.remove(at);
        }
        let first = waiting.came.pop_front();
        first.or_else(|| match waiting.channel.recv_timeout(pause) {
            Ok(event) => Some(event),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Event::Stop),
        })
    }

    fn look(&self) -> MutexGuard<'_, Waiting> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while waiting.came.len() < MAX_WAITING {
            match waiting.channel.try_recv() {
                Ok(event) => waiting.came.push_back(event),
                Err(TryRecvError::Empty) => break,
                // All senders are gone, so no other event can arrive.
                Err(TryRecvError::Disconnected) => {
                    if waiting.end().is_none() {
                        waiting.came.push_back(Event::Stop);
                    }
                    break;
                }
            }
        }
        waiting
    }
}

impl Waiting {
    fn end(&self) -> Option<usize> {
        self.came.iter().position(|event| matches!(event, Event::Stop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn waiting_events_are_visible_and_the_end_comes_first() {
        let (sender, channel) = sync_channel(8);
        let inbox = Inbox::new(channel);
        assert!(!inbox.is_waiting() && inbox.next(Duration::ZERO).is_none());
        sender.send(Event::Reload).unwrap();
        assert!(inbox.is_waiting() && inbox.is_waiting() && !inbox.is_to_end());
        sender.send(Event::Stop).unwrap();
        assert!(inbox.is_to_end());
        assert!(matches!(inbox.next(Duration::ZERO), Some(Event::Stop)));
        assert!(!inbox.is_to_end() && matches!(inbox.next(Duration::ZERO), Some(Event::Reload)));
        drop(sender);
        assert!(inbox.is_to_end() && matches!(inbox.next(Duration::ZERO), Some(Event::Stop)));
    }

    #[test]
    fn events_beyond_the_capacity_stay_with_their_sender() {
        let (sender, channel) = sync_channel(1);
        let inbox = Inbox::new(channel);
        let accepted =
            (0..200).filter(|_| sender.try_send(Event::Reload).is_ok() & inbox.is_waiting());
        assert_eq!(accepted.count(), MAX_WAITING + 1);
    }
}
