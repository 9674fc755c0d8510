//! Chunks: a flush, written ahead. Each is a string with a digest, which reveals a partial write.
//!
//! The names of a flush's chunks contain a random *token*. So two writers that each believe to be the only
//! one never write under the same name, and the record names the right chunks.

use super::connections::{ClusterConnections, Keys};
use super::servers::CommandPipe;
use crate::store::RandomId;
use apus_chain::{BlockHash, Height, OutPoint, Reader, Txid};
use apus_engine::utxo::StoreError;
use apus_hash::sha256;
use redis::cmd;
use std::ops::Range;

/// A chunk is closed once it reaches this size, in bytes.
const CHUNK_BYTES: usize = 512 << 10;

/// How many chunks to remove in one round trip.
const REMOVED_AT_ONCE: u32 = 1000;

const DIGEST_BYTES: usize = 8;

const COIN: u8 = 1;
const SPENT: u8 = 2;
const PIECE: u8 = 3;
const PIECE_GONE: u8 = 4;
const UNDO: u8 = 5;
const UNDO_GONE: u8 = 6;

/// The stored size of a block's undo data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UndoSize {
    pub(super) height: Height,
    pub(super) pieces: u32,
}

impl UndoSize {
    pub(super) fn to_bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.height.to_le_bytes());
        bytes[4..].copy_from_slice(&self.pieces.to_le_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (height, pieces) = bytes.split_first_chunk()?;
        let pieces = u32::from_le_bytes(pieces.try_into().ok()?);
        Some(Self { height: u32::from_le_bytes(*height), pieces })
    }
}

/// The resulting value under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreChange<'a> {
    /// A coin in its stored form, or `None` to remove it.
    Coin(OutPoint, Option<&'a [u8]>),
    /// A piece of a block's undo data, or `None` to remove it.
    Piece(BlockHash, u32, Option<&'a [u8]>),
    /// The size of a block's undo data, or `None` to remove it.
    Undo(BlockHash, Option<UndoSize>),
}

impl StoreChange<'_> {
    fn write(&self, bytes: &mut Vec<u8>) {
        let value = |bytes: &mut Vec<u8>, value: &[u8]| {
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            bytes.extend_from_slice(value);
        };
        match self {
            Self::Coin(outpoint, coin) => {
                bytes.push(if coin.is_some() { COIN } else { SPENT });
                bytes.extend_from_slice(&outpoint.txid.0);
                bytes.extend_from_slice(&outpoint.vout.to_le_bytes());
                if let Some(coin) = coin {
                    value(bytes, coin);
                }
            }
            Self::Piece(hash, piece, data) => {
                bytes.push(if data.is_some() { PIECE } else { PIECE_GONE });
                bytes.extend_from_slice(&hash.0);
                bytes.extend_from_slice(&piece.to_le_bytes());
                if let Some(data) = data {
                    value(bytes, data);
                }
            }
            Self::Undo(hash, stored) => {
                bytes.push(if stored.is_some() { UNDO } else { UNDO_GONE });
                bytes.extend_from_slice(&hash.0);
                if let Some(stored) = stored {
                    bytes.extend_from_slice(&stored.to_bytes());
                }
            }
        }
    }
}

/// Appends the digest.
pub(super) fn seal(bytes: &mut Vec<u8>) {
    let digest = sha256(bytes);
    bytes.extend_from_slice(&digest[..DIGEST_BYTES]);
}

/// Verifies and removes the digest. `None` if it does not match.
pub(super) fn unsealed(bytes: &[u8]) -> Option<&[u8]> {
    let (body, digest) = bytes.split_last_chunk::<DIGEST_BYTES>()?;
    (sha256(body)[..DIGEST_BYTES] == *digest).then_some(body)
}

/// The changes of a chunk, in order. `None` if the chunk is corrupt.
pub(super) fn changes(chunk: &[u8]) -> Option<Vec<StoreChange<'_>>> {
    let mut reader = Reader::new(unsealed(chunk)?);
    let mut changes = Vec::new();
    while reader.remaining() > 0 {
        let kind = reader.u8().ok()?;
        let hash = *reader.array().ok()?;
        changes.push(match kind {
            COIN | SPENT => {
                let outpoint = OutPoint { txid: Txid(hash), vout: reader.u32().ok()? };
                StoreChange::Coin(outpoint, value_if(kind == COIN, &mut reader)?)
            }
            PIECE | PIECE_GONE => {
                let piece = reader.u32().ok()?;
                let data = value_if(kind == PIECE, &mut reader)?;
                StoreChange::Piece(BlockHash(hash), piece, data)
            }
            UNDO => {
                let size = UndoSize::from_bytes(reader.take(8).ok()?)?;
                StoreChange::Undo(BlockHash(hash), Some(size))
            }
            UNDO_GONE => StoreChange::Undo(BlockHash(hash), None),
            _ => return None,
        });
    }
    Some(changes)
}

