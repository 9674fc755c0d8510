//! What a run makes of Utreexo where the program is built without it: nothing.

use crate::args::SinkArg;
use crate::outside::BridgeJob;
use crate::report::{ForestReport, ProofsReport};
use apus_chain::Network;
use apus_sync::chain_index::ChainIndex;
use apus_sync::commitment::SetCommitment;
use std::path::PathBuf;

/// No file.
pub(crate) enum RootsFile {}

/// None: such outputs are refused.
pub(crate) fn roots_files(_: &[SinkArg]) -> Vec<RootsFile> {
    Vec::new()
}

/// See the module.
pub(crate) struct Making;

impl Making {
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

    pub(crate) fn told(&self) -> (Option<ForestReport>, Option<ProofsReport>) {
        (None, None)
    }
}
