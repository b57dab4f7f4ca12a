//! The workloads, and the domains that they consist of.

use crate::outcome::Outcome;
use clap::Args;
use serde::Serialize;

/// A workload.
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    domain: fn(Place) -> Domain,
}

/// The place of a domain among the others, and the caches that its memory has to exceed.
#[derive(Debug, Clone, Copy)]
struct Place {
    number: usize,
    domains: usize,
    cache_kib: u64,
}

impl Place {
    /// Private memory of a thread: four times the caches of a CPU, a power of two.
    fn thread_mib(self) -> u64 {
        (4 * self.cache_kib).div_ceil(1024).next_power_of_two().max(4)
    }
}

/// A domain and its work, which is the same under every contender.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Domain {
    /// Its size, as its operator states it.
    pub(crate) vcpus: usize,
    pub(crate) memory_mib: u64,
    /// It starts so long after the others.
    pub(crate) delay_ms: u64,
    /// Its CPU time beside the other domains of this workload, for an oracle.
    pub(crate) work: u64,
    /// `workloads domain ..`
    pub(crate) program: Vec<String>,
}

/// A workload, and its amount of work.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Its name
    pub(crate) workload: String,
    #[arg(long, default_value_t = 8)]
    domains: usize,
    /// The caches of a CPU
    #[arg(long, value_name = "KIB", default_value_t = 1024)]
    cache_kib: u64,
}

impl Which {
    pub(crate) fn domains(&self) -> Outcome<Vec<Domain>> {
        let workload = ALL.iter().find(|workload| workload.name == self.workload);
        let workload = workload.ok_or_else(|| format!("no workload named {:?}", self.workload))?;
        Ok((0..self.domains)
            .map(|number| Place { number, domains: self.domains, cache_kib: self.cache_kib })
            .map(workload.domain)
            .collect())
    }
}

/// In the order of the list.
pub(crate) const ALL: &[Workload] = &[
    Workload {
        name: "warehouse",
        description: "2 threads a domain, each with memory of its own: pointers to follow, lines \
                      to update, a stream, pauses",
        domain: warehouse,
    },
    Workload {
        name: "skewed",
        description: "warehouses of domains that work steadily, start late, idle, or grow from 1 \
                      to 4 threads",
        domain: skewed,
    },
    Workload { name: "stream", description: "2 threads a domain that add arrays", domain: stream },
    Workload {
        name: "lock",
        description: "4 threads a domain that share a lock and the lines it guards",
        domain: lock,
    },
    Workload {
        name: "hackbench",
        description: "8 processes a domain that send messages through sockets",
        domain: hackbench,
    },
    Workload {
        name: "text",
        description: "a shell a domain that executes small programs",
        domain: text,
    },
    Workload {
        name: "sdet",
        description: "2 shells a domain with files, pipes and many programs",
        domain: sdet,
    },
    Workload {
        name: "dbench",
        description: "a client a domain of a file server, on tmpfs",
        domain: dbench,
    },
    Workload {
        name: "crowd",
        description: "16 threads a domain, each with memory of its own: warehouses with more \
                      threads than the machine has CPUs",
        domain: crowd,
    },
    Workload {
        name: "server",
        description: "4 clients a domain that send requests over loopback to 4 threads of the \
                      same domain",
        domain: server,
    },
    Workload {
        name: "server-apart",
        description: "8 clients in each second domain, whose requests the domain before it \
                      answers",
        domain: server_apart,
    },
];

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// The memory of a process beside its data.
const SPARE_MIB: u64 = 4;

fn domain(vcpus: usize, memory_mib: u64, program: &str) -> Domain {
    Domain { vcpus, memory_mib, delay_ms: 0, work: 1, program: words(program) }
}

/// In the spirit of `SPECjbb`: threads that serve warehouses of their own.
fn warehouse(place: Place) -> Domain {
    let mib = place.thread_mib();
    domain(
        2,
        2 * mib + SPARE_MIB,
        &format!("warehouse --threads 2 --mib {mib} --rounds 600 --seed {}", place.number),
    )
}

