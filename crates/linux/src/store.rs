//! The records of running domains, on disk, where parallel starts and later commands find them.
//!
//! One file a domain below `/run/nearside/domains`, replaced as a whole, and a lock that whoever changes anything
//! holds. A record counts while the cgroup it names lives: same boot, same inode, a process in it. So a domain keeps its
//! claim when whoever started it is gone, and a claim never outlives its domain; what is left of a dead one is swept
//! away by the next who holds the lock.

mod known;
mod lock;

pub use known::Known;
pub use lock::{Holder, LockWait, Wait};

use crate::{
    cgroup::Tree,
    error::{Error, IoContext},
    folder::Folder,
};
use nearside_policy::{Claim, CpuReason, Decision, Home, Limits, Origin};
use nearside_topology::{CpuSet, NodeSet};
use serde::{Deserialize, Serialize};
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

/// The folder in the store that has a record for each domain.
const DOMAINS: &str = "domains";
const SUFFIX: &str = ".json";

/// The longest name of a record's file: `NAME_MAX` (255 bytes) less what is added while it is written.
const LONGEST_FILE: usize = 255 - ".new".len();

/// What is kept about a domain while it runs.
///
/// What another version wrote beside it would be lost when it is written again, so it is not read at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Its name.
    pub name: String,
    /// The boot during which it was started (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    /// The path of its cgroup.
    pub cgroup: String,
    /// The inode of that cgroup.
    pub inode: u64,
    /// When it was started, or found, in seconds since 1970.
    pub started_unix_s: u64,
    /// The pattern by which its cgroup was found, where Nearside did not start it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found_by: Option<String>,
    /// What was started; nothing where it was found.
    pub command: Vec<String>,
    /// Its home.
    pub home: Home,
    /// What is promised to it; none where it was found.
    pub claim: Option<Claim>,
    /// What it may use at most.
    pub limits: Limits,
    /// The placement behind its first home; none where it was found.
    pub decision: Option<Decision>,
    /// CPUs it is bound to, and on whose behalf.
    pub cpus: Option<CpuBinding>,
    /// Nodes its memory is confined to (`cpuset.mems`).
    pub memory_nodes: Option<NodeSet>,
    /// The nodes of its processes' memory policy, for those that are started later.
    pub policy_nodes: Option<NodeSet>,
    /// Where its memory was being moved to when that was broken off.
    pub moving_to: Option<NodeSet>,
}

/// CPUs a domain is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuBinding {
    /// Which.
    pub cpus: CpuSet,
    /// On whose behalf: Nearside lifts its own fallback when it can, an operator's never.
    pub on_behalf: CpuReason,
    /// The CPUs it is bound to as long as these have not been set: what counts as Nearside's own, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<CpuSet>,
}

/// What tells of a record whether its domain lives, which other versions' records say in the same words.
#[derive(Deserialize)]
struct Identity {
    boot_id: String,
    cgroup: String,
    inode: u64,
}

/// The file of a record.
struct Entry {
    file: String,
    /// None where not even that can be read.
    identity: Option<Identity>,
    record: Result<Record, Error>,
}

/// The folder of records.
#[derive(Debug, Clone)]
pub struct Store {
    directory: PathBuf,
    boot_id: String,
}

/// The store while this process alone may change it. The lock is free again when this is dropped,
/// and when the process executes a program or ends.
#[derive(Debug)]
pub struct Locked {
    store: Store,
    domains: Folder,
    _held: lock::Held,
}

impl Record {
    /// Whether its home is where somebody else keeps it.
    pub fn is_kept_by_others(&self) -> bool {
        self.home.origin == Origin::Adopted
    }

    /// What keeps it from being a record, if anything does: no part of it is missing by accident.
    fn contradiction(&self) -> Option<&'static str> {
        match (&self.found_by, &self.claim, &self.decision) {
            (None, Some(_), Some(_)) => None,
            (None, ..) => Some(
                "it has no claim or no decision, as a domain that was found, and no pattern that found it",
            ),
            (Some(_), None, None) if self.name == self.cgroup => None,
            (Some(_), None, None) => {
                Some("a domain that was found has the path of its cgroup for a name")
            }
            (Some(_), ..) => Some("a domain that was found has neither a claim nor a decision"),
        }
    }
}

