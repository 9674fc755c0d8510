//! Reads a block's bytes in one pass without copying: [`BlockLayout`] records the positions of all parts, and
//! [`BlockView`], [`TxView`], [`InputView`] and [`OutputView`] give access to them.
//!
//! The layout is a set of reusable arrays of offsets, so reading allocates nothing per transaction
//! and, after the first few blocks, nothing at all. This module accepts exactly what Core's
//! deserialization accepts (`primitives/transaction.h`, `UnserializeTransaction`);
//! [`check`](crate::check) decides whether the block obeys the rules.

use crate::hashes::{BlockHash, MerkleRoot, OutPoint, Txid};
use crate::read::{ReadError, Reader};

/// Maximum size of a serialized block in bytes (Core `consensus/consensus.h`).
pub const BLOCK_SIZE_MAX: usize = 4_000_000;

/// Length of a block header in bytes.
pub const HEADER_SIZE: usize = 80;

/// Why bytes could not be read as a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A field could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The input has more bytes than any block can have.
    #[error("the block has {size} bytes, more than the maximum of {BLOCK_SIZE_MAX}")]
    TooLong {
        /// Number of bytes given.
        size: usize,
    },
    /// A transaction is in the witness form but has no witness (BIP-144).
    #[error("transaction {tx} at byte {offset} has a witness marker but no witness")]
    SuperfluousWitness {
        /// Index of the transaction in the block.
        tx: usize,
        /// Offset of its first byte.
        offset: usize,
    },
    /// The byte after the marker has unknown bits set (BIP-144).
    #[error("transaction {tx} at byte {offset} has the unknown flag {flag:#04x}")]
    UnknownFlag {
        /// Index of the transaction in the block.
        tx: usize,
        /// Offset of its first byte.
        offset: usize,
        /// The flag.
        flag: u8,
    },
}

impl DecodeError {
    /// Returns the text of Core's exception (`serialize.h`, `streams.h`,
    /// `primitives/transaction.h`). For limits that Core checks in another place or not at all,
    /// returns what Core reports for an unreadable block.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Read(ReadError::End { .. }) => "DataStream::read(): end of data",
            Self::Read(ReadError::NonCanonical { .. }) => "non-canonical ReadCompactSize()",
            // In a block, only CompactSizes have a limit.
            Self::Read(ReadError::TooLarge { .. }) => "ReadCompactSize(): size too large",
            // Never occurs for a block: bytes after it are ignored.
            Self::Read(ReadError::Trailing { .. }) => "Block decode failed",
            // Core reads such bytes and then rejects the block for its length or its weight.
            Self::TooLong { .. } => "bad-blk-length",
            Self::SuperfluousWitness { .. } => "Superfluous witness record",
            Self::UnknownFlag { .. } => "Unknown transaction optional data",
        }
    }
}

/// Offsets of one transaction, all counted from the start of the block.
#[derive(Debug, Clone, Copy)]
struct TxSpan {
    /// First byte of the version.
    start: u32,
    /// First byte of the input count, after the marker and flag if present.
    body: u32,
    /// First byte after the last output: the start of the witness, or of the lock time.
    body_end: u32,
    /// First byte after the lock time.
    end: u32,
    inputs_start: u32,
    inputs_end: u32,
    outputs_start: u32,
    outputs_end: u32,
}

/// Offsets of one input: the outpoint, then the script preceded by its length.
#[derive(Debug, Clone, Copy)]
struct InputSpan {
    outpoint: u32,
    script: u32,
    script_len: u32,
}

/// Offsets of one output. The value is the eight bytes at `value`.
#[derive(Debug, Clone, Copy)]
struct OutputSpan {
    value: u32,
    script: u32,
    script_len: u32,
}

/// The positions of the parts of a block. Reused from block to block.
#[derive(Debug, Default)]
pub struct BlockLayout {
    txs: Vec<TxSpan>,
    inputs: Vec<InputSpan>,
    outputs: Vec<OutputSpan>,
    /// If set, views show no witnesses.
    hides_witnesses: bool,
}

impl BlockLayout {
    /// Creates empty arrays.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates empty arrays with capacity for as many elements as the last block read into `other`
    /// has.
    pub(crate) fn with_room_of(other: &Self) -> Self {
        Self {
            txs: Vec::with_capacity(other.txs.len()),
            inputs: Vec::with_capacity(other.inputs.len()),
            outputs: Vec::with_capacity(other.outputs.len()),
            hides_witnesses: false,
        }
    }

