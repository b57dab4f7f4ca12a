//! Requests that change something.

use super::harness::{
    Client, Daemon, admin, delete, get, put, reader, root, stranger, with_a_loop,
};
use crate::daemon::{
    api::{
        Limits,
        limits::{MAX_CHANGES, MAX_ROOT_CHANGES},
        serve,
    },
    snapshot::{Answer, Event},
};
use serde_json::Value;
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream as StdUnixStream,
    sync::{Arc, mpsc::sync_channel},
    thread,
    time::Duration,
};
use tokio::net::UnixStream;

#[test]
fn a_body_that_makes_no_sense_is_refused_before_the_loop() {
    let daemon = Daemon::new(Limits::default());
    let cases = [
        ("", 400, "EOF"),
        ("nodes", 400, "the body is not JSON"),
        ("{\"nodes\": [1]} x", 400, "trailing characters"),
        ("[[1], \"hard\"]", 422, "this is an array"),
        ("{}", 422, "the key \"nodes\" is missing"),
        ("{\"nodes\": []}", 422, "expected at least one"),
        ("{\"nodes\": [0, 5]}", 422, "there is no node 5: this machine has nodes 0-1"),
        ("{\"nodes\": [4503.0]}", 422, "there is no node 4503"),
        ("{\"nodes\": [65535]}", 422, "there is no node 65535"),
    ];
    for (body, status, expected) in cases {
        let reply = daemon.ask(&put("/domains/db/affinity", body));
        assert_eq!(reply.status, status, "{body}: {reply:?}");
        assert!(reply.error().contains(expected), "{body}: {reply:?}");
    }
    assert!(daemon.events.try_recv().is_err());
}

#[test]
fn a_whole_number_with_a_point_names_a_node() {
    with_a_loop(Daemon::new(Limits::default()), |daemon| {
        let reply = daemon.ask(&put("/domains/db/affinity", "{\"nodes\": [1.0]}"));
        assert_eq!((reply.status, &reply.json()["nodes"]), (200, &serde_json::json!([1])));
    });
}

#[test]
fn readers_may_read_strangers_nothing_and_each_refused_change_is_recorded() {
    let daemon = Daemon::new(Limits { refusal: Duration::ZERO, ..Limits::default() });
    let body = put("/domains/db/affinity", "{\"nodes\": [1]}");
    let mut reading = daemon.connect(reader());
    assert_eq!(reading.ask(&get("/domains")).status, 200);
    let refused = reading.ask(&body);
    assert!(refused.status == 403 && refused.error().contains("user 4000001"), "{refused:?}");
    // A refusal does not end the connection.
    assert_eq!(reading.ask(&get("/health")).status, 200);
    let mut strange = daemon.connect(stranger());
    for request in
        [get("/domains"), get("/nothing"), get("/openapi.json"), delete("/domains/db/affinity")]
    {
        assert_eq!(strange.ask(&request).status, 403);
    }
    assert!(daemon.events.try_recv().is_err());
    let audit = daemon.audit();
    let summary = |line: &Value| {
        (line["uid"].as_u64(), line["method"].as_str().map(str::to_owned), line["status"].as_u64())
    };
    assert_eq!(
        audit.iter().map(summary).collect::<Vec<_>>(),
        [
            (Some(4_000_001), Some("PUT".into()), Some(403)),
            (Some(4_000_002), Some("DELETE".into()), Some(403)),
        ]
    );
}

