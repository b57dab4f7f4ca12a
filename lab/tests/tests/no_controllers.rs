//! Four nodes, and a cgroup v2 tree without the controllers Nearside likes to use.

#[test]
fn cgroup2_has_none_of_our_controllers() {
    let controllers = std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap();
    for absent in ["cpu", "cpuset", "memory"] {
        assert!(
            !controllers.split_whitespace().any(|found| found == absent),
            "{absent} is in {controllers}"
        );
    }
}
