//! Finds every block in the files without reading the blocks.
//!
//! A scan goes from record to record, like Core's reindex (`validation.cpp`, `LoadExternalBlockFile`): it
//! reads 8 bytes of magic and size and 80 of header, then skips to the next record. It trusts a size only if
//! another record or the end of the file follows directly. Otherwise it computes the real length from the
//! block's outline (see `block_len`). If that fails too, it searches the bytes after the magic for further
//! records, so that one flipped bit costs one block and not the blocks after it.
//!
//! It does not check blocks or remove duplicates: it reports the same block at each of its positions.

#[cfg(test)]
mod tests;

use crate::error::BlkError;
use crate::files::{BLOCK_SIZES, BlockFile, BlockFiles, BlockLocation, Obfuscation, RECORD_HEAD};
use apus_chain::{Network, ReadError, Reader};
use core::ops::ControlFlow;
use std::fs::File;

/// Receives each header and the position of its block, in disk order within a file.
pub type Visit<'a> = dyn FnMut(&[u8; HEADER], BlockLocation) -> ControlFlow<()> + 'a;

/// The number of bytes read of each record: magic, size and header.
const RECORD_PROBE: usize = RECORD_HEAD as usize + HEADER;

/// After a block smaller than this, the next records are read together: a page holds several.
const SMALL_BLOCK: u32 = 8 << 10;

/// The number of bytes read at once among small blocks and when searching.
const CHUNK: usize = 256 << 10;

/// A file's last record is doubtful if it ends in at least this many zeros.
const ZEROS_DOUBTFUL: usize = 64;

/// More zeros than this at the end of a block are suspicious: a lock time has four bytes.
const ZEROS_ODD: usize = 16;

/// The number of bytes read at once to follow the outlines of doubtful blocks.
const SPAN: usize = 2 * *BLOCK_SIZES.end() as usize;

/// The number of other networks' records, without any of this chain, after which a scan gives up.
const FOREIGN_ENOUGH: u64 = 1_000;

impl BlockFiles {
    /// Reports every block of this chain. Fails with [`BlkError::WrongChain`] or [`BlkError::NoBlocks`] if
    /// the files contain none. Damage is not a failure, see [`ScanSummary`].
    pub fn scan(&self, visit: &mut Visit<'_>) -> Result<ScanSummary, BlkError> {
        let mut summary = ScanSummary::default();
        for file in self.files() {
            if self.scan_into(file, visit, &mut summary)?.is_break() {
                return Ok(summary);
            }
            if summary.records == 0 && summary.foreign.iter().sum::<u64>() >= FOREIGN_ENOUGH {
                break;
            }
        }
        summary.verdict(self)?;
        Ok(summary)
    }

    /// Scans one file, so that threads can divide the files. Finding no block is not a failure
    /// here: call [`ScanSummary::verdict`] once all summaries are merged.
    pub fn scan_file(&self, number: u32, visit: &mut Visit<'_>) -> Result<ScanSummary, BlkError> {
        let mut summary = ScanSummary::default();
        // The summary covers the scanned part, even if the scan was stopped.
        let _ = self.scan_into(self.file(number, 0)?, visit, &mut summary)?;
        Ok(summary)
    }

    fn scan_into(
        &self,
        file: &BlockFile,
        visit: &mut Visit<'_>,
        summary: &mut ScanSummary,
    ) -> Result<ControlFlow<()>, BlkError> {
        let handle = file.open()?;
        let window = || FileWindow::new(file, &handle, self.obfuscation());
        summary.files += 1;
        FileScan {
            files: self,
            file,
            heads: window(),
            probe: window(),
            spans: window(),
            // Limits the bytes examined for outlines in one file, however hostile it is.
            outline_budget: file.length.saturating_mul(4) + SPAN as u64,
            gap: None,
            summary,
        }
        .run(visit)
    }
}

/// The bytes since the last record.
struct ScanGap {
    start: u64,
    /// The byte after the last one that is not zero on disk.
    used_end: u64,
    /// The first record in the gap that has an incomplete block.
    torn: Option<BlockLocation>,
}

