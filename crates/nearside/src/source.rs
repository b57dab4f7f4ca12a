//! The source of a command's machine: this host, a copy of another one's files, firmware's tables,
//! or a description.

use crate::failure::Failure;
use nearside_topology::{
    Topology, acpi,
    bounded_file::{self, OPEN_FLAGS},
    fake::{FakeSpec, fake},
    machine_file::{self, Costs},
    sysfs,
};
use rustix::fs::{Mode, OFlags};
use std::{
    fs::{self, File},
    io::{self, Read},
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

/// The flags shared by all commands that look at a machine.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Topology source")]
pub(crate) struct TopologySource {
    /// Read the Linux files below ROOT (ROOT/sys, ROOT/proc) instead of this host's
    #[arg(long, value_name = "ROOT", conflicts_with_all = ["acpi", "machine"])]
    sysfs: Option<PathBuf>,

    /// Read ACPI tables: a folder of raw tables, one raw table, or the text of acpidump (16 MiB a
    /// file at most)
    #[arg(long, value_name = "PATH", conflicts_with = "machine")]
    acpi: Option<PathBuf>,

    /// Read a machine file: nodes, CPUs, latencies and links as TOML, as the lab boots them under
    /// modelled time (1 MiB at most)
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,

    /// Cut the machine into emulated nodes: N of them, SIZE[M|G] each, or NU of each node
    #[arg(long, value_name = "SPEC", allow_hyphen_values = true)]
    fake: Option<FakeSpec>,
}

impl TopologySource {
    /// Whether the machine is this host as it is.
    pub(crate) fn is_this_host(&self) -> bool {
        self.sysfs.is_none() && self.acpi.is_none() && self.machine.is_none() && self.fake.is_none()
    }

    /// Whether the machine is that of a machine file.
    pub(crate) fn is_machine_file(&self) -> bool {
        self.machine.is_some()
    }

    /// Reads the machine, with notes on facts that could not be read.
    pub(crate) fn read_with_notes(&self) -> Result<(Topology, Vec<String>), Failure> {
        self.read().map(|machine| (machine.topology, machine.notes))
    }

    /// Reads the machine.
    pub(crate) fn read(&self) -> Result<Machine, Failure> {
        let mut machine = match (&self.acpi, &self.machine) {
            (Some(path), _) => read_acpi(path)?.into(),
            (None, Some(path)) => {
                let file = machine_file::read(path).map_err(Failure::could_not)?;
                Machine { topology: file.topology, costs: Some(file.costs), notes: Vec::new() }
            }
            (None, None) => read_sysfs(self.sysfs.as_deref().unwrap_or(Path::new("/")))?.into(),
        };
        if let Some(spec) = &self.fake {
            machine.topology = fake(&machine.topology, spec).map_err(Failure::could_not)?;
            machine.costs = None;
        }
        Ok(machine)
    }
}

/// A machine as its source describes it.
pub(crate) struct Machine {
    /// The machine.
    pub(crate) topology: Topology,
    /// Its costs; only machine files state them, and of the nodes as they are, not as `--fake`
    /// cuts them.
    pub(crate) costs: Option<Costs>,
    /// Facts that could not be read.
    pub(crate) notes: Vec<String>,
}

impl From<(Topology, Vec<String>)> for Machine {
    fn from((topology, notes): (Topology, Vec<String>)) -> Self {
        Self { topology, costs: None, notes }
    }
}

fn read_sysfs(root: &Path) -> Result<(Topology, Vec<String>), Failure> {
    let (topology, notes) = sysfs::read(root).map_err(Failure::could_not)?;
    Ok((topology, notes.iter().map(ToString::to_string).collect()))
}

/// The machine as Linux would see it through these tables. Tables are refused if their affinities
/// (SRAT) are false, so that there is no machine to decide by, and if they have neither nodes nor
/// CPUs.
fn read_acpi(path: &Path) -> Result<(Topology, Vec<String>), Failure> {
    let tables = match pipe_at(path) {
        Some(pipe) => {
            let failed =
                |error| format!("cannot read ACPI tables from {}: {error}", path.display());
            let bytes = read_pipe(pipe).map_err(failed).map_err(Failure::could_not)?;
            let mut tables = acpi::Tables::from_bytes(&bytes);
            tables.source = path.display().to_string();
            tables
        }
        None => acpi::read(path).map_err(Failure::could_not)?,
    };
    let (topology, findings) = acpi::topology(&tables);
    let has_domains = topology.nodes.iter().any(|node| node.pxm.is_some());
    let rejected = |finding: &acpi::Finding| {
        finding.table == acpi::Signature::SRAT && finding.effect == acpi::Effect::TableIgnored
    };
    let is_unusable = !has_domains && (findings.iter().any(rejected) || tables.madt.is_none());
    let findings: Vec<_> = findings.iter().map(ToString::to_string).collect();
    match is_unusable {
        true => Err(Failure::could_not(format_args!(
            "{}: unusable tables:\n  {}",
            path.display(),
            findings.join("\n  ")
        ))),
        false => Ok((topology, findings)),
    }
}

/// The pipe that a shell opened for this process (`acpidump | nearside ... /dev/stdin`,
/// `<(acpidump)`); its writer is a command of the user's. A FIFO with a name is none: its writer
/// may never come.
fn pipe_at(path: &Path) -> Option<OwnedFd> {
    if !fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
        return None;
    }
    let pipe = rustix::fs::open(path, OPEN_FLAGS, Mode::empty()).ok()?;
    let opened = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let target = fs::read_link(opened).ok()?;
    target.to_str().is_some_and(|target| target.starts_with("pipe:")).then_some(pipe)
}

/// All that is written into a pipe, up to the size of a file of tables.
fn read_pipe(pipe: OwnedFd) -> io::Result<Vec<u8>> {
    rustix::fs::fcntl_setfl(&pipe, OFlags::empty())?;
    let mut bytes = Vec::new();
    File::from(pipe).take(acpi::MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > acpi::MAX_FILE_BYTES {
        true => {
            let max_bytes = acpi::MAX_FILE_BYTES;
            Err(bounded_file::Error::TooLarge { max_bytes }.into())
        }
        false => Ok(bytes),
    }
}
