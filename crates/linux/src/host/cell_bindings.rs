//! The bindings of one cell of a QEMU that no libvirt runs: the affinity of its vCPUs' threads. The
//! other threads may run on the CPUs of all cells, once each cell is bound.

use super::handle::Host;
use crate::{
    actuator::PartThreads, cgroup::Cgroup, confine::bind, error::Error, guest::GuestCell, sys,
};
use nearside_policy::PartId;
use nearside_topology::CpuSet;
use std::collections::BTreeSet;

/// The CPUs of the host, and what a thread that no program bound may use.
#[derive(Debug)]
struct HostCpus {
    online: CpuSet,
    ordinary: CpuSet,
}

/// A thread and its affinity.
type Thread = (i32, CpuSet);

impl Host {
    /// Binds the vCPUs of a cell to these CPUs, or frees them.
    ///
    /// # Errors
    /// [`Error::Unchanged`] if its threads are unknown, or an operator has bound one of them.
    pub(super) fn bind_cell(
        &self,
        id: &PartId,
        group: &Cgroup,
        threads: PartThreads<'_>,
        cpus: Option<&CpuSet>,
    ) -> Result<(), Error> {
        let (online, ordinary) = self.online_and_ordinary_cpus()?;
        let host = HostCpus { online, ordinary };
        // A guest that cannot be looked at keeps its bindings: no roll-back waits for it.
        let cells = self.cells_of(id, group, &self.topology()?);
        let cells = cells.map_err(|error| Error::Unchanged(error.to_string()))?;
        let affinity = |thread| Some((thread, sys::cpu_affinity(thread).ok()?));
        // A thread that has ended has no affinity.
        let now: Vec<Thread> = group.all_threads().into_iter().filter_map(affinity).collect();
        let planned = plan(&cells, &now, threads, cpus, &host);
        let planned = planned.map_err(|why| Error::Unchanged(format!("{id}: {why}")))?;
        planned.iter().try_for_each(|(thread, cpus)| bind(*thread, cpus).map(drop))
    }
}

/// The threads to bind, and their CPUs.
///
/// # Errors
/// With the reason, if the cell is to be bound and no thread of any vCPU is known, or another
/// program has bound one of the cell's.
fn plan(
    cells: &[GuestCell],
    now: &[Thread],
    threads: PartThreads<'_>,
    cpus: Option<&CpuSet>,
    host: &HostCpus,
) -> Result<Vec<Thread>, String> {
    let is_its = |cell: &&GuestCell| cell.cell.map(nearside_policy::CellId) == threads.cell;
    let of_cells: BTreeSet<_> = cells.iter().flat_map(|cell| &cell.thread_numbers).collect();
    let is_known = now.iter().any(|(thread, _)| of_cells.contains(thread));
    let its: BTreeSet<_> = match (cells.iter().find(is_its), cpus) {
        (None, Some(_)) => return Err("the guest has no such cell".into()),
        (Some(_), Some(_)) if !is_known => {
            let why = "the threads of its vCPUs are unknown: name them with debug-threads=on";
            return Err(why.into());
        }
        // A cell without vCPUs, or whose vCPUs are not plugged in, has none.
        (Some(cell), _) if is_known => cell.thread_numbers.iter().copied().collect(),
        // Another guest may run there now: all threads are freed that have the cell's CPUs.
        _ => now.iter().map(|(thread, _)| *thread).filter(|it| !of_cells.contains(it)).collect(),
    };
    let vcpus = now.iter().filter(|(thread, _)| its.contains(thread));
    let mut planned = Vec::new();
    // A vCPU that was plugged in has the affinity of the thread that started it.
    let of_cell: Vec<_> = threads.own.iter().copied().chain(threads.shared.before).collect();
    for (thread, affinity) in vcpus {
        match (host.may_bind(affinity, &of_cell), cpus) {
            (true, _) => planned.push((*thread, cpus.unwrap_or(&host.ordinary).clone())),
            (false, None) => {}
            (false, Some(_)) => {
                return Err(format!(
                    "thread {thread} of a vCPU is bound to {} by another program",
                    affinity.named()
                ));
            }
        }
    }
    let shared = match (threads.shared.before, threads.shared.after) {
        (_, Some(all)) => Some(all),
        (Some(_), None) => Some(&host.ordinary),
        (None, None) => None,
    };
    let own: Vec<_> = threads.shared.before.into_iter().collect();
    let is_shared = |thread: &i32| !of_cells.contains(thread) && !its.contains(thread);
    for (thread, affinity) in now.iter().filter(|(thread, _)| is_shared(thread)) {
        let free = shared.filter(|_| host.may_bind(affinity, &own));
        planned.extend(free.map(|cpus| (*thread, cpus.clone())));
    }
    Ok(planned)
}

