//! Changes that operators ask the daemon for, carried out between two intervals.

use super::snapshot::{Answer, Change};
use crate::rehome::{self, carry_out, give_back};
use nearside_linux::{Host, Refusal, store::Record};
use nearside_policy::{
    Affinity, Home, MemoryPolicy, Observation, Origin, PartId, Rehome, Unmet, may_be_home,
};
use nearside_topology::NodeSet;
use std::ops::ControlFlow;

/// Carries out a change. `found_by` is the pattern that found the domain, if one did.
pub(super) fn fulfil(host: &mut Host, change: &Change, found_by: Option<&str>) -> Answer {
    match change {
        Change::SetAffinity { domain, cell, nodes, affinity } => match (found_by, *cell) {
            (Some(pattern), cell) => {
                let part = match cell {
                    None => PartId::of(domain),
                    Some(cell) => PartId::cell_of(domain, cell),
                };
                prefer(host, &part, pattern, nodes, *affinity)
            }
            (None, None) => rehome(host, domain, nodes, *affinity),
            (None, Some(_)) => Answer::Unusable(format!(
                "cell: {domain} is one part: only virtual machines of libvirt have cells"
            )),
        },
        Change::Release { domain } => release(host, domain, found_by.is_some()),
    }
}

/// Another home for a domain of `nearside run`. Its memory follows as debt, at the rate of the
/// control loop.
fn rehome(host: &mut Host, domain: &str, nodes: &NodeSet, affinity: Option<Affinity>) -> Answer {
    let wish = Rehome {
        part: domain.into(),
        nodes: nodes.clone(),
        affinity,
        move_memory: false,
        rate_bytes_per_s: None,
    };
    match host.record(domain) {
        Ok(Some(_)) => {}
        Ok(None) => return Answer::Gone,
        Err(error) => return Answer::Refused(error.to_string()),
    }
    match carry_out(host, &wish, &mut |_| ControlFlow::Continue(())) {
        Err(failure) => Answer::Refused(failure.message().to_owned()),
        Ok(report) => match host.record(domain) {
            Ok(None) => Answer::Gone,
            Err(error) => Answer::Refused(error.to_string()),
            Ok(Some(record)) => Answer::Done {
                nodes_before: report.nodes_before,
                home: record.part().home.clone(),
                notes: report.notes,
            },
        },
    }
}

/// A home for a domain that was found.
fn prefer(
    host: &mut Host,
    part: &PartId,
    pattern: &str,
    nodes: &NodeSet,
    affinity: Option<Affinity>,
) -> Answer {
    let domain = part.domain();
    if affinity == Some(Affinity::Hard) {
        return Answer::Refused(format!(
            "{domain} was not started by `nearside run`: the owner of its cgroup binds it to CPUs; \
             Nearside can make it prefer them"
        ));
    }
    let record = match host.record(domain) {
        Ok(record) => record,
        Err(error) => return Answer::Refused(error.to_string()),
    };
    if let Some(why) = no_part(record.as_ref(), part, nodes) {
        return Answer::Unusable(why);
    }
    let before = record.as_ref().and_then(|record| record.part_of(part));
    let adopted = before.map(|part| &part.home).filter(|home| home.origin == Origin::Adopted);
    if let Some(bound) = adopted.filter(|home| !nodes.is_subset(&home.nodes)) {
        return Answer::Unusable(format!(
            "nodes: the owner of its cgroup binds {part} to {}",
            bound.nodes.named()
        ));
    }
    let topology = match host.offered_to(domain) {
        Ok(topology) => topology,
        Err(error) => return Answer::Refused(error.to_string()),
    };
    if let Err(refusal) = may_be_home(nodes, &Observation::of(topology)) {
        return Answer::Unusable(format!("nodes: {refusal}"));
    }
    let home = Home {
        nodes: nodes.clone(),
        origin: Origin::Explicit,
        affinity: Affinity::Soft,
        policy: MemoryPolicy::Local,
    };
    match rehome::prefer(host, part, pattern, &home) {
        Ok(before) => {
            let nodes_before = before.map(|home| home.nodes).unwrap_or_default();
            Answer::Done { nodes_before, home, notes: host.take_notices() }
        }
        Err(Refusal::Unmet(Unmet::Ended(_))) => Answer::Gone,
        Err(refusal) => Answer::Refused(refusal.to_string()),
    }
}

