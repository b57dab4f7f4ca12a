//! Requests that read.

use super::harness::{Daemon, UNPLACED, UNPLACED_GROUP, admin, delete, get, put, reader, root};
use crate::daemon::{
    access::Caller,
    api::Limits,
    snapshot::{Seen, examples},
};
use nearside_linux::store::Record;
use serde_json::{Value, json};
use std::{
    fs,
    sync::{Arc, mpsc::sync_channel},
    thread,
    time::Duration,
};

#[test]
fn an_unknown_path_is_404_and_a_wrong_method_405() {
    let daemon = Daemon::new(Limits::default());
    for path in [
        "/",
        "/domain",
        "/domains/",
        "/domains//nearside/db",
        "/domains/db/",
        "/why",
        "/../etc/passwd",
    ] {
        assert!(daemon.ask(&get(path)).error().contains("GET /openapi.json"), "{path}");
        assert_eq!(daemon.ask(&get(path)).status, 404, "{path}");
    }
    for request in [delete("/domains/db"), put("/topology", "{}"), get("/domains/db/affinity")] {
        let reply = daemon.ask(&request);
        assert_eq!(
            (reply.status, reply.content_type.as_deref()),
            (405, Some("application/json")),
            "{request}"
        );
    }
}

#[test]
fn answers_equal_the_json_of_commands() {
    let daemon = Daemon::new(Limits::default());
    let list = daemon.ask(&get("/domains")).json();
    assert_eq!(list["domains"][0]["home"]["nodes"], json!([1]));
    assert_eq!(list["domains"].as_array().map(Vec::len), Some(3));
    let printed = crate::report::list::List {
        domains: &crate::report::domain::examples::domains(),
        reservations: Vec::new(),
    };
    assert_eq!(list, serde_json::to_value(printed).unwrap());

    let topology = crate::report::stat::tests::topology();
    let printed =
        serde_json::to_value(crate::report::topology_json::Machine::new(&topology)).unwrap();
    assert_eq!(daemon.ask(&get("/topology")).json(), printed);

    let why = daemon.ask(&get("/why/db")).json();
    let record = crate::report::domain::examples::record();
    let printed = serde_json::to_value(crate::report::json::Why::new(
        &record,
        record.part().decision.as_ref().unwrap(),
    ))
    .unwrap();
    for (key, value) in printed.as_object().unwrap() {
        assert_eq!(&why[key], value, "{key}");
    }
    assert_eq!(
        daemon.ask(&get("/stat")).json()["nodes"][1]["counters_in_interval"]["hit_pages"],
        600
    );
}

#[test]
fn only_root_and_the_owner_see_the_arguments_of_a_command() {
    let daemon = Daemon::new(Limits::default());
    let command = |caller| {
        daemon.connect(caller).ask(&get("/domains/db")).json()["record"]["command"].clone()
    };
    let own_uid = rustix::process::geteuid().as_raw();
    let whole = json!(crate::report::domain::examples::record().command);
    assert!(whole.as_array().is_some_and(|words| words.len() > 1), "{whole}");
    assert_eq!(command(root()), whole);
    assert_eq!(command(Caller { uid: own_uid, ..reader() }), whole);
    for caller in [reader(), admin()] {
        assert_eq!(command(caller), json!([whole[0]]));
    }
}

#[test]
fn a_cgroup_is_named_by_its_path() {
    let daemon = Daemon::new(Limits::default());
    let unplaced = daemon.ask(&get(&format!("/domains/{UNPLACED}"))).json();
    assert_eq!(unplaced["cgroup"], UNPLACED_GROUP);
    assert_eq!((&unplaced["home"], &unplaced["record"]), (&Value::Null, &Value::Null));
    assert_eq!(daemon.ask(&get("/why/%2Fnearside%2Fdb%2Fworkers")).json()["name"], "db");
}

