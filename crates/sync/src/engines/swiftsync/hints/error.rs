//! [`HintsError`] and [`HintsFault`]: why hints could not be read or written, and where.
//!
//! A [`HintsFault`] is a fault in one block's hints; a [`HintsError`] adds the height and the offset. Every
//! message says what to do or what was expected; no error is swallowed.

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
        /// The height to be read.
        height: Height,
        /// Offset in bytes.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// Writing failed.
    #[error("cannot write the hints at byte {offset}, height {height}: {source}")]
    Write {
        /// The height to be written.
        height: Height,
        /// Offset in bytes.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not begin as its encoding requires.
    #[error(
        "not a {format} file: found {found} at byte {offset}, expected {expected}. The file may have another \
         encoding: see `apus hints info --help`"
    )]
    Header {
        /// The requested encoding.
        format: &'static str,
        /// Offset in bytes.
        offset: u64,
        /// The bytes found, in hexadecimal.
        found: String,
        /// What was expected.
        expected: &'static str,
    },
    /// The hints of one block break a rule.
    #[error("the hints of height {height} at byte {offset} are invalid{}: {fault}", reading(.order))]
    Block {
        /// The block's height.
        height: Height,
        /// Offset of its hints.
        offset: u64,
        /// The bit order used to read them, if the encoding has one.
        order: Option<BitOrder>,
        /// The fault.
        fault: HintsFault,
    },
    /// The file continues after its last block.
    #[error(
        "the file continues at byte {offset} after the hints of the last height, {height}: the file is damaged, or \
         its header names another height"
    )]
    Trailing {
        /// The last height.
        height: Height,
        /// Offset of the surplus.
        offset: u64,
    },
    /// Every block can be read in both bit orders, with different meanings.
    #[error(
        "the bit order is ambiguous: both fit every block up to the last, and differ at height {height}, byte \
         {offset}. Choose msb for BIP-456 and hintsfile 0.1, or lsb for hintsfile 0.2"
    )]
    AmbiguousBitOrder {
        /// The first height whose hints have two meanings.
        height: Height,
        /// Offset of its hints.
        offset: u64,
    },
    /// Some blocks are only valid in one bit order, others only in the other.
    #[error(
        "the file mixes bit orders, so it is damaged: the hints of height {first} at byte {first_offset} are valid \
         only {first_order}, the hints of height {second} at byte {second_offset} only {second_order}"
    )]
    MixedBitOrders {
        /// The first height that determines the order.
        first: Height,
        /// Offset of its hints.
        first_offset: u64,
        /// The order it determines.
        first_order: BitOrder,
        /// The height that contradicts it.
        second: Height,
        /// Offset of its hints.
        second_offset: u64,
        /// The order it requires.
        second_order: BitOrder,
    },
    /// A zero count with data after it (bitmap encoding).
    #[error(
        "the bitmap ends at height {height}, byte {offset} (a count of 0), but more data follows: a block of \
         exactly 65536 outputs wraps its 16-bit count to 0, or the file has surplus bytes. Export the hints again \
         in another encoding"
    )]
    ZeroCount {
        /// The height of the count.
        height: Height,
        /// Offset of the count.
        offset: u64,
    },
    /// The file does not cover the requested heights.
    #[error("heights {wanted} were requested, but the hints cover heights 0 to {stop_height}")]
    OutOfRange {
        /// The requested heights.
        wanted: HeightRange,
        /// The last height covered.
        stop_height: Height,
    },
    /// The file changed after it was checked when opened.
    #[error(
        "the hints changed since they were opened: height {height}, byte {offset}: {what}. Stop the program that \
         writes to the file, then rerun the command"
    )]
    Changed {
        /// The height being read.
        height: Height,
        /// Offset in bytes.
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
        /// The next height to write.
        height: Height,
        /// Offset of its hints.
        offset: u64,
        /// The announced last height.
        stop_height: Height,
    },
}

/// What an error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HintsErrorKind {
    /// The hints, or the request.
    Invalid,
    /// The system: input or output failed.
    Io,
}

impl HintsError {
    /// Whether the error is about the hints or the system.
    pub fn kind(&self) -> HintsErrorKind {
        match self {
            // A damaged gzip member shows as one of these kinds; system calls never fail with them.
            Self::Read { source, .. } if is_about_the_data(source.kind()) => {
                HintsErrorKind::Invalid
            }
            Self::Read { .. } | Self::Write { .. } => HintsErrorKind::Io,
            _ => HintsErrorKind::Invalid,
        }
    }

    /// A fault of the hints at `offset`, in an encoding without bit orders.
    pub(super) const fn block(height: Height, offset: u64, fault: HintsFault) -> Self {
        Self::Block { height, offset, order: None, fault }
    }

    /// The error for a wrong header: `found` is at `offset`.
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
    fn damaged_data_are_invalid_and_system_errors_are_not() {
        use io::ErrorKind::{InvalidData, InvalidInput, PermissionDenied, TimedOut, UnexpectedEof};
        let read =
            |kind: io::ErrorKind| HintsError::Read { height: 1, offset: 2, source: kind.into() };
        for kind in [InvalidData, InvalidInput, UnexpectedEof] {
            assert_eq!(read(kind).kind(), HintsErrorKind::Invalid, "{kind}");
        }
        for kind in [PermissionDenied, TimedOut] {
            assert_eq!(read(kind).kind(), HintsErrorKind::Io, "{kind}");
        }
        // A write error is never the fault of the hints.
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
            let text = read_in(Some(order));
            assert!(text.starts_with(&format!("{begin} (read {order}): ")), "{text}");
        }
    }
}
