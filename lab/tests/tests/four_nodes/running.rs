//! `run` becomes the command, and its refusals leave nothing behind.

use nearside_lab::{
    Domain, Look, MIB, Signal, available_bytes, await_that, domains, nearside, read, run, send,
    status, stderr, stdout, waits_for_lock, words, write,
};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Barrier,
    thread,
};

#[test]
fn exit_codes_and_signals_are_the_commands_own() {
    let code = |line: &str| run(words(line)).status.code();
    let exits = nearside()
        .args(["run", "-q", "--memory", "1M", "--", "sh", "-c", "exit 7"])
        .status()
        .unwrap();
    assert_eq!(exits.code(), Some(7));
    let killed = nearside()
        .args(["run", "-q", "--memory", "1M", "--", "sh", "-c", "kill -TERM $$"])
        .status()
        .unwrap();
    assert_eq!(killed.signal(), Some(15));
    assert_eq!(code("run --memory 1M -- nosuchcommand"), Some(127));
    assert_eq!(code("run --memory 1M -- /etc/passwd"), Some(126));
    assert_eq!(code("run --memory 1M --policy sideways -- true"), Some(125));
    assert_eq!(code("run --nonsense"), Some(125));
    assert_eq!(domains(), [""; 0]);
}

/// A command's exit code and output under `run`, after the words of `before`.
fn stands_in(before: &str, command: &[&str]) -> (Option<i32>, String) {
    let binary = std::env::var("NEARSIDE_BIN").unwrap();
    let own = [binary.as_str(), "run", "-q", "--name", "standin", "--memory", "1M", "--"];
    let mut all = words(before).chain(own).chain(command.iter().copied());
    let output = Command::new(all.next().unwrap()).args(all).stdin(Stdio::null()).output().unwrap();
    (output.status.code(), stdout(&output))
}

