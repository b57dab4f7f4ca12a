//! A machine as a picture: a box for each node with its cores, caches, memory and devices, and the
//! distances as a heat map. On machines of many nodes a box shrinks to a title and a memory bar.

use super::{
    cores::{CpuGroup, groups},
    svg::{
        Anchor::{End, Middle, Start},
        Picture, Style, text_width,
    },
    topology_text::{source, summary_line},
    units::{count, size},
};
use nearside_topology::{CpuSet, DeviceKind, Distance, Distances, Node, NodeId, Topology};

const WIDTH: f64 = 1000.0;
const MARGIN: f64 = 20.0;
const GAP: f64 = 12.0;
const PAD: f64 = 10.0;
const LINE: f64 = 16.0;
const CORE: f64 = 13.0;

/// Most nodes whose boxes show cores and devices.
const DETAILED_NODES: usize = 16;
/// Most cores of a node that are drawn one by one.
const DRAWN_CORES: usize = 256;
/// Most nodes of a heat map.
const MAPPED_NODES: usize = 128;

const HEADING: Style = Style { size: 16.0, fill: "#1c2733", bold: true };
const TITLE: Style = Style { size: 13.0, fill: "#1c2733", bold: true };
const TEXT: Style = Style { size: 11.0, fill: "#3c4856", bold: false };

const BOX: &str = "#f6f8fa";
const EDGE: &str = "#9aa7b4";
const THREAD: &str = "#4f8cc9";
const USED: &str = "#5b6b7b";
const HUGE: &str = "#8e6bb5";
const CACHE: &str = "#e0b354";
const FREE: &str = "#a8d5a2";

/// The whole picture.
pub(crate) fn report(topology: &Topology) -> String {
    let mut picture = Picture::default();
    let across = WIDTH - 2.0 * MARGIN;
    let summary = summary_line(topology);
    picture.text((MARGIN, 30.0), Start, HEADING, across, &summary);
    let offline: CpuSet =
        topology.cpus.iter().filter(|cpu| !cpu.online).map(|cpu| cpu.id).collect();
    let offline =
        if offline.is_empty() { String::new() } else { format!("   offline: CPUs {offline}") };
    picture.text(
        (MARGIN, 48.0),
        Start,
        TEXT,
        across,
        format_args!("source: {}{offline}", source(topology)),
    );
    legend(&mut picture, 58.0);

    let groups = groups(topology);
    let mut y = 84.0;
    let columns = columns(topology.nodes.len());
    let width = (across - GAP * (columns - 1) as f64) / columns as f64;
    for row in topology.nodes.chunks(columns) {
        let boxes: Vec<NodeBox<'_>> =
            row.iter().map(|node| NodeBox::new(topology, node, &groups, width)).collect();
        let height = boxes.iter().map(NodeBox::height).fold(0.0, f64::max);
        for (column, node) in boxes.iter().enumerate() {
            node.draw(&mut picture, MARGIN + column as f64 * (width + GAP), y, height);
        }
        y += height + GAP;
    }
    let nodes: Vec<NodeId> = topology.nodes.iter().map(|node| node.id).collect();
    if nodes.len() > 1 {
        y = heat_map(&mut picture, y + GAP, &nodes, &topology.distances);
    }
    picture.finish(WIDTH, y + MARGIN - GAP, &summary)
}

fn columns(nodes: usize) -> usize {
    match nodes {
        0..=1 => 1,
        2 | 4 => 2,
        3 | 5 | 6 | 9 => 3,
        7..=DETAILED_NODES => 4,
        _ => 8,
    }
}

fn legend(picture: &mut Picture, y: f64) {
    let mut x = MARGIN;
    let entries = [
        (THREAD, "CPU"),
        ("#ffffff", "last-level cache"),
        (USED, "memory in use"),
        (HUGE, "huge pages"),
        (CACHE, "cache"),
        (FREE, "free"),
    ];
    for (colour, text) in entries {
        picture.rect((x, y), (10.0, 10.0), colour, EDGE, "");
        picture.text((x + 14.0, y + 9.0), Start, TEXT, 200.0, text);
        x += 30.0 + text_width(text, TEXT.size);
    }
}

/// A node's box, laid out for a width.
struct NodeBox<'a> {
    node: &'a Node,
    width: f64,
    heading: String,
    memory: String,
    /// Cores by last-level cache; empty in a small box.
    caches: Vec<&'a CpuGroup>,
    lines: Vec<String>,
}

