//! The block filter index (Core `index/blockfilterindex.cpp`): `blockfilter/basic/fltrNNNNN.dat` with the
//! filters, and the database `blockfilter/basic/db` that says where they are and chains them.
//!
//! Segments of the chain are written at the same time, each to files of its own: only the database's entries
//! say where a filter is. A filter's header covers the header below, so the headers follow when all segments
//! are there.

use crate::block::IndexBlock;
use crate::error::IndexesError;
use crate::filter::FilterBuilder;
use crate::making::{ChainSpan, MakeError, height_key};
use crate::read_back::IndexDatabase;
use crate::scratch::{ScratchFile, ScratchReader, ScratchRecords};
use apus_chain::{BlockHash, write_compact_size, write_varint};
use apus_datadir::WriterOptions;
use apus_hash::sha256d;
use apus_storage::{DirStorage, Storage, StorageFile};
use std::sync::atomic::{AtomicU32, Ordering};

/// The length that a file does not exceed (Core `index/blockfilterindex.cpp`, `MAX_FLTR_FILE_SIZE`).
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 24;

/// The bytes written at once.
const PIECE_BYTES: usize = 1 << 20;

/// The record of a block in the scratch file: its hash, its filter's hash, and the place of the filter.
const RECORD: usize = 32 + 32 + 4 + 4;

/// Returns the name of a file of filters.
pub fn filter_file_name(number: u32) -> String {
    format!("fltr{number:05}.dat")
}

/// Returns the header of a filter, which covers the header of the filter below (BIP-157).
pub(crate) fn filter_header(filter_hash: &[u8; 32], below: &[u8; 32]) -> [u8; 32] {
    let mut both = [0; 64];
    both[..32].copy_from_slice(filter_hash);
    both[32..].copy_from_slice(below);
    sha256d(&both)
}

/// Makes the filters of consecutive blocks and writes them to files. Uses some megabytes of memory.
pub struct FilterSegment<'s> {
    files: &'s dyn Storage,
    numbers: &'s AtomicU32,
    scratch: &'s dyn Storage,
    builder: FilterBuilder,
    span: Option<ChainSpan>,
    records: Option<ScratchFile<'s>>,
    file: Option<FilterFile>,
    filter: Vec<u8>,
}

/// A file of filters being written.
struct FilterFile {
    number: u32,
    file: Box<dyn StorageFile>,
    /// The length, with what waits.
    length: u64,
    waiting: Vec<u8>,
}

/// The filters of consecutive blocks, written.
pub struct FilterPart<'s> {
    span: ChainSpan,
    records: ScratchRecords<'s>,
    /// The last file and its length.
    last_file: (u32, u64),
}

impl<'s> FilterSegment<'s> {
    /// Begins a segment. The files of filters go to `files`, the folder `blockfilter/basic`, with the next
    /// numbers of `numbers`, which all segments share. A temporary file of 72 bytes a block goes to `scratch`.
    pub fn new(files: &'s dyn Storage, numbers: &'s AtomicU32, scratch: &'s dyn Storage) -> Self {
        Self {
            files,
            numbers,
            scratch,
            builder: FilterBuilder::new(),
            span: None,
            records: None,
            file: None,
            filter: Vec::new(),
        }
    }

    /// Adds the next block: the child of the last one.
    ///
    /// # Errors
    ///
    /// Fails if it is another block, without undo data, and if a file cannot be written. The segment is then
    /// unusable.
    pub fn block(&mut self, block: &IndexBlock<'_>) -> Result<(), MakeError> {
        ChainSpan::push(&mut self.span, block)?;
        self.filter.clear();
        self.builder.build(block, &mut self.filter)?;
        let (number, offset) = self.append(&block.hash)?;
        let mut record = [0; RECORD];
        record[..32].copy_from_slice(&block.hash.0);
        record[32..64].copy_from_slice(&sha256d(&self.filter));
        record[64..68].copy_from_slice(&number.to_le_bytes());
        record[68..].copy_from_slice(&offset.to_le_bytes());
        let records = match &mut self.records {
            Some(records) => records,
            none => none.insert(ScratchFile::create(
                self.scratch,
                format!("filters-{}.part", block.height),
            )?),
        };
        records.write(&record)
    }

