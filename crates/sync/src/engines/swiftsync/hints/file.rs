//! [`HintsFile`]: a BIP-456 hintsfile, checked in one pass and then read by block range.
//!
//! ```text
//! 55 54 58 4f   "UTXO"
//! 00            version
//! u32 LE        stop height H
//! elements      one a block, ascending; see `elias_fano`
//! ```
//!
//! The draft does not say at which height the elements begin, or whether their number precedes them;
//! [`Layout`] lists what writers do, and the length of the file shows which it is. Opening reads every byte
//! once, in bounded memory, so that all of a file is known to be well-formed before any of it is used.
//! Whether the hints are *true* is for the engine to find out: its sums must balance.

use super::elias_fano::BitOrder;
use super::error::{HintsError, HintsFault};
use super::order::OrderTrial;
pub use super::range::{HintsInfo, Layout};

use super::range::{HintsFilePart, PART_ELEMENTS, RangeHints, SharedHints, next_element};
use super::source::{HintsSource, SourceReader};
use super::window::HintsWindow;
use apus_chain::{Height, HeightRange, write_compact_size};
use apus_hash::Sha256;
use core::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// The first four bytes, "UTXO".
pub const MAGIC: [u8; 4] = *b"UTXO";
/// The version that BIP-456 describes.
pub const VERSION: u8 = 0;
/// Magic, version and height.
const HEADER_BYTES: usize = 9;

/// Size of one read; far more than the longest element.
const PASS_BYTES: usize = 1 << 18;

/// What the user knows about the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HintsOptions {
    /// The bit order; if `None`, the file must determine it.
    pub order: Option<BitOrder>,
    /// The blocks that the elements belong to; if `None`, the length of the file must show that.
    pub layout: Option<Layout>,
}

/// A hintsfile that was found well-formed from the first byte to the last.
#[derive(Clone)]
pub struct HintsFile {
    pub(super) shared: Arc<SharedHints>,
}

impl HintsFile {
    /// Opens a file and checks all of it.
    pub fn open_path(path: &Path, options: &HintsOptions) -> Result<Self, HintsError> {
        let open = |source| HintsError::Read { height: 0, offset: 0, source };
        Self::open(File::open(path).map_err(open)?, options)
    }

    /// Checks all of `source`: every element, their number, the end, the bit order.
    pub fn open(
        source: impl HintsSource + 'static,
        options: &HintsOptions,
    ) -> Result<Self, HintsError> {
        let source: Arc<dyn HintsSource> = Arc::new(source);
        let reader = HashingReader { reader: SourceReader::new(&source, 0), hasher: Sha256::new() };
        let mut pass = FilePass {
            window: HintsWindow::new(reader, PASS_BYTES, 0),
            trial: OrderTrial::new(options.order),
            parts: Vec::new(),
            part: Sha256::new(),
            indices: Vec::new(),
            elements: 0,
            coins: 0,
            first_is_empty: false,
        };
        let stop_height = pass.header()?;
        let (layout, shift) = pass.elements(stop_height, options.layout)?;
        let (order, order_evidence) = pass.trial.verdict(shift)?;
        pass.end_part();
        let bytes = pass.window.offset();
        let hasher = core::mem::take(&mut pass.window.reader_mut().hasher);
        let info = HintsInfo {
            version: VERSION,
            stop_height,
            layout,
            order,
            order_evidence,
            coins: pass.coins,
            bytes,
            sha256: hasher.finalize(),
        };
        Ok(Self { shared: Arc::new(SharedHints { source, info, parts: pass.parts }) })
    }

    /// Returns the findings of the check.
    pub fn info(&self) -> &HintsInfo {
        &self.shared.info
    }

    /// Reads the hints of `heights`, on any thread. Height 0 may be included in any layout: it has no hints.
    pub fn range(&self, heights: HeightRange) -> Result<RangeHints, HintsError> {
        RangeHints::new(&self.shared, heights)
    }
}

impl fmt::Debug for HintsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HintsFile").field("info", self.info()).finish_non_exhaustive()
    }
}

/// A reader that hashes the bytes it passes on.
struct HashingReader<R> {
    reader: R,
    hasher: Sha256,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}

/// The state of the checking pass.
struct FilePass<R> {
    window: HintsWindow<R>,
    trial: OrderTrial,
    parts: Vec<HintsFilePart>,
    /// Hashes the elements of the last part.
    part: Sha256,
    indices: Vec<u32>,
    elements: u64,
    coins: u64,
    first_is_empty: bool,
}

