//! `docs/openapi.json` against the answers: paths, methods, statuses, and the shape of each answer.

use super::harness::{Daemon, Reply, UNPLACED, delete, get, put, reader, stranger, with_a_loop};
use crate::daemon::{
    access::Access,
    api::{
        Api, Groups, Limits,
        limits::MAX_HEADERS,
        read::OPENAPI,
        routes::{COMMON, Method, ROUTES, Route},
    },
    audit::AuditLog,
    snapshot::{Answer, Event},
};
use serde_json::Value;
use std::{collections::BTreeSet, path::Path, sync::mpsc::sync_channel, thread, time::Duration};

fn description() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

fn verb(method: Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Put => "PUT",
        Method::Delete => "DELETE",
    }
}

/// Fails where `value` breaks the schema.
fn check(all: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = all
            .pointer(reference.trim_start_matches('#'))
            .unwrap_or_else(|| panic!("{reference} is missing"));
        return check(all, target, value, at);
    }
    if let Some(either) = schema["oneOf"].as_array() {
        let null = Value::from("null");
        let fits = either.iter().find(|one| (one["type"] == null) == value.is_null());
        return check(all, fits.unwrap_or_else(|| panic!("{at}: {value}")), value, at);
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let types = match &schema["type"] {
        Value::Array(types) => types.clone(),
        one => vec![one.clone()],
    };
    let fits = |one: &Value| one == kind || (one == "number" && kind == "integer");
    assert!(types.iter().any(fits), "{at}: {value} is no {types:?}");
    if let Some(words) = schema["enum"].as_array() {
        assert!(words.contains(value), "{at}: {value} is none of {words:?}");
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        check(all, &schema["items"], item, &format!("{at}[{index}]"));
    }
    for required in schema["required"].as_array().into_iter().flatten() {
        assert!(value.get(required.as_str().unwrap()).is_some(), "{at}: {required} is missing");
    }
    for (key, item) in value.as_object().into_iter().flatten() {
        let inside = schema["properties"].get(key).or_else(|| schema.get("additionalProperties"));
        match inside {
            Some(inside) => check(all, inside, item, &format!("{at}.{key}")),
            // Not described further: formats.md does that.
            None => assert!(schema.get("properties").is_none(), "{at}: {key} is not described"),
        }
    }
}

