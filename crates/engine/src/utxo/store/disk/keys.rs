//! Keys and records of the tree.
//!
//! Keys are ordered as the trait requires: coins ascend by txid bytes, then by vout. The first byte
//! gives the kind of an entry, so that all kinds are written in one pass.

use apus_chain::{BlockHash, Height, KnownBlock, OutPoint, Txid};

/// The store's position: [`StoredTip`].
pub(super) const TIP: [u8; 1] = [0];
const COIN: u8 = 1;
const UNDO_HEIGHT: u8 = 2;
const UNDO: u8 = 3;

pub(super) const COIN_BYTES: usize = 37;
pub(super) const UNDO_BYTES: usize = 37;

/// Returns the key of a coin.
pub(super) fn coin(outpoint: &OutPoint) -> [u8; COIN_BYTES] {
    let mut key = [COIN; COIN_BYTES];
    key[1..33].copy_from_slice(&outpoint.txid.0);
    key[33..].copy_from_slice(&outpoint.vout.to_be_bytes());
    key
}

/// Returns the coin of a key.
pub(super) fn outpoint(key: &[u8]) -> Option<OutPoint> {
    let key: &[u8; COIN_BYTES] = key.try_into().ok()?;
    let (txid, vout) = key[1..].split_first_chunk::<32>()?;
    let vout = u32::from_be_bytes(vout.try_into().ok()?);
    (key[0] == COIN).then_some(OutPoint { txid: Txid(*txid), vout })
}

/// Returns the range of all coin keys.
pub(super) fn coins() -> std::ops::Range<[u8; 1]> {
    [COIN]..[COIN + 1]
}

/// Returns the key for the height of a block with undo data.
pub(super) fn undo_height(block: &BlockHash) -> [u8; 33] {
    let mut key = [UNDO_HEIGHT; 33];
    key[1..].copy_from_slice(&block.0);
    key
}

/// Returns the key of undo data: by height, so that old data is contiguous.
pub(super) fn undo(block: &KnownBlock) -> [u8; UNDO_BYTES] {
    let mut key = [UNDO; UNDO_BYTES];
    key[1..5].copy_from_slice(&block.height.to_be_bytes());
    key[5..].copy_from_slice(&block.hash.0);
    key
}

/// Returns the range of undo data keys for the heights `from..to`.
pub(super) fn undo_range(from: Height, to: Height) -> std::ops::Range<[u8; 5]> {
    let key = |height: Height| {
        let mut key = [UNDO; 5];
        key[1..].copy_from_slice(&height.to_be_bytes());
        key
    };
    key(from)..key(to)
}

/// Returns the block of an undo data key.
pub(super) fn undo_block(key: &[u8]) -> Option<KnownBlock> {
    let key: &[u8; UNDO_BYTES] = key.try_into().ok()?;
    let (height, hash) = key[1..].split_first_chunk::<4>()?;
    let hash = BlockHash(hash.try_into().ok()?);
    (key[0] == UNDO).then_some(KnownBlock { height: Height::from_be_bytes(*height), hash })
}

/// Reads a height from a value.
pub(super) fn height(bytes: &[u8]) -> Option<Height> {
    bytes.try_into().ok().map(Height::from_be_bytes)
}

/// The record at [`TIP`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredTip {
    /// The block that the store is at.
    pub(super) block: KnownBlock,
    /// There is no undo data of blocks below this height.
    pub(super) undo_from: Height,
}

impl StoredTip {
    pub(super) fn to_bytes(self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..4].copy_from_slice(&self.block.height.to_be_bytes());
        bytes[4..36].copy_from_slice(&self.block.hash.0);
        bytes[36..].copy_from_slice(&self.undo_from.to_be_bytes());
        bytes
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 40] = bytes.try_into().ok()?;
        let hash = BlockHash(bytes[4..36].try_into().ok()?);
        let block = KnownBlock { height: height(&bytes[..4])?, hash };
        Some(Self { block, undo_from: height(&bytes[36..])? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_can_be_read_back(hash: [u8; 32], number: u32, other: u32) {
            let at = OutPoint { txid: Txid(hash), vout: number };
            prop_assert_eq!(outpoint(&coin(&at)), Some(at));
            let block = KnownBlock { height: number, hash: BlockHash(hash) };
            prop_assert_eq!(undo_block(&undo(&block)), Some(block));
            let tip = StoredTip { block, undo_from: other };
            prop_assert_eq!(StoredTip::read(&tip.to_bytes()), Some(tip));
            prop_assert_eq!(outpoint(&undo(&block)), None);
            prop_assert_eq!(undo_block(&coin(&at)), None);
        }

        #[test]
        fn keys_of_coins_ascend_as_outpoints_do(a: [u8; 32], b: [u8; 32], x: u32, y: u32) {
            let (first, second) = (OutPoint { txid: Txid(a), vout: x }, OutPoint { txid: Txid(b), vout: y });
            prop_assert_eq!(coin(&first).cmp(&coin(&second)), first.cmp(&second));
            let second = OutPoint { txid: Txid(a), vout: y };
            prop_assert_eq!(coin(&first).cmp(&coin(&second)), x.cmp(&y));
        }

        #[test]
        fn undo_keys_are_in_the_range_of_their_height(hash: [u8; 32], height: u32, from: u32, to: u32) {
            let key = undo(&KnownBlock { height, hash: BlockHash(hash) });
            let range = undo_range(from, to);
            let inside = range.start[..] <= key[..] && key[..] < range.end[..];
            prop_assert_eq!(inside, from <= height && height < to);
        }

        #[test]
        fn other_bytes_are_not_a_record(bytes in proptest::collection::vec(any::<u8>(), 0..50)) {
            prop_assert_eq!(StoredTip::read(&bytes).is_some(), bytes.len() == 40);
            if let Some(at) = outpoint(&bytes) {
                prop_assert_eq!(&coin(&at)[..], &bytes[..]);
            }
            if let Some(block) = undo_block(&bytes) {
                prop_assert_eq!(&undo(&block)[..], &bytes[..]);
            }
        }
    }

    #[test]
    fn entries_are_written_tip_first() {
        let zero = BlockHash([0; 32]);
        let block = KnownBlock { height: 0, hash: zero };
        assert!(TIP[..] < coin(&OutPoint::default())[..]);
        let last = OutPoint { txid: Txid([255; 32]), vout: u32::MAX };
        assert!(coin(&last)[..] < coins().end[..]);
        assert!(coins().end[..] <= undo_height(&zero)[..]);
        assert!(undo_height(&BlockHash([255; 32]))[..] < undo(&block)[..]);
    }
}
