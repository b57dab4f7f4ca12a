//! Records that change, end, or cannot be read.

use super::*;

#[test]
fn records_are_read_again_when_they_change() {
    let made = made();
    made.group("m/vm", 0, [4096, 0]);
    let mut watcher = made.watcher(&["m/*"]);
    let mut home = |interval| {
        let seen = watcher.observe(&History::default(), turn(interval)).unwrap();
        let home = seen.machine.parts[0].home.clone().map(|home| home.nodes.to_string());
        (home, watcher.records().count(), watcher.take_notices())
    };
    assert_eq!(home(1), (None, 0, Vec::new()));
    made.put(made.record("/m/vm"));
    assert_eq!(home(2), (Some("1".into()), 1, Vec::new()));
    let mut record = made.record("/m/vm");
    record.part_mut().home.nodes = NodeSet::from([NodeId(0)]);
    made.put(record);
    assert_eq!(home(3).0.as_deref(), Some("0"));
    fs::remove_file(made.path("run/nearside/domains/%2Fm%2Fvm.json")).unwrap();
    assert_eq!(home(4), (None, 0, Vec::new()));
}

#[test]
fn a_domain_whose_record_cannot_be_read_is_not_found_anew() {
    let made = made();
    for path in ["m/vm", "m/other", "nearside/db", "nearside/db/below"] {
        made.group(path, 0, [4096, 0]);
    }
    let mut watcher = made.watcher(&["m/*", "nearside/*", "nearside/*/*"]);
    let mut interval = 0;
    let mut seen = || {
        interval += 1;
        let seen = watcher.observe(&History::default(), turn(interval)).unwrap();
        let parts: Vec<_> = seen.machine.parts.iter().map(|part| part.id.to_string()).collect();
        (parts.join(" "), watcher.take_notices())
    };
    let file = |name: &str| format!("run/nearside/domains/{name}.json");
    let later = |lifetime: &str| format!(r#"{{"version": 2, "lifetime": {lifetime}}}"#);
    let of_db = |inode: u64| {
        let path = r#""path": "/nearside/db""#;
        later(&format!(r#"{{"cgroup": {{"boot_id": "b", {path}, "inode": {inode}}}}}"#))
    };
    let inode = made.record("/nearside/db").inode;
    assert_eq!(seen().0, "/m/other /m/vm /nearside/db");
    // The lifetime tells the group, or the name that only a found domain has.
    made.file(&file("%2Fm%2Fvm"), "{");
    made.file(&file("db"), &of_db(inode));
    let (parts, notices) = seen();
    assert_eq!(parts, "/m/other");
    let [vm, db] = &notices[..] else { panic!("{notices:?}") };
    assert!(vm.contains("%2Fm%2Fvm.json: cannot read"), "{notices:?}");
    assert!(db.contains("db.json: cannot read"), "{notices:?}");
    // Records of groups that have ended hide no group.
    fs::remove_file(made.path(&file("%2Fm%2Fvm"))).unwrap();
    made.file(&file("db"), &of_db(inode + 1));
    assert_eq!(seen().0, "/m/other /m/vm /nearside/db");
    // Its group is unknown, so it may be any that Nearside made.
    made.file(&file("db"), &later("7"));
    assert_eq!(seen().0, "/m/other /m/vm");
    // A reservation is of no domain.
    fs::remove_file(made.path(&file("db"))).unwrap();
    made.file(&file("reservation+numad-1"), &of_db(inode));
    made.file(&file("reservation+numad-2"), "{");
    assert_eq!(seen().0, "/m/other /m/vm /nearside/db");
}

#[test]
fn a_claim_in_a_record_of_a_later_version_counts() {
    let made = made();
    made.group("m/vm", 0, [4096, 0]);
    let inode = made.record("/m/vm").inode;
    made.put(made.record("/m/vm"));
    let claim = r#"{"bytes": {"0": 12288, "1": 4096}, "page_size": "base"}"#;
    let record = format!(
        r#"{{"version": 2, "written_by": "nearside 9.0", "mood": "good",
            "lifetime": {{"cgroup": {{"boot_id": "b", "path": "/m/vm", "inode": {inode}}}}},
            "subject": {{"domain": {{"parts": [{{"claim": {claim}}}]}}}}}}"#
    );
    made.file("run/nearside/domains/db.json", &record);
    // The group's memory is known from its samples, or is read.
    for patterns in [&["m/*"][..], &[]] {
        let mut watcher = made.watcher(patterns);
        let seen = watcher.observe(&History::default(), turn(1)).unwrap();
        let [reservation] = &seen.machine.reservations[..] else { panic!("{seen:?}") };
        assert_eq!((&*reservation.name, reservation.owner.as_deref()), ("db.json", Some("/m/vm")));
        assert_eq!(reservation.bytes, [(NodeId(0), 8192), (NodeId(1), 4096)].into());
        let notices = watcher.take_notices();
        assert!(notices.len() == 1 && notices[0].contains("nearside 9.0"), "{notices:?}");
    }
    made.file("cg/m/vm/cgroup.events", "populated 0\n");
    let mut watcher = made.watcher(&[]);
    let seen = watcher.observe(&History::default(), turn(1)).unwrap();
    assert!(seen.machine.reservations.is_empty(), "{seen:?}");
}

/// A group whose path another one had keeps its samples, although the former record is still there
/// and other records change.
#[test]
fn a_record_of_an_ended_group_hides_no_group_of_that_path() {
    let made = made();
    made.put_vm(0);
    let mut watcher = made.watcher(&["m/*"]);
    let mut look = |interval| watcher.observe(&History::default(), turn(interval)).unwrap();
    look(1);
    fs::create_dir(made.path("gone")).unwrap();
    fs::rename(made.path("cg/m/vm"), made.path("gone/vm")).unwrap();
    made.group("m/vm", 0, [4096, 0]);
    for interval in 2..5 {
        made.group("m/other", 0, [4096, 0]);
        made.put(made.record("/m/other"));
        let seen = look(interval);
        assert_eq!(seen.machine.part(&"/m/vm".into()).unwrap().home, None, "{interval}");
        assert_eq!(seen.loads.contains_key(&"/m/vm".into()), interval > 2, "{interval}");
        made.put(Record { started_unix_s: interval, ..made.record("/m/other") });
    }
}
