use super::*;

const PLAIN: &str = "description = \"two kinds\"
interval_ms = 100
[[domain]]
name = \"web\"
count = 2
threads = 2
thread_memory_mib = 16
rounds = 600
compute_us = 60
lines = 3000
[[domain]]
name = \"db\"
start_ms = 300
threads = 1
later_threads = 3
later_after_rounds = 150
later_rounds = 687
thread_memory_mib = 64
rounds = 600
compute_us = 0
lines = 1
streamed_lines = 1024
pause_us = 300
pause_rounds = 8
";

#[test]
fn scenario_is_read() {
    let scenario = parse("s.toml", PLAIN).unwrap();
    assert_eq!((scenario.description.as_str(), scenario.interval_ms), ("two kinds", 100));
    let names: Vec<_> = scenario.domains.iter().map(|domain| domain.name.as_str()).collect();
    assert_eq!(names, ["web-0", "web-1", "db"]);
    let [web, _, db] = &scenario.domains[..] else { unreachable!() };
    let work = Work {
        rounds: 600,
        compute_ns: 60_000,
        lines: 3000,
        streamed_lines: 0,
        pause_ns: 0,
        pause_rounds: 1,
    };
    assert_eq!(
        (web.work, web.threads, web.later_threads, web.memory_bytes()),
        (work, 2, 0, 32 << 20)
    );
    assert_eq!(
        (db.start_ms, db.all_threads(), db.later_after_rounds, db.later_rounds),
        (300, 4, 150, 687)
    );
    assert_eq!((db.work.pause_ns, db.work.pause_rounds, db.work.latencies()), (300_000, 8, 257.0));
    assert_eq!(parse("s.toml", &PLAIN.replace("interval_ms = 100", "")).unwrap().interval_ms, 2000);
}

#[test]
fn error_names_line_and_key() {
    let cases = [
        (
            "threads = 2",
            "threads = 0",
            "s.toml:6: domain.threads: a whole number from 1 to 1024 threads is expected, not 0",
        ),
        (
            "threads = 2",
            "threads = \"2\"",
            "6: domain.threads: a whole number from 1 to 1024 threads is expected, not \"2\"",
        ),
        (
            "rounds = 600\ncompute_us = 60",
            "rounds = 1.5\ncompute_us = 60",
            "8: domain.rounds: a whole number from 1 to",
        ),
        ("thread_memory_mib = 16\n", "", "3: missing field `thread_memory_mib`"),
        ("lines = 3000", "line = 3000", "10: unknown field `line`, expected one of "),
        (
            "name = \"db\"",
            "name = \"web-1\"",
            "12: domain.name: a name that no other domain has is expected, not web-1 again",
        ),
        ("name = \"db\"", "name = \"../db\"", "12: domain.name: 1 to 64 letters, digits, "),
        (
            "count = 2",
            "count = 600",
            "3: domain: at most 1024 threads in all are expected, not 1200 or more",
        ),
        (
            "pause_rounds = 8\n",
            "",
            "23: domain: pause_us and pause_rounds are expected together, not one alone",
        ),
        (
            "later_threads = 3\n",
            "",
            "15: domain: later_threads and later_after_rounds are expected together",
        ),
        (
            "later_threads = 3\nlater_after_rounds = 150\n",
            "",
            "15: domain: later_rounds is expected only beside",
        ),
        (
            "later_after_rounds = 150",
            "later_after_rounds = 601",
            "16: domain.later_after_rounds: a whole number from 1 to 600 ",
        ),
        (
            "compute_us = 60\nlines = 3000",
            "compute_us = 0\nlines = 0",
            "9: domain: a round that takes time is expected",
        ),
        (
            "interval_ms = 100",
            "interval_ms = 9",
            "2: interval_ms: a whole number from 10 to 60000 ms is expected, not 9",
        ),
        (
            "pause_us = 300",
            "pause_us = 9",
            "23: domain.pause_us: a whole number from 10 to 60000000 us is expected, not 9",
        ),
        (
            "rounds = 600\ncompute_us = 60\nlines = 3000",
            "rounds = 1000000000\ncompute_us = 60\nlines = 3000000",
            "8: domain.rounds: at most 146 years in all, of all threads' computing, lines of 1 \
             us and pauses, are expected, \
             not 1000000000 rounds more",
        ),
        ("interval_ms = 100", "interval_ms = ", "2: interval_ms: "),
        (
            "rounds = 600\ncompute_us = 60",
            "rounds = 99999999999999999999\ncompute_us = 60",
            "8: rounds: invalid type: integer `99999999999999999999` as i128, expected a number \
             of 64 bits at most",
        ),
        ("name = \"web\"", "name = 3", "4: name: invalid type: integer `3`, expected a string"),
    ];
    for (from, to, expected) in cases {
        let error = parse("s.toml", &PLAIN.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(
            error.contains(expected) && error.starts_with("s.toml:") && !error.contains('\n'),
            "{to}: {error}"
        );
    }
    let error = parse("s.toml", "description = \"one\"\n[domain]\nname = \"web\"\n")
        .unwrap_err()
        .to_string();
    assert_eq!(error, "s.toml:2: invalid type: a table, expected tables [[domain]]");
    let error = parse("s.toml", "domain = [1]\n").unwrap_err().to_string();
    assert_eq!(error, "s.toml:1: domain: invalid type: integer `1`, expected a table [[domain]]");
    let error = parse("s.toml", "description = \"none\"").unwrap_err().to_string();
    assert_eq!(error, "s.toml:1: domain: at least one table [[domain]] is expected");
}

#[test]
fn unreadable_file_is_an_error() {
    let error = read(Path::new("/no/such/scenario.toml")).unwrap_err().to_string();
    assert!(error.starts_with("cannot read the scenario /no/such/scenario.toml: "), "{error}");
    let error = read(Path::new("/dev/zero")).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot read the scenario /dev/zero: it is a device, expected a regular file"
    );
}
