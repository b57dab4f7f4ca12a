//! Calls and answers whose bytes were worked by hand from `src/remote/remote_protocol.x` and
//! `src/rpc/virnetprotocol.x` of libvirt, and daemons that hang or answer anything.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failing unwrap in a test is a failing test"
)]

mod common;

use common::{Ready, bytes, message, word};
use nearside_libvirt::{IothreadId, VcpuId};
use nearside_libvirt_rpc::{Connection, DomainHandle, Error, Garbled};
use nearside_topology::CpuSet;
use std::{
    io::{Read, Write},
    os::unix::net::UnixListener,
    thread,
    time::{Duration, Instant},
};

fn vm() -> DomainHandle {
    DomainHandle { name: "vm".into(), uuid: *b"0123456789abcdef", id: 7 }
}

/// `remote_nonnull_domain`: a string, 16 bytes, an int.
fn vm_bytes() -> Vec<u8> {
    bytes(&[&word(2), b"vm\0\0", b"0123456789abcdef", &word(7)])
}

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn reply(procedure: u32, serial: u32, payload: &[u8]) -> Vec<u8> {
    message(procedure, 1, serial, 0, payload)
}

#[test]
fn opening_lists_the_authentications_and_names_the_hosts_qemu() {
    let (daemon, mut libvirt) =
        Ready::connect(&[reply(66, 1, &bytes(&[&word(1), &word(0)])), reply(1, 2, &[])]);
    libvirt.open_system().unwrap();
    // remote_connect_open_args: a string that is there, flags.
    let open = bytes(&[&word(1), &word(14), b"qemu:///system\0\0", &word(0)]);
    assert_eq!(daemon.written(), bytes(&[&message(66, 0, 1, 0, &[]), &message(1, 0, 2, 0, &open)]));
}

#[test]
fn a_daemon_that_demands_authentication_is_named() {
    let (_, mut libvirt) = Ready::connect(&[reply(66, 1, &bytes(&[&word(2), &word(1), &word(2)]))]);
    let refused = libvirt.open_system().unwrap_err().to_string();
    assert!(refused.contains("authentication by SASL or polkit: run as root"), "{refused}");
}

#[test]
fn domains_are_listed_and_looked_up() {
    let list = bytes(&[&word(1), &vm_bytes(), &word(1)]);
    let (daemon, mut libvirt) = Ready::connect(&[
        reply(273, 1, &list),
        reply(22, 2, &vm_bytes()),
        reply(23, 3, &vm_bytes()),
        reply(24, 4, &vm_bytes()),
        reply(14, 5, &bytes(&[&word(9), b"<domain/>\0\0\0"])),
        reply(14, 6, &bytes(&[&word(9), b"<domain/>\0\0\0"])),
        reply(151, 7, &word(1)),
    ]);
    assert_eq!(libvirt.running_domains().unwrap(), [vm()]);
    // need_results, VIR_CONNECT_LIST_DOMAINS_ACTIVE.
    assert_eq!(daemon.written(), message(273, 0, 1, 0, &bytes(&[&word(1), &word(1)])));
    assert_eq!(libvirt.domain_by_id(7).unwrap(), vm());
    assert_eq!(daemon.written(), message(22, 0, 2, 0, &word(7)));
    assert_eq!(libvirt.domain_by_name("vm").unwrap(), vm());
    assert_eq!(daemon.written(), message(23, 0, 3, 0, &bytes(&[&word(2), b"vm\0\0"])));
    assert_eq!(libvirt.domain_by_uuid(*b"0123456789abcdef").unwrap(), vm());
    assert_eq!(daemon.written(), message(24, 0, 4, 0, b"0123456789abcdef"));
    assert_eq!(libvirt.xml(&vm()).unwrap(), "<domain/>");
    assert_eq!(daemon.written(), message(14, 0, 5, 0, &bytes(&[&vm_bytes(), &word(0)])));
    assert_eq!(libvirt.configured_xml(&vm()).unwrap(), "<domain/>");
    // VIR_DOMAIN_XML_INACTIVE.
    assert_eq!(daemon.written(), message(14, 0, 6, 0, &bytes(&[&vm_bytes(), &word(2)])));
    assert!(libvirt.is_persistent(&vm()).unwrap());
    assert_eq!(daemon.written(), message(151, 0, 7, 0, &vm_bytes()));
}