    /// Appends the filter to a file, after the block's hash and the filter's length; returns where.
    fn append(&mut self, hash: &BlockHash) -> Result<(u32, u32), MakeError> {
        let mut head = Vec::with_capacity(41);
        head.extend_from_slice(&hash.0);
        write_compact_size(&mut head, self.filter.len() as u64);
        let length = (head.len() + self.filter.len()) as u64;
        if self.file.as_ref().is_some_and(|file| file.length + length > FILE_BYTES_MAX) {
            self.end_file()?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let number = self.numbers.fetch_add(1, Ordering::Relaxed);
                let name = filter_file_name(number);
                let file = self.files.create(&name);
                let file = file.map_err(MakeError::of_file(self.files, &name))?;
                none.insert(FilterFile { number, file, length: 0, waiting: Vec::new() })
            }
        };
        // Files end at 16 MiB, and a filter is smaller.
        let place = (file.number, file.length as u32);
        file.waiting.extend_from_slice(&head);
        file.waiting.extend_from_slice(&self.filter);
        file.length += length;
        if file.waiting.len() >= PIECE_BYTES {
            file.write_waiting(self.files)?;
        }
        Ok(place)
    }

    fn end_file(&mut self) -> Result<Option<(u32, u64)>, MakeError> {
        let Some(mut file) = self.file.take() else { return Ok(None) };
        file.write_waiting(self.files)?;
        let name = filter_file_name(file.number);
        file.file.sync().map_err(MakeError::of_file(self.files, &name))?;
        Ok(Some((file.number, file.length)))
    }

    /// Ends the segment and makes its files durable. `None` without a block.
    pub fn finish(mut self) -> Result<Option<FilterPart<'s>>, MakeError> {
        let last_file = self.end_file()?;
        let (Some(span), Some(records), Some(last_file)) = (self.span, self.records, last_file)
        else {
            return Ok(None);
        };
        Ok(Some(FilterPart { span, records: records.finish()?, last_file }))
    }
}

impl FilterFile {
    fn write_waiting(&mut self, files: &dyn Storage) -> Result<(), MakeError> {
        let name = filter_file_name(self.number);
        self.file.write_all(&self.waiting).map_err(MakeError::of_file(files, &name))?;
        self.waiting.clear();
        Ok(())
    }
}

/// Writes the database of the block filter index to `folder`, `blockfilter/basic/db`, which must be empty.
/// `parts` are the whole chain from genesis on, in ascending order; `best` is the locator of its last block,
/// as the key `B` has it. The files' names in `files` must become durable before the index gets its name.
///
/// # Errors
///
/// Fails if the parts do not make one chain that ends at `best`, if a file cannot be read or written, if the database is
/// not what was written, and with what `stop` returns.
pub fn write_filter_index(
    parts: Vec<FilterPart<'_>>,
    folder: &DirStorage,
    best: &[u8],
    stop: &dyn Fn() -> Result<(), IndexesError>,
) -> Result<(), IndexesError> {
    ChainSpan::join(parts.iter().map(|part| part.span), best)?;
    let mut database = IndexDatabase::new(folder, WriterOptions::default())?;
    database.put(b"B", best)?;
    // The node appends to the file with the highest number. In another one it would go on to the next number,
    // and write over it.
    let next = parts.iter().map(|part| part.last_file).max().unwrap_or_default();
    let mut value = Vec::new();
    write_place(&mut value, u64::from(next.0), next.1);
    database.put(b"P", &value)?;
    let mut header = [0; 32];
    for part in parts {
        let ChainSpan { first, blocks, .. } = part.span;
        let mut records = part.records.read()?;
        for height in first..first + blocks {
            header = put_entry(&mut records, &header, &mut value)?;
            database.put(&height_key(height), &value)?;
        }
    }
    database.finish(stop)
}

/// Makes the value of the next block's entry; returns the header of its filter.
fn put_entry(
    records: &mut ScratchReader<'_>,
    below: &[u8; 32],
    value: &mut Vec<u8>,
) -> Result<[u8; 32], MakeError> {
    let mut record = [0; RECORD];
    records.next(&mut record)?;
    let (hashes, place) = record.split_at(64);
    let filter_hash = hashes.last_chunk().expect("two hashes end with one");
    let header = filter_header(filter_hash, below);
    let [number, offset] = [0, 4].map(|at| {
        u64::from(u32::from_le_bytes(*place[at..].first_chunk().expect("two numbers follow")))
    });
    value.clear();
    value.extend_from_slice(hashes);
    value.extend_from_slice(&header);
    write_place(value, number, offset);
    Ok(header)
}

fn write_place(out: &mut Vec<u8>, file: u64, offset: u64) {
    write_varint(out, file);
    write_varint(out, offset);
}
