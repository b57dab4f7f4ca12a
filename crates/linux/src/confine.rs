//! Keeping a domain on CPUs and nodes: by the cpuset of its cgroup or, without one, by the affinity
//! of each thread.

use crate::{
    cgroup::Cgroup,
    error::{Error, IoContext},
    sys,
};
use nearside_topology::{CpuId, CpuSet, Id, IdSet, NodeSet};
use std::{collections::BTreeSet, path::Path, thread, time::Duration};

/// One of the sets of a cpuset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpuset {
    /// Its file.
    pub(crate) file: &'static str,
    /// Its property in systemd.
    pub(crate) property: &'static str,
}

pub(crate) const CPUS: Cpuset = Cpuset { file: "cpuset.cpus", property: "AllowedCPUs" };
pub(crate) const MEMORY_NODES: Cpuset =
    Cpuset { file: "cpuset.mems", property: "AllowedMemoryNodes" };

/// Whether a group is confined to a set. False if it has no cpuset.
///
/// # Errors
/// If it is confined to another set. The kernel and systemd also accept CPUs and nodes that the
/// groups above do not allow, and then apply the sets of those groups.
pub(crate) fn is_in_force<T: Id>(
    group: &Cgroup,
    set: Cpuset,
    wanted: &IdSet<T>,
) -> Result<bool, Error> {
    let Some(effective) = group.read(&format!("{}.effective", set.file))? else { return Ok(false) };
    match effective.parse::<IdSet<T>>() {
        Ok(effective) if effective == *wanted => Ok(true),
        _ => Err(Error::NotInForce(format!(
            "{} {wanted} of {} is not in force: the groups above it allow {}",
            set.file,
            group.path(),
            effective.trim()
        ))),
    }
}

/// Whether a group's set includes all that the group above it allows. An empty set always does, but
/// older kernels refuse an empty set for a group with processes.
pub(crate) fn confines_nothing(group: &Cgroup, set: Cpuset) -> Result<bool, Error> {
    Ok(leaves_out_nothing(group, set, group.read(set.file)?.unwrap_or_default().trim()))
}

/// As [`confines_nothing`]; `text` is the content of the group's file.
fn leaves_out_nothing(group: &Cgroup, set: Cpuset, text: &str) -> bool {
    if text.is_empty() {
        return true;
    }
    let above =
        group.directory().parent().map(|above| above.join(format!("{}.effective", set.file)));
    let above = above.and_then(|file| crate::read::text(&file).ok()?.parse::<IdSet<CpuId>>().ok());
    let covers =
        |set: IdSet<CpuId>| above.is_some_and(|above| !above.is_empty() && above.is_subset(&set));
    text.parse().is_ok_and(covers)
}

/// The CPUs that the kernel may ever bring online.
pub(crate) fn possible_cpus(root: &Path) -> Result<CpuSet, Error> {
    set_in(root, "cpu/possible")
}

/// The nodes that have memory, the most that the kernel takes for a cpuset.
pub(crate) fn nodes_with_memory(root: &Path) -> Result<NodeSet, Error> {
    set_in(root, "node/has_memory")
}

fn set_in<T: Id>(root: &Path, file: &str) -> Result<IdSet<T>, Error> {
    let path = root.join("sys/devices/system").join(file);
    let refused = |why: String| Error::Refused(format!("{}: {why}", crate::escape::text(&path)));
    let text = crate::read::text(&path).map_err(|error| refused(error.to_string()))?;
    text.trim().parse().map_err(|_| refused(format!("{:?} is no list", text.trim())))
}

/// The CPUs that another program has set for a group, as the cpuset lists them. None if they
/// include all that the group above allows, or are those of one of Nearside's `own` bindings.
pub(crate) fn cpus_of_others(group: &Cgroup, own: &[&CpuSet]) -> Result<Option<String>, Error> {
    let text = group.read(CPUS.file)?.unwrap_or_default();
    let (text, set) = (text.trim(), text.trim().parse::<CpuSet>().ok());
    let is_own = set.is_some_and(|set| own.contains(&&set));
    Ok((!is_own && !leaves_out_nothing(group, CPUS, text)).then(|| text.to_owned()))
}