#[test]
fn pins_are_read_and_set_live() {
    let mask = |first: u8| {
        let mut mask = vec![0; 2048];
        mask[0] = first;
        mask
    };
    let masks = bytes(&[&word(4096), &mask(0b01), &mask(0b10), &word(2)]);
    let iothreads = bytes(&[&word(1), &word(1), &word(1), &[4, 0, 0, 0], &word(1)]);
    let (daemon, mut libvirt) = Ready::connect(&[
        reply(230, 1, &masks),
        reply(225, 2, &[]),
        reply(280, 3, &bytes(&[&word(2048), &mask(0b11), &word(1)])),
        reply(279, 4, &[]),
        reply(351, 5, &iothreads),
        reply(352, 6, &[]),
    ]);
    // The flag 1 is VIR_DOMAIN_AFFECT_LIVE.
    assert_eq!(libvirt.vcpu_pins(&vm(), 2).unwrap(), [set("0"), set("1")]);
    let asked = bytes(&[&vm_bytes(), &word(2), &word(2048), &word(1)]);
    assert_eq!(daemon.written(), message(230, 0, 1, 0, &asked));
    libvirt.pin_vcpu(&vm(), VcpuId(1), &set("0,9")).unwrap();
    let asked = bytes(&[&vm_bytes(), &word(1), &word(2), &[1, 2, 0, 0], &word(1)]);
    assert_eq!(daemon.written(), message(225, 0, 2, 0, &asked));
    assert_eq!(libvirt.emulator_pin(&vm()).unwrap(), set("0-1"));
    let asked = bytes(&[&vm_bytes(), &word(2048), &word(1)]);
    assert_eq!(daemon.written(), message(280, 0, 3, 0, &asked));
    libvirt.pin_emulator(&vm(), &set("1")).unwrap();
    let asked = bytes(&[&vm_bytes(), &word(1), &[2, 0, 0, 0], &word(1)]);
    assert_eq!(daemon.written(), message(279, 0, 4, 0, &asked));
    assert_eq!(libvirt.iothread_pins(&vm()).unwrap(), [(IothreadId(1), set("2"))]);
    assert_eq!(daemon.written(), message(351, 0, 5, 0, &bytes(&[&vm_bytes(), &word(1)])));
    libvirt.pin_iothread(&vm(), IothreadId(1), &set("0")).unwrap();
    let asked = bytes(&[&vm_bytes(), &word(1), &word(1), &[1, 0, 0, 0], &word(1)]);
    assert_eq!(daemon.written(), message(352, 0, 6, 0, &asked));
}

#[test]
fn numa_parameters_are_read_and_the_node_set_is_set() {
    let parameters = bytes(&[
        &word(2),
        &word(9),
        b"numa_mode\0\0\0",
        // VIR_TYPED_PARAM_INT, VIR_DOMAIN_NUMATUNE_MEM_RESTRICTIVE.
        &word(1),
        &word(3),
        &word(12),
        b"numa_nodeset",
        // VIR_TYPED_PARAM_STRING.
        &word(7),
        &word(3),
        b"0-1\0",
        &word(2),
    ]);
    let (daemon, mut libvirt) = Ready::connect(&[reply(255, 1, &parameters), reply(254, 2, &[])]);
    let read = libvirt.numa_parameters(&vm()).unwrap();
    assert_eq!((read.mode, read.nodeset.as_str()), (Some(3), "0-1"));
    // VIR_DOMAIN_AFFECT_LIVE and VIR_TYPED_PARAM_STRING_OKAY.
    let asked = bytes(&[&vm_bytes(), &word(16), &word(5)]);
    assert_eq!(daemon.written(), message(255, 0, 1, 0, &asked));
    libvirt.set_numa_nodeset(&vm(), "1").unwrap();
    let asked = bytes(&[
        &vm_bytes(),
        &word(1),
        &word(12),
        b"numa_nodeset",
        &word(7),
        &word(1),
        b"1\0\0\0",
        &word(1),
    ]);
    assert_eq!(daemon.written(), message(254, 0, 2, 0, &asked));
}

