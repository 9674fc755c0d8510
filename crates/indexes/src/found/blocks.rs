//! [`FoundIndexes`]: what the databases of a node's indexes have; [`BlockCheck`] compares it block by block.

use super::coin_stats::{FoundStatistics, compare, read_statistics};
use super::filters::{FoundFilters, read_filters};
use super::rows::{FoundRows, FoundTxIndex, read_spenders, read_txindex};
use super::{CheckedChain, FoundError, IndexesChecked};
use crate::block::IndexBlock;
use crate::coin_stats::CoinStatsPart;
use crate::coin_stats_index::CoinStatsTip;
use crate::error::IndexesError;
use crate::filter::FilterBuilder;
use crate::forms::{IndexForm, index_folder};
use crate::making::MakeError;
use apus_chain::{HEADER_SIZE, Height, Params, TxView, Txid};
use apus_hash::sha256d;
use std::path::{Path, PathBuf};

/// What was found in the databases, in a form that blocks can be compared with: 8 to 16 bytes a block for each
/// index.
#[derive(Default)]
pub(crate) struct FoundIndexes {
    folder: PathBuf,
    txindex: FoundTxIndex,
    spenders: Option<FoundRows>,
    filters: Option<FoundFilters>,
    statistics: Vec<FoundStatistics>,
}

impl FoundIndexes {
    /// Reads the index of a form in a node's folder.
    pub(crate) fn read(
        &mut self,
        chain: &CheckedChain<'_>,
        folder: &Path,
        form: IndexForm,
        checked: &mut IndexesChecked,
    ) -> Result<(), IndexesError> {
        self.folder = folder.to_owned();
        let database = database_of(folder, form);
        let best = match form {
            // One folder has both forms.
            IndexForm::TxIndex => read_txindex(chain, &database).map(|(found, failed)| {
                for (form, error) in failed {
                    error.tell(form, &database, chain, &mut checked.unchecked);
                }
                let old = found.old.as_ref().map(|rows| (IndexForm::TxIndex, rows.best));
                let new = found.new.as_ref().map(|it| (IndexForm::TxIndexV2, it.rows.best));
                checked.indexes.extend(old.into_iter().chain(new));
                self.txindex = found;
                None
            }),
            IndexForm::TxIndexV2 => Ok(None),
            IndexForm::TxoSpender => read_spenders(chain, &database)
                .map(|found| Some(found.map(|found| self.spenders.insert(found).best))),
            IndexForm::BlockFilter => read_filters(chain, &database)
                .map(|found| Some(found.map(|found| self.filters.insert(found).best))),
            IndexForm::CoinStats | IndexForm::CoinStatsOld => {
                read_statistics(chain, form, &database).map(|found| {
                    Some(found.map(|found| {
                        let best = found.best;
                        self.statistics.push(found);
                        best
                    }))
                })
            }
        };
        match best {
            Ok(Some(Ok(best))) => checked.indexes.push((form, best)),
            Ok(Some(Err(error))) => error.tell(form, &database, chain, &mut checked.unchecked),
            Ok(None) => {}
            Err(FoundError::Fault(what)) => chain.faults.add(form, None, &database, what),
            Err(FoundError::NotRead(why)) => {
                checked.unchecked.push(format!("{}: {why}", form.kind()));
            }
            Err(FoundError::Run(error)) => return Err(error),
        }
        Ok(())
    }

    pub(crate) fn has_statistics(&self) -> bool {
        !self.statistics.is_empty()
    }

    pub(crate) fn compare_statistics(
        &self,
        chain: &CheckedChain<'_>,
        parts: Vec<CoinStatsPart<'_>>,
    ) -> Result<CoinStatsTip, IndexesError> {
        compare(chain, &self.statistics, parts)
    }
}

fn database_of(folder: &Path, form: IndexForm) -> PathBuf {
    match form.database() {
        "" => index_folder(folder, form),
        name => index_folder(folder, form).join(name),
    }
}

/// Compares blocks with what was found, on one thread.
pub(crate) struct BlockCheck<'c, 'a> {
    chain: &'c CheckedChain<'a>,
    found: &'c FoundIndexes,
    params: &'c Params,
    builder: FilterBuilder,
    filter: Vec<u8>,
}

