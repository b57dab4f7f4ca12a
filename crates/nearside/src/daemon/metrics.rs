//! `/metrics`: a snapshot in the words of Prometheus (OpenMetrics text).
//!
//! What node_exporter's collector `meminfo_numa` tells of nodes has its names here, so that dashboards fit both: the
//! field's name in the kernel's `meminfo` and `numastat` of a node, without a unit. All others begin with `nearside_`.

use super::snapshot::{DomainTotals, Snapshot};
use crate::domains::Domain;
use nearside_linux::counters::Counters;
use nearside_topology::{MemoryState, Node, NodeId, Topology};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, NoLabelSet, text},
    metrics::MetricType,
    registry::{Registry, Unit},
};
use std::{fmt, sync::Arc};

/// The `Content-Type`.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics as text. `audit_lost` counts changes that could not be recorded.
pub(super) fn text(snapshot: Arc<Snapshot>, audit_lost: u64) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics { snapshot, audit_lost }));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Metrics {
    snapshot: Arc<Snapshot>,
    audit_lost: u64,
}

/// A metric's name, what it means, and its unit, which the encoder adds to the name.
type About<'a> = (&'static str, &'a str, Option<Unit>);

/// Where metrics are written, one after the other. Those without any value are left with what they mean.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn gauge<const N: usize>(
        &mut self,
        (name, help, unit): About<'_>,
        values: impl IntoIterator<Item = ([Label; N], impl EncodeGaugeValue)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        values.into_iter().try_for_each(|(labels, value)| match N {
            0 => metric.encode_gauge(&value),
            _ => metric.encode_family(&labels)?.encode_gauge(&value),
        })
    }

    /// The encoder adds `_total` to the name.
    fn counter<const N: usize>(
        &mut self,
        (name, help, unit): About<'_>,
        values: impl IntoIterator<Item = ([Label; N], impl EncodeCounterValue)>,
    ) -> fmt::Result {
        let mut metric =
            self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        values.into_iter().try_for_each(|(labels, value)| match N {
            0 => metric.encode_counter::<NoLabelSet, _, u64>(&value, None),
            _ => metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None),
        })
    }
}

/// A label's name and value.
type Label = (&'static str, String);

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        self.daemon(&mut page)?;
        self.nodes(&mut page)?;
        self.domains(&mut page)
    }
}

impl Metrics {
    fn daemon(&self, page: &mut Page<'_>) -> fmt::Result {
        let Snapshot { totals, stat, scheduler_attached, numa_balancing, .. } = &*self.snapshot;
        let alone = |value: u64| [([], value)];
        page.counter(
            ("nearside_intervals", "Intervals of the control loop that ended", None),
            alone(totals.intervals),
        )?;
        page.gauge(
            (
                "nearside_scheduler_attached",
                "Whether the scheduler that knows node affinity is attached (1) or not",
                None,
            ),
            alone(u64::from(*scheduler_attached)),
        )?;
        page.gauge(
            (
                "nearside_numa_balancing",
                "The sysctl kernel.numa_balancing: 0 off, 1 on, 2 memory tiering",
                None,
            ),
            numa_balancing.iter().map(|&mode| ([], mode)),
        )?;
        page.gauge(
            ("nearside_domains", "Domains there are", None),
            alone(stat.domains.len() as u64),
        )?;
        page.counter(
            ("nearside_audit_lost", "Lines of the audit log that could not be written", None),
            alone(self.audit_lost),
        )
    }

