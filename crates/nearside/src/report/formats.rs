//! Tests that `docs/formats.md` describes every printed key, and no other.

use super::{
    answers::{ControlAnswer, StatusAnswer},
    cell_stat::CellStat,
    control::{ChangedJson, ControlJson, DomainJson, WhyJson},
    doctor::{Doctor, tests::host},
    domain::examples,
    guest_cells::tests::cells as guest_cells,
    json::{MoverJson, Placed, Why},
    list::List,
    place_cells_json::PlacedCells,
    place_cells_text::tests::example as cells,
    plan::PlanJson,
    reserved::{self, Reserved},
    set::Report,
    show::{Allowed, Show, tests::show},
    simulate::tests::report,
    stat::tests::stat,
    text::TextJson,
    topology_json::Machine,
    why::Unplaced,
};
use crate::commands::replicate::wide::Seen;
use crate::daemon::{
    access::Caller,
    audit::Entry,
    snapshot::{Change, Snapshot, examples as seen},
};
use crate::vm::{request::request, shape::intent};
use nearside_libvirt::{Domain, lint, render};
use nearside_linux::store::Mover;
use nearside_policy::{
    Action, Alone, CpuReason, PageMove, PartHistory, PartId, Plan, Reason, SlowDown, Step,
    Transaction,
};
use nearside_topology::{
    Access, Cpu, CpuId, CpuSet, Device, DeviceKind, HugePagePool, MemoryRange, Node, NodeId,
    Performance, ReservedHugePages, Topology, Zone, machine_file,
};
use serde_json::{Value, to_value};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Keys by the object that has them; the object of a whole section has the name "".
type Tables = BTreeMap<String, BTreeSet<String>>;

