//! The hints of a segment, encoded as an object.
//!
//! ```text
//! 8     41 50 55 53 54 4f 4c 44   "APUSTOLD"
//! 4     version
//! 4     first height
//! 4     first height after
//! 1     0: by index; 1: by outpoint
//! …     by index, for each height: CompactSize number of surviving outputs, and for each a CompactSize: its index
//!       among the spendable outputs, minus the index before and minus one
//!       by outpoint, for each height: CompactSize number of surviving outputs, and their outpoints (36), ascending
//! ```

use super::wire::{WireError, begin, open, read_range, write_range};
use apus_chain::{HeightRange, OutPoint, Reader, write_compact_size};
use apus_sync::engines::swiftsync::{CoinHints, IndexHints, SegmentHints};

/// First bytes of a segment's hints.
const MAGIC: &[u8; 8] = b"APUSTOLD";

const WHAT: &str = "the hints of the segment";

/// Encodes hints.
pub(crate) fn write(hints: &SegmentHints) -> Vec<u8> {
    let mut out = begin(MAGIC);
    let range = hints.range();
    write_range(range, &mut out);
    match hints {
        SegmentHints::Indices(hints) => {
            out.push(0);
            for height in range.heights() {
                let indices = hints.block(height).unwrap_or_default();
                write_compact_size(&mut out, indices.len() as u64);
                let mut next = 0;
                for &index in indices {
                    write_compact_size(&mut out, u64::from(index - next));
                    next = index + 1;
                }
            }
        }
        SegmentHints::Coins(hints) => {
            out.push(1);
            for height in range.heights() {
                let coins = hints.block(height).unwrap_or_default();
                write_compact_size(&mut out, coins.len() as u64);
                coins.iter().for_each(|outpoint| out.extend_from_slice(&outpoint.to_bytes()));
            }
        }
    }
    out
}

/// Decodes hints, which must be for `range`.
pub(crate) fn read(bytes: &[u8], range: HeightRange) -> Result<SegmentHints, WireError> {
    let mut reader = open(bytes, MAGIC, WHAT)?;
    let damaged = || WireError::Damaged { what: WHAT };
    if read_range(&mut reader).ok_or_else(damaged)? != range {
        return Err(WireError::OtherJob { what: WHAT });
    }
    let hints = match reader.u8() {
        Ok(0) => read_indices(&mut reader, range).map(SegmentHints::Indices),
        Ok(1) => read_coins(&mut reader, range).map(SegmentHints::Coins),
        _ => None,
    };
    hints.filter(|_| reader.remaining() == 0).ok_or_else(damaged)
}

fn read_indices(reader: &mut Reader<'_>, range: HeightRange) -> Option<IndexHints> {
    let mut hints = IndexHints::new(range.start);
    let mut indices = Vec::new();
    for _ in range.heights() {
        let mut next = 0_u32;
        for _ in 0..reader.compact_size().ok()? {
            let index = next.checked_add(u32::try_from(reader.compact_size().ok()?).ok()?)?;
            next = index.checked_add(1)?;
            indices.push(index);
        }
        hints.push(indices.drain(..));
    }
    Some(hints)
}

fn read_coins(reader: &mut Reader<'_>, range: HeightRange) -> Option<CoinHints> {
    let mut hints = CoinHints::new(range.start);
    for _ in range.heights() {
        let count = reader.compact_size().ok()?;
        let coins = reader.take(count.checked_mul(OutPoint::SIZE)?).ok()?;
        hints.push(coins.as_chunks().0.iter().map(OutPoint::from_bytes));
    }
    Some(hints)
}

#[cfg(test)]
mod tests {
    use super::super::wire::any_payload;
    use super::*;
    use apus_chain::Txid;
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn hints_round_trip(
            start in 0u32..1_000_000,
            blocks in vec(btree_set(0u32..3_000_000, 0..5), 1..10),
            coins in vec((any::<prop::sample::Index>(), any::<[u8; 32]>(), any::<u32>()), 0..20),
        ) {
            let mut indices = IndexHints::new(start);
            for block in &blocks {
                indices.push(block.iter().copied());
            }
            let range = indices.range();
            let coin = |(at, txid, vout): (prop::sample::Index, _, _)| {
                let height = range.start + at.index(blocks.len()) as u32;
                (height, OutPoint { txid: Txid(txid), vout })
            };
            let coins: Vec<_> = coins.into_iter().map(coin).collect();
            let coins = CoinHints::of(range, coins.iter().copied()).unwrap();
            for hints in [SegmentHints::Indices(indices), SegmentHints::Coins(coins)] {
                let bytes = write(&hints);
                prop_assert_eq!(read(&bytes, range), Ok(hints));
                let other = HeightRange::new(range.start, range.end + 1);
                let refused = WireError::OtherJob { what: WHAT };
                prop_assert_eq!(read(&bytes, other), Err(refused));
                prop_assert!(read(&[&bytes[..], &[0]].concat(), range).is_err());
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused((range, bytes) in any_payload(MAGIC)) {
            let _ = read(&bytes, range);
        }
    }
}
