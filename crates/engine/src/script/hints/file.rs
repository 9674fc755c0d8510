//! The file of signature hints: a [`HintTable`](super::HintTable) for each block that has one.
//!
//! `docs/formats/sighints.md` is its description. Records come first, in any order, and the index
//! after them, so that a writer only appends: it never copies or changes what it has written. Each
//! record has a checksum, so the records of a writer that was killed can be found without an index.

mod reader;
mod writer;

pub use reader::SignatureHintsReader;
pub use writer::{SignatureHintsSummary, SignatureHintsWriter};

use apus_chain::{BlockHash, Height, Network, Reader};
use std::io;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

/// The first bytes of a file.
const MAGIC: &[u8; 8] = b"APUSSIGH";

/// The last bytes of a complete file.
const END_MAGIC: &[u8; 8] = b"APUSSIGE";

const VERSION: u32 = 1;

/// Bytes before the records: magic, version, magic of the network.
const HEAD: usize = 16;

/// Bytes of a record before its table.
const RECORD_HEAD: usize = 16;

/// The longest record: a table of 2^21 keys fits.
const RECORD_MAX: usize = 1 << 19;

/// Bytes of an index entry.
const ENTRY: usize = 8;

/// Bits of an index entry for the record's offset.
const OFFSET_BITS: u32 = 40;

/// Bytes after the index.
const FOOT: usize = 72;

/// The number of heights that a file can cover. Bounds the memory of a writer, 16 bytes a height,
/// whatever heights a draft claims.
const HEIGHTS_MAX: Height = 1 << 23;

/// Why a file of signature hints could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SignatureHintsError {
    /// The system returned an error.
    #[error("cannot {action} {}: {source}. {}", .path.display(), remedy(action))]
    Io {
        /// What failed: "open", "read", "write" or "rename".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file has other contents.
    #[error("{} is not a file of signature hints: name another file", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Another version of Apus wrote it.
    #[error(
        "{} has version {found} of the format, but this version of Apus knows only version {VERSION}: write the hints \
         again, or use the version of Apus that wrote them",
        .path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The hints are of another network.
    #[error(
        "the signature hints in {} are of {found}, not of the network {wanted}: name another file",
        .path.display()
    )]
    OtherNetwork {
        /// The file.
        path: PathBuf,
        /// Its network, or the bytes that name it.
        found: String,
        /// The requested network.
        wanted: Network,
    },
    /// The file is cut off or changed.
    #[error(
        "{} is damaged at byte {offset}: {what}. Copy it again, or run without it and write the hints again",
        .path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// Another process writes it.
    #[error("another process is writing {}: wait for it, or name another file", .path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The height is above the last one that a file can cover.
    #[error("{} cannot cover height {height}: signature hints end below height {HEIGHTS_MAX}", .path.display())]
    Height {
        /// The file.
        path: PathBuf,
        /// The height.
        height: Height,
    },
}

fn remedy(action: &str) -> &'static str {
    match action {
        "open" => "Check its name, and who may use it",
        "rename" => "Check the folder, then run again: the hints are kept",
        _ => "Check the disk, and how much of it is free",
    }
}

impl SignatureHintsError {
    /// Returns a function that adds what failed to the system's error.
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}

/// Returns the bytes before the records.
fn head_bytes(network: Network) -> [u8; HEAD] {
    let [a, b, c, d] = VERSION.to_le_bytes();
    let [e, f, g, h] = network.magic();
    let [m, n, o, p, q, r, s, t] = *MAGIC;
    [m, n, o, p, q, r, s, t, a, b, c, d, e, f, g, h]
}

/// Checks the first [`HEAD`] bytes of a file.
fn check_head(bytes: &[u8], path: &Path, wanted: Network) -> Result<(), SignatureHintsError> {
    let path = || path.to_owned();
    let fields = |bytes: &[u8]| {
        let mut reader = Reader::new(bytes.strip_prefix(MAGIC)?);
        Some((reader.u32().ok()?, *reader.array().ok()?))
    };
    let Some((version, magic)) = fields(bytes) else {
        return Err(SignatureHintsError::Foreign { path: path() });
    };
    if version != VERSION {
        return Err(SignatureHintsError::Version { path: path(), found: version });
    }
    if magic == wanted.magic() {
        return Ok(());
    }
    let known = Network::from_magic(magic);
    let found = match known {
        Some(network) => format!("the network {network}"),
        None => format!("an unknown network (magic {magic:02x?})"),
    };
    Err(SignatureHintsError::OtherNetwork { path: path(), found, wanted })
}

/// The first bytes of a block's hash. They tell the blocks of a height apart.
fn short(hash: &BlockHash) -> [u8; 4] {
    let [a, b, c, d, ..] = hash.0;
    [a, b, c, d]
}

/// The place of a record in the file, as an index entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    offset: u64,
    length: usize,
}

impl Place {
    /// Returns `None` if an entry cannot hold it.
    fn entry(self) -> Option<u64> {
        let fits = self.offset >> OFFSET_BITS == 0 && self.length <= RECORD_MAX;
        fits.then_some((self.length as u64) << OFFSET_BITS | self.offset)
    }

    fn of_entry(entry: u64) -> Self {
        let offset = entry & ((1 << OFFSET_BITS) - 1);
        Self { offset, length: (entry >> OFFSET_BITS) as usize }
    }

    /// Returns whether the record is among the records, which end at `end`.
    fn is_within(self, end: u64) -> bool {
        let lengths = RECORD_HEAD..=RECORD_MAX;
        let whole = self.offset >= HEAD as u64 && lengths.contains(&self.length);
        whole && self.offset + self.length as u64 <= end
    }
}

/// The parts of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record<'a> {
    checksum: u32,
    height: Height,
    block: [u8; 4],
    table: &'a [u8],
}

/// Begins a record, whose table is to follow; [`end_record`] ends it.
fn begin_record(height: Height, hash: &BlockHash) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(&height.to_le_bytes());
    bytes.extend_from_slice(&short(hash));
    bytes.extend_from_slice(&[0; 4]);
    bytes
}

/// Fills in a record's length and checksum; returns the checksum.
fn end_record(record: &mut [u8]) -> u32 {
    let length = record.len().saturating_sub(RECORD_HEAD) as u32;
    if let Some(field) = record.get_mut(12..RECORD_HEAD) {
        field.copy_from_slice(&length.to_le_bytes());
    }
    let Some((field, rest)) = record.split_first_chunk_mut::<4>() else { return 0 };
    let checksum = xxh3_64(rest) as u32;
    *field = checksum.to_le_bytes();
    checksum
}

/// Returns the length of the table that follows a record's head.
fn table_length(head: &[u8; RECORD_HEAD]) -> usize {
    let [.., a, b, c, d] = *head;
    u32::from_le_bytes([a, b, c, d]) as usize
}

impl<'a> Record<'a> {
    /// Reads a record; `None` if its checksum or its length is wrong.
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (head, table) = bytes.split_first_chunk()?;
        let mut reader = Reader::new(head);
        let (checksum, height) = (reader.u32().ok()?, reader.u32().ok()?);
        let block = *reader.array().ok()?;
        let right =
            table_length(head) == table.len() && xxh3_64(bytes.get(4..)?) as u32 == checksum;
        right.then_some(Self { checksum, height, block, table })
    }
}

#[cfg(test)]
mod tests;