    /// Reads the block at the start of `raw`. Ignores bytes after it, which are not part of the view. Core
    /// does the same with a block from a file, a message or a call (`node/blockstorage.cpp`, `ReadBlock`;
    /// `net_processing.cpp`, `ProcessMessage`; `core_io.cpp`, `DecodeHexBlk`). Every element consumes input
    /// bytes before it is stored, so memory is bounded by a small multiple of `raw`, even if it claims huge
    /// counts.
    /// memory is bounded by a small multiple of `raw`, even if it claims huge counts.
    pub fn read<'a>(&'a mut self, raw: &'a [u8]) -> Result<BlockView<'a>, DecodeError> {
        self.read_shown(raw, &mut ())
    }

    /// Like [`read`](Self::read), and also passes all parts to a visitor while reading, up to the first
    /// failure.
    pub(crate) fn read_shown<'a>(
        &'a mut self,
        raw: &'a [u8],
        visitor: &mut impl Visitor,
    ) -> Result<BlockView<'a>, DecodeError> {
        self.txs.clear();
        self.inputs.clear();
        self.outputs.clear();
        self.hides_witnesses = false;
        let allowed = raw.get(..BLOCK_SIZE_MAX).unwrap_or(raw);
        let length = self.read_txs(allowed, visitor).map_err(|error| match error {
            // The bytes continue past the maximum size of a block.
            DecodeError::Read(ReadError::End { .. }) if allowed.len() < raw.len() => {
                DecodeError::TooLong { size: raw.len() }
            }
            other => other,
        })?;
        Ok(BlockView { raw: &raw[..length], layout: self })
    }

    /// Reads header and transactions, and returns the end of the last transaction.
    fn read_txs(&mut self, raw: &[u8], visitor: &mut impl Visitor) -> Result<usize, DecodeError> {
        let mut reader = Reader::new(raw);
        reader.take(HEADER_SIZE)?;
        let count = reader.compact_size()?;
        for tx in 0..count {
            self.read_tx(&mut reader, tx, visitor)?;
            visitor.transaction(&self.view(raw).tx_at(tx));
        }
        Ok(reader.position())
    }

    /// Hides the witnesses of the last block read, as if it had come without them. Use it for a block whose
    /// witnesses are not checked, so that no code depends on them.
    pub(crate) fn hide_witnesses(&mut self) {
        self.hides_witnesses = true;
    }

    /// Returns the last block read. `raw` must be the bytes that it was read from.
    pub(crate) fn view<'a>(&'a self, raw: &'a [u8]) -> BlockView<'a> {
        BlockView { raw, layout: self }
    }

    /// Returns the memory in use in addition to the value itself, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let bytes = self.txs.capacity() * size_of::<TxSpan>()
            + self.inputs.capacity() * size_of::<InputSpan>()
            + self.outputs.capacity() * size_of::<OutputSpan>();
        bytes as u64
    }

    #[inline]
    fn read_tx(
        &mut self,
        reader: &mut Reader<'_>,
        tx: usize,
        visitor: &mut impl Visitor,
    ) -> Result<(), DecodeError> {
        let offset = reader.position();
        let inputs_start = self.inputs.len() as u32;
        let outputs_start = self.outputs.len() as u32;
        reader.take(4)?;
        let mut body = reader.position();
        let mut flag = 0;
        let mut inputs = reader.compact_size()?;
        let mut has_outputs = true;
        if inputs == 0 {
            // Zero inputs mark the witness form; the flag follows.
            flag = reader.u8()?;
            if flag == 0 {
                // Core reads the flag as an output count of zero.
                has_outputs = false;
            } else {
                body = reader.position();
                inputs = reader.compact_size()?;
            }
        }
        self.read_inputs(reader, inputs, visitor)?;
        if has_outputs {
            self.read_outputs(reader, visitor)?;
        }
        let body_end = reader.position();
        if flag & 1 != 0 && !skip_witnesses(reader, inputs)? {
            return Err(DecodeError::SuperfluousWitness { tx, offset });
        }
        if flag & !1 != 0 {
            return Err(DecodeError::UnknownFlag { tx, offset, flag });
        }
        reader.take(4)?;
        self.txs.push(TxSpan {
            start: offset as u32,
            body: body as u32,
            body_end: body_end as u32,
            end: reader.position() as u32,
            inputs_start,
            inputs_end: self.inputs.len() as u32,
            outputs_start,
            outputs_end: self.outputs.len() as u32,
        });
        Ok(())
    }

    #[inline]
    fn read_inputs(
        &mut self,
        reader: &mut Reader<'_>,
        count: usize,
        visitor: &mut impl Visitor,
    ) -> Result<(), ReadError> {
        for _ in 0..count {
            let outpoint = reader.position() as u32;
            let coin = reader.array()?;
            let script_len = reader.compact_size()?;
            let script = reader.position() as u32;
            let script_sig = reader.take(script_len)?;
            visitor.input(coin, script_sig, reader.u32()?);
            self.inputs.push(InputSpan { outpoint, script, script_len: script_len as u32 });
        }
        Ok(())
    }

    #[inline]
    fn read_outputs(
        &mut self,
        reader: &mut Reader<'_>,
        visitor: &mut impl Visitor,
    ) -> Result<(), ReadError> {
        for _ in 0..reader.compact_size()? {
            let value = reader.position() as u32;
            let amount = reader.u64()? as i64;
            let script_len = reader.compact_size()?;
            let script = reader.position() as u32;
            visitor.output(amount, reader.take(script_len)?);
            self.outputs.push(OutputSpan { value, script, script_len: script_len as u32 });
        }
        Ok(())
    }
}

