//! Numbers with units, for people.

use nearside_policy::{Bytes, Count};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Whole MiB, for columns whose heading names the unit (as in `numactl --hardware`).
pub(crate) fn mib(bytes: u64) -> String {
    (bytes / MIB).to_string()
}

const fn unit(bytes: u64) -> (u64, &'static str) {
    match bytes {
        0..MIB => (KIB, "KiB"),
        MIB..GIB => (MIB, "MiB"),
        GIB..TIB => (GIB, "GiB"),
        _ => (TIB, "TiB"),
    }
}

/// A size in the largest unit in which it is at least 1: `512 MiB`, `15.5 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

/// A size in short form for columns: `0`, `12K`, `99.5M`, `512M`, `1.5G`.
pub(crate) fn short(bytes: u64) -> String {
    let (unit, name) = unit(bytes);
    let whole = bytes.is_multiple_of(unit) || bytes / unit >= 100;
    match bytes {
        0 => "0".into(),
        _ if whole => format!("{:.0}{}", bytes as f64 / unit as f64, &name[..1]),
        _ => format!("{:.1}{}", bytes as f64 / unit as f64, &name[..1]),
    }
}

/// A share in whole percent, rounded down so that 100 % means all of it.
pub(crate) fn percent(part: u64, whole: u64) -> Option<u64> {
    (whole > 0).then(|| (u128::from(part) * 100 / u128::from(whole)).min(100) as u64)
}

/// `1 node`, `4 nodes`.
pub(crate) fn count(number: usize, what: &'static str) -> String {
    Count(number as u64, what).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_largest_fitting_unit() {
        assert_eq!(size(0), "0 bytes");
        assert_eq!(size(2 * MIB), "2 MiB");
        assert_eq!(size(GIB), "1 GiB");
        assert_eq!(size(15 * GIB + 512 * MIB), "15.5 GiB");
        assert_eq!(size(3 * TIB / 2), "1.5 TiB");
        let sizes = [0, 4 * KIB, 512 * MIB, 3 * GIB / 2, MIB + 1, 2079 * MIB / 10, 1024 * TIB + 1];
        assert_eq!(sizes.map(short), ["0", "4K", "512M", "1.5G", "1.0M", "208M", "1024T"]);
    }

    #[test]
    fn share_of_nothing_is_a_dash() {
        assert_eq!(percent(0, 0), None);
        assert_eq!(percent(999, 1000), Some(99));
        assert_eq!(percent(u64::MAX, u64::MAX), Some(100));
    }
}
