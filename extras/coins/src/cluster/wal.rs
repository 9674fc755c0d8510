//! Chunks: a flush, written ahead. Each is a string with a digest, so one that was not written whole is
//! told from one that was.
//!
//! The names of a flush's chunks have a *token* in them that is random. So two writers that both
//! believe to be the one never write under the same name, and the record names what is meant.

use super::connections::{ClusterConnections, Keys};
use super::servers::CommandPipe;
use crate::store::RandomId;
use apus_chain::{BlockHash, Height, OutPoint, Reader, Txid};
use apus_engine::utxo::StoreError;
use apus_hash::sha256;
use redis::cmd;
use std::ops::Range;

/// From this size on a chunk is closed, in bytes.
const CHUNK_BYTES: usize = 512 << 10;

/// Chunks that are removed with one way to the servers.
const REMOVED_AT_ONCE: u32 = 1000;

const DIGEST_BYTES: usize = 8;

const COIN: u8 = 1;
const SPENT: u8 = 2;
const PIECE: u8 = 3;
const PIECE_GONE: u8 = 4;
const UNDO: u8 = 5;
const UNDO_GONE: u8 = 6;

/// What of a block's undo data there is.
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

/// What is under a name afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreChange<'a> {
    /// A coin in its stored form, or none.
    Coin(OutPoint, Option<&'a [u8]>),
    /// A piece of a block's undo data, or none.
    Piece(BlockHash, u32, Option<&'a [u8]>),
    /// What there is of a block's undo data, or nothing.
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

/// Puts the digest behind bytes.
pub(super) fn seal(bytes: &mut Vec<u8>) {
    let digest = sha256(bytes);
    bytes.extend_from_slice(&digest[..DIGEST_BYTES]);
}

/// The bytes before their digest; none where it is not theirs.
pub(super) fn unsealed(bytes: &[u8]) -> Option<&[u8]> {
    let (said, digest) = bytes.split_last_chunk::<DIGEST_BYTES>()?;
    (sha256(said)[..DIGEST_BYTES] == *digest).then_some(said)
}

/// The changes of a chunk, in their order; none where it is not what was written.
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

/// A value, where there is one; none where the bytes run out.
fn value_if<'a>(is_there: bool, reader: &mut Reader<'a>) -> Option<Option<&'a [u8]>> {
    if !is_there {
        return Some(None);
    }
    let length = reader.u32().ok()? as usize;
    reader.take(length).ok().map(Some)
}

/// The changes of a chunk as they are written, without the digest.
pub(crate) fn changes_as_written(chunk: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    changes(chunk)?.iter().for_each(|change| change.write(&mut bytes));
    Some(bytes)
}

/// Makes chunks of changes, and hands each on as it is closed.
pub(super) struct ChunkWriter<W> {
    chunk: Vec<u8>,
    number: u32,
    write: W,
}

impl<W: FnMut(u32, &[u8]) -> Result<(), StoreError>> ChunkWriter<W> {
    /// `write` takes each chunk with its number.
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

    /// Hands the last one on. How many there were.
    pub(super) fn finish(mut self) -> Result<u32, StoreError> {
        if !self.chunk.is_empty() {
            self.close()?;
        }
        Ok(self.number)
    }
}

/// Says that there may be chunks under a token from now on.
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

/// Removes the chunks of a token, however many there are, and the token.
pub(super) fn remove(connections: &ClusterConnections, token: &RandomId) -> Result<(), StoreError> {
    let chunks = count(connections, token)?;
    remove_all(connections, token, chunks)
}

/// No chunk of a token has this number or a higher one. They are written upwards and removed downwards, some at a time,
/// so where all of some that belong together are missing, none is further on.
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

/// Removes the first so many chunks of a token, which are all that there are, and the token.
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

/// A command about each of some chunks.
fn of_each(keys: &Keys, token: &RandomId, numbers: Range<u32>, command: &str) -> CommandPipe {
    let mut pipe = CommandPipe::default();
    for number in numbers {
        let key = keys.chunk(token, number);
        pipe.add(key.as_bytes(), cmd(command).arg(&key));
    }
    pipe
}

/// Removes what earlier writers left of flushes: no record names any of it.
pub(super) fn remove_leftovers(connections: &ClusterConnections) -> Result<(), StoreError> {
    let members: Vec<Vec<u8>> = connections.ask(cmd("SMEMBERS").arg(connections.keys.flushes()))?;
    for member in members {
        let token = member.try_into().map(RandomId).map_err(|_| {
            StoreError::damaged(
                connections.place(),
                format!("{} has a member that is none of a store's", connections.keys.flushes()),
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
        fn what_is_sealed_is_no_chunk_by_that(bytes in vec(0u8..8, 0..120)) {
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
    fn much_goes_into_several_chunks() {
        let coins: Vec<Coin> = (0..700).map(|vout| ([7; 32], vout, Some(vec![1; 5000]))).collect();
        let written = all(&coins, &[]);
        let chunks = chunks(&written);
        assert_eq!(chunks.len(), 7);
        assert!(chunks.iter().all(|chunk| chunk.len() < CHUNK_BYTES + 6000));
        let read: Vec<_> = chunks.iter().flat_map(|chunk| changes(chunk).unwrap()).collect();
        assert_eq!(read, written);
    }

    #[test]
    fn the_size_of_undo_data_is_read_as_it_was_written() {
        let stored = UndoSize { height: 900_000, pieces: 300 };
        assert_eq!(UndoSize::from_bytes(&stored.to_bytes()), Some(stored));
        assert_eq!(UndoSize::from_bytes(&stored.to_bytes()[..7]), None);
    }
}
