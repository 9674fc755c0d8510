//! Signature hints: for each ECDSA signature of a block, the parity of the y coordinate of its point R; and which keys
//! CHECKMULTISIG passes over.
//!
//! Many signatures are proven at once by one linear combination of their equations. That needs R
//! itself, but a signature contains only R's x coordinate, modulo the order of the group. A run that
//! verifies each signature by itself learns the missing bit and can write it down; a later run reads
//! it. A wrong or missing bit costs time, because the signature is then verified by itself. It never
//! makes an invalid signature valid.
//!
//! - [`HintTable`]: the bits of a block, found by a 64-bit key of the signature, in about 1.02 bits a
//!   key. Scripts run in any order, so a position in the block would not do.
//! - [`SignatureHintsReader`], [`SignatureHintsWriter`]: the file with the tables of all blocks
//!   (`docs/formats/sighints.md`).

mod block;
mod file;
mod table;

pub(super) use block::BlockHints;
pub use file::{
    SignatureHintsError, SignatureHintsReader, SignatureHintsSummary, SignatureHintsWriter,
};
pub use table::{HintTable, HintTableError};
