//! A [`Surveyor`] collects the facts about a block's transactions that rules need, while the block is read.
//!
//! The caller applies the rules. A [`BlockSurvey`] records the first violation of each rule, so that the
//! caller can apply the rules in Core's order although each transaction is read only once, and before it
//! knows whether the transactions belong to the block.
//!
//! This module also has the rules for a single transaction, including whether it is final.

use super::checked::TxError;
use crate::amount::MAX_MONEY;
use crate::block::{BlockView, TxView, Visitor};
use crate::hashes::OutPoint;
use crate::script::legacy_sigops;

/// The facts about a block. Indices count transactions from the start of the block.
#[derive(Debug, Default)]
pub(super) struct BlockSurvey {
    /// The first transaction in the form of a coinbase.
    pub(super) coinbase: Option<usize>,
    /// The second transaction in the form of a coinbase.
    pub(super) second_coinbase: Option<usize>,
    /// The first transaction that is invalid on its own.
    pub(super) invalid: Option<(usize, TxError)>,
    /// Visible signature operations (Core `consensus/tx_verify.cpp`, `GetLegacySigOpCount`).
    pub(super) sigops: u64,
    /// The first transaction that is not final.
    pub(super) non_final: Option<usize>,
    /// The first transaction in the witness form.
    pub(super) witness: Option<usize>,
    /// Size of the block without witnesses in bytes.
    pub(super) stripped_size: usize,
}

impl BlockSurvey {
    /// Returns the weight of a block of `size` bytes (BIP-141): three times the stripped size plus
    /// the size.
    pub(super) fn weight(&self, size: usize) -> usize {
        3 * self.stripped_size + size
    }
}

/// Collects the facts while a block is read.
pub(super) struct Surveyor<'a> {
    /// The height and time to compare lock times with.
    height: u32,
    cutoff: u32,
    /// Working space.
    scratch: &'a mut Vec<u64>,
    /// The facts so far. Until the end, `stripped_size` holds the size of the witnesses.
    survey: BlockSurvey,
    /// Number of transactions seen.
    count: usize,
    current: CurrentTx,
}

/// The transaction being read.
#[derive(Default)]
struct CurrentTx {
    /// The sum of its outputs in satoshi; valid only while none is out of range.
    total: u64,
    /// Whether its amounts may be out of range.
    odd_amounts: bool,
    /// Whether an input may spend nothing, like a coinbase's.
    nulls: bool,
    /// Whether an input's sequence number enables the lock time.
    heeds_lock_time: bool,
}

impl Visitor for Surveyor<'_> {
    #[inline]
    fn input(&mut self, outpoint: &[u8; OutPoint::SIZE], script_sig: &[u8], sequence: u32) {
        self.current.nulls |= outpoint[32..] == [0xff; 4];
        self.current.heeds_lock_time |= sequence != SEQUENCE_FINAL;
        self.survey.sigops += u64::from(legacy_sigops(script_sig));
    }

    #[inline]
    fn output(&mut self, value: i64, script: &[u8]) {
        // As unsigned numbers, negative amounts are very large. After the first amount out of range, the sum
        // no longer matters.
        let amount = value as u64;
        let CurrentTx { total, odd_amounts, .. } = &mut self.current;
        *total = total.wrapping_add(amount);
        *odd_amounts |= (amount > MAX_MONEY) | (*total > MAX_MONEY);
        self.survey.sigops += u64::from(legacy_sigops(script));
    }

    #[inline]
    fn transaction(&mut self, tx: &TxView<'_>) {
        let current = core::mem::take(&mut self.current);
        let index = self.count;
        self.count += 1;
        let is_coinbase = current.nulls && tx.is_coinbase();
        let survey = &mut self.survey;
        if is_coinbase {
            match survey.coinbase {
                None => survey.coinbase = Some(index),
                Some(_) => survey.second_coinbase = survey.second_coinbase.or(Some(index)),
            }
        }
        if survey.invalid.is_none() && current.may_be_invalid(tx, self.scratch) {
            let checked = check_transaction(tx, is_coinbase, self.scratch);
            survey.invalid = checked.err().map(|error| (index, error));
        }
        if current.heeds_lock_time
            && survey.non_final.is_none()
            && !is_final(tx, self.height, self.cutoff)
        {
            survey.non_final = Some(index);
        }
        if survey.witness.is_none() && tx.has_witness() {
            survey.witness = Some(index);
        }
        survey.stripped_size += tx.witness_overhead();
    }
}

