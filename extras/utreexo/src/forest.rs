//! [`Forest`]: all live leaves of a chain, of which it proves those that a block spends.
//!
//! Leaves lie where they were put, the first at the left, and a node is the parent of the two below it; what was
//! deleted is empty, and so is what was not yet added. The places that Utreexo gives to nodes follow from which are
//! empty ([`prove`]). Six rows of nodes make a [page], and pages make levels. The one page of the highest level
//! has all others below it. So the forest's roots say what its root must be, and every page says what those of
//! the pages right below must be: no page is taken from the store whose root is another one.
//!
//! A block has its pages in memory at once: those above what it spends, and those above what it adds. Besides these
//! and what was changed since pages were last stored, no more is kept than the forest may have.
//!
//! What a block does is computed level by level from the leaves up, in each level many pages at a time, row by row,
//! so that the hash function always gets many nodes at once.

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
use touched::{Touched, touched_levels};
use work::{PAGES_AT_ONCE, Work, compute};

/// Why a forest does not take a block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForestError<E> {
    /// The store failed.
    #[error("{page} of the forest cannot be read")]
    Read {
        /// The first of the pages that were to be read.
        page: PageId,
        /// What the store says.
        source: E,
    },
    /// The store lacks a page.
    #[error("{page} of the forest is missing in the store: the forest must be made anew")]
    Missing {
        /// Which one.
        page: PageId,
    },
    /// The store has another page than was stored.
    #[error("{page} of the forest is damaged: {fault}; the forest must be made anew")]
    Damaged {
        /// Which one.
        page: PageId,
        /// What is wrong with it.
        fault: PageFault,
    },
    /// A leaf is spent that was never added, or is spent already.
    #[error("leaf {leaf} of {leaves} is spent, and is not live")]
    NotLive {
        /// Which one, counted from 0.
        leaf: u64,
        /// How many there have ever been.
        leaves: u64,
    },
    /// A leaf is to be live again that is live.
    #[error("leaf {leaf} is live, so no block that spent it can be undone")]
    Live {
        /// Which one, counted from 0.
        leaf: u64,
    },
    /// Fewer leaves than a block that is to be undone is said to have added.
    #[error("there are {leaves} leaves, so no block that added {added} can be undone")]
    TooFew {
        /// How many there have ever been.
        leaves: u64,
        /// How many were added.
        added: u64,
    },
    /// A block spends a leaf twice.
    #[error("leaf {leaf} is spent twice by one block")]
    Twice {
        /// Which one, counted from 0.
        leaf: u64,
    },
    /// More leaves than any forest can have.
    #[error("{added} leaves behind {leaves} are more than a forest has: at most 2^63")]
    TooMany {
        /// How many there have ever been.
        leaves: u64,
        /// How many were to be added.
        added: usize,
    },
}

/// What a forest has in memory, and what it did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForestUsage {
    /// Pages that were read from the store since the forest was opened.
    pub pages_read: u64,
    /// Pages in memory.
    pub pages: usize,
    /// Bytes that they take.
    pub bytes: usize,
    /// Those of pages that were changed since they were last stored.
    pub changed_bytes: usize,
}

/// See the module.
pub struct Forest<P> {
    pages: P,
    cache: Cache,
    roots: Roots,
    bytes_max: usize,
    pages_read: u64,
}

impl<P: Pages> Forest<P> {
    /// The forest of a store that has its pages, as they were when it had these roots. Of pages that the store
    /// has as they are it keeps so many bytes at most.
    pub fn open(pages: P, roots: Roots, bytes_max: usize) -> Self {
        Self { pages, cache: Cache::default(), roots, bytes_max, pages_read: 0 }
    }

    /// How many leaves there have ever been.
    pub fn leaves(&self) -> u64 {
        self.roots.leaves
    }

    /// Those of all blocks so far. The store needs them with the pages.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// What it has in memory.
    pub fn usage(&self) -> ForestUsage {
        ForestUsage {
            pages_read: self.pages_read,
            pages: self.cache.pages(),
            bytes: self.cache.bytes(),
            changed_bytes: self.cache.changed_bytes(),
        }
    }

    /// Proves the leaves that a block spends, which it names in the order of its inputs, deletes them, and adds
    /// others; an empty one of those is deleted from the start. After an error the forest is as it was.
    pub fn block(
        &mut self,
        spent: &[u64],
        added: &[NodeHash],
    ) -> Result<Proof, ForestError<P::Error>> {
        let done = self.prove_and_change(spent, added);
        self.cache.trim(self.bytes_max);
        done
    }

