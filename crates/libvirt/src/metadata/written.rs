//! The values in a domain's XML that Nearside wrote.

use crate::{domain::Domain, elements::is_own, memory::MemoryBinding};
use nearside_topology::{Distance, Id, IdSet};
use roxmltree::Document;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt::Display};

/// The values that are Nearside's own: elements by their name, lists as text. A value in the XML
/// that differs from the one here is the operator's.
///
/// Lists stay text: a few bytes may name ten thousand CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Written {
    /// The nodeset of `<memory>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// The nodeset that a `<memory>` of the operator's lacked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodeset: Option<String>,
    /// The nodeset of each `<memnode>`, by cell.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub memnode: BTreeMap<u32, String>,
    /// The CPUs of each `<vcpupin>`, by vCPU.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub vcpupin: BTreeMap<u32, String>,
    /// The CPUs of `<emulatorpin>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulatorpin: Option<String>,
    /// The CPUs of each `<iothreadpin>`, by iothread.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub iothreadpin: BTreeMap<u32, String>,
    /// The distances from each cell (row) to each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distances: Option<Vec<Vec<Distance>>>,
    /// The sections that were missing: `cputune`, `numatune`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sections: Vec<String>,
}

/// The sections that a completion may add.
pub(crate) const SECTIONS: [&str; 2] = ["cputune", "numatune"];

impl Written {
    /// The values of `after` that `before` lacks.
    pub fn between(before: &Domain, after: &Domain) -> Self {
        let memory = |domain: &Domain| domain.numatune.as_ref().and_then(|it| it.memory.clone());
        let nodeset = |memory: MemoryBinding| memory.nodeset.map(|it| it.value.to_string());
        let (old, new) = (memory(before), memory(after).and_then(nodeset));
        let has_element = old.is_some();
        let has_nodeset = old.and_then(nodeset).is_some();
        let pins = |domain: &Domain| (domain.pins.vcpus.clone(), domain.pins.iothreads.clone());
        let ((old_vcpus, old_iothreads), (vcpus, iothreads)) = (pins(before), pins(after));
        let memnodes = |domain: &Domain| -> BTreeMap<u32, String> {
            let memnodes = domain.numatune.iter().flat_map(|it| &it.memnodes);
            memnodes.map(|it| (it.cell.value.0, it.nodeset.value.to_string())).collect()
        };
        let emulator = |domain: &Domain| domain.pins.emulator.as_ref().map(|it| text(&it.value));
        let [old_sections, new_sections] = [before, after].map(sections);
        Self {
            memory: new.clone().filter(|_| !has_element),
            nodeset: new.filter(|_| has_element && !has_nodeset),
            memnode: added(memnodes(before), memnodes(after)),
            vcpupin: added(by_number(&old_vcpus), by_number(&vcpus)),
            emulatorpin: emulator(after).filter(|_| emulator(before).is_none()),
            iothreadpin: added(by_number(&old_iothreads), by_number(&iothreads)),
            distances: after.distances().filter(|_| before.distances().is_none()),
            sections: added_sections(&old_sections, new_sections),
        }
    }

    /// Whether it names no value.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn text<T: Id>(set: &IdSet<T>) -> String {
    set.to_string()
}

/// The CPUs of pins by the number of the thread.
fn by_number<T: Id + Display>(pins: &[crate::Pin<T>]) -> BTreeMap<u32, String> {
    pins.iter().map(|pin| (pin.id.value.number(), text(&pin.cpus.value))).collect()
}

fn added(old: BTreeMap<u32, String>, new: BTreeMap<u32, String>) -> BTreeMap<u32, String> {
    new.into_iter().filter(|(number, _)| !old.contains_key(number)).collect()
}

fn added_sections(old: &[&'static str], new: Vec<&'static str>) -> Vec<String> {
    new.into_iter().filter(|name| !old.contains(name)).map(Into::into).collect()
}

/// The sections that a domain has.
fn sections(domain: &Domain) -> Vec<&'static str> {
    let Ok(document) = Document::parse(domain.text()) else { return Vec::new() };
    let root = document.root_element();
    let has = |name: &&str| root.children().any(|it| is_own(it, name));
    SECTIONS.into_iter().filter(has).collect()
}