impl<'c, 'a> BlockCheck<'c, 'a> {
    pub(crate) fn new(
        chain: &'c CheckedChain<'a>,
        found: &'c FoundIndexes,
        params: &'c Params,
    ) -> Self {
        Self { chain, found, params, builder: FilterBuilder::new(), filter: Vec::new() }
    }

    /// Compares the entries of a block. Filters are left out without undo data.
    pub(crate) fn block(
        &mut self,
        block: &IndexBlock<'_>,
        txids: &[[u8; 32]],
    ) -> Result<(), MakeError> {
        // No index has rows of genesis.
        if block.height > 0 {
            self.transactions(block, txids);
            self.inputs(block);
        }
        let Some(filters) = &self.found.filters else { return Ok(()) };
        if block.height > filters.best || (block.undo.is_none() && block.height > 0) {
            return Ok(());
        }
        self.filter.clear();
        self.builder.build(block, &mut self.filter)?;
        // A fault that reading found has a zero; a missing one is known.
        let there = filters.hashes.get(block.height as usize).copied().unwrap_or_default();
        if there != 0 && there != self.chain.row(&sha256d(&self.filter), 0) {
            self.fault(IndexForm::BlockFilter, block.height, "the filter is not that of the block");
        }
        Ok(())
    }

    fn fault(&self, form: IndexForm, height: Height, what: &str) {
        let folder = database_of(&self.found.folder, form);
        self.chain.faults.add(form, Some(self.chain.block(height)), &folder, what);
    }

    fn transactions(&self, block: &IndexBlock<'_>, txids: &[[u8; 32]]) {
        const WRONG: &str = "the entries of its transactions are not what they must be: some are missing, of other \
                             transactions, or lead to another place";
        let FoundTxIndex { old, new } = &self.found.txindex;
        let at = block.height as usize;
        let in_old = old.as_ref().filter(|rows| block.height <= rows.best);
        if let Some(rows) = in_old {
            let of_tx = |(tx, txid): (TxView<'_>, &[u8; 32])| {
                self.chain.row(txid, (tx.offset() - HEADER_SIZE) as u64)
            };
            let mut rows_of_block = block.view.txs().zip(txids).map(of_tx);
            let coinbase = rows_of_block.next().unwrap_or_default();
            let others = rows_of_block.fold(0, u64::wrapping_add);
            // A later coinbase with the same txid takes the place of this one (BIP-30).
            let replaced = self.params.is_bip30_unspendable(block.height, &block.hash)
                && others == rows.sums[at];
            if others.wrapping_add(coinbase) != rows.sums[at] && !replaced {
                self.fault(IndexForm::TxIndex, block.height, WRONG);
            }
        }
        let Some(new) = new.as_ref().filter(|it| block.height <= it.rows.best) else { return };
        match (new.numbers[at], new.rows.salt) {
            (None, _) if in_old.is_some() => {}
            (None, _) => {
                self.fault(
                    IndexForm::TxIndexV2,
                    block.height,
                    "the block has no number and no entries",
                );
            }
            (Some(_), Some(salt)) => {
                let rows = block.view.txs().zip(txids).map(|(tx, txid)| {
                    let prefix = &salt.of_txid(&Txid(*txid)).to_be_bytes()[..5];
                    self.chain.row(prefix, tx.offset() as u64)
                });
                if rows.fold(0, u64::wrapping_add) != new.rows.sums[at] {
                    self.fault(IndexForm::TxIndexV2, block.height, WRONG);
                }
            }
            // Without a salt, no row can be right; reading has said so.
            (Some(_), None) => {}
        }
    }

    fn inputs(&self, block: &IndexBlock<'_>) {
        let Some(rows) = &self.found.spenders else { return };
        let Some(salt) = rows.salt.filter(|_| block.height <= rows.best) else { return };
        let mut sum = 0u64;
        for tx in block.view.txs().skip(1) {
            let offset = (tx.offset() - HEADER_SIZE) as u64;
            for input in tx.inputs() {
                let hash = salt.of_outpoint(input.outpoint()).to_le_bytes();
                sum = sum.wrapping_add(self.chain.row(&hash, offset));
            }
        }
        if sum != rows.sums[block.height as usize] {
            let what = "the entries of its inputs are not what they must be: some are missing, of other coins, or lead \
                        to another place";
            self.fault(IndexForm::TxoSpender, block.height, what);
        }
    }
}