/// Reads an optional value. `None` if the bytes run out.
fn value_if<'a>(is_there: bool, reader: &mut Reader<'a>) -> Option<Option<&'a [u8]>> {
    if !is_there {
        return Some(None);
    }
    let length = reader.u32().ok()? as usize;
    reader.take(length).ok().map(Some)
}

/// Parses a chunk's changes and encodes them again, without the digest.
pub(crate) fn changes_as_written(chunk: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    changes(chunk)?.iter().for_each(|change| change.write(&mut bytes));
    Some(bytes)
}

/// Encodes changes into chunks, and passes each on when it is full.
pub(super) struct ChunkWriter<W> {
    chunk: Vec<u8>,
    number: u32,
    write: W,
}

impl<W: FnMut(u32, &[u8]) -> Result<(), StoreError>> ChunkWriter<W> {
    /// `write` receives each chunk with its number.
    pub(super) fn new(write: W) -> Self {
        Self { chunk: Vec::new(), number: 0, write }
    }

    pub(super) fn put(&mut self, change: StoreChange<'_>) -> Result<(), StoreError> {
        change.write(&mut self.chunk);
        if self.chunk.len() >= CHUNK_BYTES { self.close() } else { Ok(()) }
    }

    fn close(&mut self) -> Result<(), StoreError> {
        seal(&mut self.chunk);
        (self.write)(self.number, &self.chunk)?;
        self.number += 1;
        self.chunk.clear();
        Ok(())
    }

    /// Passes on the last chunk. Returns the number of chunks.
    pub(super) fn finish(mut self) -> Result<u32, StoreError> {
        if !self.chunk.is_empty() {
            self.close()?;
        }
        Ok(self.number)
    }
}

/// Announces that there may be chunks under a token from now on.
pub(super) fn announce(
    connections: &ClusterConnections,
    token: &RandomId,
) -> Result<(), StoreError> {
    connections.ask(cmd("SADD").arg(connections.keys.flushes()).arg(&token.0))
}

/// Writes a chunk.
pub(super) fn write(
    connections: &ClusterConnections,
    token: &RandomId,
    number: u32,
    chunk: &[u8],
) -> Result<(), StoreError> {
    connections.ask(cmd("SET").arg(connections.keys.chunk(token, number)).arg(chunk))
}

/// Removes all chunks of a token, and the token.
pub(super) fn remove(connections: &ClusterConnections, token: &RandomId) -> Result<(), StoreError> {
    let chunks = count(connections, token)?;
    remove_all(connections, token, chunks)
}

/// An upper bound for a token's chunk numbers: no chunk has this number or a higher one. Chunks are written
/// in ascending order and removed in descending order, one group at a time. So if a whole group is missing,
/// nothing follows it.
fn count(connections: &ClusterConnections, token: &RandomId) -> Result<u32, StoreError> {
    let mut from = 0;
    while from <= u32::MAX - REMOVED_AT_ONCE {
        let pipe = of_each(&connections.keys, token, from..from + REMOVED_AT_ONCE, "EXISTS");
        let there = connections.run(|to| to.answers::<u64>(&pipe))?;
        if there.iter().all(|there| *there == 0) {
            break;
        }
        from += REMOVED_AT_ONCE;
    }
    Ok(from)
}

/// Removes the first `chunks` chunks of a token, which must be all, and the token.
pub(super) fn remove_all(
    connections: &ClusterConnections,
    token: &RandomId,
    chunks: u32,
) -> Result<(), StoreError> {
    for at in (0..chunks.div_ceil(REMOVED_AT_ONCE)).rev() {
        let from = at * REMOVED_AT_ONCE;
        let pipe = of_each(
            &connections.keys,
            token,
            from..chunks.min(from.saturating_add(REMOVED_AT_ONCE)),
            "DEL",
        );
        connections.run(|to| to.answers::<u64>(&pipe))?;
    }
    connections.ask(cmd("SREM").arg(connections.keys.flushes()).arg(&token.0))
}

