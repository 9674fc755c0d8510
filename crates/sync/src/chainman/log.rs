//! [`BlockLog`]: a durable log of blocks and verdicts, in order of arrival.
//!
//! Each start that adds a record begins its own file, because a closed file is never written again. Every
//! record continues a running SHA-256, and every file begins with its current value, so a missing record or
//! file is detected. A crash may leave an incomplete record at the end of a file. Such a record was never
//! acknowledged as durable, so it is skipped. This module does not know what a record means.
//!
//! `blocks-00000001.log` and so on, numbers little-endian:
//!
//! ```text
//! 8     41 50 55 53 42 4c 4b 53   "APUSBLKS"
//! 4     version, 1
//! 32    SHA-256 of the genesis hash, the heights of BIP-34, 65, 66, CSV and SegWit (4 each), and signet's challenge
//! 4     number of the file
//! 32    the running hash at the file's beginning; in the first file, SHA-256 of the 32 bytes before
//! 8     first bytes of the SHA-256 of everything before
//!
//!       for each record:
//! 1     kind
//! 4     length, at most 4,000,000
//! …     payload
//! 8     first bytes of the running hash after it: SHA-256 of the running hash before, kind, length, payload
//! ```
//!
//! Kinds: 1 a header whose block is missing; 2 a block that passed every rule that needs no coins; 3 a block
//! whose parent is unknown; 4 the hash of a block that failed; 5 the hash of a block that was reconsidered; 6 a
//! block that no longer waits (its parent's hash, SHA-256 of the block); 7 everything before was durable when
//! the program ended.

mod reader;

pub(super) use reader::ReplaySummary;

use super::ChainManagerError;
use apus_chain::{BLOCK_SIZE_MAX, HeaderId, Params};
use apus_hash::{Sha256, sha256};
use apus_storage::{Storage, StorageFile, draft_name};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// The first bytes of every file of the log.
const MAGIC: &[u8; 8] = b"APUSBLKS";

/// The format that this version writes.
const VERSION: u32 = 1;

/// Bytes of a file's preamble: magic, version, identity, number, running hash, check.
const PREAMBLE_BYTES: usize = 8 + 4 + 32 + 4 + 32 + CHECK_BYTES;

/// Bytes before a record's payload: kind and length.
const RECORD_HEAD_BYTES: usize = 5;

/// Bytes of the running hash after each record.
const CHECK_BYTES: usize = 8;

/// The kind of a record, with its number in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum LogKind {
    /// A header whose block is missing: 80 bytes.
    Header = 1,
    /// A block that passed every rule that needs no coins.
    Block = 2,
    /// A block whose parent is unknown.
    Orphan = 3,
    /// The hash of a block that failed, together with all its descendants.
    Failed = 4,
    /// The hash of a block that was reconsidered: its failure, and those of its ancestors and descendants, were
    /// cleared.
    Reconsidered = 5,
    /// The name of a block that no longer waits for its parent: the parent's hash, and the SHA-256 of the
    /// block's bytes.
    Adopted = 6,
    /// Everything before this was durable when the program ended. No payload.
    Closed = 7,
}

impl LogKind {
    const ALL: [Self; 7] = [
        Self::Header,
        Self::Block,
        Self::Orphan,
        Self::Failed,
        Self::Reconsidered,
        Self::Adopted,
        Self::Closed,
    ];

    fn of(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&kind| kind as u8 == byte)
    }
}

/// The position of a record's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogPlace {
    file: u32,
    offset: u64,
    length: u32,
}

/// Returns the running hash after a record.
fn continued(running: &[u8; 32], kind: LogKind, payload: &[u8]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    hasher.update(running);
    hasher.update(&[kind as u8]);
    hasher.update(&(payload.len() as u32).to_le_bytes());
    hasher.update(payload);
    hasher.finalize()
}

/// Hashes everything that distinguishes chains and activation heights.
fn identity(params: &Params) -> [u8; 32] {
    let mut text = params.genesis_hash.0.to_vec();
    for height in [
        params.bip34_height,
        params.bip65_height,
        params.bip66_height,
        params.csv_height,
        params.segwit_height,
    ] {
        text.extend(height.to_le_bytes());
    }
    text.extend_from_slice(params.signet_challenge.as_deref().unwrap_or_default());
    sha256(&text)
}

