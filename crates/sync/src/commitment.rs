//! [`SetCommitment`]: the interface for an output that is not a list of coins but is computed from a hash of
//! each coin, in the order in which the chain created them.
//!
//! Every spendable output that its own block does not spend has a *number*, counted within its block, and so a
//! *place* among all such outputs of the chain. Engines report the places of the surviving coins and keep the
//! commitment's hashes of them; they do not know what the commitment computes from them. The outputs of the two
//! coinbases that history overwrote (BIP-30) survive here, because no spend took them.

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

/// Creates a hasher; each thread uses one for each segment.
pub type NewHasher = fn() -> Box<dyn CoinHasher>;

/// A hasher of coins that arrive one by one. It can copy a coin only during the call that passes it in.
pub trait CoinHasher: Send {
    /// Takes a coin, with the block that created it. Once enough coins have arrived, appends the hashes of all
    /// of them to `out`, in order of arrival.
    fn push(
        &mut self,
        block: &BlockHash,
        outpoint: &OutPoint,
        coin: CoinRef<'_>,
        out: &mut Vec<CoinHash>,
    );

    /// Appends the hashes of the coins that are still waiting to be hashed.
    fn flush(&mut self, out: &mut Vec<CoinHash>);
}

/// An output computed from the hashes of all surviving coins.
pub trait SetCommitment: Sync {
    /// Returns the factory of its hashers.
    fn hasher(&self) -> NewHasher;

    /// Whether this sync must make the commitment. If not, the sync still continues what an earlier start
    /// began.
    fn is_wanted(&self) -> bool;

    /// Makes the commitment from the hashes of all surviving coins, without publishing it: the set is not
    /// proven yet.
    fn make(&self, env: &RunEnv<'_>, hashes: &dyn HashParts) -> Result<(), SyncError>;

    /// Takes the encoded commitment that other machines made; those machines know its format.
    fn take_made(&self, bytes: &[u8]) -> Result<(), SyncError>;

    /// Publishes the commitment, once the set is proven.
    fn publish(&self) -> Result<(), SyncError>;
}

/// The hashes of all surviving coins, divided into parts; each part has all hashes within a range of places.
pub trait HashParts: Sync {
    /// Number of parts.
    fn count(&self) -> usize;

    /// Total bytes of all parts.
    fn bytes(&self) -> u64;

    /// The places of a part. The parts are contiguous, from place 0 on.
    fn places(&self, part: usize) -> Range<u64>;

    /// Passes each hash of a part to `each` by ascending place, all within its [places](Self::places).
    /// Returns the number of bytes read.
    fn part(&self, part: usize, each: &mut EachHash<'_>) -> Result<u64, SyncError>;
}

/// A callback that receives the hashes one by one.
pub type EachHash<'e> = dyn FnMut(PlacedHash) -> Result<(), SyncError> + 'e;

/// Passes on hashes by ascending place, within a range of places.
struct AscendingHashes<'e, 'f> {
    /// Lowest place that the next hash may have.
    free: u64,
    end: u64,
    each: &'e mut EachHash<'f>,
}

impl AscendingHashes<'_, '_> {
    /// Takes the next hash. Returns `false` if its place does not ascend or is out of range, which means that
    /// its file is damaged.
    fn take(&mut self, hash: PlacedHash) -> Result<bool, SyncError> {
        if hash.place < self.free || hash.place >= self.end {
            return Ok(false);
        }
        self.free = hash.place + 1;
        (self.each)(hash).map(|()| true)
    }
}

/// The hash of a surviving coin, with its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedHash {
    /// Position among all numbered outputs, from 0 on.
    pub place: u64,
    /// The hash.
    pub hash: CoinHash,
}

/// Appends hashes by ascending place. Each is a CompactSize (the number of places between it and the previous
/// one) and its 32 bytes.
pub fn write_placed(hashes: impl IntoIterator<Item = PlacedHash>, out: &mut Vec<u8>) {
    let mut free = 0;
    for PlacedHash { place, hash } in hashes {
        write_compact_size(out, place - free);
        out.extend_from_slice(&hash);
        free = place + 1;
    }
}

/// Reads what [`write_placed`] wrote, hash by hash; the iterator ends with a `None` if the bytes are invalid.
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

// [`BlockPlaces`]: the places of each block's numbered outputs.

/// The number of numbered outputs before each block, from height 1 on: 8 bytes a block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockPlaces {
    before: Vec<u64>,
    /// Number of outputs in all blocks, if the last block's count is known.
    end: Option<u64>,
}

impl BlockPlaces {
    /// Builds it from the number of outputs before each block; `None` if the numbers do not ascend from 0.
    pub fn from_counts(before: Vec<u64>) -> Option<Self> {
        let is_first = before.first().is_none_or(|first| *first == 0);
        (is_first && before.is_sorted()).then_some(Self { before, end: None })
    }

    /// Number of blocks.
    pub fn blocks(&self) -> Height {
        self.before.len() as Height
    }

    /// Sets the number of outputs in all blocks.
    pub fn set_end(&mut self, outputs: u64) {
        self.end = Some(outputs);
    }

    /// Adds a block with this number of outputs.
    pub fn push(&mut self, outputs: u64) {
        let first = self.end.unwrap_or_default();
        self.before.push(first);
        self.end = Some(first + outputs);
    }

    /// The number of outputs before each of the blocks above a height.
    pub fn above(&self, height: Height) -> &[u64] {
        self.before.get(height as usize..).unwrap_or_default()
    }

    /// The place of the block's output with this number; `None` if there is no such block or output.
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
        fn hashes_round_trip(
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
        fn reading_any_bytes_terminates(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read_placed(&bytes).count() <= bytes.len());
        }
    }

    /// A place that would overflow 64 bits is invalid.
    #[test]
    fn overflowing_places_are_refused() {
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
