//! [`RangeHints`]: the hints of a block range, block by block.
//!
//! Each range reads the parts of the file that it needs, in bounded memory. The whole file was checked and
//! hashed when it was opened; each part is hashed again while it is read, so that a change in the meantime is
//! noticed. If a range is read to its end without an error, its hints are covered by the file's digest; before
//! that they may be different.

use super::block::{BlockElement, BlockHints, HintsDecoder};
use super::elias_fano::{self, BitOrder, ELEMENT_HEADER_BYTES_MAX};
use super::error::{HintsError, HintsFault};
use super::order::OrderEvidence;
use super::source::{HintsSource, SourceReader};
use super::window::HintsWindow;
use apus_chain::{Height, HeightRange};
use apus_hash::Sha256;
use core::fmt;
use std::io::Read;
use std::sync::Arc;

/// Size of a read: enough for any element, small enough for one buffer a thread.
const RANGE_BYTES: usize = 1 << 16;

/// The hints of a range, in ascending height.
pub struct RangeHints {
    shared: Arc<SharedHints>,
    window: HintsWindow<SourceReader>,
    heights: HeightRange,
    next: Height,
    indices: Vec<u32>,
    /// Hashes the elements read of a part.
    part: Sha256,
    /// Number of these elements.
    part_elements: u32,
}

impl RangeHints {
    pub(super) fn new(shared: &Arc<SharedHints>, heights: HeightRange) -> Result<Self, HintsError> {
        let stop_height = shared.info.stop_height;
        if u64::from(heights.end) > u64::from(stop_height) + 1 {
            return Err(HintsError::OutOfRange { wanted: heights, stop_height });
        }
        let element = heights.start.saturating_sub(shared.info.layout.start_height());
        let part = element / PART_ELEMENTS;
        let offset = shared.parts.get(part as usize).map_or(shared.info.bytes, |part| part.offset);
        let mut range = Self {
            shared: Arc::clone(shared),
            window: HintsWindow::new(
                SourceReader::new(&shared.source, offset),
                RANGE_BYTES,
                offset,
            ),
            heights,
            next: heights.start,
            indices: Vec::new(),
            part: Sha256::new(),
            part_elements: 0,
        };
        range.check_length()?;
        if !heights.is_empty() {
            for height in heights.start - element % PART_ELEMENTS..heights.start {
                range.element(height, |_| Ok(()))?;
            }
        }
        Ok(range)
    }

    /// Returns the heights, including those already read.
    pub const fn heights(&self) -> HeightRange {
        self.heights
    }

    /// Returns the next block's hints, or `None` after the last.
    #[expect(clippy::should_implement_trait, reason = "the return value borrows from it")]
    pub fn next(&mut self) -> Result<Option<BlockHints<'_>>, HintsError> {
        let mut indices = core::mem::take(&mut self.indices);
        let element = self.decode_next(&mut indices);
        self.indices = indices;
        let hints =
            |element: BlockElement| BlockHints { height: element.height, indices: &self.indices };
        Ok(element?.map(hints))
    }

    fn decode_next(&mut self, indices: &mut Vec<u32>) -> Result<Option<BlockElement>, HintsError> {
        indices.clear();
        if self.next == self.heights.end {
            self.check_length()?;
            return Ok(None);
        }
        let (height, offset) = (self.next, self.window.offset());
        if height >= self.shared.info.layout.start_height() {
            let order = self.shared.info.order;
            let decode = |bytes: &[u8]| elias_fano::decode(bytes, order, indices).map(|_| ());
            self.element(height, decode)?;
        }
        self.next += 1;
        if self.next == self.heights.end {
            // Read the rest of the part, because the digest covers all of it.
            for height in self.next..=self.shared.info.stop_height {
                if self.part_elements == 0 {
                    break;
                }
                self.element(height, |_| Ok(()))?;
            }
        }
        Ok(Some(BlockElement { height, offset, outputs: None }))
    }

    /// Reads the element ahead, which must be where it was when the file was opened.
    fn element(
        &mut self,
        height: Height,
        read: impl FnOnce(&[u8]) -> Result<(), HintsFault>,
    ) -> Result<(), HintsError> {
        let offset = self.window.offset();
        let info = &self.shared.info;
        let element = height - info.layout.start_height();
        let part = &self.shared.parts[(element / PART_ELEMENTS) as usize];
        if self.part_elements == 0 && offset != part.offset {
            let what = format!("its hints were at byte {}", part.offset);
            return Err(changed(height, offset, &what));
        }
        let bytes = match next_element(&mut self.window, height) {
            Err(HintsError::Block { fault, .. }) => return Err(changed(height, offset, &fault)),
            other => other?,
        };
        read(bytes).map_err(|fault| changed(height, offset, &fault))?;
        self.part.update(bytes);
        let length = bytes.len();
        self.window.skip(length);
        self.part_elements += 1;
        if (element + 1).is_multiple_of(PART_ELEMENTS) || height == info.stop_height {
            self.part_elements = 0;
            if core::mem::take(&mut self.part).finalize() != part.digest {
                let what = format!("bytes from {} on have changed", part.offset);
                return Err(changed(height, offset, &what));
            }
        }
        self.check_end(height)
    }

    /// After the last element the file must still end at the same byte.
    fn check_end(&self, height: Height) -> Result<(), HintsError> {
        let (offset, bytes) = (self.window.offset(), self.shared.info.bytes);
        if height == self.shared.info.stop_height && offset != bytes {
            return Err(changed(height, offset, &format!("the file ended at byte {bytes}")));
        }
        Ok(())
    }

    fn check_length(&self) -> Result<(), HintsError> {
        let (height, offset) = (self.next, self.window.offset());
        let read = |source| HintsError::Read { height, offset, source };
        let (now, before) = (self.shared.source.bytes().map_err(read)?, self.shared.info.bytes);
        if now == before {
            return Ok(());
        }
        Err(changed(height, offset, &format!("its length was {before} bytes and is now {now}")))
    }
}

