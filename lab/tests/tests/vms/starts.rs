//! Starts at the same instant of machines with placement='auto', of which one fits each node.

use crate::auto::auto;
use nearside_lab::{
    Levelling, Look, MIB, available_bytes, await_that,
    daemon::Daemon,
    killed_for_memory,
    libvirt::{Cells, Libvirt, create_paused, process_of, virsh},
    numad::Numad,
    reservations, status,
};
use std::{collections::BTreeSet, process::Output};

#[test]
fn of_six_starts_at_once_the_four_that_fit_run_on_nodes_of_their_own() {
    starts_of_which_one_fits_each_node(1, 6);
}

#[test]
#[ignore = "twenty rounds take half an hour: lab/test vms -- --ignored"]
fn of_twenty_starts_at_once_the_four_that_fit_run_on_nodes_of_their_own_twenty_times_over() {
    starts_of_which_one_fits_each_node(20, 20);
}

fn starts_of_which_one_fits_each_node(rounds: u32, count: u32) {
    let (_libvirt, numad) = (Libvirt::start(), Numad::install("--refuse"));
    let daemon = Daemon::start("found = [\"machine/*\"]\nscheduler = \"off\"");
    let (mut levelling, killed_before) = (Levelling::default(), killed_for_memory());
    for round in 0..rounds {
        let mib = levelling.size_of_one_a_node() / MIB;
        let running = start_at_once(round, count, mib, &numad);
        assert_eq!(running.len(), 4, "round {round}, {mib} MiB: {:?}", numad.answers());
        assert_promised_once(&running, mib);
        for name in &running {
            assert!(virsh(["destroy", name]).status.success());
        }
        await_that("no promise outlives its machine", || {
            available_bytes().into_iter().all(|bytes| bytes >= mib * MIB)
        });
        println!("round {round}: 4 of {count} starts of {mib} MiB ran");
    }
    let refusals = numad.remarks().len();
    assert_eq!(refusals as u32, rounds * (count - 4), "{:?}", numad.remarks());
    assert!(numad.remarks().iter().all(|it| it.contains("numad: refused 1 vCPU and ")));
    assert_eq!(killed_for_memory(), killed_before);
    drop(levelling);
    daemon.stop();
}

/// Starts the machines, and returns the names of the running ones. All others were refused.
fn start_at_once(round: u32, count: u32, mib: u64, numad: &Numad) -> Vec<String> {
    let asked_before = numad.answers().len();
    let cells = Cells { vcpus: 1, memory_mib: vec![mib] };
    let names: Vec<_> = (0..count).map(|number| format!("r{round}n{number}")).collect();
    let start = |name: &String| create_paused(name, &auto(&cells.xml(name, "")));
    let starts: Vec<_> = names.iter().map(start).collect();
    let ended: Vec<Output> =
        starts.into_iter().map(|start| start.wait_with_output().unwrap()).collect();
    assert_eq!(numad.answers().len() - asked_before, count as usize);
    let mut running = Vec::new();
    for (name, output) in names.into_iter().zip(ended) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            running.push(name);
        } else {
            assert!(said.contains("Failed to query numad"), "{name}: {said}");
        }
    }
    running
}

/// Each machine is confined to a node of its own, where its reservation is, which is its own once
/// the daemon has seen it.
fn assert_promised_once(running: &[String], mib: u64) {
    let node_of = |name: &String| status(process_of(name), "Mems_allowed_list").parse::<u32>();
    let nodes: BTreeSet<u32> = running.iter().map(|name| node_of(name).unwrap()).collect();
    assert_eq!(nodes.len(), running.len(), "two machines share a node: {nodes:?}");
    let owned = |name: &String| {
        let node = node_of(name).unwrap().to_string();
        let is_its = |record: &serde_json::Value| {
            let owner = record["lifetime"]["cgroup"]["path"].as_str();
            let bytes = &record["subject"]["reservation"]["bytes"];
            owner.is_some_and(|path| path.contains(&format!("-{name}.")))
                && *bytes == serde_json::json!({ node.clone(): mib * MIB })
        };
        reservations().iter().filter(|record| is_its(record)).count() == 1
    };
    await_that("each machine takes its reservation over", || running.iter().all(owned));
    assert_eq!(reservations().len(), running.len());
    Look::take().assert_nothing_is_promised_twice();
}
