//! When a part is sampled again.
//!
//! A busy part, or one whose debt is coming home, is sampled in every interval. A quiet one is
//! sampled after 2, 4, then every 8 intervals; in the end at the turn of its name, so that samples
//! spread over the intervals.

/// The number of intervals from this sample to the next.
pub(super) fn intervals_to_next(
    is_quiet: bool,
    last_intervals: u64,
    max_intervals: u64,
    now: u64,
    name: &str,
) -> u64 {
    let max = max_intervals.max(1);
    let next = if is_quiet { last_intervals.saturating_mul(2).max(1) } else { 1 };
    let to_turn = max - now.wrapping_add(fnv(name)) % max;
    if next < max { next } else { to_turn }
}

/// The FNV-1a hash (Fowler, Noll and Vo): the same for the same name in every build.
fn fnv(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_part_is_sampled_in_every_interval() {
        assert_eq!([1, 4, 8].map(|last| intervals_to_next(false, last, 8, 50, "db")), [1, 1, 1]);
    }

    #[test]
    fn a_quiet_part_is_sampled_after_twice_as_many_intervals_up_to_the_maximum() {
        let (mut now, mut last, mut gaps) = (0, 1, Vec::new());
        for _ in 0..12 {
            last = intervals_to_next(true, last, 8, now, "db");
            now += last;
            gaps.push(last);
        }
        // 2 and 4; then to the turn of its name, and in the end every 8 intervals.
        assert_eq!(gaps[..2], [2, 4]);
        assert!(gaps.iter().all(|gap| (1..=8).contains(gap)), "{gaps:?}");
        assert_eq!(gaps[9..], [8, 8, 8]);
    }

    #[test]
    fn quiet_parts_spread_over_the_intervals() {
        let names: Vec<String> = (0..800).map(|number| format!("vm-{number}")).collect();
        let mut sampled = [0; 8];
        for name in &names {
            sampled[intervals_to_next(true, 8, 8, 0, name) as usize - 1] += 1;
        }
        assert!(sampled.iter().all(|&parts| parts > 60), "{sampled:?}");
    }

    #[test]
    fn a_maximum_of_none_is_every_interval() {
        assert_eq!(intervals_to_next(true, 5, 0, 3, "db"), 1);
    }
}
