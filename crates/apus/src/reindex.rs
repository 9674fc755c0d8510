//! `apus reindex`: a stopped node's chainstate, anew from its own blocks.
//!
//! A run like that of `apus sync`, which knows where everything is, goes by what the node's index
//! has as valid, and keeps the node out while it lasts.

use crate::args::{ReindexArgs, SinkArg};
use crate::failure::Failure;
use crate::machine::now;
use crate::node::{NodeFolders, expect_folders, pruned_node, reach};
use crate::sync::{JobSource, RunJob, run, tell};
use crate::verify::line;
use apus_chain::{BlockHash, Params};
use apus_datadir::chainstate::SNAPSHOT_CHAINSTATE;
use apus_datadir::{BlocksFolder, DATADIR_LOCK, DatadirLock, LockError, read_index_flags};
use apus_sync::{
    DatadirBlocks, Finding, FindingKind, Silent, SourceError, Stop, SyncError, UseIndex, Verify,
    look_at_index,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Runs `apus reindex`.
pub(crate) fn command(args: &ReindexArgs) -> Result<(), Failure> {
    let node = args.node.folders()?;
    expect_folders(&node)?;
    let NodeFolders { folder, blocks, .. } = &node;
    // A node locks both, where its block files are elsewhere, too.
    let _locks =
        [DatadirLock::take(folder, DATADIR_LOCK)?, DatadirLock::take(&blocks.files, DATADIR_LOCK)?];
    expect_whole(folder, blocks)?;
    let shunned = look_at_node_index(args, &node)?;
    let target = folder.join("chainstate");
    // Coins are often on a faster disk, by a link: the new ones go there, too.
    let target = if target.is_symlink() {
        reach(&target)?;
        fs::canonicalize(&target).map_err(|error| Failure::io(&target, error))?
    } else {
        target
    };
    let report = run(&RunJob {
        chain: args.node.chain,
        source: JobSource::Files {
            blocksdir: blocks.clone(),
            use_index: UseIndex::Connected { older: args.replace_with_older },
        },
        hints: args.hints.as_ref(),
        outside: None,
        engine: None,
        hints_order: args.hints_order,
        aggregate: args.proof.aggregate,
        run: &args.run,
        connect: Some(&args.connect),
        coins: None,
        outputs: &[SinkArg::Chainstate(target)],
        replace: args.replace || args.replace_with_older,
        muhash: false,
        kept: DatadirBlocks::All,
        stop: Stop::AtTip,
        bridge: None,
        machines: None,
    })?;
    let start = node.start_command();
    let next = match shunned {
        None => {
            format!("start the node, which goes on from block {}:\n  {start}", report.stop_height)
        }
        Some((finding, hash)) => format!(
            "start the node, which goes on from block {}, and not over a block that it takes for invalid, which new \
             coins do not change:\n  {start}\n  {}\n  If that block is valid, have the node judge it once more:\n  {}",
            report.stop_height,
            line(&finding),
            node.reconsider_command(&hash)
        ),
    };
    tell(&report, Some(next))
}

/// Fails where the node's block index would harm it whatever its coins are: new ones are of no use then, and what mends
/// the index makes the coins anew as well. The block, if the index marks one as invalid that stands in the way of a
/// chain of more work: whether it is invalid only its owner or a verification knows.
fn look_at_node_index(
    args: &ReindexArgs,
    node: &NodeFolders,
) -> Result<Option<(Finding, BlockHash)>, Failure> {
    let found = look_at_index(&Verify {
        params: Params::of(args.node.chain),
        folder: node.folder.clone(),
        block_files: node.blocks.files.clone(),
        assume_valid: None,
        threads: 1,
        memory_bytes: args.run.dbcache << 20,
        segment_bytes: None,
        checkpoint_interval: Duration::ZERO,
        now: now(),
        verifier: None,
        work: PathBuf::new(),
        observer: &Silent,
        interrupt: &AtomicBool::new(false),
    })?;
    let (shunned, harms): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|finding| finding.kind == FindingKind::MarkedInvalid);
    if harms.is_empty() {
        let shunned = shunned.into_iter().next();
        return Ok(shunned.and_then(|finding| Some((finding.clone(), finding.first.hash?))));
    }
    let mut message = format!(
        "the block index of the node of {} is not as it should be, which new coins would not mend:",
        args.node.datadir.display()
    );
    for finding in harms.iter().chain(&shunned) {
        message.push_str(&format!("\n{}\n  {}", line(finding), finding.remedy()));
    }
    Err(Failure::wrong(message))
}

/// The node must have all blocks, and not be in the middle of something.
fn expect_whole(folder: &Path, blocks: &BlocksFolder) -> Result<(), Failure> {
    let index = blocks.index();
    let useless = |error| Failure::from(SyncError::from(SourceError::Index(error)));
    let flags = read_index_flags(&blocks.home).map_err(useless)?;
    if flags.reindexing {
        return Err(Failure::usage(format!(
            "the node was stopped in the middle of -reindex, and its block index in {} is not whole: \
             start the node and let it finish that first",
            index.display()
        )));
    }
    if flags.pruned {
        return Err(Failure::usage(pruned_node(&blocks.files)));
    }
    let snapshot = folder.join(SNAPSHOT_CHAINSTATE);
    if snapshot.exists() {
        return Err(Failure::usage(format!(
            "the node is going on from a snapshot, and has its coins in {}: let it finish, or \
             remove that folder first",
            snapshot.display()
        )));
    }
    Ok(())
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        match &error {
            LockError::InUse { .. } => Self::usage(error),
            LockError::System { .. } => Failure::new(crate::failure::IO, error.to_string()),
        }
    }
}
