//! Checks the node's optional indexes after the audit: they are compared with its blocks, which the audit has
//! checked.

use super::CheckedIndex;
use apus_chain::BlockHash;
use apus_datadir::chainstate::node_best_block;
use apus_datadir::{BlocksFolder, DATADIR_LOCK, DatadirLock, LockError};
use apus_indexes::{IndexFault, IndexForm, IndexKind, IndexesRequest, check_indexes, forms_in};
use apus_storage::{DirStorage, create_private_dir};
use apus_sync::{
    ErrorKind, Finding, FindingKind, FoundFault, SyncError, VERIFIED_INDEXES, Verify, VerifyOutcome,
};

/// Compares the indexes that the node has, adds what is wrong to the findings, and what could not be compared to
/// the reasons why the proof is incomplete. Returns the indexes compared.
pub(super) fn check(
    request: &Verify<'_>,
    verified: &mut VerifyOutcome,
) -> Result<Vec<CheckedIndex>, SyncError> {
    let forms = forms_in(&request.folder);
    if forms.is_empty() {
        return Ok(Vec::new());
    }
    // A running node changes its indexes. One that is not there to be locked cannot run.
    let _lock = match lock(request) {
        Ok(lock) => lock,
        Err(error) => {
            leave_out(verified, &error.to_string());
            return Ok(Vec::new());
        }
    };
    let tip = match tip(request, verified) {
        Ok(tip) => tip,
        Err(why) => {
            leave_out(verified, &why);
            return Ok(Vec::new());
        }
    };
    let scratch = request.work.join(VERIFIED_INDEXES);
    create_private_dir(&scratch).map_err(apus_sync::folder::at(&scratch))?;
    let made = IndexesRequest {
        params: request.env.params,
        folder: &request.folder,
        blocks: BlocksFolder {
            files: request.block_files.clone(),
            home: request.folder.join("blocks"),
        },
        tip,
        coins: None,
        forms: &forms,
        numbers: None,
        replace: false,
        scratch: &DirStorage::private(&scratch),
        threads: request.env.threads,
        memory_bytes: request.env.memory_bytes,
        now: request.env.now,
        observer: request.env.observer,
        interrupt: request.env.interrupt,
    };
    let checked = match check_indexes(&made, verified.proof.as_ref().map(|proof| proof.muhash)) {
        Ok(checked) => checked,
        // The audit has found what is wrong with the blocks.
        Err(error) if matches!(error.kind(), ErrorKind::Wrong | ErrorKind::Usage) => {
            leave_out(verified, &error.to_string());
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    for what in &checked.unchecked {
        leave_out(verified, what);
    }
    checked
        .faults
        .into_iter()
        .map(finding)
        .for_each(|finding| add(&mut verified.findings, finding));
    let of_form = |&(form, height): &(IndexForm, u32)| CheckedIndex {
        index: form.kind().name(),
        folder: form.folder(),
        height,
    };
    let mut indexes: Vec<CheckedIndex> = checked.indexes.iter().map(of_form).collect();
    indexes.dedup();
    Ok(indexes)
}

/// Keeps the node from starting, if it is not running.
fn lock(request: &Verify<'_>) -> Result<Option<DatadirLock>, LockError> {
    if !request.folder.join(DATADIR_LOCK).exists() {
        return Ok(None);
    }
    match DatadirLock::take(&request.folder, DATADIR_LOCK) {
        Ok(lock) => Ok(Some(lock)),
        // A disk that can only be read has no running node.
        Err(LockError::System { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The block up to which the indexes are compared: that of the node's coins.
fn tip(request: &Verify<'_>, verified: &VerifyOutcome) -> Result<BlockHash, String> {
    if let Some(proof) = &verified.proof {
        return Ok(proof.at.hash);
    }
    let best = node_best_block(&request.folder.join("chainstate"));
    let best = best.map_err(|error| error.to_string())?;
    best.ok_or_else(|| "the coins are between two blocks".to_owned())
}

fn leave_out(verified: &mut VerifyOutcome, why: &str) {
    verified.add_unproven(format!("the node's indexes were not compared, or only partly: {why}"));
}

/// Adds a finding; two forms of an index make one.
fn add(findings: &mut Vec<Finding>, new: Finding) {
    match findings.iter_mut().find(|finding| finding.kind == new.kind) {
        Some(finding) => finding.count += new.count,
        None => findings.push(new),
    }
}

fn finding(fault: IndexFault) -> Finding {
    let kind = match fault.form.kind() {
        IndexKind::TxIndex => FindingKind::TxIndex,
        IndexKind::BlockFilterIndex => FindingKind::BlockFilterIndex,
        IndexKind::CoinStatsIndex => FindingKind::CoinStatsIndex,
        IndexKind::TxoSpenderIndex => FindingKind::TxoSpenderIndex,
    };
    let first = FoundFault {
        height: fault.block.map(|block| block.height),
        hash: fault.block.map(|block| block.hash),
        file: Some(fault.file.display().to_string()),
        what: fault.what,
        ..FoundFault::default()
    };
    Finding { kind, count: fault.count, first }
}
