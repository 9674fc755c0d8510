//! [`Forest`]: all live leaves of a chain; it proves the leaves that a block spends.
//!
//! Leaves stay where they were added, from left to right, and a node is the parent of the two nodes below it.
//! Deleted leaves, and leaves not yet added, are empty. The places that Utreexo gives to nodes follow from
//! which nodes are empty ([`prove`]). Six rows of nodes make a [page], and pages form levels. The highest
//! level has one page, above all others. So the forest's roots determine the root of that page, and every
//! page determines the roots of the pages right below it: a page from the store with another root is
//! rejected.
//!
//! All pages above the leaves that a block spends or adds are in memory at once. Besides these and the pages
//! changed since the last store, memory stays within the forest's limit.
//!
//! A block is applied level by level from the leaves up, in each level many pages at a time, row by row, so
//! that the hash function always gets many nodes at once.

mod cache;
mod id;
mod load;
mod page;
mod prove;
mod touched;
mod work;

pub use id::{PageId, Pages};
pub use page::PageFault;

use crate::position::LEAVES_MAX;
use crate::{NodeHash, Proof, Roots};
use cache::Cache;
use touched::{TouchedPage, touched_levels};
use work::{PAGES_AT_ONCE, Work, compute};

/// Why a forest cannot apply a block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForestError<E> {
    /// The store failed.
    #[error("cannot read {page} of the forest")]
    Read {
        /// The page.
        page: PageId,
        /// The store's error.
        source: E,
    },
    /// The store lacks a page.
    #[error("{page} of the forest is missing from the store: rebuild the forest")]
    Missing {
        /// The page.
        page: PageId,
    },
    /// The store returned a page other than the stored one.
    #[error("{page} of the forest is damaged: {fault}; rebuild the forest")]
    Damaged {
        /// The page.
        page: PageId,
        /// The fault found.
        fault: PageFault,
    },
    /// A spent leaf was never added, or is already spent.
    #[error("the block spends leaf {leaf} of {leaves}, which is not live")]
    NotLive {
        /// Index of the leaf, from 0.
        leaf: u64,
        /// Number of leaves ever added.
        leaves: u64,
    },
    /// A block spends a leaf twice.
    #[error("leaf {leaf} is spent twice by one block")]
    Twice {
        /// Index of the leaf, from 0.
        leaf: u64,
    },
    /// More leaves than any forest can have.
    #[error("cannot add {added} leaves after {leaves}: a forest has at most 2^63")]
    TooMany {
        /// Number of leaves ever added.
        leaves: u64,
        /// Number of leaves to add.
        added: usize,
    },
}

/// Memory and reads of a forest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForestUsage {
    /// Pages read from the store since the forest was opened.
    pub pages_read: u64,
    /// Pages in memory.
    pub pages: usize,
    /// Bytes that these pages take.
    pub bytes: usize,
    /// Bytes of the pages changed since they were last stored.
    pub changed_bytes: usize,
}

/// All live leaves of a chain, in pages of a store.
pub struct Forest<P> {
    pages: P,
    cache: Cache,
    roots: Roots,
    bytes_max: usize,
    pages_read: u64,
}

impl<P: Pages> Forest<P> {
    /// Opens the forest of a store whose pages belong to these roots. Keeps at most `bytes_max` bytes of
    /// pages that are unchanged since they were stored.
    pub fn open(pages: P, roots: Roots, bytes_max: usize) -> Self {
        Self { pages, cache: Cache::default(), roots, bytes_max, pages_read: 0 }
    }

    /// Number of leaves ever added.
    pub fn leaves(&self) -> u64 {
        self.roots.leaves
    }

    /// The roots after all blocks so far. The store must keep them with the pages.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Returns the memory use and the number of reads.
    pub fn usage(&self) -> ForestUsage {
        ForestUsage {
            pages_read: self.pages_read,
            pages: self.cache.pages(),
            bytes: self.cache.bytes(),
            changed_bytes: self.cache.changed_bytes(),
        }
    }

    /// Proves the leaves that a block spends, given in the order of its inputs, deletes them, and adds
    /// others; an empty added leaf counts as already deleted. After an error the forest is unchanged.
    pub fn block(
        &mut self,
        spent: &[u64],
        added: &[NodeHash],
    ) -> Result<Proof, ForestError<P::Error>> {
        let done = self.prove_and_change(spent, added);
        self.cache.trim(self.bytes_max);
        done
    }

    /// Whether changed pages take more than half of the memory, so that it is time to store them.
    pub fn wants_store(&self) -> bool {
        self.cache.changed_bytes() > self.bytes_max / 2
    }

