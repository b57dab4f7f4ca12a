//! Rules for every machine and every load.

use crate::machine::{Machine, Work};
use nearside_credit::{self as credit, ONE};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// A machine and its load; all numbers are taken modulo what exists.
#[derive(Debug, Clone)]
struct Scene {
    distances: Vec<Vec<u32>>,
    caches_a_node: usize,
    cores_a_cache: usize,
    threads_a_core: usize,
    tick_ns: u64,
    groups: Vec<Party>,
    tasks: Vec<Member>,
}

#[derive(Debug, Clone)]
struct Party {
    weight: u64,
    /// It is nested in one of the parties before it.
    within: Option<usize>,
    /// Quota and period.
    cap: Option<(u64, u64)>,
}

#[derive(Debug, Clone)]
struct Member {
    group: usize,
    home: usize,
    affine: u64,
    allowed: Allowed,
    work: Work,
}

#[derive(Debug, Clone, Copy)]
enum Allowed {
    Everything,
    One(usize),
    Some(u64),
}

impl Scene {
    fn cpus(&self) -> usize {
        self.distances.len() * self.caches_a_node * self.cores_a_cache * self.threads_a_core
    }

    fn machine(&self) -> Machine {
        let mut machine = Machine::shaped(
            &self.distances,
            self.caches_a_node,
            self.cores_a_cache,
            self.threads_a_core,
        );
        machine.tick_ns = self.tick_ns;
        for (at, party) in self.groups.iter().enumerate() {
            let group = machine.group(party.weight, &[], Work::Burns);
            machine.parents[group] = party.within.filter(|_| at > 0).map(|within| within % at);
            if let Some((quota_ns, period_ns)) = party.cap {
                machine.cap(group, quota_ns, period_ns);
            }
        }
        let (nodes, cpus) = (self.distances.len(), self.cpus());
        for member in &self.tasks {
            let home = member.home % nodes;
            // Homes are affine where anything is.
            let affine = member.affine & (u64::MAX >> (64 - nodes));
            let affine = if affine == 0 { 0 } else { affine | 1 << home };
            let everything = u64::MAX >> (64 - cpus);
            let allowed = match member.allowed {
                Allowed::Everything => everything,
                Allowed::One(cpu) => 1 << (cpu % cpus),
                Allowed::Some(set) if set & everything == 0 => everything,
                Allowed::Some(set) => set & everything,
            };
            machine.task(member.group % self.groups.len(), home, affine, allowed, member.work);
        }
        machine
    }
}

fn machines() -> impl Strategy<Value = (Vec<Vec<u32>>, usize, usize, usize)> {
    let distances = (1..=4_usize).prop_flat_map(|nodes| {
        prop::collection::vec(prop::collection::vec(11..=40_u32, nodes), nodes).prop_map(
            |mut rows| {
                rows.iter_mut().enumerate().for_each(|(node, row)| row[node] = 10);
                rows
            },
        )
    });
    (distances, 1..=2_usize, 1..=2_usize, 1..=2_usize)
}

fn works() -> impl Strategy<Value = Work> {
    let naps =
        (1..=8 * MS, 1..=20 * MS).prop_map(|(burn_ns, sleep_ns)| Work::Naps(burn_ns, sleep_ns));
    prop_oneof![Just(Work::Burns), naps]
}

/// `cpu.weight` goes from 1 to 10,000, drawn by magnitude.
fn weights() -> impl Strategy<Value = u64> {
    prop_oneof![1..=10_u64, 10..=100_u64, 100..=1_000_u64, 1_000..=10_000_u64]
}

fn parties(capped: bool) -> impl Strategy<Value = Party> {
    let cap =
        (1..=300 * MS, 10..=100_u64).prop_map(|(quota_ns, period_ms)| (quota_ns, period_ms * MS));
    let cap = if capped { prop::option::of(cap).boxed() } else { Just(None).boxed() };
    (weights(), prop::option::of(any::<usize>()), cap).prop_map(|(weight, within, cap)| Party {
        weight,
        within,
        cap,
    })
}

