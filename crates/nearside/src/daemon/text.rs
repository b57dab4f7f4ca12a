//! Text that one home alone executes is brought there; text that several nodes execute is named as
//! candidates for copies (docs/adr/0018-move-text.md).

use super::{
    config::Config,
    copies::{Copies, CopiesReport, TextLook},
    duty::{Duty, Interval},
    notify,
    site::Site,
};
use crate::{output, printable::printable, report::units::size};
use nearside_linux::{
    Host,
    store::Record,
    text::{TextDomain, TextWatch},
    watch::Watcher,
};
use nearside_policy::{
    ControlObservation, PageSize,
    replication::NodeMemory,
    text::{self, Candidate, FileState, TextHistory, TextPlan, Turn},
};
use nearside_topology::NodeId;
use std::{collections::BTreeMap, time::Duration};

/// Intervals between two looks. A look reads the mappings of all processes in domains.
const LOOK_INTERVALS: u64 = 8;

/// The time between two looks is at least so many times as long as a look took.
const REST_FACTOR: u32 = 20;

/// One look moves as much as the rate allows in this fraction of a second, since the loop waits for
/// it. The next interval moves more.
const BUDGET_DIVISOR: u64 = 20;

/// Pages on any machine are divisors of this.
const BUDGET_UNIT_BYTES: u64 = 64 << 10;

/// The text of domains, as the last look found it.
#[derive(Debug, Clone, Default)]
pub struct TextReport {
    /// Bytes that have moved since the start of the daemon.
    pub moved_bytes: u64,
    /// The files that are not in place, and those that have moved.
    pub files: Vec<TextFileReport>,
    /// The files that would pay copies, most bytes off their homes first.
    pub candidates: Vec<Candidate>,
    /// The files that have copies because of that.
    pub copies: CopiesReport,
    /// Processes with several threads, by domain with a home of several nodes.
    pub wide: BTreeMap<String, usize>,
}

/// A file, and the bytes of it that have moved.
#[derive(Debug, Clone)]
pub struct TextFileReport {
    /// The file as the last look found it.
    pub state: FileState,
    /// Bytes of it that have moved so far.
    pub moved_bytes: u64,
}

/// The limits that the configuration sets.
#[derive(Debug, Clone, Copy)]
struct Allowed {
    /// Text moves.
    moves: bool,
    /// The replicator is asked for copies.
    copies: bool,
    /// The bound on moving pages.
    rate_bytes_per_s: u64,
}

impl Allowed {
    fn by(config: &Config) -> Self {
        Self {
            moves: config.move_text,
            copies: config.replicate_text,
            rate_bytes_per_s: config.rate_bytes_per_s,
        }
    }
}

/// The state between two looks.
#[derive(Debug, Default)]
pub(super) struct Text {
    watch: TextWatch,
    history: TextHistory,
    look: u64,
    due_at: u64,
    rests_until: Option<Duration>,
    report: TextReport,
    copies: Option<Copies>,
    /// Whether there are no copies of an earlier daemon, or of an earlier configuration.
    is_clear: bool,
}

impl Text {
    /// The report of the last look.
    pub(super) fn report(&self) -> TextReport {
        let copies = self.copies.as_ref().map(Copies::report).unwrap_or_default();
        TextReport { copies, ..self.report.clone() }
    }

    /// Forgets what was seen: text is not looked at any more.
    fn stop(&mut self) {
        let moved_bytes = self.report.moved_bytes;
        *self = Self { is_clear: self.is_clear, ..Self::default() };
        self.report.moved_bytes = moved_bytes;
    }

    /// Starts the thread that asks for copies, or has it take them away.
    fn tend_copies(&mut self, host: &Host, allowed: Allowed) {
        if self.copies.is_none() && (allowed.copies || !self.is_clear) {
            match Copies::start(host.tree(), &host.proc()) {
                Ok(copies) => self.copies = Some(copies),
                Err(error) => self.report.copies.why = Some(error.to_string()),
            }
        }
        self.is_clear = !allowed.copies;
        if !allowed.copies
            && let Some(copies) = self.copies.take()
        {
            copies.clear();
        }
    }

