//! The loop on a host of plain files, which refuses, delays and vanishes.

mod toy;

use super::*;
use crate::daemon::{
    access::Access,
    api::{Groups, Limits},
    audit::AuditLog,
    config,
    made::Made,
    snapshot::Event,
};
use nearside_linux::watch::Patterns;
use nearside_policy::{HomeBlocker, MoveReport, Stayed};
use nearside_topology::NodeId;
use std::{
    collections::BTreeMap,
    fs,
    sync::mpsc::{SyncSender, sync_channel},
};

const A: &str = "/nearside/a";
const B: &str = "/nearside/b";

/// A daemon on a host of files, and the end of its channel that keeps it alive.
pub(super) struct Daemon {
    pub(super) control: ControlLoop,
    pub(super) inbox: Inbox,
    _sender: SyncSender<Event>,
}

impl Daemon {
    fn new(made: &Made) -> Self {
        Self::start(made).unwrap()
    }

    pub(super) fn start(made: &Made) -> Result<Self, nearside_linux::Error> {
        let config = Config {
            found: Patterns::parse(["nearside/*"]).unwrap(),
            scheduler: config::Scheduler::Off,
            ..Config::default()
        };
        let (sender, events) = sync_channel(1);
        let host = made.host();
        let watcher = host.watcher(config.found.clone());
        let state = Folder::make(&made.path("run/nearside"))?;
        let log = AuditLog::new(&made.path("audit.log"));
        let api =
            Api::new(Access::default(), log, sender.clone(), Limits::default(), Groups::none());
        let scheduler = SchedulerControl::default();
        let mut control = ControlLoop::new(host, watcher, config, state, scheduler, api);
        control.site.host.set_waiting(waiting(Duration::ZERO));
        Ok(Self { control, inbox: Inbox::new(events), _sender: sender })
    }

    pub(super) fn intervals(&mut self, count: usize) {
        for _ in 0..count {
            self.control.interval(&self.inbox, Instant::now() + Duration::from_secs(3600));
        }
    }

    /// The domains that have a home by their records; their groups are bound to its CPUs, and no
    /// other is bound.
    fn at_home(&self, made: &Made) -> Vec<String> {
        let (records, unreadable) = self.control.site.host.records();
        assert!(unreadable.is_empty(), "{unreadable:?}");
        let homes: BTreeMap<_, _> =
            records.iter().map(|record| (record.cgroup.as_str(), record.home_nodes())).collect();
        for path in [A, B] {
            let cpus = fs::read_to_string(made.path(format!("cg{path}/cpuset.cpus")));
            let expected = match homes.get(path).map(ToString::to_string).as_deref() {
                Some("0") => "0-1",
                Some("1") => "2-3",
                _ => "",
            };
            assert_eq!(cpus.unwrap_or_default().trim(), expected, "{path}");
        }
        homes.into_keys().map(str::to_owned).collect()
    }

    fn blocker(&self, domain: &str) -> Option<HomeBlocker> {
        let known = self.control.controllers.homes.state().parts.get(&domain.into())?;
        known.status.home_blocker.clone()
    }

    fn refusals(&self, domain: &str) -> u64 {
        self.control.site.totals.domains.get(domain).map_or(0, |totals| totals.refusals)
    }
}

#[test]
fn found_domains_get_homes_and_what_was_done_is_published() {
    let made = Made::with(&[A, B]);
    let mut daemon = Daemon::new(&made);
    daemon.intervals(1);
    assert_eq!(daemon.at_home(&made), [""; 0], "a first look has no load");
    daemon.intervals(1);
    assert_eq!(daemon.at_home(&made), [A, B]);
    let (_, published) = daemon.control.publisher.api.published.latest().unwrap();
    assert_eq!((published.stat.domains.len(), published.plan.transactions.len()), (2, 2));
    assert_eq!((published.totals.intervals, published.totals.domains[A].homes), (2, 1));
    daemon.control.end();
    let (records, _) = daemon.control.site.host.records();
    let bindings: Vec<_> = records.iter().map(|record| &record.part().cpus).collect();
    assert_eq!(bindings, [&None, &None], "bindings of found groups are lifted at the end");
    for path in [A, B] {
        let cpus = fs::read_to_string(made.path(format!("cg{path}/cpuset.cpus"))).unwrap();
        assert_eq!(cpus.trim(), "");
    }
}

#[test]
fn a_refused_step_leaves_nothing_behind_and_is_tried_again_after_its_cooldown() {
    let made = Made::with(&[A, B]);
    made.refuse_bindings(A, true);
    let mut daemon = Daemon::new(&made);
    daemon.intervals(2);
    assert_eq!((daemon.at_home(&made), daemon.refusals(A)), (vec![B.to_owned()], 1));
    daemon.intervals(2);
    assert!(matches!(daemon.blocker(A), Some(HomeBlocker::Refused { .. })));
    assert_eq!(daemon.refusals(A), 1, "it would be refused again");
    made.refuse_bindings(A, false);
    daemon.intervals(8);
    assert_eq!(daemon.at_home(&made), [A, B]);
}

