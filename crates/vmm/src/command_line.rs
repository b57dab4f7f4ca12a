//! Command lines of virtual machine monitors, read and completed.

use crate::{
    cloud::{self, CloudLine},
    error::CommandLineError,
    model::{Binding, ConfigFiles, Vm},
    placement::Placement,
    qemu::{self, QemuLine},
};

/// The longest command line that is read, in bytes.
pub const MAX_BYTES: usize = 1 << 20;

/// A virtual machine monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vmm {
    /// QEMU, also as `kvm`.
    Qemu,
    /// cloud-hypervisor.
    CloudHypervisor,
}

impl Vmm {
    /// The monitor that a program is, by its file name.
    pub fn of_program(program: &str) -> Option<Self> {
        let name = program.rsplit('/').next().unwrap_or(program);
        if name.starts_with("qemu-system-") || ["kvm", "qemu-kvm"].contains(&name) {
            Some(Self::Qemu)
        } else if name.starts_with("cloud-hypervisor") {
            Some(Self::CloudHypervisor)
        } else {
            None
        }
    }
}

/// A command line that starts a virtual machine: the program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    line: Line,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    Qemu(Box<QemuLine>),
    Cloud(Box<CloudLine>),
}

/// A completed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Contradictions with the operator's own bindings, and limits.
    pub notes: Vec<String>,
}

impl CommandLine {
    /// Reads a program and its arguments.
    ///
    /// # Errors
    /// A [`CommandLineError`] if the program is no known monitor, or an argument that is about
    /// vCPUs, memory or cells is at fault.
    pub fn read<S: AsRef<str>>(words: &[S]) -> Result<Self, CommandLineError> {
        Self::read_with(words, &ConfigFiles::new())
    }

    /// The files whose texts [`CommandLine::read_with`] takes.
    pub fn config_files<S: AsRef<str>>(words: &[S]) -> Vec<&str> {
        let pairs = words.windows(2).map(|pair| (pair[0].as_ref(), pair[1].as_ref()));
        let is_qemu = words.first().and_then(|it| Vmm::of_program(it.as_ref())) == Some(Vmm::Qemu);
        let files = pairs.filter(|(option, _)| is_qemu && qemu::is_readconfig(option));
        files.map(|(_, path)| path).collect()
    }

    /// Reads a program and its arguments, and the files that they name.
    ///
    /// # Errors
    /// As [`CommandLine::read`], also for a file without a text in `files`.
    pub fn read_with<S: AsRef<str>>(
        words: &[S],
        files: &ConfigFiles,
    ) -> Result<Self, CommandLineError> {
        let words: Vec<String> = words.iter().map(|word| word.as_ref().to_owned()).collect();
        let bytes = words.iter().fold(0_usize, |sum, word| sum.saturating_add(word.len() + 1));
        if bytes > MAX_BYTES {
            let why = format!("the command line has more than {MAX_BYTES} bytes");
            return Err(CommandLineError::Whole(why));
        }
        let program = words.first().map(String::as_str).unwrap_or_default();
        let line = match Vmm::of_program(program) {
            Some(Vmm::Qemu) => Line::Qemu(Box::new(QemuLine::read(&words, files)?)),
            Some(Vmm::CloudHypervisor) => Line::Cloud(Box::new(CloudLine::read(&words)?)),
            None => {
                return Err(CommandLineError::Whole(format!(
                    "{program:?} is no known virtual machine monitor: expected qemu-system-*, kvm \
                     or cloud-hypervisor"
                )));
            }
        };
        Ok(Self { line })
    }

    /// The virtual machine that it starts.
    pub fn vm(&self) -> &Vm {
        match &self.line {
            Line::Qemu(line) => &line.vm,
            Line::Cloud(line) => &line.vm,
        }
    }

    /// The bindings of memory that the operator states, by cell.
    pub fn bindings(&self) -> Vec<Binding> {
        match &self.line {
            Line::Qemu(line) => line.bindings(),
            Line::Cloud(line) => line.bindings(),
        }
    }

    /// The program and its arguments.
    pub fn words(&self) -> &[String] {
        match &self.line {
            Line::Qemu(line) => &line.words,
            Line::Cloud(line) => &line.words,
        }
    }

    /// The same virtual machine in `count` cells.
    ///
    /// # Errors
    /// A [`CommandLineError`] if the command line has cells, or vCPUs or memory cannot be split so.
    pub fn split(&self, count: u32) -> Result<Self, CommandLineError> {
        match &self.line {
            _ if !(1..=MAX_CELLS).contains(&count) => {
                let why = format!("{count} cells: expected 1 to {MAX_CELLS}");
                Err(CommandLineError::Whole(why))
            }
            Line::Qemu(line) => Self::read_with(&qemu::split(line, count)?, &line.files),
            Line::Cloud(line) => Ok(Self { line: Line::Cloud(Box::new(line.split(count)?)) }),
        }
    }
}

/// QEMU, `include/system/numa.h`: `MAX_NODES`.
const MAX_CELLS: u32 = 128;

/// The command line with each cell bound to its place. The operator's arguments stay in their
/// order; some get keys that they lack, and cloud-hypervisor's `--memory` gives its size to zones.
/// A binding that the operator states stays, too, with a note where it contradicts the placement.
///
/// # Errors
/// A [`CommandLineError`] if a cell cannot be bound.
pub fn complete(
    command: &CommandLine,
    placement: &Placement,
) -> Result<Completed, CommandLineError> {
    let cells = command.vm().cells.len();
    if placement.cells.len() != cells {
        return Err(CommandLineError::Whole(format!(
            "{} places for {cells} cells",
            placement.cells.len()
        )));
    }
    let (words, notes) = match &command.line {
        Line::Qemu(line) => {
            let with_backends = QemuLine::read(&qemu::with_backends(line)?, &line.files)?;
            qemu::bind(&with_backends, placement)?
        }
        Line::Cloud(line) => cloud::bind(line, placement)?,
    };
    Ok(Completed { words, notes })
}
