//! `nearside show`: all facts about one domain.

use super::{
    domain::{CONFINED, affinity, dash, local, origin},
    guest_cells::{self, GuestCells},
    json,
    table::{
        Side::{self, Left, Right},
        listing,
    },
    topology_text::on_or_off,
    units::{count, short, size},
};
use crate::domains::Domain;
use crate::printable::printable;
use nearside_linux::{
    cgroup::{Cgroup, Tree},
    store::{Mover, Part, Record},
    usage::{Account, Mapped},
};
use nearside_policy::{ByNode, CpuReason, PageSize, total};
use nearside_topology::{MemoryTier, MemoryTiers, Node, NodeId, NodeSet, Topology};
use serde::Serialize;
use std::path::Path;

/// The output of `nearside show`.
#[derive(Debug, Serialize)]
pub(crate) struct Show {
    /// Its facts in `list` and `stat`.
    #[serde(flatten)]
    pub(crate) domain: Domain,
    /// Its record; none if Nearside did not start it.
    #[serde(serialize_with = "json::record")]
    pub(crate) record: Option<Record>,
    /// Seconds since its start, if that is recorded.
    pub(crate) running_s: Option<u64>,
    /// The limits of its cgroup.
    pub(crate) allowed: Allowed,
    /// The memory that its processes map, by memory policy.
    pub(crate) mapped: Mapped,
    /// The kills in it for lack of memory, in words; none if there are none.
    #[serde(skip)]
    pub(crate) killed: Option<String>,
    /// Its own memory by memory tier, the fastest first; empty if the tiers are unknown.
    pub(crate) memory_tiers: Vec<OnTier>,
    /// Whether the kernel moves cold pages to the next lower tier; none if unknown.
    pub(crate) demotion_enabled: Option<bool>,
    /// Its cells; none if it is no virtual machine of libvirt.
    pub(crate) guest: Option<GuestCells>,
    /// The time over which CPU use was sampled, in seconds.
    pub(crate) interval_s: f64,
}

/// Own memory of a domain on a memory tier.
#[derive(Debug, Serialize)]
pub(crate) struct OnTier {
    tier: u32,
    #[serde(serialize_with = "json::set")]
    nodes: NodeSet,
    own_bytes: u64,
}

impl OnTier {
    /// Own memory by the tiers of a machine.
    pub(crate) fn all(tiers: &MemoryTiers, own_bytes: &ByNode) -> Vec<Self> {
        let on = |tier: &MemoryTier| {
            let its = own_bytes.iter().filter(|(node, _)| tier.nodes.contains(**node));
            let own_bytes = its.map(|(_, bytes)| bytes).sum();
            Self { tier: tier.number, nodes: tier.nodes.clone(), own_bytes }
        };
        tiers.tiers.iter().map(on).collect()
    }
}

/// `448M on tier 4 (node 1), 50M on tier 22 (node 2); demotion on`, if memory is on several tiers.
fn tiers(show: &Show) -> Option<String> {
    let used: Vec<_> = show.memory_tiers.iter().filter(|tier| tier.own_bytes > 0).collect();
    let on = |tier: &&OnTier| {
        format!("{} on tier {} ({})", short(tier.own_bytes), tier.tier, tier.nodes.named())
    };
    let demotion = show.demotion_enabled.map_or("unknown", on_or_off);
    let listed = used.iter().map(on).collect::<Vec<_>>().join(", ");
    (used.len() > 1).then(|| format!("{listed}; demotion {demotion}"))
}

/// The limits of a cgroup, in the kernel's words; none without the controller.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Allowed {
    /// `cpuset.cpus`; empty: as the parent.
    pub(crate) cpus: Option<String>,
    /// `cpuset.cpus.effective`, or that of the nearest group above that has it.
    pub(crate) cpus_effective: Option<String>,
    /// `cpuset.mems`
    pub(crate) mems: Option<String>,
    /// `cpuset.mems.effective`, or that of the nearest group above that has it.
    pub(crate) mems_effective: Option<String>,
    /// `cpu.max`: microseconds of CPU time in each period of microseconds, or `max`.
    pub(crate) cpu_max: Option<String>,
    /// `memory.max`: bytes, or `max`.
    pub(crate) memory_max: Option<String>,
}

