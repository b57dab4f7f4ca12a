//! The changes that an unreadable record blocks (docs/adr/0025-unreadable-records.md).

use super::{reservations::wanted, *};
use crate::advise::advise;
use nearside_policy::CostModel;
use std::{collections::BTreeSet, os::unix::fs::PermissionsExt};

/// The path of the file of this name with a record.
fn file(made: &Made, name: &str) -> PathBuf {
    made.path(&format!("run/nearside/domains/{name}.json"))
}

/// Makes the record one of a later version, with a key that this version does not know.
fn make_later(made: &Made, name: &str) -> String {
    let path = file(made, name);
    let mut record: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["version"] = 2.into();
    record["subject"]["domain"]["colour"] = "blue".into();
    fs::write(&path, record.to_string()).unwrap();
    record.to_string()
}

fn reserve(made: &Made, name: &str, node: u32, mib: u64) -> Result<(), String> {
    let mut host = made.host();
    let mut session = host.begin().unwrap();
    let seen = session.observe(None).unwrap().clone();
    let transaction = Transaction::reserving(wanted(name, node, mib), Until::Seconds(60), &seen);
    session.apply(&transaction).map_err(|refusal| refusal.to_string())
}

fn release(made: &Made, name: &str) -> Result<bool, String> {
    made.host().begin().unwrap().release(name).map_err(|refusal| refusal.to_string())
}

/// Gives a domain a home with a claim.
fn rehome(made: &Made, name: &str, node: u32, claim_mib: u64) -> Result<(), String> {
    let mut host = made.host();
    let mut session = host.begin().unwrap();
    let seen = session.observe(None).unwrap().clone();
    let transaction = Transaction::new(going(name, node, claim_mib), &seen);
    session.apply(&transaction).map_err(|refusal| refusal.to_string())
}

/// Lifts the CPU binding of a domain, which claims nothing.
fn unbind(made: &Made, name: &str) -> Result<bool, String> {
    made.host().begin().unwrap().unbind(name).map_err(|refusal| refusal.to_string())
}

/// Creates a domain as `nearside run` does. The made-up host has no cgroup to be in, so a start
/// that nothing forbids ends with that reason.
fn start(made: &Made, name: &str, claim_mib: u64) -> String {
    let mut host = made.host();
    let mut session = host.begin().unwrap();
    let seen = session.observe(None).unwrap().clone();
    let create = Action::Create { part: name.into(), limits: Limits::default() };
    let create = Step { action: create, reason: Reason::NotNeeded };
    let steps = [vec![create], going(name, 3, claim_mib)].concat();
    let decision = decision(&seen.topology);
    let new = NewDomain { command: vec!["sleep".into()], decision };
    session.start(&Transaction::new(steps, &seen), &new).unwrap_err().to_string()
}

fn made() -> Made {
    let made = Made::new();
    made.file("proc/uptime", "100.00 1.00\n");
    made.domain("a", 0, 300);
    made.domain("b", 1, 100);
    made
}

#[test]
fn a_record_of_a_later_version_blocks_its_subject_and_keeps_its_claim() {
    let made = made();
    reserve(&made, "r", 2, 50).unwrap();
    let later = make_later(&made, "a");

    // Its claim counts, less what is resident where it is claimed.
    let refused = reserve(&made, "text", 0, 200).unwrap_err();
    assert_eq!(refused, "node 0 has 100 MiB available by now and 200 MiB are needed");
    let refused = rehome(&made, "b", 0, 101).unwrap_err();
    assert_eq!(refused, "node 0 has 100 MiB available by now and 101 MiB are needed");
    made.file("cg/nearside/a/memory.numa_stat", &format!("anon N0={} N3={}\n", 50 * MIB, 9 * MIB));
    let refused = reserve(&made, "text", 0, 200).unwrap_err();
    assert_eq!(refused, "node 0 has 150 MiB available by now and 200 MiB are needed");
    reserve(&made, "text", 0, 150).unwrap();
    assert!(reserve(&made, "more", 0, 1).is_err());

    // Everything else changes.
    rehome(&made, "b", 3, 100).unwrap();
    assert!(unbind(&made, "b").unwrap());
    assert!(release(&made, "r").unwrap());

    // The subject does not, and its record stays.
    let refusals = [
        rehome(&made, "a", 2, 100).unwrap_err(),
        unbind(&made, "a").unwrap_err(),
        start(&made, "a", 10),
        start(&made, "a", 0),
    ];
    for refused in refusals {
        assert!(refused.contains("domains/a.json: cannot read the record"), "{refused}");
        assert!(refused.contains("version 2, expected 1"), "{refused}");
    }
    assert!(start(&made, "c", 10).contains("proc/self/cgroup"));
    assert_eq!(fs::read_to_string(file(&made, "a")).unwrap(), later);
    let reservations = made.host().reservations();
    let its = reservations.iter().find(|it| it.purpose == Purpose::Unknown).unwrap();
    assert_eq!((&*its.name, its.owner.as_deref()), ("a.json", Some("/nearside/a")));

    // With its domain it ends.
    made.file("cg/nearside/a/cgroup.events", "populated 0\n");
    reserve(&made, "more", 0, 250).unwrap();
    assert!(!file(&made, "a").exists());
}

