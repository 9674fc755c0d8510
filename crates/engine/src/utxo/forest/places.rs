//! [`Places`]: which leaves of the forest are those of a block.

use apus_chain::Height;

/// How many leaves there are before each block from height 1 on: 8 bytes for each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    before: Vec<u64>,
    /// Leaves of all blocks, if it is known of the last one how many it has.
    end: Option<u64>,
}

impl Places {
    /// Those of blocks with so many leaves before each; none where the numbers do not ascend from 0.
    pub fn from_leaves(before: Vec<u64>) -> Option<Self> {
        let is_first = before.first().is_none_or(|first| *first == 0);
        (is_first && before.is_sorted()).then_some(Self { before, end: None })
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> Height {
        self.before.len() as Height
    }

    /// Says how many leaves there are in all.
    pub fn set_end(&mut self, leaves: u64) {
        self.end = Some(leaves);
    }

    /// Adds a block with so many leaves.
    pub fn push(&mut self, leaves: u64) {
        let first = self.end.unwrap_or_default();
        self.before.push(first);
        self.end = Some(first + leaves);
    }

    /// How many leaves there are before each of the blocks above a height.
    pub fn above(&self, height: Height) -> &[u64] {
        self.before.get(height as usize..).unwrap_or_default()
    }

    /// Which leaf of all is number `number` of a block's; none where the block has no such leaf, or is not there.
    pub fn leaf(&self, height: Height, number: u32) -> Option<u64> {
        let at = height.checked_sub(1)? as usize;
        let first = *self.before.get(at)?;
        let end = self.before.get(at + 1).copied().or(self.end)?;
        Some(first + u64::from(number)).filter(|leaf| *leaf < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_found_by_block_and_number() {
        let mut places = Places::default();
        [3, 0, 2].into_iter().for_each(|leaves| places.push(leaves));
        assert_eq!(places.blocks(), 3);
        let of = |height| (0..4).filter_map(|number| places.leaf(height, number)).collect();
        let all: [Vec<u64>; 5] = [0, 1, 2, 3, 4].map(of);
        assert_eq!(all, [vec![], vec![0, 1, 2], vec![], vec![3, 4], vec![]]);
        assert_eq!(places.above(1), [3, 3]);
        assert!(places.above(9).is_empty());
        let mut read = Places::from_leaves(vec![0, 3, 3]).unwrap();
        assert_eq!((read.leaf(1, 2), read.leaf(3, 0)), (Some(2), None));
        read.set_end(5);
        assert_eq!(read, places);
        assert!(Places::from_leaves(vec![1]).is_none());
        assert!(Places::from_leaves(vec![0, 4, 3]).is_none());
    }
}
