//! Stores undo data in pieces: a block's data may take several hundred megabytes, and is never held here a
//! second time.

use super::buckets::EPOCH;
use super::connections::ClusterConnections;
use super::scan::Entries;
use super::wal::{StoreChange, UndoSize};
use apus_chain::{BlockHash, KnownBlock};
use apus_engine::utxo::StoreError;
use apus_engine::utxo::store::{Flush, OWN_RECORD};
use redis::cmd;
use std::collections::BTreeMap;

/// Length of every piece except the last, in bytes.
const PIECE_BYTES: usize = 512 << 10;

/// Upper bound of a block's undo data, in bytes: twice what a block can spend.
const UNDO_BYTES_MAX: usize = 512 << 20;

/// Upper bound of what a program keeps with the coins, in bytes.
const OWN_BYTES_MAX: usize = 4096;

/// Most pieces of a block.
const PIECES_MAX: u32 = (UNDO_BYTES_MAX / PIECE_BYTES) as u32;

/// A piece's field name: the block's hash, then the piece number without leading zeros.
pub(super) fn field(block: &BlockHash, piece: u32) -> Vec<u8> {
    let zeros = piece.leading_zeros() as usize / 8;
    [&block.0[..], &piece.to_be_bytes()[zeros..]].concat()
}

/// The blocks with undo data, and its size.
fn stored(connections: &ClusterConnections) -> Result<BTreeMap<BlockHash, UndoSize>, StoreError> {
    let entries: Entries = connections.ask(cmd("HGETALL").arg(connections.keys.undo_blocks()))?;
    let read = |(hash, stored): (Vec<u8>, Vec<u8>)| {
        let stored = UndoSize::from_bytes(&stored).filter(|it| it.pieces <= PIECES_MAX)?;
        Some((BlockHash(hash.try_into().ok()?), stored))
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

/// Reads the undo data of a block. Fails if a server gives more than any block has.
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
    let (pieces_max, bytes_max) = match *block == OWN_RECORD.hash {
        true => (1, OWN_BYTES_MAX),
        false => (PIECES_MAX, PIECE_BYTES),
    };
    if stored.pieces > pieces_max {
        return Err(wrong("it has too many pieces"));
    }
    let mut bytes = Vec::new();
    for piece in 0..stored.pieces {
        let piece = get(connections.keys.undo(block.0[0]), &field(block, piece))?;
        let piece = piece.ok_or_else(|| wrong("a piece is missing"))?;
        if piece.len() > bytes_max {
            return Err(wrong("a piece is too long"));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeServer, bulk};
    use super::*;

    /// A server with this many pieces, each of this length, of any block.
    fn server(pieces: u32, length: usize) -> FakeServer {
        let size = UndoSize { height: 1, pieces }.to_bytes();
        FakeServer::start(move |_, words| match words[1].ends_with(b":undo") {
            true => Some(bulk(&size)),
            false => Some(bulk(&vec![7; length])),
        })
    }

    #[test]
    fn a_server_cannot_make_us_hold_more_than_any_block_has() {
        let block = BlockHash([7; 32]);
        for (block, pieces, length, accepted) in [
            (block, 2, PIECE_BYTES, true),
            (block, 1, PIECE_BYTES + 1, false),
            (block, PIECES_MAX, 1, true),
            (block, PIECES_MAX + 1, 0, false),
            (OWN_RECORD.hash, 1, OWN_BYTES_MAX, true),
            (OWN_RECORD.hash, 1, OWN_BYTES_MAX + 1, false),
            (OWN_RECORD.hash, 2, 1, false),
        ] {
            let read = read(&server(pieces, length).connections(), &block);
            match read {
                Ok(bytes) => assert!(accepted && bytes.unwrap().len() == pieces as usize * length),
                Err(error) => assert!(!accepted && error.to_string().contains(" too ")),
            }
        }
    }

    #[test]
    fn pieces_are_named_by_block_and_number() {
        let names = [0, 1, 255, 256].map(|piece| field(&BlockHash([7; 32]), piece)[32..].to_vec());
        assert_eq!(names, [vec![], vec![1], vec![255], vec![1, 0]]);
    }
}
