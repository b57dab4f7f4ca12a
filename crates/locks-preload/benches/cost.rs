//! The cost of the object: a free mutex, and programs of this host, each by turns with the object
//! and without it.
//!
//!     cargo bench -p nearside-locks-preload
#![allow(unsafe_code, reason = "functions of the C library")]
#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

use libc::{c_int, c_void, pthread_mutex_t};
use std::{
    cell::UnsafeCell,
    env,
    fs::File,
    io::Write,
    mem::transmute,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Instant,
};

/// Each is run so often both ways.
const PAIRS: usize = 15;
const TURNS: u32 = 2_000_000;

/// Commands of a shell. `$INPUT` is a file of text.
const PROGRAMS: &[&str] = &[
    "xz --threads=2 --block-size=1MiB -1 --stdout $INPUT",
    "pigz --processes 2 --stdout $INPUT",
    "sqlite3 :memory: 'create table t(a, b); with recursive n(i) as (select 1 union all \
     select i + 1 from n where i < 300000) insert into t select i, i * 7 from n; \
     create index x on t(b); select sum(a) from t where b > 1000'",
    "sysbench --threads=4 --time=0 --events=4 --mutex-loops=20000 --mutex-locks=20000 mutex run",
    "sysbench --threads=4 --time=0 --events=2000 threads run",
    "python3 -c 'import threading; t = [threading.Thread(target=lambda: sum(range(10**6))) \
     for _ in range(4)]; [x.start() for x in t]; [x.join() for x in t]'",
];

type Lock = unsafe extern "C" fn(*mut pthread_mutex_t) -> c_int;

fn object() -> PathBuf {
    let deps = env::current_exe().unwrap().parent().unwrap().to_owned();
    deps.join("libnearside_locks_preload.so")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints the medians of two ways, and of their ratio.
fn report(name: &str, unit: &str, pairs: &[(f64, f64)]) {
    let ratios: Vec<_> = pairs.iter().map(|(with, without)| with / without).collect();
    let (low, high) =
        ratios.iter().fold((f64::MAX, 0.0_f64), |(low, high), it| (low.min(*it), high.max(*it)));
    println!(
        "{:.3} ({low:.3} to {high:.3})  {:.1} {unit} with, {:.1} without: {name}",
        median(ratios),
        median(pairs.iter().map(|pair| pair.0).collect()),
        median(pairs.iter().map(|pair| pair.1).collect()),
    );
}

/// Pairs of measurements, each way first in turn.
fn by_turns(mut measure: impl FnMut(bool) -> f64) -> Vec<(f64, f64)> {
    let pair = |number| {
        let first = measure(number % 2 == 0);
        let second = measure(number % 2 != 0);
        if number % 2 == 0 { (first, second) } else { (second, first) }
    };
    (0..=PAIRS).map(pair).skip(1).collect()
}

/// Lets threads wait for a mutex, so that it has a place in the object.
fn contend(mutex: &Shared) {
    for _ in 0..100 {
        // SAFETY: it is initialized, and outlives the thread.
        unsafe { libc::pthread_mutex_lock(mutex.0.get()) };
        thread::scope(|scope| {
            let (begun, has_begun) = mpsc::channel();
            scope.spawn(move || {
                begun.send(()).unwrap();
                // SAFETY: as above.
                unsafe { libc::pthread_mutex_lock(mutex.0.get()) };
                // SAFETY: this thread has it.
                unsafe { libc::pthread_mutex_unlock(mutex.0.get()) };
            });
            has_begun.recv().unwrap();
            (0..100).for_each(|_| thread::yield_now());
            // SAFETY: this thread has it.
            unsafe { libc::pthread_mutex_unlock(mutex.0.get()) };
        });
    }
}

struct Shared(UnsafeCell<pthread_mutex_t>);

// SAFETY: the C library permits it.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Self {
        Self(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER))
    }
}

/// A free mutex, in a process with the object: its function, and that of the C library.
fn free() {
    // SAFETY: a library that is loaded, and names that end.
    let (ours, own) = unsafe {
        let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY);
        let name = c"pthread_mutex_lock".as_ptr();
        (libc::dlsym(libc::RTLD_DEFAULT, name), libc::dlsym(library, name))
    };
    assert!(!ours.is_null() && !own.is_null() && ours != own, "the object is not loaded");
    // SAFETY: both are pthread_mutex_lock.
    let (ours, own) =
        unsafe { (transmute::<*mut c_void, Lock>(ours), transmute::<*mut c_void, Lock>(own)) };
    let measure = |name: &str, mutex: &Shared| {
        let pairs = by_turns(|is_ours| {
            let lock = if is_ours { ours } else { own };
            let begin = Instant::now();
            for _ in 0..TURNS {
                // SAFETY: the mutex is initialized, and this thread's alone meanwhile.
                unsafe {
                    lock(mutex.0.get());
                    libc::pthread_mutex_unlock(mutex.0.get());
                }
            }
            begin.elapsed().as_secs_f64() * 1e9 / f64::from(TURNS)
        });
        report(&format!("lock and unlock a free mutex: {name}"), "ns", &pairs);
    };
    let (mutex, other) = (Shared::new(), Shared::new());
    measure("no mutex has been waited for", &mutex);
    contend(&other);
    measure("another one has been waited for", &mutex);
    contend(&mutex);
    measure("this one has been waited for", &mutex);
}

fn run(program: &str, input: &Path, is_below: bool) -> f64 {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec {program}")]).env("INPUT", input).stdout(Stdio::null());
    command.env_remove("NEARSIDE_LOCKS").env_remove("NEARSIDE_LOCKS_REPORT");
    if is_below {
        command.env("LD_PRELOAD", object());
    }
    let begin = Instant::now();
    let status = command.status().unwrap();
    assert!(status.success(), "{program}: {status}");
    begin.elapsed().as_secs_f64() * 1e3
}

fn main() {
    if env::args().any(|word| word == "--free") {
        return free();
    }
    let own = env::current_exe().unwrap();
    let status = Command::new(own).arg("--free").env("LD_PRELOAD", object()).status().unwrap();
    assert!(status.success(), "{status}");
    let input = env::temp_dir().join(format!("nearside-locks-{}.txt", std::process::id()));
    let mut file = File::create(&input).unwrap();
    for number in 0..600_000_u64 {
        writeln!(file, "{} {number}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap();
    }
    drop(file);
    for program in PROGRAMS {
        let name = program.split(' ').next().unwrap_or_default();
        let mut found = Command::new("sh");
        found.args(["-c", &format!("command -v {name} >&2")]);
        if !found.stderr(Stdio::null()).status().unwrap().success() {
            println!("not measured: there is no {name} here");
            continue;
        }
        let pairs = by_turns(|is_below| run(program, &input, is_below));
        report(program, "ms", &pairs);
    }
    std::fs::remove_file(input).unwrap();
}
