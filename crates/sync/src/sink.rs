//! [`CoinSink`]: where the finished UTXO set goes, group by group in the order of a snapshot.
//!
//! A sink writes beside its final name and shows the file only in [`CoinSink::finish`], once it is
//! complete and durable. A sink that is dropped before leaves nothing under that name; what it
//! drafted is removed by the next attempt.

use crate::error::{StorageResult, SyncError};
use apus_chain::{
    BlockHash, CoinError, HashSerialized3, Height, Network, OutPoint, Reader, Txid, read_coin,
};
use apus_datadir::snapshot::{SnapshotHeader, SnapshotWriter};
use apus_engine::storage::{Storage, StorageFile};
use apus_engine::swiftsync::hints::{HINTS_MAGIC, HINTS_VERSION};
use apus_hash::Sha256;
use std::io::{Read, Write};

/// How much of a snapshot is written at once.
const BATCH_BYTES: usize = 1 << 20;

/// What is known of the set before its first coin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SetInfo {
    /// The chain.
    pub network: Network,
    /// The block after which this is the UTXO set.
    pub base: BlockHash,
    /// How many coins.
    pub coins: u64,
}

/// Takes a UTXO set.
pub(crate) trait CoinSink {
    /// Takes all coins of one transaction, in the form of a snapshot's body without the txid.
    /// Transactions come by ascending bytes of their ids.
    fn put(&mut self, txid: Txid, group: &[u8]) -> Result<(), SyncError>;

    /// Ends the set: after this the result is complete, durable and under its name.
    fn finish(self: Box<Self>) -> Result<(), SyncError>;
}

/// A file that has its name only once it is whole.
pub(crate) struct Draft<'a> {
    storage: &'a dyn Storage,
    name: String,
    draft: String,
}

impl<'a> Draft<'a> {
    /// Begins the file.
    pub(crate) fn create(
        storage: &'a dyn Storage,
        name: &str,
    ) -> Result<(Self, Box<dyn StorageFile>), SyncError> {
        let draft = format!("{name}.incomplete");
        let file = storage.create(&draft).at(storage, &draft)?;
        Ok((Self { storage, name: name.to_owned(), draft }, file))
    }

    /// Makes the file durable and gives it its name.
    pub(crate) fn publish(self, mut file: Box<dyn StorageFile>) -> Result<(), SyncError> {
        file.sync().at(self.storage, &self.draft)?;
        drop(file);
        if self.storage.len(&self.name).is_ok() {
            return self.expect_same();
        }
        self.storage.rename(&self.draft, &self.name).at(self.storage, &self.name)?;
        self.storage.sync_names().at(self.storage, &self.name)
    }

    /// A file of that name is there already. If an earlier start of this very run published it
    /// just before it was killed, it is the same to the byte; anything else is not ours.
    fn expect_same(&self) -> Result<(), SyncError> {
        let digest = |name: &str| -> Result<[u8; 32], SyncError> {
            let mut file = self.storage.open(name, 0).at(self.storage, name)?;
            let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
            loop {
                match file.read(&mut buffer).at(self.storage, name)? {
                    0 => return Ok(hash.finalize()),
                    count => hash.update(&buffer[..count]),
                }
            }
        };
        if digest(&self.name)? != digest(&self.draft)? {
            return Err(SyncError::OutputExists { file: self.storage.describe(&self.name) });
        }
        self.storage.remove(&self.draft).at(self.storage, &self.draft)
    }
}

/// `snapshot:FILE`: the set as `dumptxoutset` writes it.
pub(crate) struct SnapshotSink<'a> {
    draft: Draft<'a>,
    writer: SnapshotWriter<Box<dyn StorageFile>>,
    /// Groups with their txids, written together.
    batch: Vec<u8>,
}

