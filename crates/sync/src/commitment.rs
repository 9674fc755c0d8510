//! [`SetCommitment`]: the seam for an output that is no list of coins: it is made of a hash of each, in the order in which
//! the chain made them.
//!
//! Every output that can be spent, and that its own block does not spend, has a *number*, counted in its block, and so a
//! *place* among all of the chain. Engines tell where the coins are that survive, and keep the hashes that the commitment
//! has of them. The outputs of the two coinbases that history overwrote (BIP-30) survive here: no spend took them.
//! What is made of it all they do not know.

mod sorted;
mod stored;

pub(crate) use sorted::SortedHashes;
pub(crate) use stored::StoredHashes;

use crate::error::SyncError;
use crate::request::RunEnv;
use apus_chain::{BlockHash, CoinRef, Height, OutPoint, Reader, write_compact_size};
use core::ops::Range;

/// The hash of a coin.
pub type CoinHash = [u8; 32];

/// Makes a hasher, for each thread and segment one.
pub type NewHasher = fn() -> Box<dyn CoinHasher>;

/// Hashes coins, which come one after the other from where they do not stay.
pub trait CoinHasher: Send {
    /// Takes a coin, with the block that made it. Once there are enough, the hashes of all that came are appended to
    /// `out`, in the order in which they came.
    fn push(
        &mut self,
        block: &BlockHash,
        outpoint: &OutPoint,
        coin: CoinRef<'_>,
        out: &mut Vec<CoinHash>,
    );

    /// Appends the hashes of those that came and were not hashed yet.
    fn flush(&mut self, out: &mut Vec<CoinHash>);
}

/// See the module.
pub trait SetCommitment: Sync {
    /// What hashes coins.
    fn hasher(&self) -> NewHasher;

    /// Whether this run is to make it. One that is not goes on all the same with what an earlier start began.
    fn is_wanted(&self) -> bool;

    /// Makes it of the hashes of all coins that survive. It is not to be seen yet: the set is not proven.
    fn make(&self, env: &RunEnv<'_>, hashes: &dyn HashParts) -> Result<(), SyncError>;

    /// Takes it, in bytes, as other machines made it, which know what it is.
    fn take_made(&self, bytes: &[u8]) -> Result<(), SyncError>;

    /// Shows what was made: the set is proven.
    fn publish(&self) -> Result<(), SyncError>;
}

/// The hashes of all coins that survive, in parts of which each has all those of a range of places.
pub trait HashParts: Sync {
    /// How many parts there are.
    fn count(&self) -> usize;

    /// Bytes of all of them.
    fn bytes(&self) -> u64;

    /// The places of a part. Parts follow one another, from place 0 on.
    fn places(&self, part: usize) -> Range<u64>;

    /// Gives each hash of a part by ascending place, all within its [places](Self::places). How many bytes it was.
    fn part(&self, part: usize, each: &mut EachHash<'_>) -> Result<u64, SyncError>;
}

/// Takes hashes one by one.
pub type EachHash<'e> = dyn FnMut(PlacedHash) -> Result<(), SyncError> + 'e;

/// Gives on hashes by ascending place, within a range of places.
struct Ascending<'e, 'f> {
    /// Where the next one may be.
    free: u64,
    end: u64,
    each: &'e mut EachHash<'f>,
}

impl Ascending<'_, '_> {
    /// `false` where it does not come behind those before it, or not within the range, so that what it was read from
    /// cannot be right.
    fn take(&mut self, hash: PlacedHash) -> Result<bool, SyncError> {
        if hash.place < self.free || hash.place >= self.end {
            return Ok(false);
        }
        self.free = hash.place + 1;
        (self.each)(hash).map(|()| true)
    }
}

/// The hash of a coin that survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedHash {
    /// Which one it is of the outputs that are counted, from 0 on.
    pub place: u64,
    /// The hash.
    pub hash: CoinHash,
}

/// Appends hashes in ascending order: for each a CompactSize, how many places lie between it and the one before, and its
/// 32 bytes.
pub fn write_placed(hashes: impl IntoIterator<Item = PlacedHash>, out: &mut Vec<u8>) {
    let mut free = 0;
    for PlacedHash { place, hash } in hashes {
        write_compact_size(out, place - free);
        out.extend_from_slice(&hash);
        free = place + 1;
    }
}

/// What [`write_placed`] wrote, one by one; a `None` ends it where the bytes are no such thing.
pub fn read_placed(bytes: &[u8]) -> impl Iterator<Item = Option<PlacedHash>> {
    let (mut reader, mut free) = (Reader::new(bytes), Some(0u64));
    std::iter::from_fn(move || {
        let first = free.filter(|_| reader.remaining() > 0)?;
        let mut read = || {
            let gap = reader.compact_max(u64::MAX).ok()?;
            let hash = *reader.array().ok()?;
            Some(PlacedHash { place: first.checked_add(gap)?, hash })
        };
        let placed = read();
        free = placed.and_then(|placed| placed.place.checked_add(1));
        Some(placed)
    })
}

// [`BlockPlaces`]: where the numbered outputs of each block are among all.

/// How many numbered outputs there are before each block from height 1 on: 8 bytes for each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockPlaces {
    before: Vec<u64>,
    /// Those of all blocks, if it is known of the last one how many it has.
    end: Option<u64>,
}

