//! Machines with placement='auto': libvirt asks Nearside as its numad. Beside it: a libvirt that
//! hangs, and a machine that vanishes.

use nearside_lab::{
    MIB, Signal, await_that,
    daemon::{Daemon, ask, get},
    domains, json,
    libvirt::{Cells, Libvirt, Vm, cpus_of, create_paused, virsh},
    numad::Numad,
    reservations, run, status, stderr, words, write,
};
use serde_json::{Value, json};
use std::path::Path;

/// The domain's XML with vCPUs and memory where numad advises.
pub(crate) fn auto(xml: &str) -> String {
    let memory = "  <numatune>\n    <memory mode='strict' placement='auto'/>\n  </numatune>\n";
    xml.replace("<vcpu>", "<vcpu placement='auto'>").replace("  <os>", &format!("{memory}  <os>"))
}

fn cells(memory_mib: u64) -> Cells {
    Cells { vcpus: 1, memory_mib: vec![memory_mib] }
}

/// The path of a domain in the API.
fn in_api(cgroup: &str) -> String {
    format!("/domains/{}", cgroup.replace('/', "%2F"))
}

/// The tests of one libvirt and one daemon, so that the waits of one are the work of the others.
/// One machine runs at a time, since each keeps an emulated CPU busy.
#[test]
fn machines_that_libvirt_starts_fail_hang_and_vanish() {
    let (libvirt, numad) = (Libvirt::start(), Numad::install(""));
    // The daemon leaves memory without a policy to the kernel where that balances.
    write("/proc/sys/kernel/numa_balancing", "0");
    // A daemon may see the machine before it fails: then the reservation would end with it.
    a_start_that_fails_leaves_a_reservation_without_an_owner(&numad);
    let mut daemon = Daemon::start("found = [\"machine/*\"]\nscheduler = \"off\"\nrate = \"256K\"");
    a_machine_starts_where_numad_advises_and_takes_its_reservation_over(&numad);
    let free = Vm::start("free", &cells(72), &cells(72).xml("free", ""));
    free.await_pass();
    let node = a_libvirt_that_hangs_is_reported_and_costs_the_machine_nothing(
        &libvirt,
        &mut daemon,
        &free,
    );
    a_machine_that_vanishes_while_its_pages_move_leaves_no_record(&daemon, free, node);
    // A minute after the answer.
    await_that("the reservation of the failed start lapses", || promised_bytes() == 0);
    next_start();
    assert_eq!(reservations(), [Value::Null; 0]);
    daemon.stop();
    write("/proc/sys/kernel/numa_balancing", "1");
}

/// All claims and reservations that wait for memory.
fn promised_bytes() -> u64 {
    let stat = json("stat --interval 0");
    let nodes = stat["nodes"].as_array().unwrap().iter();
    nodes.map(|node| node["outstanding_bytes"].as_u64().unwrap()).sum()
}

fn a_start_that_fails_leaves_a_reservation_without_an_owner(numad: &Numad) {
    let xml = auto(&cells(80).xml("failing", ""));
    let (before, after) = xml.split_once("<kernel>").unwrap();
    let after = after.split_once("</kernel>").unwrap().1;
    // QEMU ends, because it has no such file.
    let xml = format!("{before}<kernel>/nowhere</kernel>{after}");
    let ended = create_paused("failing", &xml).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("/nowhere"), "{said}");
    let [answer] = &numad.answers()[..] else { panic!("{:?}", numad.answers()) };
    let node = answer.strip_prefix("-w 1:80: ").unwrap();
    let [record] = &reservations()[..] else { panic!("{:?}", reservations()) };
    assert_eq!(record["subject"]["reservation"]["bytes"], json!({node: 80 * MIB}));
    assert!(record["lifetime"]["term"].is_object(), "{record}");
    assert!(promised_bytes() >= 80 * MIB);
}

