//! The payload of a job whose pass is defined outside this crate: the heights of the segment and the bytes of that
//! pass.

use super::wire::{WireError, begin, open, read_range, write_range};
use apus_chain::HeightRange;

/// First bytes of a payload.
const MAGIC: &[u8; 8] = b"APUSTOLD";

const WHAT: &str = "the payload of the segment";

/// Encodes a payload: magic and version, the heights, and the bytes of the pass.
pub(crate) fn write(range: HeightRange, payload: &[u8]) -> Vec<u8> {
    let mut out = begin(MAGIC);
    write_range(range, &mut out);
    out.extend_from_slice(payload);
    out
}

/// Decodes a payload, which must be for `range`.
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
    use super::super::wire::any_payload;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn payloads_round_trip(start in 0u32..9, payload: Vec<u8>) {
            let range = HeightRange::new(start, start + 5);
            let bytes = write(range, &payload);
            prop_assert_eq!(read(&bytes, range), Ok(&payload[..]));
            let other = HeightRange::new(start, start + 6);
            prop_assert_eq!(read(&bytes, other), Err(WireError::OtherJob { what: WHAT }));
            for length in 0..bytes.len() - payload.len() {
                prop_assert!(read(&bytes[..length], range).is_err(), "{}", length);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused((range, bytes) in any_payload(MAGIC)) {
            if let Ok(payload) = read(&bytes, range) {
                prop_assert_eq!(write(range, payload), bytes);
            }
        }
    }
}