impl Allowed {
    /// Reads the limits of a cgroup. In a group without the controller, the effective values are
    /// those of the nearest group above that has it.
    pub(crate) fn read(tree: &Tree, group: &Cgroup) -> Self {
        let read = |group: &Cgroup, file: &str| {
            group.read(file).ok().flatten().map(|text| text.trim().to_owned())
        };
        let own = |file| read(group, file);
        let above = |file| {
            let mut paths = Path::new(group.path()).ancestors();
            paths.find_map(|path| read(&tree.group(path.to_str()?).ok()?, file))
        };
        Self {
            cpus: own("cpuset.cpus"),
            cpus_effective: above("cpuset.cpus.effective"),
            mems: own("cpuset.mems"),
            mems_effective: above("cpuset.mems.effective"),
            cpu_max: own("cpu.max"),
            memory_max: own("memory.max"),
        }
    }

    /// Whether the group has nodes of its own for memory.
    pub(crate) fn confines(&self) -> bool {
        self.mems.as_ref().is_some_and(|nodes| !nodes.is_empty())
    }

    /// The nodes that its cgroup confines memory to; none if that leaves out no node with memory.
    pub(crate) fn confined_to(&self, topology: &Topology) -> Option<NodeSet> {
        let nodes: NodeSet = self.mems_effective.as_ref()?.parse().ok()?;
        let is_outside = |node: &Node| node.memory_bytes > 0 && !nodes.contains(node.id);
        topology.nodes.iter().any(is_outside).then_some(nodes)
    }

    /// `0-3 (cpuset.cpus 0-3)`
    fn cpus_in_words(&self) -> String {
        effective(self.cpus_effective.as_deref(), self.cpus.as_deref(), "cpuset.cpus")
    }

    fn mems_in_words(&self) -> String {
        effective(self.mems_effective.as_deref(), self.mems.as_deref(), "cpuset.mems")
    }
}

fn effective(effective: Option<&str>, own: Option<&str>, file: &str) -> String {
    match (effective, own) {
        (None, _) => "not limited by cgroup (the tree has no cpuset controller)".into(),
        (Some(effective), Some("")) => format!("{effective} (as its parent)"),
        (Some(effective), None) => format!("{effective} (no cpuset of its own)"),
        (Some(effective), Some(own)) => format!("{effective} ({file} {own})"),
    }
}

/// Appends a line for each fact.
#[derive(Default)]
struct Facts(String);

impl Facts {
    fn add(&mut self, name: &str, value: impl AsRef<str>) {
        self.0 += &format!("  {name:<12} {}\n", value.as_ref());
    }
}

/// The whole report.
pub(crate) fn text(show: &Show) -> String {
    let domain = &show.domain;
    let mut facts = Facts::default();
    facts.add("cgroup", printable(&domain.cgroup));
    match &show.record {
        Some(record) => recorded(&mut facts, show, record),
        None => facts.add("home", "none: Nearside did not start it"),
    }
    facts.add("CPUs", show.allowed.cpus_in_words());
    facts.add("memory nodes", show.allowed.mems_in_words());
    if show.allowed.confines() {
        facts.add("", CONFINED);
    }
    facts.add("limits", limits(&show.allowed));
    let threads = count(total(&domain.usage.cpu.threads) as usize, "thread");
    let was_found = show.record.as_ref().is_some_and(|record| record.found_by.is_some());
    let begun = if was_found { "found" } else { "started" };
    let since = show
        .running_s
        .map(|seconds| format!(", {begun} {} ago", duration(seconds)))
        .unwrap_or_default();
    facts.add("running", format!("{}, {threads}{since}", count_processes(domain.usage.processes)));
    let share = match (domain.local_share, domain.usage.cpu.time_ns.values().all(|&time| time == 0))
    {
        (Some(share), true) => {
            format!("{} (no thread ran: estimated from their last CPUs)", local(Some(share)))
        }
        (share, _) => local(share),
    };
    facts.add("local share", share);
    if let Some(debt) = domain.debt_bytes {
        facts.add("debt", format!("{} off the home", short(debt)));
    }
    if let Some(tiers) = tiers(show) {
        facts.add("tiers", tiers);
    }
    if let Some(killed) = &show.killed {
        facts.add("OOM kills", killed);
    }
    if let Some(status) = &domain.status {
        facts.add("status", printable(&status.text));
    }
    let cells = show.guest.as_ref().map(guest_cells::text).unwrap_or_default();
    let (name, nodes, policies) = (printable(&domain.name), nodes(show), policies(&show.mapped));
    format!("{name}\n{}{nodes}{cells}{policies}", facts.0)
}

