//! Properties of reading, checking and completing, on domains made at random and on any text.

#![allow(clippy::unwrap_used, reason = "a failing unwrap in a test is a failing test")]

mod common;

use nearside_libvirt::{
    CellPlacement, Domain, IothreadId, Keep, MemoryMode, Metadata, Pin, Placement, VcpuId, Written,
    complete, contradictions, lint, operators, strip,
};
use nearside_topology::NodeSet;
use proptest::prelude::*;

/// An element, or nothing.
fn maybe(element: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), element]
}

fn node_list() -> impl Strategy<Value = String> {
    prop_oneof!["[0-5]", "[0-2]-[3-5]", "0-5,\\^[1-4]"]
}

fn cpu_list() -> impl Strategy<Value = String> {
    prop_oneof!["[0-9]", "1?[0-9]-[23][0-9]", "0-31,\\^[1-9]"]
}

fn mode() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["strict", "preferred", "interleave", "restrictive", "bind"])
}

/// Blanks, comments and line ends between elements.
fn gap() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "\n  ",
        "\n\t",
        "\r\n ",
        "\n  <!-- a > b -->\n  ",
        " <!-- c -->\n",
    ])
}

fn cputune() -> impl Strategy<Value = String> {
    let pin = (0..6_u32, cpu_list())
        .prop_map(|(vcpu, cpus)| format!("<vcpupin vcpu='{vcpu}' cpuset='{cpus}'/>"));
    let emulator = cpu_list().prop_map(|cpus| format!("<emulatorpin cpuset='{cpus}'/>"));
    let iothread = cpu_list().prop_map(|it| format!("<iothreadpin iothread='1' cpuset='{it}'/>"));
    (maybe(pin), gap(), maybe(emulator), gap(), maybe(iothread), gap()).prop_map(
        |(pin, a, emulator, b, iothread, c)| {
            format!("<cputune>{a}{pin}{b}{emulator}{iothread}{c}</cputune>")
        },
    )
}

fn numatune() -> impl Strategy<Value = String> {
    let nodeset = maybe(node_list().prop_map(|nodes| format!(" nodeset='{nodes}'")));
    let placement = prop::sample::select(vec!["", " placement='auto'", " placement='static'"]);
    let memory = (mode(), placement, nodeset)
        .prop_map(|(mode, placement, nodes)| format!("<memory mode='{mode}'{placement}{nodes}/>"));
    let memnode = (0..3_u32, mode(), node_list()).prop_map(|(cell, mode, nodes)| {
        format!("<memnode cellid='{cell}' mode='{mode}' nodeset='{nodes}'/>")
    });
    (gap(), maybe(memory), gap(), maybe(memnode), gap()).prop_map(|(a, memory, b, memnode, c)| {
        format!("<numatune>{a}{memory}{b}{memnode}{c}</numatune>")
    })
}

fn numa() -> impl Strategy<Value = String> {
    let inside = prop::sample::select(vec![
        "/>",
        "  />",
        "></cell>",
        ">\n    </cell>",
        "><distances><sibling id='ID' value='10'/></distances></cell>",
    ]);
    let cell = (gap(), inside);
    prop::collection::vec(cell, 0..4).prop_map(|cells| {
        let cells: String = (0..)
            .zip(cells)
            .map(|(id, (gap, inside)): (u32, _)| {
                let inside = inside.replace("ID", &id.to_string());
                format!("{gap}<cell cpus='{id}' memory='1048576'{inside}")
            })
            .collect();
        if cells.is_empty() { cells } else { format!("<cpu><numa>{cells}</numa></cpu>") }
    })
}

fn vcpu() -> impl Strategy<Value = String> {
    let placement = prop::sample::select(vec!["", " placement='auto'", " placement='static'"]);
    let cpuset = maybe(cpu_list().prop_map(|cpus| format!(" cpuset='{cpus}'")));
    (placement, cpuset, 4..8_u32)
        .prop_map(|(placement, cpuset, count)| format!("<vcpu{placement}{cpuset}>{count}</vcpu>"))
}

fn domain() -> impl Strategy<Value = String> {
    let parts = [
        vcpu().boxed(),
        maybe(cputune()).boxed(),
        maybe(numatune()).boxed(),
        numa().boxed(),
        maybe(Just("<iothreads>2</iothreads>".to_owned())).boxed(),
        Just("<memory unit='GiB'>4</memory>".to_owned()).boxed(),
    ];
    let parts = parts.map(|part| (part, gap()));
    (Vec::from(parts).prop_shuffle_all(), gap()).prop_map(|(parts, last)| {
        let parts: String = parts.into_iter().map(|(part, gap)| format!("{gap}{part}")).collect();
        format!("<domain type='kvm'>{parts}{last}</domain>")
    })
}

/// All of some strategies, in any order.
trait ShuffleAll {
    type Item;
    fn prop_shuffle_all(self) -> BoxedStrategy<Vec<Self::Item>>;
}

impl<S: Strategy + 'static> ShuffleAll for Vec<S>
where
    S::Value: Clone + 'static,
{
    type Item = S::Value;
    fn prop_shuffle_all(self) -> BoxedStrategy<Vec<S::Value>> {
        self.prop_shuffle().boxed()
    }
}

