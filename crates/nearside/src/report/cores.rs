//! Groups of CPUs that share a node, a package and a last-level cache, and their cores.

use nearside_topology::{Cpu, CpuId, CpuSet, NodeId, Topology};
use std::collections::BTreeMap;

/// Online CPUs with the same node, package and last-level cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CpuGroup {
    pub(crate) node: Option<NodeId>,
    pub(crate) package: Option<u32>,
    /// The lowest CPU that shares the cache.
    pub(crate) last_level_cache: Option<CpuId>,
    pub(crate) cpus: CpuSet,
    /// The SMT siblings of each core, by rising lowest CPU.
    pub(crate) cores: Vec<CpuSet>,
}

/// The groups of a machine, by node, package and cache.
pub(crate) fn groups(topology: &Topology) -> Vec<CpuGroup> {
    let mut groups: BTreeMap<_, BTreeMap<CpuId, CpuSet>> = BTreeMap::new();
    for cpu in topology.cpus.iter().filter(|cpu| cpu.online) {
        let &Cpu { id, node, package, core, last_level_cache, .. } = cpu;
        // CPUs without a node come last.
        let key = (node.is_none(), node, package, last_level_cache);
        groups.entry(key).or_default().entry(core).or_default().insert(id);
    }
    let group =
        |((_, node, package, last_level_cache), cores): (_, BTreeMap<CpuId, CpuSet>)| CpuGroup {
            node,
            package,
            last_level_cache,
            cpus: cores.values().flat_map(CpuSet::iter).collect(),
            cores: cores.into_values().collect(),
        };
    groups.into_iter().map(group).collect()
}

/// The cores in short form: siblings joined by `+`, or by `-` if three or more are consecutive, and
/// a regular run of cores by its first and last (`0+8 .. 7+15`, `0-7 .. 24-31`).
pub(crate) fn cores_in_short(cores: &[CpuSet]) -> Vec<String> {
    let members: Vec<Vec<u32>> =
        cores.iter().map(|core| core.iter().map(|cpu| cpu.0).collect()).collect();
    let name = |core: &Vec<u32>| match core.as_slice() {
        [first, _, .., last] if (last - first) as usize == core.len() - 1 => {
            format!("{first}-{last}")
        }
        siblings => siblings.iter().map(u32::to_string).collect::<Vec<_>>().join("+"),
    };
    let mut words = Vec::new();
    let mut rest = members.as_slice();
    while let [first, others @ ..] = rest {
        let step = others.first().and_then(|second| stride(first, second));
        let more = rest
            .windows(2)
            .take_while(|pair| step.is_some() && stride(&pair[0], &pair[1]) == step)
            .count();
        let run = &rest[..=more];
        match (run, run.last()) {
            ([_, _, _, ..], Some(last)) => words.push(format!("{} .. {}", name(first), name(last))),
            _ => words.extend(run.iter().map(name)),
        }
        rest = &rest[run.len()..];
    }
    words
}

/// The difference between every sibling's number and its number in the next core, if it is the same
/// for all.
fn stride(core: &[u32], next: &[u32]) -> Option<u32> {
    let step = next.first()?.checked_sub(*core.first()?)?;
    let even = core.len() == next.len()
        && core.iter().zip(next).all(|(a, b)| a.checked_add(step) == Some(*b));
    even.then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(cores: &[&[u32]]) -> String {
        let cores: Vec<CpuSet> =
            cores.iter().map(|core| core.iter().copied().map(CpuId).collect()).collect();
        cores_in_short(&cores).join(" ")
    }

    #[test]
    fn regular_runs_of_cores_are_shown_by_first_and_last() {
        assert_eq!(short(&[&[0, 4], &[1, 5], &[2, 6], &[3, 7]]), "0+4 .. 3+7");
        assert_eq!(short(&[&[0, 1], &[2, 3], &[4, 5]]), "0+1 .. 4+5");
        assert_eq!(short(&[&[0], &[1]]), "0 1");
        assert_eq!(short(&[&[0, 1], &[2, 3], &[4], &[5], &[6], &[9]]), "0+1 2+3 4 .. 6 9");
        assert_eq!(short(&[&[0, 1, 2, 3], &[4, 5, 6, 7]]), "0-3 4-7");
        assert_eq!(short(&[&[0, 2, 4]]), "0+2+4");
        assert_eq!(short(&[]), "");
    }
}
