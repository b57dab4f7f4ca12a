//! The target of the crate `nearside`: requests to the daemon's API.

use nearside::daemon::{
    access::{Access, Caller},
    api::{Api, Groups, Limits, serve},
    audit::AuditLog,
    config::Config,
    snapshot::{Answer, Event, Seen, SeenDomain},
};
use nearside_linux::cgroup::Tree;
use nearside_policy::{Affinity, Home, MemoryPolicy, Origin};
use nearside_topology::{Node, NodeId, NodeSet, Topology};
use std::{
    fs,
    path::Path,
    sync::{
        OnceLock,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

/// Bytes that an administrator sends over one connection, perhaps several requests. The same bytes
/// are also read as a configuration.
pub fn api(input: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder for the audit log");
    let log = folder.path().join("audit.log");
    fs::write(folder.path().join("cgroup.controllers"), "").expect("a file of the folder");
    let groups =
        Groups { tree: Tree::at(folder.path()).expect("a tree"), proc: folder.path().into() };
    let api = Api::new(
        Access::default(),
        AuditLog::new(&log),
        the_loop().clone(),
        Limits::default(),
        groups,
    );
    api.published.publish(seen());
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let heard = runtime.block_on(async {
        let (mut near, far) = duplex(1 << 16);
        let root = Caller { uid: 0, gid: 0, groups: Vec::new(), pid: Some(1) };
        let serving = tokio::spawn(serve(api, root, far));
        // The server may close the connection before it has read all.
        let _ = near.write_all(input).await;
        let _ = near.shutdown().await;
        let mut heard = Vec::new();
        let _ = near.read_to_end(&mut heard).await;
        serving.await.expect("serving never panics");
        heard
    });
    assert!(
        heard.is_empty() || heard.starts_with(b"HTTP/1."),
        "{}",
        String::from_utf8_lossy(&heard)
    );
    assert!(!heard.starts_with(b"HTTP/1.1 500"), "{}", String::from_utf8_lossy(&heard));
    // For any request, each line of the audit log is one object.
    for line in fs::read_to_string(&log).expect("the log is text").lines() {
        let object: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
        assert!(object.is_object());
    }

    if let Ok(text) = std::str::from_utf8(input) {
        match Config::parse(Path::new("daemon.toml"), text) {
            Ok(config) => drop(config.tuning()),
            Err(error) => assert!(!error.to_string().contains('\n')),
        }
    }
}

/// A machine of two nodes with one found domain.
fn seen() -> Seen {
    let node = |id| Node { id: NodeId(id), memory_bytes: 1 << 30, ..Node::default() };
    let topology = Topology { nodes: vec![node(0), node(1)], ..Topology::default() };
    let found = SeenDomain { cgroup: "/a/b.scope".into(), ..SeenDomain::default() };
    Seen { topology, domains: vec![found], ..Seen::default() }
}

/// A loop that makes one change, refuses the next, has lost the domain of the third, and drops the
/// fourth.
fn the_loop() -> &'static SyncSender<Event> {
    static LOOP: OnceLock<SyncSender<Event>> = OnceLock::new();
    LOOP.get_or_init(|| {
        let (sender, events) = sync_channel(16);
        thread::spawn(move || {
            for (event, turn) in events.into_iter().zip((0..4).cycle()) {
                let Event::Change(asked) = event else { continue };
                let nodes = NodeSet::from([NodeId(0)]);
                let home = Home {
                    nodes: nodes.clone(),
                    origin: Origin::Auto,
                    affinity: Affinity::Soft,
                    policy: MemoryPolicy::Local,
                };
                let _ = match turn {
                    0 => asked.answer.send(Answer::Done {
                        nodes_before: nodes,
                        home,
                        notes: Vec::new(),
                    }),
                    1 => asked.answer.send(Answer::Refused("no".into())),
                    2 => asked.answer.send(Answer::Gone),
                    _ => continue,
                };
            }
        });
        sender
    })
}
