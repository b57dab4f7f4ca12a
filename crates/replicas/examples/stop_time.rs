//! Prints how long the threads of a running process are stopped to exchange its text:
//!
//! ```text
//! stop_time PID ROUNDS DIRECTORY
//! ```
//!
//! Copies each file that the process has mapped for execution into the directory (on a tmpfs), and
//! lets the process use the copies and the originals by turns, each by its own path. Needs root.

use nearside_replicas::{
    FileId,
    remap::{Exchange, Process, attach, detach, maps},
};
use std::{collections::BTreeSet, error::Error, fs, path::PathBuf, time::Duration};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pid, rounds, directory] = arguments.as_slice() else {
        return Err("usage: stop_time PID ROUNDS DIRECTORY".into());
    };
    let process = Process::open(pid.parse()?)?;
    let text = fs::read(format!("/proc/{pid}/maps"))?;
    let files: BTreeSet<PathBuf> = maps(&text)
        .into_iter()
        .filter(|segment| segment.protection.execute && segment.file.is_some())
        .filter_map(|segment| segment.name)
        .collect();
    let (mut there, mut back) = (Vec::new(), Vec::new());
    for (number, file) in files.iter().enumerate() {
        let copy = PathBuf::from(directory).join(number.to_string());
        fs::copy(file, &copy)?;
        let (original, replica) = (FileId::at(file)?, FileId::at(&copy)?);
        there.push(Exchange { path: copy, from: original, to: replica });
        back.push(Exchange { path: file.clone(), from: replica, to: original });
    }
    let (mut attached, mut detached) = (Vec::new(), Vec::new());
    let rounds: usize = rounds.parse()?;
    for round in 0..rounds {
        let report = attach(&process, &there)?;
        attached.push(report.stopped);
        if round == 0 {
            let (threads, segments) = (report.threads, report.changed.len());
            println!("{} files, {segments} segments, {threads} threads", files.len());
        }
        detached.push(detach(&process, &back)?.stopped);
    }
    print("attach", attached);
    print("detach", detached);
    Ok(())
}

fn print(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    if let (Some(median), Some(most)) = (times.get(times.len() / 2), times.last()) {
        println!("{name}: threads stopped for {median:.2?} (median), {most:.2?} (longest)");
    }
}
