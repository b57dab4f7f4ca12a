use super::*;
use crate::vm::complete::{Wish, completed};
use nearside_libvirt::render::unified_diff;
use nearside_topology::{Cpu, CpuId, Distance, Distances, Node, NodeId, Topology};

const GIB: u64 = 1 << 30;

/// Nodes of 4 CPUs with so many GiB; neighbours are at distance 12, others at 20.
fn machine(gib: &[u64]) -> Observation {
    let ids: Vec<NodeId> = (0..gib.len() as u32).map(NodeId).collect();
    let node =
        |(&id, gib): (&NodeId, &u64)| Node { id, memory_bytes: gib * GIB, ..Node::default() };
    let distance = |from: usize, to: usize| -> Distance {
        match (from == to, from / 2 == to / 2) {
            (true, _) => 10,
            (false, true) => 12,
            (false, false) => 20,
        }
    };
    let count = ids.len();
    let rows: Vec<Distance> =
        (0..count).flat_map(|from| (0..count).map(move |to| distance(from, to))).collect();
    let cpus = (0..4 * count as u32).map(|cpu| Cpu::new(CpuId(cpu), NodeId(cpu / 4)));
    Observation::of(Topology {
        nodes: ids.iter().zip(gib).map(node).collect(),
        cpus: cpus.collect(),
        distances: Distances::new(&ids, &rows).unwrap(),
        ..Topology::default()
    })
}

const FOUR: [u64; 4] = [8, 8, 8, 8];

/// A domain with cells of 2 vCPUs and so many GiB.
fn domain(gib: &[u64], extra: &str) -> String {
    let cell = |(id, gib): (usize, &u64)| {
        format!(
            "      <cell id='{id}' cpus='{}-{}' memory='{gib}' unit='GiB'/>\n",
            2 * id,
            2 * id + 1
        )
    };
    let cells: String = gib.iter().enumerate().map(cell).collect();
    format!(
        "<domain type='kvm'>\n  <name>vm</name>\n  <vcpu>{}</vcpu> <!-- two each -->\n{extra}  \
         <cpu>\n    <numa>\n{cells}    </numa>\n  </cpu>\n</domain>\n",
        2 * gib.len()
    )
}

/// The XML as `place --libvirt` completes it.
fn placed(xml: &str, on: &Observation) -> String {
    let wish = Wish { pins_vcpus: true, metadata: true, ..Wish::default() };
    let domain = Domain::read(xml).unwrap();
    completed(&domain, &wish, on, &CostModel::default()).unwrap().xml
}

fn rewritten(xml: &str, on: &Observation) -> Result<Rewritten, NotRewritten> {
    let incoming = Incoming::read(xml.as_bytes()).unwrap().unwrap();
    incoming.rewritten(true, on, &CostModel::default())
}

/// The XML and the losses.
fn moved(xml: &str, on: &Observation) -> (String, Vec<String>) {
    let Rewritten { xml, worse, .. } = rewritten(xml, on).unwrap();
    (xml, worse)
}

#[test]
fn only_what_nearside_wrote_changes() {
    let there = machine(&[1, 1, 8, 8]);
    let before = placed(&domain(&[4, 4], ""), &machine(&FOUR));
    let (after, worse) = moved(&before, &there);
    assert_eq!(worse, Vec::<String>::new());
    insta::assert_snapshot!(unified_diff("vm.xml", &before, &after));
    // And back again.
    assert_eq!(moved(&after, &machine(&FOUR)), (before, vec![]));
}

#[test]
fn a_guest_of_one_node_stays_on_one() {
    // 6 vCPUs are faster on two nodes of 4 CPUs.
    let wide = domain(&[4], "").replace("<vcpu>2<", "<vcpu>6<").replace("0-1", "0-5");
    let bound = "  <numatune><memory mode='strict' nodeset='1'/></numatune>\n";
    let there = machine(&[8, 8]);
    let before = placed(&wide, &machine(&[16]));
    let (after, worse) = moved(&before, &there);
    assert!(after.contains("<memnode cellid='0' mode='strict' nodeset='0'/>"), "{after}");
    assert_eq!(worse, Vec::<String>::new());
    // The operator's binding stays, and Nearside's follow it.
    let pinned = wide.replace("  <cpu>", &format!("{bound}  <cpu>"));
    let before = placed(&pinned, &machine(&[16, 16]));
    let (after, _) = moved(&before, &there);
    assert!(after.contains("<numatune><memory mode='strict' nodeset='1'/>"), "{after}");
    assert!(after.contains("<vcpupin vcpu='0' cpuset='4-7'/>"), "{after}");
}

