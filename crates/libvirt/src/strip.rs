//! Taking Nearside's own values out of a domain's XML.

use crate::{
    complete::{Edit, apply},
    domain::{Domain, Pin},
    elements::{before_blanks, is_blank, is_own, removal},
    id::{IothreadId, VcpuId},
    memory::{Memnode, MemoryBinding, MemoryMode, WrittenMode},
    metadata::{Metadata, SECTIONS, Written},
    position::Located,
    read::ReadError,
};
use nearside_topology::{CpuSet, Id, IdSet};
use roxmltree::{Document, Node};
use std::collections::BTreeSet;

/// The distances that Nearside wrote: a new start may get others, a guest that runs may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Take them out, too.
    Nothing,
    /// Leave them.
    Distances,
}

/// `domain` without the values that Nearside wrote, as far as they still have the value that it
/// wrote: the rest is the operator's. Text and places stay those of `domain`, for messages.
pub fn operators(domain: &Domain, metadata: &Metadata, keep: Keep) -> Domain {
    let own = Own::new(domain, metadata);
    let mut rest = domain.clone();
    if let Some(numatune) = &mut rest.numatune {
        numatune.memory.take_if(|it| own.is_memory(it));
        if let Some(memory) = numatune.memory.as_mut().filter(|it| own.has_own_nodeset(it)) {
            memory.nodeset = None;
        }
        numatune.memnodes.retain(|it| !own.is_memnode(it));
    }
    rest.numatune.take_if(|it| it.memory.is_none() && it.memnodes.is_empty());
    rest.pins.vcpus.retain(|it| !own.is_vcpupin(it));
    rest.pins.emulator.take_if(|it| own.is_emulatorpin(it));
    rest.pins.iothreads.retain(|it| !own.is_iothreadpin(it));
    if keep == Keep::Nothing && own.has_distances() {
        rest.cells.iter_mut().for_each(|cell| cell.distances.clear());
    }
    rest
}

/// [`operators`] as a domain of its own: its text lacks the values, and has all other bytes. The
/// metadata stays.
///
/// # Errors
/// If the text is no domain any more. That does not happen.
pub fn strip(domain: &Domain, metadata: &Metadata, keep: Keep) -> Result<Domain, ReadError> {
    let text = domain.text();
    let Ok(document) = Document::parse(text) else { return Ok(domain.clone()) };
    let root = document.root_element();
    let own = Own::new(domain, metadata);
    let mut edits = Vec::new();
    for section in SECTIONS {
        let Some(section) = root.children().find(|it| is_own(*it, section)) else { continue };
        edits.extend(own.edits(text, section));
    }
    if keep == Keep::Nothing && own.has_distances() {
        let starts: BTreeSet<usize> = domain.cells.iter().map(|cell| cell.span.start).collect();
        let is_cell = |it: &Node<'_, '_>| is_own(*it, "cell") && starts.contains(&it.range().start);
        let cells = root.descendants().filter(is_cell);
        let distances =
            cells.flat_map(|cell| cell.children()).filter(|it| is_own(*it, "distances"));
        edits.extend(distances.map(|it| removal(text, it)));
    }
    Domain::read(&apply(text, edits))
}

/// Tells Nearside's values from the operator's.
struct Own<'a> {
    domain: &'a Domain,
    wrote: &'a Written,
    /// The mode of bindings that Nearside wrote.
    mode: MemoryMode,
}

impl<'a> Own<'a> {
    fn new(domain: &'a Domain, metadata: &'a Metadata) -> Self {
        Self { domain, wrote: &metadata.wrote, mode: metadata.intent.mode }
    }

