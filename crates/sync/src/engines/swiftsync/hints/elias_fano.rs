//! One block's hints in BIP-456: an Elias-Fano element.
//!
//! An empty set is the byte `00`. Any other is CompactSize N (the number of indices), CompactSize M (the
//! greatest index), then two bit strings, each padded with zeros to whole bytes: L, the low ℓ bits of every
//! index, least significant first; and H, where index number j with high part h sets bit h + j. ℓ is
//! floor(log2((M + 1) / N)).
//!
//! The draft does not say how bits fill a byte, and both ways are in use under one version byte: see
//! [`BitOrder`]. In a given order exactly one byte string represents a set, and only that one is accepted.
//! This module does not detect the order.

use apus_chain::{ReadError, Reader, write_compact_size};
use core::fmt;
use core::str::FromStr;

/// A fault in the hints of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HintsFault {
    /// The data ends too early.
    #[error("the data ends inside {field}")]
    End {
        /// What is incomplete.
        field: &'static str,
    },
    /// A CompactSize is longer than its value needs.
    #[error("{field} is a CompactSize in a longer form than its value needs")]
    NonCanonical {
        /// Which number.
        field: &'static str,
    },
    /// A number exceeds what any block allows.
    #[error("{field} is {value}, above the limit of {limit}")]
    TooLarge {
        /// Which number.
        field: &'static str,
        /// The number.
        value: u64,
        /// The maximum value.
        limit: u64,
    },
    /// There are more indices than different values up to the largest.
    #[error("N is {n}, but only {m} + 1 different indices exist up to M")]
    TooManyIndices {
        /// Number of indices.
        n: u32,
        /// The largest index.
        m: u32,
    },
    /// H does not have one set bit for each index.
    #[error("{found} bits of H are set where N is {n}")]
    SetBits {
        /// Number of set bits.
        found: u32,
        /// Number of indices.
        n: u32,
    },
    /// An index is not above the one before it.
    #[error("index {index} follows index {previous}: indices must ascend")]
    NotAscending {
        /// The index before.
        previous: u32,
        /// The index.
        index: u32,
    },
    /// The last index is not the announced largest one.
    #[error("the last index is {last} where M is {m}")]
    LastIsNotM {
        /// The last index.
        last: u32,
        /// The announced largest index.
        m: u32,
    },
    /// A padding bit in a field's last byte is set.
    #[error("a padding bit of {field} is set")]
    Padding {
        /// Which field.
        field: &'static str,
    },
    /// Indices were given for a block without coins: the genesis coinbase is in no UTXO set.
    #[error("the genesis block has hints, but its coinbase can never be spent")]
    Genesis,
    /// The block has more outputs than the encoding can count.
    #[error("the block has {outputs} outputs, more than the {limit} that this encoding can count")]
    TooManyOutputs {
        /// The block's number of outputs.
        outputs: u32,
        /// The largest number that can be counted.
        limit: u32,
    },
}

/// Upper bound for the number of outputs in a block; every index is below it.
///
/// Without witnesses the transactions of a block take at most 1,000,000 bytes (Core `consensus/consensus.h`:
/// 4,000,000 weight units, 4 for each such byte; before SegWit the same limit on the block), and the smallest
/// output takes 9: 8 for its amount, 1 for the length of an empty script.
pub const OUTPUTS_PER_BLOCK_MAX: u32 = 1_000_000 / 9;

/// Greatest length of a valid element: at worst H has one bit for each output and one for each index, and
/// there are no low bits.
pub const ELEMENT_BYTES_MAX: usize = 10 + (2 * OUTPUTS_PER_BLOCK_MAX as usize).div_ceil(8);

/// Greatest length of N and M, even in forms that are refused.
pub(super) const ELEMENT_HEADER_BYTES_MAX: usize = 18;

/// How a bit string fills its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BitOrder {
    /// From the most significant bit down: the test vectors of BIP-456 and the hintsfile crate 0.1.
    MsbFirst,
    /// From the least significant bit up: the hintsfile crate since 0.2.
    LsbFirst,
}

impl BitOrder {
    /// Returns the other order.
    pub const fn other(self) -> Self {
        match self {
            Self::MsbFirst => Self::LsbFirst,
            Self::LsbFirst => Self::MsbFirst,
        }
    }

    /// The name that users type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MsbFirst => "msb",
            Self::LsbFirst => "lsb",
        }
    }
}

impl fmt::Display for BitOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MsbFirst => "most significant bit first",
            Self::LsbFirst => "least significant bit first",
        })
    }
}

