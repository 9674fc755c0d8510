//! The chain in numbers: a row for each block, from the same pass that makes indexes.
//!
//! Most numbers are of the block alone. The coins and their amount are of the set after it, which is a sum over
//! the blocks below: [`write_numbers`] puts the segments together. As in the index of coin statistics, the two
//! coinbases that later ones replaced (BIP-30) are never in the set.

mod file;
mod read;

pub use file::{NumbersDraft, NumbersFormat, NumbersPlace, NumbersWriter, csv_numbers};
pub use read::{BlockGrowth, NumbersError, read_numbers};

use crate::block::IndexBlock;
use crate::making::{ChainSpan, MakeError, expect_undo};
use crate::scratch::{ScratchFile, ScratchRecords};
use apus_chain::{BlockHash, BlockUndo, Params, ScriptType, is_unspendable};
use apus_storage::Storage;
use std::io;

/// The number of kinds of scripts.
const TYPES: usize = ScriptType::ALL.len();

/// Numbers in a row, in the order of the columns.
const COLUMNS: [&str; 16] = [
    "time",
    "transactions",
    "inputs",
    "outputs",
    "fees_sat",
    "bytes",
    "weight",
    "coins_made",
    "coins_spent",
    "amount_made_sat",
    "amount_spent_sat",
    "age_spent_blocks",
    "age_spent_sat_blocks",
    "coins",
    "amount_sat",
    "unspendable_sat",
];

/// The column of amounts times ages. All money times all blocks of a century is below 2^94.
const WIDE: &str = "age_spent_sat_blocks";

/// Numbers of a block that are kept until all segments are there: all but the two of the set.
const KEPT: usize = COLUMNS.len() - 2 + 2 * TYPES;

/// The bytes of a block in the scratch file.
const RECORD: usize = 32 + 16 * KEPT;

/// Collects the numbers of consecutive blocks.
pub struct NumbersSegment<'s> {
    params: &'s Params,
    scratch: &'s dyn Storage,
    span: Option<ChainSpan>,
    records: Option<ScratchFile<'s>>,
}

/// The numbers of consecutive blocks.
pub struct NumbersPart<'s> {
    span: ChainSpan,
    records: ScratchRecords<'s>,
}

/// The numbers of one block; amounts are in satoshi.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct BlockNumbers {
    time: u128,
    transactions: u128,
    /// Without the coinbase's.
    inputs: u128,
    outputs: u128,
    fees: u128,
    bytes: u128,
    weight: u128,
    coins: [u128; 2],
    amount: [u128; 2],
    /// The sum over all coins spent of the number of blocks that they lay; and of the same times their amount.
    age: [u128; 2],
    unspendable: u128,
    /// By kind of script, the outputs made and the coins spent.
    made: [u128; TYPES],
    spent: [u128; TYPES],
}

impl BlockNumbers {
    fn of(block: &IndexBlock<'_>, undo: Option<&BlockUndo<'_>>, params: &Params) -> Option<Self> {
        let view = &block.view;
        let mut numbers = Self {
            time: view.time().into(),
            transactions: view.tx_count() as u128,
            outputs: view.output_count() as u128,
            bytes: view.raw().len() as u128,
            weight: view.weight() as u128,
            ..Self::default()
        };
        // No coin of genesis is in the set.
        let never = |coinbase| {
            block.height == 0 || coinbase && params.is_bip30_unspendable(block.height, &block.hash)
        };
        let mut paid = 0;
        for (at, tx) in view.txs().enumerate() {
            for output in tx.outputs() {
                let (script, amount) = (output.script(), u128::try_from(output.value()).ok()?);
                numbers.made[ScriptType::of(script) as usize] += 1;
                if at > 0 {
                    paid += amount;
                }
                if is_unspendable(script) || never(at == 0) {
                    numbers.unspendable += amount;
                } else {
                    numbers.coins[0] += 1;
                    numbers.amount[0] += amount;
                }
            }
        }
        for spent in undo.map_or(&[][..], BlockUndo::coins) {
            let coin = spent.coin();
            numbers.spent[ScriptType::of(&coin.script) as usize] += 1;
            numbers.inputs += 1;
            numbers.coins[1] += 1;
            let amount = u128::from(coin.amount);
            numbers.amount[1] += amount;
            let age = u128::from(block.height.checked_sub(coin.height)?);
            numbers.age[0] += age;
            numbers.age[1] += age * amount;
        }
        numbers.fees = numbers.amount[1].checked_sub(paid)?;
        Some(numbers)
    }

