//! Taking Nearside's own values out of a domain's XML.

use super::{
    Metadata, is_blank, is_own,
    written::{SECTIONS, Written},
};
use crate::{
    complete::{Edit, apply},
    domain::Domain,
    id::{CellId, IothreadId, VcpuId},
    memory::{MemoryMode, WrittenMode},
    position::Located,
};
use nearside_topology::{CpuSet, NodeSet};
use roxmltree::{Document, Node};
use std::collections::BTreeMap;

/// The distances that Nearside wrote: a new start may get others, a guest that runs may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Take them out, too.
    Nothing,
    /// Leave them.
    Distances,
}

/// The text of `domain` without the values that Nearside wrote, as far as they still have the value
/// that it wrote. The metadata stays. Every other byte is the operator's.
pub fn strip(domain: &Domain, metadata: &Metadata, keep: Keep) -> String {
    let text = domain.text();
    let Ok(document) = Document::parse(text) else { return text.into() };
    let root = document.root_element();
    let wrote = &metadata.wrote;
    let own = Own { domain, wrote, mode: metadata.intent.mode };
    let mut edits = Vec::new();
    for section in SECTIONS {
        let Some(section) = root.children().find(|it| is_own(*it, section)) else { continue };
        edits.extend(own.edits(text, section));
    }
    if keep == Keep::Nothing && wrote.distances.is_some() && wrote.distances == domain.distances() {
        let is_cell =
            |it: &Node<'_, '_>| domain.cells.iter().any(|c| c.span.start == it.range().start);
        let cells = root.descendants().filter(|it| is_own(*it, "cell")).filter(is_cell);
        let distances =
            cells.flat_map(|cell| cell.children()).filter(|it| is_own(*it, "distances"));
        edits.extend(distances.map(|it| removal(text, it)));
    }
    apply(text, edits)
}

/// Tells Nearside's values from the operator's.
struct Own<'a> {
    domain: &'a Domain,
    wrote: &'a Written,
    /// The mode of bindings that Nearside wrote.
    mode: MemoryMode,
}

impl Own<'_> {
    /// The edits that take Nearside's values out of a section, or the section if nothing is left of
    /// one that Nearside made.
    fn edits(&self, text: &str, section: Node<'_, '_>) -> Vec<Edit> {
        let removed: Vec<_> = section.children().filter(|it| self.is_own_element(*it)).collect();
        let name = section.tag_name().name();
        let is_left = |it: Node<'_, '_>| !removed.contains(&it) && !it.text().is_some_and(is_blank);
        let is_made = self.wrote.sections.iter().any(|made| made == name);
        if is_made && !removed.is_empty() && !section.children().any(is_left) {
            return vec![removal(text, section)];
        }
        let mut edits: Vec<_> = removed.into_iter().map(|it| removal(text, it)).collect();
        if let Some(memory) = section.children().find(|it| is_own(*it, "memory")) {
            edits.extend(self.nodeset(text, memory));
        }
        edits
    }

    fn is_own_element(&self, node: Node<'_, '_>) -> bool {
        if !node.is_element() || node.tag_name().namespace().is_some() {
            return false;
        }
        let start = node.range().start;
        let pins = &self.domain.pins;
        match node.tag_name().name() {
            "memory" => {
                let memory = self.domain.numatune.as_ref().and_then(|it| it.memory.as_ref());
                memory.is_some_and(|it| {
                    is_written(self.wrote.memory.as_ref(), it.nodeset.as_ref())
                        && self.has_mode(it.mode.as_ref())
                })
            }
            "memnode" => {
                let memnodes = self.domain.numatune.iter().flat_map(|it| &it.memnodes);
                memnodes.filter(|it| it.span.start == start).any(|it| {
                    is_written(by_cell(&self.wrote.memnode, it.cell.value), Some(&it.nodeset))
                        && self.has_mode(it.mode.as_ref())
                })
            }
            "vcpupin" => {
                let wrote = |id: VcpuId| self.wrote.vcpupin.get(&id.0);
                pins.vcpus.iter().any(|pin| {
                    pin.span.start == start && is_cpus(wrote(pin.id.value), &pin.cpus.value)
                })
            }
            "emulatorpin" => pins
                .emulator
                .as_ref()
                .is_some_and(|it| is_cpus(self.wrote.emulatorpin.as_ref(), &it.value)),
            "iothreadpin" => {
                let wrote = |id: IothreadId| self.wrote.iothreadpin.get(&id.0);
                pins.iothreads.iter().any(|pin| {
                    pin.span.start == start && is_cpus(wrote(pin.id.value), &pin.cpus.value)
                })
            }
            _ => false,
        }
    }

    fn has_mode(&self, mode: Option<&Located<WrittenMode>>) -> bool {
        mode.map_or(MemoryMode::default() == self.mode, |it| it.value.known() == Some(self.mode))
    }

    /// Takes the nodeset out of an operator's `<memory>`.
    fn nodeset(&self, text: &str, element: Node<'_, '_>) -> Option<Edit> {
        let memory = self.domain.numatune.as_ref()?.memory.as_ref()?;
        if !is_written(self.wrote.nodeset.as_ref(), memory.nodeset.as_ref()) {
            return None;
        }
        let range = element.attribute_node("nodeset")?.range();
        Some(Edit { start: before_blanks(text, range.start), end: range.end, text: String::new() })
    }
}

fn by_cell(values: &BTreeMap<u32, String>, cell: CellId) -> Option<&String> {
    values.get(&cell.0)
}

fn is_written(wrote: Option<&String>, nodes: Option<&Located<NodeSet>>) -> bool {
    wrote.zip(nodes).is_some_and(|(wrote, nodes)| *wrote == nodes.value.to_string())
}

fn is_cpus(wrote: Option<&String>, cpus: &CpuSet) -> bool {
    wrote.is_some_and(|wrote| *wrote == cpus.to_string())
}

/// The removal of an element, and of the blanks before it.
pub(super) fn removal(text: &str, node: Node<'_, '_>) -> Edit {
    let range = node.range();
    Edit { start: before_blanks(text, range.start), end: range.end, text: String::new() }
}

fn before_blanks(text: &str, at: usize) -> usize {
    text.get(..at).map_or(at, |before| before.trim_end_matches([' ', '\t', '\r', '\n']).len())
}
