//! The state machine of the scheduler: when it is attached, and when it is tried again after the
//! kernel ejected it.

use super::config::Scheduler;
use nearside_topology::Topology;
use serde::Serialize;
use std::collections::BTreeSet;

/// The wait after the first failure, and the longest one, in intervals.
const FIRST_WAIT: u64 = 1;
const LAST_WAIT: u64 = 64;
/// Intervals for which it stays attached without a domain. Each attachment stops the whole host for
/// a moment, and short runs in succession would otherwise cause one each.
const LINGER: u64 = 15;

/// The demand for the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Nodes that have CPUs.
    pub nodes_with_cpus: usize,
    /// Domains, with or without a home: a found domain may get its home only once the scheduler is
    /// attached.
    pub domains: usize,
}

/// The state of the scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Attachment {
    /// Not attached, because it is not needed.
    Idle {
        /// The reason why it is not needed; none before the first interval.
        why: Option<&'static str>,
    },
    /// Attached.
    Attached {
        /// The interval since which it is attached.
        since: u64,
        /// The wait after the last failure, in intervals; 0 if that is long ago.
        last_wait: u64,
        /// The interval since which there has been no domain.
        #[serde(skip)]
        deserted: Option<u64>,
    },
    /// Failed, to be tried again.
    Later {
        /// The interval of the next attempt.
        at: u64,
        /// The wait since the failure, in intervals.
        wait: u64,
        /// The failure.
        why: String,
    },
    /// Impossible on this host.
    Never {
        /// The reason.
        why: String,
    },
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Todo {
    /// Attach it.
    Attach,
    /// Give the host back to the stock scheduler.
    Detach,
    /// Leave the scheduler as it is.
    Nothing,
}

/// The one reason that may vanish at any moment.
const NO_DOMAIN: &str = "there is no domain";

impl Needs {
    /// The demand on this machine with this number of domains.
    pub fn of(topology: &Topology, domains: usize) -> Self {
        let with_cpus = topology.cpus.iter().filter(|cpu| cpu.online).filter_map(|cpu| cpu.node);
        Self { nodes_with_cpus: with_cpus.collect::<BTreeSet<_>>().len(), domains }
    }
}

impl Default for Attachment {
    fn default() -> Self {
        Self::Idle { why: None }
    }
}

impl Scheduler {
    /// The reason why it is not needed; none if it is.
    pub(super) fn objection(self, needs: Needs) -> Option<&'static str> {
        match self {
            Self::Off => Some("switched off by configuration"),
            Self::On => None,
            Self::Auto if needs.nodes_with_cpus < 2 => Some("fewer than two nodes have CPUs"),
            Self::Auto if needs.domains == 0 => Some(NO_DOMAIN),
            Self::Auto => None,
        }
    }
}

impl Attachment {
    /// The step for this interval. Records the reason if the scheduler is neither needed nor
    /// attached.
    pub fn next(&mut self, mode: Scheduler, needs: Needs, now: u64) -> Todo {
        match (mode.objection(needs), &mut *self) {
            (Some(NO_DOMAIN), Self::Attached { deserted, .. }) => {
                let deserted_for = now.saturating_sub(*deserted.get_or_insert(now));
                if deserted_for < LINGER { Todo::Nothing } else { Todo::Detach }
            }
            (Some(_), Self::Attached { .. }) => Todo::Detach,
            (None, Self::Attached { deserted, .. }) => {
                *deserted = None;
                Todo::Nothing
            }
            // A failure is kept although the scheduler is not needed at the moment.
            (Some(_), Self::Later { .. } | Self::Never { .. }) => Todo::Nothing,
            (why @ Some(_), Self::Idle { .. }) => {
                *self = Self::Idle { why };
                Todo::Nothing
            }
            (None, Self::Idle { .. }) => Todo::Attach,
            (None, Self::Later { at, .. }) if *at <= now => Todo::Attach,
            (None, _) => Todo::Nothing,
        }
    }

    /// Records that it was attached.
    pub fn attached(&mut self, now: u64) {
        *self = Self::Attached { since: now, last_wait: self.last_wait(now), deserted: None };
    }

    /// Records that it could not be attached or was ejected. The next attempts come after 1, 2, 4,
    /// .. 64 intervals.
    pub fn failed(&mut self, now: u64, why: String) {
        let wait = match self.last_wait(now) {
            0 => FIRST_WAIT,
            last => last.saturating_mul(2).min(LAST_WAIT),
        };
        *self = Self::Later { at: now.saturating_add(wait), wait, why };
    }

    /// Records that the machine has changed and the scheduler has to be attached anew. That is no
    /// failure, so the first attempt comes at once. But a machine that changes again and again must
    /// not cause one in every interval.
    pub fn wants_restart(&mut self, now: u64, why: String) {
        match *self {
            Self::Attached { since, last_wait: 0, .. } if now.saturating_sub(since) > LAST_WAIT => {
                *self = Self::default()
            }
            _ => self.failed(now, why),
        }
    }

