//! Hosts with defects: records that cannot be written or trusted, and mounts of a part of the
//! cgroup tree.

use nearside_lab::{Domain, domains, read, run, status, stderr, stdout, words};
use std::{fs, io::Write, os::unix::fs::symlink, path::Path, process::Command};

const STATE: &str = "/run/nearside";

/// A file system over the folder of records, until this is dropped.
struct Mounted;

impl Mounted {
    fn with(options: &str) -> Self {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs", STATE])
            .status()
            .unwrap();
        assert!(mounted.success(), "{options}");
        Self
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        assert!(Command::new("umount").args(["-l", STATE]).status().unwrap().success());
    }
}

#[test]
fn records_that_find_no_room_leave_the_earlier_ones() {
    let _mounted = Mounted::with("size=64k,mode=755");
    let domain =
        Domain::start("-q --name kept --cpus 2 --memory 16M --policy strict --nodes 1", "--mib 4");
    let record = || read("/run/nearside/domains/kept.json");
    let before = record();
    let mut filler = fs::File::create("/run/nearside/filler").unwrap();
    while filler.write_all(&[0; 4096]).is_ok() {}

    for line in ["set kept --nodes 2", "run --name other --memory 8M -- true"] {
        let output = run(words(line));
        assert_eq!(
            output.status.code(),
            Some(if line.starts_with("run") { 125 } else { 1 }),
            "{line}"
        );
        let said = stderr(&output);
        // `set` writes the journal first, `run` the record.
        assert!(said.contains("No space left") && said.contains("/run/nearside/"), "{said}");
    }
    assert_eq!(record(), before);
    assert_eq!(read("/sys/fs/cgroup/nearside/kept/cpuset.mems"), "1");
    assert_eq!(status(domain.process(), "Cpus_allowed_list"), "2-3");
    assert!(!Path::new("/sys/fs/cgroup/nearside/other").exists());
    assert_eq!(domains(), ["kept"]);

    filler.set_len(0).unwrap();
    let output = run(words("set kept --nodes 2"));
    assert!(output.status.success(), "{}", stderr(&output));
    domain.end();
}

#[test]
fn records_that_any_user_could_have_made_are_refused() {
    for (options, why) in [("uid=65534", "belongs to user 65534"), ("mode=1777", "mode 1777")] {
        let _mounted = Mounted::with(options);
        let output = run(words("run --name mine --memory 8M -- true"));
        assert_eq!(output.status.code(), Some(125), "{options}");
        assert!(stderr(&output).contains(why), "{options}: {}", stderr(&output));
        assert!(stderr(&run(["list"])).contains(why), "{options}");
        let doctor = run(["doctor"]);
        assert_eq!(doctor.status.code(), Some(1), "{options}");
        assert!(stdout(&doctor).contains("trusted"), "{options}: {}", stdout(&doctor));
    }
    let _mounted = Mounted::with("mode=755");
    symlink("/tmp", "/run/nearside/domains").unwrap();
    let output = run(words("run --name mine --memory 8M -- true"));
    assert!(stderr(&output).contains("/run/nearside/domains is no folder"), "{}", stderr(&output));
    assert!(!Path::new("/tmp/mine.json").exists());
}

#[test]
fn another_versions_record_blocks_its_domain_and_claims_only_if_its_own_is_unknown() {
    let domain = Domain::start("-q --name newer --memory 8M", "--mib 1");
    let path = "/run/nearside/domains/newer.json";
    let record = read(path).replacen('{', "{\"lease\": 7,", 1);
    let is_refused = |command: &str, whys: &[&str]| {
        let refused = run(words(command));
        assert_eq!(refused.status.code(), Some(125), "{command}");
        let said = stderr(&refused);
        assert!(whys.iter().all(|why| said.contains(why)), "{said}");
    };
    fs::write(path, &record).unwrap();
    assert!(run(words("run -q --name other --memory 8M -- true")).status.success());
    let listed = stdout(&run(words("list")));
    assert!(listed.contains("newer, whose record cannot be read"), "{listed}");
    is_refused("run --name newer --memory 8M -- true", &["newer.json", "lease"]);
    is_refused("exec newer -- true", &["newer.json", "lease"]);
    assert_eq!(read(path), record);

    fs::write(path, record.replace("\"claim\"", "\"promise\"")).unwrap();
    let unknown = "no memory can be claimed, because the claim in a record is unknown";
    is_refused("run --name other --memory 8M -- true", &["newer.json", unknown]);
    domain.end();
    assert!(run(words("run -q --name other --memory 8M -- true")).status.success());
    assert!(!Path::new(path).exists());
}

/// As in containers: a process in the group `/box` that sees only that group, or sees the tree from
/// a namespace of its own.
fn in_a_box(script: &str) -> (Option<i32>, String) {
    let binary = std::env::var("NEARSIDE_BIN").unwrap();
    let script = format!(
        "echo $$ >/sys/fs/cgroup/box/cgroup.procs; run='{binary} run -q --memory 1M'; {script}"
    );
    fs::create_dir_all("/sys/fs/cgroup/box").unwrap();
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap();
    (output.status.code(), stdout(&output) + &stderr(&output))
}

#[test]
fn domains_live_in_the_mounted_part_of_the_tree() {
    let bind = "mount --bind /sys/fs/cgroup/box /sys/fs/cgroup && ";
    let (code, text) = in_a_box(&format!("{bind} $run --name inner -- cat /proc/self/cgroup"));
    assert_eq!((code, text.trim()), (Some(0), "0::/box/nearside/inner"));
    assert_eq!(
        read("/sys/fs/cgroup/box/cgroup.type"),
        "domain",
        "nothing was enabled that its processes are in the way of"
    );

    // A domain whose command cannot be executed returns to its former group, and its own group is
    // removed.
    fs::write("/tmp/lost", "#!/no/such/shell\n").unwrap();
    Command::new("chmod").args(["755", "/tmp/lost"]).status().unwrap();
    let (code, text) = in_a_box(&format!(
        "{bind} $run --name lost -- /tmp/lost; echo $?; ls -d /sys/fs/cgroup/nearside/*"
    ));
    assert!(text.contains("127") && !text.contains("nearside/lost"), "{code:?}: {text}");

    let (code, text) = in_a_box("exec unshare --cgroup sh -c \"$run --name outer -- true\"");
    assert_eq!(code, Some(125), "{text}");
    assert!(text.contains("begins with /.."), "{text}");
    let own = "umount -l /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup";
    let (code, text) = in_a_box(&format!(
        "exec unshare --cgroup sh -c \"{own} && $run --name own -- cat /proc/self/cgroup\""
    ));
    assert_eq!((code, text.trim()), (Some(0), "0::/nearside/own"));
    assert_eq!(domains(), [""; 0]);
}
