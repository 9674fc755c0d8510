//! The index of coin statistics (Core `index/coinstatsindex.cpp`): for each block the MuHash, numbers and
//! amounts of the set of coins after it.

use crate::coin_stats::{BlockSums, CoinStatsPart};
use crate::error::IndexesError;
use crate::making::{ChainSpan, MakeError, height_key};
use crate::read_back::IndexDatabase;
use apus_chain::{BlockHash, Height, Params, block_subsidy};
use apus_datadir::WriterOptions;
use apus_hash::muhash::Num3072;
use apus_hash::sha256;
use apus_storage::DirStorage;

/// A form of the index. Each has its own folder, and a node reads only its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoinStatsForm {
    /// Bitcoin Core 30 and later: `indexes/coinstatsindex/db`, sums of 256 bits.
    Wide,
    /// Bitcoin Core 29 and earlier: `indexes/coinstats/db`, sums of 64 bits that wrap around.
    Narrow,
}

/// The index that was written, at its last block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoinStatsTip {
    /// The MuHash of the set, in internal byte order. If it is that of a node's chainstate at the same block,
    /// then the coins that the undo data gave were the right ones: an element of the hash names its outpoint.
    pub muhash: [u8; 32],
    /// Number of coins.
    pub coins: u64,
    /// Their amount in satoshi.
    pub amount: u64,
}

/// Sums over all blocks from genesis on (Core `index/coinstatsindex.cpp`, `DBVal`). Amounts are in satoshi.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ChainSums {
    coins: u64,
    bogosize: u64,
    amount: i64,
    subsidy: i64,
    spent: u128,
    created: u128,
    coinbase: u128,
    genesis: i64,
    bip30: i64,
    scripts: i64,
    unclaimed: i64,
}

impl ChainSums {
    /// Adds the next block. `None` if it spends more than there is or a sum does not fit, as only wrong undo
    /// data or invalid blocks do.
    pub(crate) fn add(
        &mut self,
        block: &BlockSums,
        (height, hash): (Height, &BlockHash),
        params: &Params,
    ) -> Option<()> {
        let subsidy = block_subsidy(height, params.subsidy_halving_interval);
        let subsidy = i64::try_from(subsidy).ok()?;
        self.subsidy = self.subsidy.checked_add(subsidy)?;
        if height == 0 {
            self.genesis = subsidy;
        }
        if params.is_bip30_unspendable(height, hash) {
            self.bip30 = self.bip30.checked_add(subsidy)?;
        }
        let after = |sum: u64, [more, less]: [u128; 2]| {
            u64::try_from((u128::from(sum) + more).checked_sub(less)?).ok()
        };
        self.coins = after(self.coins, block.coins)?;
        self.bogosize = after(self.bogosize, block.bogosize)?;
        let amount = u64::try_from(self.amount).ok()?;
        let amount = after(amount, [block.created + block.coinbase, block.spent])?;
        self.amount = i64::try_from(amount).ok()?;
        self.spent += block.spent;
        self.created += block.created;
        self.coinbase += block.coinbase;
        self.scripts = self.scripts.checked_add(i64::try_from(block.scripts).ok()?)?;
        // What came in and went nowhere.
        let came = self.spent.checked_add(u128::try_from(self.subsidy).ok()?)?;
        let lost = u128::try_from(self.genesis.checked_add(self.bip30)?.checked_add(self.scripts)?);
        let went = (self.created + self.coinbase).checked_add(lost.ok()?)?;
        self.unclaimed = i64::try_from(came.checked_sub(went)?).ok()?;
        Some(())
    }

    /// Appends the record of a block: its hash, the MuHash's digest, and these sums.
    pub(crate) fn write(
        &self,
        form: CoinStatsForm,
        hash: &BlockHash,
        muhash: &[u8; 32],
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(&hash.0);
        out.extend_from_slice(muhash);
        let lost = [self.genesis, self.bip30, self.scripts, self.unclaimed];
        out.extend_from_slice(&self.coins.to_le_bytes());
        out.extend_from_slice(&self.bogosize.to_le_bytes());
        out.extend_from_slice(&self.amount.to_le_bytes());
        out.extend_from_slice(&self.subsidy.to_le_bytes());
        let wide = [self.spent, self.created, self.coinbase];
        match form {
            CoinStatsForm::Wide => wide.iter().for_each(|sum| {
                out.extend_from_slice(&sum.to_le_bytes());
                out.extend_from_slice(&[0; 16]);
            }),
            CoinStatsForm::Narrow => {
                // Each is at most the subsidy in all, and so is their sum.
                out.extend_from_slice(&lost.iter().sum::<i64>().to_le_bytes());
                wide.iter().for_each(|&sum| out.extend_from_slice(&(sum as u64).to_le_bytes()));
            }
        }
        lost.iter().for_each(|sum| out.extend_from_slice(&sum.to_le_bytes()));
    }
}

