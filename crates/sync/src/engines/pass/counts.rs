//! [`Counts`]: how much was processed.

use apus_chain::{BlockView, Reader};

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
