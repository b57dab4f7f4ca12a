//! Amounts by node, and how a whole is split over nodes.

use crate::{PageSize, index::NodeIndex};

/// An amount for each of some nodes.
pub(super) type Amounts = Vec<(NodeIndex, u64)>;

/// The size of an ordinary page. A machine with larger pages rounds up once more, by less than a
/// page.
pub(super) const BASE_PAGE_BYTES: u64 = 4096;

/// The size of a page in bytes.
pub(super) fn page_bytes(page_size: PageSize) -> u64 {
    match page_size {
        PageSize::Base => BASE_PAGE_BYTES,
        PageSize::Huge(bytes) => bytes.max(BASE_PAGE_BYTES),
    }
}

/// The amount on a node.
pub(super) fn on(amounts: &Amounts, node: NodeIndex) -> u64 {
    amounts.iter().find(|(of, _)| *of == node).map_or(0, |&(_, amount)| amount)
}

/// The sum over all nodes.
pub(super) fn sum(amounts: &Amounts) -> u64 {
    amounts.iter().fold(0, |sum: u64, &(_, amount)| sum.saturating_add(amount))
}

/// Splits a whole in proportion to weights, exactly: the running sum is rounded, so no unit is lost
/// or added.
pub(super) fn split(whole: u64, weights: &Amounts) -> Amounts {
    let all: u128 = weights.iter().map(|&(_, weight)| u128::from(weight)).sum();
    // Leaves room for the products below, however large the weights.
    let shift = (u128::BITS - all.leading_zeros()).saturating_sub(u64::BITS);
    let (mut sum, mut given) = (0_u128, 0);
    let part = |&(i, weight): &(NodeIndex, u64)| {
        sum += u128::from(weight);
        let upto =
            (u128::from(whole) * (sum >> shift)).checked_div(all >> shift).unwrap_or(0) as u64;
        let part = upto - given;
        given = upto;
        (i, part)
    };
    weights.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Index;

    fn amounts(of: &[(usize, u64)]) -> Amounts {
        of.iter().map(|&(node, amount)| (NodeIndex::at(node), amount)).collect()
    }

    #[test]
    fn a_whole_is_split_in_proportion_and_without_loss() {
        // 10 in thirds: the running sum is 3.33, rounded down to 3; the rest goes to the second.
        assert_eq!(split(10, &amounts(&[(0, 1), (3, 2)])), amounts(&[(0, 3), (3, 7)]));
        let equal = amounts(&[(0, 1), (1, 1), (2, 1)]);
        assert_eq!(split(8, &equal), amounts(&[(0, 2), (1, 3), (2, 3)]));
    }

    #[test]
    fn weights_of_any_size_are_split_and_no_weight_gets_nothing() {
        let huge = amounts(&[(0, u64::MAX), (1, u64::MAX), (2, 0)]);
        assert_eq!(split(7, &huge), amounts(&[(0, 3), (1, 4), (2, 0)]));
        assert_eq!(split(7, &amounts(&[(0, 0)])), amounts(&[(0, 0)]));
        assert_eq!(split(7, &Amounts::new()), Amounts::new());
    }

    #[test]
    fn an_amount_that_is_not_listed_is_none() {
        let two = amounts(&[(0, 5), (2, u64::MAX)]);
        assert_eq!([0, 1, 2].map(|node| on(&two, NodeIndex::at(node))), [5, 0, u64::MAX]);
        assert_eq!(sum(&two), u64::MAX, "sums saturate");
    }

    #[test]
    fn a_huge_page_is_no_smaller_than_an_ordinary_one() {
        let sizes = [PageSize::Base, PageSize::Huge(2 << 20), PageSize::Huge(1)];
        assert_eq!(sizes.map(page_bytes), [4096, 2 << 20, 4096]);
    }
}
