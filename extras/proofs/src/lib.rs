//! Utreexo beside the engines: whether a chain is valid, by proofs and without a set of coins.
//!
//! - [`engine`]: [`ByProofs`], which validates blocks range by range in any order.
//! - [`peers`] and [`message`]: bridge nodes that are asked for proofs and roots.
//! - [`survey_proofs`]: what files of proofs hold, and whether they fit together.
//! - [`replay_caches`]: what a verifier saves that remembers some leaves.

mod caches;
pub mod engine;
mod error;
pub mod message;
pub mod peers;
mod survey;

pub use caches::{CachesFound, CachesRequest, replay_caches};
pub use engine::{BridgePeers, ByProofs, ENGINE, ProofsInput, ProvenSegments};
pub use error::ProofsError;
pub use survey::{Surveyed, survey_proofs};
