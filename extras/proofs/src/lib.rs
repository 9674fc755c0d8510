//! Utreexo beside the engines: whether a chain is valid, by proofs and without a set of coins; the proofs of what blocks
//! spend; and the roots of a set.
//!
//! - [`engine`]: [`ByProofs`], which validates blocks range by range in any order.
//! - [`peers`] and [`message`]: bridge nodes that are asked for proofs and roots.
//! - [`bridge`]: [`ProofIndex`](bridge::ProofIndex), the forest block by block, and the proofs of what blocks spend.
//! - [`roots`]: [`RootsOutput`](roots::RootsOutput), the roots of the forest of a set.
//! - [`survey_proofs`]: what files of proofs hold, and whether they fit together.
//! - [`replay_caches`]: what a verifier saves that remembers some leaves.

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
mod survey;

pub use bridge_error::BridgeError;
pub use caches::{CACHES, CachesFound, CachesRequest, replay_caches};
pub use engine::{BridgePeers, ByProofs, ENGINE, ProofsInput, ProvenSegments};
pub use error::ProofsError;
pub use proof_files::{ProofsMade, ProofsTotals, proofs_files};
pub use survey::{Surveyed, survey_proofs};
