//! What a machine is told of a range that it is to validate by proofs: the roots around it, where they are known.
//!
//! It holds them against those that its own proofs tell, so that a machine with files of another forest says so before it
//! has gone over the blocks. What they are good for the blocks themselves show.
//!
//! The head of hints; then 0, or 1 and the roots before the first block and after the last, each behind its length
//! (CompactSize).

use super::wire::{WireError, begin, open, read_range, write_range};
use apus_chain::{HeightRange, Reader, write_compact_size};
use apus_utreexo::Roots;

/// First bytes.
const MAGIC: &[u8; 8] = b"APUSTOLD";

const WHAT: &str = "what the range is told";

/// The byte form.
pub(crate) fn write(range: HeightRange, roots: Option<(&Roots, &Roots)>) -> Vec<u8> {
    let mut out = begin(MAGIC);
    write_range(range, &mut out);
    out.push(u8::from(roots.is_some()));
    for roots in roots.into_iter().flat_map(|(before, after)| [before, after]) {
        let mut bytes = Vec::new();
        roots.write(&mut bytes);
        write_compact_size(&mut out, bytes.len() as u64);
        out.extend_from_slice(&bytes);
    }
    out
}

/// Reads the byte form, which must be of `range`.
pub(crate) fn read(bytes: &[u8], range: HeightRange) -> Result<Option<(Roots, Roots)>, WireError> {
    let damaged = || WireError::Damaged { what: WHAT };
    let mut reader = open(bytes, MAGIC, WHAT)?;
    if read_range(&mut reader).ok_or_else(damaged)? != range {
        return Err(WireError::OtherJob { what: WHAT });
    }
    let told = match reader.u8() {
        Ok(0) => None,
        Ok(1) => {
            let roots = (read_roots(&mut reader), read_roots(&mut reader));
            Some((roots.0.ok_or_else(damaged)?, roots.1.ok_or_else(damaged)?))
        }
        _ => return Err(damaged()),
    };
    if reader.remaining() == 0 { Ok(told) } else { Err(damaged()) }
}

fn read_roots(reader: &mut Reader<'_>) -> Option<Roots> {
    let length = reader.compact_size().ok()?;
    Roots::read(reader.take(length).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::super::wire::any_told;
    use super::*;
    use apus_utreexo::{Fragment, NodeHash};
    use proptest::prelude::*;

    fn roots(leaves: u8) -> Roots {
        let mut fragment = Fragment::new(0).unwrap();
        (0..leaves).for_each(|leaf| fragment.push(NodeHash([leaf; 32])).unwrap());
        fragment.roots().unwrap()
    }

    proptest! {
        #[test]
        fn roots_are_read_back(start in 0u32..9, before in 0u8..20, after in 0u8..20, told: bool) {
            let range = HeightRange::new(start, start + 5);
            let (before, after) = (roots(before), roots(after));
            let bytes = write(range, told.then_some((&before, &after)));
            prop_assert_eq!(read(&bytes, range), Ok(told.then_some((before, after))));
            let other = HeightRange::new(start, start + 6);
            prop_assert_eq!(read(&bytes, other), Err(WireError::OtherJob { what: WHAT }));
            for length in 0..bytes.len() {
                prop_assert!(read(&bytes[..length], range).is_err(), "{}", length);
            }
            prop_assert!(read(&[&bytes[..], &[0]].concat(), range).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused((range, bytes) in any_told(MAGIC)) {
            if let Ok(told) = read(&bytes, range) {
                let told = told.as_ref().map(|(before, after)| (before, after));
                prop_assert_eq!(write(range, told), bytes);
            }
        }
    }
}