#[test]
fn a_refusal_leaves_the_connection_open() {
    let refusal = bytes(&[&word(42), &word(10), &word(1), &word(4), b"none", &word(2)]);
    let (_, mut libvirt) =
        Ready::connect(&[message(23, 1, 1, 1, &refusal), reply(22, 2, &vm_bytes())]);
    let refused = libvirt.domain_by_name("vm").unwrap_err();
    assert!(refused.is_no_domain(), "{refused}");
    assert_eq!(libvirt.domain_by_id(7).unwrap(), vm());
}

#[test]
fn events_are_skipped_and_keep_alives_answered() {
    // KEEPALIVE_PROGRAM is "keep"; a ping is 1, a pong 2; both are messages (2) without a serial.
    let keep = |procedure| {
        bytes(&[&word(28), b"keep", &word(1), &word(procedure), &word(2), &word(0), &word(0)])
    };
    let event = message(318, 2, 0, 0, &[1, 2, 3, 4]);
    let (daemon, mut libvirt) = Ready::connect(&[event, keep(1), reply(22, 1, &vm_bytes())]);
    assert_eq!(libvirt.domain_by_id(7).unwrap(), vm());
    assert_eq!(daemon.written(), bytes(&[&message(22, 0, 1, 0, &word(7)), &keep(2)]));
}

#[test]
fn answers_that_are_not_libvirts_are_errors_and_end_the_connection() {
    let long = bytes(&[&word(u32::MAX), &[0; 24]]);
    let short = bytes(&[&word(27), &[0; 24]]);
    let many = reply(273, 1, &bytes(&[&word(16_385), &vm_bytes(), &word(1)]));
    let fewer = reply(273, 1, &bytes(&[&word(2), &vm_bytes(), &word(2)]));
    let left = reply(273, 1, &bytes(&[&word(0), &word(0), &word(0)]));
    let name = reply(273, 1, &bytes(&[&word(1), &word(u32::MAX), &[0; 40]]));
    let cases = [
        (long, true, "a message of 4294967295 bytes"),
        (short, true, "a message of 27 bytes"),
        (b"GET / HTTP/1.1\r\n\r\nhost: libvirt\r\n".to_vec(), true, "a message of"),
        (message(273, 1, 9, 0, &[]), true, "another call"),
        (message(22, 1, 1, 0, &[]), true, "another call"),
        (message(273, 3, 1, 0, &[]), true, "another call"),
        (message(273, 9, 1, 0, &[]), true, "9 as kind of a message"),
        (message(273, 1, 1, 9, &[]), true, "9 as status of a message"),
        (bytes(&[&word(1 << 20), &reply(273, 1, &[])[4..]]), true, "broke"),
        (Vec::new(), true, "broke"),
        (many, false, "16385 members, expected at most 16384"),
        (fewer, false, "ends within a field"),
        (left, false, "4 bytes are left"),
        (name, false, "4294967295 members"),
        (message(273, 1, 1, 1, &[0; 4]), false, "ends within a field"),
    ];
    for (answer, closes, expected) in cases {
        let (_, mut libvirt) = Ready::connect(&[answer]);
        let error = libvirt.running_domains().unwrap_err();
        assert!(error.to_string().contains(expected), "{error}, expected {expected}");
        let next = libvirt.running_domains().unwrap_err();
        assert_eq!(matches!(next, Error::Closed), closes, "{expected}: {next}");
    }
}

