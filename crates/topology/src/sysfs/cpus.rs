//! CPUs, their cores and last-level caches: `/sys/devices/system/cpu`
//! (Linux, `Documentation/admin-guide/cputopology.rst` and
//! `Documentation/ABI/testing/sysfs-devices-system-cpu`).

use super::{
    nodes::NODES,
    source::{Source, quoted},
};
use crate::{
    id::{CpuId, CpuSet, NodeId, NodeSet},
    model::{Cpu, Topology},
};
use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

const CPUS: &str = "sys/devices/system/cpu";

/// The most reads of all CPUs, while CPUs come and go meanwhile.
const MAX_READS: usize = 4;

/// Reads all CPUs; `nodes` is empty on a kernel without NUMA, where all CPUs are on node 0.
pub(super) fn read(source: &mut Source, nodes: &[NodeId]) -> Vec<Cpu> {
    settled(source, |source, online| read_once(source, nodes, online))
}

/// Whether the CPUs online in `known` are those that are online now; true if no file has their
/// state.
pub(super) fn are_online_as_in(source: &mut Source, known: &Topology) -> bool {
    let online = source.list_if_any::<CpuId>(&format!("{CPUS}/online"));
    let known = known.cpus.iter().filter(|cpu| cpu.online).map(|cpu| cpu.id).collect();
    online.is_none_or(|online| online == known)
}

/// Repeats the read while the list of online CPUs differs before and after it. So a CPU that comes
/// or goes meanwhile is not in the result by half.
fn settled(
    source: &mut Source,
    mut read: impl FnMut(&mut Source, Option<&CpuSet>) -> Vec<Cpu>,
) -> Vec<Cpu> {
    let path = format!("{CPUS}/online");
    let notes = source.notes();
    let mut online = source.list_if_any::<CpuId>(&path);
    let mut reads = 1;
    loop {
        let cpus = read(source, online.as_ref());
        let after = source.quietly(|source| source.list_if_any::<CpuId>(&path));
        if after == online {
            return cpus;
        }
        if reads == MAX_READS {
            let why = "changed each time while CPUs were read: some may have come or gone since";
            source.note(&path, why);
            return cpus;
        }
        source.forget_notes_after(notes);
        online = after;
        reads += 1;
    }
}

fn read_once(source: &mut Source, nodes: &[NodeId], online: Option<&CpuSet>) -> Vec<Cpu> {
    let places = Places::read(source, nodes);
    let mut all: CpuSet = match source.list_if_any::<CpuId>(&format!("{CPUS}/present")) {
        Some(present) => present,
        None => source.numbered(CPUS, "cpu").into_iter().map(CpuId).collect(),
    };
    all.extend(places.listed.keys().copied());
    all.extend(online.into_iter().flat_map(CpuSet::iter));
    let online = match online {
        Some(online) => online.clone(),
        None => online_by_other_files(source, &all, &places),
    };

    let mut cpus = Vec::with_capacity(all.len());
    for id in all.iter() {
        let mut cpu = Cpu { node: None, ..Cpu::new(id, NodeId(0)) };
        cpu.online = online.contains(id);
        cpu.node = places.node_of(source, id);
        cpus.push(cpu);
    }
    places.note_contradictions(source, &cpus);
    read_topology(source, &mut cpus);
    cpus
}

/// The online CPUs, if the kernel's list of them is missing. Old kernels have no list on a machine
/// without hot-plug, and copies of another machine's files may lack it. A CPU without any file
/// about its state counts as online.
fn online_by_other_files(source: &mut Source, all: &CpuSet, places: &Places<'_>) -> CpuSet {
    let mut unknown = CpuSet::new();
    let offline = source.list_if_any::<CpuId>(&format!("{CPUS}/offline"));
    let mut is_online = |id: CpuId| {
        if let Some(offline) = &offline {
            return !offline.contains(id);
        }
        if let Some(online) = source.number_if_any::<u8>(&format!("{CPUS}/cpu{id}/online")) {
            return online != 0;
        }
        // Nodes list the CPUs that are online and no other.
        let is_listed = places.listed.contains_key(&id);
        if !is_listed && !places.list_all {
            unknown.insert(id);
        }
        is_listed || !places.list_all
    };
    let online = all.iter().filter(|&id| is_online(id)).collect();
    let taken = match unknown.is_empty() {
        true => "the online CPUs are taken from other files".into(),
        false => format!("{} count as online, since no file tells", unknown.named()),
    };
    source.note(&format!("{CPUS}/online"), format_args!("cannot be read as a list: {taken}"));
    online
}

