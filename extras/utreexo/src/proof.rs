//! [`Proof`]: a proof that a batch of leaves is in a forest, and its encoding.
//!
//! The bytes are the accumulator's part of what utreexod sends with a block: a CompactSize with the number of
//! targets, and each target as a CompactSize; a CompactSize with the number of hashes, and 32 bytes for each
//! (BIP-183, draft). Each proof has exactly one encoding.

use crate::NodeHash;
use apus_chain::{ReadError, Reader, write_compact_size};

/// Why bytes are not a proof.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofBytesError {
    /// A number or a hash could not be read.
    #[error("invalid proof: {0}")]
    Read(#[from] ReadError),
    /// A count greater than the bytes after it can hold.
    #[error("the proof claims {count} {what} at byte {offset}, but only {remaining} bytes follow")]
    Count {
        /// Offset of the count.
        offset: usize,
        /// What it counts: targets or hashes.
        what: &'static str,
        /// The count.
        count: u64,
        /// Bytes after it.
        remaining: usize,
    },
}

/// A proof that leaves are in a forest, checked against its roots by [`Roots::verify`](crate::Roots::verify).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Proof {
    /// Positions of the leaves, in the same order as the leaves are given: for a block, the order of its
    /// inputs. Numbers count [`PROOF_ROWS`](crate::PROOF_ROWS) rows. The sibling of a deleted tree moves up
    /// to its parent's place, so a leaf may be higher than where it was added.
    pub targets: Vec<u64>,
    /// The other nodes needed to compute the roots, by ascending position; none of them is itself computed
    /// along the way.
    pub hashes: Vec<NodeHash>,
}

/// The most leaves that a block can delete: inputs of 41 bytes in one million non-witness bytes (utreexod
/// `wire/utreexoblocksummary.go`, `MaxPossibleInputsPerBlock`).
pub const TARGETS_MAX: usize = 24_386;

impl Proof {
    /// Appends the encoded proof.
    pub fn write(&self, out: &mut Vec<u8>) {
        write_compact_size(out, self.targets.len() as u64);
        self.targets.iter().for_each(|target| write_compact_size(out, *target));
        write_compact_size(out, self.hashes.len() as u64);
        self.hashes.iter().for_each(|hash| out.extend_from_slice(&hash.0));
    }

    /// Reads the proof that begins here, as [`write`](Self::write) writes it, of at most `targets_max` leaves: a
    /// target takes a byte, but eight in memory. Does not check whether it proves anything.
    pub fn read(reader: &mut Reader<'_>, targets_max: usize) -> Result<Self, ProofBytesError> {
        let offset = reader.position();
        let count = read_count(reader, "targets", 1)?;
        if count > targets_max {
            let (value, limit) = (count as u64, targets_max as u64);
            return Err(ReadError::TooLarge { offset, value, limit }.into());
        }
        let mut targets = Vec::with_capacity(count);
        for _ in 0..count {
            targets.push(reader.compact_u64()?);
        }
        let count = read_count(reader, "hashes", 32)?;
        let (hashes, _) = reader.take(count * 32)?.as_chunks();
        Ok(Self { targets, hashes: hashes.iter().copied().map(NodeHash).collect() })
    }
}

/// Reads the number of items that follow, each of at least `bytes_min` bytes.
fn read_count(
    reader: &mut Reader<'_>,
    what: &'static str,
    bytes_min: usize,
) -> Result<usize, ProofBytesError> {
    let offset = reader.position();
    let count = reader.compact_u64()?;
    let remaining = reader.remaining();
    match usize::try_from(count) {
        Ok(fits) if fits <= remaining / bytes_min => Ok(fits),
        _ => Err(ProofBytesError::Count { offset, what, count, remaining }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Result<(Proof, usize), ProofBytesError> {
        let mut reader = Reader::new(bytes);
        Ok((Proof::read(&mut reader, TARGETS_MAX)?, reader.position()))
    }

    fn proof() -> impl Strategy<Value = Proof> {
        let target = (0u32..64, any::<u64>()).prop_map(|(shift, number)| number >> shift);
        let hashes = prop::collection::vec(any::<[u8; 32]>().prop_map(NodeHash), 0..6);
        (prop::collection::vec(target, 0..300), hashes)
            .prop_map(|(targets, hashes)| Proof { targets, hashes })
    }

    proptest! {
        #[test]
        fn proofs_round_trip(proof in proof(), behind: [u8; 3], cut: prop::sample::Index) {
            let mut bytes = Vec::new();
            proof.write(&mut bytes);
            let length = bytes.len();
            bytes.extend(behind);
            prop_assert_eq!(read(&bytes), Ok((proof, length)));
            prop_assert!(read(&bytes[..cut.index(length)]).is_err());
        }

        /// The count in front is small, so that some of the inputs are proofs.
        #[test]
        fn any_bytes_are_the_only_form_of_a_proof_or_invalid(
            count in 0u8..4,
            bytes in prop::collection::vec(prop_oneof![0u8..4, 0xfcu8..=0xff, any::<u8>()], 0..150),
        ) {
            let bytes = [&[count], &bytes[..]].concat();
            if let Ok((proof, length)) = read(&bytes) {
                let mut again = Vec::new();
                proof.write(&mut again);
                prop_assert_eq!(&again, &bytes[..length]);
            }
        }
    }

    #[test]
    fn the_number_of_targets_is_limited() {
        let bytes = [3, 0, 0, 0, 0];
        let read = |most: usize| Proof::read(&mut Reader::new(&bytes), most);
        assert_eq!(read(3).unwrap().targets, [0; 3]);
        let refused = ReadError::TooLarge { offset: 0, value: 3, limit: 2 };
        assert_eq!(read(2), Err(ProofBytesError::Read(refused)));
    }

    #[test]
    fn counts_are_checked_against_the_bytes() {
        let claims = |what, offset, count, remaining| {
            Err(ProofBytesError::Count { offset, what, count, remaining })
        };
        let huge = [0xff, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0];
        assert_eq!(read(&huge), claims("targets", 0, u64::MAX, 2));
        assert_eq!(read(&[3, 0, 0]), claims("targets", 0, 3, 2));
        assert_eq!(read(&[&[1, 5, 1][..], &[7; 31]].concat()), claims("hashes", 2, 1, 31));
        assert!(read(&[&[1, 5, 1][..], &[7; 32]].concat()).is_ok());
        let long = Err(ProofBytesError::Read(ReadError::NonCanonical { offset: 1 }));
        assert_eq!(read(&[1, 0xfd, 5, 0, 0]), long);
        let end = Err(ProofBytesError::Read(ReadError::End { offset: 0, needed: 1 }));
        assert_eq!(read(&[]), end);
    }
}
