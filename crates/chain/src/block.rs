//! A block's bytes, read in one pass without copying: [`BlockLayout`] says where everything lies,
//! [`BlockView`], [`TxView`], [`InputView`] and [`OutputView`] look at it.
//!
//! The layout is a set of reusable arrays of offsets, so that reading allocates nothing per
//! transaction and, after the first few blocks, nothing at all. This module accepts exactly what
//! Core's deserialization accepts (`primitives/transaction.h`, `UnserializeTransaction`); whether
//! the block obeys any rule is the business of [`check`](crate::check).

use crate::hashes::{BlockHash, MerkleRoot, OutPoint, Txid};
use crate::read::{ReadError, Reader};

/// Greatest size of a serialized block in bytes (Core `consensus/consensus.h`).
pub const BLOCK_SIZE_MAX: usize = 4_000_000;

/// Length of a block header in bytes.
pub const HEADER_SIZE: usize = 80;

/// Why bytes are no block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A field could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// More bytes than any block can have.
    #[error("{size} bytes are more than a block can have ({BLOCK_SIZE_MAX})")]
    TooLong {
        /// Bytes given.
        size: usize,
    },
    /// A transaction in the form with witnesses has none (BIP-144).
    #[error("transaction {tx} at byte {offset} has a witness marker but no witness")]
    SuperfluousWitness {
        /// Index of the transaction in the block.
        tx: usize,
        /// Where it begins.
        offset: usize,
    },
    /// The byte after the marker has unknown bits (BIP-144).
    #[error("transaction {tx} at byte {offset} has the unknown flag {flag:#04x}")]
    UnknownFlag {
        /// Index of the transaction in the block.
        tx: usize,
        /// Where it begins.
        offset: usize,
        /// The flag.
        flag: u8,
    },
}

impl DecodeError {
    /// The words of Core's exception (`serialize.h`, `streams.h`, `primitives/transaction.h`); for
    /// limits that Core has elsewhere or not at all, what it says of bytes that are no block.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Read(ReadError::End { .. }) => "DataStream::read(): end of data",
            Self::Read(ReadError::NonCanonical { .. }) => "non-canonical ReadCompactSize()",
            // The only numbers in a block that have a limit are CompactSizes.
            Self::Read(ReadError::TooLarge { .. }) => "ReadCompactSize(): size too large",
            // Not of a block, behind which nothing is looked at.
            Self::Read(ReadError::Trailing { .. }) => "Block decode failed",
            // Core reads such bytes and refuses the block for its length or its weight.
            Self::TooLong { .. } => "bad-blk-length",
            Self::SuperfluousWitness { .. } => "Superfluous witness record",
            Self::UnknownFlag { .. } => "Unknown transaction optional data",
        }
    }
}

/// Offsets of one transaction. All count from the start of the block.
#[derive(Debug, Clone, Copy)]
struct TxSpan {
    /// First byte of the version.
    start: u32,
    /// First byte of the input count, behind the marker and flag if there are any.
    body: u32,
    /// First byte after the last output: of the witness, or of the lock time.
    body_end: u32,
    /// First byte after the lock time.
    end: u32,
    inputs_start: u32,
    inputs_end: u32,
    outputs_start: u32,
    outputs_end: u32,
}

/// Offsets of one input: the outpoint, then the script with its length before it.
#[derive(Debug, Clone, Copy)]
struct InputSpan {
    outpoint: u32,
    script: u32,
    script_len: u32,
}

/// Offsets of one output: the value is the eight bytes at `value`.
#[derive(Debug, Clone, Copy)]
struct OutputSpan {
    value: u32,
    script: u32,
    script_len: u32,
}

/// Where the parts of a block lie. Reused from block to block.
#[derive(Debug, Default)]
pub struct BlockLayout {
    txs: Vec<TxSpan>,
    inputs: Vec<InputSpan>,
    outputs: Vec<OutputSpan>,
    /// Views show no witnesses.
    hides_witnesses: bool,
}

impl BlockLayout {
    /// Empty arrays.
    pub fn new() -> Self {
        Self::default()
    }

    /// Empty arrays, with room for as many elements as the block has that `other` read last.
    pub(crate) fn with_room_of(other: &Self) -> Self {
        Self {
            txs: Vec::with_capacity(other.txs.len()),
            inputs: Vec::with_capacity(other.inputs.len()),
            outputs: Vec::with_capacity(other.outputs.len()),
            hides_witnesses: false,
        }
    }

    /// Reads the block that `raw` begins with. What follows it is not looked at and not part of the
    /// view, as in Core, which reads a block from a file, a message or a call and leaves the rest
    /// (`node/blockstorage.cpp`, `ReadBlock`; `net_processing.cpp`, `ProcessMessage`;
    /// `core_io.cpp`, `DecodeHexBlk`). Every element costs input bytes before it is stored, so
    /// memory is bounded by a small multiple of `raw`, whatever the counts in it claim.
    pub fn read<'a>(&'a mut self, raw: &'a [u8]) -> Result<BlockView<'a>, DecodeError> {
        self.read_shown(raw, &mut ())
    }

