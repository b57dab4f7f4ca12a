//! The attached scheduler, which prefers homes, and the CPU bindings that stand in while it is not
//! attached.

use super::{
    attachment::Needs,
    cells::Cells,
    config,
    duty::{Duty, Interval},
    fallback::{self, DomainChange, bound_names},
    scheduler::{Affinities, SchedulerControl},
    site::Site,
};
use nearside_linux::{store::Record, wants_fallback};
use nearside_policy::ControlObservation;
use nearside_scheduler::Affinity;
use nearside_topology::Topology;

/// The scheduler, and the cells whose vCPUs prefer nodes of their own.
#[derive(Debug)]
pub(super) struct Scheduling {
    pub(super) scheduler: SchedulerControl,
    pub(super) cells: Cells,
}

impl Duty for Scheduling {
    fn tend(&mut self, site: &mut Site, interval: &Interval<'_>) {
        let machine = &interval.seen.machine;
        let needs = Needs::of(&machine.topology, machine.parts.len());
        let inputs = Inputs {
            mode: interval.config.scheduler,
            needs,
            number: interval.seen.interval,
            is_over: interval.is_over,
        };
        self.keep_homes(site, &machine.topology, &inputs);
        site.reported.report(self.balancing(interval.seen));
    }
}

/// The inputs of [`Scheduling::keep_homes`] in one interval.
pub(super) struct Inputs<'a> {
    pub(super) mode: config::Scheduler,
    pub(super) needs: Needs,
    /// The number of the interval.
    pub(super) number: u64,
    pub(super) is_over: &'a dyn Fn() -> bool,
}

impl Scheduling {
    /// With this scheduler, which is not attached yet.
    pub(super) fn new(scheduler: SchedulerControl) -> Self {
        Self { scheduler, cells: Cells::default() }
    }

    /// Whether it is attached.
    pub(super) fn is_attached(&self) -> bool {
        self.scheduler.attachment().is_attached()
    }

    /// Attaches or detaches the scheduler when it is time, and binds domains to their homes while
    /// it is not attached.
    pub(super) fn keep_homes(&mut self, site: &mut Site, topology: &Topology, inputs: &Inputs<'_>) {
        let &Inputs { mode, needs, number, is_over } = inputs;
        let homes = affinities(site.watcher.records());
        // Domains are bound before the scheduler is detached, however long that takes, so that none
        // leaves its home in between.
        if self.scheduler.is_to_leave(mode, needs, number)
            && !bind_to_homes(site, topology, &|| false)
        {
            return;
        }
        let said = self.scheduler.tend(mode, needs, &homes, number);
        site.reported.report(said);
        if !self.is_attached() {
            self.cells.forget_passed();
            bind_to_homes(site, topology, is_over);
            return;
        }
        let said = self.cells.pass(&site.host, &site.watcher, &mut self.scheduler);
        site.reported.report(said);
        let bound = bound_names(site.watcher.records());
        let unbind: DomainChange = |session, name| session.unbind(name);
        site.change_each(&bound, unbind, is_over);
    }

    /// Lifts the bindings of found cgroups, because no process would lift them later, binds started
    /// domains, and gives the host back to the stock scheduler.
    pub(super) fn end(&mut self, site: &mut Site) {
        // From the records as they are now: the last interval may have changed them.
        let (found, started): (Vec<_>, Vec<_>) =
            site.host.records().0.into_iter().partition(|record| record.found_by.is_some());
        let bound = bound_names(found.iter());
        let unbind: DomainChange = |session, name| session.unbind(name);
        site.change_each(&bound, unbind, &|| false);
        if !self.is_attached() {
            return;
        }
        // Domains are bound while the scheduler is still attached, so that none leaves its home in
        // between.
        match site.host.topology() {
            Ok(topology) => {
                let wanting: Vec<_> = started
                    .into_iter()
                    .filter(|record| wants_fallback(record, &topology))
                    .collect();
                fallback::bind(&mut site.host, &mut site.reported, &wanting, || false);
            }
            Err(error) => site.reported.report([error.to_string()]),
        }
        let said = self.scheduler.detach();
        site.reported.report(said);
    }

    /// The effect of the kernel's NUMA balancing, if it is on.
    fn balancing(&self, seen: &ControlObservation) -> Option<String> {
        let several_nodes = seen.machine.topology.nodes.len() > 1;
        let mode = seen.numa_balancing.filter(|&mode| mode != 0 && several_nodes)?;
        let effect = match self.is_attached() {
            true => "has no effect while the scheduler is attached",
            false => {
                "moves the memory of domains that Nearside did not start, so Nearside leaves that \
                 memory alone"
            }
        };
        Some(format!(
            "NUMA balancing (kernel.numa_balancing = {mode}) {effect}; Nearside does not switch \
             it off"
        ))
    }
}

/// Binds domains that want it. False if the lock could not be taken.
fn bind_to_homes(site: &mut Site, topology: &Topology, is_over: &dyn Fn() -> bool) -> bool {
    let records = site.watcher.records();
    let wanting: Vec<_> =
        records.filter(|record| wants_fallback(record, topology)).cloned().collect();
    fallback::bind(&mut site.host, &mut site.reported, &wanting, is_over)
}

/// The homes of domains, for the scheduler.
fn affinities<'a>(records: impl Iterator<Item = &'a Record>) -> Affinities {
    let affinity = |record: &Record| {
        let home = record.part().home.nodes.first()?;
        Some((record.inode, Affinity { home, nodes: record.home_nodes() }))
    };
    records.filter_map(affinity).collect()
}
