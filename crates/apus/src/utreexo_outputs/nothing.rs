//! Stubs for Utreexo outputs in a build without Utreexo.

use crate::args::SinkArg;
use crate::extra_engine::BridgeJob;
use crate::report::{ForestReport, ProofsReport};
use apus_chain::Network;
use apus_sync::chain_index::ChainIndex;
use apus_sync::commitment::SetCommitment;
use std::path::PathBuf;

/// A type without values, since this build writes no such file.
pub(crate) enum RootsFile {}

/// Returns an empty list: such outputs are refused earlier.
pub(crate) fn roots_files(_: &[SinkArg]) -> Vec<RootsFile> {
    Vec::new()
}

/// The empty Utreexo outputs of a run.
pub(crate) struct UtreexoOutputs;

impl UtreexoOutputs {
    pub(crate) fn new(
        _: Network,
        _: &[RootsFile],
        _: Option<BridgeJob<'_>>,
        _: (PathBuf, u64),
        _: u64,
    ) -> Self {
        Self
    }

    pub(crate) fn commitment(&self) -> Option<&dyn SetCommitment> {
        None
    }

    pub(crate) fn index(&self) -> Option<&dyn ChainIndex> {
        None
    }

    pub(crate) fn reports(&self) -> (Option<ForestReport>, Option<ProofsReport>) {
        (None, None)
    }
}
