//! [`SignatureHintsWriter`]: collects the hints of blocks, in any order and from many threads.
//!
//! It appends records to a draft next to the file, `FILE.incomplete`. A start that finds a draft checks
//! its records, cuts off everything after the last whole one, and continues. Nothing is synced before
//! the end: if a power cut loses records, only their hints are missing.

use super::super::HintTable;
use super::{
    END_MAGIC, HEAD, HEIGHTS_MAX, Place, RECORD_HEAD, RECORD_MAX, Record, SignatureHintsError,
    begin_record, check_head, end_record, head_bytes, table_length,
};
use apus_chain::{BlockHash, Height, Network};
use apus_storage::place::sync_names_of;
use apus_storage::{open_or_create, parent};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes of a draft that are read at once.
const PART: usize = 1 << 18;

/// The contents of a complete file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignatureHintsSummary {
    /// Blocks with hints.
    pub blocks: u32,
    /// Signatures with hints.
    pub signatures: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
}

/// The last record of a height. An empty slot is all zero.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Where it is, as an index entry.
    entry: u64,
    signatures: u32,
    checksum: u32,
}

/// Heights whose slots are allocated together.
const PAGE: u32 = 256;

/// The slots of all heights, about 16 bytes for each.
#[derive(Debug, Default)]
struct Slots(BTreeMap<u32, Box<[Slot; PAGE as usize]>>);

impl Slots {
    /// Returns the slot of a height, empty or not.
    fn get(&self, height: Height) -> Slot {
        let page = self.0.get(&(height / PAGE));
        page.map_or_else(Slot::default, |page| page[(height % PAGE) as usize])
    }

    fn put(&mut self, height: Height, slot: Slot) {
        let empty = || Box::new([Slot::default(); PAGE as usize]);
        let page = self.0.entry(height / PAGE).or_insert_with(empty);
        page[(height % PAGE) as usize] = slot;
    }

    /// Returns the number of slots that are not empty.
    fn blocks(&self) -> usize {
        self.0.values().flat_map(|page| page.iter()).filter(|slot| slot.entry != 0).count()
    }
}

/// What a draft contains.
#[derive(Debug)]
struct Draft {
    /// Where the next record begins.
    end: u64,
    slots: Slots,
}

/// A file of signature hints being written.
#[derive(Debug)]
pub struct SignatureHintsWriter {
    path: PathBuf,
    draft_path: PathBuf,
    network: Network,
    file: File,
    draft: Mutex<Draft>,
}

impl SignatureHintsWriter {
    /// Begins a draft of the file `path`, or continues the one that an earlier start left. The draft
    /// has the name `FILE.incomplete`. The folder must exist.
    pub fn create_or_continue(path: &Path, network: Network) -> Result<Self, SignatureHintsError> {
        let mut draft_path = path.as_os_str().to_owned();
        draft_path.push(".incomplete");
        let draft_path = PathBuf::from(draft_path);
        let failed = |action| SignatureHintsError::io(action, &draft_path);
        let file = open_or_create(&draft_path, false).map_err(failed("open"))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(SignatureHintsError::InUse { path: draft_path });
            }
            // Some file systems have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let length = file.metadata().map_err(failed("read"))?.len();
        let mut head = [0; HEAD];
        let head = head.get_mut(..length.min(HEAD as u64) as usize).unwrap_or_default();
        file.read_exact_at(head, 0).map_err(failed("read"))?;
        // A start that was killed at once leaves a part of the head.
        let draft = if head.len() < HEAD && head_bytes(network).starts_with(head) {
            begin(&file, network).map_err(failed("write"))?
        } else {
            check_head(head, &draft_path, network)?;
            let draft = scan(&file, length).map_err(failed("read"))?;
            file.set_len(draft.end).map_err(failed("write"))?;
            draft
        };
        let (path, draft) = (path.to_owned(), Mutex::new(draft));
        Ok(Self { path, draft_path, network, file, draft })
    }

    /// Adds the hints of a block. If it already has hints, or another block at its height, the new
    /// ones replace these. A block without signatures is not stored.
    pub fn add(
        &self,
        height: Height,
        hash: &BlockHash,
        hints: &[(u64, bool)],
    ) -> Result<(), SignatureHintsError> {
        self.expect_height(height)?;
        if hints.is_empty() {
            return Ok(());
        }
        // Hints without a table are too many for any block.
        let Some(table) = HintTable::build(hints) else { return Ok(()) };
        let mut record = begin_record(height, hash);
        table.encode(&mut record);
        let checksum = end_record(&mut record);
        let mut draft = self.draft.lock();
        let before = draft.slots.get(height);
        if before.entry != 0 && before.checksum == checksum {
            return Ok(());
        }
        let offset = draft.end;
        let Some(entry) = (Place { offset, length: record.len() }).entry() else { return Ok(()) };
        // If this fails, the next record overwrites what was written.
        let written = self.file.write_all_at(&record, offset);
        written.map_err(SignatureHintsError::io("write", &self.draft_path))?;
        draft.end += record.len() as u64;
        draft.slots.put(height, Slot { entry, signatures: table.keys() as u32, checksum });
        Ok(())
    }

    /// Returns the number of blocks that have hints so far.
    pub fn blocks(&self) -> usize {
        self.draft.lock().slots.blocks()
    }

    /// Completes the file, which covers the heights up to the stop block, and gives it its name. If
    /// this fails, the draft remains, and a later start can continue it.
    pub fn finish(
        &self,
        stop_height: Height,
        stop_hash: &BlockHash,
    ) -> Result<SignatureHintsSummary, SignatureHintsError> {
        self.expect_height(stop_height)?;
        let failed = |action| SignatureHintsError::io(action, &self.draft_path);
        let draft = self.draft.lock();
        let summary = self.write_end(&draft, stop_height, stop_hash).map_err(failed("write"))?;
        self.file.sync_all().map_err(failed("write"))?;
        fs::rename(&self.draft_path, &self.path)
            .and_then(|()| sync_names_of(parent(&self.path)))
            .map_err(failed("rename"))?;
        Ok(summary)
    }

    /// Writes the index and the foot after the records.
    fn write_end(
        &self,
        draft: &Draft,
        stop_height: Height,
        stop_hash: &BlockHash,
    ) -> io::Result<SignatureHintsSummary> {
        self.file.set_len(draft.end)?;
        let mut file = &self.file;
        file.seek(SeekFrom::Start(draft.end))?;
        let mut out = Hashed { out: BufWriter::new(file), hasher: Xxh3Default::new(), bytes: 0 };
        out.hasher.update(&head_bytes(self.network));
        let (mut blocks, mut signatures) = (0u32, 0u64);
        for height in 0..=stop_height {
            let slot = draft.slots.get(height);
            out.put(&slot.entry.to_le_bytes())?;
            blocks += u32::from(slot.entry != 0);
            signatures += u64::from(slot.signatures);
        }
        out.put(&stop_height.to_le_bytes())?;
        out.put(&stop_hash.0)?;
        out.put(&blocks.to_le_bytes())?;
        out.put(&signatures.to_le_bytes())?;
        out.put(&draft.end.to_le_bytes())?;
        let checksum = out.hasher.digest();
        out.put(&checksum.to_le_bytes())?;
        out.put(END_MAGIC)?;
        out.out.flush()?;
        Ok(SignatureHintsSummary { blocks, signatures, bytes: draft.end + out.bytes })
    }

    fn expect_height(&self, height: Height) -> Result<(), SignatureHintsError> {
        match height < HEIGHTS_MAX {
            true => Ok(()),
            false => Err(SignatureHintsError::Height { path: self.path.clone(), height }),
        }
    }
}

