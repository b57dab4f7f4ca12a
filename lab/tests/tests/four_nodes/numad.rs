//! `nearside numad` on a real kernel: answers that are given at once promise no memory twice.

use nearside_lab::{
    Domain, Levelling, Look, MIB, available_bytes, nearside, numad::lapse_reservations, run,
    stderr, words,
};
use std::{
    fs,
    process::{Command, Stdio},
};

/// Removes the reservations, which would last for a minute.
struct Lapse;

impl Drop for Lapse {
    fn drop(&mut self) {
        lapse_reservations();
    }
}

#[test]
fn of_twenty_questions_at_once_the_eight_that_fit_reserve_memory_and_a_start_gets_the_rest() {
    let mut levelling = Levelling::default();
    let mib = levelling.size_of_two_a_node() / MIB;
    let lapse = Lapse;
    // Two vCPUs may be faster on two near nodes with a busy CPU each.
    let size = format!("1:{mib}");
    // An emulated start takes longer than libvirt's would wait for.
    let ask = || {
        let mut command = nearside();
        command.args(["numad", "--within", "600", "-w", &size]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..20).map(|_| ask()).collect();
    let (mut promised, mut unpromised) = (Vec::new(), Vec::new());
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let answer = String::from_utf8(output.stdout.clone()).unwrap();
        match stderr(&output) {
            remark if remark.is_empty() => promised.push(answer),
            remark => {
                assert!(remark.contains("reserved nothing"), "{remark}");
                unpromised.push(answer);
            }
        }
    }
    promised.sort();
    let look = Look::take();
    look.assert_nothing_is_promised_twice();
    assert_eq!(
        promised,
        ["0\n", "0\n", "1\n", "1\n", "2\n", "2\n", "3\n", "3\n"],
        "{mib} MiB each: {look:?}"
    );
    assert_eq!(unpromised, ["0-3\n"; 12]);
    let outstanding = look.nodes("outstanding_bytes");
    assert!(outstanding.iter().all(|&bytes| bytes >= 2 * mib * MIB), "{outstanding:?}");
    let left = available_bytes();
    assert!(left.iter().all(|&bytes| bytes < mib * MIB), "{left:?}");

    let start = |mib: u64| {
        run(words(&format!("run -q --name rest --policy strict --nodes 0 --memory {mib}M -- true")))
    };
    let refused = start(mib);
    assert_eq!(refused.status.code(), Some(125), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("too few"), "{}", stderr(&refused));
    let started = start(left[0] / MIB / 2);
    assert!(started.status.success(), "{}", stderr(&started));
    drop(lapse);
    assert!(start(mib).status.success(), "the reservations have gone");
}

/// The answer waits for nothing but the kernel, so its cost is what it reads.
#[test]
fn an_answer_reads_what_it_needs_of_a_domain_once() {
    const LOG: &str = "/tmp/numad.strace";
    let domain = Domain::start("--quiet --name read-once --memory 16M", "--mib 1");
    let _lapse = Lapse;
    let mut command = Command::new("strace");
    command.args(words(&format!("-f -o {LOG} -e trace=openat")));
    command.arg(nearside().get_program()).args(words("numad --within 600 -w 1:16"));
    assert!(command.output().unwrap().status.success());
    let log = fs::read_to_string(LOG).unwrap();
    let opened = log.lines().filter(|line| !line.contains("ENOENT"));
    let count = |file: &str| opened.clone().filter(|line| line.contains(file)).count();
    for file in [
        "\"read-once.json\"",
        "/read-once/cgroup.events\"",
        "/read-once/cgroup.procs\"",
        "/read-once/memory.numa_stat\"",
        "\"/proc/meminfo\"",
    ] {
        assert_eq!(count(file), 1, "{file} in {log}");
    }
    domain.end();
}
