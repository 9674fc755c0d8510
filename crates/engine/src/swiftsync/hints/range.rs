//! [`RangeHints`]: the hints of a range of heights, one block after the other.
//!
//! Each range reads its part of the file for itself, from the nearest known offset on, in bounded
//! memory. The file was checked when it was opened; everything is checked again, and anything
//! invalid now, another length, or an element that is not where it was, means that somebody wrote
//! to the file. Not noticed is a change that keeps every 1,024th element in its place and leaves
//! every element valid: such hints are false, and the sums of the engine do not balance.

use super::block::{BlockElement, BlockHints, HintsDecoder, IndexSpace};
use super::elias_fano;
use super::error::HintsError;
use super::file::{Shared, TABLE_STEP, next_element};
use super::source::SourceReader;
use super::window::Window;
use apus_chain::{Height, HeightRange};
use core::fmt;
use std::sync::Arc;

/// How much is read at once: enough for any element, little enough for one a thread.
const RANGE_BYTES: usize = 1 << 16;

/// The hints of a range, in ascending height.
pub struct RangeHints {
    shared: Arc<Shared>,
    window: Window<SourceReader>,
    heights: HeightRange,
    next: Height,
    indices: Vec<u32>,
}

impl RangeHints {
    pub(super) fn new(shared: &Arc<Shared>, heights: HeightRange) -> Result<Self, HintsError> {
        let stop_height = shared.info.stop_height;
        if u64::from(heights.end) > u64::from(stop_height) + 1 {
            return Err(HintsError::OutOfRange { wanted: heights, stop_height });
        }
        let element = heights.start.saturating_sub(shared.info.layout.start_height());
        let slot = element / TABLE_STEP;
        let offset = shared.table.get(slot as usize).copied().unwrap_or(shared.info.bytes);
        let mut range = Self {
            shared: Arc::clone(shared),
            window: Window::new(SourceReader::new(&shared.source, offset), RANGE_BYTES, offset),
            heights,
            next: heights.start,
            indices: Vec::new(),
        };
        range.check_length()?;
        if !heights.is_empty() {
            range.skip_elements(element - slot * TABLE_STEP)?;
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
            let bytes = self.expect_element(height)?;
            let length = bytes.len();
            elias_fano::decode(bytes, order, indices)
                .map_err(|fault| changed(height, offset, &fault))?;
            self.window.skip(length);
            self.check_end(height)?;
        }
        self.next += 1;
        Ok(Some(BlockElement { height, offset, outputs: None }))
    }

    fn skip_elements(&mut self, count: u32) -> Result<(), HintsError> {
        let first = self.next - count;
        for height in first..self.next {
            let length = self.expect_element(height)?.len();
            self.window.skip(length);
        }
        Ok(())
    }

    /// The element ahead, where it was when the file was opened.
    fn expect_element(&mut self, height: Height) -> Result<&[u8], HintsError> {
        let offset = self.window.offset();
        let element = height - self.shared.info.layout.start_height();
        if element.is_multiple_of(TABLE_STEP) {
            let before = self.shared.table[(element / TABLE_STEP) as usize];
            if before != offset {
                return Err(changed(height, offset, &format!("its hints were at byte {before}")));
            }
        }
        match next_element(&mut self.window, height) {
            Err(HintsError::Block { fault, .. }) => Err(changed(height, offset, &fault)),
            other => other,
        }
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
