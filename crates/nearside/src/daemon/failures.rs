//! Samples of the host that failed, one after the other.

/// Failed samples in a row after which the loop counts as unhealthy.
const MAX_IN_A_ROW: u64 = 3;

/// The failed samples since the last that succeeded.
#[derive(Debug, Default)]
pub(super) struct Failures {
    in_a_row: u64,
    why: String,
}

impl Failures {
    /// Counts a failed sample.
    pub(super) fn count(&mut self, why: String) {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.why = why;
    }

    /// The number of failed samples and the reason of the last, from `MAX_IN_A_ROW` on.
    pub(super) fn unhealthy(&self) -> Option<(u64, &str)> {
        (self.in_a_row >= MAX_IN_A_ROW).then_some((self.in_a_row, &self.why))
    }
}
