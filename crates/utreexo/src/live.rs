//! The live leaves of a range, and how they are written down.

use crate::NodeHash;
use apus_chain::{Reader, write_compact_size};

/// A leaf that was not deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveLeaf {
    /// Which one of the leaves of its range it is, counted from 0.
    pub place: u64,
    /// Its hash.
    pub hash: NodeHash,
}

/// Appends live leaves in ascending order: for each a CompactSize, how many leaves lie between it and the one
/// before, and the 32 bytes of its hash.
pub fn write_live(live: impl IntoIterator<Item = LiveLeaf>, out: &mut Vec<u8>) {
    let mut free = 0;
    for LiveLeaf { place, hash } in live {
        write_compact_size(out, place - free);
        out.extend_from_slice(&hash.0);
        free = place + 1;
    }
}

/// What [`write_live`] wrote, leaf by leaf; a `None` ends it where the bytes are no such thing.
pub fn read_live(bytes: &[u8]) -> impl Iterator<Item = Option<LiveLeaf>> {
    let (mut reader, mut free) = (Reader::new(bytes), Some(0u64));
    std::iter::from_fn(move || {
        let first = free.filter(|_| reader.remaining() > 0)?;
        let mut read = || {
            let gap = reader.compact_max(u64::MAX).ok()?;
            let hash = NodeHash(*reader.array().ok()?);
            Some(LiveLeaf { place: first.checked_add(gap)?, hash })
        };
        let leaf = read();
        free = leaf.and_then(|leaf| leaf.place.checked_add(1));
        Some(leaf)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn live_leaves_come_back(
            gaps in prop::collection::vec((0u64..1 << 40, any::<[u8; 32]>()), 0..20),
            cut: prop::sample::Index,
        ) {
            let mut free = 0;
            let live: Vec<LiveLeaf> = gaps
                .into_iter()
                .map(|(gap, hash)| {
                    let place = free + gap;
                    free = place + 1;
                    LiveLeaf { place, hash: NodeHash(hash) }
                })
                .collect();
            let mut out = Vec::new();
            write_live(live.iter().copied(), &mut out);
            let all: Option<Vec<LiveLeaf>> = read_live(&out).collect();
            prop_assert_eq!(all.as_ref(), Some(&live));
            let cut = cut.index(out.len() + 1);
            let some: Option<Vec<LiveLeaf>> = read_live(&out[..cut]).collect();
            if let Some(some) = some {
                prop_assert_eq!(&some[..], &live[..some.len()]);
                let mut again = Vec::new();
                write_live(some, &mut again);
                prop_assert_eq!(&again, &out[..cut]);
            }
        }

        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read_live(&bytes).count() <= bytes.len());
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
        let read: Vec<_> = read_live(&out).collect();
        assert_eq!(read.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
    }
}
