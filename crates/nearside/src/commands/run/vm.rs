//! `nearside run --vm`: a virtual machine's cells, from its command line and back into it
//! (docs/adr/0014-virtual-machines-without-libvirt.md).

mod cells;

use crate::{failure::Failure, request::RequestArgs};
use cells::{bound, nodes_of_operator, request_cells};
use nearside_linux::{Host, vcpus};
use nearside_policy::{CellsDecision, CellsRequest, MemoryPolicy, PlacedCell};
use nearside_topology::{CpuId, CpuSet, Distances, NodeSet, Topology, bounded_file};
use nearside_vmm::{
    CellPlacement, CommandLine, Completed, ConfigFiles, Placement, Policy, VcpuSet, Vm, complete,
};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    path::Path,
    process::{Command, Stdio},
    str::FromStr,
    time::Duration,
};

/// A virtual machine that is to be started.
#[derive(Debug)]
pub(super) struct VmStart {
    command: CommandLine,
    policy: Policy,
    /// Remarks on the command line.
    notes: Vec<String>,
    /// The request for its cells.
    pub(super) request: CellsRequest,
}

impl VmStart {
    /// Reads a command line, splits it into `cells` cells if wanted, and checks it against the
    /// sizes that the operator gave beside it.
    pub(super) fn read(
        words: &[OsString],
        cells: Option<u32>,
        asked: &RequestArgs,
        topology: &Topology,
    ) -> Result<Self, Failure> {
        let text = |(number, word): (usize, &OsString)| match word.to_str() {
            Some(word) => Ok(word.to_owned()),
            None => Err(Failure::usage(format_args!("argument {number} ({word:?}) is no UTF-8"))),
        };
        let words: Vec<String> = words.iter().enumerate().map(text).collect::<Result<_, _>>()?;
        let files = config_files(&words)?;
        let mut command = CommandLine::read_with(&words, &files).map_err(Failure::usage)?;
        if let Some(count) = cells {
            command = command.split(count).map_err(Failure::usage)?;
        }
        check_bindings(&command, topology)?;
        let vm = command.vm();
        asked.check_vm(vm.vcpus, vm.bytes)?;
        let policy = asked.home.policy.unwrap_or(MemoryPolicy::Strict);
        let its_policy = Policy::from_str(policy.name()).map_err(Failure::usage)?;
        let near = asked.home.near(topology)?;
        if vm.cells.len() > 1 && !near.is_empty() {
            return Err(Failure::usage("--near is for virtual machines of one cell"));
        }
        let (cells, notes) = request_cells(vm, &near, asked.home.huge_page())?;
        let request = CellsRequest {
            cells,
            distances: distances(vm),
            policy,
            nodes: asked.home.nodes(topology)?.or_else(|| nodes_of_operator(vm)),
        };
        Ok(Self { command, policy: its_policy, notes, request })
    }

    /// The nodes that the command line binds each cell to, as far as the cells may have them.
    pub(super) fn bounds(&self) -> Vec<Option<NodeSet>> {
        let may_have = |bound: &NodeSet| {
            self.request.nodes.as_ref().is_none_or(|nodes| bound.is_subset(nodes))
        };
        let cells = self.command.vm().cells.iter();
        cells.map(|cell| bound(cell).filter(may_have)).collect()
    }

    /// The command line with every cell bound to its home.
    pub(super) fn complete(
        &self,
        decision: &CellsDecision,
        topology: &Topology,
    ) -> Result<Completed, String> {
        for binding in self.command.bindings() {
            let home = decision.cells.get(binding.cell).map(memory_nodes).unwrap_or_default();
            if !binding.nodes.is_subset(&home) {
                return Err(format!(
                    "cell {}: {}: the command line binds its memory to {}, and its home is {}: \
                     name its nodes with --nodes, or leave the binding out",
                    binding.cell,
                    binding.memory,
                    binding.nodes.named(),
                    home.named()
                ));
            }
        }
        let place = |placed: &PlacedCell| CellPlacement {
            bytes: placed.home.claim.bytes.clone(),
            cpu_nodes: cpu_nodes(placed),
        };
        let placement = Placement {
            policy: self.policy,
            cells: decision.cells.iter().map(place).collect(),
            distances: Some(topology.distances.clone()),
        };
        let completed = complete(&self.command, &placement).map_err(|error| error.to_string())?;
        let notes = self.notes.iter().cloned().chain(completed.notes).collect();
        Ok(Completed { notes, ..completed })
    }

    /// The vCPUs and CPUs of each cell as arguments of the helper; none for a single cell, whose
    /// CPUs are its cgroup's.
    pub(super) fn affinity(&self, decision: &CellsDecision, topology: &Topology) -> Vec<String> {
        let cells = decision.cells.iter().zip(&self.command.vm().cells);
        // Cells of memory alone have no threads, and may get some later.
        let cells = cells.filter(|(placed, _)| !cpu_nodes(placed).is_empty());
        let argument = |(placed, cell): (&PlacedCell, &nearside_vmm::Cell)| {
            format!("{}:{}", cell.vcpus, topology.cpus_of_nodes(&cpu_nodes(placed)))
        };
        match decision.cells.len() {
            0 | 1 => Vec::new(),
            _ => cells.map(argument).collect(),
        }
    }

    /// The number of vCPUs that it starts with.
    pub(super) fn vcpus(&self) -> u32 {
        self.command.vm().vcpus
    }
}

