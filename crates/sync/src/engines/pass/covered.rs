//! [`Covered`]: which heights a partial result covers, and [`SeenHeights`]: which blocks of a segment came.

use apus_chain::{BlockView, Height, HeightRange, Reader, write_compact_size};

/// Heights, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Covered(Vec<HeightRange>);

impl Covered {
    /// The heights of a range.
    pub fn of(range: HeightRange) -> Self {
        Self(if range.is_empty() { vec![] } else { vec![range] })
    }

    /// Ascending, neighbours joined.
    pub fn ranges(&self) -> &[HeightRange] {
        &self.0
    }

    /// Adds those of another result. The first height that is in both is the error, and nothing is
    /// changed then.
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

    /// Fails unless these are the heights from 1 to `stop` and no others. The first difference is the
    /// error.
    pub fn expect_up_to(&self, stop: Height) -> Result<(), Uncovered> {
        let wanted = HeightRange::new(1, stop + 1);
        let mut next = wanted.start;
        for range in &self.0 {
            if range.start < wanted.start {
                let end = wanted.start.min(range.end);
                return Err(Uncovered::Surplus(HeightRange::new(range.start, end)));
            }
            if range.end > wanted.end {
                let start = wanted.end.max(range.start);
                return Err(Uncovered::Surplus(HeightRange::new(start, range.end)));
            }
            if range.start > next {
                return Err(Uncovered::Missing(HeightRange::new(next, range.start)));
            }
            next = range.end;
        }
        match next < wanted.end {
            true => Err(Uncovered::Missing(HeightRange::new(next, wanted.end))),
            false => Ok(()),
        }
    }

    /// Appends the byte form.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_compact_size(out, self.0.len() as u64);
        for range in &self.0 {
            out.extend_from_slice(&range.start.to_le_bytes());
            out.extend_from_slice(&range.end.to_le_bytes());
        }
    }

    /// Reads what [`write`](Self::write) wrote; `None` where the bytes are not that.
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

/// In what heights differ from those that are wanted.
#[derive(Debug)]
pub enum Uncovered {
    /// These are wanted, and not covered.
    Missing(HeightRange),
    /// These are covered, and not wanted.
    Surplus(HeightRange),
}

/// The blocks of a segment, each of which is to come once.
#[derive(Debug)]
pub(crate) struct SeenHeights {
    range: HeightRange,
    seen: Vec<bool>,
}

impl SeenHeights {
    pub(crate) fn none_of(range: HeightRange) -> Self {
        Self { range, seen: vec![false; range.count() as usize] }
    }

    /// The heights.
    pub(crate) fn range(&self) -> HeightRange {
        self.range
    }

    /// Notes that a block came; whether it is of the segment, and came for the first time.
    pub(crate) fn take(&mut self, height: Height) -> bool {
        let index = height.checked_sub(self.range.start).map(|index| index as usize);
        let seen = index.and_then(|index| self.seen.get_mut(index));
        seen.is_some_and(|seen| !std::mem::replace(seen, true))
    }

    /// The first block that did not come.
    pub(crate) fn missing(&self) -> Option<Height> {
        let missing = self.range.heights().zip(&self.seen).find(|(_, seen)| !**seen);
        missing.map(|(height, _)| height)
    }
}

// [`Counts`]: how much was processed.

/// How much was processed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks.
    pub blocks: u64,
    /// Bytes of blocks.
    pub bytes: u64,
    /// Transactions, coinbases included.
    pub transactions: u64,
    /// Inputs that spend a coin.
    pub inputs: u64,
    /// Outputs, unspendable ones included.
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

    /// Adds those of another part. Numbers that no chain reaches, such as damage may have left, stay at
    /// their greatest and do not wrap.
    pub fn add(&mut self, other: &Self) {
        for (number, other) in self.all().into_iter().zip(other.numbers()) {
            *number = number.saturating_add(other);
        }
    }

    /// Appends the byte form.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.numbers().iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    }

    /// Reads what [`write`](Self::write) wrote; `None` where the bytes end before.
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
