//! A lock that each thread wants for itself.

use crate::{
    args::Args,
    crowd::{self, Line, Member},
};
use lock_api::{Mutex, RawMutex};

/// The data that the lock protects.
struct Guarded {
    lines: Vec<Line>,
    /// The last holder and its node.
    last: (usize, u32),
    /// All turns; those that went to another thread, and those of them that stayed on a node.
    turns: u64,
    handed_on: u64,
    stayed: u64,
}

/// Prints the line of a kind of lock.
pub(crate) fn run<R: RawMutex + Send + Sync>(name: &str, threads: usize, args: &Args) {
    if !args.wants(name) {
        return;
    }
    let lines = vec![Line(0); args.lines];
    let guarded = Guarded { lines, last: (usize::MAX, 0), turns: 0, handed_on: 0, stayed: 0 };
    let lock = Mutex::<R, Guarded>::new(guarded);
    let members = crowd::run(threads, args, |member: &mut Member| {
        let mut guarded = lock.lock();
        member.has_it();
        let this = (member.thread, member.node);
        let (last, last_node) = std::mem::replace(&mut guarded.last, this);
        guarded.turns += 1;
        if last != member.thread {
            guarded.handed_on += 1;
            guarded.stayed += u64::from(last_node == member.node);
        }
        guarded.lines.iter_mut().for_each(|line| line.0 += 1);
    });
    let guarded = lock.into_inner();
    println!(
        "{}  stays {:5.1} %  again {:5.1} %  longest wait {:7.0} us",
        crowd::figures(name, &members, args),
        100.0 * guarded.stayed as f64 / guarded.handed_on.max(1) as f64,
        100.0 * (1.0 - guarded.handed_on as f64 / guarded.turns.max(1) as f64),
        crowd::longest_wait_us(&members),
    );
}
