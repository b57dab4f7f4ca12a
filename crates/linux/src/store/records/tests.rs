use super::*;
use crate::store::{Blocks, Part, Parts, Subjects, format::tests::changed};
use nearside_policy::{
    Affinity, CellId, CostModel, Home, Limits, MemoryPolicy, Observation, Origin, PageSize,
    Request, place,
};
use nearside_topology::{Cpu, CpuId, MemoryState, Node, NodeId, Topology};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
};

fn record() -> Record {
    let state = MemoryState { free_bytes: 1 << 30, ..MemoryState::default() };
    let node = Node { id: NodeId(0), memory_bytes: 1 << 30, state: Some(state), ..Node::default() };
    let topology = Topology {
        nodes: vec![node],
        cpus: vec![Cpu::new(CpuId(0), NodeId(0))],
        ..Topology::default()
    };
    let request = Request {
        vcpus: 1,
        memory_bytes: 1 << 20,
        page_size: PageSize::Base,
        policy: MemoryPolicy::Preferred,
        nodes: None,
        near: Vec::new(),
    };
    let observation = Observation::of(topology);
    let decision = place(&request, &observation, &CostModel::default()).unwrap();
    let home = Home {
        nodes: decision.chosen.nodes.clone(),
        origin: Origin::Auto,
        affinity: Affinity::Soft,
        policy: request.policy,
    };
    let claim = Some(decision.chosen.claim.clone());
    let part = Part { claim, decision: Some(decision), ..Part::at(home) };
    Record {
        name: "a".into(),
        boot_id: "this boot".into(),
        cgroup: "/a".into(),
        inode: 0,
        started_unix_s: 0,
        found_by: None,
        command: Vec::new(),
        limits: Limits::default(),
        parts: part.into(),
    }
}

/// A store beside a tree in which the record's domain lives.
struct Host {
    folder: tempfile::TempDir,
    store: Store,
    tree: Tree,
    record: Record,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("cgroup");
        fs::create_dir_all(root.join("a")).unwrap();
        fs::write(root.join("cgroup.controllers"), "").unwrap();
        fs::write(root.join("a/cgroup.events"), "populated 1\n").unwrap();
        let store = Store::new(&folder.path().join("state"), "this boot");
        store.lock().unwrap();
        let tree = Tree::at(&root).unwrap();
        let record = Record { inode: tree.group("/a").unwrap().inode().unwrap(), ..record() };
        Self { folder, store, tree, record }
    }

    fn domains(&self) -> PathBuf {
        self.folder.path().join("state/domains")
    }

    /// Writes the record as a later version may.
    fn write_later(&self, boot_id: &str) {
        let record = Record { boot_id: boot_id.into(), ..self.record.clone() };
        let text = changed(&record.into(), "version", 2.into());
        fs::write(self.domains().join("a.json"), text).unwrap();
    }

    fn lock(&self) -> Locked {
        self.store.lock().unwrap()
    }

    fn sweep(&self) {
        self.store.lock().unwrap().sweep(&self.tree, None).unwrap();
    }
}

#[test]
fn records_are_read_as_they_were_written() {
    let host = Host::new();
    host.store.lock().unwrap().put(&host.record).unwrap();
    host.sweep();
    let (alive, broken) = host.store.records(&host.tree);
    assert_eq!(alive, std::slice::from_ref(&host.record));
    assert!(broken.is_empty(), "{broken:?}");
}

/// The record of a cgroup that a pattern found.
fn found(host: &Host) -> Record {
    let (found_by, name) = (Some("a*".into()), host.record.cgroup.clone());
    let parts = Part::at(host.record.part().home.clone()).into();
    Record { name, found_by, parts, ..host.record.clone() }
}

