//! Chooses the chain a sync follows, depending on its source: the best one at first, one with more work
//! later, and another one where a block is invalid or unavailable.

use crate::error::{BlockUnavailable, InvalidBlock, SourceError, SyncError};
use crate::folder::FolderKind;
use crate::node_tip::NodeTip;
use crate::progress::{ChainBy, Event, Observer, Phase, SilentObserver};
use crate::request::{MemoryParts, Request, Source, Stop, Task};
use crate::source::ChainSource;
use crate::source::blocksdir::{BlocksDir, UseIndex};
use crate::warning::Warning;
use crate::workdir::invalid::{FailedBlocks, INVALID_MAX};
use apus_chain::{HeaderChain, KnownBlock};
use apus_datadir::BlocksFolder;
use std::sync::Arc;

/// The sync ends after it leaves this many of the peers' chains without connecting one to its end. Chains of
/// block files are left only for invalid blocks, and never twice for the same block.
pub(crate) const CHAINS_LEFT_MAX: u32 = 16;

/// Finds the chain. `use_index` overrides how the request uses Core's index.
pub(crate) fn headers<'a>(
    request: &'a Request<'_>,
    use_index: Option<UseIndex>,
) -> Result<Arc<dyn ChainSource + 'a>, SyncError> {
    request.env.observer.event(Event::Started(Phase::Headers));
    match &request.source {
        Source::Files { blocksdir, use_index: asked } => {
            let dir = Arc::new(files(request, blocksdir, use_index.unwrap_or(*asked))?);
            if let Some(given) = request.env.given {
                given.give(&dir, request.env.interrupt)?;
            }
            Ok(dir)
        }
        Source::Peers(peers) => {
            let found = peers.settle(request.env.observer, request.env.interrupt)?;
            let chain = found.chain();
            let (bytes, height) = (found.headers_bytes(), chain.tip_height());
            request.env.observer.event(Event::Ended { phase: Phase::Headers, bytes });
            let tip = *chain.tip_hash();
            request.env.observer.event(Event::ChainFound { tip, height, by: ChainBy::Peers });
            Ok(Arc::new(found))
        }
    }
}

/// Finds a chain with more work than the connected one, if the sync continues along better chains.
pub(crate) fn better_chain<'a>(
    request: &'a Request<'_>,
    than: &HeaderChain,
) -> Result<Option<Arc<dyn ChainSource + 'a>>, SyncError> {
    match (&request.source, request.stop) {
        (Source::Peers(peers), Stop::AtTip) => {
            let waiting = Event::Waiting { height: than.tip_height(), tip: *than.tip_hash() };
            let wait = || request.env.observer.event(waiting.clone());
            let found = peers.better_chain(than, request.follow, &wait, request.env.interrupt)?;
            if found.is_none() {
                peers.tell_lacking(than, request.env.observer);
            }
            Ok(found.map(|chain| Arc::new(chain) as Arc<dyn ChainSource + 'a>))
        }
        _ => Ok(None),
    }
}

/// Finds another chain after `than` failed with `error`: one without the invalid or unavailable block. It
/// must contain the block `base`. Warns the user of the change.
///
/// # Errors
/// `error` if there is no such chain, with the reason for that where it is known.
pub(crate) fn other_chain<'a>(
    request: &'a Request<'_>,
    than: &dyn ChainSource,
    base: KnownBlock,
    error: SyncError,
) -> Result<Arc<dyn ChainSource + 'a>, SyncError> {
    let of_files = matches!(request.source, Source::Files { .. });
    let invalid = InvalidBlock::of(&error).filter(|_| of_files);
    let put_aside = invalid.map(|invalid| than.chain().tip_height() - invalid.block.height);
    let why = error.to_string();
    let other = next_chain(request, than, base, error)?;
    let chain = other.chain();
    let to = chain.tip();
    let warning = Warning::OtherChain { why, put_aside, to };
    request.env.observer.event(Event::Warning(warning));
    Ok(other)
}

/// Chooses a chain after the sync discarded the join result of another chain, for this `reason`.
pub(crate) fn chain_anew<'a>(
    request: &'a Request<'_>,
    reason: &SyncError,
) -> Result<Arc<dyn ChainSource + 'a>, SyncError> {
    let dir = headers(request, None)?;
    let to = dir.chain().tip();
    let warning = Warning::OtherChain { why: reason.to_string(), put_aside: None, to };
    request.env.observer.event(Event::Warning(warning));
    Ok(dir)
}

fn next_chain<'a>(
    request: &'a Request<'_>,
    than: &dyn ChainSource,
    base: KnownBlock,
    error: SyncError,
) -> Result<Arc<dyn ChainSource + 'a>, SyncError> {
    let peers = match &request.source {
        Source::Peers(peers) => peers,
        Source::Files { blocksdir, use_index } => {
            return chain_without(request, (blocksdir, *use_index), than, base, error);
        }
    };
    let found = peers.other_chain(than.chain(), &error, request.follow, request.env.interrupt)?;
    match found {
        Some(chain) if chain.chain().hash(base.height) != Some(&base.hash) => {
            let (stop, at) = (base.height, base.height);
            Err(error.without_way(match request.task {
                Task::Hinted(_) => BlockUnavailable::BelowHints { stop },
                _ => BlockUnavailable::BelowJoined { at },
            }))
        }
        Some(chain) => Ok(Arc::new(chain)),
        None if InvalidBlock::of(&error).is_some() => {
            Err(error.without_way(BlockUnavailable::Peers))
        }
        None => Err(error),
    }
}

