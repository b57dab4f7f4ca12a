//! The figures of a simulation.

use super::{
    json::members,
    table::{Side, listing, wrapped},
    units::{count, size},
};
use nearside_simulator::{Decided, Options, Played, PlayedDomain, Scenario, Simulation};
use nearside_topology::NodeId;
use serde::Serialize;

/// Most changes of homes that the text lists.
const TOLD: usize = 10;

/// The output as JSON.
#[derive(Serialize)]
pub(crate) struct Report {
    source: String,
    scenario: String,
    description: String,
    domains_count: usize,
    interval_ns: u64,
    seed: u64,
    bound_ns: u64,
    work_ns: u64,
    contenders: Vec<ContenderJson>,
}

#[derive(Serialize)]
struct ContenderJson {
    contender: &'static str,
    is_done: bool,
    elapsed_ns: u64,
    work_ns: u64,
    mean_domain_ns: Option<u64>,
    against_stock_ppm: Option<u64>,
    of_bound_ppm: Option<u64>,
    cpu_ns: u64,
    local_ppm: Option<u64>,
    moved_bytes: u64,
    home_changes: u64,
    domains: Vec<DomainJson>,
    decisions: Vec<DecisionJson>,
}

#[derive(Serialize)]
struct DomainJson {
    name: String,
    start_ns: u64,
    done_ns: Option<u64>,
    nodes: Option<Vec<NodeId>>,
    cpu_ns: u64,
    local_ppm: Option<u64>,
    moved_bytes: u64,
    home_changes: u64,
}

#[derive(Serialize)]
struct DecisionJson {
    at_ns: u64,
    domain: String,
    text: String,
    because: String,
}

impl Report {
    pub(crate) fn new(
        source: &str,
        scenario: &Scenario,
        options: &Options,
        simulation: &Simulation,
    ) -> Self {
        let contenders =
            simulation.played.iter().map(|played| ContenderJson::new(played, simulation)).collect();
        Self {
            source: source.to_owned(),
            scenario: scenario.source.clone(),
            description: scenario.description.clone(),
            domains_count: scenario.domains.len(),
            interval_ns: scenario.interval_ms * 1_000_000,
            seed: options.seed,
            bound_ns: simulation.bound_ns,
            work_ns: simulation.work_ns,
            contenders,
        }
    }
}

impl ContenderJson {
    fn new(played: &Played, simulation: &Simulation) -> Self {
        Self {
            contender: played.contender.name(),
            is_done: played.is_done,
            elapsed_ns: played.elapsed_ns,
            work_ns: played.work_ns,
            mean_domain_ns: played.mean_domain_ns(),
            against_stock_ppm: simulation.against_stock(played).map(ppm),
            of_bound_ppm: simulation.of_bound(played).map(ppm),
            cpu_ns: played.cpu_ns,
            local_ppm: played.local_ppm,
            moved_bytes: played.moved_bytes(),
            home_changes: played.home_changes(),
            domains: played.domains.iter().map(DomainJson::new).collect(),
            decisions: played.decided.iter().filter_map(DecisionJson::new).collect(),
        }
    }
}

impl DomainJson {
    fn new(domain: &PlayedDomain) -> Self {
        Self {
            name: domain.name.clone(),
            start_ns: domain.start_ns,
            done_ns: domain.done_ns,
            nodes: domain.home.as_ref().map(members),
            cpu_ns: domain.cpu_ns,
            local_ppm: domain.local_ppm,
            moved_bytes: domain.moved_bytes,
            home_changes: domain.home_changes,
        }
    }
}

impl DecisionJson {
    /// None for a step that changes no domain.
    fn new(decided: &Decided) -> Option<Self> {
        Some(Self {
            at_ns: decided.at_ns,
            domain: decided.step.action.part()?.domain().to_owned(),
            text: decided.step.action.to_string(),
            because: decided.step.reason.to_string(),
        })
    }
}

fn ppm(factor: f64) -> u64 {
    (factor * 1e6).round() as u64
}

/// The output as text.
pub(crate) fn text(report: &Report) -> String {
    let mut text = format!("{} on {}\n", report.scenario, report.source);
    if !report.description.is_empty() {
        text += &format!("{}\n", report.description);
    }
    text.push('\n');
    text += &listing(
        &[
            ("", Side::Left),
            ("all done", Side::Right),
            ("vs stock", Side::Right),
            ("of bound", Side::Right),
            ("mean domain", Side::Right),
            ("local", Side::Right),
            ("moved", Side::Right),
            ("rehomed", Side::Right),
        ],
        &rows(report),
    );
    for contender in report.contenders.iter().filter(|contender| !contender.is_done) {
        let done = contender.work_ns as f64 / report.work_ns.max(1) as f64;
        text += &format!(
            "\n{}: {:.0} % of the work was done at the time limit\n",
            contender.contender,
            (done * 100.0).floor()
        );
    }
    for contender in &report.contenders {
        text += &decisions(contender);
    }
    text
}

