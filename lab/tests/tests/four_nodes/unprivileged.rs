//! Without root: commands that only read work. Commands that change are refused with the missing
//! privilege, and leave nothing behind.

use nearside_lab::{Domain, MIB, read, run_as_nobody, stderr, stdout, words};
use std::fs;

const MEMORY_NODES: &str = "/sys/fs/cgroup/nearside/web/cpuset.mems";
const RECORD: &str = "/run/nearside/domains/web.json";

#[test]
fn commands_that_only_read_work() {
    let domain = Domain::start("-q --name web --memory 32M --policy strict --nodes 1", "--mib 16");
    let lines = [
        "topology",
        "place --cpus 1 --memory 8M",
        "list",
        "list --all",
        "show web",
        "why web",
        "stat",
        "stat --heap --all",
        "run --memory 8M --dry-run true",
        "set web --nodes 2 --move-memory --dry-run",
    ];
    for line in lines {
        let output = run_as_nobody(words(line));
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        assert!(!stdout(&output).is_empty(), "{line}");
    }
    let listed: serde_json::Value =
        serde_json::from_str(&stdout(&run_as_nobody(words("list --format json")))).unwrap();
    assert!(listed["domains"][0]["own_bytes"]["1"].as_u64().unwrap() >= 14 * MIB, "{listed}");
    domain.end();
}

#[test]
fn changes_are_refused_with_the_rights_that_they_need() {
    let domain = Domain::start("-q --name web --memory 32M --policy strict --nodes 1", "--mib 16");
    let record = read(RECORD);
    let cases = [
        ("run --name mine --memory 8M -- touch /tmp/mine", 125),
        ("exec web -- touch /tmp/mine", 125),
        ("set web --nodes 2", 1),
        ("set web --nodes 2 --move-memory", 1),
    ];
    for (line, code) in cases {
        let output = run_as_nobody(words(line));
        assert_eq!(output.status.code(), Some(code), "{line}: {}", stderr(&output));
        assert!(stderr(&output).contains("needs root"), "{line}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{line}");
    }
    assert_eq!((read(RECORD), read(MEMORY_NODES).as_str()), (record, "1"));
    assert_eq!(domain.filled_mib(), [(1, 16)].into());
    let names = |folder: &str| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let is_left = |name: &String| name.contains("mine");
        entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .filter(is_left)
            .collect::<Vec<_>>()
    };
    for folder in [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/nearside",
        "/run/nearside",
        "/run/nearside/domains",
        "/tmp",
    ] {
        assert_eq!(names(folder), [""; 0], "{folder}");
    }
    domain.end();
}

#[test]
fn the_doctor_reports_that_no_domain_can_be_started() {
    let output = run_as_nobody(words("doctor --format json"));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let doctor: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(doctor["can_run"], false);
    let stops = doctor["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["stops_run"] == true);
    let topics: Vec<_> = stops.map(|finding| finding["topic"].as_str().unwrap()).collect();
    assert_eq!(topics, ["cgroup owner", "records"]);
}