impl Store {
    /// The store in `directory`, as of the boot that `boot_id` names. It is made when something is first recorded.
    pub fn new(directory: &Path, boot_id: &str) -> Self {
        Self { directory: directory.into(), boot_id: boot_id.trim().into() }
    }

    /// Which boot this is.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// The records of domains that live, by name, and what is wrong with those that cannot be read. One that cannot be
    /// read and whose domain has ended is nobody's concern.
    pub fn records(&self, tree: &Tree) -> (Vec<Record>, Vec<Error>) {
        let entries = match self
            .domains()
            .and_then(|domains| domains.map_or(Ok(Vec::new()), |domains| entries(&domains)))
        {
            Ok(entries) => entries,
            Err(error) => return (Vec::new(), vec![error]),
        };
        let (mut alive, mut broken) = (Vec::new(), Vec::new());
        for entry in entries.into_iter().filter(|entry| !self.has_ended(entry, tree)) {
            match entry.record {
                Ok(record) => alive.push(record),
                Err(error) => broken.push(error),
            }
        }
        alive.sort_by(|a: &Record, b| a.name.cmp(&b.name));
        (alive, broken)
    }

    /// The record of one domain as it was written last, whether the domain lives or not.
    pub fn record(&self, name: &str) -> Result<Option<Record>, Error> {
        let Some(domains) = self.domains()? else { return Ok(None) };
        let file = file(name);
        domains.read(&file)?.map(|text| parse(&domains, &file, &text).1).transpose()
    }

    /// The record of one domain, if that lives.
    pub fn living(&self, name: &str, tree: &Tree) -> Result<Option<Record>, Error> {
        let record = self.record(name)?;
        Ok(record.filter(|record| {
            let Record { boot_id, cgroup, inode, .. } = record.clone();
            self.lives(&Identity { boot_id, cgroup, inode }, tree)
        }))
    }

    /// Waits for the lock without a bound.
    pub fn lock(&self) -> Result<Locked, Error> {
        let proc = Path::new("/proc");
        self.lock_waiting(Wait { at_most: None, proc, notify: &mut |_| {}, meanwhile: &mut || {} })
    }

    /// Waits for the lock for at most this long, and calls `meanwhile` at least once a second.
    ///
    /// # Errors
    /// As [`Self::lock_waiting`].
    pub fn lock_within(
        &self,
        at_most: Duration,
        mut meanwhile: fn(),
        proc: &Path,
    ) -> Result<Locked, Error> {
        let at_most = Some(at_most);
        self.lock_waiting(Wait { at_most, proc, notify: &mut |_| {}, meanwhile: &mut meanwhile })
    }

    /// Waits for the lock. Processes get it in the order in which they asked.
    ///
    /// # Errors
    /// Where the store cannot be made or trusted. [`Error::Refused`], which names the process that
    /// holds the lock, where the wait reaches its bound.
    pub fn lock_waiting(&self, mut wait: Wait<'_>) -> Result<Locked, Error> {
        let mut locked = || {
            let own = Folder::make(&self.directory)?;
            let domains = own.make_below(DOMAINS)?;
            Ok(Locked { store: self.clone(), domains, _held: lock::take(&own, &mut wait)? })
        };
        locked().map_err(needs_root)
    }

    fn domains(&self) -> Result<Option<Folder>, Error> {
        Folder::open(&self.directory)?.map_or(Ok(None), |own| own.below(DOMAINS))
    }

    fn has_ended(&self, entry: &Entry, tree: &Tree) -> bool {
        entry.identity.as_ref().is_some_and(|identity| !self.lives(identity, tree))
    }

    fn lives(&self, identity: &Identity, tree: &Tree) -> bool {
        let is_it = |group: &crate::cgroup::Cgroup| {
            group.inode().is_ok_and(|inode| inode == identity.inode)
        };
        identity.boot_id == self.boot_id
            && tree.group(&identity.cgroup).is_ok_and(|group| is_it(&group) && group.populated())
    }
}