#[test]
fn a_found_domain_is_recorded_by_the_path_of_its_cgroup() {
    let host = Host::new();
    let found = found(&host);
    host.store.lock().unwrap().put(&found).unwrap();
    assert!(host.domains().join("%2Fa.json").exists());
    host.sweep();
    assert_eq!(host.store.records(&host.tree).0, std::slice::from_ref(&found));
    assert_eq!(host.store.record("/a").unwrap(), Some(found));
    host.store.lock().unwrap().remove("/a").unwrap();
    assert_eq!(host.store.record("/a").unwrap(), None);
}

#[test]
fn no_name_leads_out_of_the_folder_or_to_another_domains_file() {
    let cases = [
        ("db-1.2_x", "db-1.2_x.json"),
        (
            "/machine.slice/machine-qemu\\x2d1.scope",
            "%2Fmachine.slice%2Fmachine-qemu\\x2d1.scope.json",
        ),
        ("/a/../../etc", "%2Fa%2F..%2F..%2Fetc.json"),
        ("../x", "..%2Fx.json"),
        ("/a%2Fb", "%2Fa%252Fb.json"),
        ("/\u{e9}\n", "%2F%C3%A9%0A.json"),
        ("..", "...json"),
    ];
    for (name, expected) in cases {
        assert_eq!(domain_file(name), expected, "{name}");
    }
    let host = Host::new();
    let cgroup = format!("/{}", "x".repeat(250));
    let long = Record { name: cgroup.clone(), cgroup, ..found(&host) };
    let said = host.store.lock().unwrap().put(&long).unwrap_err().to_string();
    assert!(said.contains("cannot be recorded") && said.contains("at most 251"), "{said}");
}

#[test]
fn records_with_missing_parts_are_refused() {
    let host = Host::new();
    let (whole, found) = (&host.record, &found(&host));
    let with = |record: &Record, change: &dyn Fn(&mut Part)| {
        let mut record = record.clone();
        change(record.part_mut());
        record
    };
    let cell = |cell| Part { cell, ..whole.part().clone() };
    let cells = |first, second| {
        let parts = vec![cell(first), cell(second)].try_into().unwrap();
        Record { parts, ..whole.clone() }
    };
    let claim = whole.part().claim.clone();
    for (record, why) in [
        (with(whole, &|part| part.claim = None), "no claim or no decision"),
        (with(whole, &|part| part.decision = None), "no claim or no decision"),
        (with(found, &|part| part.claim.clone_from(&claim)), "neither a claim nor"),
        (Record { name: "a".into(), ..found.clone() }, "the path of its cgroup"),
        (cells(None, Some(CellId(1))), "a cell of its own"),
        (cells(Some(CellId(1)), Some(CellId(1))), "a cell of its own"),
    ] {
        host.lock().put(&record).unwrap();
        let said = host.store.record(&record.name).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
    }
    let machine = cells(Some(CellId(0)), Some(CellId(1)));
    host.lock().put(&machine).unwrap();
    assert_eq!(host.store.record("a").unwrap(), Some(machine));
    assert!(Parts::try_from(Vec::new()).is_err());
}

#[test]
fn a_record_leads_to_a_group_whose_name_is_no_text() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let host = Host::new();
    for name in [&b"\xff"[..], br"\xff", b" \"'\\\t", &[b'x'; 230], &[0xfe; 50]] {
        let directory = host.tree.root().join(OsStr::from_bytes(name));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("cgroup.events"), "populated 1\n").unwrap();
        let group = host.tree.group("/").unwrap().child(OsStr::from_bytes(name));
        let path = group.path().to_owned();
        let inode = group.inode().unwrap();
        let record = Record { name: path.clone(), cgroup: path.clone(), inode, ..record() };
        host.store.lock().unwrap().put(&record).unwrap();
        assert_eq!(host.store.living(&path, &host.tree).unwrap(), Some(record), "{path}");
    }
}