/// The finding at an offset.
enum ScanHit {
    /// A block of this chain.
    Record([u8; HEADER], BlockLocation),
    /// A record of another network, and its end.
    Foreign(Network, u64),
    /// The head of a record of this chain with an incomplete block.
    Broken(BlockLocation),
    Nothing,
}

/// What follows a record.
enum RecordEnd {
    Record,
    /// Exactly the end of the file.
    End,
    /// Zeros on disk, as in preallocated space.
    Zeros,
    /// Anything else, or fewer bytes than stated.
    Other,
}

struct FileScan<'a> {
    files: &'a BlockFiles,
    file: &'a BlockFile,
    /// Reads consecutive records, and the chunks of a search.
    heads: FileWindow<'a>,
    /// Reads at other offsets without losing the content of `heads`.
    probe: FileWindow<'a>,
    /// Reads whole doubtful blocks.
    spans: FileWindow<'a>,
    outline_budget: u64,
    gap: Option<ScanGap>,
    summary: &'a mut ScanSummary,
}

impl FileScan<'_> {
    fn run(mut self, visit: &mut Visit<'_>) -> Result<ControlFlow<()>, BlkError> {
        let mut at = 0;
        while at < self.file.length {
            match self.look(at)? {
                ScanHit::Record(header, location) => {
                    self.end_gap(at, false);
                    self.summary.records += 1;
                    self.summary.bytes += u64::from(location.size);
                    if visit(&header, location).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    at = location.end();
                }
                ScanHit::Foreign(network, end) => {
                    self.end_gap(at, false);
                    self.summary.add_foreign(network);
                    at = end;
                }
                ScanHit::Broken(location) => {
                    self.gap_at(at).torn.get_or_insert(location);
                    at = self.search(at)?;
                }
                ScanHit::Nothing => at = self.search(at)?,
            }
        }
        self.end_gap(self.file.length, true);
        Ok(ControlFlow::Continue(()))
    }

    fn gap_at(&mut self, at: u64) -> &mut ScanGap {
        self.gap.get_or_insert(ScanGap { start: at, used_end: at, torn: None })
    }

    fn end_gap(&mut self, at: u64, at_file_end: bool) {
        let Some(gap) = self.gap.take() else { return };
        let mut end = if at_file_end { gap.used_end } else { at };
        if let Some(torn) = gap.torn.filter(|_| at_file_end) {
            self.summary.add_torn(torn);
            end = torn.offset - RECORD_HEAD;
        }
        if gap.used_end > gap.start && end > gap.start {
            let length = end - gap.start;
            self.summary.add_resynced(StrayBytes {
                file: self.file.number,
                offset: gap.start,
                length,
            });
        }
    }

    /// Examines the bytes at `at`.
    fn look(&mut self, at: u64) -> Result<ScanHit, BlkError> {
        let head = self.heads.at_least(at, RECORD_PROBE, RECORD_PROBE)?;
        let Some((&[m0, m1, m2, m3, s0, s1, s2, s3], rest)) = head.split_first_chunk() else {
            return Ok(ScanHit::Nothing);
        };
        let magic = [m0, m1, m2, m3];
        let size = u32::from_le_bytes([s0, s1, s2, s3]);
        if !BLOCK_SIZES.contains(&size) {
            return Ok(ScanHit::Nothing);
        }
        let header = rest.first_chunk::<HEADER>().copied();
        let location = BlockLocation { file: self.file.number, offset: at + RECORD_HEAD, size };
        if magic == self.files.magic() {
            let Some(header) = header else { return Ok(ScanHit::Broken(location)) };
            return Ok(match self.resolve(location)? {
                Some(location) => ScanHit::Record(header, location),
                None => ScanHit::Broken(location),
            });
        }
        match Network::from_magic(magic) {
            Some(network) if !matches!(self.after(location, magic)?, RecordEnd::Other) => {
                Ok(ScanHit::Foreign(network, location.end()))
            }
            _ => Ok(ScanHit::Nothing),
        }
    }

    /// Examines what follows a record of the network with this magic.
    fn after(&mut self, location: BlockLocation, magic: [u8; 4]) -> Result<RecordEnd, BlkError> {
        let end = location.end();
        if end >= self.file.length {
            return Ok(if end == self.file.length { RecordEnd::End } else { RecordEnd::Other });
        }
        // Within a gap, keep the chunk being searched rather than load the next record's head into
        // it.
        let window = if self.gap.is_some() { &mut self.probe } else { &mut self.heads };
        let ahead = if location.size < SMALL_BLOCK { CHUNK } else { RECORD_PROBE };
        let next = window.at_least(end, RECORD_PROBE, ahead)?;
        let next = &next[..next.len().min(RECORD_PROBE)];
        Ok(if next.starts_with(&magic) || next.starts_with(&self.files.magic()) {
            RecordEnd::Record
        } else if self.files.obfuscation().trimmed_len(next, end) == 0 {
            RecordEnd::Zeros
        } else {
            RecordEnd::Other
        })
    }

    /// The position of the block in a record at `location`, with the stated size if that is credible.
    /// Otherwise it has the size of the block's outline, or is `None` if the block is incomplete.
    fn resolve(&mut self, location: BlockLocation) -> Result<Option<BlockLocation>, BlkError> {
        let credible = match self.after(location, self.files.magic())? {
            RecordEnd::Record => true,
            RecordEnd::End => !self.ends_in_zeros(location)?,
            // A block in a record whose size is a little too large ends in zeros, too.
            RecordEnd::Zeros | RecordEnd::Other => false,
        };
        if credible {
            return Ok(Some(location));
        }
        let span = *BLOCK_SIZES.end() as usize;
        let allowed = usize::try_from(self.outline_budget).map_or(span, |left| left.min(span));
        let bytes = self.spans.at_least(location.offset, span, SPAN)?;
        let (size, looked) = block_len(&bytes[..bytes.len().min(allowed)]);
        self.outline_budget -= looked as u64;
        let Some(size) = size else { return Ok(None) };
        // De-obfuscated, zeros on disk turn into the key and can look like anything. Only in a plain file can
        // a block end in zeros on disk, and then its record ends with them.
        let used = self.files.obfuscation().trimmed_len(&bytes[..size], location.offset);
        // At most 4,000,000, because the slice has at most that length.
        let size = size as u32;
        let odd = size as usize - used > ZEROS_ODD;
        if odd && (size != location.size || !self.files.obfuscation().is_none()) {
            return Ok(None);
        }
        self.summary.corrected += u64::from(size != location.size);
        Ok(Some(BlockLocation { size, ..location }))
    }

    /// Returns whether the last record of a file ends in zeros on disk. A crash leaves zeros if a file had
    /// grown but its bytes had not arrived.
    fn ends_in_zeros(&mut self, location: BlockLocation) -> Result<bool, BlkError> {
        let start = location.end() - ZEROS_DOUBTFUL as u64;
        let bytes = self.probe.at_least(start, ZEROS_DOUBTFUL, ZEROS_DOUBTFUL)?;
        Ok(self.files.obfuscation().trimmed_len(bytes, start) == 0)
    }

    /// Finds the next offset after `at` where a known magic begins, or the end of the file. Records the bytes
    /// in between.
    fn search(&mut self, at: u64) -> Result<u64, BlkError> {
        self.gap_at(at);
        let (magic, obfuscation) = (self.files.magic(), self.files.obfuscation());
        let mut from = at;
        // The first round skips the magic at `at`, which was already examined.
        let mut skip = 1;
        loop {
            let chunk = self.heads.at_least(from, RECORD_PROBE, CHUNK)?;
            let found =
                find_magic(&chunk[skip.min(chunk.len())..], magic).map(|found| found + skip);
            // The last bytes may be the beginning of a magic: keep them for the next chunk.
            let passed = found.unwrap_or(chunk.len().saturating_sub(3));
            let at_end = from + chunk.len() as u64 >= self.file.length;
            let passed = if found.is_none() && at_end { chunk.len() } else { passed };
            let used = obfuscation.trimmed_len(&chunk[..passed], from) as u64;
            if used > 0 {
                self.gap_at(at).used_end = from + used;
            }
            from += passed as u64;
            if found.is_some() || at_end {
                return Ok(from);
            }
            skip = 0;
        }
    }
}