    fn kept(&self) -> impl Iterator<Item = u128> + '_ {
        let Self { coins, amount, age, .. } = self;
        let first = [
            self.time,
            self.transactions,
            self.inputs,
            self.outputs,
            self.fees,
            self.bytes,
            self.weight,
            coins[0],
            coins[1],
            amount[0],
            amount[1],
            age[0],
            age[1],
            self.unspendable,
        ];
        first.into_iter().chain(self.made).chain(self.spent)
    }
}

impl<'s> NumbersSegment<'s> {
    /// Begins a segment. A temporary file of some 600 bytes a block goes to `scratch`.
    pub fn new(params: &'s Params, scratch: &'s dyn Storage) -> Self {
        Self { params, scratch, span: None, records: None }
    }

    /// Adds the next block: the child of the last one.
    ///
    /// # Errors
    ///
    /// Fails if it is another block, without undo data, if its transactions pay more than they have, and if a
    /// file cannot be written.
    pub fn block(&mut self, block: &IndexBlock<'_>) -> Result<(), MakeError> {
        ChainSpan::push(&mut self.span, block)?;
        let numbers = BlockNumbers::of(block, expect_undo(block)?, self.params);
        let what = "its undo data and amounts do not fit each other";
        let numbers = numbers.ok_or_else(|| MakeError::of_block(block, what))?;
        let records = match &mut self.records {
            Some(records) => records,
            none => {
                let name = format!("numbers-{}.part", block.height);
                none.insert(ScratchFile::create(self.scratch, name)?)
            }
        };
        records.write(&block.hash.0)?;
        numbers.kept().try_for_each(|number| records.write(&number.to_le_bytes()))
    }

    /// Ends the segment. `None` without a block.
    pub fn finish(self) -> Result<Option<NumbersPart<'s>>, MakeError> {
        let (Some(span), Some(records)) = (self.span, self.records) else { return Ok(None) };
        Ok(Some(NumbersPart { span, records: records.finish()? }))
    }
}

/// Writes the numbers of a chain. `parts` are the whole chain from genesis on, in ascending order; `tip` is its last
/// block. `failed` makes the error of a failed write.
fn write_numbers(
    parts: Vec<NumbersPart<'_>>,
    tip: &BlockHash,
    writer: &mut dyn NumbersWriter,
    failed: &dyn Fn(io::Error) -> MakeError,
) -> Result<(), MakeError> {
    let best = [&[0; 5][..], &tip.0].concat();
    ChainSpan::join(parts.iter().map(|part| part.span), &best)?;
    let (mut coins, mut amount) = (0u128, 0u128);
    for part in parts {
        let mut records = part.records.read()?;
        for height in part.span.first..part.span.first + part.span.blocks {
            let mut record = [0; RECORD];
            records.next(&mut record)?;
            let (hash, numbers) = record.split_first_chunk().expect("a record begins with a hash");
            let hash = BlockHash(*hash);
            let mut kept = [0; KEPT];
            for (number, bytes) in kept.iter_mut().zip(numbers.as_chunks().0) {
                *number = u128::from_le_bytes(*bytes);
            }
            let less = MakeError::Block { height, hash, what: "it spends more than there is" };
            let after = |sum: u128, more: u128, less| (sum + more).checked_sub(less);
            let set = after(coins, kept[7], kept[8]).zip(after(amount, kept[9], kept[10]));
            (coins, amount) = set.ok_or(less)?;
            let row: Vec<u128> = [&kept[..13], &[coins, amount], &kept[13..]].concat();
            writer.put(height, &hash, &row).map_err(failed)?;
        }
    }
    Ok(())
}

/// A column of numbers.
pub struct NumbersColumn {
    /// Its name.
    pub name: String,
    /// Whether its numbers may need more than 63 bits. All are below 10^38.
    pub is_wide: bool,
}

/// The columns after the height and the hash.
pub fn numbers_columns() -> Vec<NumbersColumn> {
    let mut names: Vec<String> = COLUMNS.map(str::to_owned).to_vec();
    for kind in ["made", "spent"] {
        names.extend(ScriptType::ALL.map(|of| format!("{kind}_{}", of.name())));
    }
    let column = |name| NumbersColumn { is_wide: name == WIDE, name };
    names.into_iter().map(column).collect()
}