fn count_processes(processes: usize) -> String {
    if processes == 1 { "1 process".into() } else { format!("{processes} processes") }
}

/// The home of a part, and what keeps it there.
fn homed(facts: &mut Facts, show: &Show, record: &Record, part: &Part) {
    let home = &part.home;
    let label = part.cell.map_or("home".into(), |cell| format!("home, cell {cell}"));
    facts.add(
        &label,
        format!(
            "{} ({}), policy {}, {} affinity",
            home.nodes.named(),
            origin(home.origin),
            home.policy,
            affinity(&show.domain).trim_end_matches(['*', '!'])
        ),
    );
    match part.cpus.as_ref().map(|binding| (binding.on_behalf, binding.cpus.named())) {
        None => {}
        Some((CpuReason::Fallback, cpus)) => facts.add(
            "",
            format!("fallback pinned to {cpus} until a scheduler with soft affinity runs"),
        ),
        Some((CpuReason::Operator, cpus)) => {
            facts.add("", format!("bound to {cpus} by an operator"));
        }
    }
    if let (Some(_), Some(effective)) = (&part.cpus, &show.domain.cpus_effective) {
        facts.add(
            "",
            format!(
                "the binding is not in force: {} are effective, because all CPUs of the home are \
                 offline or in another cgroup's partition",
                effective.named()
            ),
        );
    }
    match (&part.moving_to, &part.mover) {
        (None, _) => {}
        (Some(nodes), Some(mover)) => {
            facts.add("memory", format!("moves to {} ({})", nodes.named(), moved_by(mover)));
        }
        (Some(nodes), None) => facts.add(
            "moving to",
            format!(
                "{}, interrupted: `nearside set {} --nodes {nodes} --move-memory` continues",
                nodes.named(),
                record.name
            ),
        ),
    }
}

/// The process that moves memory, and its rate.
pub(super) fn moved_by(mover: &Mover) -> String {
    let rate = mover.rate_bytes_per_s;
    let rate = rate.map_or("without a limit".into(), |it| format!("at most {}/s", size(it)));
    format!("nearside set, process {}, {rate}", mover.pid)
}

fn recorded(facts: &mut Facts, show: &Show, record: &Record) {
    match &record.found_by {
        Some(pattern) => facts.add("found by", format!("pattern {}", printable(pattern))),
        None => facts.add("command", command(&record.command)),
    }
    for part in record.parts() {
        homed(facts, show, record, part);
    }
    let Some(claim) = &record.part().claim else {
        return facts.add("claim", "none: only its resident memory counts");
    };
    let pages = match claim.page_size {
        PageSize::Base => String::new(),
        PageSize::Huge(bytes) => format!(" in pages of {}", short(bytes)),
    };
    facts.add(
        "claim",
        format!(
            "{}{pages}, {}; not resident yet: {}",
            short(claim.total_bytes()),
            count(total(&claim.vcpus) as usize, "vCPU"),
            short(total(&show.domain.outstanding_bytes))
        ),
    );
}

fn limits(allowed: &Allowed) -> String {
    let cpu = match allowed
        .cpu_max
        .as_deref()
        .map(|text| text.split_once(' ').unwrap_or((text, "100000")))
    {
        None | Some(("max", _)) => None,
        Some((quota, period)) => {
            quota.parse::<f64>().ok().zip(period.parse::<f64>().ok().filter(|&us| us > 0.0))
        }
    };
    let cpu = cpu.map(|(quota_us, period_us)| {
        format!("{} CPUs", (quota_us / period_us * 100.0).round() / 100.0)
    });
    let memory = allowed.memory_max.as_deref().and_then(|text| text.parse::<u64>().ok());
    let words: Vec<String> =
        cpu.into_iter().chain(memory.map(|bytes| format!("{} of memory", short(bytes)))).collect();
    if words.is_empty() { "none".into() } else { words.join(", ") }
}

