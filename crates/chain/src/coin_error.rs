//! [`CoinError`]: why bytes are not a coin, or not a script in the form in which coins are stored.
//!
//! One error for both, since a caller reads the script as a part of the coin.

use crate::amount::MAX_MONEY;
use crate::read::ReadError;
use crate::script::MAX_SCRIPT_SIZE;

/// Why bytes are not a coin. Offsets count from the start of the slice that is read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoinError {
    /// A field could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The amount is none that may exist.
    #[error("the amount at byte {offset} is above the limit of {MAX_MONEY} satoshi")]
    Amount {
        /// Where the amount begins.
        offset: usize,
    },
    /// The script is longer than any that can be spent.
    #[error(
        "the script at byte {offset} has {length} bytes, more than the {MAX_SCRIPT_SIZE} that can \
         be run"
    )]
    ScriptTooLong {
        /// Where its length is stated.
        offset: usize,
        /// That length.
        length: usize,
    },
    /// A shortened public key that has no long form.
    #[error("the public key at byte {offset} is not on the curve")]
    NotOnCurve {
        /// Where its x begins.
        offset: usize,
    },
    /// A script stored whole although it has a short form.
    #[error("the script at byte {offset} is stored whole, but has a short form")]
    NotCompressed {
        /// Where its length is stated.
        offset: usize,
    },
    /// A script that no input can ever satisfy; such an output is never kept as a coin.
    #[error("the script at byte {offset} can never be spent, so it makes no coin")]
    Unspendable {
        /// Where it begins.
        offset: usize,
    },
}
