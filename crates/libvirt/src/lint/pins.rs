//! The bindings of threads, as far as the XML alone shows.

use super::checker::Checker;
use crate::{id::VcpuSet, rule::Rule};

pub(super) fn check(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    let all = domain.vcpus.all();
    for pin in domain.pins.vcpus.iter().filter(|pin| !all.contains(pin.id.value)) {
        let message =
            format!("<vcpupin> binds vCPU {}; the guest has {}", pin.id.value, all.named());
        checker.report(Rule::VcpupinForMissingVcpu, pin.id.span, message);
    }
    let pinned = domain.pins.vcpus.iter().map(|pin| pin.id.value);
    let pinned: VcpuSet = pinned.filter(|id| all.contains(*id)).collect();
    let free = all.difference(&pinned);
    if let (Some(first), true) = (domain.pins.vcpus.first(), domain.vcpus.bound_cpus().is_none())
        && !free.is_empty()
        && !pinned.is_empty()
    {
        let message = format!("no <vcpupin> binds {}", free.named());
        checker.report(Rule::VcpusPartlyPinned, first.span, message);
    }
    if let (Some(cpus), true) = (&domain.vcpus.cpuset, domain.vcpus.is_auto()) {
        let message = format!("placement='auto' overrides {} of cpuset=", cpus.value.named());
        checker.report(Rule::CpusetIgnored, cpus.span, message);
    }
    check_shares(checker, &all);
    check_iothreads(checker);
}

/// Elements of `<cputune>` that name vCPUs by a list.
fn check_shares(checker: &mut Checker<'_>, all: &VcpuSet) {
    let pins = &checker.domain.pins;
    let scheduled =
        pins.scheduled_vcpus.iter().map(|it| (Rule::VcpuschedForMissingVcpu, "vcpusched", it));
    let shares =
        pins.shares.iter().map(|it| (Rule::CachetuneForMissingVcpu, it.element, &it.vcpus));
    for (rule, element, vcpus) in scheduled.chain(shares) {
        let missing = vcpus.value.difference(all);
        if !missing.is_empty() {
            let (missing, all) = (missing.named(), all.named());
            let message = format!("<{element}> names {missing}; the guest has {all}");
            checker.report(rule, vcpus.span, message);
        }
    }
}

fn check_iothreads(checker: &mut Checker<'_>) {
    let domain = checker.domain;
    let iothreads = domain.iothreads.all();
    for named in &domain.pins.scheduled_iothreads {
        if let Some(missing) = named.value.iter().find(|id| !iothreads.contains(id)) {
            let message =
                format!("<iothreadsched> names iothread {missing}, which the domain does not have");
            checker.report(Rule::IothreadMissing, named.span, message);
        }
    }
    let pins = domain.pins.iothreads.iter().map(|pin| (&pin.id, "<iothreadpin> binds"));
    let users = domain.iothreads.used.iter().map(|id| (id, "a device uses"));
    for (id, what) in pins.chain(users).filter(|(id, _)| !iothreads.contains(&id.value)) {
        let message = format!("{what} iothread {}, which the domain does not have", id.value);
        checker.report(Rule::IothreadMissing, id.span, message);
    }
}
