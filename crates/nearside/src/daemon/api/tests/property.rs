//! A property-based client (schemathesis) against the description and the real router: `make
//! api-test`.

use super::harness::{Daemon, root};
use crate::daemon::{
    api::{Api, Limits, read::OPENAPI, serve},
    snapshot::{Answer, Change, Event, Seen, examples},
};
use nearside_policy::{Home, Origin};
use serde_json::{Value, json};
use std::{fs, net::TcpListener, path::Path, process::Command, sync::Arc, thread, time::Duration};

/// The client's executable.
const CLIENT: &str = "NEARSIDE_SCHEMATHESIS";

#[test]
#[ignore = "needs schemathesis: make api-test"]
fn a_property_based_client_finds_no_difference_from_the_description() {
    let client = std::env::var_os(CLIENT).unwrap_or_else(|| panic!("{CLIENT} names no client"));
    let Daemon { folder, api, events } =
        Daemon::new(Limits { refusal: Duration::ZERO, ..Limits::default() });
    let seen = Seen { interval: Duration::from_secs(3600), ..examples::seen() };
    let machine = seen.topology.nodes.iter().map(|node| node.id.0).max().unwrap();
    api.published.publish(seen.clone());
    let looping = Arc::clone(&api);
    thread::spawn(move || {
        let mut seen = seen;
        for event in events {
            let Event::Change(asked) = event else { continue };
            let answer = decide(&mut seen, &asked.change);
            looping.published.publish(seen.clone());
            asked.answer.send(answer).unwrap();
        }
    });

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || serve_all(api, listener));
    let description = folder.path().join("openapi.json");
    fs::write(&description, described(machine).to_string()).unwrap();
    let status = run(Path::new(&client), folder.path(), &description, &format!("http://{address}"));
    assert!(status, "the client found differences: see above");
}

fn run(client: &Path, folder: &Path, description: &Path, url: &str) -> bool {
    let mut command = Command::new(client);
    command.current_dir(folder).arg("run").arg(description).args(["--url", url]);
    command.args(["--phases", "examples,coverage,fuzzing,stateful", "--checks", "all"]);
    command.args(["--mode", "all", "--max-examples", "150", "--seed", "20261125"]);
    command.args(["--generation-database", "none", "--no-color"]);
    command.status().unwrap().success()
}

/// The description, narrowed to nodes that this machine has: a body that fits it has to be
/// accepted.
fn described(last_node: u32) -> Value {
    let mut all: Value = serde_json::from_str(OPENAPI).unwrap();
    let nodes = &mut all["components"]["schemas"]["Affinity"]["properties"]["nodes"];
    assert_eq!(nodes["items"]["type"], "integer");
    nodes["items"]["maximum"] = json!(last_node);
    all
}

/// Serves loopback connections as the daemon serves those of its socket.
fn serve_all(api: Arc<Api>, listener: TcpListener) {
    listener.set_nonblocking(true).unwrap();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(Arc::clone(&api), root(), stream));
        }
    });
}

/// The control loop: a domain with a home gets the home it is asked for, so that later answers show
/// it.
fn decide(seen: &mut Seen, change: &Change) -> Answer {
    let records = seen.domains.iter_mut().filter_map(|domain| domain.record.as_mut());
    let Some(record) = records.into_iter().find(|record| record.name == change.domain()) else {
        return Answer::Refused("the domain has no home yet".into());
    };
    let nodes_before = record.part().home.nodes.clone();
    record.part_mut().home = match change {
        Change::SetAffinity { nodes, affinity, .. } => Home {
            nodes: nodes.clone(),
            origin: Origin::Explicit,
            affinity: affinity.unwrap_or(record.part().home.affinity),
            ..record.part().home.clone()
        },
        Change::Release { .. } => Home { origin: Origin::Auto, ..record.part().home.clone() },
    };
    Answer::Done { nodes_before, home: record.part().home.clone(), notes: Vec::new() }
}