#[test]
fn commands_that_cannot_be_executed_exit_like_env_and_leave_nothing() {
    let folder = Path::new("/tmp/unfit");
    fs::create_dir_all(folder.join("folder")).unwrap();
    let file = |name: &str, text: &str, mode| {
        fs::write(folder.join(name), text).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    file("plain", "exit 5", 0o644);
    file("script", "exit 5", 0o755);
    file("lost", "#!/no/such/shell\n", 0o755);
    let cases = [
        ("/tmp/unfit/script", 5),
        ("script", 5),
        ("/tmp/unfit/lost", 127),
        ("/tmp/unfit/plain", 126),
        ("plain", 126),
        ("folder", 126),
        ("/tmp/unfit", 126),
        ("/tmp/unfit/plain/x", 126),
        ("/tmp/unfit/none", 127),
        ("none", 127),
    ];
    for (command, code) in cases {
        let envs = Command::new("env")
            .args(["PATH=/tmp/unfit", command])
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(envs.code(), Some(code), "env {command}");
        assert_eq!(stands_in("env PATH=/tmp/unfit", &[command]).0, Some(code), "{command}");
        assert_eq!(domains(), [""; 0], "{command}");
        if code > 125 {
            assert!(!Path::new("/sys/fs/cgroup/nearside/standin").exists(), "{command}");
            assert!(!Path::new("/run/nearside/domains/standin.json").exists(), "{command}");
        }
    }
}

#[test]
fn signal_dispositions_are_those_of_the_caller() {
    let look = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    // Signals 32 and 33 are the C library's own: it takes them when a thread starts.
    let seen = |status: &str| {
        let masks = status.split_whitespace().filter_map(|word| u64::from_str_radix(word, 16).ok());
        masks.map(|mask| mask & !(0b11 << 31)).collect::<Vec<_>>()
    };
    for before in [
        "env",
        "env --ignore-signal=PIPE,INT,HUP --block-signal=USR1,TERM",
        "env --default-signal=PIPE",
    ] {
        let mut all = words(before).chain(look);
        let alone = Command::new(all.next().unwrap()).args(all).output().unwrap();
        let (code, status) = stands_in(before, &look);
        assert_eq!((code, seen(&status).len()), (Some(0), 2), "{before}: {status}");
        assert_eq!(seen(&status), seen(&stdout(&alone)), "{before}");
    }
    let dumped = stands_in("setpriv --pdeathsig TERM", &["setpriv", "--dump"]).1;
    assert!(dumped.contains("Parent death signal: TERM"), "{dumped}");
}

#[test]
fn a_move_goes_on_where_the_hangup_is_ignored() {
    let domain =
        Domain::start("-q --name mover --memory 64M --policy strict --nodes 1", "--mib 32");
    let binary = std::env::var("NEARSIDE_BIN").unwrap();
    let mut moving = Command::new("nohup")
        .arg(binary)
        .args(words("set mover --nodes 2 --move-memory --rate 2M"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    await_that("the move has begun", || {
        assert!(moving.try_wait().unwrap().is_none(), "it ended before it had moved anything");
        domain.filled_mib().contains_key(&2)
    });
    send(moving.id(), Signal::HUP);
    assert_eq!(moving.wait().unwrap().code(), Some(0));
    assert_eq!(domain.filled_mib().into_iter().collect::<Vec<_>>(), [(2, 32)]);
    domain.end();
}

#[test]
fn it_needs_no_open_streams() {
    let binary = std::env::var("NEARSIDE_BIN").unwrap();
    let code = |command: &str, streams: &str| {
        let script = format!(
            "{binary} run --name closed --cpus 2 --memory 1M --nodes 1 -- {command} {streams}"
        );
        Command::new("bash").args(["-c", &script]).status().unwrap().code()
    };
    // Each run has a notice to print, and standard error is closed.
    for streams in ["<&- >&- 2>&-", "2>/dev/full", "2>&1 | exec true; exit ${PIPESTATUS[0]}"] {
        assert_eq!(code("sh -c 'exit 7'", streams), Some(7), "{streams}");
        assert_eq!(code("/no/such", streams), Some(127), "{streams}");
    }
}

/// Another process holds the lock: `run` names it after two seconds, and gives up after its bound.
#[test]
fn a_start_names_the_holder_of_the_lock_and_waits_as_long_as_it_may() {
    // The first start makes the folder of the lock.
    assert!(run(words("run --cpus 1 --memory 1M --quiet -- true")).status.success());
    let lock = "/run/nearside/lock";
    // One process: a child of flock would keep the lock.
    let mut holder =
        Command::new("flock").args(["--no-fork", lock, "sleep", "1000"]).spawn().unwrap();
    let is_held = || !Command::new("flock").args(["-n", lock, "true"]).status().unwrap().success();
    await_that("the lock is held", is_held);
    let refused = run(words("run --wait 3 --cpus 1 --memory 1M -- true"));
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(refused.status.code(), Some(125));
    let said = stderr(&refused);
    assert!(said.contains("nearside: waiting: "), "{said}");
    assert!(said.contains(&format!("process {}", holder.id())), "{said}");
    assert!(said.contains("(waited 3 s)"), "{said}");
}

/// A terminal that is full or stopped blocks the process that writes to it, and no other start.
#[test]
fn a_start_that_cannot_write_its_notices_blocks_no_other() {
    let (_unread, mut full) = std::io::pipe().unwrap();
    // As much as a pipe holds (pipe(7)).
    full.write_all(&[0; 1 << 16]).unwrap();
    // Without a scheduler it has a notice to print: its home's CPUs stand in.
    let line = "run --name stuck --cpus 2 --memory 1M --nodes 1 -- sleep 1000";
    let mut stuck = nearside().args(words(line)).stderr(full).spawn().unwrap();
    await_that("the domain is recorded", || domains().contains(&"stuck".to_owned()));
    let other = run(words("run --wait 10 --quiet --cpus 1 --memory 1M -- true"));
    assert!(other.status.success(), "{}", stderr(&other));
    assert_ne!(read(&format!("/proc/{}/comm", stuck.id())), "sleep", "it still writes");
    stuck.kill().unwrap();
    stuck.wait().unwrap();
}

#[test]
fn refusals_name_their_reason_and_leave_nothing() {
    let cases = [
        ("--nodes 9 --memory 10M", "node 9"),
        ("--nodes 1,^1 --memory 10M", "no node"),
        ("--nodes ^0-3 --memory 10M", "column 1"),
        ("--nodes 1-0 --memory 10M", "1-0"),
        ("--memory 99999G", "more than the whole machine has"),
        ("--memory 10M --cpus 0", "from 1 to 65536"),
        ("--memory 0", "0 bytes"),
        ("--memory 20000000T", "64 bits"),
        ("--memory 10M --page-size 3M", "3"),
        ("--memory 10M --page-size 1G", "1 GiB"),
        ("--memory 10M --near pci:ffff:ff:1f.7", "no device pci:ffff:ff:1f.7"),
        ("--memory 10M --name a/b", "no name"),
        ("--memory 450M --nodes 1 --policy strict --name big --cpu-limit 0", "0.01"),
    ];
    for (flags, said) in cases {
        let name = if flags.contains("--name") { "" } else { "--name refused" };
        let output = run(words("run").chain(words(name)).chain(words(flags)).chain(["--", "true"]));
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(125), "{flags}: {message}");
        assert!(message.contains(said), "{flags}: expected \"{said}\" in: {message}");
        assert!(message.lines().count() <= 8, "{flags}: {message}");
    }
    for name in ["refused", "big"] {
        assert!(!Path::new(&format!("/sys/fs/cgroup/nearside/{name}")).exists());
        assert!(!Path::new(&format!("/run/nearside/domains/{name}.json")).exists());
    }
    Look::take().assert_nothing_is_promised();
}

#[test]
fn a_strict_refusal_names_the_missing_bytes() {
    // The kernel keeps some of every node for itself.
    let size = Look::take().nodes("size_bytes")[1];
    let output =
        run(words(&format!("run --name big --memory {size} --policy strict --nodes 1 -- true")));
    assert_eq!(output.status.code(), Some(125));
    let message = stderr(&output);
    // "... too few (117964800 bytes)"
    let missing = message
        .split("too few (")
        .nth(1)
        .and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    assert!(missing.is_some_and(|missing| (1..size).contains(&missing)), "{message}");
}

#[test]
fn a_second_domain_of_the_same_name_is_refused_until_the_first_has_ended() {
    let first = Domain::start("--quiet --name twin --memory 8M", "--mib 8");
    let second = run(words("run --name twin --memory 8M -- true"));
    assert_eq!(second.status.code(), Some(125));
    assert!(stderr(&second).contains("twin is running"), "{}", stderr(&second));
    first.end();
    assert!(run(words("run -q --name twin --memory 8M -- true")).status.success());
}

#[test]
fn affinity_and_limits_hold_before_the_first_instruction() {
    let flags = "--quiet --name tight --cpus 2 --memory 32M --nodes 2 --affinity hard \
                 --cpu-limit 1.5 --memory-limit 64M";
    let domain = Domain::start(flags, "--mib 16");
    assert_eq!(status(domain.process(), "Cpus_allowed_list"), "4-5");
    let group = "/sys/fs/cgroup/nearside/tight";
    assert_eq!(read(&format!("{group}/cpu.max")), "150000 100000");
    assert_eq!(read(&format!("{group}/memory.max")), (64 * MIB).to_string());
    assert!(!read("/proc/self/cgroup").contains("tight"));
    assert_eq!(read(&format!("/proc/{}/cgroup", domain.process())), "0::/nearside/tight");
}

#[test]
fn the_stand_in_for_soft_affinity_is_reported_and_recorded_as_nearsides_own() {
    let output = run(words(
        "run --name soft --cpus 2 --memory 8M --nodes 3 \
         -- grep Cpus_allowed_list /proc/self/status",
    ));
    assert!(stdout(&output).trim().ends_with("6-7"), "{}", stdout(&output));
    assert_eq!(
        stderr(&output).matches("no scheduler with node affinity").count(),
        1,
        "{}",
        stderr(&output)
    );
    for (affinity, on_behalf) in [("soft", "fallback"), ("hard", "operator")] {
        let _domain = Domain::start(
            &format!("-q --name kept --memory 8M --nodes 3 --affinity {affinity}"),
            "--mib 4",
        );
        let record = read("/run/nearside/domains/kept.json");
        assert!(record.contains(&format!("\"on_behalf\": \"{on_behalf}\"")), "{record}");
    }
}

#[test]
fn resources_that_a_group_above_withholds_are_neither_offered_nor_taken() {
    let parent = "/sys/fs/cgroup/nearside";
    // The group above all domains is made with the first of them.
    assert!(run(words("run -q --name first --memory 8M -- true")).status.success());
    write(&format!("{parent}/cpuset.cpus"), "0-5");
    write(&format!("{parent}/cpuset.mems"), "0,2-3");
    // Strict domains that fill nodes: none comes to node 1 (no memory) or 3 (no CPUs).
    let size = available_bytes()[0].min(available_bytes()[2]) / 2 + 16 * MIB;
    let start = |name: &str| {
        let flags = format!("-q --name {name} --cpus 2 --policy strict --memory {size}");
        Domain::start(&flags, "--mib 16")
    };
    let both = [start("one"), start("two")];
    let mut homes: Vec<_> =
        both.iter().map(|domain| status(domain.process(), "Mems_allowed_list")).collect();
    homes.sort();
    assert_eq!(homes, ["0", "2"]);
    for (node, said) in [(1, "no memory on node 1"), (3, "no CPUs on node 3")] {
        let output = run(words(&format!("run --name named --memory 8M --nodes {node} -- true")));
        assert_eq!(output.status.code(), Some(125));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
        let output = run(words(&format!("set one --nodes {node}")));
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
    let place = run(words("place --cpus 1 --memory 8M"));
    let said = "CPUs 6-7: the cgroup /nearside does not allow them (cpuset.cpus.effective)";
    assert!(
        stderr(&place).contains(&format!("left out of placement: {said}")),
        "{}",
        stderr(&place)
    );
    for told in ["why one", "topology", "doctor"].map(|command| run(words(command))) {
        // The doctor wraps its lines.
        let all = format!("{}{}", stdout(&told), stderr(&told))
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(all.contains(said), "{all}");
    }
    drop(both);
    write(&format!("{parent}/cpuset.cpus"), "\n");
    write(&format!("{parent}/cpuset.mems"), "\n");
    let output = run(words("run -q --name named --memory 8M --nodes 3 -- true"));
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_dry_run_tells_and_does_nothing() {
    let output = run(words(
        "run --name dry --memory 8M --policy strict --nodes 1 --dry-run -- touch /tmp/touched",
    ));
    assert!(output.status.success());
    for expected in ["create domain dry", "memory on node 1 only", "CPUs 2-3", "policy strict"] {
        assert!(stdout(&output).contains(expected), "{expected} in {}", stdout(&output));
    }
    assert!(
        !Path::new("/tmp/touched").exists() && !Path::new("/sys/fs/cgroup/nearside/dry").exists()
    );
}

#[test]
fn exec_joins_a_domain_with_its_cpus_and_policy() {
    let _domain =
        Domain::start("-q --name home --memory 16M --policy preferred --nodes 2", "--mib 4");
    let script = "grep -h Cpus_allowed_list /proc/self/status; cat /proc/self/cgroup; \
                  grep -c prefer:2 /proc/self/numa_maps";
    let output = nearside().args(["exec", "home", "--", "sh", "-c", script]).output().unwrap();
    let text = stdout(&output);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].ends_with("4-5") && lines[1] == "0::/nearside/home", "{text}");
    assert!(lines[2].parse::<u32>().unwrap() > 5, "{text}");
    assert_eq!(run(words("exec nobody -- true")).status.code(), Some(125));
}

#[test]
fn a_closed_pipe_is_no_crash() {
    let binary = std::env::var("NEARSIDE_BIN").unwrap();
    for command in [
        "topology",
        "list",
        "stat --heap",
        "doctor",
        "run --memory 1M --dry-run true",
        "completions bash",
    ] {
        // The reader is gone before anything is written.
        let script = format!("(sleep 0; exec {binary} {command}) | true; exit ${{PIPESTATUS[0]}}");
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        assert!(
            matches!(output.status.code(), Some(0 | 1)),
            "{command}: {}: {}",
            output.status,
            stderr(&output)
        );
        assert!(!stderr(&output).contains("panicked"), "{command}: {}", stderr(&output));
    }
}

const GROUPS: &str = "/sys/fs/cgroup/nearside";
const RECORDS: &str = "/run/nearside/domains";

fn start_twin() -> Child {
    let mut command = nearside();
    let command =
        command.args(words("run -q --name twin --memory 8M -- sh -c")).arg("echo ready; read line");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// One of the two runs, the other is refused, and all traces are the first one's.
fn assert_one_runs(mut twins: [Child; 2]) {
    let is_ready = |child: &mut Child| {
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line == "ready\n"
    };
    let ready = twins.each_mut().map(is_ready);
    assert!(ready[0] != ready[1], "both run, or none: {ready:?}");
    if ready[1] {
        twins.swap(0, 1);
    }
    let [mut running, refused] = twins;
    let refused = refused.wait_with_output().unwrap();
    assert_eq!(refused.status.code(), Some(125));
    assert!(stderr(&refused).contains("twin is running"), "{}", stderr(&refused));
    let names = |folder: &str| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let folders_and_records = entries.filter(|entry| entry.path().is_dir() || folder != GROUPS);
        let mut names: Vec<_> =
            folders_and_records.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(GROUPS), ["twin"]);
    assert_eq!(names(RECORDS), ["twin.args", "twin.json"]);
    assert_eq!(read(&format!("{GROUPS}/twin/cgroup.procs")), running.id().to_string());
    drop(running.stdin.take());
    running.wait().unwrap();
    Look::take().assert_nothing_is_promised();
}

#[test]
fn of_two_domains_of_one_name_that_start_at_once_one_runs() {
    // Removes the remains of other tests, and creates the lock if there is none yet.
    assert!(run(words("run -q --name sweeper --memory 1M -- true")).status.success());
    for _ in 0..2 {
        let barrier = Barrier::new(2);
        let twins = thread::scope(|scope| {
            let start = || {
                barrier.wait();
                start_twin()
            };
            [scope.spawn(start), scope.spawn(start)].map(|start| start.join().unwrap())
        });
        assert_one_runs(twins);
    }

    // Both wait for the lock, where only its order is left to decide.
    let mut flock = Command::new("flock");
    let flock = flock.args(["/run/nearside/lock", "-c", "echo locked; read line"]);
    let mut holder = flock.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let twins = [start_twin(), start_twin()];
    await_that("both wait for the lock", || twins.iter().all(|twin| waits_for_lock(twin.id())));
    drop(holder.stdin.take());
    holder.wait().unwrap();
    assert_one_runs(twins);
}
