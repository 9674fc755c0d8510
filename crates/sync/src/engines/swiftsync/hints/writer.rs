//! [`HintsWriter`]: writes a BIP-456 hintsfile as a stream.
//!
//! The stop height is known before the first block, and exactly the blocks up to it must be written.
//! [`HintsFile`](super::HintsFile) reads the same sets back.

use super::block::HintsEncoder;
use super::elias_fano::{self, BitOrder};
use super::error::{HintsError, HintsFault};
use super::file::{Layout, MAGIC, VERSION};
use super::sink::HintsSink;
use apus_chain::{Height, write_compact_size};
use std::io::Write;

/// Writes hints block by block.
pub struct HintsWriter<W> {
    sink: HintsSink<W>,
    order: BitOrder,
    layout: Layout,
    stop_height: Height,
    blocks: u64,
}

impl<W: Write> HintsWriter<W> {
    /// Uses the form that every implementation up to hintsfile 0.1 reads: from height 1, most significant bit
    /// first, as in the vectors of BIP-456.
    pub fn new(writer: W, stop_height: Height) -> Result<Self, HintsError> {
        Self::with(writer, stop_height, BitOrder::MsbFirst, Layout::FromHeightOne)
    }

    /// Uses another layout or bit order.
    pub fn with(
        writer: W,
        stop_height: Height,
        order: BitOrder,
        layout: Layout,
    ) -> Result<Self, HintsError> {
        let mut sink = HintsSink::new(writer, layout.start_height());
        sink.scratch.extend_from_slice(&MAGIC);
        sink.scratch.push(VERSION);
        sink.scratch.extend_from_slice(&stop_height.to_le_bytes());
        let mut writer = Self { sink, order, layout, stop_height, blocks: 0 };
        if layout == Layout::CountedFromGenesis {
            let blocks = writer.blocks_expected();
            write_compact_size(&mut writer.sink.scratch, blocks);
        }
        writer.sink.flush_scratch()?;
        Ok(writer)
    }

    fn blocks_expected(&self) -> u64 {
        u64::from(self.stop_height) + 1 - u64::from(self.layout.start_height())
    }

    /// Writes the hints of the next block: the indices of its unspent spendable outputs, ascending.
    pub fn put(&mut self, indices: &[u32]) -> Result<(), HintsError> {
        if self.blocks == self.blocks_expected() {
            return Err(self.sink.miscounted(self.stop_height));
        }
        if self.sink.next == 0 && !indices.is_empty() {
            return Err(self.sink.invalid(HintsFault::Genesis));
        }
        elias_fano::encode(indices, self.order, &mut self.sink.scratch)
            .map_err(|fault| self.sink.invalid(fault))?;
        self.blocks += 1;
        self.sink.end_block()
    }

    /// Flushes and returns the stream. Fails unless all blocks up to the stop height were written.
    pub fn finish(self) -> Result<W, HintsError> {
        if self.blocks != self.blocks_expected() {
            return Err(self.sink.miscounted(self.stop_height));
        }
        self.sink.finish()
    }
}

impl<W: Write> HintsEncoder for HintsWriter<W> {
    fn put_block(&mut self, indices: &[u32], _outputs: u32) -> Result<(), HintsError> {
        self.put(indices)
    }

    fn finish(self: Box<Self>) -> Result<(), HintsError> {
        (*self).finish().map(drop)
    }
}
