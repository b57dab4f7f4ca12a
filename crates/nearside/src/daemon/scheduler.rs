//! Attaching and detaching the scheduler, and passing homes to it.

use super::{
    attachment::{Attachment, Needs, Todo},
    config, notify,
};
use nearside_policy::ByNode;
use nearside_scheduler::{Affinity, Error, Options, Scheduler, Thread};
use std::collections::BTreeMap;

/// Domains' affinities by the number (inode) of their cgroup.
pub type Affinities = BTreeMap<u64, Affinity>;

/// The scheduler, while one is attached.
#[derive(Debug, Default)]
pub struct SchedulerControl {
    attachment: Attachment,
    scheduler: Option<Scheduler>,
    told: Affinities,
    options: Options,
}

impl SchedulerControl {
    /// No scheduler yet; `options` are for a later attachment.
    pub fn new(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// The state of the attachment.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// True if the next [`tend`](Self::tend) will detach it, so that bindings can replace it first.
    pub fn is_to_leave(&self, mode: config::Scheduler, needs: Needs, now: u64) -> bool {
        self.attachment.clone().next(mode, needs, now) == Todo::Detach
    }

    /// Attaches or detaches it when it is time, and passes on changes of domains. Returns notices
    /// for the log.
    pub fn tend(
        &mut self,
        mode: config::Scheduler,
        needs: Needs,
        homes: &Affinities,
        now: u64,
    ) -> Vec<String> {
        let mut said = Vec::new();
        self.notice_its_end(now, &mut said);
        match self.attachment.next(mode, needs, now) {
            Todo::Attach => self.attach(now, &mut said),
            Todo::Detach => said.extend(self.detach()),
            Todo::Nothing => {}
        }
        self.tell(homes, &mut said);
        said
    }

    /// CPU time by node of each domain since it was attached, by the number of its cgroup, in ns.
    pub fn cpu_ns(&self) -> BTreeMap<u64, ByNode> {
        let usage =
            self.scheduler.as_ref().map(Scheduler::usage).and_then(Result::ok).unwrap_or_default();
        let by_node = |by_node: BTreeMap<_, std::time::Duration>| {
            by_node
                .into_iter()
                .map(|(node, used)| (node, u64::try_from(used.as_nanos()).unwrap_or(u64::MAX)))
                .collect()
        };
        usage.into_iter().map(|(cgroup, usage)| (cgroup, by_node(usage.by_node))).collect()
    }

    /// Gives the host back to the stock scheduler. Returns a notice for the log.
    pub fn detach(&mut self) -> Option<String> {
        let scheduler = self.scheduler.take()?;
        self.told.clear();
        self.attachment = Attachment::default();
        match notify::slow(|| scheduler.detach()) {
            Ok(_) => Some("scheduler detached: the stock scheduler is in charge".into()),
            Err(error) => Some(format!("scheduler: {error}")),
        }
    }

    fn notice_its_end(&mut self, now: u64, said: &mut Vec<String>) {
        let Some(exit) = self.scheduler.as_ref().and_then(Scheduler::exited) else { return };
        drop(self.scheduler.take());
        self.told.clear();
        if exit.wants_restart() {
            self.attachment.wants_restart(now, exit.to_string());
            said.push(match self.attachment {
                Attachment::Later { wait, .. } => {
                    format!("scheduler: {exit}, again; it is attached anew in {wait} intervals")
                }
                _ => format!("scheduler: {exit}; attached anew"),
            });
        } else {
            self.failed(now, exit.to_string(), said);
        }
    }

    fn attach(&mut self, now: u64, said: &mut Vec<String>) {
        match notify::slow(|| Scheduler::attach(&self.options)) {
            Ok(scheduler) => {
                self.scheduler = Some(scheduler);
                self.attachment.attached(now);
                said.push(
                    "scheduler attached: domains prefer their homes and may run elsewhere when \
                     these are full"
                        .into(),
                );
            }
            Err(error) if will_never_work(&error) => {
                said.push(format!("scheduler: {error}; homes are kept by CPU affinity"));
                self.attachment.impossible(error.to_string());
            }
            Err(error) => self.failed(now, error.to_string(), said),
        }
    }

    fn failed(&mut self, now: u64, why: String, said: &mut Vec<String>) {
        self.attachment.failed(now, why.clone());
        let Attachment::Later { wait, .. } = self.attachment else { return };
        said.push(format!(
            "scheduler: {why}; homes are kept by CPU affinity, it is tried again \
        in {wait} intervals"
        ));
    }

    /// Makes threads prefer nodes of their own, or those of their domain again. `is_meant` is asked
    /// about a thread once its number cannot pass to another. Returns a message for the log.
    pub fn prefer(
        &mut self,
        threads: Vec<(i32, Option<Affinity>)>,
        is_meant: impl Fn(i32) -> bool,
    ) -> Option<String> {
        let scheduler = self.scheduler.as_mut()?;
        let mut failed = None;
        for (number, affinity) in threads {
            // It may have ended meanwhile.
            let Ok(thread) = Thread::open(number) else { continue };
            if !is_meant(number) {
                continue;
            }
            let set = match &affinity {
                Some(affinity) => scheduler.set_thread(&thread, affinity),
                None => scheduler.unset_thread(&thread),
            };
            failed = failed.or(set.err());
        }
        failed.map(|error| format!("scheduler: {error}"))
    }

    /// A domain whose home could not be passed on has no preference until the next interval tries
    /// again.
    fn tell(&mut self, homes: &Affinities, said: &mut Vec<String>) {
        let Some(scheduler) = &mut self.scheduler else { return };
        let gone: Vec<u64> =
            self.told.keys().filter(|cgroup| !homes.contains_key(cgroup)).copied().collect();
        for cgroup in gone {
            self.told.remove(&cgroup);
            said.extend(
                scheduler.remove_domain(cgroup).err().map(|error| format!("scheduler: {error}")),
            );
        }
        for (&cgroup, affinity) in homes {
            if self.told.get(&cgroup) != Some(affinity) {
                match scheduler.set_domain(cgroup, affinity) {
                    Ok(()) => drop(self.told.insert(cgroup, affinity.clone())),
                    Err(error) => said.push(format!("scheduler: {error}")),
                }
            }
        }
    }
}

/// True if no later attempt can succeed until the host reboots.
fn will_never_work(error: &Error) -> bool {
    matches!(
        error,
        Error::Unsupported
            | Error::TooOld(_)
            | Error::Isolated(_)
            | Error::Permission
            | Error::Machine(_)
            | Error::Object
    )
}