/// Finds a chain with more work than one that is too short, if the source may still learn of one.
pub(crate) fn longer_chain<'a>(
    request: &'a Request<'_>,
    than: &HeaderChain,
) -> Result<Option<Arc<dyn ChainSource + 'a>>, SyncError> {
    match &request.source {
        Source::Peers(peers) => {
            let found = peers.longer_chain(than, request.env.interrupt)?;
            Ok(found.map(|chain| Arc::new(chain) as Arc<dyn ChainSource + 'a>))
        }
        Source::Files { .. } => Ok(None),
    }
}

/// Finds the chain of Core's block files, without the blocks that proved invalid in an earlier start.
fn files(
    request: &Request<'_>,
    blocksdir: &BlocksFolder,
    use_index: UseIndex,
) -> Result<BlocksDir, SyncError> {
    let invalid = match use_index {
        of_node if of_node.is_of_node() => FailedBlocks::default(),
        _ => FailedBlocks::read(request.env.workdir, request.env.params.network)?,
    };
    let dir = open_files(request, blocksdir, use_index, invalid.all(), request.env.observer)?;
    for block in &dir.gap().invalid {
        request.env.observer.event(Event::Warning(Warning::PutAsideBefore(block.clone())));
    }
    let chain = dir.chain();
    compare_with_node(request, blocksdir, use_index, chain)?;
    // With the index, the files themselves are not scanned.
    let bytes = if dir.is_by_index() { 0 } else { dir.bytes_total() };
    request.env.observer.event(Event::Ended { phase: Phase::Headers, bytes });
    request.env.observer.event(Event::ChainFound {
        tip: *chain.tip_hash(),
        height: chain.tip_height(),
        by: ChainBy::Files { files: dir.file_count(), index: dir.is_by_index() },
    });
    Ok(dir)
}

/// Compares the end of a chain with the tip of the node's coins. These are the coins that the sync replaces, or
/// the chainstate next to the blocks.
///
/// # Errors
/// If a node's coins would be replaced by older ones, unless the user allowed that.
fn compare_with_node(
    request: &Request<'_>,
    blocks: &BlocksFolder,
    use_index: UseIndex,
    chain: &HeaderChain,
) -> Result<(), SyncError> {
    let replaced = request.folders.iter().find(|output| output.kind == FolderKind::Chainstate);
    let next_to_blocks = || blocks.home.parent().map(|folder| folder.join("chainstate"));
    let chainstate = match (use_index, replaced) {
        (UseIndex::Stated(_), _) => return Ok(()),
        (UseIndex::Connected { .. }, Some(output)) => Some(output.path.clone()),
        _ => next_to_blocks(),
    };
    let Some(chainstate) = chainstate.filter(|folder| folder.is_dir()) else { return Ok(()) };
    let Some(node) = NodeTip::beyond(chain, &chainstate, &blocks.home, request.env.params) else {
        return Ok(());
    };
    if node.is_reached_by(chain) {
        return Ok(());
    }
    let end = chain.tip();
    if use_index == (UseIndex::Connected { older: false }) {
        return Err(SyncError::usage(format!(
            "the node's coins are at {node}, but the blocks that its index marks as valid, with their undo data, \
             only lead to block {} ({}). Nothing was replaced. Run `bitcoind -reindex` to make the node validate \
             all its blocks again, or add --replace-with-older to replace the node's coins with the older ones",
            end.height, end.hash
        )));
    }
    request.env.observer.event(Event::Warning(Warning::NodeIsFurther { node, end }));
    Ok(())
}

/// Opens the chain of Core's block files, without some blocks.
pub(crate) fn open_files(
    request: &Request<'_>,
    blocksdir: &BlocksFolder,
    use_index: UseIndex,
    invalid: &[InvalidBlock],
    observer: &dyn Observer,
) -> Result<BlocksDir, SyncError> {
    let (params, now, interrupt) = (request.env.params, request.env.now, request.env.interrupt);
    let mut dir =
        BlocksDir::open_without(blocksdir, params, now, use_index, invalid, observer, interrupt)?;
    dir.set_buffer_bytes(
        MemoryParts::reader_bytes(request.env.memory_bytes, request.env.threads) as usize
    );
    Ok(dir)
}

/// Finds the best chain of block files without the block that `error` names, and without the blocks marked as
/// failed before. `than` is the chain that contains the block; `base` is a block that every chain of this sync
/// must contain.
///
/// # Errors
/// `error` itself if it does not say that a block is invalid; [`SyncError::NoWayOn`] if there is no
/// chain to continue with.
pub(crate) fn chain_without<'a>(
    request: &'a Request<'_>,
    (blocksdir, asked): (&BlocksFolder, UseIndex),
    than: &dyn ChainSource,
    base: KnownBlock,
    error: SyncError,
) -> Result<Arc<dyn ChainSource + 'a>, SyncError> {
    let Some(block) = InvalidBlock::of(&error) else { return Err(error) };
    if asked.is_of_node() {
        return Err(error.without_way(BlockUnavailable::Connected));
    }
    let mut invalid = FailedBlocks::read(request.env.workdir, request.env.params.network)?;
    if !invalid.add(block) {
        return Err(error.without_way(BlockUnavailable::TooMany { count: INVALID_MAX }));
    }
    let use_index = if than.is_by_index() { asked } else { UseIndex::Never };
    // The scan for the first chain already reported the warnings about the files.
    let dir = match open_files(request, blocksdir, use_index, invalid.all(), &SilentObserver) {
        Err(SyncError::Source(SourceError::NoChain { .. })) => {
            return Err(error.without_way(BlockUnavailable::Nothing));
        }
        other => other?,
    };
    if dir.chain().hash(base.height) != Some(&base.hash) {
        return Err(error.without_way(BlockUnavailable::BelowHints { stop: base.height }));
    }
    invalid.write(request.env.workdir, request.env.params.network)?;
    Ok(Arc::new(dir))
}
