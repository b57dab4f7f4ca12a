//! vCPUs, cells, and the bindings of threads.

use super::xml::{
    Node, Read, SHARED, Value, YES_NO, attribute, child, children, descend, fault, id, in_sections,
    list, list_or_none, number, once, required, size, tag, text_of, word,
};
use crate::{
    domain::{Cell, CellDistance, CpuTopology, Iothreads, Pin, Pins, Share, Vcpus},
    id::{CellId, CellSet, VcpuId, VcpuSet},
    list::MAX_NUMBER,
    memory::Choice,
    position::Located,
};
use nearside_topology::{Distances, Id, IdSet, MAX_NODES};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// `placement=`.
pub(super) const PLACEMENTS: [(&str, Choice); 2] =
    [("static", Choice::Static), ("auto", Choice::Auto)];

pub(super) fn vcpus(root: Node<'_, '_>) -> Read<Vcpus> {
    let Some(element) = child(root, "vcpu") else {
        let span = tag(root);
        let maximum = Located { value: 1, span };
        let listed = listed_vcpus(root, 1)?;
        return Ok(Vcpus { span, maximum, current: None, placement: None, cpuset: None, listed });
    };
    let maximum = number(text_of(element), 1..=MAX_NUMBER)?;
    let listed = listed_vcpus(root, maximum.value)?;
    // With a list of vCPUs current= counts for nothing, and may be 0.
    let least = u32::from(listed.is_empty());
    let current = attribute(element, "current").map(|it| number(it, least..=maximum.value));
    let placement = attribute(element, "placement").map(|it| word(it, &PLACEMENTS));
    Ok(Vcpus {
        span: tag(element),
        current: current.transpose()?,
        placement: placement.transpose()?,
        cpuset: attribute(element, "cpuset").map(list).transpose()?,
        listed,
        maximum,
    })
}

/// A vCPU as `<vcpus>` describes it.
#[derive(Default)]
struct ListedVcpu {
    is_enabled: bool,
    hotpluggable: Option<bool>,
}

/// Of a vCPU that is listed twice libvirt takes the last word. vCPU 0 has to be there from the
/// start (`qemuDomainVcpusValidate` and its callers, `src/qemu`).
fn listed_vcpus(root: Node<'_, '_>, maximum: u32) -> Read<Vec<(VcpuId, bool)>> {
    let mut listed = BTreeMap::<VcpuId, ListedVcpu>::new();
    for element in in_sections(root, "vcpus", "vcpu") {
        let written = required(element, "id")?;
        let id: Located<VcpuId> = id(written.clone())?;
        if id.value.0 >= maximum {
            return Err(written.unexpected(format_args!("a vCPU below {maximum}")));
        }
        let yes_no = |name| attribute(element, name).map(|it| word(it, &YES_NO)).transpose();
        let vcpu = listed.entry(id.value).or_default();
        vcpu.is_enabled = word(required(element, "enabled")?, &YES_NO)?.value;
        vcpu.hotpluggable = yes_no("hotpluggable")?.map(|it| it.value).or(vcpu.hotpluggable);
    }
    let Some(first) = child(root, "vcpus").filter(|_| !listed.is_empty()) else {
        return Ok(Vec::new());
    };
    let wrong = |problem: String| Err(fault(first.range().start, problem));
    match listed.get(&VcpuId(0)) {
        Some(ListedVcpu { is_enabled: true, hotpluggable: None | Some(false) }) => {}
        Some(ListedVcpu { is_enabled: true, .. }) => {
            return wrong("<vcpus> makes vCPU 0 hotpluggable, expected hotpluggable='no'".into());
        }
        _ => return wrong("<vcpus> leaves vCPU 0 out, expected it enabled".into()),
    }
    let never = |vcpu: &ListedVcpu| !vcpu.is_enabled && vcpu.hotpluggable == Some(false);
    if let Some((id, _)) = listed.iter().find(|(_, vcpu)| never(vcpu)) {
        return wrong(format!("<vcpus>: vCPU {id} is neither enabled nor hotpluggable"));
    }
    Ok(listed.into_iter().map(|(id, vcpu)| (id, vcpu.is_enabled)).collect())
}

pub(super) fn topology(root: Node<'_, '_>) -> Read<Option<CpuTopology>> {
    let Some(element) = descend(root, &["cpu", "topology"]) else { return Ok(None) };
    let of = |value| number(value, 1..=MAX_NUMBER).map(|number| number.value);
    let count = |name| required(element, name).and_then(of);
    let optional = |name| attribute(element, name).map_or(Ok(1), of);
    Ok(Some(CpuTopology {
        span: tag(element),
        sockets: count("sockets")?,
        dies: optional("dies")?,
        clusters: optional("clusters")?,
        cores: count("cores")?,
        threads: count("threads")?,
    }))
}