#[test]
fn it_names_every_path_method_and_status() {
    let all = description();
    let mut described = BTreeSet::new();
    for (path, item) in all["paths"].as_object().unwrap() {
        for (method, operation) in
            item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters")
        {
            for status in operation["responses"].as_object().unwrap().keys() {
                described.insert((method.clone(), path.clone(), status.parse::<u16>().unwrap()));
            }
        }
        let names: Vec<_> =
            item["parameters"].as_array().into_iter().flatten().map(|one| &one["name"]).collect();
        assert!(
            names.iter().all(|name| path.contains(&format!("{{{}}}", name.as_str().unwrap()))),
            "{path}"
        );
        assert_eq!(names.len(), path.matches('{').count(), "{path}");
    }
    let served: BTreeSet<_> = ROUTES
        .iter()
        .flat_map(|route| {
            let statuses = route.statuses.iter().chain(&COMMON);
            statuses
                .map(|&status| (verb(route.method).to_lowercase(), route.path.to_owned(), status))
        })
        .collect();
    assert_eq!(described, served);
    assert_eq!(all["info"]["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn answers_have_the_described_shape() {
    let all = description();
    with_a_loop(Daemon::new(Limits::default()), |daemon| {
        for route in ROUTES {
            let method = verb(route.method).to_lowercase();
            let answers = &all["paths"][route.path][&method]["responses"];
            for name in ["db", "web-frontend", UNPLACED].iter().take(if route.path.contains('{') {
                3
            } else {
                1
            }) {
                let path = route.path.replace("{name}", name).replace("{domain}", name);
                let reply = daemon.ask(&match route.method {
                    Method::Get => get(&path),
                    Method::Put => put(&path, "{\"nodes\": [1]}"),
                    Method::Delete if *name == "db" => delete(&path),
                    Method::Delete => continue,
                });
                assert_eq!(reply.status, 200, "{path}: {reply:?}");
                let content = answers["200"]["content"].as_object().unwrap();
                let content_type = reply.content_type.clone().unwrap();
                let body = &content[&content_type];
                if content_type == "application/json" {
                    check(&all, &body["schema"], &reply.json(), &path);
                }
            }
        }
        let refused = daemon.ask(&get("/domains/unknown"));
        let error =
            all.pointer("/components/responses/Unknown/content/application~1json/schema").unwrap();
        check(&all, error, &refused.json(), "404");
    });
}

#[test]
fn every_described_body_is_understood() {
    let all = description();
    let body = &all["components"]["schemas"]["Affinity"]["properties"];
    let keys: BTreeSet<_> = body.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(["affinity", "cell", "nodes"]));
    with_a_loop(Daemon::new(Limits::default()), |daemon| {
        for affinity in body["affinity"]["enum"].as_array().unwrap() {
            let body = serde_json::json!({"nodes": [1], "affinity": affinity});
            assert_eq!(
                daemon.ask(&put("/domains/db/affinity", &body.to_string())).status,
                200,
                "{body}"
            );
        }
    });
}

fn named(route: &Route) -> (&'static str, &'static str) {
    (verb(route.method), route.path)
}

#[test]
fn every_described_status_occurs() {
    let short = Limits {
        body: Duration::from_millis(50),
        answer: Duration::from_millis(50),
        ..Limits::default()
    };
    let hasty = Daemon::new(short);
    let daemon = Daemon::new(Limits { refusal: Duration::ZERO, ..Limits::default() });
    let mut seen = BTreeSet::new();
    let mut check = |route: (&str, &str), status: u16, reply: &Reply| {
        assert_eq!(reply.status, status, "{route:?}: {reply:?}");
        if status != 200 {
            assert!(!reply.error().is_empty());
            assert_eq!(reply.content_type.as_deref(), Some("application/json"));
        }
        seen.insert((route.0.to_owned(), route.1.to_owned(), status));
    };

    // Answers to any request.
    let too_large = |method: &str, path: &str| {
        format!("{method} {path} HTTP/1.1\r\nContent-Length: 65537\r\n\r\n")
    };
    let unready = Daemon::new(Limits::default());
    let no_log = AuditLog::new(Path::new("/dev/null"));
    let unready_api = Api::new(Access::default(), no_log, sync_channel(1).0, short, Groups::none());
    let unready = Daemon { api: unready_api, ..unready };
    for route in &ROUTES {
        let (method, path) = named(route);
        let path = path.replace("{name}", "db").replace("{domain}", "db");
        let request = match route.method {
            Method::Put => put(&path, r#"{"nodes": [1]}"#),
            Method::Get | Method::Delete => format!("{method} {path} HTTP/1.1\r\n\r\n"),
        };
        check(named(route), 403, &daemon.connect(stranger()).ask(&request));
        check(named(route), 413, &daemon.ask(&too_large(method, &path)));
        let malformed = format!("{method} {path} HTTP/1.1\r\nno colon\r\n\r\n");
        check(named(route), 400, &daemon.ask(&malformed));
        let headers = "a: b\r\n".repeat(MAX_HEADERS + 1);
        let too_long = format!("{method} {path} HTTP/1.1\r\n{headers}\r\n");
        check(named(route), 431, &daemon.ask(&too_long));
        let long_line = format!("{method} {path}?{} HTTP/1.1\r\n\r\n", "a".repeat(40 << 10));
        check(named(route), 414, &daemon.ask(&long_line));
        check(named(route), 505, &daemon.ask(&format!("{method} {path} HTTP/1.0\r\n\r\n")));
        if route.path != "/openapi.json" {
            check(named(route), 503, &unready.ask(&request));
        }
        if route.method == Method::Get {
            check(named(route), 200, &daemon.connect(reader()).ask(&request));
        }
        for name in ["no-such-domain", "%FF"].iter().filter(|_| route.path.contains('{')) {
            let path = route.path.replace("{name}", name).replace("{domain}", name);
            let request = match route.method {
                Method::Put => put(&path, r#"{"nodes": [1]}"#),
                Method::Get | Method::Delete => format!("{method} {path} HTTP/1.1\r\n\r\n"),
            };
            check(named(route), if *name == "%FF" { 400 } else { 404 }, &daemon.ask(&request));
        }
    }

    // Changes.
    let affinity = "/domains/{name}/affinity";
    let (set, released) = (("PUT", affinity), ("DELETE", affinity));
    let db = "/domains/db/affinity";
    let unanswered = with_a_loop(daemon, |daemon| {
        check(set, 200, &daemon.ask(&put(db, r#"{"nodes": [1], "affinity": "hard"}"#)));
        check(set, 400, &daemon.ask(&put(db, r#"{"nodes": [1"#)));
        check(set, 409, &daemon.ask(&put(db, r#"{"nodes": [0, 1]}"#)));
        check(set, 415, &daemon.ask(&put(db, "{}").replace("application/json", "text/plain")));
        check(set, 422, &daemon.ask(&put(db, r#"{"nodes": [7]}"#)));
        check(released, 200, &daemon.ask(&delete(db)));
        check(released, 404, &daemon.ask(&delete("/domains/web-frontend/affinity")));
    });
    assert_eq!(unanswered, 0);
    // A release is refused, too, if the cgroup's owner would undo it.
    let Daemon { folder, api, events } = Daemon::new(Limits::default());
    let refuse = thread::spawn(move || {
        let Ok(Event::Change(asked)) = events.recv() else { panic!("no change came") };
        asked.answer.send(Answer::Refused("libvirt would undo it".into())).unwrap();
    });
    check(released, 409, &Daemon { folder, api, events: sync_channel(1).1 }.ask(&delete(db)));
    refuse.join().unwrap();

    // Bodies and answers that take too long.
    check(set, 408, &hasty.ask(&put(db, "{}").replace("Content-Length: 2", "Content-Length: 3")));
    check(set, 504, &hasty.ask(&put(db, r#"{"nodes": [1]}"#)));
    check(released, 504, &hasty.ask(&delete(&format!("/domains/{UNPLACED}/affinity"))));

    let described: BTreeSet<_> = ROUTES
        .iter()
        .flat_map(|route| {
            let (method, path) = named(route);
            let common =
                COMMON.iter().filter(move |&&status| !(path == "/openapi.json" && status == 503));
            route
                .statuses
                .iter()
                .chain(common)
                .map(move |&status| (method.to_owned(), path.to_owned(), status))
        })
        .collect();
    assert_eq!(seen, described);
}
