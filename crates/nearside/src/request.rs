//! What a domain asks for, as `place` and `run` take it.

use crate::{failure::Failure, size::parse_size};
use nearside_policy::{MemoryPolicy, PageSize, Request};
use nearside_topology::{
    DeviceKind, NodeId, NodeSet, Topology,
    grammar::{NodeContext, parse_some_nodes},
};

/// The flags that say what a domain asks for.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "The domain")]
pub(crate) struct RequestArgs {
    /// vCPUs it keeps busy
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) cpus: u32,

    /// Memory it fills, such as 512M or 4G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) memory: u64,

    /// Pages that memory is made of: 4K for ordinary ones, or the size of a huge page such as 2M or 1G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) page_size: Option<u64>,

    /// How its memory is bound to its home [default: preferred-many]
    #[arg(long, value_name = "POLICY", value_parser = policies())]
    pub(crate) policy: Option<MemoryPolicy>,

    /// Its home, such as 0-1 or ^2; chosen for you if left out
    #[arg(long, value_name = "SET")]
    pub(crate) nodes: Option<String>,

    /// A device to be near: pci:0000:3b:00.0, netdev:eth0 or block:nvme0n1; may be repeated
    #[arg(long, value_name = "DEVICE")]
    pub(crate) near: Vec<String>,
}

/// Lets help and completion list the policies' names.
fn policies() -> impl clap::builder::TypedValueParser<Value = MemoryPolicy> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(MemoryPolicy::ALL.map(MemoryPolicy::name)).try_map(|name| name.parse::<MemoryPolicy>())
}

impl RequestArgs {
    /// What is asked for, in terms of `topology`.
    pub(crate) fn request(&self, topology: &Topology, base_page_bytes: u64) -> Result<Request, Failure> {
        let nodes = self.nodes.as_deref().map(|text| parse_node_set(text, topology)).transpose()?;
        let near = self.near.iter().map(|device| device_node(device, topology)).collect::<Result<_, _>>()?;
        let page_size = match self.page_size {
            None => PageSize::Base,
            Some(bytes) if bytes == base_page_bytes => PageSize::Base,
            Some(bytes) => PageSize::Huge(bytes),
        };
        let policy = self.policy.unwrap_or(MemoryPolicy::PreferredMany);
        Ok(Request { vcpus: self.cpus, memory_bytes: self.memory, page_size, policy, nodes, near })
    }
}

/// A set of nodes as typed; it must not be empty nor name nodes that are not there.
pub(crate) fn parse_node_set(text: &str, topology: &Topology) -> Result<NodeSet, Failure> {
    parse_some_nodes(text, &NodeContext::of(topology)).map_err(Failure::usage)
}

/// The node a device is on.
fn device_node(device: &str, topology: &Topology) -> Result<NodeId, Failure> {
    let expected = "expected pci:ADDRESS, netdev:NAME or block:NAME";
    let (kind, name) =
        device.split_once(':').ok_or_else(|| Failure::usage(format_args!("\"{device}\" is no device: {expected}")))?;
    let kind = match kind {
        "pci" => DeviceKind::Pci,
        "netdev" => DeviceKind::Netdev,
        "block" => DeviceKind::Block,
        _ => return Err(Failure::usage(format_args!("\"{kind}\" is no kind of device: {expected}"))),
    };
    // lspci leaves out PCI domain 0000 where it is the only one.
    let named = |known: &str| known == name || (kind == DeviceKind::Pci && known == format!("0000:{name}"));
    let found = topology.devices.iter().find(|known| known.kind == kind && named(&known.name));
    let found = found.ok_or_else(|| {
        let known: Vec<_> = topology.devices.iter().filter(|known| known.kind == kind).map(|d| &*d.name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Failure::could_not(format_args!("there is no device {device}: this machine has {known}"))
    })?;
    found.node.ok_or_else(|| {
        Failure::could_not(format_args!("{device} is near no node: the system does not tell where it is"))
    })
}
