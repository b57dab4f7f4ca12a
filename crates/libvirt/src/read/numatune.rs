//! The binding of memory to nodes, and the pages behind it.

use super::{
    cpu::PLACEMENTS,
    xml::{
        Node, Read, SHARED, Value, attribute, child, children, descend, fault, has_text, id,
        in_sections, list, once, required, size, size_of, tag, word,
    },
};
use crate::{
    memory::{
        Allocation, Backing, BackingSource, HugePage, HugePages, Memnode, MemoryBinding,
        MemoryMode, Numatune, WrittenMode,
    },
    position::Located,
};
use std::collections::BTreeSet;

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
    let mut seen = BTreeSet::new();
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

/// libvirt reads paths such as `./memoryBacking/source/@type`, so a second element counts, too.
pub(super) fn backing(root: Node<'_, '_>) -> Read<Backing> {
    let all = |name| in_sections(root, "memoryBacking", name);
    let of = |name, key| {
        let first = all(name).find_map(|element| attribute(element, key));
        first.filter(|value| !value.text.is_empty())
    };
    Ok(Backing {
        huge_pages: huge_pages(&all("hugepages").collect::<Vec<_>>())?,
        locked: all("locked").next().map(tag),
        no_merging: all("nosharepages").next().map(tag),
        source: of("source", "type").map(|it| word(it, &SOURCES)).transpose()?,
        allocation: of("allocation", "mode").map(|it| word(it, &ALLOCATIONS)).transpose()?,
        is_shared: of("access", "mode").map(|it| word(it, &SHARED)).transpose()?,
    })
}

fn huge_pages(sections: &[Node<'_, '_>]) -> Read<Option<HugePages>> {
    let Some(first) = sections.first() else { return Ok(None) };
    let page = |page| {
        let bytes = required(page, "size")?;
        let bytes = match size(bytes.clone(), attribute(page, "unit"))? {
            Located { value: 0, .. } => return Err(bytes.unexpected("the size of a page")),
            bytes => bytes,
        };
        let cells = attribute(page, "nodeset").map(list).transpose()?;
        Ok(HugePage { span: tag(page), bytes, cells })
    };
    let pages = sections.iter().flat_map(|section| children(*section, "page"));
    Ok(Some(HugePages { span: tag(*first), pages: pages.map(page).collect::<Read<_>>()? }))
}

/// A size in an element's text, such as `<pagesize unit='KiB'>2048</pagesize>`.
pub(super) fn size_below(
    element: Node<'_, '_>,
    names: &[&'static str],
) -> Read<Option<Located<u64>>> {
    descend(element, names).filter(|it| has_text(*it)).map(size_of).transpose()
}
