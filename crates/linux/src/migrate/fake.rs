//! The kernel's page calls on pages that a test lays out.

use super::batch::{Kernel, Page};
use crate::sys::{NOT_SAID, PageStatus};
use nearside_topology::NodeId;
use std::{collections::BTreeMap, io};

pub(super) const PAGE: usize = 4096;
/// The start of the fake's memory, aligned to any folio.
pub(super) const START: usize = 1 << 30;

/// Consecutive folios, and free pages by node. The fake moves pages as `do_pages_move` does.
#[derive(Default)]
pub(super) struct Fake {
    pub(super) folios: Vec<Folio>,
    pub(super) free: BTreeMap<u32, usize>,
    pub(super) calls: usize,
    pub(super) gone: bool,
    /// Whether the process may not use the node that it is to go to.
    pub(super) is_forbidden: bool,
    /// How often an address of each folio was named, by its place among them.
    pub(super) named: BTreeMap<usize, usize>,
}

#[derive(Clone, Copy)]
pub(super) struct Folio {
    pub(super) pages: usize,
    pub(super) node: u32,
    fate: Fate,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Fate {
    Moves,
    Pinned,
    MappedElsewhere,
    Unmapped,
}

impl Fake {
    fn index(&self, address: usize) -> usize {
        let mut page = (address - START) / PAGE;
        self.folios
            .iter()
            .position(|folio| {
                page < folio.pages || {
                    page -= folio.pages;
                    false
                }
            })
            .unwrap()
    }

    /// Moves a run; false if one of its pages did not move.
    fn migrate(&mut self, run: &[usize], node: u32) -> io::Result<bool> {
        let mut all = true;
        for &index in run {
            let folio = &mut self.folios[index];
            if folio.fate == Fate::Pinned {
                all = false;
                continue;
            }
            let free = self.free.entry(node).or_default();
            if *free < folio.pages {
                return Err(io::Error::from_raw_os_error(libc::ENOMEM));
            }
            *free -= folio.pages;
            folio.node = node;
        }
        Ok(all)
    }

    pub(super) fn pages(&self) -> Vec<Page> {
        let count = self.folios.iter().map(|folio| folio.pages).sum::<usize>();
        let page = |address| Page { address, from: NodeId(self.folios[self.index(address)].node) };
        (0..count).map(|page| START + page * PAGE).map(page).collect()
    }
}

impl Kernel for Fake {
    fn nodes(&mut self, addresses: &[usize]) -> io::Result<Vec<PageStatus>> {
        if self.gone {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let node = |&address: &usize| match self.folios[self.index(address)] {
            Folio { fate: Fate::Unmapped, .. } => Err(libc::ENOENT),
            folio => Ok(NodeId(folio.node)),
        };
        Ok(addresses.iter().map(node).collect())
    }

    fn move_to(&mut self, addresses: &[usize], node: NodeId) -> io::Result<Vec<PageStatus>> {
        self.calls += 1;
        if self.is_forbidden {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        let mut status = vec![Err(NOT_SAID); addresses.len()];
        let (mut run, mut start) = (Vec::new(), 0);
        for (at, &address) in addresses.iter().enumerate() {
            let index = self.index(address);
            *self.named.entry(index).or_default() += 1;
            let folio = self.folios[index];
            status[at] = match folio.fate {
                _ if folio.node == node.0 => Ok(node),
                Fate::Unmapped => Err(libc::ENOENT),
                Fate::MappedElsewhere => Err(libc::EACCES),
                _ if run.contains(&index) => Err(libc::EBUSY),
                _ => {
                    run.push(index);
                    continue;
                }
            };
            if !self.migrate(&run, node.0)? {
                return Ok(status);
            }
            status[start..at].fill(Ok(node));
            run.clear();
            start = at + 1;
        }
        if self.migrate(&run, node.0)? {
            status[start..].fill(Ok(node));
        }
        Ok(status)
    }
}

pub(super) fn folios(folios: &[(usize, Fate)]) -> Fake {
    let folio = |&(pages, fate): &(usize, Fate)| Folio { pages, node: 0, fate };
    Fake {
        folios: folios.iter().map(folio).collect(),
        free: [(1, 5000), (2, 5000)].into(),
        ..Fake::default()
    }
}
