//! The binding of memory to nodes, and the pages behind it.

use super::{
    cpu::PLACEMENTS,
    xml::{
        Node, Read, SHARED, Value, attribute, child, children, descend, fault, id, in_sections,
        list, once, required, size, size_of, tag, word,
    },
};
use crate::{
    id::CellSet,
    memory::{
        Allocation, Backing, BackingSource, HugePage, HugePages, Memnode, MemoryBinding,
        MemoryMode, Numatune, WrittenMode,
    },
    position::Located,
};

const SOURCES: [(&str, BackingSource); 3] = [
    ("anonymous", BackingSource::Anonymous),
    ("file", BackingSource::File),
    ("memfd", BackingSource::Memfd),
];

const ALLOCATIONS: [(&str, Allocation); 2] =
    [("immediate", Allocation::Immediate), ("ondemand", Allocation::OnDemand)];

pub(super) fn numatune(root: Node<'_, '_>) -> Read<Option<Numatune>> {
    let mut elements = children(root, "numatune");
    let first = elements.next();
    match elements.next() {
        Some(second) => Err(fault(second.range().start, "read a second <numatune>, expected one")),
        None => first.map(only_numatune).transpose(),
    }
}

fn only_numatune(element: Node<'_, '_>) -> Read<Numatune> {
    let mut seen = CellSet::new();
    let memnode = |element| {
        let cell = id(required(element, "cellid")?)?;
        once(&mut seen, &cell, "<memnode>")?;
        let nodeset = list(required(element, "nodeset")?)?;
        Ok(Memnode { span: tag(element), cell, mode: mode(element)?, nodeset })
    };
    Ok(Numatune {
        span: tag(element),
        memory: child(element, "memory").map(memory).transpose()?,
        memnodes: children(element, "memnode").map(memnode).collect::<Read<_>>()?,
    })
}

fn memory(element: Node<'_, '_>) -> Read<MemoryBinding> {
    let placement = attribute(element, "placement").map(|it| word(it, &PLACEMENTS));
    Ok(MemoryBinding {
        span: tag(element),
        mode: mode(element)?,
        placement: placement.transpose()?,
        nodeset: attribute(element, "nodeset").map(list).transpose()?,
    })
}

fn mode(element: Node<'_, '_>) -> Read<Option<Located<WrittenMode>>> {
    attribute(element, "mode").map(written_mode).transpose()
}

/// A policy of Linux that libvirt does not know is read: the finding about it can name a remedy.
fn written_mode(value: Value<'_>) -> Read<Located<WrittenMode>> {
    if let Some(foreign) = WrittenMode::FOREIGN.into_iter().find(|name| *name == value.text) {
        return Ok(value.located(WrittenMode::Foreign(foreign)));
    }
    word(value, &MemoryMode::ALL.map(|mode| (mode.name(), WrittenMode::Known(mode))))
}

pub(super) fn backing(root: Node<'_, '_>) -> Read<Backing> {
    let Some(element) = child(root, "memoryBacking") else { return Ok(Backing::default()) };
    let of = |name: &'static str, key| {
        child(element, name).and_then(|child: Node<'_, '_>| attribute(child, key))
    };
    Ok(Backing {
        huge_pages: huge_pages(element)?,
        locked: child(element, "locked").map(tag),
        no_merging: child(element, "nosharepages").map(tag),
        source: of("source", "type").map(|it| word(it, &SOURCES)).transpose()?,
        allocation: of("allocation", "mode").map(|it| word(it, &ALLOCATIONS)).transpose()?,
        is_shared: of("access", "mode").map(|it| word(it, &SHARED)).transpose()?,
    })
}

fn huge_pages(backing: Node<'_, '_>) -> Read<Option<HugePages>> {
    let Some(element) = child(backing, "hugepages") else { return Ok(None) };
    let page = |page| {
        let bytes = required(page, "size")?;
        let bytes = match size(bytes.clone(), attribute(page, "unit"))? {
            Located { value: 0, .. } => return Err(bytes.unexpected("the size of a page")),
            bytes => bytes,
        };
        let cells = attribute(page, "nodeset").map(list).transpose()?;
        Ok(HugePage { span: tag(page), bytes, cells })
    };
    let pages = in_sections(backing, "hugepages", "page").map(page).collect::<Read<_>>()?;
    Ok(Some(HugePages { span: tag(element), pages }))
}

/// A size in an element's text, such as `<pagesize unit='KiB'>2048</pagesize>`.
pub(super) fn size_below(
    element: Node<'_, '_>,
    names: &[&'static str],
) -> Read<Option<Located<u64>>> {
    descend(element, names).map(size_of).transpose()
}
