//! Finding every block in the files without reading the blocks.
//!
//! A scan hops from record to record, as Core does when it reindexes (`validation.cpp`,
//! `LoadExternalBlockFile`): 8 bytes of magic and size, 80 of header, on to the next. It believes
//! a size only if another record or the end of the file comes right after. Otherwise the block itself is asked how long it is (see `extent`), and
//! where it gives no answer the bytes behind its magic are searched for further records, so that
//! one flipped bit costs one block and not those behind it.
//!
//! Blocks are neither checked nor told apart: the same block is reported wherever it lies.

use crate::error::BlkError;
use crate::extent::{HEADER, block_len};
use crate::files::{BLOCK_SIZES, BlockFile, BlockFiles, BlockLocation, RECORD_HEAD};
use crate::summary::{ScanSummary, Stretch};
use crate::window::Window;
use apus_chain::Network;
use core::ops::ControlFlow;

/// Called with each header and the place of its block, in disk order within a file.
pub type Visit<'a> = dyn FnMut(&[u8; HEADER], BlockLocation) -> ControlFlow<()> + 'a;

/// Magic, size and header: what is read of a record.
const RECORD_PROBE: usize = RECORD_HEAD as usize + HEADER;

/// After blocks below this size the next records are read together: a page holds several.
const SMALL_BLOCK: u32 = 8 << 10;

/// How much is read at once among small blocks and when searching.
const CHUNK: usize = 256 << 10;

/// So many zeros at the end of a file's last record make it doubtful.
const ZEROS_DOUBTFUL: usize = 64;

/// More zeros than this at the end of a block are odd: four are a lock time.
const ZEROS_ODD: usize = 16;

/// How much is read at once to follow the outlines of doubtful blocks.
const SPAN: usize = 2 * *BLOCK_SIZES.end() as usize;

/// Records of other networks, with none of this one, after which a scan gives up early.
const FOREIGN_ENOUGH: u64 = 1_000;

impl BlockFiles {
    /// Reports every block of this chain. Fails with [`BlkError::WrongChain`] or
    /// [`BlkError::NoBlocks`] if there is none; damage is no failure, see [`ScanSummary`].
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

    /// Scans one file, so that threads can share the files out. No block is no failure here: ask
    /// [`ScanSummary::verdict`] when all summaries are merged.
    pub fn scan_file(&self, number: u32, visit: &mut Visit<'_>) -> Result<ScanSummary, BlkError> {
        let mut summary = ScanSummary::default();
        // Stopped or not, the summary is of what was seen.
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
        let window = || Window::new(file, &handle, self.obfuscation());
        summary.files += 1;
        FileScan {
            files: self,
            file,
            heads: window(),
            probe: window(),
            spans: window(),
            // Following outlines costs this many bytes of work in a file at most, whatever a
            // hostile file makes of it.
            outline_budget: file.length.saturating_mul(4) + SPAN as u64,
            gap: None,
            summary,
        }
        .run(visit)
    }
}

/// Bytes passed since the last record.
struct Gap {
    start: u64,
    /// First byte after the last one that is not zero on disk.
    used_end: u64,
    /// The first record in it whose block is not all there.
    torn: Option<BlockLocation>,
}

/// What lies at an offset.
enum Found {
    /// A block of this chain.
    Record([u8; HEADER], BlockLocation),
    /// A record of another network and its end.
    Foreign(Network, u64),
    /// The head of a record of this chain whose block is not all there.
    Broken(BlockLocation),
    Nothing,
}

/// What comes after a record.
enum After {
    Record,
    /// The end of the file, to the byte.
    End,
    /// Zeros on disk, as in preallocated space.
    Zeros,
    /// Anything else, or fewer bytes than claimed.
    Other,
}

struct FileScan<'a> {
    files: &'a BlockFiles,
    file: &'a BlockFile,
    /// Records one after the other, and the chunks of a search.
    heads: Window<'a>,
    /// Looks elsewhere without losing what `heads` holds.
    probe: Window<'a>,
    /// Whole doubtful blocks.
    spans: Window<'a>,
    outline_budget: u64,
    gap: Option<Gap>,
    summary: &'a mut ScanSummary,
}

