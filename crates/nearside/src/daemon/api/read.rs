//! Requests that read.

use super::{
    answer::{self, Failed},
    latest::{aged, latest, named},
    state::{Api, Groups},
};
use crate::{
    daemon::{exposition::Exposition, metrics, snapshot::Snapshot},
    report::{
        control::{ControlJson, DomainJson, WhyJson},
        list::List,
        reserved::Reserved,
        text::TextJson,
        topology_json::Machine,
        why::Unplaced,
    },
};
use axum::{
    http::{HeaderMap, StatusCode, header::ACCEPT},
    response::Response,
};
use nearside_linux::store::Record;
use serde::Serialize;
use std::sync::Arc;

/// The description for programs, which a test holds against the table of routes.
pub(super) const OPENAPI: &str = include_str!("../../../../../docs/openapi.json");

/// The sources of the answer to a reading request.
pub(super) struct Reading<'a> {
    api: &'a Api,
    snapshot: &'a Arc<Snapshot>,
    /// The domain in the path.
    name: &'a str,
    headers: &'a HeaderMap,
    asker: Asker,
}

/// The peer, as far as answers depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    /// Root, or the owner of the records. It sees the arguments of commands.
    Owner,
    /// Another peer that may read.
    Other,
}

/// A function that answers a reading request.
pub(super) type Read = fn(&Reading<'_>) -> Result<Response, Failed>;

/// Answers from the latest snapshot.
pub(super) fn from_latest(
    api: &Api,
    name: &str,
    headers: &HeaderMap,
    asker: Asker,
    read: Read,
) -> Result<Response, Failed> {
    latest(api)
        .and_then(|snapshot| read(&Reading { api, snapshot: &snapshot, name, headers, asker }))
}

/// As [`from_latest`], in a thread of its own, because the answer reads the host.
pub(super) async fn from_look(
    api: Arc<Api>,
    name: String,
    headers: HeaderMap,
    asker: Asker,
    read: Read,
) -> Result<Response, Failed> {
    // The thread keeps the permit until it ends, even after the client has hung up. The semaphore
    // is never closed.
    let permit = Arc::clone(&api.looks).acquire_owned().await;
    let looking = tokio::task::spawn_blocking(move || {
        let answered = from_latest(&api, &name, &headers, asker, read);
        drop(permit);
        answered
    });
    looking.await.unwrap_or_else(|_| {
        Err(Failed::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon is ending"))
    })
}

pub(super) fn domains(reading: &Reading<'_>) -> Result<Response, Failed> {
    let Snapshot { stat, reservations, .. } = &**reading.snapshot;
    answer::json(&List { domains: &stat.domains, reservations: Reserved::all(reservations) })
}

pub(super) fn domain(reading: &Reading<'_>) -> Result<Response, Failed> {
    let (domain, record) = named(reading.snapshot, reading.name)?;
    let history = &reading.snapshot.history;
    match reading.asker {
        Asker::Owner => answer::json(&DomainJson::new(domain, record, history)),
        Asker::Other => {
            let shown = record.as_ref().map(Record::for_all);
            answer::json(&DomainJson::new(domain, &shown, history))
        }
    }
}

pub(super) fn why(reading: &Reading<'_>) -> Result<Response, Failed> {
    let Snapshot { plan, history, .. } = &**reading.snapshot;
    let (domain, record) = named(reading.snapshot, reading.name)?;
    let Groups { tree, proc } = &reading.api.groups;
    let unplaced = || {
        let group = tree.group(&domain.cgroup);
        let group = group.map_err(|error| Failed::new(StatusCode::NOT_FOUND, error.to_string()))?;
        Ok(Unplaced::read(tree, proc, &group, record.as_ref()))
    };
    answer::json(&WhyJson::new(domain, record.as_ref(), history, plan, unplaced)?)
}

pub(super) fn topology(reading: &Reading<'_>) -> Result<Response, Failed> {
    answer::json(&Machine::new(&reading.snapshot.topology))
}

pub(super) fn plan(reading: &Reading<'_>) -> Result<Response, Failed> {
    answer::json(&ControlJson::new(&reading.snapshot.plan, &reading.snapshot.history))
}

pub(super) fn stat(reading: &Reading<'_>) -> Result<Response, Failed> {
    answer::json(&reading.snapshot.stat)
}

pub(super) fn text(reading: &Reading<'_>) -> Result<Response, Failed> {
    answer::json(&TextJson::new(&reading.snapshot.text))
}

pub(super) fn metrics(reading: &Reading<'_>) -> Result<Response, Failed> {
    let accepted = reading.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let exposition = Exposition::accepted(accepted);
    let page = metrics::page(Arc::clone(reading.snapshot), reading.api.audit().lost());
    let page =
        page.map_err(|error| Failed::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(answer::with_type(exposition.content_type(), exposition.encode(page)))
}

pub(super) fn openapi(_: &Api) -> Result<Response, Failed> {
    Ok(answer::with_type("application/json", OPENAPI))
}

/// The state of the control loop.
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

pub(super) fn health(api: &Api) -> Result<Response, Failed> {
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
