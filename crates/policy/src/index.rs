//! Indices that cannot be mistaken for each other, and the collections they index.
//!
//! Node numbers have gaps, so placement and the controllers count nodes from 0 ([`NodeIndex`]);
//! parts are counted in the order of the observation ([`PartIndex`]), cells in that of their
//! request ([`CellIndex`]). An [`IndexVec`] is a `Vec` that only its own kind of index opens.

use std::{fmt, marker::PhantomData, ops};

/// A position in an [`IndexVec`].
pub(crate) trait Index: Copy {
    /// The index of the item at `position`.
    fn at(position: usize) -> Self;
    /// The position in the vector.
    fn position(self) -> usize;
}

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(u32);

        impl Index for $name {
            // Neither nodes nor parts of a machine reach 2^32.
            fn at(position: usize) -> Self {
                Self(position as u32)
            }

            fn position(self) -> usize {
                self.0 as usize
            }
        }
    };
}

index! {
    /// A node, counted from 0 in rising order of node numbers.
    NodeIndex
}

index! {
    /// A cell of a virtual machine, counted from 0 in the order of its request.
    CellIndex
}

index! {
    /// A part, counted from 0 in the order of the observation.
    PartIndex
}

/// A vector whose positions are of type `I`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct IndexVec<I, T> {
    items: Vec<T>,
    index: PhantomData<fn(I)>,
}

impl<I: Index, T> IndexVec<I, T> {
    /// How many items there are.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// All indices, rising.
    pub(crate) fn indices(&self) -> impl Iterator<Item = I> + use<I, T> {
        (0..self.items.len()).map(I::at)
    }

    /// The items in the order of their indices.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    /// The items in the order of their indices.
    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.items.iter_mut()
    }

    /// Each index with its item.
    pub(crate) fn enumerate(&self) -> impl Iterator<Item = (I, &T)> {
        self.items.iter().enumerate().map(|(position, item)| (I::at(position), item))
    }
}

impl<I: Index, T: Clone> IndexVec<I, T> {
    /// `len` times the same.
    pub(crate) fn filled(value: T, len: usize) -> Self {
        vec![value; len].into()
    }

    /// Sets every item to `value`.
    pub(crate) fn fill(&mut self, value: T) {
        self.items.fill(value);
    }
}

impl<I, T> From<Vec<T>> for IndexVec<I, T> {
    fn from(items: Vec<T>) -> Self {
        Self { items, index: PhantomData }
    }
}

impl<I, T> FromIterator<T> for IndexVec<I, T> {
    fn from_iter<It: IntoIterator<Item = T>>(items: It) -> Self {
        items.into_iter().collect::<Vec<T>>().into()
    }
}

impl<I, T> IntoIterator for IndexVec<I, T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

impl<I: Index, T> ops::Index<I> for IndexVec<I, T> {
    type Output = T;

    fn index(&self, index: I) -> &T {
        &self.items[index.position()]
    }
}

impl<I: Index, T> ops::IndexMut<I> for IndexVec<I, T> {
    fn index_mut(&mut self, index: I) -> &mut T {
        &mut self.items[index.position()]
    }
}

impl<I, T: fmt::Debug> fmt::Debug for IndexVec<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.items.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_opens_the_item_it_was_made_for() {
        let mut names: IndexVec<NodeIndex, &str> = vec!["near", "far"].into();
        names[NodeIndex::at(1)] = "farther";
        let all: Vec<_> = names.enumerate().map(|(i, name)| (i.position(), *name)).collect();
        assert_eq!((all, names.len()), (vec![(0, "near"), (1, "farther")], 2));
        assert_eq!(names.indices().map(|i| names[i]).collect::<Vec<_>>(), ["near", "farther"]);
    }
}