/// One command for each of several chunks.
fn of_each(keys: &Keys, token: &RandomId, numbers: Range<u32>, command: &str) -> CommandPipe {
    let mut pipe = CommandPipe::default();
    for number in numbers {
        let key = keys.chunk(token, number);
        pipe.add(key.as_bytes(), cmd(command).arg(&key));
    }
    pipe
}

/// Removes the chunks that earlier writers' flushes left behind. No record refers to any of them.
pub(super) fn remove_leftovers(connections: &ClusterConnections) -> Result<(), StoreError> {
    let members: Vec<Vec<u8>> = connections.ask(cmd("SMEMBERS").arg(connections.keys.flushes()))?;
    for member in members {
        let token = member.try_into().map(RandomId).map_err(|_| {
            StoreError::damaged(
                connections.place(),
                format!("{} has a member that is not a store's", connections.keys.flushes()),
            )
        })?;
        remove(connections, &token)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    type Coin = ([u8; 32], u32, Option<Vec<u8>>);
    type Undo = ([u8; 32], Option<(u32, u32)>, Option<Vec<u8>>);

    fn all<'a>(coins: &'a [Coin], undo: &'a [Undo]) -> Vec<StoreChange<'a>> {
        let coins = coins.iter().map(|(txid, vout, coin)| {
            StoreChange::Coin(OutPoint { txid: Txid(*txid), vout: *vout }, coin.as_deref())
        });
        let undo = undo.iter().flat_map(|(hash, stored, data)| {
            let hash = BlockHash(*hash);
            let stored = stored.map(|(height, pieces)| UndoSize { height, pieces });
            let piece = stored.map_or(7, |stored| stored.pieces);
            [StoreChange::Piece(hash, piece, data.as_deref()), StoreChange::Undo(hash, stored)]
        });
        coins.chain(undo).collect()
    }

    fn chunks(changes: &[StoreChange<'_>]) -> Vec<Vec<u8>> {
        let mut written = Vec::new();
        let mut chunks = ChunkWriter::new(|number, chunk: &[u8]| {
            assert_eq!(number as usize, written.len());
            written.push(chunk.to_vec());
            Ok(())
        });
        changes.iter().for_each(|change| chunks.put(*change).unwrap());
        let count = chunks.finish().unwrap();
        assert_eq!(count as usize, written.len());
        written
    }

    proptest! {
        #[test]
        fn changes_are_read_as_they_were_written(
            coins in vec((any::<[u8; 32]>(), any::<u32>(), option::of(vec(any::<u8>(), 0..60))), 0..20),
            undo in vec(
                (
                    any::<[u8; 32]>(),
                    option::of(any::<(u32, u32)>()),
                    option::of(vec(any::<u8>(), 0..60)),
                ),
                0..5,
            ),
            at: prop::sample::Index,
            flip in 1u8..,
        ) {
            let written = all(&coins, &undo);
            let chunks = chunks(&written);
            prop_assert_eq!(chunks.len(), usize::from(!written.is_empty()));
            for mut chunk in chunks {
                prop_assert_eq!(changes(&chunk), Some(written.clone()));
                let at = at.index(chunk.len());
                chunk[at] ^= flip;
                prop_assert_eq!(changes(&chunk), None);
                prop_assert_eq!(changes(&chunk[..at]), None);
            }
        }

        #[test]
        fn sealed_bytes_are_not_necessarily_a_chunk(bytes in vec(0u8..8, 0..120)) {
            let mut sealed = bytes.clone();
            seal(&mut sealed);
            if let Some(read) = changes(&sealed) {
                let mut again = Vec::new();
                read.iter().for_each(|change| change.write(&mut again));
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn many_changes_take_several_chunks() {
        let coins: Vec<Coin> = (0..700).map(|vout| ([7; 32], vout, Some(vec![1; 5000]))).collect();
        let written = all(&coins, &[]);
        let chunks = chunks(&written);
        assert_eq!(chunks.len(), 7);
        assert!(chunks.iter().all(|chunk| chunk.len() < CHUNK_BYTES + 6000));
        let read: Vec<_> = chunks.iter().flat_map(|chunk| changes(chunk).unwrap()).collect();
        assert_eq!(read, written);
    }

    #[test]
    fn the_size_of_undo_data_round_trips() {
        let stored = UndoSize { height: 900_000, pieces: 300 };
        assert_eq!(UndoSize::from_bytes(&stored.to_bytes()), Some(stored));
        assert_eq!(UndoSize::from_bytes(&stored.to_bytes()[..7]), None);
    }
}