/// The text does not name a bit order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown bit order {0:?}: use msb or lsb")]
pub struct UnknownBitOrder(pub String);

impl FromStr for BitOrder {
    type Err = UnknownBitOrder;
    fn from_str(text: &str) -> Result<Self, UnknownBitOrder> {
        [Self::MsbFirst, Self::LsbFirst]
            .into_iter()
            .find(|order| order.name() == text)
            .ok_or_else(|| UnknownBitOrder(text.to_owned()))
    }
}

/// N and M of an element, which determine every length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EliasFanoShape {
    /// Number of indices.
    pub n: u32,
    /// The largest index; 0 for an empty set.
    pub m: u32,
    header_bytes: u8,
}

impl EliasFanoShape {
    fn new(n: u32, m: u32, header_bytes: usize) -> Result<Self, HintsFault> {
        if n > m + 1 {
            return Err(HintsFault::TooManyIndices { n, m });
        }
        Ok(Self { n, m, header_bytes: header_bytes as u8 })
    }

    /// ℓ, the number of low bits of each index. The integer quotient has the same floor of the logarithm as
    /// the exact one.
    const fn low_bits(self) -> u32 {
        match (self.m + 1).checked_div(self.n) {
            Some(quotient) => quotient.ilog2(),
            None => 0,
        }
    }

    const fn low_bytes(self) -> usize {
        (self.n as usize * self.low_bits() as usize).div_ceil(8)
    }

    const fn high_bits(self) -> usize {
        self.n as usize + (self.m >> self.low_bits()) as usize
    }

    /// Length of the whole element in bytes, at most [`ELEMENT_BYTES_MAX`].
    pub const fn bytes(self) -> usize {
        self.header_bytes as usize + self.low_bytes() + self.high_bits().div_ceil(8)
    }
}

/// Reads N and M at the start of `bytes`, which determine the element's length.
pub fn measure(bytes: &[u8]) -> Result<EliasFanoShape, HintsFault> {
    let mut reader = Reader::new(bytes);
    let n = number(&mut reader, "N", OUTPUTS_PER_BLOCK_MAX)?;
    if n == 0 {
        return EliasFanoShape::new(0, 0, 1);
    }
    let m = number(&mut reader, "M", OUTPUTS_PER_BLOCK_MAX - 1)?;
    EliasFanoShape::new(n, m, reader.position())
}

/// Reads a CompactSize of at most `limit` as a field of a block's hints.
pub(super) fn number(
    reader: &mut Reader<'_>,
    field: &'static str,
    limit: u32,
) -> Result<u32, HintsFault> {
    match reader.compact_max(limit.into()) {
        Ok(value) => Ok(value as u32),
        Err(ReadError::NonCanonical { .. }) => Err(HintsFault::NonCanonical { field }),
        Err(ReadError::TooLarge { value, limit, .. }) => {
            Err(HintsFault::TooLarge { field, value, limit })
        }
        Err(ReadError::End { .. } | ReadError::Trailing { .. }) => Err(HintsFault::End { field }),
    }
}

/// Decodes the element at the start of `bytes` into `indices`, replacing their content, and returns its
/// length. After an error the content of `indices` is unspecified.
pub fn decode(
    bytes: &[u8],
    order: BitOrder,
    indices: &mut Vec<u32>,
) -> Result<EliasFanoShape, HintsFault> {
    let shape = measure(bytes)?;
    let low_at = usize::from(shape.header_bytes);
    let high_at = low_at + shape.low_bytes();
    let low = bytes.get(low_at..high_at).ok_or(HintsFault::End { field: "L" })?;
    let high = bytes.get(high_at..shape.bytes()).ok_or(HintsFault::End { field: "H" })?;
    indices.clear();
    match order {
        BitOrder::MsbFirst => decode_bits::<true>(shape, low, high, indices)?,
        BitOrder::LsbFirst => decode_bits::<false>(shape, low, high, indices)?,
    }
    Ok(shape)
}

