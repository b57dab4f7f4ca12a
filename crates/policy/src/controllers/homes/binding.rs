//! Homes of found parts follow the nodes to which another program binds them.

use super::tuning::Tuning;
use crate::{Home, Origin};
use nearside_topology::NodeSet;

/// The relation of a found part's home to its external binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Binding {
    /// They agree, or the home is an operator's.
    Agrees,
    /// They differ, for so many samples in a row; that may be a helper's affinity and pass.
    Differs(u64),
    /// The home becomes the nodes of the binding.
    Adopt(NodeSet),
    /// The binding is gone: the home is placement's to change.
    Release,
}

/// Whether a home matches the external binding: an adopted home is exactly where the part is bound,
/// and an automatic one belongs to a part that is not bound. An operator's choice counts more than
/// any binding.
pub(super) fn agrees(home: &Home, bound_to: Option<&NodeSet>) -> bool {
    match home.origin {
        Origin::Explicit => true,
        Origin::Adopted => bound_to == Some(&home.nodes),
        Origin::Auto => bound_to.is_none(),
    }
}

/// The consequence of a sample, for a part that has differed in `differed` samples before. Affinity
/// is read from running threads, so a sample of an idle part shows nothing.
pub(super) fn follow(
    tuning: &Tuning,
    home: &Home,
    bound_to: Option<NodeSet>,
    is_idle: bool,
    differed: u64,
) -> Binding {
    if agrees(home, bound_to.as_ref()) {
        return Binding::Agrees;
    }
    if is_idle {
        return Binding::Differs(differed);
    }
    let differed = differed.saturating_add(1);
    if differed < tuning.threshold_intervals {
        return Binding::Differs(differed);
    }
    bound_to.map_or(Binding::Release, Binding::Adopt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Affinity, MemoryPolicy};
    use nearside_topology::NodeId;

    fn home(node: u32, origin: Origin) -> Home {
        Home {
            nodes: NodeSet::from([NodeId(node)]),
            origin,
            affinity: Affinity::Hard,
            policy: MemoryPolicy::Local,
        }
    }

    fn bound(node: u32) -> Option<NodeSet> {
        Some(NodeSet::from([NodeId(node)]))
    }

    #[test]
    fn an_adopted_home_is_where_the_part_is_bound_and_an_automatic_one_is_unbound() {
        assert!(agrees(&home(1, Origin::Adopted), bound(1).as_ref()));
        assert!(!agrees(&home(1, Origin::Adopted), bound(0).as_ref()));
        assert!(!agrees(&home(1, Origin::Adopted), None));
        assert!(agrees(&home(1, Origin::Auto), None));
        assert!(!agrees(&home(1, Origin::Auto), bound(1).as_ref()));
    }

    #[test]
    fn an_operators_home_agrees_with_any_binding() {
        assert!(
            [None, bound(0), bound(1)]
                .iter()
                .all(|it| agrees(&home(1, Origin::Explicit), it.as_ref()))
        );
    }

    #[test]
    fn a_new_binding_is_adopted_once_it_was_seen_as_often_as_the_threshold() {
        let (tuning, home) = (Tuning::default(), home(0, Origin::Adopted));
        let after = |differed| follow(&tuning, &home, bound(1), false, differed);
        assert_eq!(after(0), Binding::Differs(1));
        assert_eq!(after(3), Binding::Differs(4));
        assert_eq!(after(4), Binding::Adopt(NodeSet::from([NodeId(1)])));
    }

    #[test]
    fn a_home_whose_binding_is_gone_is_released() {
        let (tuning, home) = (Tuning::default(), home(0, Origin::Adopted));
        assert_eq!(follow(&tuning, &home, None, false, 4), Binding::Release);
    }

    #[test]
    fn a_sample_of_an_idle_part_counts_neither_way() {
        let (tuning, home) = (Tuning::default(), home(0, Origin::Adopted));
        assert_eq!(follow(&tuning, &home, bound(1), true, 4), Binding::Differs(4));
        assert_eq!(follow(&tuning, &home, bound(0), true, 4), Binding::Agrees);
    }
}
