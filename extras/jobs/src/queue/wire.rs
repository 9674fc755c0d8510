//! What all messages and objects have in common: what they begin with, and [`ObjectRef`].
//!
//! Integers are little-endian, hashes in internal order. Everything is under one version, which is raised whenever a form
//! or its meaning changes. A digest is BLAKE3 with 32 bytes. An object is a file or key `RUN/DIGEST`; messages name it by
//! its digest (32) and length (8), at most 2^30. What is only read in parts is named by the BLAKE3 of `APUSPART` and of
//! the parts' digests, zeros for an empty part. A text is its length (4), at most 4,000, and UTF-8 without control
//! characters but line feeds.

use crate::job::{JobKey, JobStep};
use apus_chain::{HeightRange, Reader, write_compact_size};

/// Version of all forms that are sent, and of what they hold: partial results and runs have none of their own.
pub const WIRE_VERSION: u32 = 10;

/// No object is longer. A segment's runs are as long as its blocks at most, with what belongs to each coin.
pub(super) const OBJECT_BYTES_MAX: u64 = 1 << 30;

/// Before the digests of parts, so that no object is taken for another one.
const PARTS_MAGIC: &[u8; 8] = b"APUSPART";

/// No text is longer.
pub(super) const TEXT_BYTES_MAX: usize = 4000;

/// Why bytes are not the message or object that they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It begins otherwise, ends too early or too late, or holds what cannot be.
    #[error("{what} is damaged, or comes from another program")]
    Damaged {
        /// What it should be.
        what: &'static str,
    },
    /// Another version.
    #[error(
        "{what} is of version {found}, and this program speaks version {WIRE_VERSION}: run the same version of \
         the program on all machines"
    )]
    Version {
        /// What it is.
        what: &'static str,
        /// Its version.
        found: u32,
    },
    /// It is about another run.
    #[error(
        "{what} is for run {found}, not for run {wanted}: another chain, another stop block, other hints, other \
         segments or another secret"
    )]
    OtherRun {
        /// What it is.
        what: &'static str,
        /// Whose it is.
        found: super::RunId,
        /// Whose it should be.
        wanted: super::RunId,
    },
    /// It is about other heights, or comes of another input.
    #[error("{what} is not for these blocks, or not of the input that they were to be done with")]
    OtherJob {
        /// What it is.
        what: &'static str,
    },
    /// A run that this program cannot help with.
    #[error("{0}")]
    Unfit(String),
}

/// An object by its digest.
///
/// [BLAKE3](https://github.com/BLAKE3-team/BLAKE3-specs), since this is what a worker computes most of beside its own
/// work: all lanes of a processor share one message, so it is twice as fast as SHA-256 by instructions for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// BLAKE3 of its bytes, which is its name; of one that is only read in parts, of the digests of its parts.
    pub digest: [u8; 32],
    /// How many there are.
    pub bytes: u64,
}

impl ObjectRef {
    /// The name of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self { digest: digest(bytes), bytes: bytes.len() as u64 }
    }

    /// The name of so many bytes that are only read in parts, each under its own digest: that of these digests, so that
    /// nothing is hashed twice.
    pub(crate) fn of_parts(digests: impl Iterator<Item = [u8; 32]>, bytes: u64) -> Self {
        let all: Vec<u8> = PARTS_MAGIC.iter().copied().chain(digests.flatten()).collect();
        Self { digest: digest(&all), bytes }
    }

    /// Its name as people and stores have it: 64 hexadecimal digits.
    pub fn name(&self) -> String {
        self.digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether these are its bytes.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        *self == Self::of(bytes)
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.digest);
        out.extend_from_slice(&self.bytes.to_le_bytes());
    }

    /// One that memory is taken for.
    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let of = Self { digest: *reader.array().ok()?, bytes: reader.u64().ok()? };
        (of.bytes <= OBJECT_BYTES_MAX).then_some(of)
    }
}

/// What an object, or a part of one, is known by.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

/// Some bytes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectPart {
    /// The object.
    pub object: ObjectRef,
    /// Where they begin.
    pub offset: u64,
    /// How many they are.
    pub bytes: u64,
}

/// The beginning of a message or an object.
pub(super) fn begin(magic: &[u8; 8]) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend_from_slice(&WIRE_VERSION.to_le_bytes());
    out
}

