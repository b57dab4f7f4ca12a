//! Zones, their watermarks and free blocks: `/proc/zoneinfo` and `/proc/buddyinfo` (Linux,
//! `mm/vmstat.c`).

use super::source::Source;
use crate::{
    id::NodeId,
    model::{Node, Topology, Zone},
};
use alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};

const ZONEINFO: &str = "proc/zoneinfo";

/// The base page of most machines; arm64 and POWER may use 16 or 64 KiB.
const USUAL_PAGE_BYTES: u64 = 4096;

/// A zone as `/proc/zoneinfo` counts it: in base pages.
#[derive(Debug, Default, PartialEq)]
struct ZonePages {
    name: String,
    managed: u64,
    free: u64,
    low: u64,
    high: u64,
    reserved: u64,
}

/// Gives the nodes the zones of the known machine if these still add up to the nodes' free memory:
/// reading all zones takes longer than all other files that are read again.
pub(super) fn stand(known: &Topology, nodes: &mut [Node]) -> bool {
    let is_same = |known: &Node, node: &Node| {
        let free_bytes = node.state.as_ref().map_or(0, |state| state.free_bytes);
        let in_zones = known.zones.iter().map(|zone| zone.free_bytes).fold(0, u64::saturating_add);
        in_zones.abs_diff(free_bytes) <= free_bytes / 64
    };
    let stands = known.nodes.len() == nodes.len()
        && known.nodes.iter().zip(&*nodes).all(|(known, node)| is_same(known, node));
    if stands {
        nodes
            .iter_mut()
            .zip(&known.nodes)
            .for_each(|(node, known)| node.zones.clone_from(&known.zones));
    }
    stands
}

/// Gives the nodes their zones.
pub(super) fn fill(source: &mut Source, nodes: &mut [Node]) {
    let mut zones = Zones::default();
    if let Err(error) = source.each_line(ZONEINFO, |line| zones.line(line)) {
        let why = format_args!(
            "{error}: watermarks that were not read count as 0, so too much may be promised"
        );
        source.about_memory(|source| source.note(ZONEINFO, why));
    }
    let zones = zones.all;
    if zones.is_empty() {
        return;
    }
    let mut blocks = match source.text("proc/buddyinfo") {
        Some(text) => buddyinfo(&text),
        None => BTreeMap::new(),
    };
    let memory_bytes = nodes.iter().map(|node| node.memory_bytes).fold(0, u64::saturating_add);
    let managed = zones.iter().map(|(_, zone)| zone.managed).fold(0, u64::saturating_add);
    let page_bytes = page_bytes(memory_bytes, managed);
    // Every node lists all zones of the architecture, most of them without a page.
    for (id, zone) in zones.into_iter().filter(|(_, zone)| zone.managed > 0) {
        let Some(node) = nodes.iter_mut().find(|node| node.id == id) else { continue };
        node.zones.push(Zone {
            managed_bytes: zone.managed.saturating_mul(page_bytes),
            free_bytes: zone.free.saturating_mul(page_bytes),
            low_watermark_bytes: zone.low.saturating_mul(page_bytes),
            high_watermark_bytes: zone.high.saturating_mul(page_bytes),
            reserved_bytes: zone.reserved.saturating_mul(page_bytes),
            free_blocks: blocks.remove(&(id, zone.name.clone())).unwrap_or_default(),
            name: zone.name,
        });
    }
}

/// The size of a base page. No file has it, but a node's `MemTotal` is the sum of its zones'
/// managed pages (`si_meminfo_node` in Linux, `mm/show_mem.c`), so the quotient does; memory that
/// comes or goes between the two reads bends it a little, hence the nearest power of two.
fn page_bytes(memory_bytes: u64, managed_pages: u64) -> u64 {
    let plausible = (0..=4).map(|shift| USUAL_PAGE_BYTES << shift);
    let off_by = |&page: &u64| memory_bytes.abs_diff(page.saturating_mul(managed_pages));
    match memory_bytes {
        0 => USUAL_PAGE_BYTES,
        _ => plausible.min_by_key(off_by).unwrap_or(USUAL_PAGE_BYTES),
    }
}