/// The text between backticks.
fn quoted(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The tables of one section. A table belongs to the objects that the line before it names.
fn section(title: &str) -> Tables {
    let document = include_str!("../../../../docs/formats.md");
    let mut sections = document.split("\n## ");
    let section = sections
        .find(|section| section.starts_with(title))
        .unwrap_or_else(|| panic!("no section {title}"));
    let (mut tables, mut objects) = (Tables::new(), vec![String::new()]);
    for line in section.lines().skip(1) {
        if let Some(row) = line.strip_prefix("| `") {
            let (keys, _) = row.split_once(" |").unwrap();
            for object in &objects {
                tables.entry(object.clone()).or_default().extend(quoted(&format!("`{keys}")));
            }
        } else if line.ends_with(':') && (line.starts_with("A ") || line.starts_with("An ")) {
            let names = line.split(['(', ';']).next().unwrap_or_default();
            objects = quoted(names).collect();
        }
    }
    tables
}

/// The keys of every object in `value`, by the key that holds the object. Objects keyed by nodes,
/// reasons or kernel names have no keys of their own.
fn keys(value: &Value, object: &str, found: &mut Tables) {
    const NOT_KEYS: [&str; 3] = ["stayed_bytes", "policies", "facts"];
    match value {
        Value::Object(members) if members.keys().any(|key| key.parse::<u32>().is_err()) => {
            found.entry(object.to_owned()).or_default().extend(members.keys().cloned());
            for (key, value) in members.iter().filter(|(key, _)| !NOT_KEYS.contains(&key.as_str()))
            {
                keys(value, key, found);
            }
        }
        Value::Array(elements) => elements.iter().for_each(|element| keys(element, object, found)),
        _ => {}
    }
}

/// Compares the output of a command with the section `title`. Objects without a table there have
/// one in the sections `shared`; the whole output also has the keys of their object `whole`.
fn check(title: &str, shared: &[&str], whole: &str, printed: &Value) {
    let (mut documented, shared) = (section(title), shared.iter().map(|title| section(title)));
    let own: Vec<String> = documented.keys().cloned().collect();
    for (object, keys) in shared.flatten().filter(|(object, _)| !object.is_empty()) {
        if object == whole {
            documented.entry(String::new()).or_default().extend(keys.clone());
        }
        documented.entry(object).or_insert(keys);
    }
    let mut found = Tables::new();
    keys(printed, "", &mut found);
    for (object, keys) in &found {
        assert_eq!(
            Some(keys),
            documented.get(object),
            "{title}: the keys of {object:?}, printed and documented"
        );
    }
    for object in &own {
        assert!(found.contains_key(object), "{title}: {object:?} is documented and not printed");
    }
}

#[test]
fn topology() {
    let node = Node {
        zones: vec![Zone::default()],
        huge_pages: vec![HugePagePool {
            page_bytes: 2 << 20,
            total_pages: 1,
            free_pages: 1,
            surplus_pages: 0,
        }],
        ranges: vec![MemoryRange {
            start: 0,
            length_bytes: 1,
            hot_pluggable: false,
            non_volatile: false,
        }],
        ..Node::default()
    };
    let performance = Performance {
        access: Access::Access0,
        initiator: NodeId(0),
        target: NodeId(0),
        read_latency_ns: None,
        write_latency_ns: None,
        read_bandwidth_mb_s: None,
        write_bandwidth_mb_s: None,
    };
    let device =
        Device { kind: DeviceKind::Pci, name: "0000:00:00.0".into(), node: None, class: None };
    let machine = Topology {
        nodes: vec![node],
        cpus: vec![Cpu::new(CpuId(0), NodeId(0))],
        performance: vec![performance],
        devices: vec![device],
        reserved_huge_pages: vec![ReservedHugePages { page_bytes: 2 << 20, pages: 1 }],
        ..Topology::default()
    };
    let machines = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lab/machines");
    let read = |name| machine_file::read(&Path::new(machines).join(name)).unwrap().costs;
    // Each has what the other lacks.
    let mut costs = read("xeon-2s.toml");
    costs.remote_cache = read("numa-q-small.toml").remote_cache;
    let printed = to_value(Machine::with_costs(&machine, Some(&costs))).unwrap();
    check("`nearside topology ", &[], "", &printed);
}

#[test]
fn place_and_why() {
    let record = examples::record();
    let decision = record.part().decision.as_ref().unwrap();
    let printed = to_value(Placed::new("/", decision)).unwrap();
    check("`nearside place ", &["Decisions"], "decision", &printed);

    let (mut cells, _) = cells();
    let spill = cells.cells.iter_mut().find_map(|cell| cell.spill.as_mut()).unwrap();
    spill.alone = Some(Alone { node: NodeId(0), slow_down: SlowDown::NONE });
    let printed = to_value(PlacedCells::new("/", &cells)).unwrap();
    check("`nearside place --cell", &["Decisions"], "", &printed);

    let mut printed = to_value(Why::new(&record, decision)).unwrap();
    let path = "/machine.slice/vm.scope".to_owned();
    let unplaced = Unplaced {
        name: path.clone(),
        cgroup: path,
        home: None,
        found_by: None,
        allowed: Allowed::default(),
        policies: BTreeMap::new(),
    };
    // One section describes both forms.
    printed
        .as_object_mut()
        .unwrap()
        .extend(to_value(unplaced).unwrap().as_object().unwrap().clone());
    let status = || StatusAnswer::of(&PartHistory::default());
    let (status_of_cells, steps) = ([(0, status())].into(), Vec::new());
    let control = ControlAnswer { status: Some(status()), status_of_cells, steps };
    printed
        .as_object_mut()
        .unwrap()
        .extend(to_value(control).unwrap().as_object().unwrap().clone());
    let shared = ["Decisions", "`nearside show ", "API: `GET /domains/NAME`"];
    check("`nearside why ", &shared, "decision", &printed);
}

#[test]
fn list_show_and_stat() {
    let section = "API: `GET /domains/NAME`";
    let mut domains = examples::domains_told_of();
    let mut moved = examples::record();
    moved.part_mut().moving_to = Some(examples::nodes(&[2]));
    moved.part_mut().mover =
        Some(Mover { pid: 731, start_time_ticks: 5, rate_bytes_per_s: Some(4 << 20) });
    domains[0].mover = MoverJson::of(&moved);
    domains[0].cells = vec![CellStat { status: domains[0].status.clone(), ..CellStat::default() }];
    let reservations = reserved::examples::reservations();
    let reservations = Reserved::all(&reservations);
    let printed = to_value(List { domains: &domains, reservations }).unwrap();
    check("`nearside list ", &["Decisions", section], "", &printed);
    let shared = ["`nearside list ", "Decisions", section];
    check("`nearside stat ", &shared, "", &to_value(stat()).unwrap());
    let show = Show { guest: Some(guest_cells()), ..show() };
    check("`nearside show ", &shared, "domains", &to_value(show).unwrap());
}

#[test]
fn set() {
    check("`nearside set DOMAIN --format", &[], "", &to_value(Report::default()).unwrap());

    let (part, nodes) = (PartId::default, || examples::nodes(&[1]));
    let step = |action| Step { action, reason: Reason::MovesNeedBoth };
    let cpus = CpuSet::from([CpuId(2)]);
    let plan = Plan {
        decision: None,
        transaction: Transaction {
            steps: vec![
                step(Action::Claim {
                    part: part(),
                    claim: examples::record().part().claim.clone().unwrap(),
                }),
                step(Action::ConfineMemory { part: part(), nodes: nodes() }),
                step(Action::BindCpus { part: part(), cpus, on_behalf: CpuReason::Fallback }),
            ],
            ..Transaction::default()
        },
        moves: Some(Step {
            action: PageMove { part: part(), nodes: nodes(), rate_bytes_per_s: None, batch: None },
            reason: Reason::MovesNeedBoth,
        }),
        afterwards: None,
        limits: Vec::new(),
    };
    check(
        "`nearside set DOMAIN --dry-run",
        &["Decisions"],
        "",
        &to_value(PlanJson::new("db", &plan)).unwrap(),
    );
}

#[test]
fn simulate() {
    check("`nearside simulate ", &[], "", &to_value(report()).unwrap());
}

#[test]
fn doctor() {
    check("`nearside doctor ", &[], "", &to_value(Doctor::new(host(), &Seen::default())).unwrap());
}

#[test]
fn lint_of_a_domain() {
    let xml = "<domain><vcpu placement='auto' cpuset='0'>1</vcpu></domain>";
    let findings = lint(&Domain::read(xml).unwrap(), None);
    let printed = render::json("vm.xml", &findings).unwrap();
    check("`nearside lint ", &[], "", &serde_json::from_str(&printed).unwrap());
}

#[test]
fn intent_of_a_domain() {
    let xml = "<domain><name>vm</name><vcpu>2</vcpu>
        <numatune><memory nodeset='0'/></numatune><cpu><numa>
        <cell cpus='0' memory='1'/><cell cpus='1' memory='1'/></numa></cpu></domain>";
    let (domain, host) = (Domain::read(xml).unwrap(), Topology::default());
    let printed = intent(&domain, &request(&domain, None, None, &host), &host);
    check("`nearside export ", &[], "", &to_value(printed).unwrap());
}

#[test]
fn api_answers() {
    let snapshot = seen::snapshot();
    let Snapshot { plan, history, .. } = &snapshot;
    let (domain, record) = snapshot.domain("web-frontend").unwrap();
    let section = "API: `GET /domains/NAME`";

    let printed = to_value(DomainJson::new(domain, record, history)).unwrap();
    check(section, &["`nearside list ", "`nearside show ", "Decisions"], "domains", &printed);

    // Keyed by node and by name.
    let mut printed = to_value(TextJson::new(&snapshot.text)).unwrap();
    for file in printed["files"].as_array_mut().unwrap() {
        file["bytes"] = 0.into();
    }
    printed["wide"] = 0.into();
    check("API: `GET /text`", &[], "", &printed);

    // Keyed by name: any domain stands for all.
    let mut printed = to_value(ControlJson::new(plan, history)).unwrap();
    printed["status"] = printed["status"]["web-frontend"].take();
    check("API: `GET /plan`", &[section], "", &printed);

    let unplaced = || Err(format!("{} was placed", domain.name));
    let mut printed =
        to_value(WhyJson::new(domain, record.as_ref(), history, plan, unplaced).unwrap()).unwrap();
    let own = printed.as_object_mut().unwrap();
    let why: BTreeSet<String> = to_value(Why::new(
        record.as_ref().unwrap(),
        record.as_ref().unwrap().part().decision.as_ref().unwrap(),
    ))
    .unwrap()
    .as_object()
    .unwrap()
    .keys()
    .cloned()
    .collect();
    own.retain(|key, _| !why.contains(key));
    own["steps"][0]["domain"] = "web-frontend".into();
    check("API: `GET /why/DOMAIN`", &[section, "API: `GET /plan`"], "", &printed);

    let home = domain.home.as_ref().unwrap();
    let printed = to_value(ChangedJson::new("web-frontend", &home.nodes, home, &[])).unwrap();
    check("API: a change that was made", &[], "", &printed);
}

#[test]
fn the_audit_log() {
    let caller = Caller { uid: 1, gid: 1, groups: Vec::new(), pid: None };
    let nodes = examples::nodes(&[1]);
    let change = Change::SetAffinity { domain: "db".into(), cell: None, nodes, affinity: None };
    let printed =
        to_value(Entry::new(&caller, "PUT", "/domains/db/affinity", Some(&change), 200, None))
            .unwrap();
    check("The audit log", &[], "", &printed);
}