fn members() -> impl Strategy<Value = Member> {
    let allowed = prop_oneof![
        2 => Just(Allowed::Everything),
        1 => any::<usize>().prop_map(Allowed::One),
        1 => any::<u64>().prop_map(Allowed::Some),
    ];
    (any::<usize>(), any::<usize>(), 0..16_u64, allowed, works()).prop_map(
        |(group, home, affine, allowed, work)| Member { group, home, affine, allowed, work },
    )
}

fn scenes(capped: bool) -> impl Strategy<Value = Scene> {
    (
        machines(),
        prop_oneof![Just(1), Just(4 * MS)],
        prop::collection::vec(parties(capped), 1..=6),
        prop::collection::vec(members(), 1..=40),
    )
        .prop_map(
            |(
                (distances, caches_a_node, cores_a_cache, threads_a_core),
                tick_ns,
                groups,
                tasks,
            )| Scene {
                distances,
                caches_a_node,
                cores_a_cache,
                threads_a_core,
                tick_ns,
                groups,
                tasks,
            },
        )
}

/// Tasks of a domain that others crowd out of the only CPU it may use: its own domain has plenty
/// elsewhere.
fn crowded_out(cpus: usize, weights: [u64; 2]) -> Machine {
    let mut machine = Machine::shaped(&[vec![10]], 1, cpus, 1);
    let [pinned, spread] = weights.map(|weight| machine.group(weight, &[], Work::Burns));
    for _ in 0..2 {
        machine.task(pinned, 0, 1, 1, Work::Burns);
    }
    for _ in 1..cpus {
        machine.task(spread, 0, 1, !1, Work::Burns);
    }
    machine.task(spread, 0, 1, 1, Work::Burns);
    machine
}

/// The longest wait of a task without a cap. It is placed at most `ahead_bound` ahead of now, and
/// tasks served before it are at most as far behind. Where half of the CPUs serve those, now
/// advances at half its speed, else faster. The fifth part is for the slices of the tasks before
/// it.
fn longest_wait_ns(machine: &Machine) -> u64 {
    5 * machine.params.ahead_bound_ns
}