#[test]
fn a_later_versions_record_stays_while_its_domain_lives() {
    let host = Host::new();
    host.write_later("this boot");
    let (alive, broken) = host.store.records(&host.tree);
    assert_eq!((alive.len(), broken.len()), (0, 1));
    let said = broken[0].to_string();
    let writer = format!("(nearside {} wrote it)", env!("CARGO_PKG_VERSION"));
    for part in ["domains/a.json: ", "version 2, expected 1", &writer] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(host.lock().sweep(&host.tree, None).unwrap().unreadable.len(), 1);
    assert!(host.store.record("a").is_err(), "it may hold a claim, so it stays");

    host.write_later("an earlier boot");
    let (alive, broken) = host.store.records(&host.tree);
    assert!(alive.is_empty() && broken.is_empty(), "{broken:?}");
    assert!(host.lock().sweep(&host.tree, None).unwrap().unreadable.is_empty());
    assert_eq!(host.store.record("a").unwrap(), None);
}

#[test]
fn records_with_unknown_keys_are_refused() {
    let host = Host::new();
    let text = changed(&host.record.clone().into(), "replicas", 7.into());
    fs::write(host.domains().join("a.json"), text).unwrap();
    let said = host.store.record("a").unwrap_err().to_string();
    assert!(said.contains("unknown field `replicas`"), "{said}");
}

#[test]
fn records_beyond_the_bound_are_neither_read_nor_written() {
    let host = Host::new();
    let long = Record { command: vec!["x".repeat(1 << 20)], ..host.record.clone() };
    let said = host.lock().put(&long).unwrap_err().to_string();
    assert!(said.contains("a cannot be recorded: its record would have"), "{said}");
    let file = fs::File::create(host.domains().join("a.json")).unwrap();
    file.set_len(200 << 20).unwrap();
    let said = host.store.record("a").unwrap_err().to_string();
    assert!(said.ends_with("a.json: it is larger than 1 MiB"), "{said}");
    fs::remove_file(host.domains().join("a.json")).unwrap();
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
    rustix::fs::mknodat(rustix::fs::CWD, host.domains().join("a.json"), kind, mode, 0).unwrap();
    let said = host.store.record("a").unwrap_err().to_string();
    assert!(said.ends_with("a.json: it is a FIFO, expected a regular file"), "{said}");
}

#[test]
fn records_that_another_user_owns_or_may_write_are_refused() {
    let host = Host::new();
    host.lock().put(&host.record).unwrap();
    let file = host.domains().join("a.json");
    let refused = |why: &str| {
        let (alive, broken) = host.store.records(&host.tree);
        assert!(alive.is_empty() && broken.len() == 1, "{broken:?}");
        let said = broken[0].to_string();
        assert!(said.contains(why) && said.contains("trusted"), "{said}");
        assert!(host.store.record("a").is_err());
        assert_eq!(host.lock().sweep(&host.tree, None).unwrap().unreadable.len(), 1);
    };
    for mode in [0o664, 0o646] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        refused(&format!("mode {mode:o}"));
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(host.store.record("a").is_ok());
    // Only root can give a file away.
    if chown(&file, Some(12_345), None).is_ok() {
        refused("belongs to user 12345");
    }
}