/// Skips the witnesses of all inputs and returns whether any of them has an item.
fn skip_witnesses(reader: &mut Reader<'_>, inputs: usize) -> Result<bool, ReadError> {
    let mut any = false;
    for _ in 0..inputs {
        let items = reader.compact_size()?;
        any |= items > 0;
        for _ in 0..items {
            let length = reader.compact_size()?;
            reader.take(length)?;
        }
    }
    Ok(any)
}

/// A block that could be read, otherwise unchecked.
#[derive(Debug, Clone, Copy)]
pub struct BlockView<'a> {
    raw: &'a [u8],
    layout: &'a BlockLayout,
}

impl<'a> BlockView<'a> {
    /// Returns the bytes of the block, without any bytes after it.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Returns the 80 bytes of the header.
    pub fn header(&self) -> &'a [u8; HEADER_SIZE] {
        self.raw.first_chunk().expect("a block is only read with a whole header")
    }

    /// Returns the double SHA-256 of the header.
    pub fn hash(&self) -> BlockHash {
        BlockHash(apus_hash::sha256d(self.header()))
    }

    /// Returns the hash of the previous block, as the header states it.
    pub fn prev(&self) -> BlockHash {
        BlockHash(array_at(self.header(), 4))
    }

    /// Returns the merkle root that the header claims.
    pub fn merkle_root(&self) -> MerkleRoot {
        MerkleRoot(array_at(self.header(), 36))
    }

    /// Returns the header's time, in seconds since 1970.
    pub fn time(&self) -> u32 {
        u32::from_le_bytes(array_at(self.header(), 68))
    }

    /// Returns the number of transactions.
    pub fn tx_count(&self) -> usize {
        self.layout.txs.len()
    }

    /// Returns the number of inputs, including the coinbase's.
    pub fn input_count(&self) -> usize {
        self.layout.inputs.len()
    }

    /// Returns the number of outputs.
    pub fn output_count(&self) -> usize {
        self.layout.outputs.len()
    }

    /// Returns a transaction by its index in the block.
    pub fn tx(&self, index: usize) -> Option<TxView<'a>> {
        let span = *self.layout.txs.get(index)?;
        Some(TxView { raw: self.raw, layout: self.layout, span })
    }

    /// Returns a transaction that must exist.
    #[inline]
    pub(crate) fn tx_at(&self, index: usize) -> TxView<'a> {
        TxView { raw: self.raw, layout: self.layout, span: self.layout.txs[index] }
    }

    /// Returns the transactions, in block order.
    pub fn txs(&self) -> impl ExactSizeIterator<Item = TxView<'a>> + use<'a> {
        let (raw, layout) = (self.raw, self.layout);
        layout.txs.iter().map(move |&span| TxView { raw, layout, span })
    }

    /// Returns the inputs of all transactions, in block order.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = InputView<'a>> + use<'a> {
        let raw = self.raw;
        self.layout.inputs.iter().map(move |&span| InputView { raw, span })
    }

    /// Returns the index of the transaction with a given input, which is counted among all inputs of the
    /// block.
    pub fn tx_of_input(&self, place: usize) -> usize {
        self.layout.txs.partition_point(|tx| tx.inputs_end as usize <= place)
    }

    /// Returns the size of the block without witnesses in bytes, like the rules before segwit.
    pub fn stripped_size(&self) -> usize {
        self.raw.len() - self.txs().map(|tx| tx.witness_overhead()).sum::<usize>()
    }

    /// Returns the weight (BIP-141): three times the stripped size plus the size.
    pub fn weight(&self) -> usize {
        3 * self.stripped_size() + self.raw.len()
    }
}