/// The nodes of all CPUs, by both kinds of files that have them.
struct Places<'a> {
    /// All nodes; none on a kernel without NUMA.
    nodes: &'a [NodeId],
    /// The nodes whose list or mask has a CPU. The kernel's own NUMA emulation lists a CPU on
    /// several.
    listed: BTreeMap<CpuId, Vec<NodeId>>,
    /// The nodes that a CPU is linked with: `nodeN/cpuM` or `cpuM/nodeN`. Offline CPUs keep theirs.
    linked: BTreeMap<CpuId, NodeSet>,
    /// Whether the lists of all nodes could be read, so that they have every online CPU.
    list_all: bool,
}

impl<'a> Places<'a> {
    fn read(source: &mut Source, nodes: &'a [NodeId]) -> Self {
        let (listed, linked) = (BTreeMap::new(), BTreeMap::new());
        let mut places = Self { nodes, listed, linked, list_all: !nodes.is_empty() };
        for &node in nodes {
            let folder = format!("{NODES}/node{node}");
            let list = format!("{folder}/cpulist");
            let notes = source.notes();
            let cpus = source.cpus_if_any(&list, &format!("{folder}/cpumap"));
            places.list_all &= cpus.is_some();
            if cpus.is_none() && source.notes() == notes {
                let why = "neither this nor cpumap can be read: the node's CPUs are unknown";
                source.note(&list, why);
            }
            for cpu in cpus.iter().flat_map(CpuSet::iter) {
                places.listed.entry(cpu).or_default().push(node);
            }
            for cpu in source.numbered(&folder, "cpu").into_iter().map(CpuId) {
                places.linked.entry(cpu).or_default().insert(node);
            }
        }
        if !nodes.is_empty() {
            let unlinked = |cpu: &CpuId| !places.linked.contains_key(cpu);
            let cpus = source.numbered(CPUS, "cpu").into_iter().map(CpuId);
            // The kernel makes both links of a CPU or none (`register_cpu_under_node` in Linux,
            // `drivers/base/node.c`).
            for cpu in cpus.filter(unlinked).collect::<Vec<_>>() {
                for node in source.numbered(&format!("{CPUS}/cpu{cpu}"), "node").into_iter() {
                    let node = NodeId(node);
                    if nodes.contains(&node) {
                        places.linked.entry(cpu).or_default().insert(node);
                    }
                }
            }
        }
        places
    }

    /// The node of a CPU: the one that lists it. If none or several do, the one it is linked with.
    fn node_of(&self, source: &mut Source, cpu: CpuId) -> Option<NodeId> {
        let listed = self.listed.get(&cpu).map_or(&[][..], Vec::as_slice);
        match listed {
            _ if self.nodes.is_empty() => return Some(NodeId(0)),
            &[node] => return Some(node),
            _ => {}
        }
        let linked = self.linked.get(&cpu).and_then(NodeSet::first);
        if let (None, &[first, _, ..]) = (linked, listed) {
            let several: Vec<String> = listed.iter().map(|node| format!("{node}")).collect();
            let several = several.join(", ");
            source.note(
                &format!("{CPUS}/cpu{cpu}"),
                format_args!(
                    "nodes {several} all list this CPU: it is taken to be on node {first}"
                ),
            );
        }
        linked.or(listed.first().copied())
    }

    /// Notes where lists and links differ, and online CPUs that neither gives a node.
    fn note_contradictions(&self, source: &mut Source, cpus: &[Cpu]) {
        if self.nodes.is_empty() {
            return;
        }
        let mut elsewhere = BTreeMap::<NodeId, (CpuSet, NodeSet)>::new();
        let mut unlisted = BTreeMap::<NodeId, CpuSet>::new();
        let mut nowhere = CpuSet::new();
        for cpu in cpus.iter().filter(|cpu| cpu.online) {
            match (self.listed.get(&cpu.id), self.linked.get(&cpu.id), cpu.node) {
                (Some(listed), Some(linked), Some(node))
                    if !listed.iter().any(|&node| linked.contains(node)) =>
                {
                    let (cpus, nodes) = elsewhere.entry(node).or_default();
                    cpus.insert(cpu.id);
                    nodes.extend(linked.iter());
                }
                (None, Some(_), Some(node)) if self.list_all => {
                    unlisted.entry(node).or_default().insert(cpu.id);
                }
                (_, _, None) => _ = nowhere.insert(cpu.id),
                _ => {}
            }
        }
        for (node, (cpus, linked)) in elsewhere {
            let (cpus, linked) = (cpus.named(), linked.named());
            source.note(
                &format!("{NODES}/node{node}/cpulist"),
                format_args!(
                    "lists {cpus}, but the links of these CPUs are on {linked}: the list counts"
                ),
            );
        }
        for (node, cpus) in unlisted {
            source.note(
                &format!("{NODES}/node{node}/cpulist"),
                format_args!(
                    "lacks {}, but the links of these CPUs are here: the links count",
                    cpus.named()
                ),
            );
        }
        if !nowhere.is_empty() {
            let nowhere = nowhere.named();
            source.note(
                NODES,
                format_args!("online, but on no node: {nowhere}; no domain is placed there"),
            );
        }
    }
}