impl<'a> SnapshotSink<'a> {
    /// Begins the file `name` in `storage`.
    pub(crate) fn create(
        storage: &'a dyn Storage,
        name: &str,
        set: SetInfo,
    ) -> Result<Self, SyncError> {
        let (draft, file) = Draft::create(storage, name)?;
        let header = SnapshotHeader { network: set.network, base_hash: set.base, coins: set.coins };
        let writer = SnapshotWriter::new(file, header).map_err(|e| at_draft(&draft, e))?;
        Ok(Self { draft, writer, batch: Vec::with_capacity(BATCH_BYTES) })
    }
}

fn at_draft(draft: &Draft<'_>, error: apus_datadir::snapshot::SnapshotError) -> SyncError {
    SyncError::Snapshot { file: draft.storage.describe(&draft.draft), error }
}

impl SnapshotSink<'_> {
    fn write_batch(&mut self) -> Result<(), SyncError> {
        self.writer.write_groups(&self.batch).map_err(|error| at_draft(&self.draft, error))?;
        self.batch.clear();
        Ok(())
    }
}

impl CoinSink for SnapshotSink<'_> {
    fn put(&mut self, txid: Txid, group: &[u8]) -> Result<(), SyncError> {
        self.batch.extend_from_slice(&txid.0);
        self.batch.extend_from_slice(group);
        if self.batch.len() >= BATCH_BYTES { self.write_batch() } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>) -> Result<(), SyncError> {
        self.write_batch()?;
        let Self { draft, writer, .. } = *self;
        let file = writer.finish().map_err(|error| at_draft(&draft, error))?;
        draft.publish(file)
    }
}

/// `hints:FILE`: which coins survive, as a BIP-456 hintsfile in the order of its vectors.
///
/// What is written is known before the first coin; it appears with the other outputs, once the set
/// is proven and merged.
pub(crate) struct HintsSink<'a> {
    draft: Draft<'a>,
    file: Box<dyn StorageFile>,
}

impl<'a> HintsSink<'a> {
    /// Writes the file `name` in `storage` from the encoded hints of all segments, ascending.
    pub(crate) fn create<'b>(
        storage: &'a dyn Storage,
        name: &str,
        stop: Height,
        segments: impl Iterator<Item = &'b [u8]>,
    ) -> Result<Self, SyncError> {
        let (draft, mut file) = Draft::create(storage, name)?;
        let header = [&HINTS_MAGIC[..], &[HINTS_VERSION], &stop.to_le_bytes()].concat();
        file.write_all(&header).at(storage, &draft.draft)?;
        for bytes in segments {
            file.write_all(bytes).at(storage, &draft.draft)?;
        }
        Ok(Self { draft, file })
    }
}

impl CoinSink for HintsSink<'_> {
    fn put(&mut self, _txid: Txid, _group: &[u8]) -> Result<(), SyncError> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), SyncError> {
        self.draft.publish(self.file)
    }
}

/// Computes `hash_serialized_3` of the set and counts its coins.
#[derive(Default)]
pub(crate) struct HashSink {
    hash: HashSerialized3,
    coins: u64,
}

impl HashSink {
    /// How many coins were put.
    pub(crate) fn coins(&self) -> u64 {
        self.coins
    }

    /// The hash in internal order.
    pub(crate) fn finish(self) -> [u8; 32] {
        self.hash.finish().0
    }

    /// Takes all coins of one transaction.
    pub(crate) fn put(&mut self, txid: Txid, group: &[u8]) -> Result<(), SyncError> {
        self.read(txid, group).map_err(|error| SyncError::Group { txid, error })
    }

    fn read(&mut self, txid: Txid, group: &[u8]) -> Result<(), CoinError> {
        let mut reader = Reader::new(group);
        for _ in 0..reader.compact_size()? {
            let vout = reader.compact_max(u64::from(u32::MAX))? as u32;
            let coin = read_coin(&mut reader)?;
            self.hash.push(&OutPoint { txid, vout }, coin.as_ref());
            self.coins += 1;
        }
        Ok(reader.finish()?)
    }
}
