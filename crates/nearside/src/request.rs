//! The flags that describe a domain to place, shared by `run` and `place`.

use crate::{failure::Failure, size::parse_size};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use nearside_linux::sys;
use nearside_policy::{
    Affinity, Bytes, CellRequest, CellsRefusal, CellsRequest, MAX_CELLS, MemoryPolicy, PageSize,
    Refusal, Request,
};
use nearside_topology::{
    Device, DeviceKind, NodeId, NodeSet, Topology,
    grammar::{NodeContext, parse_some_nodes},
};
use std::{fmt, str::FromStr};

/// The flags that describe a domain.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Domain")]
pub(crate) struct RequestArgs {
    /// Number of vCPUs: tasks that run at the same time [default: 1]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = parse_vcpus, allow_hyphen_values = true)]
    cpus: Option<u32>,

    /// Memory: 512M, 4G, 1.5GiB (powers of 1024); --vm reads both from the command
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_hyphen_values = true)]
    #[arg(required_unless_present = "vm")]
    memory: Option<u64>,

    #[command(flatten)]
    pub(crate) home: HomeArgs,
}

/// The flags that describe a domain or a virtual machine with cells.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Domain")]
pub(crate) struct SizesArgs {
    /// Number of vCPUs: tasks that run at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = parse_vcpus, allow_hyphen_values = true)]
    cpus: u32,

    /// Memory: 512M, 4G, 1.5GiB (powers of 1024)
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_hyphen_values = true)]
    #[arg(required_unless_present_any = ["cells", "libvirt", "intent"])]
    memory: Option<u64>,

    /// A cell of a virtual machine, VCPUS:MEM[:near=NODE], in place of --cpus and --memory; the
    /// first is cell 0 (repeatable)
    #[arg(long = "cell", value_name = "CELL")]
    #[arg(conflicts_with_all = ["cpus", "memory", "near"])]
    cells: Vec<CellArg>,
}

/// The flags that describe the home of a domain of any size.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Domain")]
pub(crate) struct HomeArgs {
    /// Page size: 4K, or a huge page size with a pool (2M, 1G)
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    #[arg(value_parser = page_size, allow_hyphen_values = true)]
    page_size: PageSize,

    /// Memory policy [default: preferred-many]
    #[arg(long, value_parser = policies())]
    pub(crate) policy: Option<MemoryPolicy>,

    /// Home nodes, in place of an automatic choice: 0-1,3 or all,^2
    #[arg(long, value_name = "SET", allow_hyphen_values = true)]
    nodes: Option<String>,

    /// Place the domain near a device: pci:3b:00.0, netdev:eth0, block:nvme0n1 (repeatable)
    #[arg(long, value_name = "DEVICE")]
    near: Vec<DeviceName>,
}

impl RequestArgs {
    /// The request on a machine that has the named nodes and devices.
    pub(crate) fn request(&self, topology: &Topology) -> Result<Request, Failure> {
        self.home.request(self.cpus.unwrap_or(1), self.memory.unwrap_or(0), topology)
    }

    /// Refuses sizes that are not those of a virtual machine's command line.
    pub(crate) fn check_vm(&self, vcpus: u32, memory_bytes: u64) -> Result<(), Failure> {
        if let Some(cpus) = self.cpus.filter(|&cpus| cpus != vcpus) {
            return Err(Failure::usage(format_args!(
                "--cpus {cpus}: the command line of the virtual machine has {vcpus}"
            )));
        }
        match self.memory.filter(|&memory| memory != memory_bytes) {
            Some(memory) => Err(Failure::usage(format_args!(
                "--memory: {} are not the {} of the virtual machine's command line",
                Bytes(memory),
                Bytes(memory_bytes)
            ))),
            None => Ok(()),
        }
    }
}

/// A domain, or a virtual machine with cells.
#[derive(Debug)]
pub(crate) enum Asked {
    Domain(Request),
    Cells(CellsRequest),
}