/// A line for each node with a share in the domain.
fn nodes(show: &Show) -> String {
    let (domain, mapped) = (&show.domain, &show.mapped.memory);
    let cpu = &domain.usage.cpu;
    let empty = ByNode::new();
    let claim = domain.claim.as_ref();
    let (claimed_bytes, claimed_vcpus) =
        claim.map_or((&empty, &empty), |claim| (&claim.bytes, &claim.vcpus));
    // Mapped memory is exact. If it may not be read, the memory controller's figures replace it.
    let hidden = show.mapped.processes == 0 && domain.usage.processes > 0;
    let (memory, source) = match (hidden, domain.usage.memory_seen) {
        (true, Account::Charged) => (&domain.usage.memory, "as charged (memory.numa_stat)"),
        (true, _) => (mapped, "unknown"),
        (false, _) => (mapped, "as mapped (numa_maps)"),
    };
    let unknown = hidden && domain.usage.memory_seen != Account::Charged;
    let (huge, kernel) = (memory.all_huge(), &domain.usage.memory.kernel);
    let kinds = [&memory.anonymous, &memory.shared, &huge, &memory.file, kernel];
    let all = kinds.into_iter().chain([&cpu.threads, &cpu.time_ns, claimed_bytes, claimed_vcpus]);
    let used = all.flatten().filter(|(_, amount)| **amount > 0).map(|(&node, _)| node);
    let home = domain.home.as_ref().map(|home| home.nodes.clone()).unwrap_or_default();
    let listed: NodeSet = used.chain(home.iter()).collect();

    let on = |by_node: &ByNode, node: NodeId| by_node.get(&node).copied().unwrap_or(0);
    let all_time = total(&cpu.time_ns);
    let row = |node: NodeId| {
        let share = super::units::percent(on(&cpu.time_ns, node), all_time);
        let mut row = vec![
            format!("{node}{}", if home.contains(node) { " home" } else { "" }),
            format!("{}/{}", on(&cpu.threads, node), on(claimed_vcpus, node)),
            dash(share.map(|share| format!("{share} %"))),
            short(on(claimed_bytes, node)),
        ];
        row.extend(
            kinds.iter().map(|kind| if unknown { "?".into() } else { short(on(kind, node)) }),
        );
        row
    };
    let columns: [(&str, Side); 9] = [
        ("node", Left),
        ("vCPUs", Right),
        ("CPU time", Right),
        ("claim", Right),
        ("anonymous", Right),
        ("shared", Right),
        ("huge", Right),
        ("file", Right),
        ("kernel", Right),
    ];
    let unseen = match show.mapped.hidden_processes {
        0 => String::new(),
        n => format!("; the mappings of {} are unreadable", count_processes(n)),
    };
    format!(
        "\nBy node (vCPUs: threads now/claimed; CPU time: of {} s)\n{}  memory {source}{unseen}\n",
        show.interval_s,
        listing(&columns, &listed.iter().map(row).collect::<Vec<_>>())
    )
}

fn policies(mapped: &Mapped) -> String {
    let row = |(policy, bytes): (&String, &ByNode)| {
        vec![policy.clone(), short(total(bytes)), super::domain::by_node_bytes(bytes)]
    };
    let rows: Vec<_> = mapped.policies.iter().map(row).collect();
    let columns = [("memory policy", Left), ("memory", Right), ("by node", Left)];
    if rows.is_empty() { String::new() } else { format!("\n{}", listing(&columns, &rows)) }
}

