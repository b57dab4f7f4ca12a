//! A process that reads a file, on the CPUs of a node and in a mount namespace of its own.
#![allow(unsafe_code)]

use crate::killed::{Killed, Outcome};
use rustix::{
    mm::{MapFlags, ProtFlags, mmap, munmap},
    time::{ClockId, clock_gettime},
};
use std::{
    env,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    process::{ChildStdin, ChildStdout, Command, Stdio},
    ptr, slice, thread,
    time::Duration,
};

const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The same clock in each process.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// See above. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Reader {
    child: Killed,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Readers that have begun to do what they were asked for, and will answer with a number.
#[derive(Debug)]
pub(crate) struct Answers<'a>(&'a mut [Reader]);

impl Answers<'_> {
    pub(crate) fn read(self) -> Outcome<Vec<u64>> {
        self.0.iter_mut().map(|reader| Ok(reader.read_line()?.trim().parse()?)).collect()
    }
}

impl Reader {
    pub(crate) fn start(file: &Path, node: usize) -> Outcome<Self> {
        let list = format!("/sys/devices/system/node/node{node}/cpulist");
        let cpus = fs::read_to_string(list).unwrap_or_else(|_| "0".to_owned());
        let mut command = Command::new("taskset");
        command.args(["-c", cpus.trim(), "unshare", "--mount"]);
        command.arg(env::current_exe()?).arg("read").arg(file);
        let mut child = Killed(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        let (input, output) = (child.0.stdin.take(), child.0.stdout.take());
        let (Some(input), Some(output)) = (input, output) else {
            return Err("a reader without pipes".into());
        };
        let mut reader = Self { child, input, output: BufReader::new(output) };
        // By then it has its namespace.
        reader.read_line()?;
        Ok(reader)
    }

    /// Its process.
    pub(crate) fn id(&self) -> String {
        self.child.0.id().to_string()
    }

    fn read_line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() { Err("a reader ended early".into()) } else { Ok(line) }
    }

    /// Has all do it, and waits for their answers.
    pub(crate) fn ask_all(readers: &mut [Self], what: &str) -> Outcome<()> {
        Self::begin_all(readers, what)?.read().map(drop)
    }

    /// Has all do it, and waits until all have begun.
    pub(crate) fn begin_all<'a>(readers: &'a mut [Self], what: &str) -> Outcome<Answers<'a>> {
        for reader in &mut *readers {
            writeln!(reader.input, "{what}")?;
        }
        for reader in &mut *readers {
            reader.read_line()?;
        }
        Ok(Answers(readers))
    }
}

/// The whole file in this process's memory, as a dynamic linker maps text.
#[derive(Debug)]
struct Mapped {
    file: File,
    address: *mut std::ffi::c_void,
    length: usize,
}

impl Mapped {
    fn of(file: File) -> Outcome<Self> {
        let length = usize::try_from(file.metadata()?.len())?;
        let access = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let address =
            unsafe { mmap(ptr::null_mut(), length, access, MapFlags::PRIVATE, &file, 0) }?;
        Ok(Self { file, address, length })
    }

    /// Reads one byte of each page.
    fn touch(&self) {
        // SAFETY: the mapping has these bytes and is readable. No one changes the file until this
        // process has said that it has read it.
        let bytes = unsafe { slice::from_raw_parts(self.address.cast::<u8>(), self.length) };
        std::hint::black_box(bytes.iter().step_by(4096).map(|&byte| u64::from(byte)).sum::<u64>());
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: made by `of`, and nothing points into it.
        let _ = unsafe { munmap(self.address, self.length) };
    }
}

/// Answers each line of its input with two: one when it begins, and a number at the end.
///
/// - `map DEVICE`: waits for the copy, a file that is not on this device, and maps it
/// - `watch`: looks until the file is empty by its path and by the descriptor from before, and
///   tells when the last look began that showed it otherwise
pub(crate) fn serve(file: &Path) -> Outcome<()> {
    println!("ready");
    let mut mapped = None;
    for line in std::io::stdin().lines() {
        let line = line?;
        println!("begins");
        let answer = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["map", original] => {
                let original: u64 = original.parse()?;
                while fs::metadata(file)?.dev() == original {
                    thread::sleep(LOOK_EVERY);
                }
                let it = Mapped::of(File::open(file)?)?;
                it.touch();
                mapped = Some(it);
                0
            }
            ["watch"] => {
                let Some(Mapped { file: held, .. }) = &mapped else {
                    return Err("asked to watch before a file is mapped".into());
                };
                let mut last_stale_ns = 0;
                loop {
                    let began_ns = now_ns();
                    if fs::metadata(file)?.len() + held.metadata()?.len() == 0 {
                        break last_stale_ns;
                    }
                    last_stale_ns = began_ns;
                    thread::sleep(LOOK_EVERY);
                }
            }
            _ => return Err(format!("unknown: {line:?}").into()),
        };
        println!("{answer}");
    }
    Ok(())
}