impl SizesArgs {
    /// The request on a machine that has the named nodes and devices.
    pub(crate) fn request(&self, home: &HomeArgs, topology: &Topology) -> Result<Asked, Failure> {
        if self.cells.is_empty() {
            let memory_bytes = self.memory.unwrap_or(0);
            return home.request(self.cpus, memory_bytes, topology).map(Asked::Domain);
        }
        let cell = |cell: &CellArg| CellRequest {
            vcpus: cell.vcpus,
            memory_bytes: cell.memory_bytes,
            page_size: home.page_size,
            near: cell.near.clone(),
        };
        Ok(Asked::Cells(CellsRequest {
            cells: self.cells.iter().map(cell).collect(),
            distances: None,
            policy: home.policy(),
            nodes: home.nodes(topology)?,
        }))
    }
}

impl HomeArgs {
    fn request(
        &self,
        vcpus: u32,
        memory_bytes: u64,
        topology: &Topology,
    ) -> Result<Request, Failure> {
        Ok(Request {
            vcpus,
            memory_bytes,
            page_size: self.page_size,
            policy: self.policy(),
            nodes: self.nodes(topology)?,
            near: self.near(topology)?,
        })
    }

    /// The nodes of the named devices.
    pub(crate) fn near(&self, topology: &Topology) -> Result<Vec<NodeId>, Failure> {
        self.near.iter().map(|device| device.node(topology)).collect()
    }

    /// The size of huge pages, if these were asked for.
    pub(crate) fn huge_page(&self) -> Option<u64> {
        match self.page_size {
            PageSize::Base => None,
            PageSize::Huge(bytes) => Some(bytes),
        }
    }

    fn policy(&self) -> MemoryPolicy {
        self.policy.unwrap_or(MemoryPolicy::PreferredMany)
    }

    /// The nodes that the operator chose, on a machine that has them.
    pub(crate) fn nodes(&self, topology: &Topology) -> Result<Option<NodeSet>, Failure> {
        self.nodes.as_ref().map(|text| parse_node_set(text, topology)).transpose()
    }
}

/// A cell as the command line gives it: `VCPUS:MEM[:near=NODE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CellArg {
    vcpus: u32,
    memory_bytes: u64,
    near: Vec<NodeId>,
}

impl FromStr for CellArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut fields = text.split(':');
        let (Some(vcpus), Some(memory)) = (fields.next(), fields.next()) else {
            return Err("expected VCPUS:MEM or VCPUS:MEM:near=NODE, such as 4:8G:near=1".into());
        };
        let vcpus = parse_vcpus(vcpus).map_err(|error| format!("vCPUs \"{vcpus}\": {error}"))?;
        let memory_bytes =
            parse_size(memory).map_err(|error| format!("memory \"{memory}\": {error}"))?;
        let node = |field: &str| {
            let number = field.strip_prefix("near=").and_then(|number| number.parse().ok());
            number.map(NodeId).ok_or_else(|| format!("\"{field}\": expected near=NODE"))
        };
        Ok(Self { vcpus, memory_bytes, near: fields.map(node).collect::<Result<_, _>>()? })
    }
}

/// Values of `--affinity`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum AffinityArg {
    /// vCPUs prefer the home (bound to it as long as no scheduler knows homes; a note says so)
    Soft,
    /// vCPUs never leave the home
    Hard,
}

impl From<AffinityArg> for Affinity {
    fn from(affinity: AffinityArg) -> Self {
        match affinity {
            AffinityArg::Soft => Self::Soft,
            AffinityArg::Hard => Self::Hard,
        }
    }
}

/// Parses `--nodes`: at least one node, and only nodes of this machine.
pub(crate) fn parse_node_set(text: &str, topology: &Topology) -> Result<NodeSet, Failure> {
    let nodes = parse_some_nodes(text, &NodeContext::of(topology));
    nodes.map_err(|error| Failure::usage(format_args!("--nodes: {error}")))
}

/// The failure for a refused placement: exit code 2 for a request that makes no sense on this
/// machine, 1 for one that does not fit.
pub(crate) fn refused(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::NoVcpus
        | Refusal::NoMemory
        | Refusal::NoNodes { .. }
        | Refusal::UnknownNode { .. } => Failure::usage(refusal),
        Refusal::NotAllowed(_)
        | Refusal::NoCpus(_)
        | Refusal::NoHugePages { .. }
        | Refusal::NoPool { .. }
        | Refusal::UnknownMemory { .. }
        | Refusal::MoreThanMachine { .. }
        | Refusal::DoesNotFit { .. } => Failure::could_not(refusal),
    }
}