#[test]
fn masks_that_do_not_fit_the_vcpus_are_refused() {
    let cases: [(&[u8], u32); 3] = [(&[0; 2048], 3), (&[0; 2047], 1), (&[], 1)];
    for (masks, count) in cases {
        let payload = bytes(&[
            &word(masks.len() as u32),
            masks,
            &vec![0; masks.len().wrapping_neg() % 4],
            &word(count),
        ]);
        let (_, mut libvirt) = Ready::connect(&[reply(230, 1, &payload)]);
        let error = libvirt.vcpu_pins(&vm(), 2).unwrap_err();
        let is_garbled = matches!(
            error,
            Error::Garbled { why: Garbled::Masks { .. } | Garbled::TooMany { .. }, .. }
        );
        assert!(is_garbled, "{error}");
    }
    let (daemon, mut libvirt) = Ready::connect(&[]);
    assert!(matches!(libvirt.vcpu_pins(&vm(), 4097), Err(Error::TooLong { .. })));
    assert!(matches!(
        libvirt.pin_vcpu(&vm(), VcpuId(0), &set("16384")),
        Err(Error::TooLong { .. })
    ));
    assert!(daemon.written().is_empty(), "nothing is sent");
}

/// Serves one connection by a function, and returns the error of a client that opens it.
fn open_at(serve: impl FnOnce(std::os::unix::net::UnixStream) + Send + 'static) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || serve(listener.accept().unwrap().0));
    let error = Connection::open(&[path], Duration::from_millis(200)).unwrap_err();
    server.join().unwrap();
    error
}

#[test]
fn a_daemon_that_hangs_costs_the_bound_and_no_more() {
    let silent = open_at(|mut stream| {
        // Reads until the client gives up.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert_eq!(
        silent.to_string(),
        "libvirt has not answered within 200 ms (list of authentications)"
    );
    // A keep-alive every few milliseconds is no answer.
    let ping = bytes(&[&word(28), b"keep", &word(1), &word(1), &word(2), &word(0), &word(0)]);
    let talks = open_at(move |mut stream| {
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(60) && stream.write_all(&ping).is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
    });
    assert!(matches!(talks, Error::TimedOut { .. }), "{talks}");
    let ends = open_at(|mut stream| {
        let _ = stream.read(&mut [0; 28]);
        let _ = stream.write_all(&word(64));
    });
    assert!(matches!(ends, Error::Broken { .. }), "{ends}");
}

#[test]
fn several_calls_have_one_bound_together() {
    let (daemon, mut libvirt) = Ready::connect(&[reply(22, 1, &vm_bytes())]);
    libvirt.end_by(Instant::now());
    assert!(matches!(libvirt.domain_by_id(7), Err(Error::TimedOut { .. })));
    assert!(daemon.written().is_empty());
}

#[test]
fn a_daemon_that_accepts_no_connection_costs_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sock");
    let _listener = UnixListener::bind(&path).unwrap();
    // Fills the queue of the listener with connections that it never accepts.
    let within = Duration::from_millis(50);
    let mut held = Vec::new();
    let error = loop {
        match Connection::open(std::slice::from_ref(&path), within).unwrap_err() {
            Error::TimedOut { call: "list of authentications", .. } if held.len() < 10_000 => {}
            error => break error,
        }
        for _ in 0..200 {
            let socket = rustix::net::socket_with(
                rustix::net::AddressFamily::UNIX,
                rustix::net::SocketType::STREAM,
                rustix::net::SocketFlags::NONBLOCK,
                None,
            );
            let socket = socket.unwrap();
            let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
            if rustix::net::connect(&socket, &address).is_err() {
                break;
            }
            held.push(socket);
        }
    };
    assert!(matches!(error, Error::TimedOut { call: "connect", .. }), "{error}");
}

#[test]
fn a_missing_daemon_is_named_with_its_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let dead = folder.path().join("dead");
    drop(UnixListener::bind(&dead).unwrap());
    let sockets = [folder.path().join("missing"), dead];
    let error = Connection::open(&sockets, Duration::from_secs(1)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("no libvirt daemon listens on"), "{text}");
    assert!(text.contains("missing or ") && text.ends_with("start virtqemud or libvirtd"));
}