impl BlockPlaces {
    /// Those of blocks with so many before each; none where the numbers do not ascend from 0.
    pub fn from_counts(before: Vec<u64>) -> Option<Self> {
        let is_first = before.first().is_none_or(|first| *first == 0);
        (is_first && before.is_sorted()).then_some(Self { before, end: None })
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> Height {
        self.before.len() as Height
    }

    /// Says how many outputs there are in all.
    pub fn set_end(&mut self, outputs: u64) {
        self.end = Some(outputs);
    }

    /// Adds a block with so many.
    pub fn push(&mut self, outputs: u64) {
        let first = self.end.unwrap_or_default();
        self.before.push(first);
        self.end = Some(first + outputs);
    }

    /// How many there are before each of the blocks above a height.
    pub fn above(&self, height: Height) -> &[u64] {
        self.before.get(height as usize..).unwrap_or_default()
    }

    /// The place of a block's output of this number; none where the block has no such output, or is not there.
    pub fn of(&self, height: Height, number: u32) -> Option<u64> {
        let at = height.checked_sub(1)? as usize;
        let first = *self.before.get(at)?;
        let end = self.before.get(at + 1).copied().or(self.end)?;
        Some(first + u64::from(number)).filter(|place| *place < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hashes_come_back(
            gaps in prop::collection::vec((0u64..1 << 40, any::<[u8; 32]>()), 0..20),
            cut: prop::sample::Index,
        ) {
            let mut free = 0;
            let placed: Vec<PlacedHash> = gaps
                .into_iter()
                .map(|(gap, hash)| {
                    let place = free + gap;
                    free = place + 1;
                    PlacedHash { place, hash }
                })
                .collect();
            let mut out = Vec::new();
            write_placed(placed.iter().copied(), &mut out);
            let all: Option<Vec<PlacedHash>> = read_placed(&out).collect();
            prop_assert_eq!(all.as_ref(), Some(&placed));
            let cut = cut.index(out.len() + 1);
            let some: Option<Vec<PlacedHash>> = read_placed(&out[..cut]).collect();
            if let Some(some) = some {
                prop_assert_eq!(&some[..], &placed[..some.len()]);
                let mut again = Vec::new();
                write_placed(some, &mut again);
                prop_assert_eq!(&again, &out[..cut]);
            }
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read_placed(&bytes).count() <= bytes.len());
        }
    }

    /// Places are no more than there are numbers.
    #[test]
    fn places_do_not_run_over() {
        let mut out = Vec::new();
        for _ in 0..3 {
            write_compact_size(&mut out, u64::MAX - 1);
            out.extend_from_slice(&[1; 32]);
        }
        let read: Vec<_> = read_placed(&out).collect();
        assert_eq!(read.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn outputs_are_found_by_block_and_number() {
        let mut places = BlockPlaces::default();
        [3, 0, 2].into_iter().for_each(|outputs| places.push(outputs));
        assert_eq!(places.blocks(), 3);
        let of = |height| (0..4).filter_map(|number| places.of(height, number)).collect();
        let all: [Vec<u64>; 5] = [0, 1, 2, 3, 4].map(of);
        assert_eq!(all, [vec![], vec![0, 1, 2], vec![], vec![3, 4], vec![]]);
        assert_eq!(places.above(1), [3, 3]);
        assert!(places.above(9).is_empty());
        let mut read = BlockPlaces::from_counts(vec![0, 3, 3]).unwrap();
        assert_eq!((read.of(1, 2), read.of(3, 0)), (Some(2), None));
        read.set_end(5);
        assert_eq!(read, places);
        assert!(BlockPlaces::from_counts(vec![1]).is_none());
        assert!(BlockPlaces::from_counts(vec![0, 4, 3]).is_none());
    }
}
