//! Helpers of the daemon's tests.

use nearside_lab::{daemon::get, read};

pub(crate) const SPINNING: (&str, &str) = (
    "--quiet --name db --cpus 2 --memory 64M --policy preferred --nodes 1",
    "--mib 32 --threads 2 --spin",
);

pub(crate) fn scheduler_state() -> String {
    read("/sys/kernel/sched_ext/state")
}

pub(crate) fn interval() -> u64 {
    get("/health")["interval"].as_u64().unwrap()
}
