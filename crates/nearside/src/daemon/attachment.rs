//! When the scheduler is attached, and when it is tried again after the kernel took it out of
//! charge.

use super::config::Scheduler;
use nearside_topology::Topology;
use serde::Serialize;
use std::collections::BTreeSet;

/// The wait after the first failure, and the longest one, in intervals.
const FIRST_WAIT: u64 = 1;
const LAST_WAIT: u64 = 64;
/// For so many intervals it stays attached without a domain: every change of the scheduler stops
/// the whole host for a moment, and where short runs follow each other there is none in between.
const LINGER: u64 = 15;

/// What there is to schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Nodes that have CPUs.
    pub nodes_with_cpus: usize,
    /// Domains, with a home or without: one that was found may have to wait for the scheduler to
    /// get one.
    pub domains: usize,
}

/// How it stands with the scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Attachment {
    /// It is not attached, and nothing speaks against it but this.
    Idle {
        /// Why it is not needed; none before the first look.
        why: Option<&'static str>,
    },
    /// It is in charge.
    Attached {
        /// Since this interval.
        since: u64,
        /// How long the wait was after the last failure, in intervals; 0 if that is long ago.
        last_wait: u64,
        /// There has been no domain since this interval.
        #[serde(skip)]
        deserted: Option<u64>,
    },
    /// It failed, and will be tried again.
    Later {
        /// In this interval.
        at: u64,
        /// So many intervals after it failed.
        wait: u64,
        /// What went wrong.
        why: String,
    },
    /// This host cannot have it, whatever is tried.
    Never {
        /// Why.
        why: String,
    },
}

/// What is to be done about it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Todo {
    /// Attach it.
    Attach,
    /// Give the host back to the stock scheduler.
    Detach,
    /// Leave it as it is.
    Nothing,
}

/// The one objection that may be gone in a moment.
const NO_DOMAIN: &str = "there is no domain";

impl Needs {
    /// What there is on this machine, for so many domains.
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
    /// Why it is not needed; none where it is.
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
    /// What is to be done in this interval. Where nobody needs the scheduler and it is not
    /// attached, that is noted.
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
            // A failure is not forgotten only because nobody needs it for a moment.
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

    /// It was attached.
    pub fn attached(&mut self, now: u64) {
        *self = Self::Attached { since: now, last_wait: self.last_wait(now), deserted: None };
    }

    /// It could not be attached, or was ejected: it is tried again after 1, 2, 4, .. 64 intervals.
    pub fn failed(&mut self, now: u64, why: String) {
        let wait = match self.last_wait(now) {
            0 => FIRST_WAIT,
            last => last.saturating_mul(2).min(LAST_WAIT),
        };
        *self = Self::Later { at: now.saturating_add(wait), wait, why };
    }

    /// It wants to be attached anew, because the machine has changed: no failure, so that is done
    /// at once; but a machine that changes again and again would be attached to in every interval.
    pub fn wants_restart(&mut self, now: u64, why: String) {
        match *self {
            Self::Attached { since, last_wait: 0, .. } if now.saturating_sub(since) > LAST_WAIT => {
                *self = Self::default()
            }
            _ => self.failed(now, why),
        }
    }

    /// It will never work here.
    pub fn impossible(&mut self, why: String) {
        *self = Self::Never { why };
    }

    /// Whether it is in charge.
    pub fn is_attached(&self) -> bool {
        matches!(self, Self::Attached { .. })
    }

    /// The last wait, unless it has been in charge for longer than the longest since.
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
    fn it_is_attached_where_somebody_needs_it() {
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
        // Another one comes in time, and the wait begins anew.
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
    fn what_can_never_be_is_not_tried_again() {
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
        // One that changes again at once is waited for, ever longer.
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