#[test]
fn a_refused_step_that_cannot_be_undone_blocks_its_own_domain_only() {
    let made = Made::with(&[A, B]);
    let (setting, away) = (made.path(format!("cg{A}/cpuset.cpus")), made.path("away"));
    let mut daemon = Daemon::new(&made);
    daemon.intervals(1);
    fs::rename(&setting, &away).unwrap();
    fs::create_dir(&setting).unwrap();
    daemon.intervals(3);
    assert_eq!((daemon.at_home(&made), daemon.refusals(A)), (vec![B.to_owned()], 1));
    assert_eq!(daemon.refusals(B), 1, "a failed roll-back refuses the rest of the session");
    let journal = made.path("run/nearside/journal.json");
    assert!(journal.exists());
    fs::remove_dir(&setting).unwrap();
    fs::rename(&away, &setting).unwrap();
    daemon.intervals(1);
    assert!(!journal.exists(), "it is undone as soon as that is possible");
    assert_eq!(daemon.at_home(&made), [B], "and not tried again before its cooldown ends");
    daemon.intervals(7);
    assert_eq!(daemon.at_home(&made), [A, B]);
}

#[test]
fn without_the_lock_decisions_are_taken_back_and_taken_again() {
    let made = Made::with(&[A, B]);
    let mut daemon = Daemon::new(&made);
    daemon.intervals(1);
    let mut other = made.host();
    let session = other.begin().unwrap();
    daemon.intervals(2);
    let known = |daemon: &Daemon| daemon.control.controllers.homes.state().parts[&A.into()].clone();
    assert_eq!((known(&daemon).first_home, known(&daemon).home), (None, None));
    drop(session);
    daemon.intervals(1);
    assert_eq!(daemon.at_home(&made), [A, B]);
    assert!(known(&daemon).first_home.is_some() && known(&daemon).home.is_some());
}

#[test]
fn a_domain_that_ends_between_look_and_change_keeps_no_other_from_its_home() {
    let made = Made::with(&[A, B]);
    let mut daemon = Daemon::new(&made);
    daemon.intervals(1);
    let seen = daemon.control.observe().unwrap();
    fs::remove_dir_all(made.path(format!("cg{A}"))).unwrap();
    daemon.control.control(seen, &|| false);
    assert_eq!((daemon.at_home(&made), daemon.refusals(A)), (vec![B.to_owned()], 1));
    daemon.intervals(1);
    let parts = &daemon.control.controllers.homes.state().parts;
    assert!(!parts.contains_key(&A.into()) && !daemon.control.site.totals.domains.contains_key(A));
}

#[test]
fn an_interval_that_is_over_leaves_the_rest_to_the_next() {
    let made = Made::with(&[A, B]);
    let mut daemon = Daemon::new(&made);
    daemon.intervals(1);
    for homes in 1..=2 {
        let seen = daemon.control.observe().unwrap();
        daemon.control.control(seen, &|| true);
        assert_eq!(daemon.at_home(&made).len(), homes);
    }
}

#[test]
fn failed_looks_make_the_daemon_unhealthy_until_one_succeeds() {
    let made = Made::with(&[A]);
    let mut daemon = Daemon::new(&made);
    daemon.intervals(1);
    let (sys, away) = (made.path("sys"), made.path("away"));
    fs::rename(&sys, &away).unwrap();
    let failure = |daemon: &Daemon| daemon.control.publisher.api.published.failure();
    daemon.intervals(2);
    assert_eq!(failure(&daemon), None, "twice may be chance");
    daemon.intervals(1);
    assert!(failure(&daemon).is_some_and(|why| why.contains("the last 3 observations")));
    assert!(daemon.control.status().contains("the last 3 samples of the host failed"));
    assert_eq!(daemon.at_home(&made), [""; 0]);
    fs::rename(&away, &sys).unwrap();
    daemon.intervals(1);
    assert_eq!((failure(&daemon), daemon.control.failures.unhealthy()), (None, None));
    assert_eq!(daemon.at_home(&made), [A]);
}

#[test]
fn a_report_on_moved_pages_is_kept_until_a_controller_has_learned_from_it() {
    let made = Made::with(&[A]);
    let reports = |daemon: &Daemon| daemon.control.duties.page_moves.reports.len();
    let mut former = Daemon::new(&made);
    former.intervals(1);
    let report =
        MoveReport { part: A.into(), from: NodeId(1), moved_bytes: 4096, stayed: Stayed::new() };
    former.control.duties.page_moves.reports.push(report);
    let (sys, away) = (made.path("sys"), made.path("away"));
    fs::rename(&sys, &away).unwrap();
    former.intervals(1);
    assert_eq!(reports(&former), 1, "the look has failed");
    former.control.persist();
    fs::rename(&away, &sys).unwrap();
    let mut later = Daemon::new(&made);
    assert_eq!(reports(&later), 1);
    later.intervals(1);
    assert_eq!(reports(&later), 0);
}

#[test]
fn a_later_daemon_continues_from_the_states_of_the_former_one() {
    let made = Made::with(&[A]);
    made.refuse_bindings(A, true);
    let mut former = Daemon::new(&made);
    former.intervals(2);
    assert_eq!(former.refusals(A), 1);
    drop(former);
    let mut later = Daemon::new(&made);
    later.intervals(2);
    assert_eq!(later.control.last_interval, 4);
    assert_eq!(later.refusals(A), 0, "the cooldown of the former one's attempt holds");
    assert!(matches!(later.blocker(A), Some(HomeBlocker::Refused { .. })));
}