    /// Records that it can never work on this host.
    pub fn impossible(&mut self, why: String) {
        *self = Self::Never { why };
    }

    /// True if it is attached.
    pub fn is_attached(&self) -> bool {
        matches!(self, Self::Attached { .. })
    }

    /// The last wait; 0 once it has been attached for longer than the longest wait.
    fn last_wait(&self, now: u64) -> u64 {
        match *self {
            Self::Later { wait, .. } => wait,
            Self::Attached { since, last_wait, .. } if now.saturating_sub(since) <= LAST_WAIT => {
                last_wait
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDED: Needs = Needs { nodes_with_cpus: 4, domains: 1 };

    #[test]
    fn it_is_attached_on_demand() {
        let needs = |nodes_with_cpus, domains| Needs { nodes_with_cpus, domains };
        for (mode, needs, todo) in [
            (Scheduler::Auto, needs(2, 1), Todo::Attach),
            (Scheduler::Auto, needs(1, 9), Todo::Nothing),
            (Scheduler::Auto, needs(4, 0), Todo::Nothing),
            (Scheduler::On, needs(1, 0), Todo::Attach),
            (Scheduler::Off, needs(4, 9), Todo::Nothing),
        ] {
            assert_eq!(Attachment::default().next(mode, needs, 7), todo, "{mode:?} {needs:?}");
        }
        let mut attached = Attachment::default();
        attached.attached(1);
        assert_eq!(attached.next(Scheduler::Auto, NEEDED, 2), Todo::Nothing);
        assert_eq!(attached.next(Scheduler::Auto, needs(1, 1), 2), Todo::Detach);
        assert_eq!(attached.next(Scheduler::Off, needs(4, 0), 2), Todo::Detach);
    }

    #[test]
    fn it_stays_for_a_while_when_the_last_domain_has_ended() {
        let nobody = Needs { domains: 0, ..NEEDED };
        let mut attached = Attachment::default();
        attached.attached(1);
        // Another domain comes in time, and the wait starts again.
        for (from, to) in [(2, 2 + LINGER), (30, 30 + LINGER)] {
            assert!(
                (from..to).all(|now| attached.next(Scheduler::Auto, nobody, now) == Todo::Nothing)
            );
            assert_eq!(attached.next(Scheduler::Auto, NEEDED, to), Todo::Nothing);
        }
        assert!(
            (60..60 + LINGER)
                .all(|now| attached.next(Scheduler::Auto, nobody, now) == Todo::Nothing)
        );
        assert_eq!(attached.next(Scheduler::Auto, nobody, 60 + LINGER), Todo::Detach);
    }

    #[test]
    fn the_wait_doubles_to_64_intervals_and_no_further() {
        let mut attachment = Attachment::default();
        let (mut now, mut waits) = (10, Vec::new());
        for _ in 0..9 {
            let failed_at = now;
            attachment.failed(now, "ejected".into());
            while attachment.next(Scheduler::Auto, NEEDED, now) == Todo::Nothing {
                now += 1;
            }
            waits.push(now - failed_at);
            attachment.attached(now);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn a_long_time_in_charge_makes_up_for_failures() {
        let mut attachment = Attachment::default();
        for now in 0..5 {
            attachment.failed(now, "ejected".into());
        }
        attachment.attached(30);
        let mut soon = attachment.clone();
        soon.failed(31, "ejected".into());
        assert_eq!(soon, Attachment::Later { at: 63, wait: 32, why: "ejected".into() });
        attachment.failed(30 + LAST_WAIT + 1, "ejected".into());
        assert!(matches!(attachment, Attachment::Later { wait: 1, .. }), "{attachment:?}");
    }

    #[test]
    fn an_impossible_attachment_is_not_tried_again() {
        let mut attachment = Attachment::default();
        attachment.impossible("no sched_ext".into());
        assert!((0..1000).all(|now| attachment.next(Scheduler::On, NEEDED, now) == Todo::Nothing));
    }

    #[test]
    fn a_machine_that_has_changed_is_no_failure() {
        let mut attachment = Attachment::default();
        attachment.attached(3);
        let changed = || "CPUs came or went".to_owned();
        attachment.wants_restart(100, changed());
        assert_eq!(attachment.next(Scheduler::Auto, NEEDED, 100), Todo::Attach);
        // A machine that changes again at once causes ever longer waits.
        let (mut now, mut waits) = (100, Vec::new());
        for _ in 0..4 {
            attachment.attached(now);
            let changed_at = now + 1;
            attachment.wants_restart(changed_at, changed());
            now = changed_at;
            while attachment.next(Scheduler::Auto, NEEDED, now) == Todo::Nothing {
                now += 1;
            }
            waits.push(now - changed_at);
        }
        assert_eq!(waits, [1, 2, 4, 8]);
    }
}