/// Finds the first magic of this chain or of a known network.
fn find_magic(bytes: &[u8], magic: [u8; 4]) -> Option<usize> {
    let [main, test3, test4, signet, regtest] =
        Network::ALL.map(|network| u32::from_le_bytes(network.magic()));
    let own = u32::from_le_bytes(magic);
    bytes.windows(4).position(|window| {
        let word = u32::from_le_bytes([window[0], window[1], window[2], window[3]]);
        // Without short-circuiting, this compiles to vector instructions.
        (word == own)
            | (word == main)
            | (word == test3)
            | (word == test4)
            | (word == signet)
            | (word == regtest)
    })
}

/// Bytes that belong to no block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StrayBytes {
    /// The number of the block file.
    pub file: u32,
    /// The offset of the first byte.
    pub offset: u64,
    /// The length in bytes.
    pub length: u64,
}

/// The results of a scan.
///
/// Its memory is bounded: for each kind of damage it lists the first [`ScanSummary::LISTED_MAX`]
/// places and only counts the rest.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScanSummary {
    /// The number of files scanned.
    pub files: u64,
    /// Records of this chain; repeated blocks count each time.
    pub records: u64,
    /// The total length of their blocks in bytes.
    pub bytes: u64,
    /// Records with a wrong stated size; the scan reported their real size.
    pub corrected: u64,
    /// The incomplete last records of files, which a crash cut short. They have the stated size and were not
    /// reported.
    pub torn: Vec<BlockLocation>,
    /// The number of torn records, including those not listed.
    pub torn_count: u64,
    /// Ranges that hold neither blocks nor the zeros of preallocated space.
    pub resynced: Vec<StrayBytes>,
    /// The number of such ranges, including those not listed.
    pub resynced_count: u64,
    /// Their total length in bytes.
    pub resynced_bytes: u64,
    /// Records of other networks, in the order of [`Network::ALL`].
    pub foreign: [u64; Network::ALL.len()],
}