impl Locked {
    /// Writes a record, in place of an earlier one.
    pub fn put(&self, record: &Record) -> Result<(), Error> {
        let file = file(&record.name);
        if file.len() > LONGEST_FILE {
            return Err(Error::Refused(format!(
                "{} cannot be recorded: its file's name would have {} bytes, at most {LONGEST_FILE} are possible",
                record.name,
                file.len()
            )));
        }
        let text = serde_json::to_vec_pretty(record)
            .map_err(io::Error::from)
            .at(&self.domains.path().join(&file))?;
        self.domains.replace(&file, &text)
    }

    /// Removes a record; fine if it is gone already.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        self.domains.remove(&file(name))
    }

    /// Removes what dead domains left: their records, and empty cgroups below `parent`. Returns what is wrong with records of
    /// domains that live and cannot be read.
    pub fn sweep(&self, tree: &Tree, parent: Option<&str>) -> Result<Vec<Error>, Error> {
        let mut broken = Vec::new();
        for entry in entries(&self.domains)? {
            match self.store.has_ended(&entry, tree) {
                true => self.domains.remove(&entry.file)?,
                false => broken.extend(entry.record.err()),
            }
        }
        // Whoever makes a cgroup enters it before the lock is let go, so an empty one has no owner any more.
        let groups = parent
            .and_then(|parent| tree.group(parent).ok())
            .into_iter()
            .flat_map(|parent| parent.children());
        for group in groups.filter(|group| !group.populated()) {
            for below in group.subtree().iter().rev() {
                // One that cannot be removed yet counts for nothing and is tried again by the next.
                let _ = below.remove();
            }
        }
        Ok(broken)
    }
}

/// The file of the domain of that name. The path of a cgroup becomes one file's name: what is not plain is written as
/// `%` and two digits, so that no name leads out of the folder and no two have the same file.
fn file(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:@\\".contains(&byte);
    let letter = |byte: u8| {
        if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }
    };
    name.bytes().map(letter).chain([SUFFIX.to_owned()]).collect()
}

/// Files that are gone meanwhile are left out.
fn entries(domains: &Folder) -> Result<Vec<Entry>, Error> {
    let entry = |file: String| {
        let (identity, record) = match domains.read(&file).transpose()? {
            Ok(text) => parse(domains, &file, &text),
            Err(error) => (None, Err(error)),
        };
        Some(Entry { file, identity, record })
    };
    Ok(domains
        .names()?
        .into_iter()
        .filter(|name| name.ends_with(SUFFIX))
        .filter_map(entry)
        .collect())
}

fn parse(domains: &Folder, file: &str, text: &[u8]) -> (Option<Identity>, Result<Record, Error>) {
    let broken = |why| Error::Record { path: domains.path().join(file), why };
    let record = serde_json::from_slice::<Record>(text).map_err(|error| broken(error.to_string()));
    // It is written and removed by its name, which must not lead to another's file.
    let record = record.and_then(|record| match record.contradiction() {
        _ if self::file(&record.name) != file => {
            Err(broken(format!("read the name {:?}, expected that of the file", record.name)))
        }
        Some(why) => Err(broken(why.into())),
        None => Ok(record),
    });
    (serde_json::from_slice(text).ok(), record)
}

