//! [`HintTable`]: a function from keys to bits that takes little more than a bit a key.
//!
//! It is a standard ribbon (Dillinger and Walzer 2021, "Ribbon filter: practically smaller than Bloom
//! and Xor") with a width of 128 and results of one bit. The table is a row of bits, the columns. A
//! key selects a window of 128 columns and some columns in it, the coefficients; its bit is the sum
//! of these columns modulo 2. To build a table is to solve these equations, by Gaussian elimination.
//! If they contradict each other, the next attempt uses other windows and coefficients, and later
//! ones more columns.
//!
//! The table stores no keys, so a key that was not given also gets a bit, an arbitrary one.
//!
//! ```text
//! CompactSize   number of keys
//! 1             number of the attempt
//! …             columns, the first in the lowest bit of the first byte
//! ```
//!
//! The two numbers determine the number of columns, the windows and the coefficients.

use apus_chain::{ReadError, Reader, write_compact_size};

/// Columns that a window has at most.
const WIDTH: usize = 128;

/// The largest number of keys: a hundred times as many as a real block needs. A hostile block can request more.
const KEYS_MAX: usize = 1 << 21;

/// Attempts to build a table. Each succeeds with a probability of about one half, and with more
/// columns almost surely.
const ATTEMPTS: u8 = 64;

/// Zero bytes after the columns, so that every window can be read with its next byte.
const PADDING: usize = WIDTH / 8 + 1;

/// Why bytes are not a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HintTableError {
    /// A number is cut off or malformed.
    #[error("{0}")]
    Read(#[from] ReadError),
    /// No table takes this many attempts.
    #[error("attempt {0} does not exist: there are at most {ATTEMPTS}")]
    Attempt(u8),
    /// There are more or fewer columns than the number of keys determines.
    #[error("a table of {keys} keys has {wanted} bytes of columns, but there are {found}")]
    Length {
        /// Number of keys.
        keys: usize,
        /// Bytes of columns that belong to this number.
        wanted: usize,
        /// Bytes of columns found.
        found: usize,
    },
}

/// A bit for each of some keys; see the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HintTable {
    keys: usize,
    attempt: u8,
    equations: Equations,
    /// The columns, then the padding.
    bytes: Box<[u8]>,
}

impl HintTable {
    /// Builds the table of these keys and bits. If a key occurs with both bits, its first one counts.
    /// Returns `None` for more than 2^21 keys, and if each of 64 attempts fails, which is as good as
    /// impossible.
    pub fn build(entries: &[(u64, bool)]) -> Option<Self> {
        if entries.len() > KEYS_MAX {
            return None;
        }
        let mut entries = entries.to_vec();
        // A stable sort keeps the first of equal keys in front.
        entries.sort_by_key(|(key, _)| *key);
        entries.dedup_by_key(|(key, _)| *key);
        let (keys, mut band) = (entries.len(), Band(Vec::new()));
        (0..ATTEMPTS).find_map(|attempt| {
            let columns = columns(keys, attempt);
            let equations = Equations::new(columns, attempt);
            let bytes = band.eliminate(&equations, &entries, columns).then(|| band.solve())?;
            Some(Self { keys, attempt, equations, bytes })
        })
    }

    /// Returns the bit of a key; an arbitrary bit if the table was built without it.
    #[inline]
    pub fn get(&self, key: u64) -> bool {
        let (start, coefficients) = self.equations.of(key);
        let (byte, shift) = (start / 8, start % 8);
        let window = self.bytes.get(byte..).and_then(|rest| rest.first_chunk::<PADDING>());
        let Some([low @ .., high]) = window else { return false };
        // Two shifts, because a shift by the whole width is not allowed.
        let high = (u128::from(*high) << (WIDTH - 8)) << (8 - shift);
        is_odd(coefficients & (u128::from_le_bytes(*low) >> shift | high))
    }

    /// Returns the number of different keys that it was built with.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Appends its encoding.
    pub fn encode(&self, out: &mut Vec<u8>) {
        write_compact_size(out, self.keys as u64);
        out.push(self.attempt);
        out.extend_from_slice(self.bytes.get(..self.bytes.len() - PADDING).unwrap_or_default());
    }