/// The reason why a part of a found domain cannot be at home on these nodes, whatever they are.
fn no_part(record: Option<&Record>, part: &PartId, nodes: &NodeSet) -> Option<String> {
    let Some(record) = record else {
        return part
            .cell()
            .map(|_| format!("cell: the cells of {} are unknown yet", part.domain()));
    };
    if record.part_of(part).is_none() {
        let cells: Vec<_> =
            record.parts().filter_map(|part| Some(part.cell?.to_string())).collect();
        let domain = part.domain();
        return Some(match cells.is_empty() {
            true => format!("cell: {domain} is one part: name no cell"),
            false => format!(
                "cell: {domain} has cells, each with a home of its own: name one of {}",
                cells.join(", ")
            ),
        });
    }
    let mut others = record.parts().filter(|other| record.id_of(other) != *part);
    let other = others.find(|other| !other.home.nodes.intersection(nodes).is_empty())?;
    Some(format!(
        "nodes: {} is at home on {}: two cells never share a node",
        record.id_of(other),
        other.home.nodes.named()
    ))
}

/// Gives the home back to placement: the control loop may choose it again.
fn release(host: &mut Host, domain: &str, is_found: bool) -> Answer {
    match give_back(host, domain) {
        Ok(Some(home)) => {
            Answer::Done { nodes_before: home.nodes.clone(), home, notes: host.take_notices() }
        }
        Ok(None) if is_found => Answer::Refused(format!(
            "{domain} has no home yet, so there is none to give back: placement chooses it"
        )),
        Ok(None) => Answer::Gone,
        Err(failure) => Answer::Refused(failure.message().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_linux::Paths;
    use nearside_policy::{Action, CellId, Reason, Step, Transaction};
    use nearside_topology::NodeId;
    use std::{fs, path::Path};

    const NAME: &str = "/m/vm";

    /// A host of three nodes, the last without CPUs, and a cgroup with a process that may use
    /// nodes 0 and 2.
    fn made(root: &Path) -> Host {
        let file = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let tree = root.join("cg");
        file(
            "proc/self/mountinfo",
            &format!("41 31 0:38 / {} rw - cgroup2 cgroup2 rw\n", tree.display()),
        );
        file("proc/sys/kernel/random/boot_id", "b\n");
        file("cg/cgroup.controllers", "cpuset memory\n");
        file("sys/devices/system/cpu/online", "0-3\n");
        for (node, cpus) in [(0, "0-1"), (1, "2-3"), (2, "")] {
            let folder = format!("sys/devices/system/node/node{node}");
            file(&format!("{folder}/cpulist"), cpus);
            file(&format!("{folder}/distance"), ["10 20 20", "20 10 20", "20 20 10"][node]);
            file(
                &format!("{folder}/meminfo"),
                &format!("Node {node} MemTotal: 4096 kB\nNode {node} MemFree: 1024 kB\n"),
            );
        }
        fs::create_dir(root.join("run")).unwrap();
        file(&format!("cg{NAME}/cgroup.events"), "populated 1\n");
        file(&format!("cg{NAME}/cpuset.cpus.effective"), "0-1\n");
        file(&format!("cg{NAME}/cpuset.mems.effective"), "0,2\n");
        Host::open(Paths { root: root.into(), state: root.join("run/nearside") }).unwrap()
    }

    fn put(host: &mut Host, nodes: &[u32]) -> Answer {
        put_cell(host, None, nodes)
    }

    fn put_cell(host: &mut Host, cell: Option<u32>, nodes: &[u32]) -> Answer {
        let nodes = nodes.iter().map(|&node| NodeId(node)).collect();
        let (domain, cell) = (NAME.into(), cell.map(CellId));
        let change = Change::SetAffinity { domain, cell, nodes, affinity: None };
        fulfil(host, &change, Some("m/*"))
    }

    fn delete(host: &mut Host, found_by: Option<&str>) -> Answer {
        fulfil(host, &Change::Release { domain: NAME.into() }, found_by)
    }

    fn home(answer: &Answer) -> (String, Origin, Affinity) {
        let Answer::Done { home, .. } = answer else { panic!("{answer:?}") };
        (home.nodes.to_string(), home.origin, home.affinity)
    }

    #[test]
    fn a_domain_without_a_home_cannot_give_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = made(folder.path());
        let refused = delete(&mut host, Some("m/*"));
        assert!(
            matches!(&refused, Answer::Refused(why) if why.contains("no home yet")),
            "{refused:?}"
        );
        assert_eq!(delete(&mut host, None), Answer::Gone);
    }

    #[test]
    fn a_found_domain_gets_nodes_that_it_may_use() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = made(folder.path());
        for (nodes, why) in
            [(&[1][..], "the cgroup /m/vm does not allow"), (&[2], "no CPU is online on node 2")]
        {
            let refused = put(&mut host, nodes);
            assert!(
                matches!(&refused, Answer::Unusable(said) if said.contains(why)),
                "{refused:?}"
            );
            assert!(host.record(NAME).unwrap().is_none());
        }
        assert_eq!(
            home(&put(&mut host, &[0, 2])),
            ("0,2".into(), Origin::Explicit, Affinity::Soft)
        );
        assert_eq!(
            home(&delete(&mut host, Some("m/*"))),
            ("0,2".into(), Origin::Auto, Affinity::Soft)
        );
    }

    #[test]
    fn a_cell_gets_a_home_that_no_other_cell_has() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = made(folder.path());
        fs::write(folder.path().join("cg/m/vm/cpuset.mems.effective"), "0-2\n").unwrap();
        fs::write(folder.path().join("cg/m/vm/cpuset.cpus.effective"), "0-3\n").unwrap();
        let unusable = |answer: Answer, expected: &str| {
            let Answer::Unusable(why) = &answer else { panic!("{answer:?}") };
            assert!(why.contains(expected), "{why}");
        };
        unusable(put_cell(&mut host, Some(0), &[0]), "the cells of /m/vm are unknown yet");
        let home_on = |node| Home {
            nodes: [NodeId(node)].into(),
            origin: Origin::Auto,
            affinity: Affinity::Soft,
            policy: MemoryPolicy::Local,
        };
        let first = |(cell, node)| {
            let part = PartId::cell_of(NAME, CellId(cell));
            let (from, to) = (NodeSet::new(), [NodeId(node)].into());
            let action = Action::SetHome { part, home: home_on(node) };
            Step { action, reason: Reason::NewHome { from, to } }
        };
        let steps = [(0, 0), (1, 1)].map(first).to_vec();
        let mut session = host.begin().unwrap();
        session.found(NAME, "m/*");
        session.apply(&Transaction::new(steps, &Observation::default())).unwrap();
        drop(session);
        assert_eq!(host.record(NAME).unwrap().unwrap().parts().count(), 2, "one record has both");

        unusable(put(&mut host, &[0]), "name one of 0, 1");
        unusable(put_cell(&mut host, Some(2), &[0]), "name one of 0, 1");
        unusable(put_cell(&mut host, Some(1), &[0, 2]), "cell 0 of /m/vm is at home on node 0");
        let done = put_cell(&mut host, Some(1), &[1, 2]);
        assert_eq!(home(&done), ("1-2".into(), Origin::Explicit, Affinity::Soft));
        let homes = |host: &Host| {
            let record = host.record(NAME).unwrap().unwrap();
            let home = |home: &Home| (home.nodes.to_string(), home.origin);
            record.parts().map(|part| home(&part.home)).collect::<Vec<_>>()
        };
        assert_eq!(homes(&host), [("0".into(), Origin::Auto), ("1-2".into(), Origin::Explicit)]);
        assert_eq!(
            home(&delete(&mut host, Some("m/*"))),
            ("0-2".into(), Origin::Auto, Affinity::Soft)
        );
        assert_eq!(homes(&host), [("0".into(), Origin::Auto), ("1-2".into(), Origin::Auto)]);
    }

    #[test]
    fn a_home_that_another_program_chose_cannot_be_changed() {
        let folder = tempfile::tempdir().unwrap();
        let mut host = made(folder.path());
        put(&mut host, &[0]);
        let mut adopted = host.record(NAME).unwrap().unwrap().part().home.clone();
        (adopted.origin, adopted.affinity) = (Origin::Adopted, Affinity::Hard);
        rehome::prefer(&mut host, &PartId::of(NAME), "m/*", &adopted).unwrap();
        for refused in [put(&mut host, &[0, 2]), delete(&mut host, Some("m/*"))] {
            let (Answer::Unusable(why) | Answer::Refused(why)) = &refused else {
                panic!("{refused:?}")
            };
            assert!(why.contains("the owner of its cgroup binds /m/vm to node 0"), "{why}");
        }
        assert_eq!(host.record(NAME).unwrap().unwrap().part().home.origin, Origin::Adopted);
        assert_eq!(home(&put(&mut host, &[0])), ("0".into(), Origin::Explicit, Affinity::Soft));
        assert_eq!(
            home(&delete(&mut host, Some("m/*"))),
            ("0".into(), Origin::Auto, Affinity::Soft)
        );
    }
}