/// What follows the beginning.
pub(super) fn open<'a>(
    bytes: &'a [u8],
    magic: &[u8; 8],
    what: &'static str,
) -> Result<Reader<'a>, WireError> {
    let mut reader = Reader::new(bytes);
    let damaged = WireError::Damaged { what };
    if reader.array::<8>().ok() != Some(magic) {
        return Err(damaged);
    }
    match reader.u32() {
        Ok(WIRE_VERSION) => Ok(reader),
        Ok(found) => Err(WireError::Version { what, found }),
        Err(_) => Err(damaged),
    }
}

pub(super) fn write_range(range: HeightRange, out: &mut Vec<u8>) {
    out.extend_from_slice(&range.start.to_le_bytes());
    out.extend_from_slice(&range.end.to_le_bytes());
}

pub(super) fn write_key(key: JobKey, out: &mut Vec<u8>) {
    out.push(key.step.code());
    write_range(key.range, out);
}

pub(super) fn read_key(reader: &mut Reader<'_>) -> Option<JobKey> {
    Some(JobKey { step: JobStep::from_code(reader.u8().ok()?)?, range: read_range(reader)? })
}

/// A range that is not empty.
pub(super) fn read_range(reader: &mut Reader<'_>) -> Option<HeightRange> {
    let (start, end) = (reader.u32().ok()?, reader.u32().ok()?);
    (start < end).then(|| HeightRange::new(start, end))
}

/// Text that people read, cut where it is too long.
pub(super) fn write_text(text: &str, out: &mut Vec<u8>) {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn read_text(reader: &mut Reader<'_>) -> Option<String> {
    let length = reader.u32().ok()? as usize;
    let bytes = (length <= TEXT_BYTES_MAX).then(|| reader.take(length).ok())??;
    let text = std::str::from_utf8(bytes).ok()?;
    // It is shown on terminals.
    text.chars().all(|c| c == '\n' || !c.is_control()).then(|| text.to_owned())
}

/// What may begin as something that some heights are told, with any kind and any bytes behind it.
#[cfg(test)]
pub(super) fn any_told(
    magic: &'static [u8; 8],
) -> impl proptest::strategy::Strategy<Value = (HeightRange, Vec<u8>)> {
    use proptest::prelude::*;
    (0u8..3, prop::collection::vec(any::<u8>(), 0..200)).prop_map(move |(kind, any)| {
        let (range, mut bytes) = (HeightRange::new(1, 5), begin(magic));
        write_range(range, &mut bytes);
        bytes.push(kind);
        bytes.extend(any);
        (range, bytes)
    })
}

/// So many that are said to follow. Memory is taken for those that do.
pub(super) fn many<T>(
    reader: &mut Reader<'_>,
    mut one: impl FnMut(&mut Reader<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let count = reader.compact_size().ok()?;
    (0..count).map(|_| one(reader)).collect()
}

pub(super) fn write_objects(objects: &[ObjectRef], out: &mut Vec<u8>) {
    write_compact_size(out, objects.len() as u64);
    objects.iter().for_each(|object| object.write(out));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_the_name_of_its_bytes_alone() {
        let bytes: Vec<u8> = (0..200_001u32).map(|at| (at ^ at >> 9) as u8).collect();
        for length in [0, 1, 1_024, 1_025, 65_536, 65_537, 200_000] {
            let some = &bytes[..length];
            let of = ObjectRef::of(some);
            assert_eq!(of.bytes, length as u64);
            assert!(of.is_of(some) && !of.is_of(&bytes[..=length]));
            for at in [0, length / 2, length.saturating_sub(1)] {
                let mut other = some.to_vec();
                let Some(byte) = other.get_mut(at) else { continue };
                *byte ^= 1;
                assert!(!of.is_of(&other), "{length}, {at}");
            }
        }
    }

    /// By what the authors of BLAKE3 say of it.
    #[test]
    fn names_are_blake3() {
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(ObjectRef::of(b"").name(), empty);
        let parts = [b"some".as_slice(), b"", b"bytes"];
        let digests = parts.map(|part| *blake3::hash(part).as_bytes());
        let named = [b"APUSPART".as_slice(), &digests.concat()].concat();
        let of = ObjectRef::of_parts(digests.into_iter(), 9);
        assert_eq!(of, ObjectRef { digest: *blake3::hash(&named).as_bytes(), bytes: 9 });
    }
}