/// Gives online CPUs their package, core and last-level cache. An offline CPU has lost them.
fn read_topology(source: &mut Source, cpus: &mut [Cpu]) {
    let (mut without_package, mut without_core, mut without_cache) =
        (Vec::new(), CpuSet::new(), CpuSet::new());
    let (mut cores, mut caches) = (Sharing::default(), Sharing::default());
    let mut packages = BTreeMap::new();
    for (at, cpu) in cpus.iter_mut().enumerate().filter(|(_, cpu)| cpu.online) {
        match cores.first_with(cpu.id, || shared(source, cpu.id, &CORE)) {
            Some(core) => cpu.core = core,
            None => _ = without_core.insert(cpu.id),
        }
        // A core is in one package.
        match *packages.entry(cpu.core).or_insert_with(|| package(source, cpu.id)) {
            Some(package) => cpu.package = package,
            None => without_package.push(at),
        }
        cpu.last_level_cache = caches.first_with(cpu.id, || last_level_cache(source, cpu.id));
        if cpu.last_level_cache.is_none() {
            without_cache.insert(cpu.id);
        }
    }
    number_packages(source, cpus, &without_package);
    // One line for all of them: hypervisors often hide the caches of every CPU.
    if !without_core.is_empty() {
        let why = format_args!(
            "no core_cpus_list for CPUs {without_core}: each is taken as a core of its own"
        );
        source.note(&format!("{CPUS}/cpu*/topology"), why);
    }
    if !without_cache.is_empty() {
        let why = format_args!(
            "no last-level cache for CPUs {without_cache}: they are taken to share none"
        );
        source.note(&format!("{CPUS}/cpu*/cache"), why);
    }
}

/// The lowest CPU of those that share something, by CPU. The kernel lists them alike for each of
/// them (`cache_shared_cpu_map_setup` in Linux, `drivers/base/cacheinfo.c`;
/// `update_siblings_masks`, `drivers/base/arch_topology.c`), so one list is enough.
#[derive(Default)]
struct Sharing(BTreeMap<CpuId, Option<CpuId>>);

impl Sharing {
    /// The lowest CPU that shares it with `cpu`; `read` gives all of them.
    fn first_with(&mut self, cpu: CpuId, read: impl FnOnce() -> Option<CpuSet>) -> Option<CpuId> {
        if let Some(known) = self.0.get(&cpu) {
            return *known;
        }
        let sharing = read();
        let first = sharing.as_ref().and_then(CpuSet::first);
        self.0.insert(cpu, first);
        // CPUs are asked about in rising order.
        let later = sharing.iter().flat_map(CpuSet::iter).filter(|&other| other > cpu);
        self.0.extend(later.map(|other| (other, first)));
        first
    }
}

/// Online CPUs that `isolcpus=` or an isolated cpuset took from the scheduler.
pub(super) fn isolated(source: &mut Source, cpus: &[Cpu]) -> CpuSet {
    let isolated = source.list_if_any::<CpuId>(&format!("{CPUS}/isolated")).unwrap_or_default();
    cpus.iter().filter(|cpu| cpu.online && isolated.contains(cpu.id)).map(|cpu| cpu.id).collect()
}

/// The package's number. The inner value is none if the architecture does not know it (-1), the
/// outer one if the file is missing.
fn package(source: &mut Source, cpu: CpuId) -> Option<Option<u32>> {
    let path = format!("{CPUS}/cpu{cpu}/topology/physical_package_id");
    let id = source.number_if_any::<i64>(&path)?;
    let package = u32::try_from(id).ok();
    if package.is_none() && id != -1 {
        source.note(&path, format_args!("read {id}, expected -1 or a 32-bit number"));
    }
    Some(package)
}