/// Writes the index of coin statistics in some forms, each to its folder, which must be empty. `parts` are the
/// whole chain from genesis on, in ascending order; `best` is the locator of its last block, as the key `B` has
/// it.
///
/// # Errors
///
/// Fails if the parts do not make one chain that ends at `best`, if a block spends more than there is, if a
/// file cannot be read or written, if a database is not what was written, and with what `stop` returns.
pub fn write_coin_stats_index(
    parts: Vec<CoinStatsPart<'_>>,
    folders: &[(CoinStatsForm, &DirStorage)],
    best: &[u8],
    stop: &dyn Fn() -> Result<(), IndexesError>,
) -> Result<CoinStatsTip, IndexesError> {
    ChainSpan::join(parts.iter().map(|part| part.span), best)?;
    let state = state(&parts);
    let mut databases = Vec::new();
    for &(form, folder) in folders {
        let mut database = IndexDatabase::new(folder, WriterOptions::default())?;
        database.put(b"B", best)?;
        database.put(b"M", &state)?;
        databases.push((form, database));
    }
    let mut value = Vec::new();
    let tip = for_each_record(parts, &mut |height, record| {
        for (form, database) in &mut databases {
            value.clear();
            record.write(*form, &mut value);
            database.put(&height_key(height), &value)?;
        }
        Ok(())
    })?;
    databases.into_iter().try_for_each(|(_, database)| database.finish(stop))?;
    Ok(tip)
}

/// What the index says of a block.
pub(crate) struct CoinStatsRecord<'r> {
    pub(crate) hash: BlockHash,
    pub(crate) muhash: [u8; 32],
    sums: &'r ChainSums,
}

impl CoinStatsRecord<'_> {
    /// Appends the value of the block's entry in a form.
    pub(crate) fn write(&self, form: CoinStatsForm, out: &mut Vec<u8>) {
        self.sums.write(form, &self.hash, &self.muhash, out);
    }
}

/// Passes the records of a chain's parts to `each`, from genesis on; returns the last.
pub(crate) fn for_each_record(
    parts: Vec<CoinStatsPart<'_>>,
    each: &mut dyn FnMut(Height, CoinStatsRecord<'_>) -> Result<(), IndexesError>,
) -> Result<CoinStatsTip, IndexesError> {
    let (mut before, mut sums, mut muhash) = (Num3072::ONE, ChainSums::default(), [0; 32]);
    for part in parts {
        let (ChainSpan { first, blocks, .. }, params) = (part.span, part.params);
        let mut all = part.muhash.clone();
        let mut records = part.read()?;
        for height in first..first + blocks {
            let block = records.next()?;
            let hash = block.hash;
            sums.add(&block.sums, (height, &hash), params).ok_or(MakeError::Block {
                height,
                hash,
                what: "it spends more than there is, or creates more than it may",
            })?;
            let mut number = block.muhash;
            number.multiply(&before);
            muhash = sha256(&number.to_bytes());
            each(height, CoinStatsRecord { hash, muhash, sums: &sums })?;
        }
        all.multiply(&before);
        before = all;
    }
    let amount = u64::try_from(sums.amount).unwrap_or_default();
    Ok(CoinStatsTip { muhash, coins: sums.coins, amount })
}

/// The state from which a node continues, `M`: the MuHash at the last block as numerator and denominator.
fn state(parts: &[CoinStatsPart<'_>]) -> Vec<u8> {
    let mut muhash = Num3072::ONE;
    parts.iter().for_each(|part| muhash.multiply(&part.muhash));
    [muhash.to_bytes(), Num3072::ONE.to_bytes()].concat()
}