/// The work of each domain is drawn by chance, the same in every run. It counts in rounds.
fn skewed(place: Place) -> Domain {
    let (number, mib) = (place.number, place.thread_mib());
    // 2^64 divided by the golden ratio.
    let chance = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    match chance >> 62 {
        0 => Domain { work: 1200, ..warehouse(place) },
        1 => Domain { work: 1200, delay_ms: 300, ..warehouse(place) },
        2 => {
            let program = format!(
                "warehouse --threads 2 --mib {mib} --rounds 30 --nap-us 10000 --seed {number}"
            );
            Domain { work: 60, ..domain(2, 2 * mib + SPARE_MIB, &program) }
        }
        _ => {
            let program =
                format!("warehouse --threads 1 --later 3 --mib {mib} --rounds 600 --seed {number}");
            Domain { work: 2400, ..domain(4, 4 * mib + SPARE_MIB, &program) }
        }
    }
}

fn stream(place: Place) -> Domain {
    let mib = place.thread_mib() / 2;
    domain(
        2,
        6 * mib + SPARE_MIB,
        &format!("stream --threads 2 --mib {mib} --rounds {}", (120 / mib).max(1)),
    )
}

fn lock(_place: Place) -> Domain {
    domain(4, 4, "lock --threads 4 --rounds 6000")
}

fn command(vcpus: usize, memory_mib: u64, command: &[&str]) -> Domain {
    let program = ["command", "--"].iter().chain(command).map(|&word| word.to_owned()).collect();
    Domain { vcpus, memory_mib, delay_ms: 0, work: 1, program }
}

fn hackbench(_place: Place) -> Domain {
    command(2, 8, &["/bin/hackbench", "-g", "1", "-f", "4", "-l", "3000"])
}

/// Small programs: they read more instructions than they write data.
const TEXT: &str = "
i=0
while [ $i -lt 60 ]; do
    /bin/true; /bin/expr $i + 1 >/dev/null; /bin/basename /a/b/$i >/dev/null
    /bin/printf '%s\\n' $i >/dev/null
    i=$((i + 1))
done";

fn text(_place: Place) -> Domain {
    command(1, 8, &["/bin/sh", "-c", TEXT])
}

/// In the spirit of SDET (SPEC SDM): users who edit, copy, search, sort, pack and delete.
const SDET: &str = "
user() {
    mkdir $1; cd $1 || exit 1
    i=0
    while [ $i -lt 12 ]; do
        /bin/seq 1 200 >numbers; /bin/sed 's/1/one/' numbers >edited; /bin/cp edited copy
        /bin/grep -c one copy >/dev/null || exit 1
        /bin/cat copy numbers | /bin/sort | /bin/uniq -c | /bin/tail -n 3 >/dev/null
        /bin/awk '{ sum += $1 } END { print sum }' numbers >sum
        /bin/tar -cf all.tar numbers copy; /bin/ls -l >/dev/null
        /bin/mv copy moved; /bin/rm numbers edited moved all.tar sum
        i=$((i + 1))
    done
}
user a & first=$!
user b & second=$!
wait $first && wait $second";

fn sdet(_place: Place) -> Domain {
    command(2, 12, &["/bin/sh", "-c", SDET])
}

/// Debian's dbench knows no amount of work, only a time. It ends when it cannot do a line of its
/// load, so lab/compare ends the load with such a line.
const DBENCH: &str = "
last=$(/bin/wc -l </share/client.txt)
/bin/dbench -t 1000 -c /share/client.txt -D . 1 | /bin/grep -q \"failed at line $last\"";

fn dbench(_place: Place) -> Domain {
    command(1, 12, &["/bin/sh", "-c", DBENCH])
}

/// As much work as that of a warehouse, and pauses as often.
fn crowd(place: Place) -> Domain {
    domain(
        2,
        16 + SPARE_MIB,
        &format!("warehouse --threads 16 --mib 1 --rounds 75 --seed {}", place.number),
    )
}

/// Each port is that of its domain.
const FIRST_PORT: usize = 7000;

fn requests(part: &str, vcpus: usize, port: usize, connections: usize, mib: u64) -> Domain {
    let words = format!(
        "server --part {part} --port {} --connections {connections} --requests 400 --mib {mib}",
        FIRST_PORT + port
    );
    domain(vcpus, mib + SPARE_MIB, &words)
}

fn server(place: Place) -> Domain {
    requests("both", 2, place.number, 4, place.thread_mib())
}

/// The last of an odd number of domains has no other one beside it.
fn server_apart(place: Place) -> Domain {
    let Place { number, domains, .. } = place;
    if number % 2 == 1 {
        requests("ask", 1, number - 1, 8, 0)
    } else if number + 1 < domains {
        requests("answer", 2, number, 8, place.thread_mib())
    } else {
        server(place)
    }
}