impl FileScan<'_> {
    fn run(mut self, visit: &mut Visit<'_>) -> Result<ControlFlow<()>, BlkError> {
        let mut at = 0;
        while at < self.file.length {
            match self.look(at)? {
                Found::Record(header, location) => {
                    self.end_gap(at, false);
                    self.summary.records += 1;
                    self.summary.bytes += u64::from(location.size);
                    if visit(&header, location).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    at = location.end();
                }
                Found::Foreign(network, end) => {
                    self.end_gap(at, false);
                    self.summary.add_foreign(network);
                    at = end;
                }
                Found::Broken(location) => {
                    self.gap_at(at).torn.get_or_insert(location);
                    at = self.search(at)?;
                }
                Found::Nothing => at = self.search(at)?,
            }
        }
        self.end_gap(self.file.length, true);
        Ok(ControlFlow::Continue(()))
    }

    fn gap_at(&mut self, at: u64) -> &mut Gap {
        self.gap.get_or_insert(Gap { start: at, used_end: at, torn: None })
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
            self.summary.add_resynced(Stretch {
                file: self.file.number,
                offset: gap.start,
                length,
            });
        }
    }

    /// What lies at `at`.
    fn look(&mut self, at: u64) -> Result<Found, BlkError> {
        let head = self.heads.at_least(at, RECORD_PROBE, RECORD_PROBE)?;
        let Some((&[m0, m1, m2, m3, s0, s1, s2, s3], rest)) = head.split_first_chunk() else {
            return Ok(Found::Nothing);
        };
        let magic = [m0, m1, m2, m3];
        let size = u32::from_le_bytes([s0, s1, s2, s3]);
        if !BLOCK_SIZES.contains(&size) {
            return Ok(Found::Nothing);
        }
        let header = rest.first_chunk::<HEADER>().copied();
        let location = BlockLocation { file: self.file.number, offset: at + RECORD_HEAD, size };
        if magic == self.files.magic() {
            let Some(header) = header else { return Ok(Found::Broken(location)) };
            return Ok(match self.judge(location)? {
                Some(location) => Found::Record(header, location),
                None => Found::Broken(location),
            });
        }
        match Network::from_magic(magic) {
            Some(network) if !matches!(self.after(location, magic)?, After::Other) => {
                Ok(Found::Foreign(network, location.end()))
            }
            _ => Ok(Found::Nothing),
        }
    }

    /// What comes after a record of the network with this magic.
    fn after(&mut self, location: BlockLocation, magic: [u8; 4]) -> Result<After, BlkError> {
        let end = location.end();
        if end >= self.file.length {
            return Ok(if end == self.file.length { After::End } else { After::Other });
        }
        // Within a gap the chunk being searched is worth more than the next record's head.
        let window = if self.gap.is_some() { &mut self.probe } else { &mut self.heads };
        let ahead = if location.size < SMALL_BLOCK { CHUNK } else { RECORD_PROBE };
        let next = window.at_least(end, RECORD_PROBE, ahead)?;
        let next = &next[..next.len().min(RECORD_PROBE)];
        Ok(if next.starts_with(&magic) || next.starts_with(&self.files.magic()) {
            After::Record
        } else if self.files.obfuscation().trimmed_len(next, end) == 0 {
            After::Zeros
        } else {
            After::Other
        })
    }

    /// The place of the block that a record at `location` claims: as claimed, with the size that
    /// the block itself shows, or `None` if it is not all there.
    fn judge(&mut self, location: BlockLocation) -> Result<Option<BlockLocation>, BlkError> {
        let credible = match self.after(location, self.files.magic())? {
            After::Record => true,
            After::End => !self.ends_in_zeros(location)?,
            // A size that is a little too large ends in zeros too.
            After::Zeros | After::Other => false,
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
        // Zeros on disk are the key once de-obfuscated and can look like anything. Only in a plain
        // file can a block end in them, and then its record ends there too.
        let used = self.files.obfuscation().trimmed_len(&bytes[..size], location.offset);
        // At most 4,000,000, the length of the slice.
        let size = size as u32;
        let odd = size as usize - used > ZEROS_ODD;
        if odd && (size != location.size || !self.files.obfuscation().is_none()) {
            return Ok(None);
        }
        self.summary.mended += u64::from(size != location.size);
        Ok(Some(BlockLocation { size, ..location }))
    }

    /// Whether the last record of a file ends in zeros on disk: what a crash leaves where a file
    /// had grown but its bytes had not arrived.
    fn ends_in_zeros(&mut self, location: BlockLocation) -> Result<bool, BlkError> {
        let start = location.end() - ZEROS_DOUBTFUL as u64;
        let bytes = self.probe.at_least(start, ZEROS_DOUBTFUL, ZEROS_DOUBTFUL)?;
        Ok(self.files.obfuscation().trimmed_len(bytes, start) == 0)
    }

    /// The next offset after `at` where a known magic begins, or the end of the file. Notes what
    /// it passes.
    fn search(&mut self, at: u64) -> Result<u64, BlkError> {
        self.gap_at(at);
        let (magic, obfuscation) = (self.files.magic(), self.files.obfuscation());
        let mut from = at;
        // The first time around the magic at `at` itself is the one that led here.
        let mut skip = 1;
        loop {
            let chunk = self.heads.at_least(from, RECORD_PROBE, CHUNK)?;
            let found =
                find_magic(&chunk[skip.min(chunk.len())..], magic).map(|found| found + skip);
            // The last bytes may be the first of a magic: keep them for the next chunk.
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

/// The first place where the magic of this chain or of a known network stands.
fn find_magic(bytes: &[u8], magic: [u8; 4]) -> Option<usize> {
    let [main, test3, test4, signet, regtest] =
        Network::ALL.map(|network| u32::from_le_bytes(network.magic()));
    let own = u32::from_le_bytes(magic);
    bytes.windows(4).position(|window| {
        let word = u32::from_le_bytes([window[0], window[1], window[2], window[3]]);
        // Without short circuits this becomes vector instructions.
        (word == own)
            | (word == main)
            | (word == test3)
            | (word == test4)
            | (word == signet)
            | (word == regtest)
    })
}

#[cfg(test)]
mod tests;