/// The most reads of a group's list of threads. More than a few are needed only if threads start
/// each other faster than they can be bound.
const LOOKS: u32 = 100;

/// Number of reads in a row that must find no unbound thread, and the pause between them.
///
/// A thread that starts another copies its own affinity first and adds the new thread to the group
/// last (`copy_process` in `kernel/fork.c`). If it is bound in between, the new thread is unbound
/// and not yet in any list. The kernel sends no event when it appears. (With a cpuset,
/// `cpuset_fork` binds it.)
const QUIET_LOOKS: u32 = 10;
const BETWEEN_QUIET_LOOKS: Duration = Duration::from_millis(10);

/// Binds every thread, including those started meanwhile. A new thread inherits the affinity of the
/// thread that starts it, so this ends once reads of the list find no unbound thread. False if new
/// threads kept appearing.
///
/// `bind` returns true if the thread was unbound before, or has ended and may have started another.
/// `wait` gives new threads time to appear in the list.
pub(crate) fn bind_each(
    mut threads: impl FnMut() -> Vec<i32>,
    mut bind: impl FnMut(i32) -> Result<bool, Error>,
    mut wait: impl FnMut(),
) -> Result<bool, Error> {
    // A thread that binds itself elsewhere is left alone.
    let mut seen = BTreeSet::new();
    let mut quiet_looks = 0;
    for _ in 0..LOOKS {
        let mut is_any_new = false;
        for thread in threads().into_iter().filter(|&thread| seen.insert(thread)) {
            is_any_new |= bind(thread)?;
        }
        quiet_looks = if is_any_new { 0 } else { quiet_looks + 1 };
        match quiet_looks {
            0 => {}
            QUIET_LOOKS => return Ok(true),
            _ => wait(),
        }
    }
    Ok(false)
}

/// Gives new threads time to appear in the list of the group.
pub(crate) fn wait_for_starts() {
    thread::sleep(BETWEEN_QUIET_LOOKS);
}

