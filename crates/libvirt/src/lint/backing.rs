//! `<memoryBacking>`, pinned memory, private memory: settings that fix pages at the start.

use super::checker::Checker;
use crate::{
    binding::{blocks, is_auto},
    id::{CellId, CellSet},
    memory::{Allocation, BackingSource, HugePages, MemoryMode},
    rule::Rule,
};

pub(super) fn check(checker: &mut Checker<'_>) {
    check_huge_pages(checker);
    check_sharing(checker);
    check_unbound(checker);
    check_pinned(checker);
    let security = checker.domain.launch_security.as_ref();
    // SEV without SNP keeps its memory in ordinary pages.
    if let Some(kind) = security.filter(|kind| matches!(kind.value.as_str(), "sev-snp" | "tdx")) {
        let message = format!("the memory of a guest under {} is guest_memfd", kind.value);
        checker.report(Rule::GuestMemfdCannotMove, kind.span, message);
    }
}

fn check_huge_pages(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    let Some(pages) = &domain.backing.huge_pages else { return };
    // libvirt takes 0 for the whole guest if there are no cells.
    let cells: CellSet = match domain.cells.is_empty() {
        true => CellSet::from([CellId(0)]),
        false => domain.cells.iter().map(|cell| cell.id).collect(),
    };
    for named in pages.pages.iter().filter_map(|page| page.cells.as_ref()) {
        let missing = named.value.difference(&cells);
        if !missing.is_empty() {
            let missing = missing.named();
            let message = format!("nodeset= names {missing}, which the guest does not have");
            checker.report(Rule::HugePagesForMissingCell, named.span, message);
        }
    }
    check_overlap(checker, pages);
    // Without cells nodeset='0' is all memory, too.
    let mut for_all =
        pages.pages.iter().filter(|page| domain.cells.is_empty() || page.cells.is_none());
    if let (Some(first), Some(other)) = (for_all.next(), for_all.next()) {
        let [first, size] = [first, other].map(|page| crate::size::shown(page.bytes.value));
        let message = format!("pages of {first} and of {size} are for all memory");
        checker.report(Rule::TwoDefaultHugePages, other.span, message);
    }
    let backing = &domain.backing;
    let anonymous = backing.source.as_ref().filter(|it| it.value == BackingSource::Anonymous);
    if let Some(source) = anonymous {
        let message = "huge pages cannot be anonymous memory";
        checker.report(Rule::HugePagesContradictBacking, source.span, message);
    }
    let on_demand = backing.allocation.as_ref().filter(|it| it.value == Allocation::OnDemand);
    if let Some(allocation) = on_demand {
        let message = "huge pages cannot be allocated on demand";
        checker.report(Rule::HugePagesContradictBacking, allocation.span, message);
    }
}

/// Pages whose cells intersect, also where both have one size. Without cells both are for all
/// memory, which is a rule of its own.
fn check_overlap(checker: &mut Checker<'_>, pages: &HugePages) {
    let mut taken = CellSet::new();
    if checker.domain.cells.is_empty() {
        return;
    }
    for cells in pages.pages.iter().filter_map(|page| page.cells.as_ref()) {
        let twice = taken.intersection(&cells.value);
        if !twice.is_empty() {
            let message = format!("{} has pages of another entry, too", twice.named());
            checker.report(Rule::HugePagesOverlap, cells.span, message);
        }
        taken = taken.union(&cells.value);
    }
}

fn check_sharing(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    let Some(sharer) = domain.memory_sharers.first() else { return };
    let by_default = domain.backing.is_shared.as_ref().is_some_and(|shared| shared.value);
    let is_shared =
        |cell: &crate::Cell| cell.is_shared.as_ref().map_or(by_default, |shared| shared.value);
    let all_shared = match domain.cells.is_empty() {
        true => by_default,
        false => domain.cells.iter().all(is_shared),
    };
    if !all_shared {
        let message = format!("{} needs shared memory, and the guest's is private", sharer.value);
        checker.report(Rule::SharedMemoryMissing, sharer.span, message);
    }
}

/// Memory that is filled at the start by whichever thread comes first.
fn check_unbound(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    let unbound: u64 =
        blocks(domain).iter().filter(|it| it.binding.is_none()).map(|it| it.bytes).sum();
    if unbound == 0 || is_auto(domain) || checker.has_one_node() {
        return;
    }
    let size = crate::size::shown(unbound);
    let backing = &domain.backing;
    let immediate = backing.allocation.as_ref().filter(|it| it.value == Allocation::Immediate);
    let early = immediate.map(|it| ("allocated", it.span));
    if let Some((how, span)) = early.or(backing.locked.map(|span| ("locked", span))) {
        let message = format!("{size} are {how} at the start and bound to no node");
        checker.report(Rule::PreallocationWithoutNumatune, span, message);
    }
    if let Some(pages) = &backing.huge_pages {
        let message = format!("{size} in huge pages are bound to no node");
        checker.report(Rule::HugePagesWithoutNumatune, pages.span, message);
    }
    if let Some(device) = domain.host_devices.iter().find(|device| device.pins_memory()) {
        let message = format!("this device pins {size} that are bound to no node");
        checker.report(Rule::VfioWithoutNumatune, device.span, message);
    }
}

/// Pinned memory that may lie off its nodes.
fn check_pinned(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    let Some(device) = domain.host_devices.iter().find(|device| device.pins_memory()) else {
        return;
    };
    let blocks = blocks(domain);
    let spills = |mode| matches!(mode, MemoryMode::Preferred | MemoryMode::Interleave);
    let spilling = blocks.iter().filter_map(|block| block.binding?.mode).find(|&it| spills(it));
    if let (Some(mode), false) = (spilling, checker.has_one_node()) {
        let message = format!("this device pins memory that the mode '{mode}' lets lie elsewhere");
        checker.report(Rule::VfioCannotMove, device.span, message);
    }
}
