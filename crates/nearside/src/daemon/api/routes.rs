//! What can be asked for.

use super::{
    Api,
    answer::{self, Failed},
    change,
};
use crate::{
    daemon::{metrics, snapshot::Snapshot},
    domains::Domain,
    report::{
        control::{ControlJson, DomainJson, WhyJson},
        list::List,
        topology_json::Machine,
        why::Unplaced,
    },
};
use axum::{
    Router,
    extract::{RawPathParams, Request, State, rejection::RawPathParamsRejection as Rejection},
    http::StatusCode,
    response::Response,
    routing::{MethodFilter, on},
};
use nearside_linux::store::Record;
use serde::Serialize;
use std::{sync::Arc, time::Duration};

/// The description for programs, which a test holds against [`ROUTES`].
pub(super) const OPENAPI: &str = include_str!("../../../../../docs/openapi.json");

/// One thing that can be asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    call: Call,
    /// What may be answered besides what may be answered to anything.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the description's test"))]
    pub(super) statuses: &'static [u16],
}

/// May be answered to anything: not allowed, too much sent, not ready yet or too busy.
#[cfg(test)]
pub(super) const COMMON: [u16; 3] = [403, 413, 503];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Put,
    Delete,
}

impl From<Method> for MethodFilter {
    fn from(method: Method) -> Self {
        match method {
            Method::Get => Self::GET,
            Method::Put => Self::PUT,
            Method::Delete => Self::DELETE,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Call {
    /// Answered from the last snapshot.
    Read(fn(&Reading<'_>) -> Result<Response, Failed>),
    /// The same, with a look at the domain that may take long.
    Look(fn(&Reading<'_>) -> Result<Response, Failed>),
    /// Answered without one.
    Tell(fn(&Api) -> Result<Response, Failed>),
    /// Sent to the loop.
    SetAffinity,
    Release,
}

/// What a reading call goes by.
struct Reading<'a> {
    api: &'a Api,
    snapshot: &'a Arc<Snapshot>,
    /// The domain in the path.
    name: &'a str,
}

const fn route(method: Method, path: &'static str, call: Call, statuses: &'static [u16]) -> Route {
    Route { method, path, call, statuses }
}

pub(super) const ROUTES: [Route; 11] = [
    route(Method::Get, "/domains", Call::Read(domains), &[200]),
    route(Method::Get, "/domains/{name}", Call::Read(domain), &[200, 400, 404]),
    route(
        Method::Put,
        "/domains/{name}/affinity",
        Call::SetAffinity,
        &[200, 400, 404, 408, 409, 415, 422, 504],
    ),
    route(Method::Delete, "/domains/{name}/affinity", Call::Release, &[200, 400, 404, 409, 504]),
    route(Method::Get, "/why/{domain}", Call::Look(why), &[200, 400, 404]),
    route(Method::Get, "/topology", Call::Read(topology), &[200]),
    route(Method::Get, "/plan", Call::Read(plan), &[200]),
    route(Method::Get, "/stat", Call::Read(stat), &[200]),
    route(Method::Get, "/metrics", Call::Read(metrics), &[200]),
    route(Method::Get, "/health", Call::Tell(health), &[200]),
    route(Method::Get, "/openapi.json", Call::Tell(openapi), &[200]),
];

pub(super) fn router(api: Arc<Api>) -> Router {
    let mut router = Router::new();
    for Route { method, path, call, .. } in ROUTES {
        let answer =
            move |State(api): State<Arc<Api>>, name, request| answer(api, call, name, request);
        router = router.route(path, on(method.into(), answer));
    }
    let unknown = async || {
        let message = "there is nothing here: GET /openapi.json lists what there is; a domain that is named by its \
                       cgroup's path needs that percent-encoded (%2F for /)";
        Failed::new(StatusCode::NOT_FOUND, message).into_response()
    };
    let other_method = async || {
        let message = "nothing here is done by this method: GET /openapi.json lists what there is, and by which";
        Failed::new(StatusCode::METHOD_NOT_ALLOWED, message).into_response()
    };
    router.fallback(unknown).method_not_allowed_fallback(other_method).with_state(api)
}

async fn answer(
    api: Arc<Api>,
    call: Call,
    name: Result<RawPathParams, Rejection>,
    request: Request,
) -> Response {
    let name = match domain_name(name) {
        Ok(name) => name,
        Err(failed) => return failed.into_response(),
    };
    let (change, answered) = match call {
        Call::Read(read) => (None, from_latest(&api, &name, read)),
        Call::Look(read) => (None, look(Arc::clone(&api), name, read).await),
        Call::Tell(tell) => (None, tell(&api)),
        Call::SetAffinity => change::set_affinity(&api, &name, request).await,
        Call::Release => change::release(&api, &name, request).await,
    };
    let mut response = answered.unwrap_or_else(Failed::into_response);
    // For the audit log.
    if let Some(change) = change {
        response.extensions_mut().insert(change);
    }
    response
}

/// Answers from the last snapshot.
fn from_latest(
    api: &Api,
    name: &str,
    read: fn(&Reading<'_>) -> Result<Response, Failed>,
) -> Result<Response, Failed> {
    latest(api).and_then(|snapshot| read(&Reading { api, snapshot: &snapshot, name }))
}

/// The same, from a thread of its own.
async fn look(
    api: Arc<Api>,
    name: String,
    read: fn(&Reading<'_>) -> Result<Response, Failed>,
) -> Result<Response, Failed> {
    // Held till the look has ended, though whoever asked has hung up. It is never closed.
    let permit = Arc::clone(&api.looks).acquire_owned().await;
    let looking = tokio::task::spawn_blocking(move || {
        let answered = from_latest(&api, &name, read);
        drop(permit);
        answered
    });
    looking.await.unwrap_or_else(|_| {
        Err(Failed::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon is ending"))
    })
}

/// The name in the path, without percent signs; empty where there is none.
fn domain_name(name: Result<RawPathParams, Rejection>) -> Result<String, Failed> {
    match name {
        Ok(params) => Ok(params.iter().next().map_or(String::new(), |(_, name)| name.to_owned())),
        Err(Rejection::InvalidUtf8InPathParam(_)) => Err(Failed::new(
            StatusCode::BAD_REQUEST,
            "the domain's name is not UTF-8 once percent signs are resolved",
        )),
        Err(_) => Ok(String::new()),
    }
}

fn domains(reading: &Reading<'_>) -> Result<Response, Failed> {
    answer::json(&List { domains: &reading.snapshot.stat.domains })
}

fn domain(reading: &Reading<'_>) -> Result<Response, Failed> {
    let (domain, record) = named(reading.snapshot, reading.name)?;
    answer::json(&DomainJson::new(
        domain,
        record,
        reading.snapshot.history.domains.get(&nearside_policy::PartId::of(&domain.name)),
    ))
}

fn why(reading: &Reading<'_>) -> Result<Response, Failed> {
    let Snapshot { plan, history, .. } = &**reading.snapshot;
    let (domain, record) = named(reading.snapshot, reading.name)?;
    let super::Groups { tree, proc } = &reading.api.groups;
    let unplaced = || {
        let group = tree.group(&domain.cgroup);
        let group = group.map_err(|error| Failed::new(StatusCode::NOT_FOUND, error.to_string()))?;
        Ok(Unplaced::read(tree, proc, &group, record.as_ref()))
    };
    answer::json(&WhyJson::new(
        domain,
        record.as_ref(),
        history.domains.get(&nearside_policy::PartId::of(&domain.name)),
        plan,
        unplaced,
    )?)
}

fn topology(reading: &Reading<'_>) -> Result<Response, Failed> {
    answer::json(&Machine::new(&reading.snapshot.topology))
}

fn plan(reading: &Reading<'_>) -> Result<Response, Failed> {
    answer::json(&ControlJson::new(&reading.snapshot.plan, &reading.snapshot.history))
}

fn stat(reading: &Reading<'_>) -> Result<Response, Failed> {
    answer::json(&reading.snapshot.stat)
}

fn metrics(reading: &Reading<'_>) -> Result<Response, Failed> {
    let text = metrics::text(Arc::clone(reading.snapshot), reading.api.audit().lost());
    let text =
        text.map_err(|error| Failed::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(answer::with_type(metrics::CONTENT_TYPE, text))
}

fn openapi(_: &Api) -> Result<Response, Failed> {
    Ok(answer::with_type("application/json", OPENAPI))
}

/// The last snapshot.
pub(super) fn latest(api: &Api) -> Result<Arc<Snapshot>, Failed> {
    aged(api).map(|(_, snapshot)| snapshot)
}

/// The last snapshot, and how old it is. Before there is one nothing can be said, and one that is old is nothing to go by.
fn aged(api: &Api) -> Result<(Duration, Arc<Snapshot>), Failed> {
    let (at, snapshot) = api.published.latest().ok_or_else(not_yet)?;
    let age = at.elapsed();
    let interval_s = snapshot.stat.interval_s.max(snapshot.interval.as_secs_f64());
    if age > LATE && age.as_secs_f64() > LATE_INTERVALS * interval_s {
        let message = match api.published.failure() {
            Some(failure) => format!("nothing was seen for {} s: {failure}", age.as_secs()),
            None => format!("the control loop has not ended an interval for {} s", age.as_secs()),
        };
        return Err(Failed::new(StatusCode::SERVICE_UNAVAILABLE, message));
    }
    Ok((age, snapshot))
}

/// The loop is late when it has published nothing for so many intervals, and for at least so long.
const LATE_INTERVALS: f64 = 10.0;
const LATE: Duration = Duration::from_secs(10);

fn not_yet() -> Failed {
    Failed::new(StatusCode::SERVICE_UNAVAILABLE, "the first interval has not ended yet: try again")
}

pub(super) fn named<'a>(
    snapshot: &'a Snapshot,
    name: &str,
) -> Result<(&'a Domain, &'a Option<Record>), Failed> {
    let unknown = || {
        Failed::new(
            StatusCode::NOT_FOUND,
            format!("there is no domain {name}: GET /domains lists them"),
        )
    };
    snapshot.domain(name).ok_or_else(unknown)
}

/// Whether the loop is alive.
#[derive(Serialize)]
struct Health {
    version: &'static str,
    interval: u64,
    age_ms: u64,
    domains: usize,
    scheduler_attached: bool,
    numa_balancing: Option<u64>,
    audit_lost: u64,
}

fn health(api: &Api) -> Result<Response, Failed> {
    if let Some(failure) = api.published.failure() {
        return Err(Failed::new(StatusCode::SERVICE_UNAVAILABLE, failure));
    }
    let (age, snapshot) = aged(api)?;
    answer::json(&Health {
        version: env!("CARGO_PKG_VERSION"),
        interval: snapshot.plan.interval,
        age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        domains: snapshot.stat.domains.len(),
        scheduler_attached: snapshot.scheduler_attached,
        numa_balancing: snapshot.numa_balancing,
        audit_lost: api.audit().lost(),
    })
}
