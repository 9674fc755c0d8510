//! Which indexes a sync can make.

use crate::failure::Failure;
use apus_chain::Network;
use apus_indexes::IndexForm;
use apus_sync::{DatadirBlocks, FolderKind};

/// Fails if a sync that writes a data directory of this kind, if any, cannot make the indexes in it.
pub(crate) fn expect_indexes(
    forms: &[IndexForm],
    datadir: Option<FolderKind>,
    chain: Network,
) -> Result<(), Failure> {
    let Some(first) = forms.first() else { return Ok(()) };
    match datadir {
        None => Err(Failure::usage(format!(
            "--index makes indexes in a data directory: add --out datadir:DIR, or make them for the node of the chain \
             {chain} with `apus index`"
        ))),
        Some(FolderKind::Datadir(DatadirBlocks::Last)) => Err(Failure::usage(format!(
            "--index {} needs all blocks, and --prune keeps only the last ones: leave out one of them",
            first.kind()
        ))),
        Some(FolderKind::KeptDatadir) => {
            let needing = forms.iter().find(|form| form.kind().needs_undo());
            needing.map_or(Ok(()), |form| Err(without_spent_coins(*form)))
        }
        Some(_) => Ok(()),
    }
}

fn without_spent_coins(form: IndexForm) -> Failure {
    let kind = form.kind();
    Failure::usage(format!(
        "{kind} is made from the coins that each block spends, but with hints, blocks from peers come without these: \
         add --spent peers, or leave out {kind} or --hints. txindex and txospenderindex need no such coins"
    ))
}