#[test]
fn why_of_a_found_cgroup_has_its_limits_and_policies() {
    let daemon = Daemon::new(Limits::default());
    let why = || daemon.ask(&get(&format!("/why/{UNPLACED}"))).json();
    let allowed = json!({
        "cpus": null, "cpus_effective": "0-3", "mems": "", "mems_effective": "0-1",
        "cpu_max": "50000 100000", "memory_max": null,
    });
    let mut expected = json!({
        "name": UNPLACED_GROUP, "cgroup": UNPLACED_GROUP, "home": null, "found_by": null,
        "allowed": allowed, "policies": {"bind:1": 3 * 4096}, "status": null, "status_of_cells": {},
        "steps": [],
    });
    assert_eq!(why(), expected);
    // Once it has a home, the pattern that found it is known.
    let mut seen = examples::seen();
    let record = seen.domains[0].record.clone().unwrap();
    let mut part = record.part().clone();
    part.decision = None;
    let found = Record {
        name: UNPLACED_GROUP.into(),
        cgroup: UNPLACED_GROUP.into(),
        found_by: Some("system.slice/*".into()),
        parts: part.into(),
        ..record
    };
    expected["home"] = daemon.ask(&get("/domains/db")).json()["home"].clone();
    expected["found_by"] = "system.slice/*".into();
    seen.domains[2].record = Some(found);
    daemon.api.published.publish(seen);
    assert_eq!(why(), expected);
    // A cgroup that has ended since has no mappings and no limits.
    fs::remove_dir_all(daemon.folder.path().join(&UNPLACED_GROUP[1..])).unwrap();
    assert_eq!((&why()["policies"], &why()["allowed"]["cpu_max"]), (&json!({}), &Value::Null));
}

#[test]
fn a_domains_status_and_steps_are_those_of_the_last_plan() {
    let daemon = Daemon::new(Limits::default());
    let plan = daemon.ask(&get("/plan")).json();
    let step = &plan["steps"][0];
    assert_eq!((&step["domain"], &step["do"]), (&"web-frontend".into(), &"move-pages".into()));
    assert_eq!(step["batch"]["from_node"], 0);
    let status = &plan["status"]["web-frontend"];
    assert_eq!((&status["place"], &status["off_home_ppm"]), (&"contended".into(), &400_000.into()));
    assert_eq!(status["home_blocker"]["because"], "none-better");
    let why = daemon.ask(&get("/why/web-frontend")).json();
    assert_eq!((&why["status"], why["steps"].as_array().map(Vec::len)), (status, Some(1)));
    assert_eq!(daemon.ask(&get("/why/db")).json()["steps"], serde_json::json!([]));
}

#[test]
fn each_answer_comes_from_one_snapshot() {
    let daemon = Daemon::new(Limits::default());
    let api = Arc::clone(&daemon.api);
    let (stop, stopped) = sync_channel::<()>(0);
    let publishing = thread::spawn(move || {
        let mut interval = 17_u64;
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            interval += 1;
            let mut seen = examples::seen();
            seen.plan.interval = interval;
            let without = if interval.is_multiple_of(2) { "db" } else { "web-frontend" };
            Arc::make_mut(&mut seen.history).parts.remove(&without.into());
            api.published.publish(seen);
        }
    });
    let mut client = daemon.connect(root());
    let mut last = 0;
    for _ in 0..100 {
        let plan = client.ask(&get("/plan")).json();
        let interval = plan["interval"].as_u64().unwrap();
        assert!(interval >= last);
        last = interval;
        if interval > 17 {
            let left = if interval.is_multiple_of(2) { "web-frontend" } else { "db" };
            assert_eq!(plan["status"].as_object().unwrap().keys().collect::<Vec<_>>(), [left]);
        }
    }
    drop(stop);
    publishing.join().unwrap();
}

#[test]
fn health_fails_while_the_loop_is_stuck_or_has_not_begun() {
    let daemon = Daemon::new(Limits::default());
    let health = daemon.ask(&get("/health")).json();
    assert_eq!((&health["interval"], &health["domains"]), (&17.into(), &3.into()));
    // The loop runs, and its observations fail.
    daemon.api.published.fails(3, "proc/zoneinfo: gone");
    let blind = daemon.ask(&get("/health"));
    assert!(
        blind.status == 503
            && blind.error().contains("the last 3 observations of the host failed: proc/zoneinfo"),
        "{blind:?}"
    );
    assert_eq!(
        daemon.ask(&get("/domains")).status,
        200,
        "the earlier snapshot is good for a while"
    );
    daemon.api.published.publish(Seen::default());
    assert_eq!(daemon.ask(&get("/health")).status, 200);
    // With long intervals, the first snapshot is published before an interval has ended.
    let long = Seen { interval: Duration::from_secs(20), ..Seen::default() };
    for (seen, age_s, status) in
        [(Seen::default(), 60, 503), (long.clone(), 60, 200), (long, 300, 503)]
    {
        let at = std::time::Instant::now().checked_sub(Duration::from_secs(age_s)).unwrap();
        daemon.api.published.publish_as_of(seen, at);
        let health = daemon.ask(&get("/health"));
        assert_eq!(health.status, status, "{age_s} s: {health:?}");
        assert!(
            status == 200
                || health.error().contains(&format!("not ended an interval for {age_s} s")),
            "{health:?}"
        );
    }
}
