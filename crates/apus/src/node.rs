//! A node's folders ([`Node`]), and what the user is told of them: how a node is started on a folder that a run made
//! ([`start_command`]), that a folder is no data directory, and what to do where the node has pruned its blocks.

mod access;
mod conf;
mod place;
mod shell;

pub(crate) use access::reach;
pub(crate) use conf::NodeConf;
pub(crate) use place::Node;
pub(crate) use shell::{quoted, start_command};

use crate::failure::Failure;
use apus_chain::Network;
use apus_datadir::{
    BlkError, BlockFiles, BlocksFolder, chain_folder, network_of, read_index_flags,
};
use apus_sync::{SourceError, SyncError};
use std::path::Path;

/// What the owner of a node can do that has only the last blocks.
pub(crate) fn pruned_node(blocksdir: &Path) -> String {
    format!(
        "the node has pruned its blocks, and coins come from all blocks since the first: {} has only the \
         last ones. Have a new node made: from peers by `apus sync --out datadir:DIR` (several times as \
         fast with --hints FILE; --prune keeps the last blocks alone), or from the blocks of another node \
         by --blocksdir. `apus verify` looks at the blocks that this one has left",
        blocksdir.display()
    )
}

/// Blocks must be there from the first on, which those of a node that prunes are not.
pub(crate) fn expect_first_blocks(blocks: &BlocksFolder) -> Result<(), Failure> {
    if blocks.files.join("blk00000.dat").exists() {
        return Ok(());
    }
    // What cannot be read is told by the run, in its own words.
    match read_index_flags(&blocks.home) {
        Ok(flags) if flags.pruned => Err(Failure::usage(pruned_node(&blocks.files))),
        _ => Ok(()),
    }
}

/// The folder must be a node's, with what is needed in it.
pub(crate) fn expect_folders(node: &Node) -> Result<(), Failure> {
    let Node { datadir, chain, blocks, .. } = node;
    if !reach(&blocks.home)?.is_some_and(|it| it.is_dir()) {
        let advice = match chain_held(&datadir.join("blocks")) {
            Some(held) => format!(". {}", misnamed(datadir, held)),
            None => other_chains(datadir),
        };
        return Err(Failure::usage(format!(
            "{} is no data directory of a node on the chain {chain}: there is no folder {}{advice}",
            datadir.display(),
            blocks.home.display(),
        )));
    }
    let index = blocks.index();
    let has_index = reach(&index.join("CURRENT"))?.is_some();
    match chain_held(&blocks.files) {
        // Such a folder is sound, and every block in it would be judged by wrong rules.
        Some(held) if held != *chain => {
            let folder = blocks.files.parent().unwrap_or(datadir);
            return Err(Failure::usage(misnamed(folder, held)));
        }
        Some(_) => {}
        None => expect_readable(blocks, *chain, has_index)?,
    }
    match has_index {
        true => Ok(()),
        false => Err(without_index(blocks)),
    }
}

/// Block files have no index beside them: it was lost, or it is elsewhere.
fn without_index(blocks: &BlocksFolder) -> Failure {
    Failure::wrong(format!(
        "there is no block index in {index}, which a node needs beside its coins. If these are the block files \
         of a node that runs with -blocksdir, its index is in its data directory: give that as --datadir, and \
         --blocksdir where its bitcoin.conf does not say it. Otherwise `bitcoind -reindex` makes the index here, \
         and `apus sync --blocksdir {files} --out datadir:DIR` makes a data directory with all of it",
        index = blocks.index().display(),
        files = blocks.files.display()
    ))
}

/// The chain of the first block in a folder of blocks; none where it cannot be told.
fn chain_held(blocksdir: &Path) -> Option<Network> {
    network_of(blocksdir).ok().flatten()
}

/// Some block must be readable. Otherwise each would be called lost, whatever is wrong with all of them.
fn expect_readable(blocks: &BlocksFolder, chain: Network, has_index: bool) -> Result<(), Failure> {
    match BlockFiles::open(blocks, chain.magic()).and_then(|files| files.expect_blocks()) {
        Err(BlkError::NoFiles { path }) if has_index && blocks.is_one() => {
            Err(Failure::usage(format!(
                "{} has a block index and no block files: where the node runs with -blocksdir=DIR, give \
                 --blocksdir DIR, too",
                path.display()
            )))
        }
        Err(
            error @ (BlkError::NoFiles { .. }
            | BlkError::NoBlocks { .. }
            | BlkError::WrongChain { .. }
            | BlkError::OwnSignet { .. }
            | BlkError::Open(_)),
        ) => Err(SyncError::from(SourceError::from(error)).into()),
        // What else is wrong the command tells as it reads the files.
        _ => Ok(()),
    }
}

/// Says how a folder is named that holds blocks of a chain, in `blocks` within it.
fn misnamed(folder: &Path, held: Network) -> String {
    let shown = folder.display();
    match held.data_folder() {
        Some(name) if !folder.ends_with(name) => format!(
            "{shown} holds blocks of the chain {held}, and a node looks for those in a folder of the name \
             {name}: rename it to DIR/{name}, DIR being any folder, and give --datadir DIR --chain {held}"
        ),
        _ => format!(
            "{shown} holds blocks of the chain {held}: give --datadir {shown} --chain {held}"
        ),
    }
}

/// Whether a data directory has blocks of a chain, or what is there cannot be looked at.
pub(crate) fn may_have_blocks(datadir: &Path, chain: Network) -> bool {
    let blocks = chain_folder(datadir, chain).join("blocks");
    reach(&blocks).map_or(true, |found| found.is_some_and(|it| it.is_dir()))
}

/// Says of which chains a data directory is, if of any.
fn other_chains(datadir: &Path) -> String {
    let has = |chain: &Network| may_have_blocks(datadir, *chain);
    let there: Vec<_> =
        Network::ALL.into_iter().filter(has).map(|chain| format!("--chain {chain}")).collect();
    match there.is_empty() {
        true => String::new(),
        false => format!("; use {}", there.join(" or ")),
    }
}