/// The failure for refused cells, with the exit codes of [`refused`].
pub(crate) fn refused_cells(refusal: CellsRefusal) -> Failure {
    match refusal {
        CellsRefusal::Cell { cell, refusal } => {
            let failure = refused(refusal);
            let message = format!("cell {cell}: {}", failure.message());
            Failure::could_not(message).with_code(failure.code())
        }
        CellsRefusal::Together(_) | CellsRefusal::NoArrangement { .. } => {
            Failure::could_not(refusal)
        }
        CellsRefusal::NoCells
        | CellsRefusal::TooManyCells { .. }
        | CellsRefusal::DistanceTable { .. }
        | CellsRefusal::Distance { .. } => Failure::usage(refusal),
    }
}

/// No machine has more CPUs; a larger number is a typing error.
pub(crate) const MAX_VCPUS: u32 = 65_536;

fn parse_vcpus(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|vcpus| (1..=MAX_VCPUS).contains(vcpus));
    number.ok_or_else(|| format!("expected a whole number from 1 to {MAX_VCPUS}"))
}

/// Parses `--cells`.
pub(crate) fn parse_cells(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|cells| (1..=MAX_CELLS).contains(cells));
    let cells = number.and_then(|cells| u32::try_from(cells).ok());
    cells.ok_or_else(|| format!("expected a whole number from 1 to {MAX_CELLS}"))
}

fn policies() -> impl TypedValueParser<Value = MemoryPolicy> {
    let value =
        |policy: MemoryPolicy| PossibleValue::new(policy.name()).help(memory_comes_from(policy));
    PossibleValuesParser::new(MemoryPolicy::ALL.map(value)).try_map(|name| name.parse())
}

const fn memory_comes_from(policy: MemoryPolicy) -> &'static str {
    match policy {
        MemoryPolicy::Strict => "only from the home; a domain that does not fit is refused",
        MemoryPolicy::Preferred => "from one node of the home; if that is full, from the nearest",
        MemoryPolicy::PreferredMany => {
            "from the home; if that is full, from other nodes (Linux 5.15)"
        }
        MemoryPolicy::Interleave => "from the nodes of the home in turn, page by page",
        MemoryPolicy::WeightedInterleave => "as interleave, by the host's weights (Linux 6.9)",
        MemoryPolicy::Restrictive => "as strict, but the command may set policies of its own",
        MemoryPolicy::Local => "from the node of the CPU that touches it first",
    }
}

/// "4K" means base pages on every machine, even if these are larger.
const SMALLEST_PAGE_BYTES: u64 = 4096;

fn page_size(text: &str) -> Result<PageSize, String> {
    let base_bytes = sys::page_bytes();
    match parse_size(text)? {
        bytes if bytes == base_bytes || bytes == SMALLEST_PAGE_BYTES => Ok(PageSize::Base),
        bytes if bytes.is_power_of_two() && bytes > base_bytes => Ok(PageSize::Huge(bytes)),
        _ => Err("not a page size: expected 4K, or the size of a huge page such as 2M".into()),
    }
}

/// A device by its kind and name, in the syntax of `numactl`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DeviceName {
    kind: DeviceKind,
    name: String,
}

const KINDS: [(&str, DeviceKind); 3] =
    [("pci", DeviceKind::Pci), ("netdev", DeviceKind::Netdev), ("block", DeviceKind::Block)];

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (prefix, name) = text.split_once(':').unwrap_or((text, ""));
        let kind = KINDS.iter().find(|(word, _)| *word == prefix).map(|&(_, kind)| kind);
        match kind {
            Some(kind) if !name.is_empty() => Ok(Self { kind, name: full_name(kind, name) }),
            _ => Err("expected pci:ADDRESS, netdev:NAME or block:NAME".into()),
        }
    }
}

// A PCI address may omit the segment, as lspci does if all devices are in the first.
fn full_name(kind: DeviceKind, name: &str) -> String {
    match (kind, name.matches(':').count()) {
        (DeviceKind::Pci, 1) => format!("0000:{}", name.to_ascii_lowercase()),
        (DeviceKind::Pci, _) => name.to_ascii_lowercase(),
        (DeviceKind::Netdev | DeviceKind::Block, _) => name.into(),
    }
}

