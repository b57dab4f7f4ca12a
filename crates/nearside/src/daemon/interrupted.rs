//! Moves of `nearside set --move-memory` that were interrupted: the daemon brings the rest home as
//! debt, and then their destination leaves the record.

use nearside_linux::store::{Part, Record};
use nearside_policy::{ControlObservation, History, PartId};

/// The domains whose interrupted moves are over, as the last interval has seen them.
pub(super) fn over<'a>(
    records: impl Iterator<Item = &'a Record>,
    seen: &ControlObservation,
    history: &History,
) -> Vec<String> {
    // The debt of a part that was not sampled may be that of a former home.
    let debt_bytes = |id: &PartId| {
        let is_sampled = seen.loads.contains_key(id);
        let known = history.parts.get(id).filter(|_| is_sampled);
        known.map(|known| known.status.debt_bytes)
    };
    let is_interrupted = |part: &&Part| part.moving_to.is_some() && part.mover.is_none();
    let is_over = |record: &Record| {
        let mut moves = record.parts().filter(is_interrupted).peekable();
        moves.peek().is_some()
            && moves.all(|part| has_arrived(part, debt_bytes(&record.id_of(part))))
    };
    records.filter(|record| is_over(record)).map(|record| record.name.clone()).collect()
}

/// Whether nothing is left to move, as far as it is known.
fn has_arrived(part: &Part, debt_bytes: Option<u64>) -> bool {
    let home = &part.home.nodes;
    let is_confined = part.memory_nodes.as_ref().is_some_and(|nodes| nodes.is_subset(home));
    is_confined || debt_bytes == Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearside_linux::store::{Mover, Parts};
    use nearside_policy::{
        Affinity, Home, Limits, MemoryPolicy, Origin, PartHistory, PartLoad, Status,
    };
    use nearside_topology::{NodeId, NodeSet};

    #[test]
    fn a_move_is_over_once_no_debt_is_left_or_memory_is_confined() {
        let nodes = |nodes: &[u32]| nodes.iter().map(|&node| NodeId(node)).collect::<NodeSet>();
        let home = Home {
            nodes: nodes(&[2]),
            origin: Origin::Explicit,
            affinity: Affinity::Soft,
            policy: MemoryPolicy::Strict,
        };
        let interrupted = Part { moving_to: Some(nodes(&[2])), ..Part::at(home.clone()) };
        let mover = Some(Mover { pid: 731, start_time_ticks: 5, rate_bytes_per_s: None });
        let confined = Part { memory_nodes: Some(nodes(&[2])), ..interrupted.clone() };
        let wide = Part { memory_nodes: Some(nodes(&[1, 2])), ..interrupted.clone() };
        // The part, its debt, whether it was sampled, and whether its move is over.
        for (part, debt_bytes, is_sampled, expected) in [
            (&interrupted, 0, true, true),
            (&interrupted, 4096, true, false),
            (&interrupted, 0, false, false),
            (&wide, 4096, true, false),
            (&wide, 0, true, true),
            (&confined, 4096, false, true),
            (&Part { mover, ..confined.clone() }, 0, true, false),
            (&Part::at(home.clone()), 0, true, false),
        ] {
            let record = Record {
                name: "db".into(),
                boot_id: "b".into(),
                cgroup: "/nearside/db".into(),
                inode: 7,
                started_unix_s: 0,
                found_by: None,
                command: Vec::new(),
                limits: Limits::default(),
                parts: Parts::from(part.clone()),
            };
            let status = Status { debt_bytes, ..Status::default() };
            let known = PartHistory { status, ..PartHistory::default() };
            let history = History { parts: [("db".into(), known)].into(), ..History::default() };
            let mut seen = ControlObservation::default();
            if is_sampled {
                seen.loads.insert("db".into(), PartLoad::default());
            }
            let names = over([record].iter(), &seen, &history);
            let is_over = !names.is_empty();
            assert_eq!(is_over, expected, "{part:?} {debt_bytes} {is_sampled}");
        }
    }
}