    fn publish(&mut self, plan: TextPlan, wide: BTreeMap<String, usize>) {
        let files = plan.files.into_iter().map(|state| {
            let moved_bytes = self.history.moved_bytes(state.file);
            TextFileReport { state, moved_bytes }
        });
        let is_told =
            |it: &TextFileReport| it.moved_bytes > 0 || it.state.state != text::TextState::InPlace;
        self.report.files = files.filter(is_told).collect();
        self.report.candidates = plan.candidates;
        self.report.wide = wide;
    }
}

impl Duty for Text {
    /// Looks at the text of all domains if it is time, moves what belongs elsewhere, and has others
    /// ask for copies.
    fn tend(&mut self, site: &mut Site, interval: &Interval<'_>) {
        let (Site { host, watcher, .. }, seen) = (site, interval.seen);
        let allowed = Allowed::by(interval.config);
        self.tend_copies(host, allowed);
        if !allowed.moves && !allowed.copies {
            return self.stop();
        }
        let began = interval.clock.now();
        let is_resting = self.rests_until.is_some_and(|until| began < until);
        if seen.machine.topology.memory_nodes().len() < 2
            || seen.interval < self.due_at
            || is_resting
        {
            return;
        }
        self.look += 1;
        self.due_at = seen.interval.saturating_add(LOOK_INTERVALS);
        let proc = host.proc();
        // The interval has changed records since it observed them.
        let domains = domains(host.records().0, watcher);
        let look =
            self.watch.look(host.tree(), &proc, &domains, interval.clock.now_ns(), &notify::busy);
        let memory = memory(seen);
        let budget_bytes = (allowed.rate_bytes_per_s / BUDGET_DIVISOR).max(BUDGET_UNIT_BYTES);
        let budget_bytes = budget_bytes / BUDGET_UNIT_BYTES * BUDGET_UNIT_BYTES;
        let turn = Turn { look: self.look, memory: &memory, budget_bytes };
        let (plan, history) = text::plan(&look.files, &turn, &self.history);
        self.history = history;
        let took = interval.clock.now().saturating_sub(began);
        self.rests_until = Some(began + took.saturating_mul(REST_FACTOR).min(MAX_REST));
        for order in plan.orders.iter().filter(|_| allowed.moves) {
            let placed = look.carry_out(&proc, order, &notify::busy);
            self.history.settle(self.look, order.file, placed);
            self.report.moved_bytes = self.report.moved_bytes.saturating_add(placed.moved_bytes);
            let path = plan.files.iter().find(|it| it.file == order.file).map(|it| &it.path);
            output::note([format!(
                "text: {} of {} moved to {}, the only home that executes it; {} left",
                size(placed.moved_bytes),
                printable(path.map_or("", String::as_str)),
                order.to.named(),
                size(placed.tried_bytes.saturating_sub(placed.moved_bytes)),
            )]);
        }
        if plan.is_cut {
            self.due_at = seen.interval.saturating_add(1);
        }
        if let Some(copies) = &self.copies {
            copies.look(TextLook {
                number: self.look,
                candidates: plan.candidates.clone(),
                domains,
                distances: seen.machine.topology.distances.clone(),
            });
        }
        self.publish(plan, look.wide);
    }
}

/// The longest rest after a look.
const MAX_REST: Duration = Duration::from_secs(600);

/// The domains of these records, and those that were found and have no home yet.
fn domains(records: Vec<Record>, watcher: &Watcher) -> Vec<TextDomain> {
    let has_record: std::collections::BTreeSet<_> =
        records.iter().map(|record| record.cgroup.clone()).collect();
    let found = watcher.found().filter(|path| !has_record.contains(*path));
    let without_home =
        found.map(|path| TextDomain { name: path.to_owned(), cgroup: path.to_owned(), home: None });
    let without_home: Vec<_> = without_home.collect();
    let with_home = records.into_iter().map(|record| TextDomain {
        home: Some(record.home_nodes()),
        name: record.name,
        cgroup: record.cgroup,
    });
    with_home.chain(without_home).collect()
}

/// The memory of each node, and what claims leave of it.
fn memory(seen: &ControlObservation) -> BTreeMap<NodeId, NodeMemory> {
    let available = seen.machine.available(PageSize::Base);
    let nodes = seen.machine.topology.nodes.iter();
    nodes
        .map(|node| {
            let allocatable_bytes = available.on(node.id);
            let memory = NodeMemory { total_bytes: node.memory_bytes, allocatable_bytes };
            (node.id, memory)
        })
        .collect()
}
