//! What a machine is told of a segment of a pass that is not known here: which segment it is of, and what that pass says.

use super::wire::{WireError, begin, open, read_range, write_range};
use apus_chain::HeightRange;

/// First bytes.
const MAGIC: &[u8; 8] = b"APUSTOLD";

const WHAT: &str = "what the range is told";

/// The byte form: first bytes and version, the heights, and what the pass says.
pub(crate) fn write(range: HeightRange, told: &[u8]) -> Vec<u8> {
    let mut out = begin(MAGIC);
    write_range(range, &mut out);
    out.extend_from_slice(told);
    out
}

/// Reads the byte form, which must be of `range`.
pub(crate) fn read(bytes: &[u8], range: HeightRange) -> Result<&[u8], WireError> {
    let damaged = || WireError::Damaged { what: WHAT };
    let mut reader = open(bytes, MAGIC, WHAT)?;
    if read_range(&mut reader).ok_or_else(damaged)? != range {
        return Err(WireError::OtherJob { what: WHAT });
    }
    reader.take(reader.remaining()).map_err(|_| damaged())
}

#[cfg(test)]
mod tests {
    use super::super::wire::any_told;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_told_is_read_back(start in 0u32..9, told: Vec<u8>) {
            let range = HeightRange::new(start, start + 5);
            let bytes = write(range, &told);
            prop_assert_eq!(read(&bytes, range), Ok(&told[..]));
            let other = HeightRange::new(start, start + 6);
            prop_assert_eq!(read(&bytes, other), Err(WireError::OtherJob { what: WHAT }));
            for length in 0..bytes.len() - told.len() {
                prop_assert!(read(&bytes[..length], range).is_err(), "{}", length);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused((range, bytes) in any_told(MAGIC)) {
            if let Ok(told) = read(&bytes, range) {
                prop_assert_eq!(write(range, told), bytes);
            }
        }
    }
}