fn a_machine_starts_where_numad_advises_and_takes_its_reservation_over(numad: &Numad) {
    let vm = Vm::start("auto", &cells(64), &auto(&cells(64).xml("auto", "")));
    let answers = numad.answers();
    let node = answers.last().unwrap().strip_prefix("-w 1:64: ").unwrap();
    let number: u32 = node.parse().unwrap();
    vm.await_pass();
    let memory = vm.memory(0);
    assert_eq!(memory.bytes.keys().copied().collect::<Vec<_>>(), [number], "{memory:?}");
    assert_eq!(memory.policy, format!("bind:{node}"));
    assert_eq!(vm.vcpus(), [cpus_of(number)]);
    assert_eq!(status(vm.process(), "Mems_allowed_list"), node);
    let owned = || -> Vec<Value> {
        let is_owned = |record: &Value| record["lifetime"]["cgroup"]["path"] == vm.cgroup();
        reservations().into_iter().filter(is_owned).collect()
    };
    await_that("the machine takes its reservation over", || !owned().is_empty());
    let [record] = &owned()[..] else { panic!("{:?}", owned()) };
    assert_eq!(record["subject"]["reservation"]["bytes"], json!({node: 64 * MIB}));
}

fn home(vm: &Vm) -> Value {
    match ask("GET", &in_api(&vm.cgroup()), None) {
        Some((200, domain)) => domain["home"]["nodes"].clone(),
        _ => Value::Null,
    }
}

/// Returns the machine's new home.
fn a_libvirt_that_hangs_is_reported_and_costs_the_machine_nothing(
    libvirt: &Libvirt,
    daemon: &mut Daemon,
    vm: &Vm,
) -> u32 {
    let bound_to = |node: u32| vm.vcpus().iter().all(|cpus| *cpus == cpus_of(node));
    await_that("the machine is bound to its home through libvirt", || {
        home(vm)[0].as_u64().is_some_and(|node| bound_to(node as u32))
    });
    let (before, cgroup) = (home(vm)[0].as_u64().unwrap() as u32, vm.cgroup());
    let node = (before + 2) % 4;
    libvirt.signal(Signal::STOP);
    let shown = json(&format!("show {cgroup} --interval 0 --no-daemon"));
    let why = shown["guest"]["unknown"].as_str().unwrap_or_default();
    assert!(why.contains("libvirt has not answered within 2000 ms"), "{shown:#}");
    let wish = json!({"nodes": [node]});
    let put = || ask("PUT", &format!("{}/affinity", in_api(&cgroup)), Some(&wish)).unwrap();
    let (code, answer) = put();
    let why = answer["error"].as_str().unwrap_or_default();
    assert_eq!(code, 409, "{answer}");
    assert!(why.contains("libvirt has not answered within 2000 ms"), "{why}");
    await_that("the daemon's log has it, too", || {
        daemon.said().contains("libvirt has not answered within 2000 ms")
    });
    assert!(bound_to(before), "{:?}", vm.vcpus());
    let passes = vm.passes();
    await_that("the machine works on", || vm.passes() > passes);
    libvirt.signal(Signal::CONT);
    // Half a minute after the time-out libvirt is asked again.
    await_that("the daemon gives it another home", || put().0 == 200);
    await_that("the machine is bound to its new home", || bound_to(node));
    node
}

fn a_machine_that_vanishes_while_its_pages_move_leaves_no_record(
    daemon: &Daemon,
    vm: Vm,
    home: u32,
) {
    await_that("its pages move", || vm.memory(0).bytes.get(&home).is_some_and(|&there| there > 0));
    assert!(vm.memory(0).bytes.len() > 1, "all of its pages have moved: {:?}", vm.memory(0));
    let cgroup = vm.cgroup();
    assert!(virsh(["destroy", "free"]).status.success());
    await_that("the daemon has noticed", || {
        ask("GET", &in_api(&cgroup), None).is_some_and(|(code, _)| code == 404)
    });
    assert!(!domains().contains(&cgroup));
    next_start();
    assert!(!records().iter().any(|text| text.contains(&cgroup)), "{:?}", records());
    assert!(!Path::new("/run/nearside/journal.json").exists());
    let interval = || get("/health")["interval"].as_u64().unwrap();
    let seen = interval();
    await_that("the daemon goes on", || interval() > seen + 1);
    assert!(Path::new(&format!("/proc/{}", daemon.child.id())).exists());
}

/// The next process that gets the lock removes the records of all that has ended.
fn next_start() {
    let started = run(words("run --quiet --name next --memory 1M -- true"));
    assert!(started.status.success(), "{}", stderr(&started));
}

/// The texts of all records.
fn records() -> Vec<String> {
    let folder = std::fs::read_dir("/run/nearside/domains").unwrap().flatten();
    folder.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect()
}
