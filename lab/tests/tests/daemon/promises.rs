//! Promises: answers of `numad`, starts and changed homes at once, beside a daemon that is killed.

use crate::{homes::EndOnDrop, killing::next};
use nearside_lab::{
    Domain, Levelling, Look, MIB, Own, assert_refused, assert_the_kernel_covers,
    daemon::{Daemon, ask_once},
    end, killed_for_memory, nearside,
    numad::lapse_reservations,
    parallel_starts, reservations, stderr,
};
use serde_json::json;
use std::{
    process::{Child, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Duration,
};

const ANSWERS: usize = 64;
const STARTS: u32 = 20;

/// The domains whose homes change. Their claims are small: wherever they are, eight of the large
/// promises fit.
const MOVERS: [&str; 2] = ["left", "right"];

#[test]
#[ignore = "each round takes minutes: lab/test daemon -- --ignored promises"]
fn answers_of_numad_starts_and_new_homes_promise_nothing_twice_in_20_rounds_with_50_kills() {
    keep_promises(20, 50);
}

fn keep_promises(rounds: u64, kills: u64) {
    let movers = MOVERS.map(|name| {
        let flags = format!("--quiet --name {name} --cpus 1 --memory 2M --policy preferred");
        Domain::start(&flags, "--mib 1")
    });
    let killed_before = killed_for_memory();
    let (has_ended, changes, killed) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let mut levelling = Levelling::default();
    let is_on = || !has_ended.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let killer = scope.spawn(|| {
            let mut random = 37;
            while is_on() {
                let mut daemon = Daemon::begin_with("", "scheduler = \"off\"");
                thread::sleep(Duration::from_millis(1_000 + next(&mut random) % 8_000));
                daemon.child.kill().unwrap();
                daemon.child.wait().unwrap();
                killed.fetch_add(1, Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            for node in (0..4).cycle().take_while(|_| is_on()) {
                for (name, node) in MOVERS.into_iter().zip([node, 3 - node]) {
                    // The daemon may be dead, or the home full.
                    let wish = json!({"nodes": [node]});
                    let answer = ask_once("PUT", &format!("/domains/{name}/affinity"), Some(&wish));
                    let is_changed = matches!(answer, Some((200, _)));
                    changes.fetch_add(is_changed.into(), Ordering::Relaxed);
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
        let _end = EndOnDrop(&has_ended);
        let mut round = 0;
        while round < rounds || killed.load(Ordering::Relaxed) < kills {
            assert!(!killer.is_finished(), "no daemon starts any more");
            promise(round, &mut levelling);
            round += 1;
        }
        println!("{round} rounds, {changes:?} homes changed, {killed:?} daemons killed");
        assert!(changes.load(Ordering::Relaxed) > 0);
    });
    assert_eq!(killed_for_memory(), killed_before);
    drop(levelling);
    movers.into_iter().for_each(Domain::end);
    Look::take().assert_nothing_is_promised();
}

/// Sixty-four answers and twenty starts at once, of a size of which eight fit. By turns, all
/// answers, none or a few of them are asked for before the starts, so that each kind wins.
fn promise(round: u64, levelling: &mut Levelling) {
    let mib = levelling.size_of_two_a_node() / MIB;
    // An emulated answer takes longer than libvirt's would wait for.
    let ask = |_| {
        let mut command = nearside();
        command.args(["numad", "--within", "600", "-w", &format!("1:{mib}")]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let asked_first = [ANSWERS, 0, 4][round as usize % 3];
    let mut asked: Vec<Child> = (0..asked_first).map(ask).collect();
    let start = || parallel_starts(STARTS, "", mib * MIB, &["sh", "-c", "echo ready; read line"]);
    let (mut running, refused) = thread::scope(|scope| {
        let starts = scope.spawn(start);
        asked.extend((asked_first..ANSWERS).map(ask));
        starts.join().unwrap()
    });
    Look::passing().assert_nothing_is_promised_twice();
    let mut promised = 0;
    for child in asked {
        let output = child.wait_with_output().unwrap();
        let remark = stderr(&output);
        assert!(output.status.success(), "round {round}: {remark}");
        assert!(remark.is_empty() || remark.contains("reserved nothing"), "{remark}");
        promised += usize::from(remark.is_empty());
    }
    let look = Look::passing();
    look.assert_nothing_is_promised_twice();
    let still_reserved = reservations().len();
    println!(
        "round {round}: of {mib} MiB {} starts and {promised} answers were promised, \
         {still_reserved} reservations are left",
        running.len(),
    );
    assert!(running.len() + still_reserved <= 8, "round {round}: {look:?}");
    assert!(running.len() + promised >= 8, "round {round}: {look:?}");
    // While the other processes hold memory, a start may be given two nodes.
    let starts = running.iter().map(Child::id);
    let own = Own::of(starts.chain(levelling.claims().map(|(process, _)| process)));
    let taken = [0, 1, 2, 3].map(|node| own.bytes.get(&node).copied().unwrap_or(0));
    assert_the_kernel_covers(look.claimed_bytes(), taken);
    assert!(running.iter_mut().all(|child| child.try_wait().unwrap().is_none()), "round {round}");
    assert_refused(refused);
    end(running);
    lapse_reservations();
}
