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

#[cfg(test)]
mod tests {
    use super::{super::tests::Daemon, *};
    use crate::daemon::{
        access::Caller,
        made::Made,
        snapshot::{Answer, Change},
    };
    use nearside_policy::Origin;
    use nearside_topology::{NodeId, NodeSet};
    use std::{
        sync::{
            Arc,
            mpsc::{SyncSender, sync_channel},
        },
        time::Duration,
    };
    use tokio::sync::oneshot;

    const A: &str = "/nearside/a";

    fn channel() -> (SyncSender<Event>, Inbox) {
        let (sender, events) = sync_channel(32);
        (sender, Inbox::new(events))
    }

    /// A daemon that knows the domain A, which has no home yet.
    fn daemon(made: &Made) -> Daemon {
        let mut daemon = Daemon::start(made).unwrap();
        daemon.intervals(1);
        daemon
    }

    fn asks_for(node: u32, answer: oneshot::Sender<Answer>) -> Event {
        let nodes = NodeSet::from([NodeId(node)]);
        let change =
            Change::SetAffinity { domain: A.to_owned(), cell: None, nodes, affinity: None };
        let caller = Caller { uid: 0, gid: 0, groups: Vec::new(), pid: None };
        Event::Change(Asked { change, caller: Arc::new(caller), answer })
    }

    #[test]
    fn the_end_comes_before_all_other_events() {
        let made = Made::with(&[A]);
        let mut daemon = daemon(&made);
        let (sender, inbox) = channel();
        let (answer, mut answered) = oneshot::channel();
        sender.send(asks_for(1, answer)).unwrap();
        sender.send(Event::Stop).unwrap();
        let due = Instant::now() + Duration::from_secs(3600);
        let flow = daemon.control.handle_events(&inbox, due, &mut |_| panic!("reloaded"));
        assert!(flow.is_break() && answered.try_recv().is_err());
    }

    #[test]
    fn late_events_delay_the_next_interval_by_a_bounded_number() {
        let made = Made::with(&[A]);
        let mut daemon = daemon(&made);
        let (sender, inbox) = channel();
        for _ in 0..MAX_LATE_EVENTS + 4 {
            sender.send(Event::Reload).unwrap();
        }
        for expected in [MAX_LATE_EVENTS, 4, 0] {
            let mut reloads = 0;
            let due = Instant::now();
            let flow = daemon.control.handle_events(&inbox, due, &mut |_| reloads += 1);
            assert!(flow.is_continue());
            assert_eq!(reloads, expected);
        }
    }

    #[test]
    fn a_change_is_made_and_answered_even_if_its_client_is_gone() {
        for is_gone in [false, true] {
            let made = Made::with(&[A]);
            // The group may use the CPUs of both nodes.
            made.refuse_bindings(A, true);
            let mut daemon = daemon(&made);
            let (sender, inbox) = channel();
            let (answer, answered) = oneshot::channel();
            let mut answered = (!is_gone).then_some(answered);
            sender.send(asks_for(1, answer)).unwrap();
            let flow = daemon.control.handle_events(&inbox, Instant::now(), &mut |_| ());
            assert!(flow.is_continue());
            if let Some(answered) = &mut answered {
                let answer = answered.try_recv();
                assert!(matches!(answer, Ok(Answer::Done { .. })), "{answer:?}");
            }
            let record = daemon.control.site.host.record(A).unwrap().unwrap();
            assert_eq!(record.part().home.origin, Origin::Explicit);
            assert_eq!(record.home_nodes(), NodeSet::from([NodeId(1)]));
        }
    }
}
