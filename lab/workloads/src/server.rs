//! Requests over loopback: threads that answer them, and clients who measure how long that takes.

use crate::{
    chance::{next, one_of},
    outcome::Outcome,
};
use clap::{Args, ValueEnum};
use nearside_workloads::clock;
use std::{
    hint::black_box,
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::Command,
    thread::{self, ScopedJoinHandle},
    time::Duration,
};

const REQUEST_BYTES: usize = 128;
const ANSWER_BYTES: usize = 512;

/// An answer is so many lines to follow in the store, one after the other's address is known ..
const FOLLOWED: usize = 100;
/// .. and so much work without memory.
const COMPUTED_NS: u64 = 20_000;

/// A client waits this long, and at most twice as long again, until it asks for more. With four
/// clients in each of 16 domains, eight CPUs are about two thirds busy.
const LEAST_THOUGHT: Duration = Duration::from_micros(450);

/// Answer requests, ask for them, or both.
#[derive(Debug, Args)]
pub(crate) struct Server {
    #[arg(long, value_enum)]
    part: Part,
    #[arg(long)]
    port: u16,
    /// Each has a thread that asks and one that answers
    #[arg(long)]
    connections: usize,
    /// Of each connection
    #[arg(long)]
    requests: usize,
    /// Of the store, which all answers are looked up in
    #[arg(long)]
    mib: usize,
}

/// A domain answers requests, asks for them, or does both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Answer,
    Ask,
    Both,
}

/// A cache line of the store.
#[derive(Clone)]
#[repr(align(64))]
struct Line(u64);

fn answer(store: &[Line], mut connection: TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let (mut request, mut said) = ([0; REQUEST_BYTES], [0; ANSWER_BYTES]);
    loop {
        match connection.read_exact(&mut request) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let mut chance = u64::from(u32::from_ne_bytes([request[0], request[1], request[2], 1]));
        for _ in 0..FOLLOWED {
            let at = one_of(store.len() as u64, next(chance)) as usize;
            chance = next(chance ^ store[at].0);
        }
        said[..8].copy_from_slice(&black_box(chance).to_ne_bytes());
        for _ in 0..COMPUTED_NS / clock::STEP_NS {
            clock::work();
        }
        connection.write_all(&said)?;
    }
}

/// Returns how long each request took, in nanoseconds.
fn ask(mut connection: TcpStream, requests: usize, seed: u64) -> io::Result<Vec<u64>> {
    connection.set_nodelay(true)?;
    let (mut chance, mut took_ns) = (next(seed), Vec::with_capacity(requests));
    let (mut request, mut said) = ([0; REQUEST_BYTES], [0; ANSWER_BYTES]);
    let more_us = 2 * LEAST_THOUGHT.as_micros() as u64;
    for _ in 0..requests {
        chance = next(chance);
        thread::sleep(LEAST_THOUGHT + Duration::from_micros(one_of(more_us, chance)));
        request[..8].copy_from_slice(&chance.to_be_bytes());
        let asked_ns = clock::now_ns();
        connection.write_all(&request)?;
        connection.read_exact(&mut said)?;
        took_ns.push(clock::now_ns() - asked_ns);
    }
    Ok(took_ns)
}

fn result_of<T>(thread: ScopedJoinHandle<'_, io::Result<T>>) -> Outcome<T> {
    Ok(thread.join().map_err(|_| "a thread ended early")??)
}

impl Server {
    /// Calls `begin` once the store is filled and the port is open, and works when that comes back.
    /// Returns how long each request took, in nanoseconds.
    pub(crate) fn run(&self, begin: impl FnOnce() -> io::Result<()>) -> Outcome<Vec<u64>> {
        let answers = self.part != Part::Ask;
        let address = (Ipv4Addr::LOCALHOST, self.port);
        let (mut store, mut port) = (vec![], None);
        if answers {
            // Idempotent, so each domain that answers may do it.
            if !Command::new("/bin/ip").args(["link", "set", "lo", "up"]).status()?.success() {
                return Err("no loopback interface".into());
            }
            let count = (self.mib << 20) / size_of::<Line>();
            store.extend((0..count as u64).map(Line));
            port = Some(TcpListener::bind(address)?);
        }
        begin()?;
        thread::scope(|scope| {
            let asking: Vec<_> = (0..if self.part == Part::Answer { 0 } else { self.connections })
                .map(|each| {
                    let seed = u64::from(self.port) << 8 | each as u64;
                    scope.spawn(move || ask(TcpStream::connect(address)?, self.requests, seed))
                })
                .collect();
            let mut answering = vec![];
            for connection in port.iter().flat_map(TcpListener::incoming).take(self.connections) {
                let (connection, store) = (connection?, &store);
                answering.push(scope.spawn(move || answer(store, connection)));
            }
            let mut took_ns = vec![];
            for thread in asking {
                took_ns.extend(result_of(thread)?);
            }
            answering.into_iter().try_for_each(result_of)?;
            Ok(took_ns)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, answer, ask};
    use std::{
        net::{Ipv4Addr, TcpListener, TcpStream},
        thread,
    };

    #[test]
    fn each_request_gets_an_answer() {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = port.local_addr().unwrap();
        let asking = thread::spawn(move || ask(TcpStream::connect(address).unwrap(), 3, 7));
        let store: Vec<_> = (0..64).map(Line).collect();
        answer(&store, port.accept().unwrap().0).unwrap();
        assert_eq!(asking.join().unwrap().unwrap().len(), 3);
    }
}
