//! [`FilterBuilder`]: a block's basic filter (BIP-158), a compressed set of the hashes of all scripts that the
//! block creates or spends.
//!
//! Each script has a 64-bit hash. A filter needs the hashes reduced to a range that depends on the number of
//! different scripts, and in ascending order. Reducing keeps the order, so sorting the hashes first finds the
//! scripts that occur twice, their number and the order at once.

use crate::block::IndexBlock;
use crate::making::{MakeError, expect_undo};
use apus_chain::{BlockHash, BlockUndo, BlockView, OP_RETURN, write_compact_size};
use siphasher::sip::SipHasher24;

/// Bits of a value that are stored as they are (BIP-158, `P`).
const P: u32 = 19;

/// The range for each script (BIP-158, `M`): a script that is not in the block matches once in as many.
const M: u64 = 784_931;

/// Computes filters. Holds working space that grows with the largest block.
#[derive(Debug, Default)]
pub struct FilterBuilder {
    scripts: Vec<u8>,
    /// The end of each script in `scripts`.
    ends: Vec<usize>,
    /// The hash of each script, and its number.
    hashes: Vec<(u64, u32)>,
}

impl FilterBuilder {
    /// Creates empty working space.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the block's filter to `out`. At most 5 bytes for each script, and 9 more.
    ///
    /// # Errors
    ///
    /// Fails without the block's undo data, except for genesis.
    pub fn build(&mut self, block: &IndexBlock<'_>, out: &mut Vec<u8>) -> Result<(), MakeError> {
        let undo = expect_undo(block)?;
        self.collect(&block.view, undo);
        self.hash(&block.hash);
        self.sort();
        self.encode(out);
        Ok(())
    }

    /// Collects the scripts (Core `blockfilter.cpp`, `BasicFilterElements`). Scripts too long to run count.
    fn collect(&mut self, view: &BlockView<'_>, undo: Option<&BlockUndo<'_>>) {
        self.scripts.clear();
        self.ends.clear();
        for output in view.txs().flat_map(|tx| tx.outputs()) {
            if output.script().first() != Some(&OP_RETURN) {
                self.push(output.script());
            }
        }
        for coin in undo.map_or(&[][..], BlockUndo::coins) {
            self.push(&coin.coin().script);
        }
    }

    #[inline]
    fn push(&mut self, script: &[u8]) {
        if !script.is_empty() {
            self.scripts.extend_from_slice(script);
            self.ends.push(self.scripts.len());
        }
    }

    fn hash(&mut self, hash: &BlockHash) {
        let key = |at: usize| {
            u64::from_le_bytes(*hash.0[at..].first_chunk().expect("a hash has 32 bytes"))
        };
        let hasher = SipHasher24::new_with_keys(key(0), key(8));
        self.hashes.clear();
        let mut start = 0;
        for (number, &end) in (0..).zip(&self.ends) {
            self.hashes.push((hasher.hash(&self.scripts[start..end]), number));
            start = end;
        }
    }

    /// Sorts the hashes, and leaves each script once. Different scripts with the same hash both count.
    fn sort(&mut self) {
        self.hashes.sort_unstable_by_key(|&(hash, _)| hash);
        let script = |number: u32| {
            let at = number as usize;
            &self.scripts[at.checked_sub(1).map_or(0, |at| self.ends[at])..self.ends[at]]
        };
        // `kept` are left in all, `same` of them with the last hash.
        let (mut kept, mut same) = (0, 0);
        for at in 0..self.hashes.len() {
            let (hash, number) = self.hashes[at];
            let before = &self.hashes[kept - same..kept];
            if before.first().is_none_or(|&(other, _)| other != hash) {
                same = 0;
            } else if before.iter().any(|&(_, other)| script(other) == script(number)) {
                continue;
            }
            self.hashes[kept] = (hash, number);
            (kept, same) = (kept + 1, same + 1);
        }
        self.hashes.truncate(kept);
    }

    /// Appends the number of scripts, then the differences of the reduced hashes as Golomb-Rice codes.
    fn encode(&self, out: &mut Vec<u8>) {
        let count = self.hashes.len() as u64;
        write_compact_size(out, count);
        let mut bits = BitWriter::new(out);
        let mut last = 0;
        for &(hash, _) in &self.hashes {
            let value = ((u128::from(hash) * u128::from(count * M)) >> 64) as u64;
            let step = value - last;
            bits.ones(step >> P);
            // A zero, then the low bits.
            bits.write(step & ((1 << P) - 1), P + 1);
            last = value;
        }
        bits.finish();
    }
}

/// Appends bits, the most significant first.
struct BitWriter<'o> {
    out: &'o mut Vec<u8>,
    /// The lowest `filled` bits wait to be written; less than 64.
    waiting: u64,
    filled: u32,
}

impl<'o> BitWriter<'o> {
    fn new(out: &'o mut Vec<u8>) -> Self {
        Self { out, waiting: 0, filled: 0 }
    }

    /// Appends the lowest `count` bits of `bits`, 1 to 63; the others must be zero.
    #[inline]
    fn write(&mut self, bits: u64, count: u32) {
        let free = 64 - self.filled;
        if count < free {
            self.waiting = self.waiting << count | bits;
            self.filled += count;
            return;
        }
        let later = count - free;
        // At most 63: if `free` is 64, so many bits have been appended above.
        let word = self.waiting << free | bits >> later;
        self.out.extend_from_slice(&word.to_be_bytes());
        self.waiting = bits & ((1 << later) - 1);
        self.filled = later;
    }

    #[inline]
    fn ones(&mut self, mut count: u64) {
        while count > 0 {
            let now = count.min(32) as u32;
            self.write((1 << now) - 1, now);
            count -= u64::from(now);
        }
    }

    /// Fills the last byte with zeros.
    fn finish(self) {
        let bytes = (self.waiting << 1 << (63 - self.filled)).to_be_bytes();
        self.out.extend_from_slice(&bytes[..self.filled.div_ceil(8) as usize]);
    }
}