    fn nodes(&self, page: &mut Page<'_>) -> fmt::Result {
        let Topology { nodes, withheld, .. } = &self.snapshot.topology;
        // What is withheld from domains was left out of the snapshot: there is no telling how much it is.
        let is_offered = |node: &&Node| !withheld.memory_nodes.contains(node.id);
        let total =
            nodes.iter().filter(is_offered).map(|node| (of_node(node.id), node.memory_bytes));
        page.gauge(
            ("node_memory_numa_MemTotal", "Memory information field MemTotal, in bytes", None),
            total,
        )?;
        // The metric's name, the field of `meminfo`, and what holds it.
        type Field = (&'static str, &'static str, fn(&MemoryState) -> u64);
        let fields: [Field; 4] = [
            ("node_memory_numa_MemFree", "MemFree", |state| state.free_bytes),
            ("node_memory_numa_Active_file", "Active(file)", |state| state.active_file_bytes),
            ("node_memory_numa_Inactive_file", "Inactive(file)", |state| state.inactive_file_bytes),
            ("node_memory_numa_SReclaimable", "SReclaimable", |state| state.slab_reclaimable_bytes),
        ];
        for (name, field, bytes) in fields {
            let values =
                nodes.iter().filter_map(|node| Some((of_node(node.id), bytes(&node.state?))));
            page.gauge(
                (name, &format!("Memory information field {field}, in bytes"), None),
                values,
            )?;
        }
        type Count = (&'static str, &'static str, fn(&Counters) -> u64);
        let counts: [Count; 6] = [
            ("node_memory_numa_numa_hit", "Pages taken from the node as wanted", |counters| {
                counters.hit_pages
            }),
            (
                "node_memory_numa_numa_miss",
                "Pages taken from the node although another one was wanted",
                |counters| counters.miss_pages,
            ),
            (
                "node_memory_numa_numa_foreign",
                "Pages wanted from the node and taken from another one",
                |counters| counters.foreign_pages,
            ),
            (
                "node_memory_numa_interleave_hit",
                "Pages taken from the node as an interleaving policy wanted",
                |counters| counters.interleave_hit_pages,
            ),
            (
                "node_memory_numa_local_node",
                "Pages taken from the node by a CPU of the node",
                |counters| counters.local_node_pages,
            ),
            (
                "node_memory_numa_other_node",
                "Pages taken from the node by a CPU of another one",
                |counters| counters.other_node_pages,
            ),
        ];
        let stat = &self.snapshot.stat.nodes;
        for (name, help, pages) in counts {
            let values =
                stat.iter().filter_map(|node| Some((of_node(node.node), pages(&node.counters?))));
            page.counter((name, help, None), values)?;
        }
        page.gauge(
            (
                "nearside_node_outstanding",
                "Memory promised to domains and not used yet",
                Some(Unit::Bytes),
            ),
            stat.iter().map(|node| (of_node(node.node), node.outstanding_bytes)),
        )?;
        page.gauge(
            ("nearside_node_unclaimed", "Memory that can still be promised", Some(Unit::Bytes)),
            stat.iter().map(|node| (of_node(node.node), node.unclaimed_bytes)),
        )?;
        page.gauge(
            ("nearside_node_claimed_vcpus", "vCPUs promised to domains", None),
            stat.iter().map(|node| (of_node(node.node), node.claimed_vcpus)),
        )?;
        let paces = self.snapshot.history.nodes.iter();
        page.gauge(
            (
                "nearside_node_pace",
                "Part of the full rate at which pages may leave or come",
                Some(ratio()),
            ),
            paces.map(|(&node, history)| (of_node(node), parts(history.pace_ppm))),
        )
    }

    fn domains(&self, page: &mut Page<'_>) -> fmt::Result {
        let domains = &self.snapshot.stat.domains;
        page.gauge(
            ("nearside_domain_home", "The nodes of a domain's home: 1 for each", None),
            domains.iter().flat_map(|domain| {
                let nodes = domain.home.iter().flat_map(|home| home.nodes.iter());
                nodes.map(|node| (on_node(domain, node), 1_u64))
            }),
        )?;
        page.gauge(
            (
                "nearside_domain_local_share",
                "Sum over nodes of share of CPU time x share of own memory: how likely an access is local",
                Some(ratio()),
            ),
            domains.iter().filter_map(|domain| Some((of(domain), domain.local_share?))),
        )?;
        page.gauge(
            (
                "nearside_domain_debt",
                "Own memory that lies off the domain's home",
                Some(Unit::Bytes),
            ),
            domains.iter().filter_map(|domain| Some((of(domain), domain.debt_bytes?))),
        )?;
        page.gauge(
            (
                "nearside_domain_own",
                "Own memory by node: without files and what the kernel keeps",
                Some(Unit::Bytes),
            ),
            domains.iter().flat_map(|domain| {
                domain.own_bytes.iter().map(|(&node, &bytes)| (on_node(domain, node), bytes))
            }),
        )?;
        page.gauge(
            ("nearside_domain_claimed", "Memory promised to the domain by node", Some(Unit::Bytes)),
            domains.iter().flat_map(|domain| {
                let claimed = domain.claim.iter().flat_map(|claim| &claim.bytes);
                claimed.map(|(&node, &bytes)| (on_node(domain, node), bytes))
            }),
        )?;
        let known = |domain: &Domain| {
            self.snapshot.history.domains.get(&nearside_policy::PartId::of(&domain.name))
        };
        page.gauge(
            (
                "nearside_domain_demand_vcpus",
                "CPUs that the domain uses and waits for, smoothed",
                None,
            ),
            domains
                .iter()
                .filter_map(|domain| Some((of(domain), known(domain)?.demand.0 as f64 / 1000.0))),
        )?;
        page.gauge(
            (
                "nearside_domain_trouble_intervals",
                "For how many intervals it has been off its home or waiting",
                None,
            ),
            domains
                .iter()
                .filter_map(|domain| Some((of(domain), known(domain)?.trouble_intervals))),
        )?;
        let nothing = DomainTotals::default();
        let totals =
            |domain: &Domain| self.snapshot.totals.domains.get(&domain.name).unwrap_or(&nothing);
        page.counter(
            ("nearside_domain_homes", "Homes that the control loop gave the domain", None),
            domains.iter().map(|domain| (of(domain), totals(domain).homes)),
        )?;
        page.counter(
            ("nearside_domain_moved", "Memory of the domain that moved", Some(Unit::Bytes)),
            domains.iter().map(|domain| (of(domain), totals(domain).moved_bytes)),
        )?;
        page.counter(
            (
                "nearside_domain_stayed",
                "Memory that did not move when it should have, by reason",
                Some(Unit::Bytes),
            ),
            domains.iter().flat_map(|domain| {
                let stayed = totals(domain).stayed_bytes.iter();
                stayed.map(|(why, &bytes)| {
                    ([("domain", domain.name.clone()), ("reason", why.words().to_owned())], bytes)
                })
            }),
        )?;
        page.counter(
            ("nearside_domain_refusals", "Steps for the domain that were refused", None),
            domains.iter().map(|domain| (of(domain), totals(domain).refusals)),
        )
    }
}