fn rows(report: &Report) -> Vec<Vec<String>> {
    let mut rows: Vec<Vec<String>> = report.contenders.iter().map(row).collect();
    let mut bound = vec!["bound: all local".to_owned(), milliseconds(report.bound_ns)];
    bound.resize(8, String::new());
    rows.push(bound);
    rows
}

fn row(contender: &ContenderJson) -> Vec<String> {
    let factor =
        |ppm: Option<u64>| ppm.map_or_else(|| "-".into(), |ppm| format!("{:.2}", ppm as f64 / 1e6));
    let told = |ns: Option<u64>| ns.map_or_else(|| "-".into(), milliseconds);
    vec![
        contender.contender.to_owned(),
        told(contender.is_done.then_some(contender.elapsed_ns)),
        contender
            .against_stock_ppm
            .map_or_else(|| "-".into(), |_| format!("{} x", factor(contender.against_stock_ppm))),
        factor(contender.of_bound_ppm),
        told(contender.mean_domain_ns),
        contender.local_ppm.map_or_else(|| "-".into(), |ppm| format!("{:.1} %", ppm as f64 / 1e4)),
        size(contender.moved_bytes),
        contender.home_changes.to_string(),
    ]
}

/// The changed homes, with their reasons.
fn decisions(contender: &ContenderJson) -> String {
    let all = &contender.decisions;
    if all.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{} changed {}:\n", contender.contender, count(all.len(), "home"));
    for DecisionJson { at_ns, domain, text: what, because } in all.iter().take(TOLD) {
        let line = format!("{} {domain}: {what}; {because}", milliseconds(*at_ns));
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        text += &format!("  {}\n", wrapped(&words, 6));
    }
    if all.len() > TOLD {
        text += &format!("  and {} more (--format json has all)\n", all.len() - TOLD);
    }
    text
}

fn milliseconds(ns: u64) -> String {
    match ns {
        0..10_000_000_000 => format!("{:.0} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use nearside_policy::{
        Action, Affinity, Home, MemoryPolicy, MilliVcpus, Origin, Reason, SlowDown, Step,
    };
    use nearside_simulator::{Contender, DomainPlan, Work};
    use nearside_topology::NodeSet;

    fn home(domain: &str, node: u32) -> Step {
        let home = Home {
            nodes: NodeSet::from([NodeId(node)]),
            origin: Origin::Auto,
            affinity: Affinity::Soft,
            policy: MemoryPolicy::PreferredMany,
        };
        let reason = Reason::FirstHome {
            demand: MilliVcpus(1990),
            slow_down: SlowDown(1_250_000),
            bytes_to_move: 32 << 20,
        };
        Step { action: Action::SetHome { part: domain.into(), home }, reason }
    }

    fn played(contender: Contender, elapsed_ms: u64, local_ppm: u64, changes: u32) -> Played {
        let domain = PlayedDomain {
            name: "db".into(),
            start_ns: 100_000_000,
            done_ns: Some(elapsed_ms * 1_000_000),
            home: (contender == Contender::Nearside).then(|| NodeSet::from([NodeId(1)])),
            cpu_ns: 1_900_000_000,
            local_ppm: Some(local_ppm),
            moved_bytes: u64::from(changes) << 25,
            home_changes: changes.into(),
        };
        Played {
            contender,
            is_done: true,
            elapsed_ns: elapsed_ms * 1_000_000,
            work_ns: 1_600_000_000,
            cpu_ns: 1_900_000_000,
            local_ppm: Some(local_ppm),
            domains: vec![domain],
            decided: (0..changes)
                .map(|at| Decided { at_ns: 500_000_000, step: home("db", at % 4) })
                .collect(),
        }
    }

    pub(crate) fn report() -> Report {
        let work = Work {
            rounds: 1,
            compute_ns: 1,
            lines: 1,
            streamed_lines: 0,
            pause_ns: 0,
            pause_rounds: 1,
        };
        let plan = DomainPlan {
            name: "db".into(),
            start_ms: 100,
            threads: 2,
            later_threads: 0,
            later_after_rounds: 0,
            later_rounds: 1,
            thread_memory_bytes: 16 << 20,
            work,
        };
        let scenario = Scenario {
            source: "scenarios/db.toml".into(),
            description: "one database".into(),
            interval_ms: 100,
            domains: vec![plan],
        };
        let cut_off = Played {
            is_done: false,
            work_ns: 1_000_000_000,
            ..played(Contender::Pins, 2000, 1_000_000, 0)
        };
        let simulation = Simulation {
            latencies_are_known: true,
            bound_ns: 1_100_000_000,
            work_ns: 1_600_000_000,
            played: vec![
                played(Contender::Stock, 1700, 632_600, 0),
                cut_off,
                played(Contender::Nearside, 1210, 998_000, 12),
            ],
        };
        let options =
            Options { contenders: Contender::ALL.to_vec(), max_seconds: 2, seed: 1, hmat: false };
        Report::new("lab/machines/pairs.toml", &scenario, &options, &simulation)
    }

    #[test]
    fn text_has_a_row_for_each_contender_and_the_bound() {
        insta::assert_snapshot!("simulate", text(&report()));
    }
}
