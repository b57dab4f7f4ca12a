//! The rate: the size of a batch, and the rest after one.

use std::time::Duration;

/// The longest time of a batch at the requested rate. It bounds the wait of the domain, and of a
/// user who interrupts.
const BATCH: Duration = Duration::from_millis(50);

/// The most pages in a batch, at any rate: it bounds the memory that addresses take (128 KiB).
pub(super) const MAX_PAGES: usize = 1 << 14;

/// The longest rest at once, so that an interruption is noticed promptly.
pub(crate) const MAX_NAP: Duration = Duration::from_millis(100);

/// The pages of this size in one batch: at least one.
pub(super) fn batch_pages(rate_bytes_per_s: Option<u64>, page_bytes: u64) -> usize {
    let Some(rate) = rate_bytes_per_s else { return MAX_PAGES };
    let bytes = u128::from(rate) * BATCH.as_millis() / 1000;
    let pages = bytes / u128::from(page_bytes.max(1));
    usize::try_from(pages).map_or(MAX_PAGES, |pages| pages.clamp(1, MAX_PAGES))
}

/// The rest after a batch that moved `bytes` in `took`, so that batch and rest together keep to the
/// rate.
///
/// A batch earns no credit: time without moves is not saved for a later burst.
pub(super) fn rest(rate_bytes_per_s: Option<u64>, bytes: u64, took: Duration) -> Duration {
    let Some(rate) = rate_bytes_per_s else { return Duration::ZERO };
    let due_ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(due_ns).unwrap_or(u64::MAX)).saturating_sub(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_batch_is_a_fraction_of_the_rate_and_never_nothing() {
        assert_eq!(batch_pages(None, 4096), MAX_PAGES);
        // 100 MiB/s: 5 MiB in 50 ms.
        assert_eq!(batch_pages(Some(100 * MIB), 4096), 1280);
        assert_eq!(batch_pages(Some(100 * MIB), 2 * MIB), 2);
        assert_eq!(batch_pages(Some(100 * MIB), 1024 * MIB), 1);
        assert_eq!(batch_pages(Some(1), 4096), 1);
        assert_eq!(batch_pages(Some(u64::MAX), 4096), MAX_PAGES);
    }

    #[test]
    fn a_rest_makes_up_for_a_fast_batch() {
        let ms = Duration::from_millis;
        assert_eq!(rest(Some(100 * MIB), 5 * MIB, ms(20)), ms(30));
        assert_eq!(rest(Some(100 * MIB), 5 * MIB, ms(80)), ms(0));
        assert_eq!(rest(Some(100 * MIB), 0, ms(0)), ms(0));
        assert_eq!(rest(None, 5 * MIB, ms(0)), ms(0));
        assert_eq!(rest(Some(0), 1, ms(0)), Duration::from_secs(1));
        assert_eq!(rest(Some(1), u64::MAX, ms(0)), Duration::from_nanos(u64::MAX));
    }
}
