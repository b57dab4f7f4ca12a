//! `/metrics`: a snapshot as metrics of Prometheus.
//!
//! Metrics of nodes that node_exporter's collector `meminfo_numa` has, too, have its names, so that
//! dashboards fit both: the field's name in the kernel's `meminfo` and `numastat` of a node,
//! without a unit. All others begin with `nearside_`.

mod cells;

use super::{snapshot::Snapshot, totals::DomainTotals};
use crate::domains::Domain;
use nearside_linux::counters::Counters;
use nearside_policy::PartId;
use nearside_topology::{MemoryState, Node, NodeId, Topology};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, NoLabelSet, text},
    metrics::MetricType,
    registry::{Registry, Unit},
};
use std::{fmt, sync::Arc};

/// All metrics in OpenMetrics. `audit_lost` counts changes that could not be recorded.
pub(super) fn page(snapshot: Arc<Snapshot>, audit_lost: u64) -> Result<String, fmt::Error> {
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

/// A metric's name, its help text, and its unit, which the encoder adds to the name.
type About<'a> = (&'static str, &'a str, Option<Unit>);

/// A page to which metrics are added. A metric without values has its help text alone.
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
        self.domains(&mut page)?;
        let domains = &self.snapshot.stat.domains;
        for figure in cells::by_node(domains) {
            page.gauge(figure.about, figure.values)?;
        }
        for figure in cells::whole(domains) {
            page.gauge(figure.about, figure.values)?;
        }
        Ok(())
    }
}

