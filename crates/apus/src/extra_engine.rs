//! [`OutsideEngine`]: describes an engine that a feature adds, for runs with it.

use crate::report::ForestReport;
use apus_sync::ChainEngine;
use std::path::Path;

/// An engine that a feature adds.
pub(crate) struct OutsideEngine<'a> {
    pub(crate) engine: &'a dyn ChainEngine,
    /// A folder that the engine reads.
    pub(crate) folder: Option<&'a Path>,
    /// The option that selects the engine, if it needs the witnesses of all blocks.
    pub(crate) option: &'static str,
    /// Returns the report about the Utreexo forest after the run.
    pub(crate) forest: Box<dyn Fn() -> Option<ForestReport> + Sync + 'a>,
}

/// The folder for proofs, and the number of blocks per file.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "utreexo"), allow(dead_code, reason = "only `apus utreexo` makes one"))]
pub(crate) struct BridgeJob<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) every: u32,
}