fn decode_bits<const MSB: bool>(
    shape: EliasFanoShape,
    low: &[u8],
    high: &[u8],
    indices: &mut Vec<u32>,
) -> Result<(), HintsFault> {
    let (n, m, low_bits) = (shape.n, shape.m, shape.low_bits());
    check_padding::<MSB>(low, n as usize * low_bits as usize, "L")?;
    check_padding::<MSB>(high, shape.high_bits(), "H")?;
    let found = high.chunks(8).map(|chunk| word::<MSB>(chunk).count_ones()).sum::<u32>();
    if found != n {
        return Err(HintsFault::SetBits { found, n });
    }
    indices.reserve(n as usize);
    let mut lows = LowBits::<MSB> { bytes: low, word: 0, filled: 0 };
    let (mut base, mut rank, mut least) = (0u32, 0u32, 0u32);
    for chunk in high.chunks(8) {
        let mut bits = word::<MSB>(chunk);
        while bits != 0 {
            let high_part = base + bits.trailing_zeros() - rank;
            let index = (high_part << low_bits) | lows.take(low_bits);
            if index < least {
                return Err(HintsFault::NotAscending { previous: least - 1, index });
            }
            indices.push(index);
            least = index + 1;
            rank += 1;
            bits &= bits - 1;
        }
        base += 64;
    }
    if n > 0 && least != m + 1 {
        return Err(HintsFault::LastIsNotM { last: least - 1, m });
    }
    Ok(())
}

/// Up to eight bytes as 64 bits; the first bit of the string becomes the least significant.
#[inline]
fn word<const MSB: bool>(bytes: &[u8]) -> u64 {
    let word = match bytes.first_chunk::<8>() {
        Some(whole) => u64::from_le_bytes(*whole),
        None => bytes.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte)),
    };
    // Reversing all 64 bits reverses the bytes too; swapping restores their order.
    if MSB { word.reverse_bits().swap_bytes() } else { word }
}

fn check_padding<const MSB: bool>(
    bytes: &[u8],
    bits: usize,
    field: &'static str,
) -> Result<(), HintsFault> {
    let Some(&last) = bytes.last().filter(|_| !bits.is_multiple_of(8)) else { return Ok(()) };
    let last = if MSB { last.reverse_bits() } else { last };
    if last >> (bits % 8) == 0 { Ok(()) } else { Err(HintsFault::Padding { field }) }
}

/// Takes numbers of a few bits each from the front of a bit string.
struct LowBits<'a, const MSB: bool> {
    bytes: &'a [u8],
    word: u64,
    filled: u32,
}

impl<const MSB: bool> LowBits<'_, MSB> {
    /// Returns the next `count` bits, at most 32; zeros after the end.
    #[inline]
    fn take(&mut self, count: u32) -> u32 {
        if self.filled < count {
            let (next, rest) = self.bytes.split_at(self.bytes.len().min(4));
            self.bytes = rest;
            self.word |= word::<MSB>(next) << self.filled;
            self.filled += 32;
        }
        let value = self.word & ((1 << count) - 1);
        self.word >>= count;
        self.filled -= count;
        value as u32
    }
}

/// Appends the element of `indices`, which must ascend and stay below [`OUTPUTS_PER_BLOCK_MAX`]; on an error
/// appends nothing.
pub fn encode(indices: &[u32], order: BitOrder, out: &mut Vec<u8>) -> Result<(), HintsFault> {
    check_indices(indices)?;
    let Some(&m) = indices.last() else {
        out.push(0);
        return Ok(());
    };
    let header_at = out.len();
    write_compact_size(out, indices.len() as u64);
    write_compact_size(out, m.into());
    let low_at = out.len();
    let shape = EliasFanoShape::new(indices.len() as u32, m, low_at - header_at)?;
    let low_bits = shape.low_bits();
    out.resize(header_at + shape.bytes(), 0);
    let (low, high) = out[low_at..].split_at_mut(shape.low_bytes());
    for (rank, &index) in indices.iter().enumerate() {
        let bits = (index & ((1 << low_bits) - 1)) << (rank * low_bits as usize % 8);
        let at = rank * low_bits as usize / 8;
        for (byte, part) in low[at..].iter_mut().zip(bits.to_le_bytes()) {
            *byte |= part;
        }
        let position = (index >> low_bits) as usize + rank;
        high[position / 8] |= 1 << (position % 8);
    }
    if order == BitOrder::MsbFirst {
        out[low_at..].iter_mut().for_each(|byte| *byte = byte.reverse_bits());
    }
    Ok(())
}

/// Fails unless the indices ascend and are possible for a block's outputs.
pub(super) fn check_indices(indices: &[u32]) -> Result<(), HintsFault> {
    if let Some(pair) = indices.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(HintsFault::NotAscending { previous: pair[0], index: pair[1] });
    }
    let limit = OUTPUTS_PER_BLOCK_MAX - 1;
    match indices.last() {
        Some(&last) if last > limit => {
            Err(HintsFault::TooLarge { field: "an index", value: last.into(), limit: limit.into() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
