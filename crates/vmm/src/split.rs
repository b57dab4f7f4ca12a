//! Shares of vCPUs and memory for cells.

/// Memory is dealt out in units of a 2 MiB page.
const UNIT_BYTES: u64 = 2 << 20;

/// `total` in `parts` contiguous shares; the first ones get the remainder.
pub(crate) fn shares(total: u64, parts: u64) -> Vec<u64> {
    let (each, rest) = (total / parts.max(1), total % parts.max(1));
    (0..parts).map(|part| each + u64::from(part < rest)).collect()
}

/// `bytes` in `parts` shares of whole units; bytes beyond whole units go to the first.
pub(crate) fn memory_shares(bytes: u64, parts: u64) -> Result<Vec<u64>, String> {
    let units = bytes / UNIT_BYTES;
    if units < parts {
        return Err(format!("{bytes} bytes are too few for {parts} cells: each needs 2 MiB"));
    }
    let mut each: Vec<_> = shares(units, parts).iter().map(|units| units * UNIT_BYTES).collect();
    if let Some(first) = each.first_mut() {
        *first += bytes % UNIT_BYTES;
    }
    Ok(each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        assert_eq!(shares(7, 3), [3, 2, 2]);
        // 5 units of 2 MiB and 1 MiB: 3 units and the rest, 2 units.
        assert_eq!(memory_shares(11 << 20, 2), Ok(vec![7 << 20, 4 << 20]));
        assert!(memory_shares(2 << 20, 2).is_err());
    }
}