#[test]
fn a_task_waits_a_bounded_time_for_a_cpu_that_its_domain_does_not_deserve() {
    for cpus in [2, 4, 8, 16, 64] {
        for weights in [[100, 100], [300, 100], [100, 300], [10_000, 1]] {
            let mut machine = crowded_out(cpus, weights);
            machine.run(20_000 * MS);
            let (got_ns, bound_ns) = (machine.longest_wait_ns(), longest_wait_ns(&machine));
            assert!(
                got_ns <= bound_ns,
                "{cpus} CPUs, weights {weights:?}: waited {} ms",
                got_ns / MS
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(256)
    })]

    /// One that leaves its CPU to go home waits there, while another CPU may be idle that its
    /// successor may not use. Without hard affinity there is no such CPU.
    #[test]
    fn no_cpu_idles_while_a_task_waits_that_may_use_it(scene in scenes(true)) {
        let mut machine = scene.machine();
        machine.run(500 * MS);
        let everywhere = |task: &Member| matches!(task.allowed, Allowed::Everything);
        let restricted = !scene.tasks.iter().all(everywhere);
        let excused_ns = if restricted { 500 * MS * scene.cpus() as u64 / 100 } else { 0 };
        prop_assert!(machine.wasted_ns <= excused_ns, "{} ns", machine.wasted_ns);
    }

    #[test]
    fn with_any_weight_and_affinity_a_task_waits_a_bounded_time(scene in scenes(false)) {
        let mut machine = scene.machine();
        machine.run(6000 * MS);
        let (got_ns, bound_ns) = (machine.longest_wait_ns(), longest_wait_ns(&machine));
        prop_assert!(got_ns <= bound_ns, "{} ms", got_ns / MS);
    }

    #[test]
    fn beside_any_sleepers_a_group_that_works_gets_nine_tenths_of_its_share(
        cpus in 1..=8_usize,
        weight in 50..=500_u64,
        sleepers in prop::collection::vec(
            (10..=500_u64, 1..=16_usize, 10_000..=10 * MS, 10_000..=20 * MS),
            1..=5,
        ),
    ) {
        let mut machine = Machine::shaped(&[vec![10]], 1, cpus, 1);
        let worker = machine.group(weight, &vec![0; cpus], Work::Burns);
        for &(weight, threads, burn_ns, sleep_ns) in &sleepers {
            machine.group(weight, &vec![0; threads], Work::Naps(burn_ns, sleep_ns));
        }
        machine.run(2000 * MS);
        let weights = weight + sleepers.iter().map(|sleeper| sleeper.0).sum::<u64>();
        let ideal = (2000 * MS * cpus as u64) as f64 * weight as f64 / weights as f64;
        let got = machine.used_ns(worker) as f64 / ideal;
        prop_assert!(got >= 0.9, "{got} of its share");
    }

    /// So a group that has one CPU, and takes no second one, gets all that it is entitled to.
    #[test]
    fn a_group_without_a_second_cpu_is_entitled_to_one_at_most(
        cpus in 1..=4096_u32,
        share in 0..=ONE,
    ) {
        let more_than_one = share * u64::from(cpus) > ONE;
        prop_assert_eq!(credit::spreads(&credit::Params::new(cpus), share), more_than_one);
    }

    #[test]
    fn a_nested_share_is_the_product_of_the_weights_among_their_siblings(
        levels in prop::collection::vec((weights(), 0..=20_000_u64), 1..=8),
    ) {
        let (mut share, mut exact) = (ONE, ONE as f64);
        for &(weight, siblings) in &levels {
            let above = share;
            share = credit::share(above, weight, weight + siblings);
            exact *= weight as f64 / (weight + siblings) as f64;
            prop_assert!((1..=above).contains(&share), "{share} of {above}");
        }
        // Each level rounds down by less than one, and no share is 0.
        let least = (exact - levels.len() as f64).max(1.0);
        let range = least..=exact.max(1.0) + 1e-6;
        prop_assert!(range.contains(&(share as f64)), "{share} instead of {exact}");
    }

    /// Two domains, and in the first one two more beside its own tasks.
    #[test]
    fn nested_domains_get_the_product_of_the_weights(
        outer in (100..=400_u64, 100..=400_u64),
        inner in (100..=400_u64, 100..=400_u64),
    ) {
        let mut machine = Machine::shaped(&[vec![10, 20], vec![20, 10]], 1, 2, 1);
        let homes: Vec<usize> = (0..8).map(|task| task % 2).collect();
        let groups = [outer.0, outer.1, inner.0, inner.1]
            .map(|weight| machine.group(weight, &homes, Work::Burns));
        machine.parents[groups[2]] = Some(groups[0]);
        machine.parents[groups[3]] = Some(groups[0]);
        machine.run(200 * MS);
        let before = groups.map(|group| machine.used_ns(group));
        machine.run(4000 * MS);
        let first = outer.0 as f64 / (outer.0 + outer.1) as f64;
        let within = (credit::WEIGHT + inner.0 + inner.1) as f64;
        let own = credit::WEIGHT as f64 / within;
        let nested = |weight: u64| first * weight as f64 / within;
        let shares = [first * own, 1.0 - first, nested(inner.0), nested(inner.1)];
        for (at, share) in shares.into_iter().enumerate() {
            let got_ns = (machine.used_ns(groups[at]) - before[at]) as f64;
            let ideal_ns = share * (16_000 * MS) as f64;
            // Each of its threads may be in the middle of a slice, at the beginning as at the end.
            let slices_ns = (homes.len() as u64 * machine.params.slice_ns) as f64;
            let excused_ns = 0.02 * ideal_ns + slices_ns;
            let off_ns = (got_ns - ideal_ns).abs();
            prop_assert!(off_ns < excused_ns, "group {at} got {got_ns} ns of {ideal_ns}");
        }
    }

    /// With any nesting: no more than a quota for each period that began, and the time until a tick
    /// of each task that had its slice by then.
    #[test]
    fn no_group_exceeds_its_cap_or_one_above(scene in scenes(true)) {
        let mut machine = scene.machine();
        machine.run(1000 * MS);
        for group in 0..scene.groups.len() {
            let Some((quota_ns, period_ns)) = scene.groups[group].cap else { continue };
            let late_ns = scene.tick_ns * scene.tasks.len() as u64;
            let most_ns = quota_ns * (1000 * MS / period_ns + 1) + late_ns;
            let got_ns = machine.used_below_ns(group);
            prop_assert!(got_ns <= most_ns, "group {group} used {got_ns} ns of {most_ns}");
        }
    }

    /// A cap of a child beyond its parent's has no effect. The narrowest cap is used up, except for
    /// remainders of each period that are too small for a slice.
    #[test]
    fn a_domain_gets_the_narrowest_cap_above_it(
        period_ms in 20..=100_u64,
        percents in prop::collection::vec(20..=300_u64, 1..=4),
    ) {
        let mut machine = Machine::shaped(&[vec![10]], 1, 4, 1);
        for (level, percent) in percents.iter().enumerate() {
            let innermost = level + 1 == percents.len();
            let group = machine.group(100, &vec![0; if innermost { 4 } else { 0 }], Work::Burns);
            machine.parents[group] = level.checked_sub(1);
            machine.cap(group, period_ms * MS * percent / 100, period_ms * MS);
        }
        machine.run(50 * period_ms * MS);
        let got_ns = machine.used_below_ns(0) as f64 / 50.0;
        let narrowest_ns = (period_ms * MS * percents.iter().min().unwrap_or(&0) / 100) as f64;
        let least_ns = (narrowest_ns - machine.params.slice_min_ns as f64) * 0.98;
        let range_ns = least_ns..=narrowest_ns;
        prop_assert!(range_ns.contains(&got_ns), "{got_ns} ns a period of {narrowest_ns}");
    }

    /// Against the rule as it is documented, CPU by CPU: home, other affine nodes nearest first,
    /// others nearest first; on a node its last cache first, and in a cache whole cores first.
    #[test]
    fn a_woken_task_takes_the_best_idle_cpu(
        shape in machines(),
        busy in any::<u64>(),
        allowed in any::<u64>(),
        home in any::<usize>(),
        affine in 0..16_u64,
    ) {
        let (distances, caches_a_node, cores_a_cache, threads_a_core) = shape;
        let mut machine = Machine::shaped(&distances, caches_a_node, cores_a_cache, threads_a_core);
        let nodes = distances.len();
        let cpus = nodes * caches_a_node * cores_a_cache * threads_a_core;
        let home = home % nodes;
        let affine = affine & (u64::MAX >> (64 - nodes)) | 1 << home;
        let burners = machine.group(100, &[], Work::Burns);
        for cpu in (0..cpus).filter(|cpu| busy & 1 << cpu != 0) {
            machine.task(burners, machine.node_of(cpu), 0, 1 << cpu, Work::Burns);
        }
        machine.run(MS / 10);
        let is_idle = |cpu: usize| busy & 1 << cpu == 0;
        let may_use = |cpu: usize| allowed & 1 << cpu != 0;
        let candidates: Vec<usize> =
            (0..cpus).filter(|&cpu| is_idle(cpu) && may_use(cpu)).collect();
        if candidates.is_empty() {
            return Ok(());
        }
        let group = machine.group(100, &[], Work::Burns);
        let task = machine.task(group, home, affine, allowed, Work::Burns);
        let is_affine = |cpu: usize| affine & 1 << machine.node_of(cpu) != 0;
        let affine_is_allowed = (0..cpus).any(|cpu| may_use(cpu) && is_affine(cpu));
        machine.run(MS / 10);
        let rank = |cpu: usize| {
            let (node, core) = (machine.node_of(cpu), cpu / threads_a_core * threads_a_core);
            let strange = affine_is_allowed && affine & 1 << node == 0;
            let half = !(core..core + threads_a_core).all(is_idle);
            (node != home && strange, if node == home { 0 } else { distances[home][node] }, half)
        };
        let chosen = machine.tasks[task].last_cpu;
        prop_assert!(candidates.contains(&chosen));
        let (strange, distance, half) = rank(chosen);
        for cpu in candidates {
            let (other_strange, other_distance, other_half) = rank(cpu);
            let (this, other) = ((strange, distance), (other_strange, other_distance));
            prop_assert!(this <= other, "{cpu} is nearer than {chosen}");
            if machine.queue_of(cpu) == machine.queue_of(chosen) {
                prop_assert!(half <= other_half, "{cpu} is a whole core, {chosen} is not");
            }
        }
    }
}