impl ScanSummary {
    /// The number of places listed for each kind of damage.
    pub const LISTED_MAX: usize = 10_000;

    /// Adds the results of another scan, of other files.
    pub fn merge(&mut self, other: Self) {
        self.files += other.files;
        self.records += other.records;
        self.bytes += other.bytes;
        self.corrected += other.corrected;
        self.torn.extend(other.torn);
        self.torn.truncate(Self::LISTED_MAX);
        self.torn_count += other.torn_count;
        self.resynced.extend(other.resynced);
        self.resynced.truncate(Self::LISTED_MAX);
        self.resynced_count += other.resynced_count;
        self.resynced_bytes += other.resynced_bytes;
        for (sum, more) in self.foreign.iter_mut().zip(other.foreign) {
            *sum += more;
        }
    }

    /// Fails if the files contain no block of this chain; the error says what they contain.
    pub fn verdict(&self, files: &BlockFiles) -> Result<(), BlkError> {
        if self.records > 0 {
            return Ok(());
        }
        let path = files.dir().to_owned();
        match Network::ALL.into_iter().zip(self.foreign).max_by_key(|&(_, records)| records) {
            Some((found, records)) if records > 0 => {
                Err(BlkError::WrongChain { path, found, records })
            }
            _ => match files.magic_of_signet()? {
                Some(magic) => Err(BlkError::OwnSignet { path, magic }),
                None => Err(BlkError::NoBlocks { path, bytes: files.bytes_total() }),
            },
        }
    }

    pub(crate) fn add_torn(&mut self, location: BlockLocation) {
        self.torn_count += 1;
        if self.torn.len() < Self::LISTED_MAX {
            self.torn.push(location);
        }
    }

    pub(crate) fn add_resynced(&mut self, stretch: StrayBytes) {
        self.resynced_count += 1;
        self.resynced_bytes += stretch.length;
        if self.resynced.len() < Self::LISTED_MAX {
            self.resynced.push(stretch);
        }
    }

    pub(crate) fn add_foreign(&mut self, network: Network) {
        for (known, count) in Network::ALL.into_iter().zip(&mut self.foreign) {
            *count += u64::from(known == network);
        }
    }
}