impl<R: Read> FilePass<R> {
    fn header(&mut self) -> Result<Height, HintsError> {
        let found = self.window.peek(HEADER_BYTES, 0)?;
        let found = &found[..found.len().min(HEADER_BYTES)];
        let header = |offset: usize, length: usize, expected| {
            let end = found.len().min(offset + length);
            let found = found.get(offset..end).unwrap_or_default();
            Err(HintsError::header("BIP-456", offset as u64, found, expected))
        };
        let Some(&[m0, m1, m2, m3, version, height @ ..]) = found.first_chunk::<HEADER_BYTES>()
        else {
            return header(0, HEADER_BYTES, "nine bytes: 5554584f, version 00, the height");
        };
        if [m0, m1, m2, m3] != MAGIC {
            return header(0, 4, "5554584f");
        }
        if version != VERSION {
            return header(4, 1, "version 00");
        }
        let height = u32::from_le_bytes(height);
        self.window.skip(HEADER_BYTES);
        Ok(height)
    }

    /// Walks all elements and finds which blocks they belong to. That may be known only at the end, so
    /// heights count from 1 unless the file says otherwise; also returns by how much they were too high.
    fn elements(
        &mut self,
        stop_height: Height,
        given: Option<Layout>,
    ) -> Result<(Layout, u32), HintsError> {
        let layout = self.layout_ahead(stop_height, given)?;
        for height in layout.start_height()..=stop_height {
            self.element(height)?;
            if height == 0 && !self.first_is_empty {
                return Err(HintsError::block(0, self.parts[0].offset, HintsFault::Genesis));
            }
        }
        if self.window.at_end(stop_height)? {
            return Ok((layout, 0));
        }
        let trailing = HintsError::Trailing { height: stop_height, offset: self.window.offset() };
        if given.is_some() || layout != Layout::FromHeightOne {
            return Err(trailing);
        }
        // If there is one element more, and the first is empty, the first was the genesis block's.
        match self.element(stop_height.saturating_add(1)) {
            Err(error @ HintsError::Read { .. }) => return Err(error),
            Ok(()) if self.first_is_empty && self.window.at_end(stop_height)? => {}
            _ => return Err(trailing),
        }
        Ok((Layout::FromGenesis, 1))
    }

    fn layout_ahead(
        &mut self,
        stop_height: Height,
        given: Option<Layout>,
    ) -> Result<Layout, HintsError> {
        match given {
            Some(layout @ (Layout::FromHeightOne | Layout::FromGenesis)) => Ok(layout),
            None if self.skip_count(stop_height)? => Ok(Layout::CountedFromGenesis),
            None => Ok(Layout::FromHeightOne),
            Some(Layout::CountedFromGenesis) => {
                if self.skip_count(stop_height)? {
                    return Ok(Layout::CountedFromGenesis);
                }
                let found = self.window.peek(4, 0)?;
                let found = &found[..found.len().min(4)];
                let expected = "the height plus one as a CompactSize, then 00";
                Err(HintsError::header("counted BIP-456", HEADER_BYTES as u64, found, expected))
            }
        }
    }

    /// Skips the number of elements if it precedes them. Read as an element these bytes would have N = H + 1
    /// and M = 0, which is impossible for H > 0: so they cannot be mistaken.
    fn skip_count(&mut self, stop_height: Height) -> Result<bool, HintsError> {
        let mut prefix = Vec::new();
        write_compact_size(&mut prefix, u64::from(stop_height) + 1);
        let count_bytes = prefix.len();
        prefix.push(0);
        let ahead = self.window.peek(prefix.len() + 1, 0)?;
        // At height 0 the genesis block's element is the last.
        let counted = ahead.starts_with(&prefix) && (stop_height > 0 || ahead == prefix);
        if counted {
            self.window.skip(count_bytes);
        }
        Ok(counted)
    }

    fn element(&mut self, height: Height) -> Result<(), HintsError> {
        let offset = self.window.offset();
        if self.elements.is_multiple_of(PART_ELEMENTS.into()) {
            self.end_part();
            self.parts.push(HintsFilePart { offset, digest: [0; 32] });
        }
        let bytes = next_element(&mut self.window, height)?;
        self.trial.element(height, offset, bytes, &mut self.indices)?;
        self.part.update(bytes);
        let length = bytes.len();
        self.window.skip(length);
        if self.elements == 0 {
            self.first_is_empty = self.indices.is_empty();
        }
        self.elements += 1;
        self.coins += self.indices.len() as u64;
        Ok(())
    }

    fn end_part(&mut self) {
        let digest = core::mem::take(&mut self.part).finalize();
        if let Some(part) = self.parts.last_mut() {
            part.digest = digest;
        }
    }
}

#[cfg(test)]
mod tests;