impl CurrentTx {
    /// Returns whether [`check_transaction`] might reject the transaction. That is rare, and reading a
    /// transaction already shows the facts that decide it.
    #[inline]
    fn may_be_invalid(&self, tx: &TxView<'_>, scratch: &mut Vec<u64>) -> bool {
        let (inputs, outputs) = (tx.inputs().len(), tx.outputs().len());
        let is_large = tx.raw().len() * 4 > WEIGHT_MAX;
        self.odd_amounts | self.nulls | (inputs == 0) | (outputs == 0) | is_large
            || has_duplicate_inputs(tx, scratch)
    }
}

impl<'a> Surveyor<'a> {
    /// Creates a surveyor for a new block. Lock times are compared with `height` and `cutoff`;
    /// `scratch` is working space.
    pub(super) fn new(height: u32, cutoff: u32, scratch: &'a mut Vec<u64>) -> Self {
        let (survey, current) = (BlockSurvey::default(), CurrentTx::default());
        Self { height, cutoff, scratch, survey, count: 0, current }
    }

    /// Returns the facts about the block, which must have been read from start to end.
    pub(super) fn finish(self, block: &BlockView<'_>) -> BlockSurvey {
        let stripped_size = block.raw().len() - self.survey.stripped_size;
        BlockSurvey { stripped_size, ..self.survey }
    }
}

/// Lock times below this are heights, others are times (Core `script/script.h`).
pub const LOCKTIME_THRESHOLD: u32 = 500_000_000;

/// A sequence number that disables the lock time (Core `primitives/transaction.h`).
pub(super) const SEQUENCE_FINAL: u32 = 0xffff_ffff;

/// Maximum weight of a block (Core `consensus/consensus.h`); a stripped byte weighs four.
pub(super) const WEIGHT_MAX: usize = 4_000_000;

/// Up to this many inputs are compared pairwise; more are sorted.
const INPUTS_COMPARED_MAX: usize = 8;

/// Checks everything that Core's `CheckTransaction` checks (`consensus/tx_check.cpp`), in its
/// order. `is_coinbase` is the result of [`TxView::is_coinbase`]; `scratch` is working space.
pub(super) fn check_transaction(
    tx: &TxView<'_>,
    is_coinbase: bool,
    scratch: &mut Vec<u64>,
) -> Result<(), TxError> {
    if tx.inputs().len() == 0 {
        return Err(TxError::NoInputs);
    }
    if tx.outputs().len() == 0 {
        return Err(TxError::NoOutputs);
    }
    let size = tx.stripped_size();
    if size * 4 > WEIGHT_MAX {
        return Err(TxError::Oversize { size });
    }
    check_amounts(tx)?;
    if has_duplicate_inputs(tx, scratch) {
        return Err(TxError::DuplicateInputs);
    }
    if is_coinbase {
        let length = tx.inputs().map(|input| input.script_sig().len()).sum();
        if !(2..=100).contains(&length) {
            return Err(TxError::CoinbaseLength { length });
        }
    } else if let Some(vin) = tx.inputs().position(|input| input.is_null()) {
        return Err(TxError::NullPrevout { vin });
    }
    Ok(())
}

fn check_amounts(tx: &TxView<'_>) -> Result<(), TxError> {
    let mut total = 0u64;
    for (vout, output) in tx.outputs().enumerate() {
        let value = output.value();
        let amount = u64::try_from(value).map_err(|_| TxError::OutputNegative { vout, value })?;
        if amount > MAX_MONEY {
            return Err(TxError::OutputTooLarge { vout, value });
        }
        total += amount;
        if total > MAX_MONEY {
            return Err(TxError::OutputTotalTooLarge);
        }
    }
    Ok(())
}

