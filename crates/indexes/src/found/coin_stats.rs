//! Reads the index of coin statistics, and compares it with the statistics computed from the blocks.

use super::{BestError, CheckedChain, FoundError, rows::hex};
use crate::coin_stats::CoinStatsPart;
use crate::coin_stats_index::{CoinStatsForm, CoinStatsTip, for_each_record};
use crate::error::IndexesError;
use crate::forms::IndexForm;
use crate::making::height_key;
use apus_chain::{Height, MuHash};
use apus_datadir::{DatabaseLookUps, IndependentReadError};
use std::path::{Path, PathBuf};

/// An index of coin statistics that is compared when all statistics are there.
pub(crate) struct FoundStatistics {
    pub(crate) form: IndexForm,
    /// The last block whose record must be there.
    pub(super) best: Height,
    folder: PathBuf,
}

fn form_of(form: IndexForm) -> CoinStatsForm {
    match form {
        IndexForm::CoinStatsOld => CoinStatsForm::Narrow,
        _ => CoinStatsForm::Wide,
    }
}

/// Reads the keys of an index, and compares the state from which the node continues with the best block's record.
pub(super) fn read_statistics(
    chain: &CheckedChain<'_>,
    form: IndexForm,
    folder: &Path,
) -> Result<Result<FoundStatistics, BestError>, FoundError> {
    let (mut best, mut state, mut digest, mut best_height) = (None, None, None, None);
    chain.for_each_entry(folder, |key, value| match key {
        b"B" => {
            best_height = chain.best_block(Some(value)).ok();
            best = Some(value.to_vec());
        }
        b"M" => state = Some(value.to_vec()),
        [b't', height @ ..] if height.len() == 4 => {
            if best_height.is_some_and(|best| height_key(best) == key) {
                digest = value.get(32..64).map(<[u8]>::to_vec);
            }
        }
        [b's', hash @ ..] if hash.len() == 32 => {}
        _ => {
            let what = format!("the entry {} is not one that a node writes", hex(key));
            chain.faults.add(form, None, folder, what);
        }
    })?;
    let found = chain.best_block(best.as_deref()).map(|best| {
        let muhash = state.as_deref().and_then(|state| state.try_into().ok());
        let muhash = muhash.and_then(|state| MuHash::from_bytes(state).ok());
        if muhash.map(|muhash| muhash.finalize().to_vec()) != digest || digest.is_none() {
            let block = Some(chain.block(best));
            let what = "the node cannot continue from here: the MuHash that it would continue with is not that of its best \
                        block";
            chain.faults.add(form, block, folder, what);
        }
        FoundStatistics { form, best, folder: folder.to_owned() }
    });
    Ok(found)
}

/// Compares indexes, record by record; looks them up as a node does.
pub(super) fn compare(
    chain: &CheckedChain<'_>,
    indexes: &[FoundStatistics],
    parts: Vec<CoinStatsPart<'_>>,
) -> Result<CoinStatsTip, IndexesError> {
    let mut opened = Vec::new();
    for index in indexes {
        opened.push((index, DatabaseLookUps::open(&index.folder)?));
    }
    let mut expected = Vec::new();
    let tip = for_each_record(parts, &mut |height, record| {
        for (FoundStatistics { form, best, folder }, database) in &mut opened {
            if height > *best {
                continue;
            }
            expected.clear();
            record.write(form_of(*form), &mut expected);
            let what = match database.get(&height_key(height)) {
                Ok(Some(found)) if found == expected => continue,
                Ok(Some(found)) if found.get(..32) != expected.get(..32) => {
                    "the record is of another block".to_owned()
                }
                Ok(Some(_)) => "the record is not what the blocks lead to".to_owned(),
                Ok(None) => "the record is missing".to_owned(),
                Err(error @ IndependentReadError::Read { .. }) => return Err(error.into()),
                Err(error) => error.to_string(),
            };
            chain.faults.add(*form, Some(chain.block(height)), folder, what);
        }
        Ok(())
    })?;
    Ok(tip)
}
