//! An independent implementation of the formats, slow and obvious, to compare the product with.
//!
//! It follows the formats alone and shares no code with the product; where public crates know a part (hashes,
//! big numbers, hints), it uses them. It is checked against real nodes' files.

mod coin;
mod forest;
mod hints;
mod set;

pub use coin::{coin_bytes, compress_amount, varint};
pub use forest::{BlockProof, forest, proofs};
pub use hints::{BitOrder, hints_file, read_hints_file};
pub use set::{hash_serialized_3, muhash, snapshot};

#[cfg(test)]
mod tests;
