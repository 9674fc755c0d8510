//! Utreexo in addition to the engines: validation of a chain with proofs, without a UTXO set; the proofs of the
//! coins that blocks spend; and the roots of a set.
//!
//! - [`engine`]: [`ByProofs`], which validates blocks range by range in any order.
//! - [`peers`] and [`message`]: clients of bridge nodes, which serve proofs and roots.
//! - [`bridge`]: [`ProofIndex`](bridge::ProofIndex), which builds the forest block by block and makes the
//!   proofs of the coins that blocks spend.
//! - [`SpentPeers`]: the coins that blocks spend, for the engine swiftsync.
//! - [`roots`]: [`RootsOutput`](roots::RootsOutput), the roots of the forest of a UTXO set.
//! - [`survey_proofs`]: reads proof files and checks that they fit together.
//! - [`replay_caches`]: computes what a verifier saves by remembering some leaves.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod bridge;
mod bridge_error;
mod caches;
pub mod engine;
mod error;
pub mod forest_store;
pub mod leaf_change;
pub mod message;
pub mod peers;
mod proof_files;
pub mod roots;
mod spent;
mod survey;

pub use bridge_error::BridgeError;
pub use caches::{CACHES, CachesFound, CachesRequest, replay_caches};
pub use engine::{
    BridgePeers, ByProofs, ENGINE, ProofsInput, ProvenSegments, RootsBlock, TrustedRoots,
};
pub use error::ProofsError;
pub use proof_files::{ProofsMade, ProofsTotals, proofs_files};
pub use spent::SpentPeers;
pub use survey::{SurveyedFiles, survey_proofs};