impl<'a> NodeBox<'a> {
    fn new(topology: &Topology, node: &'a Node, groups: &'a [CpuGroup], width: f64) -> Self {
        let detailed = topology.nodes.len() <= DETAILED_NODES;
        let of_node = || groups.iter().filter(|group| group.node == Some(node.id));
        let cores: usize = of_node().map(|group| group.cores.len()).sum();
        let cpus = topology.cpus_of(node.id);
        let memory = match (node.known_memory_bytes(), node.state) {
            (None, _) => "memory unknown".into(),
            (Some(0), _) => "no memory".into(),
            (Some(total), Some(state)) if detailed => {
                format!("{} free of {}", size(state.free_bytes), size(total))
            }
            (Some(total), _) => size(total),
        };
        let mut lines = Vec::new();
        let list = format!("CPUs {cpus}");
        lines.push(match text_width(&list, TEXT.size) <= width - 2.0 * PAD {
            _ if cpus.is_empty() => "no CPUs".into(),
            true => list,
            false => count(cpus.len(), "CPU"),
        });
        if detailed {
            if cores < cpus.len() {
                lines.push(count(cores, "core"));
            }
            for pool in node.huge_pages.iter().filter(|pool| pool.total_pages > 0) {
                let (page, total, free) =
                    (size(pool.page_bytes), pool.total_pages, pool.free_pages);
                lines.push(format!("huge pages of {page}: {free} free of {total}"));
            }
            for (kind, name) in [(DeviceKind::Netdev, "net"), (DeviceKind::Block, "block")] {
                let devices =
                    topology.devices.iter().filter(|d| d.kind == kind && d.node == Some(node.id));
                let names: Vec<&str> = devices.map(|device| device.name.as_str()).collect();
                if !names.is_empty() {
                    lines.push(format!("{name}: {}", names.join(" ")));
                }
            }
            let pci = topology
                .devices
                .iter()
                .filter(|d| d.kind == DeviceKind::Pci && d.node == Some(node.id))
                .count();
            if pci > 0 {
                lines.push(count(pci, "PCI function"));
            }
        }
        let pxm = node.pxm.map_or(String::new(), |pxm| format!(" (PXM {pxm})"));
        let caches =
            if detailed && cores <= DRAWN_CORES { of_node().collect() } else { Vec::new() };
        Self { node, width, heading: format!("node {}{pxm}", node.id), memory, caches, lines }
    }

    fn height(&self) -> f64 {
        let cores = self.place_caches(|_, _, _, _| {});
        let text = self.lines.len() as f64 * LINE;
        PAD + 2.0 * LINE + 14.0 + 6.0 + cores + text + PAD
    }

    fn draw(&self, picture: &mut Picture, x: f64, y: f64, height: f64) {
        let inner = self.width - 2.0 * PAD;
        let left = x + PAD;
        picture.rect((x, y), (self.width, height), BOX, EDGE, "");
        let mut at = y + PAD + 11.0;
        picture.text((left, at), Start, TITLE, inner, &self.heading);
        at += LINE;
        picture.text((left, at), Start, TEXT, inner, &self.memory);
        at += 6.0;
        self.memory_bar(picture, left, at, inner);
        at += 14.0 + 6.0;
        let top = at;
        at += self.place_caches(|group, (dx, dy), size, per_row| {
            let package =
                group.package.map_or(String::new(), |package| format!(", package {package}"));
            let title = match group.last_level_cache {
                Some(_) => format!("last-level cache of CPUs {}{package}", group.cpus),
                None => format!("CPUs {}, cache unknown{package}", group.cpus),
            };
            picture.rect((left + dx, top + dy), size, "#ffffff", EDGE, title);
            for (index, core) in group.cores.iter().enumerate() {
                let column = (index % per_row) as f64;
                let row = (index / per_row) as f64;
                draw_core(
                    picture,
                    left + dx + 3.0 + column * CORE,
                    top + dy + 3.0 + row * CORE,
                    core,
                );
            }
        });
        for line in &self.lines {
            at += LINE;
            picture.text((left, at - 4.0), Start, TEXT, inner, line);
        }
    }

    /// Assigns each cache its position, size and cores per row, from left to right and top to
    /// bottom; returns the height.
    fn place_caches(&self, mut place: impl FnMut(&CpuGroup, (f64, f64), (f64, f64), usize)) -> f64 {
        let inner = self.width - 2.0 * PAD;
        let most = ((inner - 6.0) / CORE) as usize;
        let (mut x, mut y, mut row_height) = (0.0, 0.0, 0.0_f64);
        for group in &self.caches {
            // A cache of many cores is about twice as wide as high.
            let square = (2.0 * group.cores.len() as f64).sqrt().ceil() as usize;
            let per_row = group.cores.len().min(8.max(square)).clamp(1, most.max(1));
            let rows = group.cores.len().div_ceil(per_row);
            let (width, height) = (per_row as f64 * CORE + 6.0, rows as f64 * CORE + 6.0);
            if x > 0.0 && x + width > inner {
                (x, y, row_height) = (0.0, y + row_height + 5.0, 0.0);
            }
            place(group, (x, y), (width, height), per_row);
            x += width + 5.0;
            row_height = row_height.max(height);
        }
        if self.caches.is_empty() { 0.0 } else { y + row_height + 4.0 }
    }

