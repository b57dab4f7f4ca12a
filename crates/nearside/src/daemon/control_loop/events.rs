//! Between two intervals: pages move, and events are handled as they come.

use super::ControlLoop;
use crate::daemon::{
    inbox::Inbox,
    notify, requests,
    snapshot::{Asked, Event},
};
use std::{ops::ControlFlow, time::Instant};

/// Events that are handled although the next interval is due. It bounds the delay that a client
/// with many requests can cause.
const MAX_LATE_EVENTS: usize = 16;

impl ControlLoop {
    /// Handles events until the next interval is due. Breaks if the daemon is to stop. `reload`
    /// reads the configuration again.
    pub(super) fn handle_events(
        &mut self,
        inbox: &Inbox,
        due: Instant,
        reload: &mut dyn FnMut(&mut Self),
    ) -> ControlFlow<()> {
        let mut late = 0;
        while late < MAX_LATE_EVENTS {
            late += usize::from(Instant::now() >= due);
            match self.wait(inbox, due) {
                Some(Event::Change(asked)) => {
                    self.change(asked);
                    notify::busy();
                }
                Some(Event::Reload) => {
                    notify::reloading();
                    reload(self);
                    notify::ready(&self.status());
                }
                Some(Event::Stop) => return ControlFlow::Break(()),
                None => break,
            }
        }
        ControlFlow::Continue(())
    }

    /// Moves pages until an event comes or the next interval is due, and then waits for either.
    /// None if the interval is due. So an event waits for one round without its page moves at
    /// most.
    fn wait(&mut self, inbox: &Inbox, due: Instant) -> Option<Event> {
        self.duties.page_moves.go_on(&mut self.site, due, &|| {
            notify::busy();
            if inbox.is_waiting() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        loop {
            let left = due.saturating_duration_since(Instant::now());
            // An interval may be longer than systemd's watchdog time.
            let pause = self.watchdog.map_or(left, |watchdog| left.min(watchdog / 2));
            match inbox.next(pause) {
                None if pause < left => notify::busy(),
                event => return event,
            }
        }
    }

    fn change(&mut self, asked: Asked) {
        let found_by = self.site.watcher.found_by(asked.change.domain());
        let answer = requests::fulfil(&mut self.site.host, &asked.change, found_by);
        // The client may have gone; the change stands all the same.
        let _ = asked.answer.send(answer);
    }
}