fn changed(height: Height, offset: u64, what: &impl ToString) -> HintsError {
    HintsError::Changed { height, offset, what: what.to_string() }
}

impl fmt::Debug for RangeHints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { heights, next, .. } = self;
        let mut debug = f.debug_struct("RangeHints");
        debug.field("heights", heights).field("next", next).finish_non_exhaustive()
    }
}

impl HintsDecoder for RangeHints {
    fn stop_height(&self) -> Option<Height> {
        self.heights.end.checked_sub(1)
    }

    fn next_block(&mut self, indices: &mut Vec<u32>) -> Result<Option<BlockElement>, HintsError> {
        self.decode_next(indices)
    }
}

/// Elements in a part, for which offset and digest are kept. Few enough that a range reads little more than
/// its own hints; many enough that the table takes only half a megabyte for the whole main chain.
pub(super) const PART_ELEMENTS: u32 = 64;

/// State shared by all readers of one file.
pub(super) struct SharedHints {
    pub(super) source: Arc<dyn HintsSource>,
    pub(super) info: HintsInfo,
    /// The parts, [`PART_ELEMENTS`] elements each; the last may have fewer.
    pub(super) parts: Vec<HintsFilePart>,
}

/// Returns the bytes of the element ahead without skipping them.
pub(super) fn next_element<R: Read>(
    window: &mut HintsWindow<R>,
    height: Height,
) -> Result<&[u8], HintsError> {
    let offset = window.offset();
    let fail = |fault| HintsError::block(height, offset, fault);
    let ahead = window.peek(ELEMENT_HEADER_BYTES_MAX, height)?;
    if ahead.is_empty() {
        return Err(fail(HintsFault::End { field: "the list of blocks" }));
    }
    let length = elias_fano::measure(ahead).map_err(fail)?.bytes();
    window
        .peek(length, height)?
        .get(..length)
        .ok_or_else(|| fail(HintsFault::End { field: "L or H" }))
}

/// Which blocks the elements belong to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layout {
    /// H elements, from height 1: what the hintsfile crate, Bitcoin Core's branch and Floresta
    /// write and read.
    FromHeightOne,
    /// H + 1 elements, from the genesis block, whose element is empty: BIP-456 as written.
    FromGenesis,
    /// Like [`FromGenesis`](Self::FromGenesis), but after the CompactSize H + 1: BIP-456 as written, reading
    /// "vector" as in Bitcoin's serialization.
    CountedFromGenesis,
}

impl Layout {
    /// Returns the height of the first element.
    pub const fn start_height(self) -> Height {
        match self {
            Self::FromHeightOne => 1,
            Self::FromGenesis | Self::CountedFromGenesis => 0,
        }
    }
}

/// The findings of the check of a hintsfile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HintsInfo {
    /// The version byte.
    pub version: u8,
    /// The last height covered: the hints are true for the UTXO set after this block.
    pub stop_height: Height,
    /// Which blocks the elements belong to.
    pub layout: Layout,
    /// How bits fill bytes.
    pub order: BitOrder,
    /// How the bit order is known.
    pub order_evidence: OrderEvidence,
    /// Number of outputs hinted to be unspent.
    pub coins: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// SHA-256 of the whole file.
    pub sha256: [u8; 32],
}

impl HintsInfo {
    /// Bits of the file for each coin; `None` for a file without coins.
    pub fn bits_per_coin(&self) -> Option<f64> {
        self.bits_per(self.coins)
    }

    /// Bits of the file for each of the chain's `outputs`, a number that the file does not contain.
    pub fn bits_per_output(&self, outputs: u64) -> Option<f64> {
        self.bits_per(outputs)
    }

    fn bits_per(&self, things: u64) -> Option<f64> {
        (things > 0).then(|| 8.0 * self.bytes as f64 / things as f64)
    }
}

/// A part of a file as it was when the file was opened.
pub(super) struct HintsFilePart {
    /// Offset of the first element.
    pub(super) offset: u64,
    /// SHA-256 of all elements.
    pub(super) digest: [u8; 32],
}