/// Returns whether a coin is spent twice (CVE-2018-17144). Most transactions have one or two inputs, which
/// need no sorting.
#[inline]
pub(super) fn has_duplicate_inputs(tx: &TxView<'_>, scratch: &mut Vec<u64>) -> bool {
    let count = tx.inputs().len();
    if count < 2 {
        return false;
    }
    if count <= INPUTS_COMPARED_MAX {
        return tx.inputs().enumerate().any(|(index, input)| {
            tx.inputs().skip(index + 1).any(|other| input.outpoint() == other.outpoint())
        });
    }
    // Equal outpoints have equal fingerprints, and others seldom do. So the outpoints themselves, which take
    // longer to sort, are seldom compared.
    scratch.clear();
    scratch.extend(tx.inputs().map(|input| fingerprint(input.outpoint())));
    scratch.sort_unstable();
    scratch.windows(2).any(|pair| pair[0] == pair[1]) && sorted_has_duplicates(tx)
}

/// The fingerprint of an outpoint: the start of the txid mixed with the vout, spread over all bits, because
/// outputs of one transaction are often spent together.
fn fingerprint(outpoint: &[u8; OutPoint::SIZE]) -> u64 {
    let OutPoint { txid, vout } = OutPoint::from_bytes(outpoint);
    let start = txid.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    start.wrapping_add(u64::from(vout).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn sorted_has_duplicates(tx: &TxView<'_>) -> bool {
    let mut outpoints: Vec<_> = tx.inputs().map(|input| input.outpoint()).collect();
    outpoints.sort_unstable();
    outpoints.windows(2).any(|pair| pair[0] == pair[1])
}

/// Returns whether the transaction is final in a block at this height (Core
/// `consensus/tx_verify.cpp`, `IsFinalTx`). `cutoff` is the time to compare with: the median time
/// past of the previous block if BIP-113 is active, else the block's own time.
#[inline]
pub(super) fn is_final(tx: &TxView<'_>, height: u32, cutoff: u32) -> bool {
    let lock_time = tx.lock_time();
    let now = if lock_time < LOCKTIME_THRESHOLD { height } else { cutoff };
    lock_time == 0 || lock_time < now || tx.inputs().all(|input| input.sequence() == SEQUENCE_FINAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockLayout;
    use crate::read::write_compact_size;
    use crate::tests::{bare_tx, input, output, with_tx};
    use bitcoin::Witness;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const HEIGHT: u32 = 100;
    const CUTOFF: u32 = 600_000_000;

    /// An input: first byte of the spent txid, output, script, sequence.
    type In = (u8, u32, Vec<u8>, u32);

    fn inputs() -> impl Strategy<Value = Vec<In>> {
        let vout = prop_oneof![4 => 0u32..3, 1 => Just(u32::MAX)];
        let script = prop_oneof![2 => Just(vec![]), 1 => vec(0xa9u8..0xb0, 0..120)];
        let sequence = prop_oneof![Just(u32::MAX), Just(0)];
        let input = (0u8..3, vout, script, sequence);
        prop_oneof![9 => vec(input.clone(), 1..4), 1 => vec(input, 0..14)]
    }

    fn outputs() -> impl Strategy<Value = Vec<(i64, Vec<u8>)>> {
        const MAX: i64 = MAX_MONEY as i64;
        let common = prop_oneof![Just(0), Just(1), Just(MAX / 2), Just(MAX / 2 + 1)];
        let value = prop_oneof![9 => common, 1 => Just(MAX), 1 => Just(MAX + 1), 1 => any::<i64>()];
        let output = (value, vec(0xa9u8..0xb0, 0..40));
        prop_oneof![9 => vec(output, 1..3), 1 => Just(vec![])]
    }

    /// Serializes a transaction. If it has no inputs, it gets no outputs either: otherwise it would read as
    /// one with a witness.
    fn tx(inputs: &[In], outputs: &[(i64, Vec<u8>)], lock_time: u32, witness: bool) -> Vec<u8> {
        let mut raw = vec![2, 0, 0, 0];
        let witness = witness && !inputs.is_empty();
        raw.extend(if witness { &[0, 1][..] } else { &[] });
        raw.push(inputs.len() as u8);
        for (txid, vout, script, sequence) in inputs {
            raw.extend([*txid; 32]);
            raw.extend(vout.to_le_bytes());
            write_compact_size(&mut raw, script.len() as u64);
            raw.extend(script);
            raw.extend(sequence.to_le_bytes());
        }
        let outputs = if inputs.is_empty() { &[] } else { outputs };
        raw.push(outputs.len() as u8);
        for (value, script) in outputs {
            raw.extend(value.to_le_bytes());
            raw.push(script.len() as u8);
            raw.extend(script);
        }
        for _ in inputs.iter().filter(|_| witness) {
            raw.extend([1, 2, 7, 7]);
        }
        raw.extend(lock_time.to_le_bytes());
        raw
    }

    proptest! {
        /// The survey gives the same results as each rule applied to each transaction.
        #[test]
        fn a_survey_matches_each_rule_applied_alone(
            txs in vec((inputs(), outputs(), lock_times(), any::<bool>()), 1..6),
        ) {
            let mut raw = vec![0; 80];
            write_compact_size(&mut raw, txs.len() as u64);
            for (inputs, outputs, lock_time, witness) in &txs {
                raw.extend(tx(inputs, outputs, *lock_time, *witness));
            }
            let (mut layout, mut scratch) = (BlockLayout::new(), Vec::new());
            let mut surveyor = Surveyor::new(HEIGHT, CUTOFF, &mut scratch);
            let view = layout.read_shown(&raw, &mut surveyor).unwrap();
            let survey = surveyor.finish(&view);

            let mut coinbases = view.txs().enumerate().filter(|(_, tx)| tx.is_coinbase());
            prop_assert_eq!(survey.coinbase, coinbases.next().map(|(index, _)| index));
            prop_assert_eq!(survey.second_coinbase, coinbases.next().map(|(index, _)| index));
            let mut scratch = Vec::new();
            let invalid = view.txs().enumerate().find_map(|(index, tx)| {
                let checked = check_transaction(&tx, tx.is_coinbase(), &mut scratch);
                checked.err().map(|error| (index, error))
            });
            prop_assert_eq!(survey.invalid, invalid);
            prop_assert_eq!(survey.non_final, view.txs().position(|tx| !is_final(&tx, HEIGHT, CUTOFF)));
            prop_assert_eq!(survey.witness, view.txs().position(|tx| tx.has_witness()));
            prop_assert_eq!(survey.stripped_size, view.stripped_size());
            let scripts = txs.iter().flat_map(|(inputs, outputs, ..)| {
                let outputs = if inputs.is_empty() { &[] } else { &outputs[..] };
                inputs.iter().map(|input| &input.2).chain(outputs.iter().map(|output| &output.1))
            });
            let sigops: u64 = scripts.map(|script| u64::from(legacy_sigops(script))).sum();
            prop_assert_eq!(survey.sigops, sigops);
        }
    }

    fn lock_times() -> impl Strategy<Value = u32> {
        prop_oneof![Just(0), Just(HEIGHT - 1), Just(HEIGHT), Just(CUTOFF - 1), Just(CUTOFF)]
    }

    /// In a block, the bound on the block's size applies first, so no block contains such a transaction.
    #[test]
    fn a_transaction_has_at_most_a_million_bytes() {
        let checked = |size: usize| {
            let mut large = bare_tx();
            large.input.push(input(0));
            // Witness bytes do not count.
            large.input[0].witness = Witness::from_slice(&[[1; 100]]);
            large.output.push(output(1));
            // The script length takes five bytes instead of one.
            let others = large.base_size() + 3;
            large.output[0].script_pubkey = vec![0x51; size - others].into();
            with_tx(&large, |tx| {
                assert_eq!(tx.stripped_size(), size);
                check_transaction(&tx, false, &mut Vec::new())
            })
        };
        assert_eq!(checked(1_000_000), Ok(()));
        let error = checked(1_000_001).unwrap_err();
        assert_eq!(error, TxError::Oversize { size: 1_000_001 });
        assert_eq!(error.reason(), "bad-txns-oversize");
    }
}