#[test]
fn a_delayed_refusal_delays_no_other_request() {
    let daemon = Daemon::new(Limits { refusal: Duration::MAX, ..Limits::default() });
    let mut refused: Vec<Client> = (0..MAX_CHANGES).map(|_| daemon.connect(reader())).collect();
    refused
        .iter_mut()
        .for_each(|client| client.send(&put("/domains/db/affinity", "{\"nodes\": [1]}")));
    while daemon.audit().len() < refused.len() {
        thread::yield_now();
    }
    assert_eq!(daemon.ask(&put("/domains/db/affinity", "{\"nodes\": [77]}")).status, 422);
    for client in &mut refused {
        client.stream.set_nonblocking(true).unwrap();
        assert_eq!(client.stream.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}

#[test]
fn bodies_that_do_not_arrive_delay_no_change() {
    let daemon = Daemon::new(Limits { body: Duration::MAX, ..Limits::default() });
    let body = put("/domains/db/affinity", "{\"nodes\": [1]}");
    let (begin, _) = body.split_at(body.len() - 1);
    let slow: Vec<Client> = (0..2 * (MAX_CHANGES + MAX_ROOT_CHANGES))
        .map(|_| daemon.connect_saying(begin, admin()))
        .collect();
    with_a_loop(daemon, |daemon| {
        assert_eq!(daemon.connect(admin()).ask(&body).status, 200);
        assert_eq!(daemon.ask(&body).status, 200);
        // Their connections end, and with them the API.
        drop(slow);
    });
}

#[test]
fn changes_of_an_administrator_leave_room_for_those_of_root() {
    let daemon = Daemon::with_room_for(64, Limits::default());
    let body = put("/domains/db/affinity", "{\"nodes\": [1]}");
    // The loop takes them up and answers none.
    let start = |caller: fn() -> crate::daemon::access::Caller| {
        let mut client = daemon.connect(caller());
        client.send(&body);
        (client, daemon.events.recv().unwrap())
    };
    let under_way: Vec<_> = (0..MAX_CHANGES).map(|_| start(admin)).collect();
    let refused = daemon.connect(admin()).ask(&body);
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.error().contains("too many changes are under way"), "{refused:?}");
    let (mut of_root, event) = start(root);
    let Event::Change(asked) = event else { panic!("{event:?}") };
    asked.answer.send(Answer::Refused("node 1 is full".into())).unwrap();
    assert_eq!(of_root.receive().status, 409);
    drop(under_way);
}

#[test]
fn each_change_is_recorded_with_its_outcome() {
    with_a_loop(Daemon::new(Limits::default()), |daemon| {
        let done =
            daemon.ask(&put("/domains/%2Fnearside%2Fdb/affinity", "{\"nodes\": [1, 1]}")).json();
        let expected = serde_json::json!({
            "name": "db", "nodes_before": [1], "nodes": [1], "origin": "explicit",
            "notes": ["noted"],
        });
        assert_eq!(done, expected);
        daemon.ask(&put("/domains/db/affinity", "{\"nodes\": [0]}"));
        daemon.ask(&put("/domains/db/affinity", "oops"));
        daemon.ask(&delete("/domains/db/affinity"));
        let audit = daemon.audit();
        let summary = |line: &Value| {
            (line["status"].as_u64().unwrap(), line["change"]["do"].as_str().map(str::to_owned))
        };
        let set = || Some("set-affinity".to_owned());
        assert_eq!(
            audit.iter().map(summary).collect::<Vec<_>>(),
            [(200, set()), (409, set()), (400, None), (200, Some("release".into()))]
        );
        assert_eq!(audit[0]["change"]["domain"], "db");
        assert_eq!(audit[1]["error"], "node 0 is full");
    });
}

#[test]
fn a_full_queue_and_a_missing_loop_are_answered_with_503() {
    let daemon = Daemon::with_room_for(0, Limits::default());
    let body = put("/domains/db/affinity", "{\"nodes\": [1]}");
    assert!(daemon.ask(&body).error().contains("too many changes"));
    let Daemon { folder, api, events } = daemon;
    drop(events);
    let daemon = Daemon { folder, api, events: sync_channel(1).1 };
    let reply = daemon.ask(&body);
    assert!(reply.status == 503 && reply.error().contains("nothing was changed"), "{reply:?}");
}

#[test]
fn a_change_is_recorded_after_its_client_hung_up() {
    let daemon = Daemon::new(Limits::default());
    let (near, far) = StdUnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().unwrap();
    (&near).write_all(delete("/domains/db/affinity").as_bytes()).unwrap();
    let api = Arc::clone(&daemon.api);
    let stream = runtime.block_on(async { UnixStream::from_std(far).unwrap() });
    let serving = runtime.spawn(serve(api, root(), stream));
    let asked = runtime.block_on(async {
        loop {
            tokio::task::yield_now().await;
            if let Ok(Event::Change(asked)) = daemon.events.try_recv() {
                return asked;
            }
        }
    });
    drop(near);
    serving.abort();
    asked.answer.send(Answer::Gone).unwrap();
    runtime.block_on(daemon.api.changes.ended());
    assert_eq!(daemon.audit()[0]["status"], 404);
}
