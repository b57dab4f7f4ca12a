//! `nearside list` as text.

use super::{
    domain::{
        affinity, by_node, dash, label, local, memory_by_node, origin, others, stands,
        used_of_claim,
    },
    reserved::{self, Reserved},
    table::{
        Side::{Left, Right},
        listing,
    },
    units::short,
};
use crate::{domains::Domain, printable::printable};
use nearside_policy::{CpuReason, total};
use serde::Serialize;

/// The output of `nearside list`.
#[derive(Debug, Serialize)]
pub(crate) struct List<'a> {
    /// The domains by name, then other cgroups by path.
    pub(crate) domains: &'a [Domain],
    /// Memory that is reserved for something that is no domain, by name.
    pub(crate) reservations: Vec<Reserved<'a>>,
}

/// A line for each domain, with `nodes` also memory and threads by node; then other cgroups.
pub(crate) fn text(list: &List<'_>, nodes: bool) -> String {
    let mut columns = vec![
        ("domain", Left),
        ("home", Left),
        ("origin", Left),
        ("policy", Left),
        ("affinity", Left),
        ("vCPUs", Right),
        ("memory", Right),
        ("local", Right),
        ("debt", Right),
    ];
    let is_told = list.domains.iter().any(|domain| domain.status.is_some());
    if is_told {
        columns.push(("status", Left));
    }
    if nodes {
        columns.extend([("memory at", Left), ("threads at", Left)]);
    }
    let row = |domain: &Domain| {
        let home = domain.home.as_ref()?;
        let mut row = vec![
            label(domain),
            home.nodes.to_string(),
            origin(home.origin).into(),
            home.policy.to_string(),
            affinity(domain),
            dash(domain.claim.as_ref().map(|claim| total(&claim.vcpus))),
            used_of_claim(domain),
            local(domain.local_share),
            dash(domain.debt_bytes.map(short)),
        ];
        row.extend(is_told.then(|| stands(domain)));
        if nodes {
            row.extend([memory_by_node(domain), by_node(&domain.usage.cpu.threads)]);
        }
        Some(row)
    };
    let lines = list.domains.iter().flat_map(Domain::lines);
    let mut text = listing(&columns, &lines.filter_map(row).collect::<Vec<_>>());
    let is_pinned = |domain: &Domain| {
        domain.cpus_bound_by == Some(CpuReason::Fallback) && domain.cpus_effective.is_none()
    };
    if list.domains.iter().any(is_pinned) {
        text += "\n* fallback pinned: bound to the home's CPUs until a scheduler with soft \
        affinity \
             runs\n";
    }
    text += &list.domains.iter().filter_map(not_in_force).collect::<String>();
    text += &reserved::text(&list.reservations);
    text + &others(list.domains, nodes)
}

/// A line for a domain whose CPU binding is not in force.
fn not_in_force(domain: &Domain) -> Option<String> {
    let effective = domain.cpus_effective.as_ref()?.named();
    let (label, cgroup) = (label(domain), printable(&domain.cgroup));
    Some(format!(
        "\n! {label}: not bound to the home's CPUs: {effective} are effective \
         ({cgroup}/cpuset.cpus.effective), because all of the home's are offline or in another \
         cgroup's partition\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::domain::examples;
    use nearside_topology::CpuId;

    #[test]
    fn each_domain_has_a_line() {
        let domains = examples::domains_told_of();
        let list = List { domains: &domains, reservations: Vec::new() };
        insta::assert_snapshot!("list", text(&list, false));
        insta::assert_snapshot!("list_nodes", text(&list, true));
    }

    #[test]
    fn a_binding_that_is_not_in_force_names_the_cpus_that_are() {
        let mut domains = examples::domains_told_of();
        domains[0].cpus_effective = Some([CpuId(0), CpuId(1)].into());
        let text = text(&List { domains: &domains, reservations: Vec::new() }, false);
        assert!(text.contains("soft! ") && !text.contains("fallback pinned"), "{text}");
        let line = "\n! db: not bound to the home's CPUs: CPUs 0-1 are effective \
                    (/nearside/db/cpuset.cpus.effective), because";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn empty_list_has_headings_only() {
        let text = text(&List { domains: &[], reservations: Vec::new() }, false);
        assert_eq!(text.lines().count(), 1);
        assert!(text.trim_start().starts_with("domain"));
    }
}
