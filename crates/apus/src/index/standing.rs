//! What a node does with the indexes that stay beside its new coins.

use crate::failure::{Failure, IO};
use crate::machine::clock;
use crate::node::NodeFolders;
use crate::report::grouped;
use apus_chain::Params;
use apus_datadir::IndependentReadError;
use apus_indexes::{IndexForm, IndexStanding, forms_in, index_folder, index_standings};
use apus_sync::source::ChainSource;
use apus_sync::{BlocksDir, SilentObserver, SyncError, UseIndex};
use std::sync::atomic::AtomicBool;

/// Says, for each index of a node but those of `others`, what the node will do with it. `chain` names the chain of the
/// node's coins.
pub(crate) fn standing_lines(
    node: &NodeFolders,
    chain: UseIndex,
    others: &[IndexForm],
) -> Result<Vec<String>, Failure> {
    if forms_in(&node.folder).is_empty() {
        return Ok(Vec::new());
    }
    let params = Params::of(node.chain);
    let (now, never) = (clock(params)?, AtomicBool::new(false));
    let dir = BlocksDir::open(&node.blocks, params, now, chain, &SilentObserver, &never);
    let dir = dir.map_err(SyncError::from)?;
    let standings = index_standings(&node.folder, &node.blocks, dir.chain());
    let standings = standings.map_err(|error| match error {
        IndependentReadError::Read { .. } => Failure::new(IO, error.to_string()),
        _ => Failure::wrong(error),
    })?;
    let stays = standings.into_iter().filter(|(form, _)| !others.contains(form));
    Ok(stays.map(|(form, standing)| line(node, form, standing, dir.chain().tip_height())).collect())
}

fn line(node: &NodeFolders, form: IndexForm, standing: IndexStanding, tip: u32) -> String {
    let (kind, folder) = (form.kind(), index_folder(&node.folder, form));
    let anew = format!(
        "remove {}, or make it again: apus index --datadir {} --index {kind} --replace",
        folder.display(),
        node.datadir.display()
    );
    match standing {
        IndexStanding::Current => format!("{kind}: at the same block; the node uses it as it is"),
        IndexStanding::Behind(height) => format!(
            "{kind}: at block {height}; the node indexes the {} blocks above when it starts",
            grouped((tip - height).into())
        ),
        IndexStanding::Elsewhere(block) => format!(
            "{kind}: at block {} ({}), which is above the coins or on another branch; the node continues from where the \
             branches meet, if it still has that branch's blocks",
            block.height, block.hash
        ),
        IndexStanding::Unknown(hash) => format!(
            "{kind}: at block {hash}, which the node's block index does not have; the node will not start with \
             -{kind}: {anew}"
        ),
        IndexStanding::NotRead => format!(
            "{kind}: its last block was not read, because the log in {} is long; the node starts with it",
            folder.display()
        ),
        IndexStanding::Unusable => format!(
            "{kind}: it has no last block, or cannot be read; the node would build on what is there, and answer wrong: {anew}"
        ),
    }
}
