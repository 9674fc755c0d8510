//! [`RangeHints`]: the hints of a range of heights, one block after the other.
//!
//! Each range reads the parts of the file that it lies in for itself, in bounded memory. The file was
//! checked when it was opened, and what was hashed then is hashed again while it is read: other
//! bytes mean that the file was changed meanwhile. A range that came to its end without an error
//! gave exactly what the file's digest is of; before that its hints may be others.

use super::block::{BlockElement, BlockHints, HintsDecoder, IndexSpace};
use super::elias_fano;
use super::error::{HintsError, HintsFault};
use super::file::{PART_ELEMENTS, SharedHints, next_element};
use super::source::SourceReader;
use super::window::HintsWindow;
use apus_chain::{Height, HeightRange};
use apus_hash::Sha256;
use core::fmt;
use std::sync::Arc;

/// How much is read at once: enough for any element, little enough for one a thread.
const RANGE_BYTES: usize = 1 << 16;

/// The hints of a range, in ascending height.
pub struct RangeHints {
    shared: Arc<SharedHints>,
    window: HintsWindow<SourceReader>,
    heights: HeightRange,
    next: Height,
    indices: Vec<u32>,
    /// Hashes the elements that were read of a part.
    part: Sha256,
    /// How many these are.
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

    /// The heights, including those already read.
    pub const fn heights(&self) -> HeightRange {
        self.heights
    }

    /// The next block's hints, or none after the last.
    #[expect(clippy::should_implement_trait, reason = "what it returns borrows from it")]
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
            // The rest of the part, whose digest is of the whole.
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
                let what = format!("bytes from {} on are not those that were there", part.offset);
                return Err(changed(height, offset, &what));
            }
        }
        self.check_end(height)
    }

    /// After the last element of all the file must end where it ended.
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
        Err(changed(height, offset, &format!("it has {now} bytes and had {before}")))
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
    fn index_space(&self) -> IndexSpace {
        IndexSpace::Spendable
    }

    fn start_height(&self) -> Height {
        self.heights.start
    }

    fn stop_height(&self) -> Option<Height> {
        self.heights.end.checked_sub(1)
    }

    fn next_block(&mut self, indices: &mut Vec<u32>) -> Result<Option<BlockElement>, HintsError> {
        self.decode_next(indices)
    }
}