    /// Calls `page` for every page changed since the last store, by ascending key: with its bytes, or with
    /// `None` if the store must delete it. Store all of them and the roots atomically.
    pub fn changes(&self, mut page: impl FnMut(PageId, Option<&[u8]>)) {
        let mut bytes = Vec::new();
        for (id, changed) in self.cache.changed() {
            bytes.clear();
            changed.write(&mut bytes);
            page(id, (changed.live() != 0).then_some(&bytes));
        }
    }

    /// Marks all [changes](Self::changes) as stored. No block may have been applied since they were read.
    pub fn set_stored(&mut self) {
        self.cache.set_stored();
        self.cache.trim(self.bytes_max);
    }

    fn prove_and_change(
        &mut self,
        spent: &[u64],
        added: &[NodeHash],
    ) -> Result<Proof, ForestError<P::Error>> {
        let leaves = self.leaves();
        let (order, ascending) = in_order(spent, leaves)?;
        let end = leaves.checked_add(added.len() as u64).filter(|end| *end <= LEAVES_MAX);
        let end = end.ok_or(ForestError::TooMany { leaves, added: added.len() })?;
        let mut levels = touched_levels(&ascending, leaves..end);
        self.load(&mut levels)?;
        if let Some(leaf) = levels[0].iter().find_map(TouchedPage::first_not_live) {
            return Err(ForestError::NotLive { leaf, leaves });
        }
        let proof = prove::prove(&levels, &self.cache, leaves, order.into_iter());
        let mut changes = vec![NodeHash::EMPTY; spent.len()];
        changes.extend(added);
        self.grow(&mut levels);
        self.change(&levels, changes);
        self.roots = self.roots_after(&levels, end);
        Ok(proof)
    }

    /// Sets the hashes of the leaves that a block touches, and computes all nodes above them.
    fn change(&mut self, levels: &[Vec<TouchedPage>], mut changes: Vec<NodeHash>) {
        let mut work = Vec::with_capacity(PAGES_AT_ONCE);
        for pages in levels {
            let (mut roots, mut rest) = (Vec::with_capacity(pages.len()), &changes[..]);
            for pages in pages.chunks(PAGES_AT_ONCE) {
                for page in pages {
                    let (mut changed, values) = (self.cache.take(page.slot()), rest);
                    rest = &rest[page.mask.count_ones() as usize..];
                    let shape = changed.change(&page.shape, page.mask, values);
                    work.push(Work::new(changed, shape, page.mask));
                }
                compute(&mut work);
                for (page, work) in pages.iter().zip(work.drain(..)) {
                    roots.push(work.root());
                    self.cache.put(page.slot(), work.page);
                }
            }
            changes = roots;
        }
    }

    /// The roots of `leaves` leaves, after a block that touched these pages.
    fn roots_after(&self, levels: &[Vec<TouchedPage>], leaves: u64) -> Roots {
        let root = |tree: prove::Tree| {
            // A tree that the block did not touch existed before.
            let touched = || {
                let spot = tree.root();
                let pages = levels.get(spot.level)?;
                let at = pages.binary_search_by_key(&spot.index, |page| page.index).ok()?;
                let page = self.cache.page(pages[at].slot());
                Some(page.hash(&page.shape(), spot.row, spot.bit))
            };
            let before = || {
                let mut before = prove::trees(self.roots.leaves).zip(&self.roots.hashes);
                before.find(|(old, _)| old.row == tree.row).map(|(_, hash)| *hash)
            };
            touched().or_else(before).unwrap_or_default()
        };
        Roots { leaves, hashes: prove::trees(leaves).map(root).collect() }
    }
}

/// Sorts a block's leaves: returns their original indexes in ascending order of the leaves, and the sorted
/// leaves.
fn in_order<E>(spent: &[u64], leaves: u64) -> Result<(Vec<usize>, Vec<u64>), ForestError<E>> {
    let mut order: Vec<(u64, usize)> = spent.iter().copied().zip(0..).collect();
    order.sort_unstable();
    if let Some(twice) = order.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(ForestError::Twice { leaf: twice[0].0 });
    }
    if let Some((leaf, _)) = order.last().copied().filter(|(leaf, _)| *leaf >= leaves) {
        return Err(ForestError::NotLive { leaf, leaves });
    }
    Ok(order.into_iter().map(|(leaf, at)| (at, leaf)).unzip())
}

/// The root of the highest page, which combines all trees.
fn top(roots: &Roots) -> NodeHash {
    let trees = roots.hashes.iter().rev();
    trees.fold(NodeHash::EMPTY, |right, left| NodeHash::parent(left, &right))
}

#[cfg(test)]
mod tests;