/// A file read through a buffer of a given size, de-obfuscated.
///
/// Rereading bytes that are still in the buffer costs nothing, so callers may step back and forth within it.
/// It never reads past the length that the file had when Apus listed it.
pub(crate) struct FileWindow<'a> {
    file: &'a BlockFile,
    handle: &'a File,
    obfuscation: Obfuscation,
    buffer: Vec<u8>,
    /// The file offset of the buffer's first byte.
    start: u64,
    filled: usize,
}

impl<'a> FileWindow<'a> {
    pub(crate) fn new(file: &'a BlockFile, handle: &'a File, obfuscation: Obfuscation) -> Self {
        Self { file, handle, obfuscation, buffer: Vec::new(), start: 0, filled: 0 }
    }

    /// Returns the bytes from `offset` on: at least `least` of them, more if they are in the buffer anyway,
    /// fewer only at the end of the file. If it has to read, it reads `ahead` bytes.
    pub(crate) fn at_least(
        &mut self,
        offset: u64,
        least: usize,
        ahead: usize,
    ) -> Result<&[u8], BlkError> {
        let left = self.file.length.saturating_sub(offset);
        let here = |count: usize| usize::try_from(left).map_or(count, |left| count.min(left));
        if let Some(skip) = offset.checked_sub(self.start)
            && let Ok(skip) = usize::try_from(skip)
            && skip.saturating_add(here(least)) <= self.filled
        {
            return Ok(&self.buffer[skip..self.filled]);
        }
        let count = here(least.max(ahead));
        if self.buffer.len() < count {
            self.buffer.resize(count, 0);
        }
        // Invalid until the read has succeeded.
        self.filled = 0;
        let bytes = &mut self.buffer[..count];
        self.file.read(self.handle, bytes, offset)?;
        self.obfuscation.apply(bytes, offset);
        (self.start, self.filled) = (offset, count);
        Ok(&self.buffer[..count])
    }
}

/// The length of a block header in bytes.
pub(crate) const HEADER: usize = 80;

/// Computes the length of the block at the start of `bytes`; `None` if no complete block is there. Also
/// returns how many bytes it examined.
///
/// It only follows the outline and stores nothing. Unlike Core's deserialization
/// (`primitives/transaction.h`, `UnserializeTransaction`) it refuses transactions without inputs or
/// outputs: otherwise the zeros of a torn write would parse as many such transactions. It checks no
/// other rule, so a result means "plausible", never "valid".
pub(crate) fn block_len(bytes: &[u8]) -> (Option<usize>, usize) {
    let mut reader = Reader::new(bytes);
    let whole = walk(&mut reader);
    (whole.then(|| reader.position()), reader.position())
}

fn walk(reader: &mut Reader<'_>) -> bool {
    let mut block = || -> Result<bool, ReadError> {
        reader.take(HEADER)?;
        let count = reader.compact_size()?;
        for _ in 0..count {
            if !transaction(reader)? {
                return Ok(false);
            }
        }
        Ok(count > 0)
    };
    block().unwrap_or(false)
}

/// Every iteration of every loop consumes bytes or ends, so a huge count costs at most the length of the
/// input.
fn transaction(reader: &mut Reader<'_>) -> Result<bool, ReadError> {
    reader.take(4)?;
    let mut inputs = reader.compact_size()?;
    let has_witness = inputs == 0;
    if has_witness {
        // BIP-144: zero inputs mark a witness transaction, and the only flag in use is 1.
        if reader.u8()? != 1 {
            return Ok(false);
        }
        inputs = reader.compact_size()?;
    }
    for _ in 0..inputs {
        reader.take(36)?;
        skip_bytes(reader)?;
        reader.take(4)?;
    }
    let outputs = reader.compact_size()?;
    for _ in 0..outputs {
        reader.take(8)?;
        skip_bytes(reader)?;
    }
    if has_witness {
        for _ in 0..inputs {
            for _ in 0..reader.compact_size()? {
                skip_bytes(reader)?;
            }
        }
    }
    reader.take(4)?;
    Ok(inputs > 0 && outputs > 0)
}

fn skip_bytes(reader: &mut Reader<'_>) -> Result<(), ReadError> {
    let count = reader.compact_size()?;
    reader.take(count)?;
    Ok(())
}
