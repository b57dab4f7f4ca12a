//! Memory tiers: `/sys/devices/virtual/memory_tiering` (Linux 6.1, `mm/memory-tiers.c`).

use super::source::{Source, quoted};
use crate::tiers::{MemoryTier, MemoryTiers};
use alloc::format;

const TIERS: &str = "sys/devices/virtual/memory_tiering";
const DEMOTION: &str = "sys/kernel/mm/numa/demotion_enabled";

pub(super) fn read(source: &mut Source) -> MemoryTiers {
    let numbers = source.numbered(TIERS, "memory_tier");
    let tiers = numbers.into_iter().filter_map(|number| {
        // The kernel removes a tier with its last node.
        let nodes = source.list_if_any(&format!("{TIERS}/memory_tier{number}/nodelist"))?;
        Some(MemoryTier { number, nodes }).filter(|tier| !tier.nodes.is_empty())
    });
    let tiers = tiers.collect();
    MemoryTiers { tiers, demotion_enabled: demotion(source) }
}

/// The tiers are those of `known`: they change with the memory of nodes. An operator sets demotion.
pub(super) fn read_again(known: &MemoryTiers, source: &mut Source) -> MemoryTiers {
    MemoryTiers { tiers: known.tiers.clone(), demotion_enabled: demotion(source) }
}

fn demotion(source: &mut Source) -> Option<bool> {
    let text = source.text_if_any(DEMOTION)?;
    match text.trim() {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        other => {
            let read = quoted(other);
            source.note(DEMOTION, format_args!("read {read}, expected true or false"));
            None
        }
    }
}