/// The texts of the files that the command line names.
fn config_files(words: &[String]) -> Result<ConfigFiles, Failure> {
    let read = |path: &str| {
        let text = bounded_file::read_text(Path::new(path), bounded_file::MAX_TEXT_BYTES);
        let text = text.map_err(|error| {
            Failure::usage(format_args!("cannot read the file {path:?} of -readconfig: {error}"))
        })?;
        Ok((path.to_owned(), text))
    };
    CommandLine::config_files(words).into_iter().map(read).collect()
}

/// Refuses memory that is bound to nodes that the host does not have.
fn check_bindings(command: &CommandLine, topology: &Topology) -> Result<(), Failure> {
    let known = topology.node_set();
    for binding in command.bindings() {
        if let Some(node) = binding.nodes.iter().find(|node| !known.contains(*node)) {
            return Err(Failure::usage(format_args!(
                "cell {}: {} (argument {}): there is no node {node}: this machine has {}",
                binding.cell,
                binding.memory,
                binding.argument,
                known.named()
            )));
        }
    }
    Ok(())
}

/// The nodes on which a cell's vCPUs run: those that its claim names, or its home.
fn cpu_nodes(placed: &PlacedCell) -> NodeSet {
    let claimed = placed.home.claim.vcpus.iter().filter(|(_, vcpus)| **vcpus > 0);
    claimed.map(|(node, _)| *node).collect()
}

fn memory_nodes(placed: &PlacedCell) -> NodeSet {
    let claimed = placed.home.claim.bytes.iter().filter(|(_, bytes)| **bytes > 0);
    claimed.map(|(node, _)| *node).collect()
}

/// The guest's distances as a table; none if it states none.
fn distances(vm: &Vm) -> Option<Vec<Vec<u8>>> {
    let count = vm.cells.len() as u32;
    let distance = |from: u32, to: u32| match vm.distances.get(&(from, to)) {
        _ if from == to => Distances::LOCAL,
        Some(distance) => *distance,
        // QEMU takes the other direction where one is missing.
        None => vm.distances.get(&(to, from)).copied().unwrap_or(Distances::REMOTE),
    };
    let row = |from| (0..count).map(|to| distance(from, to)).collect();
    (!vm.distances.is_empty()).then(|| (0..count).map(row).collect())
}

/// The command of the helper that binds vCPU threads.
pub(crate) const HELPER: &str = "bind-vcpus";

/// Starts the helper. No process waits for it: it belongs to init once its parent has ended.
pub(super) fn start_helper(cells: &[String], vcpus: u32) -> Result<(), Failure> {
    if cells.is_empty() {
        return Ok(());
    }
    let mut child = helper(&["--detach".into(), vcpus.to_string()], cells)?;
    child.wait().map(drop).map_err(Failure::could_not)
}

fn helper(first: &[String], cells: &[String]) -> Result<std::process::Child, Failure> {
    use std::os::unix::process::CommandExt;
    let null = Stdio::null;
    let mut command = Command::new("/proc/self/exe");
    command.arg(HELPER).args(first).args(cells).process_group(0);
    command.stdin(null()).stdout(null()).stderr(null()).spawn().map_err(Failure::could_not)
}

/// Bind the vCPU threads of a virtual machine that starts (for `nearside run --vm`)
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct HelperArgs {
    /// Do the work in a process of its own
    #[arg(long)]
    detach: bool,

    /// The number of vCPUs to wait for
    vcpus: u32,

    /// vCPUs and CPUs of a cell, such as 0-1:0-7
    cells: Vec<CellArg>,
}

/// A cell of the helper.
#[derive(Debug, Clone)]
struct CellArg {
    text: String,
    vcpus: BTreeSet<u32>,
    cpus: CpuSet,
}

impl FromStr for CellArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (vcpus, cpus) = text.split_once(':').ok_or("expected VCPUS:CPUS")?;
        let vcpus: VcpuSet = vcpus.parse().map_err(|error| format!("{error}"))?;
        let cpus = cpus.parse::<CpuSet>().map_err(|error| format!("{error}"))?;
        let cpus: CpuSet = cpus.iter().map(|cpu: CpuId| cpu).collect();
        Ok(Self { text: text.into(), vcpus: vcpus.iter().map(|vcpu| vcpu.0).collect(), cpus })
    }
}

/// The longest time that a virtual machine takes to start its vCPUs, since it may fill its memory
/// before.
const HELPER_WAITS: Duration = Duration::from_secs(600);

/// The helper.
pub(super) fn run_helper(host: &Host, args: &HelperArgs) -> Result<(), Failure> {
    let cell =
        |cell: &CellArg| vcpus::CellCpus { vcpus: cell.vcpus.clone(), cpus: cell.cpus.clone() };
    let cells: Vec<_> = args.cells.iter().map(cell).collect();
    let bound = vcpus::bind_vcpus(host, &cells, args.vcpus as usize, HELPER_WAITS);
    bound.map(drop).map_err(Failure::could_not)
}

/// Starts the helper's own process.
pub(super) fn detach(args: &HelperArgs) -> Result<(), Failure> {
    let cells: Vec<_> = args.cells.iter().map(|cell| cell.text.clone()).collect();
    helper(&[args.vcpus.to_string()], &cells).map(drop)
}

impl HelperArgs {
    /// Whether the work is for a process of its own.
    pub(super) fn is_to_detach(&self) -> bool {
        self.detach
    }
}

#[cfg(test)]
mod tests;