impl Metrics {
    fn daemon(&self, page: &mut Page<'_>) -> fmt::Result {
        let Snapshot { totals, text, stat, scheduler_attached, numa_balancing, .. } =
            &*self.snapshot;
        let alone = |value: u64| [([], value)];
        page.counter(
            ("nearside_intervals", "Intervals of the control loop that ended", None),
            alone(totals.intervals),
        )?;
        page.gauge(
            (
                "nearside_scheduler_attached",
                "1 if the scheduler that knows node affinity is attached, else 0",
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
        page.gauge(("nearside_domains", "Domains", None), alone(stat.domains.len() as u64))?;
        page.counter(
            (
                "nearside_text_moved",
                "Text of programs that moved to the home that alone executes it",
                Some(Unit::Bytes),
            ),
            alone(text.moved_bytes),
        )?;
        let candidates = text.candidates.iter().map(|it| it.off_home_bytes);
        page.gauge(
            (
                "nearside_text_copies",
                "Text that several homes execute, off each of them: what copies would bring home",
                Some(Unit::Bytes),
            ),
            alone(candidates.fold(0, u64::saturating_add)),
        )?;
        page.counter(
            ("nearside_audit_lost", "Lines of the audit log that could not be written", None),
            alone(self.audit_lost),
        )
    }

    fn nodes(&self, page: &mut Page<'_>) -> fmt::Result {
        let Topology { nodes, withheld, .. } = &self.snapshot.topology;
        // The snapshot has no figures of memory that is withheld from domains.
        let is_offered = |node: &&Node| !withheld.memory_nodes.contains(node.id);
        let total =
            nodes.iter().filter(is_offered).map(|node| (of_node(node.id), node.memory_bytes));
        page.gauge(
            ("node_memory_numa_MemTotal", "Memory information field MemTotal, in bytes", None),
            total,
        )?;
        // The metric's name, the field of `meminfo`, and its value.
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
            ("node_memory_numa_numa_hit", "Pages allocated on the node as intended", |counters| {
                counters.hit_pages
            }),
            (
                "node_memory_numa_numa_miss",
                "Pages allocated on the node although another one was intended",
                |counters| counters.miss_pages,
            ),
            (
                "node_memory_numa_numa_foreign",
                "Pages intended for the node and allocated on another one",
                |counters| counters.foreign_pages,
            ),
            (
                "node_memory_numa_interleave_hit",
                "Pages allocated on the node as an interleaving policy intended",
                |counters| counters.interleave_hit_pages,
            ),
            (
                "node_memory_numa_local_node",
                "Pages allocated on the node by a CPU of the node",
                |counters| counters.local_node_pages,
            ),
            (
                "node_memory_numa_other_node",
                "Pages allocated on the node by a CPU of another node",
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
                "Memory reserved for domains and not used yet",
                Some(Unit::Bytes),
            ),
            stat.iter().map(|node| (of_node(node.node), node.outstanding_bytes)),
        )?;
        page.gauge(
            ("nearside_node_available", "Memory available to claims", Some(Unit::Bytes)),
            stat.iter().map(|node| (of_node(node.node), node.available_bytes)),
        )?;
        page.gauge(
            ("nearside_node_claimed_vcpus", "vCPUs reserved for domains", None),
            stat.iter().map(|node| (of_node(node.node), node.claimed_vcpus)),
        )?;
        let paces = self.snapshot.history.nodes.iter();
        page.gauge(
            (
                "nearside_node_pace",
                "Fraction of the full rate at which pages may leave or arrive",
                Some(ratio()),
            ),
            paces.map(|(&node, history)| (of_node(node), parts(history.rate_ppm))),
        )
    }

    fn domains(&self, page: &mut Page<'_>) -> fmt::Result {
        let domains = &self.snapshot.stat.domains;
        page.gauge(
            ("nearside_domain_home", "1 for each node of the domain's home", None),
            domains.iter().flat_map(|domain| {
                let nodes = domain.home.iter().flat_map(|home| home.nodes.iter());
                nodes.map(|node| (on_node(domain, node), 1_u64))
            }),
        )?;
        page.gauge(
            (
                "nearside_domain_local_share",
                "Sum over nodes of share of CPU time x share of own memory: probability of a local \
                 access",
                Some(ratio()),
            ),
            domains.iter().filter_map(|domain| Some((of(domain), domain.local_share?))),
        )?;
        page.gauge(
            ("nearside_domain_debt", "Own memory off the domain's home", Some(Unit::Bytes)),
            domains.iter().filter_map(|domain| Some((of(domain), domain.debt_bytes?))),
        )?;
        page.gauge(
            (
                "nearside_domain_own",
                "Own memory by node, without files and kernel memory",
                Some(Unit::Bytes),
            ),
            domains.iter().flat_map(|domain| {
                domain.own_bytes.iter().map(|(&node, &bytes)| (on_node(domain, node), bytes))
            }),
        )?;
        page.gauge(
            (
                "nearside_domain_claimed",
                "Memory reserved for the domain by node",
                Some(Unit::Bytes),
            ),
            domains.iter().flat_map(|domain| {
                let claimed = domain.claim.iter().flat_map(|claim| &claim.bytes);
                claimed.map(|(&node, &bytes)| (on_node(domain, node), bytes))
            }),
        )?;
        let known = |domain: &Domain| {
            let parts = self.snapshot.history.parts.range(PartId::of(&domain.name)..);
            let own = parts.take_while(|(part, _)| part.domain() == domain.name);
            let own: Vec<_> = own.map(|(_, known)| known).collect();
            (!own.is_empty()).then_some(own)
        };
        page.gauge(
            (
                "nearside_domain_demand_vcpus",
                "CPUs that the domain uses or waits for, smoothed",
                None,
            ),
            domains.iter().filter_map(|domain| {
                let milli_vcpus: u64 = known(domain)?.iter().map(|part| part.demand.0).sum();
                Some((of(domain), milli_vcpus as f64 / 1000.0))
            }),
        )?;
        page.gauge(
            (
                "nearside_domain_contention_intervals",
                "Intervals of contention in a row: off its home, or waiting for CPUs",
                None,
            ),
            domains.iter().filter_map(|domain| {
                let parts = known(domain)?;
                let contended = parts.iter().map(|part| part.contention_intervals).max();
                Some((of(domain), contended?))
            }),
        )?;
        let nothing = DomainTotals::default();
        let totals =
            |domain: &Domain| self.snapshot.totals.domains.get(&domain.name).unwrap_or(&nothing);
        page.counter(
            ("nearside_domain_homes", "Homes that the control loop gave to the domain", None),
            domains.iter().map(|domain| (of(domain), totals(domain).homes)),
        )?;
        page.counter(
            ("nearside_domain_moved", "Memory of the domain that moved", Some(Unit::Bytes)),
            domains.iter().map(|domain| (of(domain), totals(domain).moved_bytes)),
        )?;
        page.counter(
            ("nearside_domain_stayed", "Memory that failed to move, by reason", Some(Unit::Bytes)),
            domains.iter().flat_map(|domain| {
                let stayed = totals(domain).stayed_bytes.iter();
                stayed.map(|(why, &bytes)| {
                    ([("domain", domain.name.clone()), ("reason", why.words().to_owned())], bytes)
                })
            }),
        )?;
        page.counter(
            (
                "nearside_domain_oom_kills",
                "Processes of the domain that the kernel killed for lack of memory",
                None,
            ),
            domains.iter().filter_map(|domain| Some((of(domain), domain.oom_kills?))),
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

/// Prometheus uses the singular.
fn ratio() -> Unit {
    Unit::Other("ratio".into())
}

fn parts(ppm: u64) -> f64 {
    ppm as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::{
        exposition::Exposition,
        snapshot::{Seen, SeenDomain, examples},
    };
    use std::collections::BTreeSet;

    fn open_metrics() -> String {
        page(Arc::new(examples::snapshot()), 2).unwrap()
    }

    #[test]
    fn domains_and_nodes_have_their_figures() {
        let open_metrics = open_metrics();
        let text = Exposition::Text.encode(open_metrics.clone());
        for expected in [
            r#"nearside_intervals_total 17"#,
            r#"nearside_scheduler_attached 1"#,
            r#"nearside_numa_balancing 1"#,
            r#"nearside_audit_lost_total 2"#,
            r#"nearside_text_moved_bytes_total 1048576"#,
            r#"nearside_text_copies_bytes 4194304"#,
            r#"# HELP node_memory_numa_MemTotal Memory information field MemTotal, in bytes"#,
            r#"# TYPE node_memory_numa_MemTotal gauge"#,
            r#"node_memory_numa_MemTotal{node="0"} 2147483648"#,
            r#"node_memory_numa_MemFree{node="1"} 943718400"#,
            r#"node_memory_numa_numa_hit_total{node="0"} 1600"#,
            r#"nearside_domain_local_share_ratio{domain="db"} 1.0"#,
            r#"nearside_domain_debt_bytes{domain="web-frontend"} 67108864"#,
            r#"nearside_domain_home{domain="web-frontend",node="2"} 1"#,
            r#"nearside_domain_own_bytes{domain="db",node="1"} 522190848"#,
            r#"nearside_domain_moved_bytes_total{domain="web-frontend"} 4096"#,
            r#"nearside_domain_stayed_bytes_total{domain="web-frontend",reason="busy"} 8192"#,
            r#"nearside_domain_refusals_total{domain="web-frontend"} 1"#,
            r#"nearside_domain_refusals_total{domain="db"} 0"#,
            r#"nearside_domain_oom_kills_total{domain="db"} 0"#,
        ] {
            for page in [&open_metrics, &text] {
                assert!(page.lines().any(|line| line == expected), "{expected}\n{page}");
            }
        }
        let counter = "# TYPE nearside_domain_moved_bytes";
        assert!(open_metrics.contains(&format!("{counter} counter\n")), "{open_metrics}");
        assert!(text.contains(&format!("{counter}_total counter\n")), "{text}");
    }

    #[test]
    fn open_metrics_has_help_and_type_of_each_metric_and_units_in_names() {
        let page = open_metrics();
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
        assert!(helped > 20 && page.ends_with("# EOF\n"));
    }

    /// The rules of text format 0.0.4 that promtool checks.
    #[test]
    fn the_text_format_has_help_and_type_right_before_the_samples_of_their_name() {
        let page = Exposition::Text.encode(open_metrics());
        let (mut name, mut kind) = ("", "");
        let (mut names, mut samples) = (BTreeSet::new(), BTreeSet::new());
        let mut lines = page.lines();
        while let Some(line) = lines.next() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (metric, text) = help.split_once(' ').unwrap();
                assert!(!text.is_empty() && !text.contains('\\'), "{line}");
                assert!(names.insert(metric), "{metric} occurs twice");
                let next = lines.next().unwrap();
                kind = next
                    .strip_prefix(&format!("# TYPE {metric} "))
                    .unwrap_or_else(|| panic!("{next}"));
                assert_eq!(kind == "counter", metric.ends_with("_total"), "{next}");
                name = metric;
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(matches!(kind, "gauge" | "counter"), "{line}");
            assert_eq!(series.split('{').next(), Some(name), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(samples.insert(series), "{series} occurs twice");
        }
        assert!(names.len() > 20 && page.ends_with('\n'));
    }

    #[test]
    fn label_values_are_escaped() {
        let cgroup = "/machine.slice/a\"b\\x2d\n.scope";
        let found = SeenDomain { cgroup: cgroup.into(), ..SeenDomain::default() };
        let snapshot = Snapshot::new(Seen { domains: vec![found], ..Seen::default() });
        let page = page(Arc::new(snapshot), 0).unwrap();
        for page in
            [Exposition::Text, Exposition::OpenMetrics].map(|form| form.encode(page.clone()))
        {
            let sample = r#"refusals_total{domain="/machine.slice/a\"b\\x2d\n.scope"} 0"#;
            assert!(page.contains(sample), "{page}");
        }
    }
}
