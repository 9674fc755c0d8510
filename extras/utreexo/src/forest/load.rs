//! Loads the pages that a block needs, and checks each against the page above it.

use super::cache::Slot;
use super::page::{Page, PageFault, Shape, bits};
use super::touched::{TouchedPage, level_count};
use super::work::{PAGES_AT_ONCE, Work, compute};
use super::{Forest, ForestError, PageId, Pages, top};
use crate::NodeHash;

/// A page to read: its index among the touched pages of its level, and the root that it must have.
struct WantedPage {
    at: usize,
    root: NodeHash,
}

impl<P: Pages> Forest<P> {
    /// Loads the touched pages of the levels that the forest had before the block.
    pub(super) fn load(
        &mut self,
        levels: &mut [Vec<TouchedPage>],
    ) -> Result<(), ForestError<P::Error>> {
        for level in (0..level_count(self.leaves())).rev() {
            let roots = self.roots_of(levels, level);
            self.load_level(level, &mut levels[level], &roots)?;
        }
        Ok(())
    }

    /// The roots that the pages of this level must have, from the loaded pages above.
    fn roots_of(&self, levels: &[Vec<TouchedPage>], level: usize) -> Vec<NodeHash> {
        if level + 1 == level_count(self.leaves()) {
            let root = |page: &TouchedPage| {
                if page.index == 0 { top(&self.roots) } else { NodeHash::EMPTY }
            };
            return levels[level].iter().map(root).collect();
        }
        let mut roots = Vec::with_capacity(levels[level].len());
        for above in &levels[level + 1] {
            let page = self.cache.page(above.slot());
            roots.extend(bits(above.mask).map(|bit| page.hash(&above.shape, 0, bit)));
        }
        roots
    }

    fn load_level(
        &mut self,
        level: usize,
        pages: &mut [TouchedPage],
        roots: &[NodeHash],
    ) -> Result<(), ForestError<P::Error>> {
        let mut wanted = Vec::new();
        for (at, (page, root)) in pages.iter_mut().zip(roots).enumerate() {
            let id = PageId::new(level, page.index);
            match self.cache.find(id) {
                Some(slot) => page.set(slot, self.shape_of(slot, root)),
                None if root.is_empty() => {
                    let slot = self.cache.insert(id, Page::default());
                    page.set(slot, Shape::new(0));
                }
                None => wanted.push(WantedPage { at, root: *root }),
            }
        }
        let ids: Vec<PageId> =
            wanted.iter().map(|wanted| PageId::new(level, pages[wanted.at].index)).collect();
        let read = self.read(&ids)?;
        let mut work = Vec::with_capacity(PAGES_AT_ONCE);
        let mut wanted = wanted.iter().zip(ids);
        let mut read = read.into_iter();
        while read.len() > 0 {
            for page in read.by_ref().take(PAGES_AT_ONCE) {
                let shape = page.shape();
                work.push(Work::new(page, shape, u64::MAX));
            }
            compute(&mut work);
            for (work, (wanted, id)) in work.drain(..).zip(&mut wanted) {
                let (found, expected) = (work.root(), wanted.root);
                if found != expected {
                    let fault = PageFault::Root { expected, found };
                    return Err(ForestError::Damaged { page: id, fault });
                }
                pages[wanted.at].set(self.cache.insert(id, work.page), work.shape);
            }
        }
        Ok(())
    }

    fn shape_of(&self, slot: Slot, root: &NodeHash) -> Shape {
        let page = self.cache.page(slot);
        let shape = page.shape();
        debug_assert_eq!(
            page.root(&shape),
            *root,
            "a page in memory differs from the page above it"
        );
        shape
    }

    /// Reads pages of one level.
    fn read(&mut self, ids: &[PageId]) -> Result<Vec<Page>, ForestError<P::Error>> {
        let (mut pages, mut bytes) = (Vec::with_capacity(ids.len()), Vec::new());
        for &page in ids {
            bytes.clear();
            let read = self.pages.read(page, &mut bytes);
            if !read.map_err(|source| ForestError::Read { page, source })? {
                return Err(ForestError::Missing { page });
            }
            let read = Page::read(&bytes);
            pages.push(read.map_err(|fault| ForestError::Damaged { page, fault })?);
            self.pages_read += 1;
        }
        Ok(pages)
    }

    /// Creates the pages of new levels. The first page of each holds the whole forest so far.
    pub(super) fn grow(&mut self, levels: &mut [Vec<TouchedPage>]) {
        let top = top(&self.roots);
        for (level, pages) in levels.iter_mut().enumerate().skip(level_count(self.leaves())) {
            for page in pages {
                let whole = if page.index == 0 { Page::of_first(top) } else { Page::default() };
                let (id, shape) = (PageId::new(level, page.index), whole.shape());
                page.set(self.cache.insert(id, whole), shape);
            }
        }
    }
}