/// Allows a thread these CPUs only. Returns true if that changed its affinity, as [`bind_each`]
/// needs to know.
///
/// # Errors
/// [`Error::NotInForce`] if none of the CPUs is online, or the thread's cgroup allows none of them.
pub(crate) fn bind(thread: i32, cpus: &CpuSet) -> Result<bool, Error> {
    if sys::cpu_affinity(thread).is_ok_and(|now| now == *cpus) {
        return Ok(false);
    }
    match sys::set_cpu_affinity(thread, cpus) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Err(Error::NotInForce(format!(
                "thread {thread} cannot be allowed {}: none of them is both online and \
                 allowed by its cgroup",
                cpus.named()
            )))
        }
        set => set.doing(&format!("allow thread {thread} {}", cpus.named())).map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Tree;
    use nearside_topology::{CpuId, CpuSet};
    use std::{cell::RefCell, fs};

    /// Threads, each of which starts the next after every read of the list and then ends, and
    /// whether the last one is bound.
    struct Chain {
        last: i32,
        is_bound: bool,
    }

    #[test]
    fn threads_started_meanwhile_do_not_escape() {
        for late in 1..5 {
            let chain = RefCell::new(Chain { last: 0, is_bound: false });
            let look = || {
                let seen = chain.borrow().last;
                chain.borrow_mut().last += 1;
                vec![seen]
            };
            let bind = |thread| {
                // The first threads have started another before they are bound, and have ended.
                let mut chain = chain.borrow_mut();
                let was_bound = chain.is_bound;
                chain.is_bound |= thread >= late;
                Ok(!was_bound)
            };
            assert!(bind_each(look, bind, || ()).unwrap());
            assert!(chain.borrow().is_bound, "{late}");
        }
    }

    #[test]
    fn a_thread_that_is_listed_late_is_bound() {
        // Thread 1 is bound while it starts 2, which appears in the list a few waits later.
        let (waits, bound) = (RefCell::new(0), RefCell::new(Vec::new()));
        let look = || if *waits.borrow() < 5 { vec![1] } else { vec![1, 2] };
        let bind = |thread| {
            bound.borrow_mut().push(thread);
            Ok(true)
        };
        assert!(bind_each(look, bind, || *waits.borrow_mut() += 1).unwrap());
        assert_eq!(*bound.borrow(), [1, 2]);
    }

    #[test]
    fn binding_gives_up_while_new_threads_keep_appearing() {
        let mut last = 0;
        let look = || {
            last += 1;
            vec![last]
        };
        assert!(!bind_each(look, |_| Ok(true), || ()).unwrap());
    }

    #[test]
    fn each_thread_is_bound_once_and_errors_end_the_binding() {
        let mut bound = Vec::new();
        let bind = |thread| {
            bound.push(thread);
            Ok(true)
        };
        assert!(bind_each(|| vec![1, 2], bind, || ()).unwrap());
        assert_eq!(bound, [1, 2]);
        assert!(bind_each(|| vec![1], |_| Err(Error::NoCgroupTree), || ()).is_err());
    }

    #[test]
    fn a_thread_is_bound_once() {
        // In a thread of its own, so that the other tests keep their CPUs.
        let bound = std::thread::spawn(|| {
            let first = CpuSet::from([sys::cpu_affinity(0).unwrap().first().unwrap()]);
            let own = rustix::thread::gettid().as_raw_pid();
            let before = sys::cpu_affinity(own).unwrap() == first;
            (
                before,
                bind(own, &first).unwrap(),
                bind(own, &first).unwrap(),
                sys::cpu_affinity(0).unwrap() == first,
            )
        });
        let (before, first, second, is_there) = bound.join().unwrap();
        assert_eq!((first, second, is_there), (!before, false, true));
        let offline = CpuSet::from([CpuId(8191)]);
        let refused = bind(0, &offline).unwrap_err();
        assert!(matches!(refused, Error::NotInForce(_)), "{refused}");
        assert!(
            bind(i32::MAX, &CpuSet::from([CpuId(0)])).unwrap(),
            "one that is gone may have started another"
        );
    }

    #[test]
    fn a_set_of_all_cpus_confines_no_group() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "cpuset").unwrap();
        fs::create_dir(folder.path().join("vm")).unwrap();
        let group = Tree::at(folder.path()).unwrap().group("/vm").unwrap();
        let of_others = |above: &str, own: &str| {
            fs::write(folder.path().join("cpuset.cpus.effective"), above).unwrap();
            fs::write(group.directory().join("cpuset.cpus"), own).unwrap();
            assert_eq!(
                confines_nothing(&group, CPUS).unwrap(),
                cpus_of_others(&group, &[]).unwrap().is_none()
            );
            cpus_of_others(&group, &[]).unwrap()
        };
        assert_eq!(of_others("0-7\n", "\n"), None);
        assert_eq!(of_others("0-7\n", "0-7\n"), None);
        // All CPUs that may ever exist, including some that are offline or not allowed to the group
        // above.
        assert_eq!(of_others("0-5\n", "0-63\n"), None);
        assert_eq!(of_others("0-7\n", "0-6\n"), Some("0-6".into()));
        assert_eq!(of_others("\n", "0-6\n"), Some("0-6".into()));
    }

    #[test]
    fn a_set_that_the_groups_above_forbid_is_not_in_force() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), "cpuset").unwrap();
        let group = Tree::at(folder.path()).unwrap().group("/").unwrap();
        let wanted = CpuSet::from([CpuId(4), CpuId(5)]);
        assert!(!is_in_force(&group, CPUS, &wanted).unwrap(), "no cpuset");
        for (effective, is_confined) in
            [("4-5\n", true), ("4\n", false), ("0-3\n", false), ("\n", false)]
        {
            fs::write(folder.path().join("cpuset.cpus.effective"), effective).unwrap();
            match is_in_force(&group, CPUS, &wanted) {
                Ok(confined) => assert!(confined && is_confined, "{effective}"),
                Err(error) => {
                    assert!(!is_confined, "{effective}");
                    let said = format!("allow {}", effective.trim());
                    assert!(error.to_string().contains(&said), "{error}");
                }
            }
        }
    }
}