/// Says what is needed where it is permission that lacks.
fn needs_root(error: Error) -> Error {
    match error {
        Error::File { path, source } if source.kind() == io::ErrorKind::PermissionDenied => {
            Error::NotPermitted {
                what: format!("record claims in {}", path.display()),
                needs: "root",
            }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_policy::{
        Affinity, CostModel, MemoryPolicy, Observation, Origin, PageSize, Request, place,
    };
    use nearside_topology::{Cpu, CpuId, MemoryState, Node, NodeId, Topology};
    use serde_json::Value;
    use std::{fs, os::unix::fs::PermissionsExt};

    fn record() -> Record {
        let state = MemoryState { free_bytes: 1 << 30, ..MemoryState::default() };
        let node =
            Node { id: NodeId(0), memory_bytes: 1 << 30, state: Some(state), ..Node::default() };
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
        Record {
            name: "a".into(),
            boot_id: "this boot".into(),
            cgroup: "/a".into(),
            inode: 0,
            started_unix_s: 0,
            found_by: None,
            command: Vec::new(),
            home: Home {
                nodes: decision.chosen.nodes.clone(),
                origin: Origin::Auto,
                affinity: Affinity::Soft,
                policy: request.policy,
            },
            claim: Some(decision.chosen.claim.clone()),
            limits: Limits::default(),
            decision: Some(decision),
            cpus: None,
            memory_nodes: None,
            policy_nodes: None,
            moving_to: None,
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

        /// As a version of Nearside that knows more might write it.
        fn write_with(&self, key: &str, boot_id: &str) {
            let mut value = serde_json::to_value(&self.record).unwrap();
            value["boot_id"] = boot_id.into();
            value[key] = Value::from(7);
            fs::write(self.domains().join("a.json"), value.to_string()).unwrap();
        }

        fn sweep(&self) {
            self.store.lock().unwrap().sweep(&self.tree, None).unwrap();
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let host = Host::new();
        host.store.lock().unwrap().put(&host.record).unwrap();
        host.sweep();
        let (alive, broken) = host.store.records(&host.tree);
        assert_eq!(alive, std::slice::from_ref(&host.record));
        assert!(broken.is_empty(), "{broken:?}");
    }

    /// The record of a group that was found.
    fn found(host: &Host) -> Record {
        let (found_by, name) = (Some("a*".into()), host.record.cgroup.clone());
        Record { name, found_by, claim: None, decision: None, ..host.record.clone() }
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
            assert_eq!(file(name), expected, "{name}");
        }
        let host = Host::new();
        let cgroup = format!("/{}", "x".repeat(250));
        let long = Record { name: cgroup.clone(), cgroup, ..found(&host) };
        let said = host.store.lock().unwrap().put(&long).unwrap_err().to_string();
        assert!(said.contains("cannot be recorded") && said.contains("at most 251"), "{said}");
    }

    #[test]
    fn a_record_lacks_nothing_by_accident() {
        let host = Host::new();
        let (whole, found) = (&host.record, &found(&host));
        for (record, why) in [
            (Record { claim: None, ..whole.clone() }, "no claim or no decision"),
            (Record { decision: None, ..whole.clone() }, "no claim or no decision"),
            (Record { claim: whole.claim.clone(), ..found.clone() }, "neither a claim nor"),
            (Record { name: "a".into(), ..found.clone() }, "the path of its cgroup"),
        ] {
            host.store.lock().unwrap().put(&record).unwrap();
            let said = host.store.record(&record.name).unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn another_versions_record_is_named_while_its_domain_lives_and_swept_when_that_has_ended() {
        let host = Host::new();
        host.write_with("lease", "this boot");
        let (alive, broken) = host.store.records(&host.tree);
        assert_eq!((alive.len(), broken.len()), (0, 1));
        let said = broken[0].to_string();
        assert!(
            ["domains/a.json", "unknown field `lease`", "version"]
                .iter()
                .all(|word| said.contains(word)),
            "{said}"
        );
        host.sweep();
        assert!(host.store.record("a").is_err(), "it may hold a claim, so it stays");

        host.write_with("lease", "an earlier boot");
        let (alive, broken) = host.store.records(&host.tree);
        assert!(alive.is_empty() && broken.is_empty(), "{broken:?}");
        host.sweep();
        assert_eq!(host.store.record("a").unwrap(), None);
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
    fn one_file_that_cannot_be_read_hides_no_other() {
        let host = Host::new();
        host.store.lock().unwrap().put(&host.record).unwrap();
        fs::write(host.domains().join("b.json"), "{").unwrap();
        let (alive, broken) = host.store.records(&host.tree);
        assert_eq!((alive.len(), broken.len()), (1, 1));
    }
}
