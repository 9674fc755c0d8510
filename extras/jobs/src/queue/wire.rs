//! Common parts of all messages and objects: their header, and [`ObjectRef`].
//!
//! Integers are little-endian, hashes in internal order. One version covers all formats and is raised whenever a format
//! or its meaning changes. A digest is BLAKE3 with 32 bytes. An object is a file or key `RUN/DIGEST`; messages name it
//! by its digest (32) and length (8), at most 2^30. An object that is only read in parts is named by the BLAKE3 of
//! `APUSPART` and the digests of its parts, zeros for an empty part. A text is its length (4), at most 4,000, and UTF-8
//! without control characters except line feeds.

use crate::job::{JobKey, JobStep};
use apus_chain::{HeightRange, Reader, write_compact_size};

/// Version of all formats that machines send, including the partial results and runs inside, which have no version of
/// their own.
pub const WIRE_VERSION: u32 = 11;

/// Maximum length of an object. A segment's runs are at most as long as its blocks plus the fields of each coin.
pub(super) const OBJECT_BYTES_MAX: u64 = 1 << 30;

/// Prefix of the digests of parts, so that no name collides with that of a whole object.
const PARTS_MAGIC: &[u8; 8] = b"APUSPART";

/// Maximum length of a text.
pub(super) const TEXT_BYTES_MAX: usize = 4000;

/// Failure to decode a message or an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Wrong first bytes, wrong length, or an impossible value.
    #[error("{what} is damaged, or comes from another program")]
    Damaged {
        /// The expected message or object.
        what: &'static str,
    },
    /// It has another version of the formats.
    #[error(
        "{what} has version {found}, but this program speaks version {WIRE_VERSION}. Run the same version of Apus \
         on all machines"
    )]
    Version {
        /// The kind of message or object.
        what: &'static str,
        /// The version found.
        found: u32,
    },
    /// It belongs to another run.
    #[error(
        "{what} is for run {found}, not for run {wanted}: the chain, stop block, hints, segments or secret differ"
    )]
    OtherRun {
        /// The kind of message or object.
        what: &'static str,
        /// The run that it belongs to.
        found: super::RunId,
        /// The expected run.
        wanted: super::RunId,
    },
    /// It is for other heights or another payload.
    #[error("{what} is for other blocks, or was computed from another payload")]
    OtherJob {
        /// The kind of message or object.
        what: &'static str,
    },
    /// A run that this program cannot take part in.
    #[error("{0}")]
    Unfit(String),
}

/// The digest and length of an object.
///
/// The digest is [BLAKE3](https://github.com/BLAKE3-team/BLAKE3-specs), because hashing is the largest cost of a worker
/// besides its jobs: BLAKE3 uses all SIMD lanes for one message, twice as fast as SHA-256 with SHA instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// BLAKE3 of its bytes, or of the digests of its parts if it is only read in parts. It is the object's name.
    pub digest: [u8; 32],
    /// Its length in bytes.
    pub bytes: u64,
}

impl ObjectRef {
    /// Names an object with these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self { digest: digest(bytes), bytes: bytes.len() as u64 }
    }

    /// Names an object of `bytes` bytes that is only read in parts, by the digests of its parts, so that nothing is
    /// hashed twice.
    pub(crate) fn of_parts(digests: impl Iterator<Item = [u8; 32]>, bytes: u64) -> Self {
        let all: Vec<u8> = PARTS_MAGIC.iter().copied().chain(digests.flatten()).collect();
        Self { digest: digest(&all), bytes }
    }

    /// Its name in stores and in messages to the user: 64 hexadecimal digits.
    pub fn name(&self) -> String {
        self.digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether it names these bytes.
    pub fn is_of(&self, bytes: &[u8]) -> bool {
        *self == Self::of(bytes)
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.digest);
        out.extend_from_slice(&self.bytes.to_le_bytes());
    }

    /// Refuses a length above the maximum, since the reader allocates that much.
    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let of = Self { digest: *reader.array().ok()?, bytes: reader.u64().ok()? };
        (of.bytes <= OBJECT_BYTES_MAX).then_some(of)
    }
}

/// The digest of an object or of a part of one.
pub(crate) fn digest(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

/// A byte range of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectPart {
    /// The object.
    pub object: ObjectRef,
    /// Offset of its first byte.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// Starts a message or an object with its magic and the version.
pub(super) fn begin(magic: &[u8; 8]) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend_from_slice(&WIRE_VERSION.to_le_bytes());
    out
}

/// Checks the magic and the version, and returns a reader of the rest.
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

/// Reads a range and refuses an empty one.
pub(super) fn read_range(reader: &mut Reader<'_>) -> Option<HeightRange> {
    let (start, end) = (reader.u32().ok()?, reader.u32().ok()?);
    (start < end).then(|| HeightRange::new(start, end))
}

/// Writes a text, truncated to the maximum length.
pub(super) fn write_text(text: &str, out: &mut Vec<u8>) {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

pub(super) fn read_text(reader: &mut Reader<'_>) -> Option<String> {
    let length = reader.u32().ok()? as usize;
    let bytes = (length <= TEXT_BYTES_MAX).then(|| reader.take(length).ok())??;
    let text = std::str::from_utf8(bytes).ok()?;
    // Terminals show the text, so control characters could be an attack.
    text.chars().all(|c| c == '\n' || !c.is_control()).then(|| text.to_owned())
}

/// Payloads with a valid header of any kind, followed by arbitrary bytes.
#[cfg(test)]
pub(super) fn any_payload(
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

/// Reads a CompactSize and that many items. Allocates memory for the items actually read, not for the claimed number.
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
    fn an_object_is_named_by_its_bytes_alone() {
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

    /// The test vector of BLAKE3's authors.
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
