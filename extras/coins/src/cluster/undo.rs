//! Stores undo data in pieces: a block's data may take several hundred megabytes, and is never held here a
//! second time.

use super::buckets::EPOCH;
use super::connections::ClusterConnections;
use super::scan::Entries;
use super::wal::{StoreChange, UndoSize};
use apus_chain::{BlockHash, KnownBlock};
use apus_engine::utxo::StoreError;
use apus_engine::utxo::store::Flush;
use redis::cmd;
use std::collections::BTreeMap;

/// Length of every piece except the last, in bytes.
const PIECE_BYTES: usize = 512 << 10;

/// A piece's field name: the block's hash, then the piece number without leading zeros.
pub(super) fn field(block: &BlockHash, piece: u32) -> Vec<u8> {
    let zeros = piece.leading_zeros() as usize / 8;
    [&block.0[..], &piece.to_be_bytes()[zeros..]].concat()
}

/// The blocks with undo data, and its size.
fn stored(connections: &ClusterConnections) -> Result<BTreeMap<BlockHash, UndoSize>, StoreError> {
    let entries: Entries = connections.ask(cmd("HGETALL").arg(connections.keys.undo_blocks()))?;
    let read = |(hash, stored): (Vec<u8>, Vec<u8>)| {
        Some((BlockHash(hash.try_into().ok()?), UndoSize::from_bytes(&stored)?))
    };
    let strange = || {
        StoreError::damaged(
            connections.place(),
            format!("{} has an entry that is not a block", connections.keys.undo_blocks()),
        )
    };
    let blocks = entries.into_iter().filter(|(hash, _)| hash != EPOCH);
    blocks.map(|entry| read(entry).ok_or_else(strange)).collect()
}

/// Reports a flush's changes to the undo data, ordered by hash: new data, and data too old to keep.
pub(super) fn changes(
    connections: &ClusterConnections,
    flush: &Flush<'_>,
    each: &mut dyn FnMut(StoreChange<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let before = stored(connections)?;
    let mut blocks = BTreeMap::new();
    for (hash, stored) in &before {
        if stored.height < flush.undo_from {
            blocks.insert(*hash, None);
        }
    }
    for undo in flush.undo {
        let KnownBlock { height, hash } = undo.block;
        if height >= flush.undo_from {
            blocks.insert(hash, Some((height, &undo.bytes)));
        }
    }
    for (hash, after) in blocks {
        let mut pieces = 0;
        for piece in after.into_iter().flat_map(|(_, bytes)| bytes.chunks(PIECE_BYTES)) {
            each(StoreChange::Piece(hash, pieces, Some(&piece)))?;
            pieces += 1;
        }
        let known = before.get(&hash).map_or(0, |before| before.pieces);
        (pieces..known).try_for_each(|piece| each(StoreChange::Piece(hash, piece, None)))?;
        each(StoreChange::Undo(hash, after.map(|(height, _)| UndoSize { height, pieces })))?;
    }
    Ok(())
}

/// Reads the undo data of a block.
pub(super) fn read(
    connections: &ClusterConnections,
    block: &BlockHash,
) -> Result<Option<Vec<u8>>, StoreError> {
    let wrong = |what: &str| {
        StoreError::damaged(connections.place(), format!("undo data of block {block}: {what}"))
    };
    let get = |key: String, field: &[u8]| {
        connections.ask::<Option<Vec<u8>>>(cmd("HGET").arg(&key).arg(field))
    };
    let Some(stored) = get(connections.keys.undo_blocks(), &block.0)? else { return Ok(None) };
    let stored = UndoSize::from_bytes(&stored).ok_or_else(|| wrong("its size is missing"))?;
    let mut bytes = Vec::new();
    for piece in 0..stored.pieces {
        let piece = get(connections.keys.undo(block.0[0]), &field(block, piece))?;
        bytes.extend_from_slice(&piece.ok_or_else(|| wrong("a piece is missing"))?);
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_named_by_block_and_number() {
        let names = [0, 1, 255, 256].map(|piece| field(&BlockHash([7; 32]), piece)[32..].to_vec());
        assert_eq!(names, [vec![], vec![1], vec![255], vec![1, 0]]);
    }
}