#[test]
fn reservations_last_as_long_as_their_lease() {
    let host = Host::new();
    let lease = |change: fn(&mut u32, &mut u64, &mut Option<u64>)| {
        let Lifetime::Lease { boot_id, mut pid, mut start_time_ticks, mut expires_unix_s } =
            host.store.lease(None).unwrap()
        else {
            panic!("a lease was asked for");
        };
        change(&mut pid, &mut start_time_ticks, &mut expires_unix_s);
        Lifetime::Lease { boot_id, pid, start_time_ticks, expires_unix_s }
    };
    let of_group = |lifetime: Lifetime, boot: &str| match lifetime {
        Lifetime::Cgroup { path, inode, .. } => {
            Lifetime::Cgroup { boot_id: boot.into(), path, inode }
        }
        other => other,
    };
    let term = |boot_id: &str, expires_boottime_s| Lifetime::Term {
        boot_id: boot_id.into(),
        expires_boottime_s,
        made_boottime_s: None,
    };
    for (number, (lifetime, lasts)) in [
        (lease(|_, _, _| {}), true),
        (lease(|_, _, expiry| *expiry = Some(u64::MAX)), true),
        (lease(|_, _, expiry| *expiry = Some(1)), false),
        (lease(|_, start, _| *start += 1), false),
        (lease(|pid, _, _| *pid = u32::MAX), false),
        (host.record.lifetime(), true),
        (of_group(host.record.lifetime(), "an earlier boot"), false),
        (term(host.store.boot_id(), u64::MAX), true),
        (term(host.store.boot_id(), 0), false),
        (term("an earlier boot", u64::MAX), false),
    ]
    .into_iter()
    .enumerate()
    {
        let bytes = [(NodeId(1), 4096)].into();
        // A domain of the same name is another subject.
        let name = "a".into();
        let (purpose, vcpus, page_size) = Default::default();
        let reservation = Reservation { name, purpose, lifetime, bytes, vcpus, page_size };
        host.lock().put(&host.record).unwrap();
        host.lock().reserve(&reservation).unwrap();
        let expected: &[Reservation] = if lasts { &[reservation] } else { &[] };
        assert_eq!(host.store.reservations(&host.tree), expected, "{number}");
        let mut known = crate::store::Known::default();
        known.refresh(&host.store).unwrap();
        assert!(known.reservations(&host.store, &host.tree).eq(expected), "{number}");
        assert_eq!(known.records(&host.store).count(), 1);
        host.sweep();
        assert_eq!(host.domains().join("reservation+a.json").exists(), lasts, "{number}");
        host.lock().release("a").unwrap();
        assert_eq!(host.store.records(&host.tree).0, std::slice::from_ref(&host.record));
    }
}

/// Changes of three subjects: one is created, one changed, one removed.
fn changes(host: &Host) -> Vec<Change> {
    let lifetime = host.store.lease(None).unwrap();
    let bytes = [(NodeId(0), 1)].into();
    let (name, purpose) = ("r".into(), nearside_policy::Purpose::Copies);
    let (vcpus, page_size) = Default::default();
    let reservation = Reservation { name, purpose, lifetime, bytes, vcpus, page_size };
    let mut moved = host.record.clone();
    moved.part_mut().moving_to = Some([NodeId(0)].into());
    let (before, found) = (host.record.clone().into(), found(host).into());
    vec![
        Change { before: None, after: Some(reservation.into()) },
        Change { before: Some(before), after: Some(moved.into()) },
        Change { before: Some(found), after: None },
    ]
}

fn subjects(host: &Host) -> Vec<Subject> {
    let Subjects { alive: mut subjects, unreadable } = host.store.subjects(&host.tree).unwrap();
    assert!(unreadable.is_empty(), "{unreadable:?}");
    subjects.sort_by(|a, b| a.name().cmp(b.name()));
    subjects
}

#[test]
fn changes_are_made_all_or_none() {
    let host = Host::new();
    let changes = changes(&host);
    for record in [&host.record, &found(&host)] {
        host.lock().put(record).unwrap();
    }
    let before = subjects(&host);
    let name = "x".repeat(300);
    let unfit = Record { name: name.clone(), ..host.record.clone() }.into();
    let refused = Change { before: None, after: Some(unfit) };
    for at in 0..=changes.len() {
        let mut with_refused = changes.clone();
        with_refused.insert(at, refused.clone());
        let said = host.lock().put_all(&with_refused).unwrap_err().to_string();
        assert!(said.contains("cannot be recorded"), "{said}");
        assert_eq!(subjects(&host), before, "refused at {at}");
    }
    host.lock().put_all(&changes).unwrap();
    let after = subjects(&host);
    let expected: Vec<_> = changes.iter().filter_map(|change| change.after.clone()).collect();
    assert!(after.len() == 2 && expected.iter().all(|subject| after.contains(subject)));
    let back: Vec<_> = changes.iter().map(Change::reversed).collect();
    host.lock().put_all(&back).unwrap();
    assert_eq!(subjects(&host), before);
}

