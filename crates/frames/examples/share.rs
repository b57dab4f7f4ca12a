//! An extent that a child process writes and its parent reads: `cargo run --example share`.
//!
//! The child gets the descriptor as its standard input, and the offset as an argument. QEMU
//! (`-object memory-backend-file`) and cloud-hypervisor (`--memory-zone file=`) take the same two
//! as `/proc/PID/fd/N` and an offset.

use nearside_frames::{Backing, Cache, MappedMachine, Order};
use std::{
    error::Error,
    fs::File,
    os::{fd::AsFd, unix::fs::FileExt},
    process::{Command, ExitCode},
    sync::atomic::Ordering::Relaxed,
};

const WORD: u64 = 0x6e65_6172_7369_6465;

fn parent() -> Result<(), Box<dyn Error>> {
    let (node, _) = *MappedMachine::nodes()?.first().ok_or("no node has memory")?;
    let mapped = MappedMachine::new(&[(node, 4 << 20)], Backing::Pages)?;
    let machine = mapped.machine()?;
    let mut cache = Cache::new(&machine, node)?;
    let first = cache.allocate(Order::BASE)?;
    let extent = cache.allocate(Order::BASE)?;
    for (name, extent) in [("another extent", first), ("the extent", extent)] {
        let place = mapped.place(extent).ok_or("not of this machine")?;
        println!("{name}: {} bytes from {}", place.bytes(), place.offset_bytes);
    }

    let place = mapped.place(extent).ok_or("not of this machine")?;
    let status = Command::new(std::env::current_exe()?)
        .arg(place.offset_bytes.to_string())
        .stdin(place.file.try_clone_to_owned()?)
        .status()?;
    println!("the child: {status}");
    println!("the parent reads {:#x}", place.words[0].load(Relaxed));
    assert_eq!(place.words[0].load(Relaxed), WORD);
    mapped.discard(extent)?;
    cache.free(extent)?;
    cache.free(first)?;
    Ok(())
}

fn child(offset: &str) -> Result<(), Box<dyn Error>> {
    let file = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    file.write_all_at(&WORD.to_ne_bytes(), offset.parse()?)?;
    println!("the child has written {WORD:#x}");
    Ok(())
}

fn main() -> ExitCode {
    let done = match std::env::args().nth(1) {
        Some(offset) => child(&offset),
        None => parent(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("share: {error}");
            ExitCode::FAILURE
        }
    }
}