/// One transaction of a block.
#[derive(Debug, Clone, Copy)]
pub struct TxView<'a> {
    raw: &'a [u8],
    layout: &'a BlockLayout,
    span: TxSpan,
}

impl<'a> TxView<'a> {
    #[inline]
    fn bytes(&self, start: u32, end: u32) -> &'a [u8] {
        &self.raw[start as usize..end as usize]
    }

    /// Returns all bytes, including the witness.
    #[inline]
    pub fn raw(&self) -> &'a [u8] {
        self.bytes(self.span.start, self.span.end)
    }

    /// Returns the offset of the transaction from the start of the block.
    pub fn offset(&self) -> usize {
        self.span.start as usize
    }

    /// Returns the pieces that make up the transaction id: version, inputs with outputs, lock time.
    #[inline]
    pub fn id_parts(&self) -> [&'a [u8]; 3] {
        let span = self.span;
        if self.has_witness() {
            [
                self.bytes(span.start, span.start + 4),
                self.bytes(span.body, span.body_end),
                self.bytes(span.end - 4, span.end),
            ]
        } else {
            [&[], self.raw(), &[]]
        }
    }

    /// Returns the transaction id. Hashing transactions one by one is slower than a
    /// [`BlockChecker`](crate::BlockChecker), which hashes all of a block together.
    pub fn txid(&self) -> Txid {
        let mut hash = apus_hash::Sha256::new();
        self.id_parts().iter().for_each(|part| hash.update(part));
        Txid(apus_hash::sha256(&hash.finalize()))
    }

    /// Returns whether it is in the witness form (BIP-144).
    #[inline]
    pub fn has_witness(&self) -> bool {
        self.span.body != self.span.start + 4
    }

    /// Returns the witness stacks of all inputs in order. Empty without the BIP-144 form, or if witnesses
    /// were not checked
    /// ([`BlockChecker::leave_witnesses`](crate::BlockChecker::leave_witnesses)).
    #[inline]
    pub fn witness(&self) -> &'a [u8] {
        if self.layout.hides_witnesses {
            return &[];
        }
        self.bytes(self.span.body_end, self.span.end - 4)
    }

    /// Returns the number of bytes that the stripped form omits.
    #[inline]
    pub(crate) fn witness_overhead(&self) -> usize {
        let marker_and_flag = self.span.body - self.span.start - 4;
        (marker_and_flag + self.span.end - 4 - self.span.body_end) as usize
    }

    /// Returns the size without the witness in bytes.
    pub fn stripped_size(&self) -> usize {
        self.raw().len() - self.witness_overhead()
    }

    /// Returns the version, unsigned as in Core (`primitives/transaction.h`,
    /// `CTransaction::version`).
    #[inline]
    pub fn version(&self) -> u32 {
        u32::from_le_bytes(array_at(self.raw, self.span.start as usize))
    }

    /// Returns the lock time.
    #[inline]
    pub fn lock_time(&self) -> u32 {
        u32::from_le_bytes(array_at(self.raw, self.span.end as usize - 4))
    }

    /// Returns the inputs.
    #[inline]
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = InputView<'a>> + use<'a> {
        let raw = self.raw;
        self.input_spans().iter().map(move |&span| InputView { raw, span })
    }

    #[inline]
    fn input_spans(&self) -> &'a [InputSpan] {
        &self.layout.inputs[self.span.inputs_start as usize..self.span.inputs_end as usize]
    }

    /// Returns the outputs.
    #[inline]
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = OutputView<'a>> + use<'a> {
        let raw = self.raw;
        let spans =
            &self.layout.outputs[self.span.outputs_start as usize..self.span.outputs_end as usize];
        spans.iter().map(move |&span| OutputView { raw, span })
    }

    /// Returns whether it has the form of a coinbase: one input that spends nothing (Core
    /// `primitives/transaction.h`, `IsCoinBase`).
    #[inline]
    pub fn is_coinbase(&self) -> bool {
        match self.input_spans() {
            [span] => InputView { raw: self.raw, span: *span }.is_null(),
            _ => false,
        }
    }
}

/// One input of a transaction.
#[derive(Debug, Clone, Copy)]
pub struct InputView<'a> {
    raw: &'a [u8],
    span: InputSpan,
}

