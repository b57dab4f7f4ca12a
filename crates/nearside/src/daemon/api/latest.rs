//! The latest snapshot, and domains in it.

use super::{answer::Failed, state::Api};
use crate::{daemon::snapshot::Snapshot, domains::Domain};
use axum::http::StatusCode;
use nearside_linux::store::Record;
use std::{sync::Arc, time::Duration};

/// The control loop is late if it has published nothing for so many intervals, and for at least
/// [`LATE`].
const LATE_INTERVALS: f64 = 10.0;
const LATE: Duration = Duration::from_secs(10);

/// The latest snapshot.
pub(super) fn latest(api: &Api) -> Result<Arc<Snapshot>, Failed> {
    aged(api).map(|(_, snapshot)| snapshot)
}

/// The latest snapshot and its age. One that is too old is an error.
pub(super) fn aged(api: &Api) -> Result<(Duration, Arc<Snapshot>), Failed> {
    let unavailable = |message: String| Err(Failed::new(StatusCode::SERVICE_UNAVAILABLE, message));
    let Some((at, snapshot)) = api.published.latest() else {
        return unavailable("the first interval has not ended yet: try again".into());
    };
    let age = at.elapsed();
    let interval_s = snapshot.stat.interval_s.max(snapshot.interval.as_secs_f64());
    if age > LATE && age.as_secs_f64() > LATE_INTERVALS * interval_s {
        let age_s = age.as_secs();
        return unavailable(match api.published.failure() {
            Some(failure) => format!("the last snapshot is {age_s} s old: {failure}"),
            None => format!("the control loop has not ended an interval for {age_s} s"),
        });
    }
    Ok((age, snapshot))
}

/// The domain of a name, or of a cgroup's path, and its record.
pub(super) fn named<'a>(
    snapshot: &'a Snapshot,
    name: &str,
) -> Result<(&'a Domain, &'a Option<Record>), Failed> {
    let unknown = || {
        let message = format!("there is no domain {name}: GET /domains lists them");
        Failed::new(StatusCode::NOT_FOUND, message)
    };
    snapshot.domain(name).ok_or_else(unknown)
}