    /// [`read`](Self::read), which shows what it reads to a visitor, up to where it fails if it does.
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
            // It goes on where no block does any more.
            DecodeError::Read(ReadError::End { .. }) if allowed.len() < raw.len() => {
                DecodeError::TooLong { size: raw.len() }
            }
            other => other,
        })?;
        Ok(BlockView { raw: &raw[..length], layout: self })
    }

    /// Reads header and transactions, and says where the last one ends.
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

    /// Has views of the block that was read last show it as if it had come without witnesses, for one whose
    /// witnesses are not checked: nothing may depend on them then.
    pub(crate) fn hide_witnesses(&mut self) {
        self.hides_witnesses = true;
    }

    /// The block that was read last. `raw` must be the bytes that it was read from.
    pub(crate) fn view<'a>(&'a self, raw: &'a [u8]) -> BlockView<'a> {
        BlockView { raw, layout: self }
    }

    /// Memory in use beside the value itself, in bytes.
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
            // No inputs: this is the marker of the form with witnesses, and the flag follows.
            flag = reader.u8()?;
            if flag == 0 {
                // Core reads the flag as the count of no outputs.
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

/// Steps over the witnesses of all inputs and says whether any of them has an item.
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

/// A block that could be read. Nothing more is known of it.
#[derive(Debug, Clone, Copy)]
pub struct BlockView<'a> {
    raw: &'a [u8],
    layout: &'a BlockLayout,
}