#[test]
fn journals_outlive_their_writer_and_end_with_the_boot() {
    let host = Host::new();
    let journal = Journal { changes: changes(&host) };
    assert_eq!(host.lock().unfinished(&host.tree).unwrap(), None);
    host.lock().begin_journal(&journal).unwrap();
    assert_eq!(host.lock().unfinished(&host.tree).unwrap(), Some(journal.clone()));
    let said = host.lock().begin_journal(&journal).unwrap_err().to_string();
    assert_eq!(said, "an earlier transaction is unfinished");
    let next = Store::new(&host.folder.path().join("state"), "the next boot");
    let lock = next.lock().unwrap();
    assert_eq!(lock.unfinished(&host.tree).unwrap(), None);
    lock.begin_journal(&journal).expect("the journal of the earlier boot is gone");
    lock.end_journal().unwrap();
    lock.end_journal().unwrap();
    drop(lock);
    assert_eq!(host.lock().unfinished(&host.tree).unwrap(), None);
}

#[test]
fn unreadable_journals_are_refused_and_name_their_writer() {
    let host = Host::new();
    host.lock().begin_journal(&Journal { changes: changes(&host) }).unwrap();
    let path = host.folder.path().join("state/journal.json");
    let text = fs::read_to_string(&path).unwrap();
    for (from, to, why) in [
        ("\"version\": 1", "\"version\": 9", "version 9, expected 1 (nearside 0.1.0 wrote it)"),
        ("\"name\": \"r\"", "\"name\": \"r\", \"more\": 1", "unknown field `more`"),
        ("\"moving_to\": null", "\"moving_to\": 7", "invalid type"),
        ("\"before\": null", "\"before\": 7", "invalid type"),
    ] {
        assert!(text.contains(from), "{from}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let said = host.lock().unfinished(&host.tree).unwrap_err().to_string();
        assert!(said.contains(why) && said.contains("journal.json: "), "{said}");
        assert!(host.lock().begin_journal(&Journal::default()).is_err());
    }
    let two = Change { before: Some(found(&host).into()), after: Some(host.record.clone().into()) };
    for change in [two, Change { before: None, after: None }] {
        host.lock().end_journal().unwrap();
        host.lock().begin_journal(&Journal { changes: vec![change] }).unwrap();
        let said = host.lock().unfinished(&host.tree).unwrap_err().to_string();
        assert!(said.contains("a change must be of one subject"), "{said}");
    }
}

#[test]
fn journals_of_other_versions_end_with_their_domains() {
    let host = Host::new();
    let changes = changes(&host).split_off(1);
    host.lock().begin_journal(&Journal { changes }).unwrap();
    let path = host.folder.path().join("state/journal.json");
    let other = |inode: u64| {
        let mut text: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        text["version"] = 9.into();
        for change in text["changes"].as_array_mut().unwrap() {
            for side in ["before", "after"] {
                if change[side].is_object() {
                    change[side]["subject"] = "unknown".into();
                    change[side]["lifetime"]["cgroup"]["inode"] = inode.into();
                }
            }
        }
        fs::write(&path, text.to_string()).unwrap();
    };
    other(host.record.inode);
    let said = host.lock().unfinished(&host.tree).unwrap_err().to_string();
    assert!(said.contains("version 9") && path.exists(), "{said}");
    other(host.record.inode + 1);
    // A change whose subject is elsewhere may be of one that lives.
    let ended = fs::read_to_string(&path).unwrap();
    fs::write(&path, ended.replace(r#""before":"#, r#""former":"#)).unwrap();
    assert!(host.lock().unfinished(&host.tree).is_err() && path.exists());
    fs::write(&path, ended).unwrap();
    assert_eq!(host.lock().unfinished(&host.tree).unwrap(), None);
    assert!(!path.exists());
}

#[test]
fn records_that_others_could_have_written_are_not_believed() {
    let host = Host::new();
    host.store.lock().unwrap().put(&host.record).unwrap();
    fs::set_permissions(host.domains(), fs::Permissions::from_mode(0o777)).unwrap();
    let (alive, broken) = host.store.records(&host.tree);
    assert!(alive.is_empty() && broken[0].to_string().contains("mode 777"), "{broken:?}");
    assert!(host.store.lock().is_err() && host.store.record("a").is_err());
}

#[test]
fn an_unreadable_file_hides_no_other() {
    let host = Host::new();
    host.store.lock().unwrap().put(&host.record).unwrap();
    fs::write(host.domains().join("b.json"), "{").unwrap();
    let (alive, broken) = host.store.records(&host.tree);
    assert_eq!((alive.len(), broken.len()), (1, 1));
}

#[test]
fn a_record_that_is_no_regular_file_is_named_with_the_reason() {
    let host = Host::new();
    let path = host.domains().join("a.json");
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    type Make<'a> = &'a dyn Fn();
    let cases: [(&str, Make<'_>); 5] = [
        ("it is a symbolic link, expected", &|| std::os::unix::fs::symlink("x", &path).unwrap()),
        ("it is a FIFO, expected", &|| {
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        }),
        ("it is a folder, expected", &|| {
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }),
        ("it is a socket", &|| {
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }),
        ("cannot read the record", &|| fs::write(&path, "{").unwrap()),
    ];
    for (why, make) in cases {
        make();
        let (alive, broken) = host.store.records(&host.tree);
        let of_known = {
            let mut known = crate::store::Known::default();
            known.refresh(&host.store).unwrap();
            known.broken().map(ToString::to_string).collect::<Vec<_>>()
        };
        let one = host.store.living("a", &host.tree).unwrap_err().to_string();
        assert_eq!((alive.len(), broken.len(), of_known.len()), (0, 1, 1), "{why}");
        for said in [broken[0].to_string(), of_known[0].clone(), one] {
            assert!(said.contains("domains/a.json: ") && said.contains(why), "{why}: {said}");
        }
        fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).unwrap();
    }
}

#[test]
fn a_file_that_blocks_changes_is_named_with_a_way_out() {
    let host = Host::new();
    let state = host.domains().parent().unwrap().to_owned();
    let later = changed(&host.record.clone().into(), "version", 2.into());
    let domain = ("the record: ", "once the domain has ended");
    let reservation = ("the record of a reservation: ", "gives the memory back");
    let journal = ("the journal of an unfinished change: ", "what the change has done");
    for (file, text, (named, way_out), blocks) in [
        ("domains/a.json", &b"{"[..], domain, Blocks::EveryClaim),
        ("domains/a.json", &later, domain, Blocks::ItsSubject),
        ("domains/reservation+a.json", b"{", reservation, Blocks::EveryClaim),
        ("journal.json", b"{", journal, Blocks::EveryChange),
    ] {
        assert_eq!(host.store.blocking(&host.tree).len(), 0, "{file}");
        fs::write(state.join(file), text).unwrap();
        let all = host.store.blocking(&host.tree);
        let [(what, error)] = &all[..] else { panic!("{all:?}") };
        let said = error.to_string();
        let expected = [file, "cannot read ", named, way_out];
        assert!(expected.iter().all(|it| said.contains(it)), "{said}");
        assert_eq!(*what, blocks, "{file}");
        fs::remove_file(state.join(file)).unwrap();
    }
}

#[test]
fn an_unreadable_record_of_a_domain_that_has_ended_names_no_domain() {
    let host = Host::new();
    host.write_later("an earlier boot");
    assert_eq!(host.store.living("a", &host.tree).unwrap(), None);
    host.write_later("this boot");
    let said = host.store.living("a", &host.tree).unwrap_err().to_string();
    assert!(said.contains("a.json") && said.contains("version 2"), "{said}");
}

const SECRET: &str = "--password=s3cret";

/// The record of a command with a secret among its arguments.
fn with_secret(host: &Host) -> Record {
    Record { command: vec!["/bin/db".into(), SECRET.into(), "b".into()], ..host.record.clone() }
}

#[test]
fn arguments_are_kept_in_a_file_for_the_owner_alone() {
    let host = Host::new();
    let record = with_secret(&host);
    let lock = host.lock();
    lock.put(&record).unwrap();
    let change = Change { before: None, after: Some(record.clone().into()) };
    lock.begin_journal(&Journal { changes: vec![change] }).unwrap();
    let mut with_it = Vec::new();
    for folder in [host.folder.path().join("state"), host.domains()] {
        for file in fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
            if file.is_file() && fs::read_to_string(&file).unwrap().contains("s3cret") {
                let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o7777;
                with_it.push((file.file_name().unwrap().to_owned(), mode));
            }
        }
    }
    with_it.sort();
    assert_eq!(with_it, [("a.args".into(), 0o600), ("journal.json".into(), 0o600)]);
    assert!(fs::read_to_string(host.domains().join("a.json")).unwrap().contains("/bin/db"));
    lock.end_journal().unwrap();

    assert_eq!(host.store.record("a").unwrap(), Some(record.clone()));
    assert_eq!(host.store.records(&host.tree).0, std::slice::from_ref(&record));
    // Those of an earlier domain of that name are not taken for its own.
    let later = Record { inode: record.inode + 1, command: vec!["/bin/db".into()], ..record };
    fs::copy(host.domains().join("a.args"), host.domains().join("kept")).unwrap();
    lock.put(&later).unwrap();
    fs::rename(host.domains().join("kept"), host.domains().join("a.args")).unwrap();
    assert_eq!(host.store.record("a").unwrap(), Some(later));
    lock.remove("a").unwrap();
    assert_eq!(fs::read_dir(host.domains()).unwrap().count(), 0);
}

#[test]
fn a_sweep_hides_the_arguments_that_an_earlier_version_showed() {
    let host = Host::new();
    let record = with_secret(&host);
    let earlier = format::text(&record.clone().into()).unwrap();
    fs::write(host.domains().join("a.json"), earlier).unwrap();
    fs::write(host.domains().join("gone.args"), "{}").unwrap();
    assert_eq!(host.store.record("a").unwrap(), Some(record.clone()));
    host.sweep();
    let text = fs::read_to_string(host.domains().join("a.json")).unwrap();
    assert!(!text.contains("s3cret"), "{text}");
    assert!(!host.domains().join("gone.args").exists());
    assert_eq!(host.store.record("a").unwrap(), Some(record));
}

#[test]
fn a_user_who_is_not_the_owner_sees_the_name_of_the_program_alone() {
    let host = Host::new();
    let record = with_secret(&host);
    assert_eq!(record.for_all().command, ["/bin/db"]);
    // Only root can become another user, so this is tested where root runs the test.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    fs::set_permissions(host.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let earlier = format::text(&record.clone().into()).unwrap();
    for is_earlier in [false, true] {
        host.lock().put(&record).unwrap();
        if is_earlier {
            fs::write(host.domains().join("a.json"), &earlier).unwrap();
        }
        let seen = std::thread::scope(|scope| {
            // The effective user of this thread alone: glibc's call would change all threads.
            let other = || {
                rustix::thread::set_thread_res_uid(
                    rustix::process::getuid(),
                    rustix::process::Uid::from_raw(12_345),
                    rustix::process::getuid(),
                )
                .unwrap();
                host.store.record("a").unwrap().unwrap().command
            };
            scope.spawn(other).join().unwrap()
        });
        assert_eq!(seen, ["/bin/db"]);
    }
}
