//! [`OutsideEngine`]: what a run has to know of an engine that a feature adds.

use crate::report::ForestReport;
use apus_sync::ChainEngine;
use std::path::Path;

/// An engine that a feature adds.
pub(crate) struct OutsideEngine<'a> {
    pub(crate) engine: &'a dyn ChainEngine,
    /// A folder that it reads.
    pub(crate) folder: Option<&'a Path>,
    /// The option that asks for it, where it needs the witnesses of all blocks.
    pub(crate) option: &'static str,
    /// What it says of the Utreexo forest once it has done its work.
    pub(crate) forest: Box<dyn Fn() -> Option<ForestReport> + Sync + 'a>,
}

/// Where proofs go, and how many blocks a file has.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "utreexo"), allow(dead_code, reason = "only `apus utreexo` makes one"))]
pub(crate) struct BridgeJob<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) every: u32,
}