fn placement() -> impl Strategy<Value = Placement> {
    let cell = prop::collection::btree_set(0..6_u32, 0..3);
    let mode = prop::sample::select(MemoryMode::ALL.to_vec());
    (prop::collection::vec(cell, 0..5), mode, any::<bool>(), any::<bool>()).prop_map(
        |(cells, mode, pins_vcpus, with_distances)| {
            let host = common::host();
            let cell = |nodes: std::collections::BTreeSet<u32>| {
                let nodes: NodeSet = nodes.into_iter().map(nearside_topology::NodeId).collect();
                CellPlacement { cpus: host.cpus_of_nodes(&nodes), nodes }
            };
            Placement {
                mode,
                cells: cells.into_iter().map(cell).collect(),
                pins_vcpus,
                emulator_cpus: nearside_topology::CpuSet::new(),
                iothreads: [(IothreadId(2), host.cpus_of(nearside_topology::NodeId(1)))].into(),
                distances: with_distances.then(|| host.distances.clone()),
            }
        },
    )
}

/// Whether `new` is `old` with bytes inserted, `/` of an empty element apart.
fn is_only_longer(old: &str, new: &str) -> bool {
    let mut new = new.chars();
    old.chars().all(|c| c == '/' || new.any(|other| other == c))
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn completing_twice_is_completing_once(text in domain(), placement in placement()) {
        let domain = Domain::read(&text).unwrap();
        let completed = complete(&domain, &placement);
        let again = Domain::read(&completed)
            .map_err(|error| TestCaseError::fail(format!("{error}\n{completed}")))?;
        prop_assert_eq!(complete(&again, &placement), completed);
    }

    #[test]
    fn what_nearside_wrote_is_told_from_the_operators(
        text in domain(),
        placement in placement(),
    ) {
        let domain = Domain::read(&text).unwrap();
        let placed = common::placed(&domain, &placement);
        let metadata = Metadata::of(&placed).unwrap().unwrap();
        let stripped = strip(&placed, &metadata, Keep::Nothing).unwrap();
        prop_assert!(Written::between(&domain, &stripped).is_empty(), "{}", stripped.text());
        prop_assert!(Written::between(&stripped, &domain).is_empty(), "{}", stripped.text());
        let model = operators(&placed, &metadata, Keep::Nothing);
        prop_assert!(Written::between(&model, &stripped).memory.is_none());
        prop_assert_eq!(model.distances(), stripped.distances());
        let nodes = |domain: &Domain| domain.memory_nodes(domain.cells.first()).cloned();
        prop_assert_eq!(nodes(&model), nodes(&stripped));
        let numbers = |domain: &Domain| -> Vec<VcpuId> {
            domain.pins.vcpus.iter().map(|pin| pin.id.value).collect()
        };
        prop_assert_eq!(numbers(&model), numbers(&stripped));
        // The same placement gives the same text, byte for byte.
        let again = common::placed(&stripped, &placement);
        prop_assert_eq!(again.text(), placed.text());
    }

    #[test]
    fn completing_keeps_what_the_operator_wrote(text in domain(), placement in placement()) {
        let domain = Domain::read(&text).unwrap();
        let completed = complete(&domain, &placement);
        prop_assert!(is_only_longer(&text, &completed), "{}\n{}", text, completed);
        let again = Domain::read(&completed).unwrap();
        let has = |pin: &Pin<VcpuId>| {
            let mut pins = again.pins.vcpus.iter();
            pins.any(|it| it.id.value == pin.id.value && it.cpus.value == pin.cpus.value)
        };
        let all_kept = domain.pins.vcpus.iter().all(has);
        prop_assert!(all_kept);
        prop_assert_eq!(again.cells.len(), domain.cells.len());
        // Comments stay in their order.
        let comments = |text: &str| text.matches("<!--").count();
        prop_assert_eq!(comments(&text), comments(&completed));
    }

    #[test]
    fn completing_adds_no_error(text in domain(), placement in placement()) {
        use nearside_libvirt::{Rule, Severity};
        let errors = |domain: &Domain| -> std::collections::BTreeSet<Rule> {
            let findings = lint(domain, None).into_iter();
            findings.map(|it| it.rule).filter(|it| it.severity() == Severity::Error).collect()
        };
        let domain = Domain::read(&text).unwrap();
        let completed = Domain::read(&complete(&domain, &placement)).unwrap();
        let (before, after) = (errors(&domain), errors(&completed));
        prop_assert!(after.is_subset(&before), "{:?}\n{}", after, completed.text());
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        let _ = Domain::read(&text);
    }

    #[test]
    fn damaged_domains_are_read_or_refused(
        text in domain(),
        at in any::<prop::sample::Index>(),
        byte: u8,
        placement in placement(),
    ) {
        let mut bytes = text.into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(domain) = Domain::from_bytes(&bytes) {
            lint(&domain, Some(&common::host()));
            contradictions(&domain, &placement);
            let completed = complete(&domain, &placement);
            prop_assert!(Domain::read(&completed).is_ok(), "{}", completed);
        }
    }
}