/// A pattern may find the cgroup of a domain that Nearside started.
#[test]
fn no_other_name_for_its_cgroup_changes_the_subject() {
    let made = made();
    make_later(&made, "a");
    made.group("c");
    let mut host = made.host();
    let mut session = host.begin().unwrap();
    for (path, is_blocked) in [("/nearside/a", true), ("/nearside/c", false)] {
        session.found(path, "nearside/*");
        let found = session.host.found_state(&path.into()).unwrap();
        let transaction = Transaction::new(
            going(path, 1, 0),
            &Observation { parts: vec![found], ..session.observe(None).unwrap().clone() },
        );
        let changed = session.apply(&transaction).map_err(|refusal| refusal.to_string());
        match is_blocked {
            true => assert!(changed.unwrap_err().contains("domains/a.json: cannot read"), "{path}"),
            false => changed.unwrap(),
        }
    }
}

#[test]
fn a_record_that_becomes_unreadable_under_the_lock_blocks_too() {
    let made = made();
    let mut host = made.host();
    let mut session = host.begin().unwrap();
    let seen = session.observe(None).unwrap().clone();
    let mut reserve = |name: &str| {
        let transaction = Transaction::reserving(wanted(name, 2, 1), Until::Seconds(60), &seen);
        session.have_changed();
        session.apply(&transaction).map_err(|refusal| refusal.to_string())
    };
    reserve("one").unwrap();
    fs::write(file(&made, "a"), "{").unwrap();
    let refused = reserve("two").unwrap_err();
    assert!(refused.starts_with("no memory can be claimed"), "{refused}");
    fs::set_permissions(made.path("run/nearside/domains"), fs::Permissions::from_mode(0o777))
        .unwrap();
    let refused = reserve("three").unwrap_err();
    assert!(refused.contains("cannot be trusted"), "{refused}");
}

#[test]
fn an_unknown_claim_blocks_claims_alone() {
    type Damage<'a> = &'a dyn Fn(&Made);
    let damage: [(&str, Damage<'_>); 4] = [
        ("EOF", &|made| fs::write(file(made, "a"), "{").unwrap()),
        ("version 2", &|made| {
            let text = make_later(made, "a").replace("\"claim\"", "\"promise\"");
            fs::write(file(made, "a"), text).unwrap();
        }),
        ("mode 666", &|made| {
            fs::set_permissions(file(made, "a"), fs::Permissions::from_mode(0o666)).unwrap();
        }),
        ("FIFO", &|made| {
            fs::remove_file(file(made, "a")).unwrap();
            let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
            rustix::fs::mknodat(rustix::fs::CWD, file(made, "a"), kind, mode, 0).unwrap();
        }),
    ];
    for (why, damage) in damage {
        let made = made();
        reserve(&made, "r", 2, 50).unwrap();
        damage(&made);
        let refusals = [
            reserve(&made, "text", 2, 1).unwrap_err(),
            rehome(&made, "b", 3, 100).unwrap_err(),
            start(&made, "c", 1),
        ];
        for refused in refusals {
            let unknown = "no memory can be claimed, because the claim in a record is unknown: ";
            assert!(refused.starts_with(unknown) && refused.contains("a.json"), "{refused}");
            assert!(refused.contains(why), "{why}: {refused}");
        }
        // Steps that claim nothing go on.
        assert!(unbind(&made, "b").unwrap(), "{why}");
        rehome(&made, "b", 3, 0).unwrap();
        assert!(release(&made, "r").unwrap(), "{why}");
        assert!(start(&made, "c", 0).contains("proc/self/cgroup"), "{why}");
        let refusals = [
            rehome(&made, "a", 2, 0).unwrap_err(),
            unbind(&made, "a").unwrap_err(),
            start(&made, "a", 0),
        ];
        for refused in refusals {
            assert!(refused.contains("a.json") && refused.contains(why), "{why}: {refused}");
        }
        assert!(file(&made, "a").symlink_metadata().is_ok(), "{why}");
        fs::remove_file(file(&made, "a")).unwrap();
        reserve(&made, "text", 2, 400).unwrap();
    }
}

#[test]
fn a_reservation_of_a_later_version_keeps_its_name_and_its_memory() {
    let made = made();
    reserve(&made, "numad-1", 2, 300).unwrap();
    let path = file(&made, "reservation+numad-1");
    let text = fs::read_to_string(&path).unwrap().replace("\"version\": 1", "\"version\": 2");
    fs::write(&path, &text).unwrap();
    let refused = reserve(&made, "numad-2", 2, 200).unwrap_err();
    assert_eq!(refused, "node 2 has 100 MiB available by now and 200 MiB are needed");
    reserve(&made, "numad-2", 2, 100).unwrap();
    for refused in
        [reserve(&made, "numad-1", 2, 1).unwrap_err(), release(&made, "numad-1").unwrap_err()]
    {
        assert!(refused.contains("reservation+numad-1.json: cannot read"), "{refused}");
    }
    // So the next answer of numad has another name, even if nothing is known of the first.
    let names = made.host().reservations().into_iter().map(|it| it.name);
    assert_eq!(names.collect::<BTreeSet<_>>(), ["numad-1", "numad-2"].map(str::to_owned).into());
    fs::write(&path, "{").unwrap();
    let (mut host, topology) = (made.host(), made.host().topology().unwrap());
    let advice = advise(&mut host, 1, 0, &CostModel::default(), &topology, || true).unwrap();
    assert_eq!(advice.reserved.unwrap().name, "numad-3");
    assert_eq!(fs::read_to_string(&path).unwrap(), "{");
    fs::write(&path, &text).unwrap();
    made.file("proc/uptime", "161.00 1.00\n");
    reserve(&made, "numad-1", 2, 300).unwrap();
}
