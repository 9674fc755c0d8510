//! `apus reindex`: a stopped node's chainstate, anew from its own blocks.
//!
//! A run like that of `apus sync`, which knows where everything is, goes by what the node's index
//! has as valid, and keeps the node out while it lasts.

use crate::args::{ReindexArgs, SinkArg};
use crate::failure::Failure;
use crate::node::{expect_folders, pruned_node, start_command};
use crate::sync::{Job, JobSource, expect_engine, run, tell};
use apus_datadir::chainstate::SNAPSHOT_CHAINSTATE;
use apus_datadir::{DATADIR_LOCK, DatadirLock, LockError, chain_folder, read_index_flags};
use apus_sync::{DatadirBlocks, Stop, UseIndex};
use std::fs;
use std::path::Path;

/// Runs `apus reindex`.
pub(crate) fn command(args: &ReindexArgs) -> Result<(), Failure> {
    expect_engine(None, args.hints.as_ref(), &args.connect)?;
    let folder = chain_folder(&args.datadir, args.chain);
    let blocksdir = folder.join("blocks");
    expect_folders(&args.datadir, args.chain, &blocksdir)?;
    let _locks =
        [DatadirLock::take(&folder, DATADIR_LOCK)?, DatadirLock::take(&blocksdir, DATADIR_LOCK)?];
    expect_whole(&folder, &blocksdir)?;
    let target = folder.join("chainstate");
    // Coins are often on a faster disk, by a link: the new ones go there, too.
    let target = if target.is_symlink() {
        fs::canonicalize(&target).map_err(|error| Failure::io(&target, error))?
    } else {
        target
    };
    let report = run(&Job {
        chain: args.chain,
        source: JobSource::Files { blocksdir: &blocksdir, use_index: UseIndex::Connected },
        hints: args.hints.as_ref(),
        proofs: None,
        engine: None,
        hints_order: args.hints_order,
        aggregate: args.proof.aggregate,
        run: &args.run,
        connect: Some(&args.connect),
        coins: None,
        outputs: &[SinkArg::Chainstate(target)],
        replace: args.replace,
        muhash: false,
        kept: DatadirBlocks::All,
        stop: Stop::AtTip,
        bridge: None,
        queue: None,
    })?;
    let next = format!(
        "start the node, which goes on from block {}:\n  {}",
        report.stop_height,
        start_command(&args.datadir, args.chain, false),
    );
    tell(&report, Some(next))
}

/// The node must have all blocks, and not be in the middle of something.
fn expect_whole(folder: &Path, blocksdir: &Path) -> Result<(), Failure> {
    let index = blocksdir.join("index");
    let flags = read_index_flags(blocksdir).map_err(|error| Failure::io(&index, error))?;
    if flags.reindexing {
        return Err(Failure::usage(format!(
            "the node was stopped in the middle of -reindex, and its block index in {} is not whole: \
             start the node and let it finish that first",
            index.display()
        )));
    }
    if flags.pruned {
        return Err(Failure::usage(pruned_node(blocksdir)));
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
