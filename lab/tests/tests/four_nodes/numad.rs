//! `nearside numad` on a real kernel: answers that are given at once promise no memory twice.

use nearside_lab::{Levelling, Look, MIB, available_bytes, nearside, run, stderr, words};
use std::{fs, process::Stdio};

/// Removes the reservations, which would last for a minute.
struct Lapse;

impl Drop for Lapse {
    fn drop(&mut self) {
        for record in fs::read_dir("/run/nearside/domains").unwrap().flatten() {
            if record.file_name().to_string_lossy().starts_with("reservation+numad-") {
                fs::remove_file(record.path()).unwrap();
            }
        }
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