pub(super) fn cells(root: Node<'_, '_>) -> Read<Vec<Cell>> {
    // `./cpu/numa[1]/cell`: the first <numa> of each <cpu>.
    let sections: Vec<_> = children(root, "cpu").filter_map(|cpu| child(cpu, "numa")).collect();
    let Some(first) = sections.first() else { return Ok(Vec::new()) };
    let elements: Vec<_> = sections.iter().flat_map(|numa| children(*numa, "cell")).collect();
    if elements.is_empty() {
        return Err(fault(first.range().start, "<numa> has no <cell>, which it needs"));
    }
    let most = MAX_NODES as usize;
    if let Some(beyond) = elements.get(most) {
        let problem = format!("read {} cells, expected at most {most}", elements.len());
        return Err(fault(beyond.range().start, problem));
    }
    let (mut ids, mut taken) = (CellSet::new(), VcpuSet::new());
    let mut cells = Vec::with_capacity(elements.len());
    for (at, element) in elements.iter().enumerate() {
        let cell = cell(*element, at)?;
        let place = attribute(*element, "id").map_or(cell.span, |id| id.span);
        if !ids.insert(cell.id) {
            let problem = format!("cell {} is described twice, expected once", cell.id);
            return Err(fault(place.start, problem));
        }
        if cell.id.0 as usize >= elements.len() {
            let last = elements.len() - 1;
            let problem = format!("read cell {}, expected numbers from 0 to {last}", cell.id);
            return Err(fault(place.start, problem));
        }
        if let Some(cpus) = &cell.cpus {
            let twice = taken.intersection(&cpus.value);
            if !twice.is_empty() {
                let is = if twice.len() == 1 { "is" } else { "are" };
                let problem = format!("{} {is} in an earlier cell, too", twice.named());
                return Err(fault(cpus.span.start, problem));
            }
            taken = taken.union(&cpus.value);
        }
        cells.push(cell);
    }
    cells.sort_by_key(|cell| cell.id);
    Ok(cells)
}

fn cell(element: Node<'_, '_>, at: usize) -> Read<Cell> {
    let id = match attribute(element, "id") {
        Some(written) => id(written)?.value,
        None => CellId(at as u32),
    };
    let cpus = attribute(element, "cpus").map(list_or_none).transpose()?;
    let shared = attribute(element, "memAccess").map(|it| word(it, &SHARED));
    let discard = attribute(element, "discard").map(|it| word(it, &YES_NO));
    let first = child(element, "distances");
    let siblings = first.into_iter().flat_map(|distances| children(distances, "sibling"));
    if let Some(first) = first.filter(|first| child(*first, "sibling").is_none()) {
        return Err(fault(first.range().start, "<distances> has no <sibling>, which it needs"));
    }
    // Of a distance that is written twice libvirt takes the last one.
    let mut distances = BTreeMap::new();
    for sibling in siblings {
        let distance = distance(sibling, id)?;
        distances.insert(distance.to.value, distance);
    }
    Ok(Cell {
        id,
        span: tag(element),
        cpus: cpus.filter(|cpus| !cpus.value.is_empty()),
        memory_bytes: size(required(element, "memory")?, attribute(element, "unit"))?,
        is_shared: shared.transpose()?,
        discard: discard.transpose()?,
        distances: distances.into_values().collect(),
    })
}

fn distance(sibling: Node<'_, '_>, from: CellId) -> Read<CellDistance> {
    let to: Located<CellId> = id(required(sibling, "id")?)?;
    let written = required(sibling, "value")?;
    let value = number(written.clone(), Distances::LOCAL..=Distances::UNREACHABLE)?;
    if to.value == from && value.value != Distances::LOCAL {
        return Err(written.unexpected("10, a cell's distance to itself"));
    }
    // virDomainNumaDefNodeDistanceParseXML, src/conf/numa_conf.c.
    if to.value != from && value.value == Distances::LOCAL {
        return Err(written.unexpected("more than 10, the distance of a cell to itself alone"));
    }
    Ok(CellDistance { to, value })
}

pub(super) fn pins(root: Node<'_, '_>, vcpus: &Vcpus) -> Read<Pins> {
    let mut emulators = in_sections(root, "cputune", "emulatorpin");
    let emulator = emulators.next().map(|pin| list(required(pin, "cpuset")?)).transpose()?;
    if let Some(second) = emulators.next() {
        return Err(fault(second.range().start, "read a second <emulatorpin>, expected one"));
    }
    let mut shares = shares_of(root, "cachetune")?;
    shares.extend(shares_of(root, "memorytune")?);
    check_shares(&shares, &vcpus.all())?;
    Ok(Pins {
        // libvirt passes over a vCPU that is none, also if it is named twice.
        vcpus: pins_of(root, "vcpupin", "vcpu", vcpus.maximum.value)?,
        emulator,
        iothreads: pins_of(root, "iothreadpin", "iothread", u32::MAX)?,
        scheduled_vcpus: scheduled(root, "vcpusched", "vcpus")?,
        scheduled_iothreads: scheduled(root, "iothreadsched", "iothreads")?,
        shares,
    })
}