fn of_node(node: NodeId) -> [Label; 1] {
    [("node", node.to_string())]
}

fn of(domain: &Domain) -> [Label; 1] {
    [("domain", domain.name.clone())]
}

fn on_node(domain: &Domain, node: NodeId) -> [Label; 2] {
    [("domain", domain.name.clone()), ("node", node.to_string())]
}

/// Prometheus has it in the singular.
fn ratio() -> Unit {
    Unit::Other("ratio".into())
}

fn parts(ppm: u64) -> f64 {
    ppm as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::snapshot::{Seen, SeenDomain, examples};

    fn page() -> String {
        text(Arc::new(examples::snapshot()), 2).unwrap()
    }

    #[test]
    fn domains_and_nodes_have_their_figures() {
        let page = page();
        let lines: Vec<&str> = page.lines().collect();
        for expected in [
            r#"nearside_intervals_total 17"#,
            r#"nearside_scheduler_attached 1"#,
            r#"nearside_numa_balancing 1"#,
            r#"nearside_audit_lost_total 2"#,
            r#"# HELP node_memory_numa_MemTotal Memory information field MemTotal, in bytes"#,
            r#"# TYPE node_memory_numa_MemTotal gauge"#,
            r#"node_memory_numa_MemTotal{node="0"} 2147483648"#,
            r#"node_memory_numa_MemFree{node="1"} 943718400"#,
            r#"node_memory_numa_numa_hit_total{node="0"} 1600"#,
            r#"# UNIT nearside_domain_debt_bytes bytes"#,
            r#"nearside_domain_local_share_ratio{domain="db"} 1.0"#,
            r#"nearside_domain_debt_bytes{domain="web-frontend"} 67108864"#,
            r#"nearside_domain_home{domain="web-frontend",node="2"} 1"#,
            r#"nearside_domain_own_bytes{domain="db",node="1"} 522190848"#,
            r#"nearside_domain_moved_bytes_total{domain="web-frontend"} 4096"#,
            r#"nearside_domain_stayed_bytes_total{domain="web-frontend",reason="busy"} 8192"#,
            r#"nearside_domain_refusals_total{domain="web-frontend"} 1"#,
            r#"nearside_domain_refusals_total{domain="db"} 0"#,
            r#"# EOF"#,
        ] {
            assert!(lines.contains(&expected), "{expected}\n{page}");
        }
    }

    #[test]
    fn each_metric_says_what_it_means_and_ends_with_its_unit() {
        let page = page();
        let (mut helped, mut name) = (0, "");
        for line in page.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["#", "HELP", metric, _, ..] => (helped, name) = (helped + 1, metric),
                ["#", "TYPE", metric, _] => assert_eq!(metric, name),
                ["#", "UNIT", metric, unit] => {
                    assert!(metric == name && metric.ends_with(&format!("_{unit}")))
                }
                ["#", "EOF"] => {}
                _ => assert!(line.starts_with(name), "{line} below {name}"),
            }
        }
        assert!(helped > 20);
    }

    #[test]
    fn names_that_others_chose_stay_within_their_quotes() {
        let cgroup = "/machine.slice/a\"b\\x2d\n.scope";
        let found = SeenDomain { cgroup: cgroup.into(), ..SeenDomain::default() };
        let snapshot = Snapshot::new(Seen { domains: vec![found], ..Seen::default() });
        let page = text(Arc::new(snapshot), 0).unwrap();
        assert!(
            page.contains(r#"refusals_total{domain="/machine.slice/a\"b\\x2d\n.scope"} 0"#),
            "{page}"
        );
    }
}