/// `3 min`, `2 h 5 min`
pub(crate) fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// A command in the syntax of a shell, on one line; cut if it is long.
pub(crate) fn command(words: &[String]) -> String {
    const MAX_CHARS: usize = 60;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%^".contains(c);
    let quoted = |word: &String| match word {
        word if !word.is_empty() && word.chars().all(plain) => word.clone(),
        // Arguments may contain control characters, which a terminal would obey.
        word if word.chars().any(char::is_control) => {
            let escaped = |c: char| {
                if c.is_control() || c == '\'' { c.escape_default().to_string() } else { c.into() }
            };
            format!("$'{}'", word.replace('\\', "\\\\").chars().map(escaped).collect::<String>())
        }
        word => format!("'{}'", word.replace('\'', "'\\''")),
    };
    let line = words.iter().map(quoted).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_CHARS) {
        Some((cut, _)) => format!("{}...", &line[..cut]),
        None => line,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::report::answers::StatusAnswer;
    use crate::report::domain::examples::{self, MIB, nodes};
    use crate::report::json::MoverJson;
    use nearside_linux::{memory::MemoryByKind, usage::Usage};
    use nearside_topology::CpuId;

    fn allowed() -> Allowed {
        let some = |text: &str| Some(text.to_owned());
        Allowed {
            cpus: some("2-3"),
            cpus_effective: some("2-3"),
            mems: some(""),
            mems_effective: some("0-3"),
            cpu_max: some("150000 100000"),
            memory_max: some("1073741824"),
        }
    }

    fn status() -> StatusAnswer {
        let told = examples::domains_told_of();
        told.into_iter().filter_map(|domain| domain.status).next_back().unwrap()
    }

    pub(crate) fn show() -> Show {
        let mut record = examples::record();
        record.part_mut().moving_to = Some(nodes(&[1]));
        let usage = examples::usage(&[1, 2], &[100, 900], &[20, 478], &[0, 3]);
        let memory =
            MemoryByKind { file: ByNode::from([(NodeId(0), 9 * MIB)]), ..usage.memory.clone() };
        let policies = [("bind:1".to_owned(), usage.memory.anonymous.clone())].into();
        Show {
            domain: Domain {
                status: Some(status()),
                ..Domain::new(&record.cgroup, Some(&record), usage)
            },
            record: Some(record),
            running_s: Some(7530),
            allowed: allowed(),
            mapped: Mapped { memory, policies, processes: 1, hidden_processes: 0 },
            killed: None,
            memory_tiers: Vec::new(),
            demotion_enabled: None,
            guest: None,
            interval_s: 0.5,
        }
    }

    #[test]
    fn started_domain_has_all_facts() {
        insta::assert_snapshot!("show", text(&show()));
    }

    #[test]
    fn confined_memory_has_a_consequence_for_other_domains() {
        let mut show = show();
        assert!(!text(&show).contains(CONFINED));
        show.allowed.mems = Some("1".into());
        let line = format!("  memory nodes 0-3 (cpuset.mems 1)\n               {CONFINED}\n");
        assert!(text(&show).contains(&line));
    }

    #[test]
    fn a_binding_that_is_not_in_force_is_told() {
        let mut show = show();
        show.domain.cpus_effective = Some([CpuId(0), CpuId(1)].into());
        let line = "the binding is not in force: CPUs 0-1 are effective, because";
        assert!(text(&show).contains(line));
    }

    #[test]
    fn memory_on_several_tiers_is_told() {
        let mut show = show();
        let tier = |number, list: &[u32]| MemoryTier { number, nodes: nodes(list) };
        let mut known = MemoryTiers { tiers: vec![tier(4, &[0, 1])], demotion_enabled: Some(true) };
        let own = show.domain.own_bytes.clone();
        show.memory_tiers = OnTier::all(&known, &own);
        assert_eq!(tiers(&show), None);
        known.tiers = vec![tier(4, &[1]), tier(22, &[0])];
        show.memory_tiers = OnTier::all(&known, &own);
        show.demotion_enabled = known.demotion_enabled;
        let line =
            "\n  tiers        478M on tier 4 (node 1), 20M on tier 22 (node 0); demotion on\n";
        assert!(text(&show).contains(line), "{}", text(&show));
    }

    #[test]
    fn kills_for_lack_of_memory_are_told() {
        let show = Show { killed: Some("1 process was killed".into()), ..show() };
        assert!(text(&show).contains("\n  OOM kills    1 process was killed\n"));
    }

    #[test]
    fn memory_is_confined_if_a_node_with_memory_is_left_out() {
        let node = |id, memory_bytes| Node { id: NodeId(id), memory_bytes, ..Node::default() };
        let topology = |second| {
            let nodes = vec![node(0, 1), node(1, second)];
            Topology { nodes, ..Topology::default() }
        };
        let allowed = Allowed { mems_effective: Some("0".into()), ..Allowed::default() };
        assert_eq!(allowed.confined_to(&topology(1)), Some(nodes(&[0])));
        assert_eq!(allowed.confined_to(&topology(0)), None);
        assert_eq!(Allowed::default().confined_to(&topology(1)), None);
    }

    #[test]
    fn a_move_names_its_process_and_its_rate() {
        let mut show = show();
        let line = |rate_bytes_per_s: Option<u64>, show: &mut Show| {
            let mover = Mover { pid: 731, start_time_ticks: 5, rate_bytes_per_s };
            show.record.as_mut().unwrap().part_mut().mover = Some(mover);
            let text = text(show);
            assert!(!text.contains("interrupted"), "{text}");
            text.lines().find(|line| line.contains("moves to")).unwrap().trim().to_owned()
        };
        assert_eq!(
            line(Some(4 * MIB), &mut show).split_whitespace().collect::<Vec<_>>().join(" "),
            "memory moves to node 1 (nearside set, process 731, at most 4 MiB/s)"
        );
        assert!(line(None, &mut show).ends_with("process 731, without a limit)"));
        let json = serde_json::to_value(MoverJson::of(show.record.as_ref().unwrap())).unwrap();
        let expected = serde_json::json!({"pid": 731, "to_nodes": [1], "rate_bytes_per_s": null});
        assert_eq!(json, expected);
    }

    #[test]
    fn unreadable_cgroup_has_the_facts_that_can_be_read() {
        let usage = Usage {
            processes: 2,
            memory_seen: Account::Hidden,
            ..examples::usage(&[3], &[0], &[], &[])
        };
        let show = Show {
            domain: Domain::new("/system.slice/cron.service", None, usage),
            record: None,
            running_s: None,
            allowed: Allowed::default(),
            mapped: Mapped { hidden_processes: 2, ..Mapped::default() },
            killed: None,
            memory_tiers: Vec::new(),
            demotion_enabled: None,
            guest: None,
            interval_s: 0.5,
        };
        insta::assert_snapshot!("show_other", text(&show));
    }

    #[test]
    fn found_domain_has_a_home_and_no_claim() {
        let mut show = show();
        let path = "/machine.slice/vm.scope".to_owned();
        let mut part = examples::record().part().clone();
        (part.claim, part.decision, part.cpus) = (None, None, None);
        let record = Record {
            name: path.clone(),
            cgroup: path.clone(),
            found_by: Some("machine.slice/*".into()),
            command: Vec::new(),
            parts: part.into(),
            ..examples::record()
        };
        show.domain = Domain::new(&path, Some(&record), show.domain.usage);
        show.record = Some(record);
        show.guest = Some(guest_cells::tests::cells());
        insta::assert_snapshot!("show_found", text(&show));
    }

    #[test]
    fn group_without_the_controller_has_the_limits_of_those_above() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("slice/unit")).unwrap();
        std::fs::write(root.join("cgroup.controllers"), "cpuset").unwrap();
        std::fs::write(root.join("cpuset.cpus.effective"), "0-7\n").unwrap();
        std::fs::write(root.join("slice/cpuset.cpus.effective"), "2-3\n").unwrap();
        std::fs::write(root.join("cpuset.mems.effective"), "0-1\n").unwrap();
        let tree = Tree::at(root).unwrap();
        let allowed = Allowed::read(&tree, &tree.group("/slice/unit").unwrap());
        assert_eq!(
            (allowed.cpus_effective.as_deref(), allowed.cpus.as_deref()),
            (Some("2-3"), None)
        );
        assert_eq!(allowed.mems_effective.as_deref(), Some("0-1"));
    }

    #[test]
    fn json_has_the_record_and_the_figures() {
        let json = serde_json::to_value(show()).unwrap();
        assert_eq!(json["name"], "db");
        assert_eq!(json["record"]["decision"]["request"]["vcpus"], 2);
        assert_eq!(json["mapped"]["policies"]["bind:1"]["0"], 20 * MIB);
    }

    #[test]
    fn limits_are_shown_as_requested() {
        assert_eq!(limits(&allowed()), "1.5 CPUs, 1G of memory");
        let none = Allowed {
            cpu_max: Some("max 100000".into()),
            memory_max: Some("max".into()),
            ..allowed()
        };
        assert_eq!(limits(&none), "none");
        assert_eq!(limits(&Allowed { cpu_max: Some("5 0".into()), ..Allowed::default() }), "none");
    }

    #[test]
    fn commands_are_quoted_and_durations_have_two_units() {
        assert_eq!(
            command(&["a b".into(), "it's".into(), "--x=1".into(), String::new()]),
            "'a b' 'it'\\''s' --x=1 ''"
        );
        assert_eq!(command(&["a\n\x1b[2J'".into()]), "$'a\\n\\u{1b}[2J\\''");
        assert_eq!(command(&["x".repeat(100)]), format!("{}...", "x".repeat(60)));
        assert_eq!([5, 65, 7530, 100_000].map(duration), ["5 s", "1 min", "2 h 5 min", "1 d 3 h"]);
    }
}
