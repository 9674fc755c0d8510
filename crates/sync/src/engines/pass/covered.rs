//! [`HeightCoverage`]: the heights that a partial result covers, and [`SeenHeights`]: the blocks of a segment
//! that have arrived.

use apus_chain::{BlockView, Height, HeightRange, Reader, write_compact_size};

/// A set of heights.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeightCoverage(Vec<HeightRange>);

impl HeightCoverage {
    /// The heights of a range.
    pub fn of(range: HeightRange) -> Self {
        Self(if range.is_empty() { vec![] } else { vec![range] })
    }

    /// Its ranges, ascending, adjacent ones merged.
    pub fn ranges(&self) -> &[HeightRange] {
        &self.0
    }

    /// Adds the heights of another result. Fails with the first height that is in both, and then changes
    /// nothing.
    pub fn add(&mut self, other: &Self) -> Result<(), Height> {
        let mut all = [&self.0[..], &other.0].concat();
        all.sort_unstable();
        let mut joined: Vec<HeightRange> = Vec::with_capacity(all.len());
        for range in all {
            match joined.last_mut() {
                Some(last) if range.start < last.end => return Err(range.start),
                Some(last) if range.start == last.end => last.end = range.end,
                _ => joined.push(range),
            }
        }
        self.0 = joined;
        Ok(())
    }

    /// Fails with the first difference unless these are exactly the heights of `wanted`.
    pub fn expect(&self, wanted: HeightRange) -> Result<(), CoverageGap> {
        let mut next = wanted.start;
        for range in &self.0 {
            if range.start < wanted.start {
                let end = wanted.start.min(range.end);
                return Err(CoverageGap::Surplus(HeightRange::new(range.start, end)));
            }
            if range.end > wanted.end {
                let start = wanted.end.max(range.start);
                return Err(CoverageGap::Surplus(HeightRange::new(start, range.end)));
            }
            if range.start > next {
                return Err(CoverageGap::Missing(HeightRange::new(next, range.start)));
            }
            next = range.end;
        }
        match next < wanted.end {
            true => Err(CoverageGap::Missing(HeightRange::new(next, wanted.end))),
            false => Ok(()),
        }
    }

    /// Appends the encoded form.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_compact_size(out, self.0.len() as u64);
        for range in &self.0 {
            out.extend_from_slice(&range.start.to_le_bytes());
            out.extend_from_slice(&range.end.to_le_bytes());
        }
    }

    /// Reads what [`write`](Self::write) wrote; `None` if the bytes are invalid.
    pub fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let count = reader.compact_size().ok()?;
        let mut ranges: Vec<HeightRange> = Vec::new();
        for _ in 0..count {
            let (start, end) = (reader.u32().ok()?, reader.u32().ok()?);
            let ascending = ranges.last().is_none_or(|last| last.end < start);
            if start >= end || !ascending {
                return None;
            }
            ranges.push(HeightRange::new(start, end));
        }
        Some(Self(ranges))
    }
}

/// A difference between covered and wanted heights.
#[derive(Debug)]
pub enum CoverageGap {
    /// Wanted, but not covered.
    Missing(HeightRange),
    /// Covered, but not wanted.
    Surplus(HeightRange),
}

/// The blocks of a segment, each of which must arrive once.
#[derive(Debug)]
pub(crate) struct SeenHeights {
    range: HeightRange,
    seen: Vec<bool>,
}

impl SeenHeights {
    pub(crate) fn none_of(range: HeightRange) -> Self {
        Self { range, seen: vec![false; range.count() as usize] }
    }

    /// The heights of the segment.
    pub(crate) fn range(&self) -> HeightRange {
        self.range
    }

    /// Leaves out the heights from `end` on.
    pub(crate) fn cut(&mut self, end: Height) {
        self.range.end = self.range.end.min(end);
        self.seen.truncate(self.range.count() as usize);
    }

    /// Marks a block as seen; returns whether it belongs to the segment and was not seen before.
    pub(crate) fn take(&mut self, height: Height) -> bool {
        let index = height.checked_sub(self.range.start).map(|index| index as usize);
        let seen = index.and_then(|index| self.seen.get_mut(index));
        seen.is_some_and(|seen| !std::mem::replace(seen, true))
    }

    /// The first block that has not arrived.
    pub(crate) fn missing(&self) -> Option<Height> {
        let missing = self.range.heights().zip(&self.seen).find(|(_, seen)| !**seen);
        missing.map(|(height, _)| height)
    }
}

// [`Counts`]: how much was processed.

/// How much was processed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of blocks.
    pub blocks: u64,
    /// Total size of the blocks, in bytes.
    pub bytes: u64,
    /// Number of transactions, coinbases included.
    pub transactions: u64,
    /// Number of inputs that spend a coin.
    pub inputs: u64,
    /// Number of outputs, unspendable ones included.
    pub outputs: u64,
}

impl Counts {
    /// Adds a block.
    pub fn add_block(&mut self, view: &BlockView<'_>) {
        self.blocks += 1;
        self.bytes += view.raw().len() as u64;
        self.transactions += view.tx_count() as u64;
        self.inputs += view.input_count() as u64 - 1;
        self.outputs += view.output_count() as u64;
    }

    /// Subtracts a block that [`add_block`](Self::add_block) added.
    pub fn take_back(&mut self, view: &BlockView<'_>) {
        let mut block = Self::default();
        block.add_block(view);
        for (number, of_block) in self.all().into_iter().zip(block.numbers()) {
            *number = number.saturating_sub(of_block);
        }
    }

    /// Adds another part's counts. They saturate rather than wrap, because damaged files may hold numbers
    /// that no chain reaches.
    pub fn add(&mut self, other: &Self) {
        for (number, other) in self.all().into_iter().zip(other.numbers()) {
            *number = number.saturating_add(other);
        }
    }

    /// Appends the encoded form.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.numbers().iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    }

    /// Reads what [`write`](Self::write) wrote; `None` if the bytes are too short.
    pub fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut counts = Self::default();
        for number in counts.all() {
            *number = reader.u64().ok()?;
        }
        Some(counts)
    }

    fn all(&mut self) -> [&mut u64; 5] {
        let Self { blocks, bytes, transactions, inputs, outputs } = self;
        [blocks, bytes, transactions, inputs, outputs]
    }

    fn numbers(&self) -> [u64; 5] {
        let Self { blocks, bytes, transactions, inputs, outputs } = *self;
        [blocks, bytes, transactions, inputs, outputs]
    }
}
