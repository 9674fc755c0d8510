//! `apus reindex`: rebuilds a stopped node's chainstate from the node's own blocks.
//!
//! The run is that of `apus sync`, but it finds all folders itself, uses the blocks that the node's index marks as
//! valid, and keeps the node from starting meanwhile.

use crate::args::{ReindexArgs, SinkArg};
use crate::failure::{Failure, INTERRUPTED};
use crate::index::{IndexJob, options, standing_lines, tell as tell_indexes};
use crate::machine::{now, threads};
use crate::node::{NodeFolders, expect_folders, expect_whole, reach};
use crate::sync::{JobSource, RunJob, run, tell};
use crate::verify::line;
use apus_chain::{BlockHash, Params};
use apus_datadir::{DATADIR_LOCK, DatadirLock, LockError};
use apus_indexes::{IndexForm, IndexesMade};
use apus_storage::DirStorage;
use apus_sync::{Finding, FindingKind, RunEnv, SilentObserver, UseIndex, Verify, look_at_index};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// Runs `apus reindex`.
pub(crate) fn command(args: &ReindexArgs) -> Result<(), Failure> {
    let node = args.node.folders()?;
    expect_folders(&node)?;
    let NodeFolders { folder, blocks, .. } = &node;
    // If the block files are in a separate folder, a node locks both.
    let _locks =
        [DatadirLock::take(folder, DATADIR_LOCK)?, DatadirLock::take(&blocks.files, DATADIR_LOCK)?];
    expect_whole(folder, blocks)?;
    let marked = look_at_node_index(args, &node)?;
    let forms = args.index.forms()?;
    let indexes = IndexJob {
        command: "index",
        node: &node,
        forms: &forms,
        numbers: None,
        replace: args.replace || args.replace_with_older,
        workdir: None,
        threads: threads(args.run.par),
        dbcache_mib: args.run.dbcache,
        progress: args.run.progress,
    };
    let room = if forms.is_empty() { Vec::new() } else { indexes.expect_possible()? };
    let target = folder.join("chainstate");
    // The chainstate is often a link to a faster disk: write the new one there, too.
    let target = if target.is_symlink() {
        reach(&target)?;
        fs::canonicalize(&target).map_err(|error| Failure::io(&target, error))?
    } else {
        target
    };
    let use_index = UseIndex::Connected { older: args.replace_with_older };
    indexes.expect_undo(use_index)?;
    let source = JobSource::Files { blocksdir: blocks.clone(), use_index };
    let report = run(&RunJob {
        hints: args.hints.as_ref(),
        hints_order: args.hints_order,
        aggregate: args.proof.aggregate,
        connect: Some(&args.connect),
        outputs: &[SinkArg::Chainstate(target)],
        replace: args.replace || args.replace_with_older,
        ..RunJob::new(args.node.chain, source, &args.run)
    })?;
    let made = make_beside(&indexes, room)?;
    let start = node.start_command() + &options(&forms, args.index.index_for);
    let next = match marked {
        None => {
            format!("start the node; it continues from block {}:\n  {start}", report.stop_height)
        }
        Some((finding, hash)) => format!(
            "start the node; it continues from block {}, but not past a block that it marked as invalid, which a \
             new chainstate does not change:\n  {start}\n  {}\n  If that block is valid, make the node check it \
             again:\n  {}",
            report.stop_height,
            line(&finding),
            node.reconsider_command(&hash)
        ),
    };
    made.as_ref().map_or(Ok(()), tell_indexes)?;
    tell(&report, Some(next + &indexes_beside(&node, &report.stop_hash, &forms)))
}

/// Says what the node will do with the indexes that stay as they are, a line for each.
fn indexes_beside(node: &NodeFolders, stop: &str, made: &[IndexForm]) -> String {
    let Ok(stop) = stop.parse() else { return String::new() };
    // The chainstate is complete: an unreadable index must not look like a failure.
    let lines = standing_lines(node, UseIndex::Stated(stop), made)
        .unwrap_or_else(|failure| vec![failure.message]);
    lines.iter().map(|line| format!("\n  {line}")).collect()
}

/// Makes the indexes of a node whose new chainstate is in place, if the user wants some.
fn make_beside(
    job: &IndexJob<'_>,
    room: Vec<apus_sync::Event>,
) -> Result<Option<IndexesMade>, Failure> {
    if job.forms.is_empty() {
        return Ok(None);
    }
    let made = job.run(room).and_then(|(made, _)| made).map_err(beside_chainstate)?;
    Ok(Some(made))
}

/// Creates the failure of indexes whose node has a new chainstate.
fn beside_chainstate(failure: Failure) -> Failure {
    // The message of an interrupt says that nothing has changed.
    let first = match failure.code {
        INTERRUPTED => "interrupted: ".to_owned(),
        _ => failure.message + "\napus: ",
    };
    let message = format!(
        "{first}the new chainstate is complete and in its place; only the indexes are missing. `apus index` makes them"
    );
    Failure { message, ..failure }
}

/// Fails if the node's block index has problems that would harm the node with any coins: then a new chainstate does not
/// help, and fixing the index rebuilds the coins, too. Returns the block, if any, that the index marks as invalid and
/// that blocks a chain with more work: only the node's owner or a verification knows whether it is really invalid.
fn look_at_node_index(
    args: &ReindexArgs,
    node: &NodeFolders,
) -> Result<Option<(Finding, BlockHash)>, Failure> {
    let (nowhere, never) = (DirStorage::new(""), AtomicBool::new(false));
    let params = Params::of(args.node.chain);
    let env = RunEnv::new(params, &nowhere, &SilentObserver, &never);
    let found = look_at_index(&Verify {
        env: RunEnv { memory_bytes: args.run.dbcache << 20, now: now(), ..env },
        folder: node.folder.clone(),
        block_files: node.blocks.files.clone(),
        assume_valid: None,
        work: PathBuf::new(),
    })?;
    let (marked, harms): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|finding| finding.kind == FindingKind::MarkedInvalid);
    if harms.is_empty() {
        let marked = marked.into_iter().next();
        return Ok(marked.and_then(|finding| Some((finding.clone(), finding.first.hash?))));
    }
    let mut message = format!(
        "{}: the node's block index has problems that a new chainstate does not fix:",
        args.node.datadir.display()
    );
    for finding in harms.iter().chain(&marked) {
        message.push_str(&format!("\n{}\n  {}", line(finding), finding.remedy()));
    }
    Err(Failure::wrong(message))
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        match &error {
            LockError::InUse { .. } => Self::usage(error),
            LockError::System { .. } => Failure::new(crate::failure::IO, error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_after_the_chainstate_does_not_say_that_nothing_changed() {
        let interrupted = "interrupted: the node is as it was before";
        let said = beside_chainstate(Failure::new(INTERRUPTED, interrupted.to_owned()));
        assert!(said.message.starts_with("interrupted: the new chainstate is complete"));
        assert_eq!(said.code, INTERRUPTED);
        let said = beside_chainstate(Failure::wrong("block 7 is damaged")).message;
        assert!(said.starts_with("block 7 is damaged\napus: the new chainstate is complete"));
    }
}
