//! [`HintsError`] and [`HintsFault`]: why hints could not be read or written, and where.
//!
//! A [`HintsFault`] is what is wrong with one block's hints, a [`HintsError`] adds the height and the
//! byte. Every message says what to do or what was expected; none is ever swallowed here.

pub use super::elias_fano::HintsFault;

use super::elias_fano::BitOrder;
use apus_chain::{Height, HeightRange};
use std::io;

/// Why hints could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum HintsError {
    /// Reading failed.
    #[error("cannot read the hints at byte {offset}, height {height}: {source}")]
    Read {
        /// The height that was about to be read.
        height: Height,
        /// Where.
        offset: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// Writing failed.
    #[error("cannot write the hints at byte {offset}, height {height}: {source}")]
    Write {
        /// The height that was about to be written.
        height: Height,
        /// Where.
        offset: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The file does not begin as its encoding demands.
    #[error(
        "not a {format} file: byte {offset} begins {found}, expected {expected}; if the file has \
         another encoding, name it"
    )]
    Header {
        /// The encoding that was asked for.
        format: &'static str,
        /// Where.
        offset: u64,
        /// What stands there, in hexadecimal.
        found: String,
        /// What should stand there.
        expected: &'static str,
    },
    /// The hints of one block break a rule.
    #[error("the hints of height {height} at byte {offset} are invalid{}: {fault}", reading(.order))]
    Block {
        /// The block's height.
        height: Height,
        /// Where its hints begin.
        offset: u64,
        /// The bit order in which they were read, where it matters.
        order: Option<BitOrder>,
        /// What is wrong.
        fault: HintsFault,
    },
    /// The file goes on after its last block.
    #[error(
        "the file goes on at byte {offset} after the hints of the last height, {height}: it is \
         damaged, or its header names another height"
    )]
    Trailing {
        /// The last height.
        height: Height,
        /// Where the surplus begins.
        offset: u64,
    },
    /// Every block can be read in both bit orders, with different meanings.
    #[error(
        "the bit order cannot be told: both fit every block up to the last, and they differ at \
         height {height}, byte {offset}; state it: msb for BIP-456 and hintsfile 0.1, lsb for \
         hintsfile 0.2"
    )]
    AmbiguousBitOrder {
        /// The first height whose hints mean different things.
        height: Height,
        /// Where they begin.
        offset: u64,
    },
    /// Some blocks fit one bit order only, others the other only.
    #[error(
        "the file mixes bit orders and must be corrupt: the hints of height {first} at byte \
         {first_offset} are valid only {first_order}, those of height {second} at byte \
         {second_offset} only {second_order}"
    )]
    MixedBitOrders {
        /// The first height that settles the order.
        first: Height,
        /// Where its hints begin.
        first_offset: u64,
        /// The order it settles.
        first_order: BitOrder,
        /// The height that contradicts.
        second: Height,
        /// Where its hints begin.
        second_offset: u64,
        /// The order it demands.
        second_order: BitOrder,
    },
    /// A count of zero where data follows (bitmap encoding).
    #[error(
        "the bitmap says at height {height}, byte {offset}, that it ends (a count of 0), yet data \
         follows: a block of exactly 65536 outputs wraps its 16-bit count to 0, or the file has \
         surplus bytes; make the hints anew in another encoding"
    )]
    ZeroCount {
        /// The height of the count.
        height: Height,
        /// Where it stands.
        offset: u64,
    },
    /// Heights were asked for that the file does not cover.
    #[error("heights {wanted} were asked for, the hints cover heights 0 to {stop_height}")]
    OutOfRange {
        /// The heights asked for.
        wanted: HeightRange,
        /// The last height covered.
        stop_height: Height,
    },
    /// The file is not the one that was checked when it was opened.
    #[error(
        "the hints changed since they were opened: height {height}, byte {offset}: {what}; start \
         again with a file that no program writes to"
    )]
    Changed {
        /// The height being read.
        height: Height,
        /// Where.
        offset: u64,
        /// What differs.
        what: String,
    },
    /// More or fewer blocks were written than announced.
    #[error(
        "the next height to write is {height} at byte {offset}, but hints up to height \
         {stop_height} were announced"
    )]
    BlockCount {
        /// The height that would come next.
        height: Height,
        /// Where its hints would stand.
        offset: u64,
        /// The last height announced.
        stop_height: Height,
    },
}

/// Whose fault an error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HintsErrorKind {
    /// The hints, or what was asked of them.
    Invalid,
    /// The system: input or output failed.
    Io,
}

impl HintsError {
    /// Whether the hints are to blame or the system.
    pub fn kind(&self) -> HintsErrorKind {
        match self {
            // A damaged gzip member shows as one of these; no system call fails so.
            Self::Read { source, .. } if is_about_the_data(source.kind()) => {
                HintsErrorKind::Invalid
            }
            Self::Read { .. } | Self::Write { .. } => HintsErrorKind::Io,
            _ => HintsErrorKind::Invalid,
        }
    }

    /// A fault of the hints that begin at `offset`, in an encoding without bit orders.
    pub(super) const fn block(height: Height, offset: u64, fault: HintsFault) -> Self {
        Self::Block { height, offset, order: None, fault }
    }

    /// The header is wrong: `found` stands at `offset`.
    pub(super) fn header(
        format: &'static str,
        offset: u64,
        found: &[u8],
        expected: &'static str,
    ) -> Self {
        let digits: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
        let found = if digits.is_empty() { "nothing".to_owned() } else { digits };
        Self::Header { format, offset, found, expected }
    }
}

const fn is_about_the_data(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof
    )
}

fn reading(order: &Option<BitOrder>) -> String {
    order.map_or_else(String::new, |order| format!(" (read {order})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_data_are_invalid_and_what_the_system_says_is_not() {
        use io::ErrorKind::{InvalidData, InvalidInput, PermissionDenied, TimedOut, UnexpectedEof};
        let read =
            |kind: io::ErrorKind| HintsError::Read { height: 1, offset: 2, source: kind.into() };
        for kind in [InvalidData, InvalidInput, UnexpectedEof] {
            assert_eq!(read(kind).kind(), HintsErrorKind::Invalid, "{kind}");
        }
        for kind in [PermissionDenied, TimedOut] {
            assert_eq!(read(kind).kind(), HintsErrorKind::Io, "{kind}");
        }
        // Whatever a system says of what it was given to write, the hints are not to blame.
        let write = HintsError::Write { height: 1, offset: 2, source: InvalidData.into() };
        assert_eq!(write.kind(), HintsErrorKind::Io);
        assert_eq!(HintsError::block(1, 2, HintsFault::Genesis).kind(), HintsErrorKind::Invalid);
    }

    #[test]
    fn a_block_is_named_with_the_order_that_it_was_read_in() {
        let read_in = |order| {
            HintsError::Block { height: 7, offset: 9, order, fault: HintsFault::Genesis }
                .to_string()
        };
        let begin = "the hints of height 7 at byte 9 are invalid";
        assert!(read_in(None).starts_with(&format!("{begin}: ")), "{}", read_in(None));
        for order in [BitOrder::MsbFirst, BitOrder::LsbFirst] {
            let said = read_in(Some(order));
            assert!(said.starts_with(&format!("{begin} (read {order}): ")), "{said}");
        }
    }
}