impl<'a> BlockView<'a> {
    /// All bytes of the block, and none behind it.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// The 80 bytes of the header.
    pub fn header(&self) -> &'a [u8; HEADER_SIZE] {
        self.raw.first_chunk().expect("a block is only read with a whole header")
    }

    /// Double SHA-256 of the header.
    pub fn hash(&self) -> BlockHash {
        BlockHash(apus_hash::sha256d(self.header()))
    }

    /// The block before, which the header names.
    pub fn prev(&self) -> BlockHash {
        BlockHash(array_at(self.header(), 4))
    }

    /// The merkle root that the header claims.
    pub fn merkle_root(&self) -> MerkleRoot {
        MerkleRoot(array_at(self.header(), 36))
    }

    /// The header's time, in seconds since 1970.
    pub fn time(&self) -> u32 {
        u32::from_le_bytes(array_at(self.header(), 68))
    }

    /// How many transactions.
    pub fn tx_count(&self) -> usize {
        self.layout.txs.len()
    }

    /// How many inputs, the coinbase's included.
    pub fn input_count(&self) -> usize {
        self.layout.inputs.len()
    }

    /// How many outputs.
    pub fn output_count(&self) -> usize {
        self.layout.outputs.len()
    }

    /// A transaction by its place in the block.
    pub fn tx(&self, index: usize) -> Option<TxView<'a>> {
        let span = *self.layout.txs.get(index)?;
        Some(TxView { raw: self.raw, layout: self.layout, span })
    }

    /// A transaction that is known to be there.
    #[inline]
    pub(crate) fn tx_at(&self, index: usize) -> TxView<'a> {
        TxView { raw: self.raw, layout: self.layout, span: self.layout.txs[index] }
    }

    /// The transactions, in block order.
    pub fn txs(&self) -> impl ExactSizeIterator<Item = TxView<'a>> + use<'a> {
        let (raw, layout) = (self.raw, self.layout);
        layout.txs.iter().map(move |&span| TxView { raw, layout, span })
    }

    /// The inputs of all transactions, in their order.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = InputView<'a>> + use<'a> {
        let raw = self.raw;
        self.layout.inputs.iter().map(move |&span| InputView { raw, span })
    }

    /// Which transaction has the input at this place among those of all.
    pub fn tx_of_input(&self, place: usize) -> usize {
        self.layout.txs.partition_point(|tx| tx.inputs_end as usize <= place)
    }

    /// Bytes of the block without witnesses, as rules before segwit count them.
    pub fn stripped_size(&self) -> usize {
        self.raw.len() - self.txs().map(|tx| tx.witness_overhead()).sum::<usize>()
    }

    /// Weight in units of BIP-141: three times the stripped size and once the size.
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

    /// All bytes, the witness included.
    #[inline]
    pub fn raw(&self) -> &'a [u8] {
        self.bytes(self.span.start, self.span.end)
    }

    /// Where the transaction begins, counted from the start of the block.
    pub fn offset(&self) -> usize {
        self.span.start as usize
    }

    /// The pieces that make the transaction id: version, inputs with outputs, lock time.
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

    /// Its id. To hash one after the other takes longer than a [`BlockChecker`](crate::BlockChecker)
    /// does with all of a block at once.
    pub fn txid(&self) -> Txid {
        let mut hash = apus_hash::Sha256::new();
        self.id_parts().iter().for_each(|part| hash.update(part));
        Txid(apus_hash::sha256(&hash.finalize()))
    }

    /// Whether it is in the form with witnesses (BIP-144).
    #[inline]
    pub fn has_witness(&self) -> bool {
        self.span.body != self.span.start + 4
    }

    /// The witnesses of all inputs, one stack after the other; empty without the BIP-144 form, and where
    /// witnesses were not checked ([`BlockChecker::leave_witnesses`](crate::BlockChecker::leave_witnesses)).
    #[inline]
    pub fn witness(&self) -> &'a [u8] {
        if self.layout.hides_witnesses {
            return &[];
        }
        self.bytes(self.span.body_end, self.span.end - 4)
    }

    /// Bytes that the stripped form lacks.
    #[inline]
    pub(crate) fn witness_overhead(&self) -> usize {
        let marker_and_flag = self.span.body - self.span.start - 4;
        (marker_and_flag + self.span.end - 4 - self.span.body_end) as usize
    }

    /// Bytes without the witness.
    pub fn stripped_size(&self) -> usize {
        self.raw().len() - self.witness_overhead()
    }

    /// The version, unsigned as in Core (`primitives/transaction.h`, `CTransaction::version`).
    #[inline]
    pub fn version(&self) -> u32 {
        u32::from_le_bytes(array_at(self.raw, self.span.start as usize))
    }

    /// The lock time.
    #[inline]
    pub fn lock_time(&self) -> u32 {
        u32::from_le_bytes(array_at(self.raw, self.span.end as usize - 4))
    }

    /// The inputs.
    #[inline]
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = InputView<'a>> + use<'a> {
        let raw = self.raw;
        self.input_spans().iter().map(move |&span| InputView { raw, span })
    }

    #[inline]
    fn input_spans(&self) -> &'a [InputSpan] {
        &self.layout.inputs[self.span.inputs_start as usize..self.span.inputs_end as usize]
    }

    /// The outputs.
    #[inline]
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = OutputView<'a>> + use<'a> {
        let raw = self.raw;
        let spans =
            &self.layout.outputs[self.span.outputs_start as usize..self.span.outputs_end as usize];
        spans.iter().map(move |&span| OutputView { raw, span })
    }

    /// Whether it has the form of a coinbase: one input that spends nothing
    /// (Core `primitives/transaction.h`, `IsCoinBase`).
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
    /// The coin that it spends, in wire form.
    #[inline]
    pub fn outpoint(&self) -> &'a [u8; OutPoint::SIZE] {
        self.raw[self.span.outpoint as usize..]
            .first_chunk()
            .expect("the layout holds only whole inputs")
    }

    /// The unlocking script.
    #[inline]
    pub fn script_sig(&self) -> &'a [u8] {
        &self.raw[self.span.script as usize..][..self.span.script_len as usize]
    }

    /// The sequence number.
    #[inline]
    pub fn sequence(&self) -> u32 {
        let offset = self.span.script as usize + self.span.script_len as usize;
        u32::from_le_bytes(array_at(self.raw, offset))
    }

    /// Whether it spends nothing: the null outpoint of a coinbase.
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
    /// The amount in satoshis, signed as in Core: a block under test may hold nonsense.
    #[inline]
    pub fn value(&self) -> i64 {
        i64::from_le_bytes(array_at(self.raw, self.span.value as usize))
    }

    /// The locking script.
    #[inline]
    pub fn script(&self) -> &'a [u8] {
        &self.raw[self.span.script as usize..][..self.span.script_len as usize]
    }
}

fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    *bytes[offset..].first_chunk().expect("the layout holds only whole fields")
}

/// Is shown each transaction of a block when all its inputs and outputs were.
pub(crate) trait Visitor {
    /// An input of the transaction that is being read.
    fn input(&mut self, outpoint: &[u8; OutPoint::SIZE], script_sig: &[u8], sequence: u32);

    /// An output of it, with its amount in satoshis as the bytes have it.
    fn output(&mut self, value: i64, script: &[u8]);

    /// The transaction, after its inputs and outputs.
    fn transaction(&mut self, tx: &TxView<'_>);
}

/// Looks at nothing.
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
    /// The items with their lengths, without their count.
    bytes: &'a [u8],
    count: usize,
    last: Option<&'a [u8]>,
}

impl<'a> WitnessView<'a> {
    /// How many items.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The item on top of the stack.
    pub fn last(&self) -> Option<&'a [u8]> {
        self.last
    }

    /// The items, the top of the stack last.
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
    /// The witness of each input, in the order of the inputs; empty ones where the transaction is
    /// not in the form of BIP-144.
    pub fn witnesses(&self) -> impl ExactSizeIterator<Item = WitnessView<'a>> + use<'a> {
        // In an odd form without outputs or with unknown flags there may be no bytes at all.
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