#[test]
fn a_worse_shape_is_told_and_not_learnt() {
    let here = machine(&FOUR);
    let before = placed(&domain(&[4, 4], ""), &here);
    let (on_one, worse) = moved(&before, &machine(&[16]));
    assert_eq!(worse, ["cells 0 and 1 share node 0, they shared none"]);
    assert!(on_one.contains("<memnode cellid='1' mode='strict' nodeset='0'/>"), "{on_one}");
    // The guest's own distances stay, because it runs.
    assert!(on_one.contains("<sibling id='1' value='12'/>"), "{on_one}");
    assert_eq!(moved(&on_one, &here), (before, vec![]));
}

#[test]
fn libvirts_own_way_of_writing_changes_nothing() {
    let before = placed(&domain(&[4, 4], ""), &machine(&FOUR));
    let rewrote = before.replace('\'', "\"").replace("cpuset=\"0-3\"", "cpuset=\"0,1-3\"");
    let there = machine(&[1, 1, 8, 8]);
    let plain = |xml: &str| xml.replace('\'', "\"");
    assert_eq!(plain(&moved(&rewrote, &there).0), plain(&moved(&before, &there).0));
}

#[test]
fn claims_and_reservations_of_others_are_respected() {
    let here = machine(&FOUR);
    let before = placed(&domain(&[4, 4], ""), &here);
    let mut there = machine(&[8, 8]);
    let first = rewritten(&before, &there).unwrap();
    let incoming = Incoming::read(before.as_bytes()).unwrap().unwrap();
    let reservation = first.reservation(&incoming).unwrap();
    let guest = incoming.domain.name.as_ref().unwrap().value.clone();
    assert_eq!(reservation.name, format!("incoming-{guest}"));
    assert_eq!(reservation.purpose, Purpose::IncomingGuest(guest));
    let bytes = [(NodeId(0), 4 * GIB), (NodeId(1), 4 * GIB)].into();
    assert_eq!(
        (&reservation.bytes, crate::vm::incoming::sum([&reservation.vcpus].into_iter())),
        (&bytes, [(NodeId(0), 2), (NodeId(1), 2)].into())
    );
    there.reservations.push(reservation);
    assert!(rewritten(&before, &there).is_ok());
    let larger = placed(&domain(&[5, 5], ""), &here);
    let NotRewritten { why, lacks } = rewritten(&larger, &there).unwrap_err();
    assert!(why.contains("8 GiB"), "{why}");
    assert!(lacks.is_some());
}

#[test]
fn each_reason_to_leave_the_xml_is_told() {
    let here = machine(&FOUR);
    let before = placed(&domain(&[4, 4], ""), &here);
    let pin = "  <cputune><emulatorpin cpuset='0-15'/></cputune>\n";
    let bound = placed(&domain(&[4, 4], pin), &here);
    let third = "<cell id='2' memory='1' unit='GiB'/>\n    </numa>";
    let elsewhere = "cellid='0' mode='strict' nodeset='3'";
    for (xml, on, told) in [
        (before.clone(), machine(&[2, 2]), "8 GiB do not fit"),
        (bound, machine(&[16, 16]), "the host has no CPUs 8-15 online [cpus-beyond-host]"),
        (
            before.replace("</numa>", third),
            machine(&FOUR),
            "it has 3 cells, its metadata tell of 2",
        ),
        (
            before.replace("cellid='0' mode='strict' nodeset='0'", elsewhere),
            machine(&[8, 8]),
            "the host has no node 3",
        ),
        (
            before
                .lines()
                .filter(|line| !line.contains("pin ") && !line.contains("mode='strict'"))
                .collect(),
            machine(&FOUR),
            "it has no binding that Nearside wrote",
        ),
    ] {
        let NotRewritten { why, .. } = rewritten(&xml, &on).unwrap_err();
        assert!(why.contains(told), "{told}: {why}\n{xml}");
    }
    for (xml, told) in [
        ("", "line 1, column 1: "),
        (
            "<domain><metadata><n:domain xmlns:n='urn:nearside:libvirt'>x</n:domain></metadata>\
             </domain>",
            "the metadata of Nearside cannot be read: expected value at line 1 column 1",
        ),
    ] {
        let why = Incoming::read(xml.as_bytes()).unwrap_err();
        assert!(why.starts_with(told), "{why}");
    }
    assert!(Incoming::read(domain(&[4], "").as_bytes()).unwrap().is_none());
}
