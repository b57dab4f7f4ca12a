//! Isolated cpuset partitions: one that takes the CPUs of a home, and one that holds all domains.

use nearside_lab::{Domain, json, read, run, status, stderr, stdout, words, write};
use serde_json::{Value, json};
use std::{fs, path::PathBuf};

const TREE: &str = "/sys/fs/cgroup";

/// A cgroup as an isolated partition of these CPUs. It is an ordinary one again when dropped.
struct Partition {
    group: PathBuf,
    is_own: bool,
}

impl Partition {
    fn of(name: &str, cpus: &str) -> Self {
        let group = PathBuf::from(format!("{TREE}/{name}"));
        let partition = Self { is_own: !group.exists(), group };
        if partition.is_own {
            fs::create_dir(&partition.group).unwrap();
        }
        partition.write("cpuset.cpus", cpus);
        partition.write("cpuset.cpus.partition", "isolated");
        let file = partition.group.join("cpuset.cpus.partition");
        assert_eq!(read(file.to_str().unwrap()), "isolated");
        partition
    }

    fn write(&self, file: &str, text: &str) {
        write(self.group.join(file).to_str().unwrap(), text);
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        // A failed assertion may be on its way.
        let _ = fs::write(self.group.join("cpuset.cpus.partition"), "member");
        let _ = fs::write(self.group.join("cpuset.cpus"), "\n");
        if self.is_own {
            let _ = fs::remove_dir(&self.group);
        }
    }
}

fn finding(topic: &str) -> Value {
    let doctor = json("doctor");
    let findings = doctor["findings"].as_array().unwrap();
    findings.iter().find(|it| it["topic"] == topic).unwrap().clone()
}

#[test]
fn a_partition_that_takes_the_cpus_of_a_home_is_reported() {
    let flags = "--quiet --name db --cpus 2 --memory 32M --policy strict --nodes 1";
    let domain = Domain::start(flags, "--mib 8");
    assert_eq!(status(domain.process(), "Cpus_allowed_list"), "2-3");
    assert!(json("show db --interval 0")["cpus_effective"].is_null());
    let partition = Partition::of("vip", "2-3");
    // The kernel lets the binding go.
    assert_eq!(status(domain.process(), "Cpus_allowed_list"), "0-1,4-7");
    let show = json("show db --interval 0");
    assert_eq!(show["cpus_effective"], json!([0, 1, 4, 5, 6, 7]), "{show:#}");
    let text = stdout(&run(words("show db --interval 0")));
    let told = words(&text).collect::<Vec<_>>().join(" ");
    let expected = "the binding is not in force: CPUs 0-1,4-7 are effective, because all CPUs of \
                    the home are offline or in another cgroup's partition";
    assert!(told.contains(expected), "{text}");
    let partitions = finding("cpuset partitions");
    assert_eq!(
        (&partitions["state"], &partitions["found"]),
        (&"limited".into(), &"/vip (isolated)".into())
    );
    let placed = json("place --cpus 6 --memory 8M --policy strict");
    assert_eq!(placed["chosen"]["nodes"], json!([0, 2, 3]), "{placed:#}");
    let named = run(words("place --cpus 1 --memory 8M --nodes 1"));
    assert_eq!(named.status.code(), Some(1), "{}", stdout(&named));
    assert!(stderr(&named).contains("node 1"), "{}", stderr(&named));
    drop(partition);
    assert_eq!(status(domain.process(), "Cpus_allowed_list"), "2-3");
    assert_eq!(finding("cpuset partitions")["state"], "ok");
    domain.end();
}

#[test]
fn a_partition_that_holds_all_domains_is_named_as_the_reason() {
    // Whatever domain came first has made the group.
    assert!(run(words("run --quiet --name first --memory 8M -- true")).status.success());
    let partition = Partition::of("nearside", "2-7");
    let refused = run(words("run --quiet --name db --memory 8M -- true"));
    assert_eq!(refused.status.code(), Some(125));
    let expected = "CPUs 2-7 are isolated, because cpuset.cpus.partition of the cgroup /nearside \
                    is isolated: name nodes (--nodes), or write root or member to that file";
    assert!(stderr(&refused).contains(expected), "{}", stderr(&refused));
    assert_eq!(finding("cpuset partitions")["found"], "/nearside (isolated)");
    // With soft affinity it would stay unbound: the kernel moves no thread between isolated CPUs.
    let flags = "--quiet --name db --memory 16M --policy strict --nodes 1 --affinity hard";
    let domain = Domain::start(flags, "--mib 8");
    assert_eq!(status(domain.process(), "Cpus_allowed_list"), "2-3");
    domain.end();
    drop(partition);
    assert!(run(words("run --quiet --name db --memory 8M -- true")).status.success());
}
