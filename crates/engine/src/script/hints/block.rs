//! [`BlockHints`]: the signature hints of a block, those to use and those to learn.

use super::HintTable;
use crate::script::recorded::{CheckPlace, KnownChecks, RParity, RecordedCheck, SignatureKind};
use apus_chain::KnownBlock;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The most bits that are learned from a block: more than any real block has. A hostile one may request millions of checks.
const LEARNED_MAX: usize = 1 << 20;

/// The hints of a block's signatures.
///
/// An ECDSA check has two bits: *valid*, unless its place implies it ([`CheckPlace::Single`]), and
/// the parity of the y of R. They are found by the check itself, so scripts may run in any order.
pub(in crate::script) struct BlockHints {
    block: KnownBlock,
    /// Hints to use.
    table: Option<HintTable>,
    /// Bits of checks, for a later run.
    learned: Option<Mutex<Vec<(u64, bool)>>>,
}

/// The keys of a check's bits.
struct Keys {
    parity: u64,
    valid: u64,
}

impl BlockHints {
    pub(in crate::script) fn new(
        block: KnownBlock,
        table: Option<HintTable>,
        learns: bool,
    ) -> Self {
        Self { block, table, learned: learns.then(Mutex::default) }
    }

    /// Returns whether there are hints to use.
    pub(in crate::script) fn has_table(&self) -> bool {
        self.table.is_some()
    }

    /// The keys depend on the block's hash, so that no one can make signatures that share a key
    /// without work for each try.
    fn keys(&self, check: &RecordedCheck) -> Keys {
        let [a, b, c, d, e, f, g, h, ..] = self.block.hash.0;
        let seed = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let mut bytes = Vec::with_capacity(3 + 65 + 32 + 72);
        bytes.extend([check.kind() as u8, check.key().len() as u8]);
        for part in [check.key(), check.hash(), check.signature()] {
            bytes.extend_from_slice(part);
        }
        let hash = xxh3_128_with_seed(&bytes, seed);
        Keys { parity: hash as u64, valid: (hash >> 64) as u64 }
    }

    /// Returns whether hints say that CHECKMULTISIG passes over a key.
    pub(in crate::script) fn passes_over(&self, check: &RecordedCheck) -> bool {
        self.table.as_ref().is_some_and(|table| !table.get(self.keys(check).valid))
    }

    /// Adds hints to the new checks of an input.
    pub(in crate::script) fn add_to(&self, checks: &mut [RecordedCheck]) {
        let Some(table) = &self.table else { return };
        for check in checks.iter_mut().filter(|check| check.kind() == SignatureKind::Ecdsa) {
            let keys = self.keys(check);
            let is_valid = check.place() != CheckPlace::Other || table.get(keys.valid);
            check.set_hint(is_valid.then(|| RParity::of_bit(table.get(keys.parity))));
        }
    }

    /// Learns from the checks of an input, once all checks that count are proven.
    pub(in crate::script) fn learn(&self, known: &KnownChecks) {
        let Some(learned) = &self.learned else { return };
        let mut bits = Vec::with_capacity(2 * known.proven.len());
        let is_ecdsa = |check: &&RecordedCheck| check.kind() == SignatureKind::Ecdsa;
        for check in known.proven.iter().filter(is_ecdsa) {
            let keys = self.keys(check);
            bits.extend(check.hint().map(|parity| (keys.parity, parity == RParity::Odd)));
            bits.extend((check.place() != CheckPlace::Single).then_some((keys.valid, true)));
        }
        let has_valid = |check: &&RecordedCheck| check.place() != CheckPlace::Single;
        for check in known.unproven.iter().filter(is_ecdsa).filter(has_valid) {
            bits.push((self.keys(check).valid, false));
        }
        let mut learned = learned.lock();
        if learned.len() < LEARNED_MAX {
            learned.extend(bits);
        }
    }

    /// Returns the block and what was learned; `None` if that was not wanted.
    pub(in crate::script) fn take_learned(&self) -> Option<(KnownBlock, Vec<(u64, bool)>)> {
        let learned = self.learned.as_ref()?;
        Some((self.block, std::mem::take(&mut *learned.lock())))
    }
}