/// Numbers the packages of CPUs `without` a number by the lists of CPUs in a package, in the order
/// of their lowest CPU. If only some CPUs have a number, the others stay unknown.
fn number_packages(source: &mut Source, cpus: &mut [Cpu], without: &[usize]) {
    if cpus.iter().any(|cpu| cpu.package.is_some()) {
        return;
    }
    let mut packages: Vec<CpuId> = Vec::new();
    for &at in without {
        let Some(cpu) = cpus.get_mut(at) else { continue };
        let sharing = shared(source, cpu.id, &PACKAGE);
        let Some(first) = sharing.as_ref().and_then(CpuSet::first) else { continue };
        let number = packages.iter().position(|&package| package == first);
        cpu.package = Some(number.unwrap_or(packages.len()) as u32);
        if number.is_none() {
            packages.push(first);
        }
    }
}

/// Files of a CPU's folder `topology`, the list and the mask, under their names of today and of
/// before Linux 5.3.
type Files = [[&'static str; 2]; 2];

const CORE: Files = [["core_cpus_list", "core_cpus"], ["thread_siblings_list", "thread_siblings"]];
const PACKAGE: Files =
    [["package_cpus_list", "package_cpus"], ["core_siblings_list", "core_siblings"]];

/// The CPUs in the first valid one of these files.
fn shared(source: &mut Source, cpu: CpuId, files: &Files) -> Option<CpuSet> {
    files.iter().find_map(|[list, mask]| {
        let path = format!("{CPUS}/cpu{cpu}/topology/{list}");
        let mask = format!("{CPUS}/cpu{cpu}/topology/{mask}");
        let siblings = source.cpus_if_any(&path, &mask)?;
        with_itself(source, &path, cpu, siblings)
    })
}

/// The CPUs that share the last-level cache of `cpu`: the last one listed, as in the kernel
/// (`last_level_cache_is_valid` in Linux, `drivers/base/cacheinfo.c`).
fn last_level_cache(source: &mut Source, cpu: CpuId) -> Option<CpuSet> {
    let folder = format!("{CPUS}/cpu{cpu}/cache");
    let last = source.numbered(&folder, "index").into_iter().rev().find(|index| {
        let kind = source.text_if_any(&format!("{folder}/index{index}/type"));
        kind.is_some_and(|kind| kind.trim() != "Instruction")
    })?;
    let folder = format!("{folder}/index{last}");
    let path = format!("{folder}/shared_cpu_list");
    let sharing = source.cpus_if_any(&path, &format!("{folder}/shared_cpu_map"))?;
    with_itself(source, &path, cpu, sharing)
}

/// The CPUs that share something with `cpu`. A list without `cpu` is ignored.
fn with_itself(source: &mut Source, path: &str, cpu: CpuId, sharing: CpuSet) -> Option<CpuSet> {
    if sharing.contains(cpu) {
        return Some(sharing);
    }
    let read = quoted(&format!("{sharing}"));
    source.note(path, format_args!("read {read}, expected a list with CPU {cpu} itself in it"));
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    fn put_online(root: &Path, list: &str) {
        fs::create_dir_all(root.join(CPUS)).unwrap();
        fs::write(root.join(CPUS).join("online"), list).unwrap();
    }

    #[test]
    fn cpus_that_go_while_all_are_read_are_read_again() {
        let root = tempfile::tempdir().unwrap();
        put_online(root.path(), "0-3\n");
        let mut source = Source::open(root.path()).unwrap();
        let mut lists = Vec::new();
        let cpus = settled(&mut source, |source, online| {
            lists.push(format!("{}", online.unwrap()));
            source.note("file", "a note of this read");
            put_online(root.path(), "0-2\n");
            read_once(source, &[], online)
        });
        assert_eq!(lists, ["0-3", "0-2"]);
        assert_eq!(cpus.iter().filter(|cpu| cpu.online).count(), 3);
        let own = source.into_notes().into_iter().filter(|note| note.why.contains("this read"));
        assert_eq!(own.count(), 1, "notes of the read that was dropped are dropped, too");
    }

    #[test]
    fn a_list_that_never_settles_ends_in_a_note() {
        let root = tempfile::tempdir().unwrap();
        put_online(root.path(), "0\n");
        let mut source = Source::open(root.path()).unwrap();
        let mut reads = 0;
        settled(&mut source, |_, _| {
            reads += 1;
            put_online(root.path(), &format!("0-{reads}\n"));
            Vec::new()
        });
        assert_eq!(reads as usize, MAX_READS);
        let notes = source.into_notes();
        assert!(notes[0].why.starts_with("changed each time while CPUs were read"), "{notes:?}");
    }
}