fn pins_of<T: Id + Ord>(
    root: Node<'_, '_>,
    element: &'static str,
    thread: &str,
    count: u32,
) -> Read<Vec<Pin<T>>> {
    let mut seen = BTreeSet::new();
    let name = format!("<{element}>");
    let pin = |pin| {
        let Located { value, span } = number(required(pin, thread)?, 0..=u32::MAX)?;
        let id = Located { value: T::new(value), span };
        if value < count {
            once(&mut seen, &id, &name)?;
        }
        Ok(Pin { span: tag(pin), id, cpus: list(required(pin, "cpuset")?)? })
    };
    in_sections(root, "cputune", element).map(pin).collect()
}

/// Lists of threads with a scheduler. No thread may have two
/// (`virDomainThreadSchedParseHelper`, `src/conf/domain_conf.c`).
fn scheduled<T: Id>(
    root: Node<'_, '_>,
    element: &'static str,
    threads: &str,
) -> Read<Vec<Located<IdSet<T>>>> {
    let mut taken = IdSet::new();
    let lists = in_sections(root, "cputune", element).map(|scheduler| {
        let threads = list(required(scheduler, threads)?)?;
        let twice = taken.intersection(&threads.value);
        if !twice.is_empty() {
            let problem = format!("{} has an earlier <{element}>, too", twice.named());
            return Err(fault(threads.span.start, problem));
        }
        taken = taken.union(&threads.value);
        Ok(threads)
    });
    lists.collect()
}

fn shares_of(root: Node<'_, '_>, element: &'static str) -> Read<Vec<Share>> {
    let shares = in_sections(root, "cputune", element).map(|it| {
        let vcpus = list_or_none(required(it, "vcpus")?)?;
        Ok(Share { element, vcpus, is_empty: !it.children().any(|child| child.is_element()) })
    });
    shares.collect()
}

/// vCPUs with one share have all of them together (`virDomainResctrlVcpuMatch`,
/// `src/conf/domain_conf.c`). Those that the guest does not have are left out before. A share that
/// is empty is not kept, so that later ones may differ from it.
fn check_shares(shares: &[Share], all: &VcpuSet) -> Read<()> {
    let (mut taken, mut sets) = (VcpuSet::new(), HashSet::new());
    for Share { element, vcpus, is_empty } in shares {
        let own = vcpus.value.intersection(all);
        let both = taken.intersection(&own);
        let is_new = !sets.contains(&own);
        if !both.is_empty() && is_new {
            let problem = format!("{} has an earlier share with other vCPUs", both.named());
            return Err(fault(vcpus.span.start, problem));
        }
        if !own.is_empty() && !is_new && *element == "cachetune" {
            let problem = format!("{} has an earlier <cachetune>, too", own.named());
            return Err(fault(vcpus.span.start, problem));
        }
        if !is_empty {
            taken = taken.union(&own);
            sets.insert(own);
        }
    }
    Ok(())
}

pub(super) fn iothreads(root: Node<'_, '_>, devices: Option<Node<'_, '_>>) -> Read<Iothreads> {
    let count = child(root, "iothreads").map(text_of).filter(|count| !count.text.is_empty());
    let count = count.map(|count| number(count, 0..=MAX_NUMBER));
    let mut seen = BTreeSet::new();
    let ids = in_sections(root, "iothreadids", "iothread").map(|element| {
        let id = iothread(required(element, "id")?)?;
        once(&mut seen, &id, "<iothread>")?;
        Ok(id)
    });
    let ids = ids.collect::<Read<Vec<_>>>()?;
    let users = devices
        .into_iter()
        .flat_map(|devices| children(devices, "disk").chain(children(devices, "controller")));
    let used = users
        .filter_map(|user| attribute(child(user, "driver")?, "iothread"))
        .map(iothread)
        .collect::<Read<_>>()?;
    let disks = devices.into_iter().flat_map(|devices| children(devices, "disk"));
    let disk = |disk| {
        let thread = iothread(attribute(child(disk, "driver")?, "iothread")?).ok()?;
        let device = attribute(child(disk, "source")?, "dev")?;
        Some((thread.value, device.text.strip_prefix("/dev/")?.to_owned()))
    };
    let disks = disks.filter_map(disk).collect();
    Ok(Iothreads { count: count.transpose()?, ids, used, disks })
}

/// iothreads are numbered from 1.
fn iothread<T: Id>(value: Value<'_>) -> Read<Located<T>> {
    let Located { value, span } = number(value, 1..=u32::MAX)?;
    Ok(Located { value: T::new(value), span })
}
