//! Utreexo outputs that a run writes in addition to its set: the roots of the forest, and proofs of spent coins.

use crate::args::SinkArg;
use crate::extra_engine::BridgeJob;
use crate::report::{ForestReport, ProofsReport};
use apus_chain::Network;
use apus_engine::utxo::store::DiskOptions;
use apus_proofs::ProofsMade;
use apus_proofs::bridge::{BridgeOptions, ProofIndex};
use apus_proofs::forest_store::DiskForest;
use apus_proofs::roots::{RootsFile, RootsOutput};
use apus_storage::DirStorage;
use apus_sync::chain_index::ChainIndex;
use apus_sync::commitment::SetCommitment;
use apus_sync::parent;
use apus_utreexo::Roots;
use std::path::PathBuf;
use std::sync::Arc;

/// Returns the files for the roots.
pub(crate) fn roots_files(outputs: &[SinkArg]) -> Vec<RootsFile> {
    let file = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        RootsFile { storage: Arc::new(DirStorage::new(parent(path))), name }
    };
    let paths = outputs.iter().filter_map(|sink| match sink {
        SinkArg::Utreexo(path) => Some(path),
        _ => None,
    });
    paths.map(file).collect()
}

/// The Utreexo outputs of a run.
pub(crate) struct UtreexoOutputs<'f> {
    roots: RootsOutput<'f>,
    index: Option<ProofIndex>,
}

impl<'f> UtreexoOutputs<'f> {
    /// Creates the outputs of a run that writes its roots to `files`. If the run makes proofs, its forest is in the
    /// folder `forest`, in a store with a cache of `cache_bytes`, and uses its share of the memory `budget`.
    pub(crate) fn new(
        chain: Network,
        files: &'f [RootsFile],
        proofs: Option<BridgeJob<'_>>,
        (forest, cache_bytes): (PathBuf, u64),
        budget: u64,
    ) -> Self {
        let index = proofs.map(|proofs| {
            ProofIndex::new(BridgeOptions {
                storage: Arc::new(DirStorage::new(proofs.folder)),
                folder: proofs.folder.to_owned(),
                every: proofs.every,
                store: Box::new(move || {
                    let options = DiskOptions { cache_bytes, ..DiskOptions::default() };
                    Ok(Arc::new(DiskForest::open(&forest, chain, options)?))
                }),
                // Changed pages, and the pages of the current block, need half as much in addition.
                memory_bytes: budget / 3,
            })
        });
        Self { roots: RootsOutput::new(files), index }
    }

    /// Returns the roots' computation, for a request.
    pub(crate) fn commitment(&self) -> Option<&dyn SetCommitment> {
        Some(&self.roots)
    }

    /// Returns the proofs' index, for a request.
    pub(crate) fn index(&self) -> Option<&dyn ChainIndex> {
        self.index.as_ref().map(|index| index as _)
    }

    /// Returns the reports about the forest and the proofs, after the run.
    pub(crate) fn reports(&self) -> (Option<ForestReport>, Option<ProofsReport>) {
        let made = self.index.as_ref().and_then(ProofIndex::made);
        let roots = self.roots.roots().or(made.as_ref().map(|made| made.roots.clone()));
        (roots.as_ref().map(ForestReport::of), made.as_ref().map(ProofsReport::of))
    }
}

impl ForestReport {
    pub(crate) fn of(roots: &Roots) -> Self {
        Self {
            leaves: roots.leaves(),
            roots: roots.hashes().iter().map(ToString::to_string).collect(),
        }
    }
}

impl ProofsReport {
    fn of(made: &ProofsMade) -> Self {
        let totals = &made.totals;
        Self {
            from: made.from,
            files: totals.files,
            blocks: totals.blocks,
            coins: totals.targets,
            hashes: totals.hashes,
            proof_bytes: totals.proof_bytes,
            leaf_data_bytes: totals.leaf_bytes,
            file_bytes: totals.file_bytes,
        }
    }
}