impl<'a> InputView<'a> {
    /// Returns the outpoint of the coin that it spends, in wire form.
    #[inline]
    pub fn outpoint(&self) -> &'a [u8; OutPoint::SIZE] {
        self.raw[self.span.outpoint as usize..]
            .first_chunk()
            .expect("the layout holds only whole inputs")
    }

    /// Returns the unlocking script.
    #[inline]
    pub fn script_sig(&self) -> &'a [u8] {
        &self.raw[self.span.script as usize..][..self.span.script_len as usize]
    }

    /// Returns the sequence number.
    #[inline]
    pub fn sequence(&self) -> u32 {
        let offset = self.span.script as usize + self.span.script_len as usize;
        u32::from_le_bytes(array_at(self.raw, offset))
    }

    /// Returns whether its outpoint is null, as in a coinbase: it spends nothing.
    #[inline]
    pub fn is_null(&self) -> bool {
        let bytes = self.outpoint();
        bytes[32..] == [0xff; 4] && bytes[..32] == [0; 32]
    }
}

/// One output of a transaction.
#[derive(Debug, Clone, Copy)]
pub struct OutputView<'a> {
    raw: &'a [u8],
    span: OutputSpan,
}

impl<'a> OutputView<'a> {
    /// Returns the amount in satoshis, signed as in Core: an unchecked block may hold invalid amounts.
    #[inline]
    pub fn value(&self) -> i64 {
        i64::from_le_bytes(array_at(self.raw, self.span.value as usize))
    }

    /// Returns the locking script.
    #[inline]
    pub fn script(&self) -> &'a [u8] {
        &self.raw[self.span.script as usize..][..self.span.script_len as usize]
    }
}

fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    *bytes[offset..].first_chunk().expect("the layout holds only whole fields")
}

/// Receives the inputs and outputs of each transaction of a block, then the transaction.
pub(crate) trait Visitor {
    /// Receives an input of the current transaction.
    fn input(&mut self, outpoint: &[u8; OutPoint::SIZE], script_sig: &[u8], sequence: u32);

    /// Receives an output of the current transaction, with its raw amount in satoshis.
    fn output(&mut self, value: i64, script: &[u8]);

    /// Receives the transaction, after its inputs and outputs.
    fn transaction(&mut self, tx: &TxView<'_>);
}

/// Ignores everything.
impl Visitor for () {
    #[inline]
    fn input(&mut self, _: &[u8; OutPoint::SIZE], _: &[u8], _: u32) {}

    #[inline]
    fn output(&mut self, _: i64, _: &[u8]) {}

    #[inline]
    fn transaction(&mut self, _: &TxView<'_>) {}
}

/// The witness stack of one input, in wire form.
#[derive(Debug, Clone, Copy, Default)]
pub struct WitnessView<'a> {
    /// The items with their lengths, but without the item count.
    bytes: &'a [u8],
    count: usize,
    last: Option<&'a [u8]>,
}

impl<'a> WitnessView<'a> {
    /// Returns the number of items.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the item on top of the stack.
    pub fn last(&self) -> Option<&'a [u8]> {
        self.last
    }

    /// Returns the items; the top of the stack comes last.
    pub fn items(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let mut reader = Reader::new(self.bytes);
        (0..self.count).map(move |_| item(&mut reader))
    }

    /// Reads one stack.
    fn read(reader: &mut Reader<'a>, all: &'a [u8]) -> Self {
        let count = reader.compact_size().expect(WHOLE);
        let start = reader.position();
        let mut last = None;
        for _ in 0..count {
            last = Some(item(reader));
        }
        Self { bytes: &all[start..reader.position()], count, last }
    }
}

const WHOLE: &str = "the layout holds only whole witnesses";

fn item<'a>(reader: &mut Reader<'a>) -> &'a [u8] {
    let length = reader.compact_size().expect(WHOLE);
    reader.take(length).expect(WHOLE)
}

impl<'a> TxView<'a> {
    /// Returns the witness of each input, in input order; empty ones if the transaction is not in
    /// the BIP-144 form.
    pub fn witnesses(&self) -> impl ExactSizeIterator<Item = WitnessView<'a>> + use<'a> {
        // Without outputs or with unknown flags, the witness bytes may be missing.
        let all = self.witness();
        let mut reader = Reader::new(all);
        (0..self.inputs().len()).map(move |_| match all {
            [] => WitnessView::default(),
            _ => WitnessView::read(&mut reader, all),
        })
    }
}

#[cfg(test)]
mod tests;
