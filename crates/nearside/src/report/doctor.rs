//! `nearside doctor`: the consequences of the facts of a host, and advice.

mod finding;
mod findings;

use super::table::wrapped_to;
use crate::commands::replicate::wide::Seen;
use anstyle::AnsiColor;
use finding::{Finding, State};
use nearside_linux::facts::Facts;
use serde::Serialize;

/// The output of `nearside doctor`.
#[derive(Debug, Serialize)]
pub(crate) struct Doctor {
    /// Whether this user can start domains here.
    pub(crate) can_run: bool,
    /// In the order for reading.
    pub(crate) findings: Vec<Finding>,
    /// The facts behind the findings.
    pub(crate) facts: Facts,
}

impl Doctor {
    pub(crate) fn new(facts: Facts, copies: &Seen) -> Self {
        let findings = findings::findings(&facts, copies);
        Self { can_run: findings.iter().all(|finding| !finding.stops_run), findings, facts }
    }
}

/// The width of this report in columns.
const WIDTH: usize = 80;

/// A line for each finding, with its consequence and advice below it.
pub(crate) fn text(doctor: &Doctor) -> String {
    let topic_width = doctor.findings.iter().map(|finding| finding.topic.len()).max().unwrap_or(0);
    let (indent, below) = (9 + topic_width + 2, 9);
    let paragraph = |text: &str, indent| {
        wrapped_to(WIDTH, &text.split_whitespace().map(str::to_owned).collect::<Vec<_>>(), indent)
    };
    let mut text = String::new();
    for finding in &doctor.findings {
        let (word, colour) = match finding.state {
            State::Ok => ("ok", AnsiColor::Green),
            State::Limited => ("limited", AnsiColor::Yellow),
            State::Missing => ("missing", AnsiColor::Red),
        };
        let style = colour.on_default();
        let found = paragraph(&finding.found, indent);
        text += &format!("{style}{word:<9}{style:#}{:<topic_width$}  {found}\n", finding.topic);
        for (label, part) in [("so:", &finding.follows), ("do:", &finding.advice)] {
            if let Some(part) = part {
                text += &format!("{:below$}{label} {}\n", "", paragraph(part, below + 4));
            }
        }
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        commands::replicate::wide::{Trouble, Wide},
        report::domain::examples::left_out,
    };
    use nearside_linux::{
        facts::{BlockingFile, Cgroups, Privileges, SchedExt},
        store::Blocks,
    };
    use nearside_policy::MemoryPolicy;
    use nearside_replicas::original::Place;
    use nearside_topology::{HugePagePool, MemoryTier, MemoryTiers, NodeId, NodeSet};

    fn nodes(nodes: u32) -> NodeSet {
        (0..nodes).map(NodeId).collect()
    }

    /// Tiers of so many nodes each.
    fn tiers(sizes: &[u32], demotion: bool) -> MemoryTiers {
        let tier = |(number, &size): (u32, &u32)| MemoryTier {
            number,
            nodes: (0..size).map(|node| NodeId(10 * number + node)).collect(),
        };
        let tiers = (0..).zip(sizes).map(tier).collect();
        MemoryTiers { tiers, demotion_enabled: Some(demotion) }
    }

    /// A host without any problem.
    pub(crate) fn host() -> Facts {
        let controllers = ["cpuset", "cpu", "memory", "hugetlb", "io"].map(str::to_owned);
        Facts {
            kernel_release: Some("7.3.4+deb14-amd64".into()),
            nodes: nodes(4),
            memory_nodes: nodes(4),
            policies: Some(MemoryPolicy::ALL.into()),
            has_numa_maps: true,
            numa_balancing: Some(0),
            zone_reclaim_mode: Some(0),
            numa_stat: Some(1),
            cgroups: Cgroups {
                v2: Some("/sys/fs/cgroup".into()),
                v2_controllers: controllers.into(),
                v2_writable: true,
                own_group: Some("/user.slice".into()),
                own_group_writable: true,
                ..Cgroups::default()
            },
            systemd: true,
            system_bus: true,
            sched_ext: SchedExt {
                state: Some("disabled".into()),
                loaded: None,
                has_btf: true,
                has_wake_sync: true,
            },
            huge_pages: vec![(
                NodeId(0),
                HugePagePool {
                    page_bytes: 2 << 20,
                    total_pages: 16,
                    free_pages: 12,
                    surplus_pages: 0,
                },
            )],
            transparent_huge_pages: Some("madvise".into()),
            has_pressure: true,
            privileges: Privileges { euid: Some(0), capabilities: u64::MAX },
            state_writable: true,
            ..Facts::default()
        }
    }

    fn blocking(blocks: Blocks) -> BlockingFile {
        BlockingFile { why: "a.json: cannot read the record".into(), blocks }
    }

    fn plain(facts: Facts) -> String {
        anstream::adapter::strip_str(&text(&Doctor::new(facts, &Seen::default()))).to_string()
    }

    #[test]
    fn perfect_host_has_only_ok_findings() {
        let doctor = Doctor::new(host(), &Seen::default());
        assert!(doctor.can_run && doctor.findings.iter().all(|finding| finding.state == State::Ok));
        insta::assert_snapshot!("doctor_well", plain(host()));
    }

    #[test]
    fn old_hybrid_host_as_an_ordinary_user() {
        let v1 = ["cpu", "cpuset", "memory"].map(str::to_owned);
        let facts = Facts {
            kernel_release: Some("5.10.0-33-amd64".into()),
            boot_options: vec!["isolcpus=2-3".into()],
            policies: Some(vec![
                MemoryPolicy::Preferred,
                MemoryPolicy::Strict,
                MemoryPolicy::Interleave,
            ]),
            numa_balancing: Some(1),
            zone_reclaim_mode: Some(1),
            numa_stat: Some(0),
            cgroups: Cgroups {
                v2: Some("/sys/fs/cgroup/unified".into()),
                v1_controllers: v1.into(),
                own_group: Some("/user.slice/session-1.scope".into()),
                own_group_writable: true,
                partitions: vec![("/vip".into(), "isolated".into())],
                ..Cgroups::default()
            },
            systemd: false,
            sched_ext: SchedExt::default(),
            isolated_cpus: Some("2-3".into()),
            huge_pages: Vec::new(),
            swap_total_bytes: Some(1 << 30),
            has_pressure: false,
            lockdown: Some("confidentiality".into()),
            privileges: Privileges { euid: Some(1000), capabilities: 0 },
            state_writable: false,
            ..host()
        };
        let doctor = Doctor::new(facts.clone(), &Seen::default());
        assert!(!doctor.can_run);
        ok_findings_have_no_advice(&doctor);
        insta::assert_snapshot!("doctor_ill", plain(facts));
    }

    fn ok_findings_have_no_advice(doctor: &Doctor) {
        for finding in doctor.findings.iter().filter(|finding| finding.state == State::Ok) {
            assert_eq!(finding.advice, None, "{finding:?}");
        }
    }

    /// One change to a perfect host, and the state of one finding after it.
    #[test]
    fn each_fact_changes_its_own_finding() {
        type Case = (&'static str, fn(&mut Facts), State, bool);
        let cases: [Case; 30] = [
            ("NUMA nodes", |facts| facts.nodes = nodes(1), State::Ok, true),
            ("NUMA nodes", |facts| facts.nodes = nodes(0), State::Missing, false),
            ("memory tiers", |facts| facts.memory_tiers = tiers(&[3], true), State::Ok, true),
            ("memory tiers", |facts| facts.memory_tiers = tiers(&[3, 1], false), State::Ok, true),
            (
                "memory tiers",
                |facts| facts.memory_tiers = tiers(&[3, 1], true),
                State::Limited,
                true,
            ),
            ("memory policies", |facts| facts.policies = Some(Vec::new()), State::Missing, true),
            ("cgroup layout", |facts| facts.cgroups.v2 = None, State::Missing, false),
            ("cgroup layout", |facts| facts.cgroups.v2_controllers.clear(), State::Limited, true),
            ("cgroup layout", |facts| facts.cgroups.v2_blocked = true, State::Limited, true),
            ("cgroup owner", |facts| facts.system_bus = false, State::Missing, false),
            ("cgroup owner", |facts| facts.privileges.euid = Some(1000), State::Missing, false),
            ("records", |facts| facts.state_writable = false, State::Missing, false),
            (
                "records",
                |facts| facts.state_refused = Some("owned by user 1000".into()),
                State::Missing,
                false,
            ),
            (
                "records",
                |facts| facts.state_unreadable = vec![blocking(Blocks::EveryChange)],
                State::Missing,
                false,
            ),
            (
                "records",
                |facts| {
                    let all = [Blocks::EveryClaim, Blocks::ItsSubject];
                    facts.state_unreadable = all.map(blocking).into();
                },
                State::Missing,
                false,
            ),
            (
                "records",
                |facts| facts.state_unreadable = vec![blocking(Blocks::ItsSubject)],
                State::Limited,
                true,
            ),
            ("privileges", |facts| facts.privileges.capabilities = 1 << 23, State::Limited, true),
            ("sched_ext", |facts| facts.isolated_cpus = Some("1".into()), State::Missing, true),
            (
                "sched_ext",
                |facts| facts.sched_ext.loaded = Some("scx_rusty".into()),
                State::Limited,
                true,
            ),
            (
                "sched_ext",
                |facts| facts.kernel_release = Some("6.12.1".into()),
                State::Limited,
                true,
            ),
            ("sched_ext", |facts| facts.sched_ext.has_btf = false, State::Limited, true),
            ("sched_ext", |facts| facts.sched_ext.has_wake_sync = false, State::Limited, true),
            ("for domains", |facts| facts.left_out = left_out(), State::Limited, true),
            // Isolated CPUs have a finding of their own.
            (
                "for domains",
                |facts| facts.left_out.isolated_cpus = left_out().isolated_cpus,
                State::Ok,
                true,
            ),
            ("NUMA balancing", |facts| facts.numa_balancing = Some(1), State::Limited, true),
            (
                "NUMA balancing",
                |facts| (facts.numa_balancing, facts.nodes) = (Some(1), nodes(1)),
                State::Ok,
                true,
            ),
            ("huge pages", |facts| facts.huge_pages.clear(), State::Ok, true),
            (
                "program text",
                |facts| facts.wide_domains = vec!["db".into(), "web".into()],
                State::Ok,
                true,
            ),
            ("kernel", |facts| facts.kernel_release = Some("weird".into()), State::Limited, true),
            ("lockdown", |facts| facts.lockdown = Some("integrity".into()), State::Ok, true),
        ];
        for (topic, change, state, can_run) in cases {
            let mut facts = host();
            change(&mut facts);
            let doctor = Doctor::new(facts, &Seen::default());
            ok_findings_have_no_advice(&doctor);
            let found = doctor.findings.iter().find(|finding| finding.topic == topic).unwrap();
            assert_eq!((found.state, doctor.can_run), (state, can_run), "{found:?}");
        }
    }

    #[test]
    fn a_process_with_threads_on_several_nodes_is_named() {
        let wide = Wide { process: 47, nodes: vec![NodeId(0), NodeId(2)], others: 1 };
        let place = |path: &str| Place { image: None, path: path.into() };
        let wide = [(place("/a.so"), wide.clone()), (place("/b.so"), wide)].into();
        let doctor = Doctor::new(host(), &Seen { wide, trouble: None });
        ok_findings_have_no_advice(&doctor);
        let found = doctor.findings.iter().find(|it| it.topic == "program text").unwrap();
        assert_eq!(
            found.found,
            "every home is one node; /a.so: process 47 on nodes 0,2 and another one like it, and \
             1 more file"
        );
        assert_eq!(found.follows.as_deref(), Some(nearside_policy::text::WIDE));
    }

    #[test]
    fn a_replicator_that_was_killed_or_hangs_limits_the_text_of_its_domains() {
        for (trouble, words) in [(Trouble::Killed, "was killed"), (Trouble::Silent, "not answer")] {
            let copies = Seen { wide: [].into(), trouble: Some(trouble) };
            let doctor = Doctor::new(host(), &copies);
            ok_findings_have_no_advice(&doctor);
            let found = doctor.findings.iter().find(|it| it.topic == "program text").unwrap();
            assert_eq!(found.state, State::Limited);
            assert!(found.found.ends_with(words), "{found:?}");
        }
    }

    #[test]
    fn a_host_without_a_replicator_is_told_where_copies_could_be_of_use() {
        let found = |nodes: &str| {
            let copies = Seen { wide: [].into(), trouble: Some(Trouble::Absent) };
            let facts = Facts { memory_nodes: nodes.parse().unwrap(), ..host() };
            let doctor = Doctor::new(facts, &copies);
            ok_findings_have_no_advice(&doctor);
            let mut findings = doctor.findings.into_iter();
            findings.find(|it| it.topic == "program text").unwrap()
        };
        let two = found("0-1");
        assert_eq!(two.found, "every home is one node; no replicator runs");
        assert!(two.follows.unwrap().starts_with("text that several homes execute lies on one"));
        assert_eq!(found("0").found, "every home is one node");
    }

    #[test]
    fn container_that_forbids_policies_is_named_instead_of_the_kernel() {
        let told = |forbidden| {
            let facts =
                Facts { policies: Some(Vec::new()), policies_forbidden: forbidden, ..host() };
            let finding = Doctor::new(facts, &Seen::default())
                .findings
                .into_iter()
                .find(|finding| finding.topic == "memory policies");
            let finding = finding.unwrap();
            (finding.found, finding.advice.unwrap())
        };
        let (found, advice) = told(true);
        assert!(found.contains("seccomp") && advice.contains("CAP_SYS_NICE"), "{found}: {advice}");
        let (found, advice) = told(false);
        assert!(
            found.contains("kernel has none") && !advice.contains("CAP_SYS_NICE"),
            "{found}: {advice}"
        );
    }

    #[test]
    fn host_without_readable_facts_has_findings() {
        let doctor = Doctor::new(Facts::default(), &Seen::default());
        assert!(!doctor.can_run);
        ok_findings_have_no_advice(&doctor);
        assert!(
            text(&doctor)
                .lines()
                .all(|line| anstream::adapter::strip_str(line).to_string().len() <= WIDTH)
        );
    }
}