impl HostCpus {
    /// Whether a thread is bound by nobody, or by Nearside.
    fn may_bind(&self, affinity: &CpuSet, own: &[&CpuSet]) -> bool {
        let is_own = |bound: &&CpuSet| bound.intersection(&self.online) == *affinity;
        self.ordinary.is_subset(affinity) || own.iter().any(is_own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actuator::SharedThreads;
    use nearside_policy::CellId;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn host() -> HostCpus {
        HostCpus { online: set("0-7"), ordinary: set("0-7") }
    }

    /// Two cells with the threads 11 and 12, and 13.
    fn cells() -> Vec<GuestCell> {
        let cell = |number, threads: &[i32]| GuestCell {
            cell: Some(number),
            thread_numbers: threads.into(),
            ..GuestCell::default()
        };
        vec![cell(0, &[11, 12]), cell(1, &[13])]
    }

    /// All threads of the guest, with the emulator's 10, where those of no list are free.
    fn now(bound: &[(i32, &str)]) -> Vec<Thread> {
        let affinity = |thread| {
            let list = bound.iter().find(|(it, _)| *it == thread).map_or("0-7", |(_, list)| list);
            (thread, set(list))
        };
        [10, 11, 12, 13].map(affinity).into()
    }

    fn planned(
        cell: u32,
        now: &[Thread],
        own: &[&str],
        shared: [Option<&str>; 2],
        cpus: Option<&str>,
    ) -> Result<Vec<(i32, String)>, String> {
        let own: Vec<_> = own.iter().map(|list| set(list)).collect();
        let own: Vec<_> = own.iter().collect();
        let [before, after] = shared.map(|list| list.map(set));
        let shared = SharedThreads { before: before.as_ref(), after: after.as_ref() };
        let threads = PartThreads { cell: Some(CellId(cell)), own: &own, shared };
        let cpus = cpus.map(set);
        let planned = plan(&cells(), now, threads, cpus.as_ref(), &host())?;
        Ok(planned.into_iter().map(|(thread, cpus)| (thread, cpus.to_string())).collect())
    }

    fn to(threads: &[i32], list: &str) -> Vec<(i32, String)> {
        threads.iter().map(|&thread| (thread, list.to_owned())).collect()
    }

    #[test]
    fn a_cell_is_bound_alone_and_the_last_one_takes_the_other_threads_along() {
        assert_eq!(planned(0, &now(&[]), &[], [None, None], Some("0-1")), Ok(to(&[11, 12], "0-1")));
        let one = now(&[(11, "0-1"), (12, "0-1")]);
        let all = planned(1, &one, &[], [None, Some("0-1,4-5")], Some("4-5"));
        assert_eq!(all, Ok([to(&[13], "4-5"), to(&[10], "0-1,4-5")].concat()));
        // Cell 1 moves on, and is freed then.
        let both = now(&[(10, "0-1,4-5"), (11, "0-1"), (12, "0-1"), (13, "4-5")]);
        let shared = [Some("0-1,4-5"), Some("0-1,6-7")];
        let moved = planned(1, &both, &["4-5"], shared, Some("6-7"));
        assert_eq!(moved, Ok([to(&[13], "6-7"), to(&[10], "0-1,6-7")].concat()));
        // A new vCPU has the CPUs of the emulator.
        let plugged = now(&[(10, "0-1,4-5"), (11, "0-1"), (12, "0-1"), (13, "0-1,4-5")]);
        assert_eq!(planned(1, &plugged, &["4-5"], shared, Some("6-7")), moved);
        let freed = planned(1, &both, &["4-5"], [Some("0-1,4-5"), None], None);
        assert_eq!(freed, Ok([to(&[13], "0-7"), to(&[10], "0-7")].concat()));
    }

    #[test]
    fn bindings_of_others_stay() {
        let bound = now(&[(12, "3"), (10, "2")]);
        let why = planned(0, &bound, &["0-1"], [None, None], Some("4-5")).unwrap_err();
        assert_eq!(why, "thread 12 of a vCPU is bound to CPU 3 by another program");
        // The emulator is bound to CPU 2; cell 1 has no such thread.
        let shared = [None, Some("0-1,4-5")];
        assert_eq!(planned(1, &bound, &[], shared, Some("4-5")), Ok(to(&[13], "4-5")));
        assert_eq!(planned(0, &bound, &["0-1"], [None, None], None), Ok(to(&[11], "0-7")));
    }

    #[test]
    fn cells_without_known_threads_are_not_bound() {
        let why = planned(2, &now(&[]), &[], [None, None], Some("4")).unwrap_err();
        assert!(why.contains("no such cell"), "{why}");
        let gone: Vec<_> = now(&[]).into_iter().filter(|(thread, _)| *thread != 13).collect();
        assert_eq!(planned(1, &gone, &[], [None, None], Some("4")), Ok(vec![]), "not plugged in");
        let emulator = &now(&[])[..1];
        let why = planned(1, emulator, &[], [None, None], Some("4")).unwrap_err();
        assert!(why.contains("debug-threads=on"), "{why}");
    }

    #[test]
    fn cells_of_a_guest_that_is_gone_are_freed() {
        // Cell 2 had CPUs 2-3, and the emulator those of all.
        let left = now(&[(10, "0-3"), (11, "0-1"), (12, "0-1"), (13, "4-5")]);
        let freed = planned(2, &left, &["2-3"], [Some("0-3"), None], None);
        assert_eq!(freed, Ok(to(&[10], "0-7")));
        let others: Vec<_> = [(20, "2-3"), (21, "6")].map(|(it, list)| (it, set(list))).into();
        let freed = planned(0, &others, &["2-3"], [Some("0-3"), None], None);
        assert_eq!(freed, Ok(to(&[20], "0-7")));
    }
}
