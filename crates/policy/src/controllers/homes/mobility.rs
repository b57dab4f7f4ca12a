//! Whether the CPUs of a part may be bound, and whether its home may change.

use super::{cooldown::must_stay, tuning::Tuning};
use crate::{Affinity, Home, HomeBlocker, LastMove, MilliVcpus, Origin, Owner, PartLoad};

/// The owner of a part's cgroup. Without a load nothing is known of it.
pub(super) fn owner_of(load: Option<&PartLoad>) -> Owner {
    load.map_or(Owner::Foreign, |load| load.owner)
}

/// Whether the CPUs of a part may be bound. A cell of a guest is bound by thread, which more owners
/// allow.
pub(super) fn may_bind(load: Option<&PartLoad>, is_cell: bool) -> Result<(), HomeBlocker> {
    let owner = owner_of(load);
    let lets_bind = if is_cell { owner.lets_bind_cells() } else { owner.lets_bind() };
    match load {
        _ if !lets_bind => Err(HomeBlocker::OwnerForbids { owner }),
        Some(load) if load.has_cells => Err(HomeBlocker::HasCells),
        Some(load) if load.has_cpuset => Err(HomeBlocker::HasCpuset),
        _ => Ok(()),
    }
}

/// A part that has a home.
#[derive(Debug)]
pub(super) struct Resident<'a> {
    pub(super) home: &'a Home,
    /// Whether another program binds it to some of the nodes.
    pub(super) is_bound: bool,
    /// Whether its CPUs may be bound.
    pub(super) may_bind: Result<(), HomeBlocker>,
    pub(super) moved: Option<LastMove>,
    /// The load on its home now.
    pub(super) load_now: MilliVcpus,
}

/// Whether the home of a part may change in interval `now`. Without soft affinity every home is a
/// binding.
pub(super) fn may_move(
    tuning: &Tuning,
    part: &Resident<'_>,
    soft_affinity: bool,
    now: u64,
) -> Result<(), HomeBlocker> {
    let Resident { home, load_now, .. } = *part;
    match home.origin {
        Origin::Explicit => return Err(HomeBlocker::Explicit),
        Origin::Adopted => return Err(HomeBlocker::Bound),
        Origin::Auto if part.is_bound => return Err(HomeBlocker::Bound),
        Origin::Auto => {}
    }
    if home.policy.confines() || home.affinity == Affinity::Hard || !soft_affinity {
        part.may_bind.clone()?;
    }
    match part.moved {
        Some(last) if must_stay(tuning, last, now, load_now) => {
            Err(HomeBlocker::Cooldown { at: last.at, load_then: last.load, load_now })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryPolicy;
    use nearside_topology::NodeId;

    #[test]
    fn owners_cells_and_cpusets_decide_about_a_binding() {
        let load = |owner| PartLoad { owner, ..PartLoad::default() };
        let forbidden = |owner| Err(HomeBlocker::OwnerForbids { owner });
        // The load, and the answers for a whole part and for a cell.
        let table = [
            (None, forbidden(Owner::Foreign), Ok(())),
            (Some(load(Owner::Nearside)), Ok(()), Ok(())),
            (Some(load(Owner::Systemd)), Ok(()), Ok(())),
            (Some(load(Owner::Libvirt)), Ok(()), Ok(())),
            (Some(load(Owner::SystemdUnit)), forbidden(Owner::SystemdUnit), Ok(())),
            (Some(load(Owner::Kubelet)), forbidden(Owner::Kubelet), forbidden(Owner::Kubelet)),
            (
                Some(PartLoad { has_cells: true, has_cpuset: true, ..load(Owner::Nearside) }),
                Err(HomeBlocker::HasCells),
                Err(HomeBlocker::HasCells),
            ),
            (
                Some(PartLoad { has_cpuset: true, ..load(Owner::Nearside) }),
                Err(HomeBlocker::HasCpuset),
                Err(HomeBlocker::HasCpuset),
            ),
        ];
        for (load, whole, cell) in table {
            let answers = [false, true].map(|is_cell| may_bind(load.as_ref(), is_cell));
            assert_eq!(answers, [whole, cell], "{load:?}");
        }
    }

    /// A home that anyone may change.
    fn home() -> Home {
        Home {
            nodes: [NodeId(0)].into(),
            origin: Origin::Auto,
            affinity: Affinity::Soft,
            policy: MemoryPolicy::Local,
        }
    }

    fn resident(home: &Home) -> Resident<'_> {
        let (may_bind, load_now) = (Err(HomeBlocker::HasCpuset), MilliVcpus(1000));
        Resident { home, is_bound: false, may_bind, moved: None, load_now }
    }

    #[test]
    fn an_operators_choice_and_a_binding_stay() {
        let tuning = Tuning::default();
        let answer = |home: &Home, is_bound| {
            may_move(&tuning, &Resident { is_bound, ..resident(home) }, true, 9)
        };
        let of = |origin| Home { origin, ..home() };
        assert_eq!(answer(&of(Origin::Explicit), true), Err(HomeBlocker::Explicit));
        assert_eq!(answer(&of(Origin::Adopted), false), Err(HomeBlocker::Bound));
        assert_eq!(answer(&home(), true), Err(HomeBlocker::Bound));
        assert_eq!(answer(&home(), false), Ok(()));
    }

    #[test]
    fn a_home_that_binds_moves_only_where_bindings_are_allowed() {
        let tuning = Tuning::default();
        let strict = Home { policy: MemoryPolicy::Strict, ..home() };
        let hard = Home { affinity: Affinity::Hard, ..home() };
        // The home, whether a scheduler spreads threads, and whether it needs a binding.
        for (home, soft_affinity, binds) in
            [(home(), true, false), (home(), false, true), (strict, true, true), (hard, true, true)]
        {
            let forbidden = may_move(&tuning, &resident(&home), soft_affinity, 9);
            let expected = if binds { Err(HomeBlocker::HasCpuset) } else { Ok(()) };
            assert_eq!(forbidden, expected, "{home:?}");
            let allowed = Resident { may_bind: Ok(()), ..resident(&home) };
            assert_eq!(may_move(&tuning, &allowed, soft_affinity, 9), Ok(()), "{home:?}");
        }
    }

    #[test]
    fn a_recent_move_is_followed_by_another_only_under_more_load() {
        let (tuning, home) = (Tuning::default(), home());
        let last = LastMove { at: 4, cooldown_intervals: 5, load: MilliVcpus(1000) };
        let moved = |load_now| Resident { moved: Some(last), load_now, ..resident(&home) };
        let cooldown = |load_now| {
            let load_then = MilliVcpus(1000);
            Err(HomeBlocker::Cooldown { at: 4, load_then, load_now: MilliVcpus(load_now) })
        };
        let (same, grown) = (moved(MilliVcpus(1000)), moved(MilliVcpus(1500)));
        assert_eq!(may_move(&tuning, &same, true, 8), cooldown(1000), "4 of 5 intervals");
        assert_eq!(may_move(&tuning, &same, true, 9), cooldown(1000), "the load is the same");
        assert_eq!(may_move(&tuning, &grown, true, 8), cooldown(1500));
        assert_eq!(may_move(&tuning, &grown, true, 9), Ok(()));
        let forbidden = may_move(&tuning, &same, false, 8);
        assert_eq!(forbidden, Err(HomeBlocker::HasCpuset), "no later interval allows a binding");
    }
}
