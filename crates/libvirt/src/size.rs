//! Sizes of memory with libvirt's units (`virScaleInteger`, `src/util/virutil.c`).

/// Bytes of one `unit`; none for a word that libvirt does not know. Letters of either case count.
pub(crate) fn unit_bytes(unit: &str) -> Option<u64> {
    let lower = unit.to_ascii_lowercase();
    if lower == "b" || lower == "bytes" || lower == "byte" {
        return Some(1);
    }
    let (prefix, suffix) = lower.split_at_checked(1)?;
    let power = 1 + "kmgtpe".find(prefix)?;
    let base: u64 = match suffix {
        "" | "ib" => 1024,
        "b" => 1000,
        _ => return None,
    };
    base.checked_pow(u32::try_from(power).ok()?)
}

/// A size as people read it: `512 MiB`, `1.5 GiB`.
pub(crate) fn shown(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|&&(_, unit)| bytes >= unit) {
        Some(&(name, unit)) if bytes.is_multiple_of(unit) => format!("{} {name}", bytes / unit),
        Some(&(name, unit)) => {
            let tenths = u128::from(bytes) * 10 / u128::from(unit);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_libvirts() {
        let cases = [
            ("b", Some(1)),
            ("bytes", Some(1)),
            ("KiB", Some(1024)),
            ("k", Some(1024)),
            ("KB", Some(1000)),
            ("g", Some(1 << 30)),
            ("EiB", Some(1 << 60)),
            ("", None),
            ("pages", None),
            ("Kibi", None),
            ("ä", None),
        ];
        for (unit, expected) in cases {
            assert_eq!(unit_bytes(unit), expected, "{unit}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit() {
        let shown = [0, 1023, 1 << 20, 3 << 29, u64::MAX].map(shown);
        assert_eq!(shown, ["0 bytes", "1023 bytes", "1 MiB", "1.5 GiB", "16777215.9 TiB"]);
    }
}