impl Drop for SignatureHintsWriter {
    fn drop(&mut self) {
        // A child process that is just starting would otherwise keep the lock. Closing also unlocks.
        let _ = self.file.unlock();
    }
}

/// Output that is hashed and counted.
struct Hashed<W: Write> {
    out: BufWriter<W>,
    hasher: Xxh3Default,
    bytes: u64,
}

impl<W: Write> Hashed<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}

/// Begins an empty draft.
fn begin(file: &File, network: Network) -> io::Result<Draft> {
    file.set_len(0)?;
    file.write_all_at(&head_bytes(network), 0)?;
    // Otherwise a power cut could leave records without the head, a file that no start accepts.
    file.sync_all()?;
    Ok(Draft { end: HEAD as u64, slots: Slots::default() })
}

/// Reads the records of a draft of `length` bytes, up to the first that is not whole.
fn scan(file: &File, length: u64) -> io::Result<Draft> {
    let mut draft = Draft { end: HEAD as u64, slots: Slots::default() };
    let mut reader = BufReader::with_capacity(PART, file);
    reader.seek(SeekFrom::Start(draft.end))?;
    let mut bytes = Vec::new();
    while read_record(&mut reader, length - draft.end, &mut bytes)? {
        let place = Place { offset: draft.end, length: bytes.len() };
        let Some((height, slot)) = slot_of(&bytes, place) else { break };
        draft.slots.put(height, slot);
        draft.end += bytes.len() as u64;
    }
    Ok(draft)
}

/// Reads the next record; returns false if fewer than the `left` bytes are left.
fn read_record(reader: &mut impl Read, left: u64, bytes: &mut Vec<u8>) -> io::Result<bool> {
    if left < RECORD_HEAD as u64 {
        return Ok(false);
    }
    let mut head = [0; RECORD_HEAD];
    reader.read_exact(&mut head)?;
    let length = RECORD_HEAD + table_length(&head);
    if length > RECORD_MAX || length as u64 > left {
        return Ok(false);
    }
    bytes.clear();
    bytes.extend_from_slice(&head);
    bytes.resize(length, 0);
    reader.read_exact(bytes.get_mut(RECORD_HEAD..).unwrap_or_default())?;
    Ok(true)
}

/// Checks a record of a draft.
fn slot_of(bytes: &[u8], place: Place) -> Option<(Height, Slot)> {
    let record = Record::read(bytes).filter(|record| record.height < HEIGHTS_MAX)?;
    let signatures = HintTable::decode(record.table).ok()?.keys() as u32;
    let slot = Slot { entry: place.entry()?, signatures, checksum: record.checksum };
    Some((record.height, slot))
}