impl DeviceName {
    fn word(&self) -> &'static str {
        KINDS.iter().find(|(_, kind)| *kind == self.kind).map_or("device", |(word, _)| word)
    }

    // The device's node on a machine.
    fn node(&self, topology: &Topology) -> Result<NodeId, Failure> {
        let of_kind = || topology.devices.iter().filter(|device| device.kind == self.kind);
        let Some(device) = of_kind().find(|device| device.name == self.name) else {
            let named = |device: &Device| format!("{}:{}", self.word(), device.name);
            let mut known: Vec<String> = of_kind().take(KNOWN_SHOWN).map(named).collect();
            if of_kind().nth(KNOWN_SHOWN).is_some() {
                known.push("...".into());
            }
            let known =
                if known.is_empty() { "none of that kind".into() } else { known.join(", ") };
            return Err(Failure::usage(format_args!(
                "--near: there is no device {self}: this machine has {known}"
            )));
        };
        match (device.node, topology.nodes.as_slice()) {
            (Some(node), _) => Ok(node),
            // On a machine of one node the kernel names no node of a device, and all devices are
            // near.
            (None, [only]) => Ok(only.id),
            (None, _) => Err(Failure::could_not(format_args!(
                "--near: this system does not know the node of {self}"
            ))),
        }
    }
}

// Most devices that a message lists.
const KNOWN_SHOWN: usize = 20;

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.word(), self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_topology::Node;

    fn machine(nodes: u32, device_node: Option<u32>) -> Topology {
        let name = "0000:3b:00.0".to_owned();
        Topology {
            nodes: (0..nodes).map(|id| Node { id: NodeId(id), ..Node::default() }).collect(),
            devices: vec![Device {
                kind: DeviceKind::Pci,
                name,
                node: device_node.map(NodeId),
                class: None,
            }],
            ..Topology::default()
        }
    }

    #[test]
    fn devices_have_numactl_syntax() {
        for text in ["pci:3b:00.0", "pci:3B:00.0", "pci:0000:3b:00.0"] {
            let device: DeviceName = text.parse().unwrap();
            assert_eq!(device.node(&machine(2, Some(1))).unwrap(), NodeId(1));
        }
        for text in ["pci:", "eth0", "usb:1", ""] {
            assert!(text.parse::<DeviceName>().is_err(), "{text}");
        }
    }

    #[test]
    fn device_needs_a_known_node_unless_there_is_only_one() {
        let device: DeviceName = "pci:3b:00.0".parse().unwrap();
        assert_eq!(device.node(&machine(1, None)).unwrap(), NodeId(0));
        assert!(device.node(&machine(2, None)).is_err());
        let other: DeviceName = "pci:5e:00.0".parse().unwrap();
        assert!(other.node(&machine(2, Some(0))).is_err());
    }

    #[test]
    fn a_cell_has_vcpus_memory_and_nodes_of_devices() {
        let cell: CellArg = "4:8G:near=1:near=3".parse().unwrap();
        let near = vec![NodeId(1), NodeId(3)];
        assert_eq!(cell, CellArg { vcpus: 4, memory_bytes: 8 << 30, near });
        for (text, told) in [
            ("4", "expected VCPUS:MEM or VCPUS:MEM:near=NODE, such as 4:8G:near=1"),
            ("0:8G", "vCPUs \"0\": expected a whole number from 1 to 65536"),
            ("4:8G:1", "\"1\": expected near=NODE"),
            ("4:8G:near=-1", "\"near=-1\": expected near=NODE"),
        ] {
            assert_eq!(text.parse::<CellArg>().unwrap_err(), told);
        }
        assert!("4:x".parse::<CellArg>().unwrap_err().starts_with("memory \"x\": "));
    }

    #[test]
    fn page_sizes_are_powers_of_two_from_4k_on() {
        assert_eq!(page_size("4K"), Ok(PageSize::Base));
        assert_eq!(page_size("2M"), Ok(PageSize::Huge(2 << 20)));
        for text in ["0", "1K", "3M", "x"] {
            assert!(page_size(text).is_err(), "{text}");
        }
    }
}