    /// Reads an encoding, which must take all of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, HintTableError> {
        let mut reader = Reader::new(bytes);
        let keys = reader.compact_max(KEYS_MAX as u64)? as usize;
        let attempt = reader.u8()?;
        if attempt >= ATTEMPTS {
            return Err(HintTableError::Attempt(attempt));
        }
        let (columns, rest) = (columns(keys, attempt), reader.unread());
        if rest.len() != columns / 8 {
            return Err(HintTableError::Length { keys, wanted: columns / 8, found: rest.len() });
        }
        let mut bytes = Vec::with_capacity(rest.len() + PADDING);
        bytes.extend_from_slice(rest);
        bytes.resize(rest.len() + PADDING, 0);
        let equations = Equations::new(columns, attempt);
        Ok(Self { keys, attempt, equations, bytes: bytes.into() })
    }
}

/// Returns the number of columns of a table. It is a multiple of 8, because a file stores bytes.
///
/// Up to 128 keys, where a window has all columns, as many columns as keys suffice. For more keys the
/// first two attempts have 1% more, and from 2^14 keys on half a percent for each doubling. Every
/// second attempt adds half a percent.
fn columns(keys: usize, attempt: u8) -> usize {
    if keys == 0 {
        return 0;
    }
    let steps = match keys {
        ..=WIDTH => 0,
        _ => 2 + (keys >> 13).checked_ilog2().unwrap_or(0) as usize,
    };
    let step = keys / 200 + 1;
    (keys + step * (steps + usize::from(attempt / 2))).next_multiple_of(8)
}

/// Maps keys to windows and coefficients.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Equations {
    seed: u64,
    /// Number of places where a window may start.
    starts: u64,
    /// The columns of a window that exist.
    mask: u128,
}

impl Equations {
    fn new(columns: usize, attempt: u8) -> Self {
        let width = columns.min(WIDTH);
        Self {
            seed: mix(u64::from(attempt)),
            starts: (columns - width) as u64 + 1,
            mask: u128::MAX.checked_shr((WIDTH - width) as u32).unwrap_or(0),
        }
    }

    /// Returns where the key's window starts, and its coefficients. The first column of the window
    /// is always one of them.
    #[inline]
    fn of(&self, key: u64) -> (usize, u128) {
        let first = mix(key ^ self.seed);
        let low = mix(first);
        let high = mix(low);
        let start = (u128::from(first) * u128::from(self.starts)) >> 64;
        let coefficients = u128::from(high) << 64 | u128::from(low) | 1;
        (start as usize, coefficients & self.mask)
    }
}

/// The output of SplitMix64 (Steele, Lea and Flood 2014) in this state, before it adds its constant.
#[inline]
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[inline]
fn is_odd(columns: u128) -> bool {
    columns.count_ones() % 2 == 1
}

/// An equation in its window.
#[derive(Debug, Clone, Copy)]
struct Row {
    coefficients: u128,
    bit: bool,
}

/// The equations in echelon form: row `i` has its first coefficient in column `i`, or is all zero.
#[derive(Debug)]
struct Band(Vec<Row>);

impl Band {
    /// Starts anew and adds all equations; returns false as soon as one contradicts earlier ones.
    fn eliminate(
        &mut self,
        equations: &Equations,
        entries: &[(u64, bool)],
        columns: usize,
    ) -> bool {
        self.0.clear();
        self.0.resize(columns, Row { coefficients: 0, bit: false });
        entries.iter().all(|(key, bit)| {
            let (start, coefficients) = equations.of(*key);
            self.add(start, Row { coefficients, bit: *bit })
        })
    }

    /// Adds an equation; returns false if it contradicts the others.
    fn add(&mut self, mut at: usize, mut row: Row) -> bool {
        // No window reaches beyond the columns, so neither does a sum of windows.
        while let Some(place) = self.0.get_mut(at) {
            if place.coefficients == 0 {
                *place = row;
                return true;
            }
            row.coefficients ^= place.coefficients;
            row.bit ^= place.bit;
            if row.coefficients == 0 {
                return !row.bit;
            }
            let zeros = row.coefficients.trailing_zeros();
            row.coefficients >>= zeros;
            at += zeros as usize;
        }
        false
    }

    /// Solves the equations from the last column to the first. Columns that no equation determines
    /// are 0.
    fn solve(&self) -> Box<[u8]> {
        let mut bytes = vec![0; self.0.len() / 8 + PADDING];
        let mut window = 0u128;
        for (at, row) in self.0.iter().enumerate().rev() {
            window <<= 1;
            let bit = is_odd(row.coefficients & window) ^ row.bit;
            window |= u128::from(bit);
            bytes[at / 8] |= u8::from(bit) << (at % 8);
        }
        bytes.into()
    }
}

#[cfg(test)]
mod tests;