    fn memory_bar(&self, picture: &mut Picture, x: f64, y: f64, width: f64) {
        let total = self.node.memory_bytes;
        picture.rect((x, y), (width, 14.0), "#ffffff", EDGE, "");
        let Some(state) = self.node.state.filter(|_| total > 0) else { return };
        let huge = self
            .node
            .huge_pages
            .iter()
            .map(|pool| pool.page_bytes.saturating_mul(pool.total_pages));
        let cache =
            [state.active_file_bytes, state.inactive_file_bytes, state.slab_reclaimable_bytes];
        let parts = [
            (FREE, "free", state.free_bytes),
            (CACHE, "cache", cache.into_iter().fold(0, u64::saturating_add)),
            (HUGE, "huge page pools", huge.fold(0, u64::saturating_add)),
        ];
        // Free memory is at the right end; the remainder at the left is in use. The counters are
        // not read at one instant, so their sum may exceed the total.
        let mut rest = total;
        for (colour, what, bytes) in parts {
            let bytes = bytes.min(rest);
            let (start, length) =
                ((rest - bytes) as f64 / total as f64, bytes as f64 / total as f64);
            if bytes > 0 {
                let title = format!("{what}: {}", size(bytes));
                picture.rect((x + start * width, y), (length * width, 14.0), colour, "none", title);
            }
            rest -= bytes;
        }
        if rest > 0 {
            let title = format!("in use: {}", size(rest));
            picture.rect((x, y), (rest as f64 / total as f64 * width, 14.0), USED, "none", title);
        }
    }
}

fn draw_core(picture: &mut Picture, x: f64, y: f64, core: &CpuSet) {
    let side = CORE - 3.0;
    let width = side / core.len().max(1) as f64;
    for (thread, cpu) in core.iter().enumerate() {
        let gap = if thread + 1 < core.len() { 0.8 } else { 0.0 };
        let at = (x + 1.0 + thread as f64 * width, y + 1.0);
        picture.rect(
            at,
            ((width - gap).max(0.4), side),
            THREAD,
            "none",
            format!("CPU {cpu}, core {core}"),
        );
    }
}

/// Draws the distances below `top`, and returns the lower end.
fn heat_map(picture: &mut Picture, top: f64, nodes: &[NodeId], distances: &Distances) -> f64 {
    let across = WIDTH - 2.0 * MARGIN;
    let title = "Distances (row: from the CPUs of a node, column: to the memory of a node)";
    picture.text((MARGIN, top + 11.0), Start, TITLE, across, title);
    if nodes.len() > MAPPED_NODES {
        let text = format!("{} nodes are too many for a map: see --format text", nodes.len());
        picture.text((MARGIN, top + 2.0 * LINE), Start, TEXT, across, text);
        return top + 3.0 * LINE;
    }
    let label = 36.0;
    let cell = ((across - label) / nodes.len() as f64).min(34.0);
    let style = Style { size: (cell * 0.42).min(11.0), ..TEXT };
    let farthest =
        nodes.iter().flat_map(|&from| nodes.iter().map(move |&to| distances.get(from, to))).max();
    let (left, top) = (MARGIN + label, top + 24.0 + LINE);
    // Smaller figures are unreadable; the titles still show them.
    let legible = style.size >= 5.0;
    for (row, &from) in nodes.iter().enumerate() {
        let at = row as f64 * cell;
        let baseline = cell / 2.0 + style.size * 0.36;
        if legible {
            picture.text((left + at + cell / 2.0, top - 5.0), Middle, style, cell * 1.2, from);
            picture.text((left - 6.0, top + at + baseline), End, style, label, from);
        }
        for (column, &to) in nodes.iter().enumerate() {
            let distance = distances.get(from, to);
            let (fill, ink) = heat(distance, farthest.unwrap_or(Distances::LOCAL));
            let x = left + column as f64 * cell;
            let title = if legible {
                String::new()
            } else {
                format!("node {from} to node {to}: {distance}")
            };
            picture.rect((x, top + at), (cell - 1.0, cell - 1.0), &fill, "none", title);
            if legible {
                let style = Style { fill: ink, ..style };
                picture.text(
                    (x + cell / 2.0 - 0.5, top + at + baseline - 0.5),
                    Middle,
                    style,
                    cell * 1.2,
                    distance,
                );
            }
        }
    }
    top + nodes.len() as f64 * cell + GAP
}

/// A colour from pale (near) to dark blue (farthest), and an ink that is readable on it.
fn heat(distance: Distance, farthest: Distance) -> (String, &'static str) {
    let span = f64::from(farthest.saturating_sub(Distances::LOCAL).max(1));
    let share = f64::from(distance.saturating_sub(Distances::LOCAL)) / span;
    let mix = |near: f64, far: f64| (near + (far - near) * share) as u8;
    let fill = format!("#{:02x}{:02x}{:02x}", mix(232.0, 8.0), mix(243.0, 69.0), mix(252.0, 148.0));
    (fill, if share > 0.5 { "#ffffff" } else { "#1c2733" })
}