/// The zones of `/proc/zoneinfo`, line by line: it has some lines for each zone and CPU.
#[derive(Debug, Default)]
struct Zones {
    all: Vec<(NodeId, ZonePages)>,
    /// Whether the lines are about the lists that each CPU has of the last zone: most lines are.
    are_about_cpus: bool,
}

impl Zones {
    fn line(&mut self, line: &str) {
        if !line.starts_with(' ') {
            if let Some((node, name)) = heading(line) {
                let zone = ZonePages { name: name.trim().to_string(), ..ZonePages::default() };
                self.all.push((node, zone));
                self.are_about_cpus = false;
            }
            return;
        }
        if self.are_about_cpus {
            return;
        }
        self.are_about_cpus = line.trim_ascii_start().starts_with("pagesets");
        if let (Some((_, zone)), Some(reserved)) = (self.all.last_mut(), protection(line)) {
            zone.reserved = reserved;
        }
        let mut words = line.split_ascii_whitespace().skip_while(|&word| word == "pages");
        let (Some((_, zone)), Some(key), Some(Ok(pages)), None) =
            (self.all.last_mut(), words.next(), words.next().map(str::parse), words.next())
        else {
            return;
        };
        match key {
            "free" => zone.free = pages,
            "low" => zone.low = pages,
            "high" => zone.high = pages,
            "managed" => zone.managed = pages,
            _ => {}
        }
    }
}

/// `        protection: (0, 1888, 128618, 128618, 128618)`: pages kept from allocations that could
/// use each zone; the last is the highest.
fn protection(line: &str) -> Option<u64> {
    let by_zone = line.trim().strip_prefix("protection: (")?.strip_suffix(')')?;
    by_zone.rsplit(',').next()?.trim().parse().ok()
}

/// `Node 0, zone   Normal    758   5052 ...`: counts of free blocks by order.
fn buddyinfo(text: &str) -> BTreeMap<(NodeId, String), Vec<u64>> {
    let zone = |line| {
        let (node, rest) = heading(line)?;
        let mut words = rest.split_whitespace();
        let name = words.next()?.to_string();
        Some(((node, name), words.map_while(|word| word.parse().ok()).collect()))
    };
    text.lines().filter_map(zone).collect()
}

/// `Node 0, zone   Normal...`: the node, and the text after the word `zone`.
fn heading(line: &str) -> Option<(NodeId, &str)> {
    let (node, zone) = line.strip_prefix("Node ")?.split_once(", zone")?;
    Some((NodeId(node.parse().ok()?), zone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_are_not_taken_from_the_per_cpu_lists() {
        let text = "\
Node 0, zone   Normal
  per-node stats
      nr_free 9
  pages free     300
        boost    0
        min      10
        low      20
        high     30
        managed  400
        protection: (0, 0, 7, 50)
  pagesets
    cpu: 0
              count:    7
              high:     55
              batch:    8
  start_pfn:           1
";
        let normal = ZonePages {
            name: "Normal".into(),
            managed: 400,
            free: 300,
            low: 20,
            high: 30,
            reserved: 50,
        };
        let mut zones = Zones::default();
        text.lines().for_each(|line| zones.line(line));
        assert_eq!(zones.all, [(NodeId(0), normal)]);
    }

    #[test]
    fn the_page_size_follows_from_total_memory() {
        assert_eq!(page_bytes(1 << 30, 1 << 18), 4096);
        assert_eq!(page_bytes(1 << 30, 1 << 14), 65536);
        assert_eq!(page_bytes((1 << 30) + (50 << 20), 1 << 16), 16384);
        assert_eq!(page_bytes(0, 500), 4096);
        assert_eq!(page_bytes(1 << 30, 0), 4096);
    }
}
