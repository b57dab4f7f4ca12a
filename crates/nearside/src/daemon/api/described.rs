//! `docs/openapi.json` against what is served: its paths, methods, statuses, and the shape of each answer.

use super::{
    routes::{COMMON, Method, ROUTES},
    tests::{Daemon, UNPLACED, delete, get, put, with_a_loop},
    *,
};
use serde_json::Value;
use std::collections::BTreeSet;

fn description() -> Value {
    serde_json::from_str(routes::OPENAPI).unwrap()
}

fn verb(method: Method) -> &'static str {
    match method {
        Method::Get => "get",
        Method::Put => "put",
        Method::Delete => "delete",
    }
}

/// What is wrong with `value` where the schema is kept.
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
fn it_names_what_there_is_and_what_may_be_answered() {
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
            statuses.map(|&status| (verb(route.method).to_owned(), route.path.to_owned(), status))
        })
        .collect();
    assert_eq!(described, served);
    assert_eq!(all["info"]["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn answers_have_the_shape_that_it_describes() {
    let all = description();
    with_a_loop(Daemon::new(Limits::default()), |daemon| {
        for route in ROUTES {
            let method = verb(route.method);
            let answers = &all["paths"][route.path][method]["responses"];
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
                let (content_type, body) = content.iter().next().unwrap();
                assert_eq!(reply.content_type.as_ref(), Some(content_type));
                if content_type == "application/json" {
                    check(&all, &body["schema"], &reply.json(), &path);
                }
            }
        }
        let refused = daemon.ask(&get("/domains/nobody"));
        let error =
            all.pointer("/components/responses/Unknown/content/application~1json/schema").unwrap();
        check(&all, error, &refused.json(), "404");
    });
}

#[test]
fn what_it_lets_a_client_send_is_understood() {
    let all = description();
    let wish = &all["components"]["schemas"]["Affinity"]["properties"];
    let keys: BTreeSet<_> = wish.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(["affinity", "nodes"]));
    with_a_loop(Daemon::new(Limits::default()), |daemon| {
        for affinity in wish["affinity"]["enum"].as_array().unwrap() {
            let body = serde_json::json!({"nodes": [1], "affinity": affinity});
            assert_eq!(
                daemon.ask(&put("/domains/db/affinity", &body.to_string())).status,
                200,
                "{body}"
            );
        }
    });
}
