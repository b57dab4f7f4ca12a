//! The flags that describe a domain to place, shared by `run` and `place`.

use crate::{failure::Failure, size::parse_size};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use nearside_linux::sys;
use nearside_policy::{Affinity, MemoryPolicy, PageSize, Refusal, Request};
use nearside_topology::{
    Device, DeviceKind, NodeId, NodeSet, Topology,
    grammar::{NodeContext, parse_some_nodes},
};
use std::{fmt, str::FromStr};

/// The flags that describe a domain.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Domain")]
pub(crate) struct RequestArgs {
    /// Number of vCPUs: tasks that run at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = parse_vcpus, allow_hyphen_values = true)]
    cpus: u32,

    /// Memory: 512M, 4G, 1.5GiB (powers of 1024)
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_hyphen_values = true)]
    memory: u64,

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
        let nodes = self.nodes.as_ref().map(|text| parse_node_set(text, topology));
        Ok(Request {
            vcpus: self.cpus,
            memory_bytes: self.memory,
            page_size: self.page_size,
            policy: self.policy.unwrap_or(MemoryPolicy::PreferredMany),
            nodes: nodes.transpose()?,
            near: self.near.iter().map(|device| device.node(topology)).collect::<Result<_, _>>()?,
        })
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
        | Refusal::NoCpus { .. }
        | Refusal::NoHugePages { .. }
        | Refusal::NoPool { .. }
        | Refusal::UnknownMemory { .. }
        | Refusal::MoreThanMachine { .. }
        | Refusal::DoesNotFit { .. } => Failure::could_not(refusal),
    }
}

/// No machine has more CPUs; a larger number is a typing error.
const MAX_VCPUS: u32 = 65_536;

fn parse_vcpus(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|vcpus| (1..=MAX_VCPUS).contains(vcpus));
    number.ok_or_else(|| format!("expected a whole number from 1 to {MAX_VCPUS}"))
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
    fn page_sizes_are_powers_of_two_from_4k_on() {
        assert_eq!(page_size("4K"), Ok(PageSize::Base));
        assert_eq!(page_size("2M"), Ok(PageSize::Huge(2 << 20)));
        for text in ["0", "1K", "3M", "x"] {
            assert!(page_size(text).is_err(), "{text}");
        }
    }
}
