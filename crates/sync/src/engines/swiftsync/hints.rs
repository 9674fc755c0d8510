//! Hints: which outputs of each block are still unspent at the stop height.
//!
//! - [`HintsFile`]: the hintsfile of BIP-456, checked once and then read by ranges of heights on any thread;
//!   [`HintsWriter`] writes one.
//! - [`HintsDecoder`], [`HintsEncoder`]: any encoding, block by block, for conversions: [`bitmap`], [`btcd`],
//!   [`delta`], [`offsets`].
//! - [`elias_fano`]: one block's element of a hintsfile.
//!
//! Hints are never trusted: wrong ones make the engine's sums differ, and then it outputs no coin. These
//! modules check that hints are well-formed, so that other code need not. `docs/formats/hints.md` describes
//! the bytes of all encodings.

pub mod bitmap;
mod block;
pub mod btcd;
pub mod delta;
pub mod elias_fano;
mod error;
mod file;
mod format;
pub mod offsets;
mod order;
mod range;
mod sink;
mod source;
#[cfg(test)]
mod tests;
mod window;
mod writer;

pub use block::{BlockElement, BlockHints, HintsDecoder, HintsEncoder, IndexSpace};
pub use elias_fano::{BitOrder, OUTPUTS_PER_BLOCK_MAX, UnknownBitOrder};
pub use error::{HintsError, HintsErrorKind, HintsFault};
pub use file::{
    HintsFile, HintsInfo, HintsOptions, Layout, MAGIC as HINTS_MAGIC, VERSION as HINTS_VERSION,
};
pub use format::{DetectedFormat, Format, UnknownFormat, detect_format};
pub use order::OrderEvidence;
pub use range::RangeHints;
pub use source::HintsSource;
pub use writer::HintsWriter;