/// Returns the prefix of a hash that files contain.
fn check_of(hash: &[u8; 32]) -> &[u8] {
    &hash[..CHECK_BYTES]
}

fn file_name(number: u32) -> String {
    format!("blocks-{number:08}.log")
}

fn file_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("blocks-")?.strip_suffix(".log")?;
    (digits.len() == 8).then(|| digits.parse().ok())?
}

/// A file of an earlier start that may not be durable.
#[derive(Debug, Clone, Copy)]
struct UnsyncedFile {
    number: u32,
    /// Length of the preamble and all complete records.
    whole_bytes: u64,
}

struct LogWriter {
    /// The file of this start; `None` until something is added.
    file: Option<Box<dyn StorageFile>>,
    number: u32,
    offset: u64,
    running: [u8; 32],
    synced: bool,
    /// The previous file, if it lacks the record of a clean exit.
    unsure: Option<UnsyncedFile>,
}

/// An open log of blocks and verdicts.
pub(super) struct BlockLog {
    storage: Arc<dyn Storage>,
    identity: [u8; 32],
    writer: Mutex<LogWriter>,
}

impl BlockLog {
    /// Reads the existing files, passes every record to `each` in order, and prepares to append after them.
    pub(super) fn open(
        storage: Arc<dyn Storage>,
        params: &Params,
        each: &mut reader::EachRecord<'_>,
    ) -> Result<(Self, ReplaySummary), ChainManagerError> {
        let identity = identity(params);
        let (replayed, next) = reader::replay(&*storage, &identity, each)?;
        let reader::NextRecord { number, running, unsure } = next;
        let writer = LogWriter { file: None, number, offset: 0, running, synced: true, unsure };
        Ok((Self { storage, identity, writer: Mutex::new(writer) }, replayed))
    }

    fn at(&self, number: u32) -> impl FnOnce(io::Error) -> ChainManagerError {
        let file = self.storage.describe(&file_name(number));
        |error| ChainManagerError::Storage { file, error }
    }

    /// Appends a record. It survives a crash of the program from now on, and a power failure after
    /// [`sync`](Self::sync).
    ///
    /// # Panics
    /// If the payload is longer than a block can be.
    pub(super) fn append(
        &self,
        kind: LogKind,
        payload: &[u8],
    ) -> Result<LogPlace, ChainManagerError> {
        assert!(payload.len() <= BLOCK_SIZE_MAX, "no record is longer than a block");
        let mut writer = self.writer.lock();
        let number = writer.number;
        self.append_to(&mut writer, kind, payload).map_err(self.at(number))
    }

    fn append_to(
        &self,
        writer: &mut LogWriter,
        kind: LogKind,
        payload: &[u8],
    ) -> io::Result<LogPlace> {
        if writer.file.is_none() {
            self.begin(writer)?;
        }
        let running = continued(&writer.running, kind, payload);
        let mut record = Vec::with_capacity(RECORD_HEAD_BYTES + payload.len() + CHECK_BYTES);
        record.push(kind as u8);
        record.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        record.extend_from_slice(payload);
        record.extend_from_slice(check_of(&running));
        let file = writer.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        writer.synced = false;
        file.write_all(&record)?;
        let (number, start) = (writer.number, writer.offset);
        writer.running = running;
        writer.offset += record.len() as u64;
        let offset = start + RECORD_HEAD_BYTES as u64;
        Ok(LogPlace { file: number, offset, length: payload.len() as u32 })
    }

    /// Creates the file of this start.
    fn begin(&self, writer: &mut LogWriter) -> io::Result<()> {
        if let Some(unsure) = writer.unsure {
            self.secure(unsure)?;
            writer.unsure = None;
        }
        let mut preamble = MAGIC.to_vec();
        preamble.extend_from_slice(&VERSION.to_le_bytes());
        preamble.extend_from_slice(&self.identity);
        preamble.extend_from_slice(&writer.number.to_le_bytes());
        preamble.extend_from_slice(&writer.running);
        preamble.extend_from_slice(check_of(&sha256(&preamble)));
        let mut file = self.storage.create(&file_name(writer.number))?;
        file.write_all(&preamble)?;
        // The preamble must be durable first: replay ends at a file without one.
        file.sync()?;
        self.storage.sync_names()?;
        writer.file = Some(file);
        writer.offset = PREAMBLE_BYTES as u64;
        Ok(())
    }