    /// The edits that take Nearside's values out of a section, or the section if nothing is left of
    /// one that Nearside made.
    fn edits(&self, text: &str, section: Node<'_, '_>) -> Vec<Edit> {
        let starts = self.starts();
        let is_removed = |it: &Node<'_, '_>| self.is_own_element(*it, &starts);
        let removed: Vec<_> = section.children().filter(is_removed).collect();
        let name = section.tag_name().name();
        let is_left = |it: Node<'_, '_>| !is_removed(&it) && !is_blank(it);
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

    /// Where Nearside's own elements of cells and threads begin.
    fn starts(&self) -> BTreeSet<usize> {
        let memnodes = self.domain.numatune.iter().flat_map(|it| &it.memnodes);
        let memnodes = memnodes.filter(|it| self.is_memnode(it)).map(|it| it.span.start);
        let pins = &self.domain.pins;
        let vcpus = pins.vcpus.iter().filter(|it| self.is_vcpupin(it)).map(|it| it.span.start);
        let iothreads = pins.iothreads.iter().filter(|it| self.is_iothreadpin(it));
        memnodes.chain(vcpus).chain(iothreads.map(|it| it.span.start)).collect()
    }

    fn is_own_element(&self, node: Node<'_, '_>, starts: &BTreeSet<usize>) -> bool {
        if !node.is_element() || node.tag_name().namespace().is_some() {
            return false;
        }
        let numatune = self.domain.numatune.as_ref();
        match node.tag_name().name() {
            "memory" => {
                numatune.and_then(|it| it.memory.as_ref()).is_some_and(|it| self.is_memory(it))
            }
            "emulatorpin" => {
                let emulator = self.domain.pins.emulator.as_ref();
                emulator.is_some_and(|it| self.is_emulatorpin(it))
            }
            _ => starts.contains(&node.range().start),
        }
    }

    fn is_memory(&self, memory: &MemoryBinding) -> bool {
        is_written(self.wrote.memory.as_ref(), memory.nodeset.as_ref())
            && self.has_mode(memory.mode.as_ref())
    }

    fn has_own_nodeset(&self, memory: &MemoryBinding) -> bool {
        is_written(self.wrote.nodeset.as_ref(), memory.nodeset.as_ref())
    }

    fn is_memnode(&self, memnode: &Memnode) -> bool {
        let wrote = self.wrote.memnode.get(&memnode.cell.value.0);
        is_written(wrote, Some(&memnode.nodeset)) && self.has_mode(memnode.mode.as_ref())
    }

    fn is_vcpupin(&self, pin: &Pin<VcpuId>) -> bool {
        is_written(self.wrote.vcpupin.get(&pin.id.value.0), Some(&pin.cpus))
    }

    fn is_emulatorpin(&self, cpus: &Located<CpuSet>) -> bool {
        is_written(self.wrote.emulatorpin.as_ref(), Some(cpus))
    }

    fn is_iothreadpin(&self, pin: &Pin<IothreadId>) -> bool {
        is_written(self.wrote.iothreadpin.get(&pin.id.value.0), Some(&pin.cpus))
    }

    /// Whether all distances are those that Nearside wrote.
    fn has_distances(&self) -> bool {
        self.wrote.distances.is_some() && self.wrote.distances == self.domain.distances()
    }

    fn has_mode(&self, mode: Option<&Located<WrittenMode>>) -> bool {
        mode.map_or(MemoryMode::default() == self.mode, |it| it.value.known() == Some(self.mode))
    }

    /// Takes the nodeset out of an operator's `<memory>`.
    fn nodeset(&self, text: &str, element: Node<'_, '_>) -> Option<Edit> {
        let memory = self.domain.numatune.as_ref()?.memory.as_ref()?;
        if !self.has_own_nodeset(memory) {
            return None;
        }
        let range = element.attribute_node("nodeset")?.range();
        Some(Edit { start: before_blanks(text, range.start), end: range.end, text: String::new() })
    }
}

fn is_written<T: Id>(wrote: Option<&String>, set: Option<&Located<IdSet<T>>>) -> bool {
    wrote.zip(set).is_some_and(|(wrote, set)| *wrote == set.value.to_string())
}