    /// Undoes the last block that was not undone: its leaves that were spent are live again, of which it has to be told
    /// the hashes, in any order, and those that it added were never there. After an error the forest is as it was.
    pub fn undo(
        &mut self,
        spent: &[(u64, NodeHash)],
        added: u64,
    ) -> Result<(), ForestError<P::Error>> {
        let done = self.put_back(spent, added);
        self.cache.trim(self.bytes_max);
        done
    }

    /// Whether changed pages take half of the memory: time to store them.
    pub fn wants_store(&self) -> bool {
        self.cache.changed_bytes() > self.bytes_max / 2
    }

    /// Hands over every page that was changed since pages were last stored, by ascending key: its bytes, or `None` where the store must
    /// no longer have it. They and the roots must be stored together or not at all.
    pub fn changes(&self, mut page: impl FnMut(PageId, Option<&[u8]>)) {
        let mut bytes = Vec::new();
        for (id, changed) in self.cache.changed() {
            bytes.clear();
            changed.write(&mut bytes);
            page(id, (changed.live() != 0).then_some(&bytes));
        }
    }

    /// Says that the store has all [changes](Self::changes), and that no block came or was undone since.
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
        let (order, ascending) = in_order(spent.iter().copied(), leaves)?;
        let end = leaves.checked_add(added.len() as u64).filter(|end| *end <= LEAVES_MAX);
        let end = end.ok_or(ForestError::TooMany { leaves, added: added.len() })?;
        let mut levels = touched_levels(&ascending, leaves..end);
        self.load(&mut levels)?;
        if let Some(leaf) = levels[0].iter().find_map(Touched::first_not_live) {
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

    fn put_back(
        &mut self,
        spent: &[(u64, NodeHash)],
        added: u64,
    ) -> Result<(), ForestError<P::Error>> {
        let end = self.leaves();
        let leaves = end.checked_sub(added).ok_or(ForestError::TooFew { leaves: end, added })?;
        let (order, ascending) = in_order(spent.iter().map(|(leaf, _)| *leaf), leaves)?;
        let mut levels = touched_levels(&ascending, leaves..end);
        self.load(&mut levels)?;
        if let Some(leaf) = levels[0].iter().find_map(Touched::first_live) {
            return Err(ForestError::Live { leaf });
        }
        let mut changes: Vec<NodeHash> = order.into_iter().map(|at| spent[at].1).collect();
        changes.resize(spent.len() + (end - leaves) as usize, NodeHash::EMPTY);
        self.change(&levels, changes);
        self.roots = self.roots_after(&levels, leaves);
        self.cut(&levels, leaves);
        Ok(())
    }

    /// Gives those leaves that a block touches these hashes, and computes all nodes above.
    fn change(&mut self, levels: &[Vec<Touched>], mut changes: Vec<NodeHash>) {
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

    /// The roots of so many leaves, after a block that touched these pages.
    fn roots_after(&self, levels: &[Vec<Touched>], leaves: u64) -> Roots {
        let root = |tree: prove::Tree| {
            // A tree that the block did not touch was there before, or is part of what it undid.
            let touched = [tree.root(), tree.root_as_child()].into_iter().find_map(|spot| {
                let pages = levels.get(spot.level)?;
                let at = pages.binary_search_by_key(&spot.index, |page| page.index).ok()?;
                let page = self.cache.page(pages[at].slot());
                Some(page.hash(&page.shape(), spot.row, spot.bit))
            });
            let before = || {
                let mut before = prove::trees(self.roots.leaves).zip(&self.roots.hashes);
                before.find(|(old, _)| old.row == tree.row).map(|(_, hash)| *hash)
            };
            touched.or_else(before).unwrap_or_default()
        };
        Roots { leaves, hashes: prove::trees(leaves).map(root).collect() }
    }
}

/// Which one of a block's leaves comes when they ascend, and these leaves.
fn in_order<E>(
    spent: impl Iterator<Item = u64>,
    leaves: u64,
) -> Result<(Vec<usize>, Vec<u64>), ForestError<E>> {
    let mut order: Vec<(u64, usize)> = spent.zip(0..).collect();
    order.sort_unstable();
    if let Some(twice) = order.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(ForestError::Twice { leaf: twice[0].0 });
    }
    if let Some((leaf, _)) = order.last().copied().filter(|(leaf, _)| *leaf >= leaves) {
        return Err(ForestError::NotLive { leaf, leaves });
    }
    Ok(order.into_iter().map(|(leaf, at)| (at, leaf)).unzip())
}

/// The root of the highest page: that of all trees.
fn top(roots: &Roots) -> NodeHash {
    let trees = roots.hashes.iter().rev();
    trees.fold(NodeHash::EMPTY, |right, left| NodeHash::parent(left, &right))
}

#[cfg(test)]
mod tests;