    /// Makes the file of a crashed start durable, so that no later file can survive without it.
    fn secure(&self, unsure: UnsyncedFile) -> io::Result<()> {
        let name = file_name(unsure.number);
        let draft = draft_name(&name);
        let mut whole = self.storage.open(&name, 0)?.take(unsure.whole_bytes);
        let mut file = self.storage.create(&draft)?;
        io::copy(&mut whole, &mut file)?;
        file.sync()?;
        drop(file);
        self.storage.rename(&draft, &name)?;
        self.storage.sync_names()
    }

    /// Makes all records durable, and adds a record of that, so that the next start need not do it again.
    pub(super) fn close(&self) -> Result<(), ChainManagerError> {
        if self.writer.lock().file.is_some() {
            self.append(LogKind::Closed, &[])?;
        }
        self.sync()
    }

    /// Makes all records durable.
    pub(super) fn sync(&self) -> Result<(), ChainManagerError> {
        let mut writer = self.writer.lock();
        let number = writer.number;
        if !writer.synced
            && let Some(file) = &mut writer.file
        {
            file.sync().map_err(self.at(number))?;
            writer.synced = true;
        }
        Ok(())
    }

    /// Reads back a record's payload.
    pub(super) fn read(&self, place: LogPlace) -> Result<Vec<u8>, ChainManagerError> {
        let mut payload = vec![0; place.length as usize];
        self.storage
            .open(&file_name(place.file), place.offset)
            .and_then(|mut file| file.read_exact(&mut payload))
            .map_err(self.at(place.file))?;
        Ok(payload)
    }
}

// [`BlockFolder`]: the bytes of all known blocks, in memory or in the log.
//
// Blocks are only added. Without a log, they stay in memory, which suits the short chains of tests. With a log, only
// their positions do.

/// Stores the bytes of blocks, by header.
pub(super) enum BlockFolder {
    /// Bytes in memory.
    Memory(HashMap<HeaderId, Arc<[u8]>>),
    /// Bytes in the log.
    Log {
        /// An open log of blocks and verdicts.
        log: Arc<BlockLog>,
        /// Positions of the blocks.
        places: HashMap<HeaderId, LogPlace>,
    },
}

impl BlockFolder {
    /// Makes an empty folder in memory.
    pub(super) fn in_memory() -> Self {
        Self::Memory(HashMap::new())
    }

    /// Stores a block.
    pub(super) fn put(&mut self, id: HeaderId, raw: &[u8]) -> Result<(), ChainManagerError> {
        match self {
            Self::Memory(blocks) => {
                blocks.insert(id, raw.into());
            }
            Self::Log { log, places } => {
                let place = log.append(LogKind::Block, raw)?;
                places.insert(id, place);
            }
        }
        Ok(())
    }

    /// Reads a block's bytes; `None` if it was never stored.
    pub(super) fn get(&self, id: HeaderId) -> Result<Option<Vec<u8>>, ChainManagerError> {
        match self {
            Self::Memory(blocks) => Ok(blocks.get(&id).map(|raw| raw.to_vec())),
            Self::Log { log, places } => places.get(&id).map(|&place| log.read(place)).transpose(),
        }
    }

    /// Appends another kind of record, if there is a log.
    pub(super) fn note(&self, kind: LogKind, payload: &[u8]) -> Result<(), ChainManagerError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Log { log, .. } => log.append(kind, payload).map(|_| ()),
        }
    }

    /// Makes all records durable, and closes the log.
    pub(super) fn close(&self) -> Result<(), ChainManagerError> {
        match self {
            Self::Memory(_) => Ok(()),
            Self::Log { log, .. } => log.close(),
        }
    }
}
