//! A host without a cgroup v2 tree: domains are refused with the reason; the rest works.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use nearside_lab::{Look, read, run, run_as_nobody, stderr, stdout, words};
use std::path::Path;

#[test]
fn the_guest_is_the_machine_these_tests_are_about() {
    assert_eq!(read("/sys/devices/system/node/online"), "0-3");
    assert!(!read("/proc/self/mounts").contains("cgroup"));
}

#[test]
fn commands_on_domains_are_refused_and_leave_nothing() {
    let marker = "/tmp/started";
    let run_it = format!("run --name none --memory 8M -- touch {marker}");
    let dry_run = "run --name none --memory 8M --dry-run -- true";
    let cases = [
        (run_it.as_str(), 125),
        (dry_run, 125),
        ("exec none -- true", 125),
        ("set none --nodes 1 --move-memory", 1),
        ("list", 1),
        ("show none", 1),
        ("why none", 1),
    ];
    for (line, code) in cases {
        for output in [run(words(line)), run_as_nobody(words(line))] {
            assert_eq!(output.status.code(), Some(code), "{line}: {}", stderr(&output));
            assert_eq!(
                stderr(&output).matches("no cgroup v2 tree is mounted").count(),
                1,
                "{line}: {}",
                stderr(&output)
            );
            assert_eq!(stdout(&output), "", "{line}");
        }
    }
    assert!(!Path::new(marker).exists() && !Path::new("/run/nearside/domains").exists());
}

#[test]
fn commands_without_domains_work() {
    for line in ["topology", "place --cpus 1 --memory 8M", "stat --heap"] {
        for output in [run(words(line)), run_as_nobody(words(line))] {
            assert!(output.status.success(), "{line}: {}", stderr(&output));
            assert!(!stdout(&output).is_empty(), "{line}");
        }
    }
    // Reports on nodes work; reports on domains say that there can be none.
    assert_eq!(Look::take().names(), [""; 0]);
    let stat = run(words("stat"));
    assert_eq!(
        stderr(&stat).matches("no cgroup v2 tree is mounted").count(),
        1,
        "{}",
        stderr(&stat)
    );
}

#[test]
fn the_doctor_names_the_missing_parts() {
    for output in [run(words("doctor --format json")), run_as_nobody(words("doctor --format json"))]
    {
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let doctor: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(doctor["can_run"], false);
        let finding = doctor["findings"]
            .as_array()
            .unwrap()
            .iter()
            .find(|finding| finding["topic"] == "cgroup layout");
        let finding = finding.unwrap_or_else(|| panic!("{doctor:#}"));
        assert_eq!((&finding["state"], &finding["stops_run"]), (&"missing".into(), &true.into()));
        assert!(!finding["advice"].is_null(), "{finding}");
    }
}
