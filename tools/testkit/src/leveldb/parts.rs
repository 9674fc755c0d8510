//! The parts of a database: fields of manifests, logs, tables; [`LevelDbFolder`] contains all of them.

use super::format::{put_prefixed, put_varint};
use super::table::{InternalEntry, SortedTable};
use std::collections::BTreeMap;

/// A field of a record of a manifest (LevelDB `db/version_edit.cc`).
#[derive(Clone, Debug)]
pub(super) enum Field {
    Comparator(Vec<u8>),
    WriteAheadLog(u64),
    Previous(u64),
    Next(u64),
    Sequence(u64),
    Pointer(u64, Vec<u8>),
    Removed { level: u64, number: u64 },
    Added(AddedTable),
    Raw(Vec<u8>),
}

#[derive(Clone, Debug)]
pub(super) struct AddedTable {
    pub(super) level: u64,
    pub(super) number: u64,
    pub(super) length: u64,
    pub(super) smallest: Vec<u8>,
    pub(super) largest: Vec<u8>,
}

impl Field {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let mut numbers = |numbers: &[u64]| numbers.iter().for_each(|it| put_varint(out, *it));
        match self {
            Self::Comparator(_) => numbers(&[1]),
            Self::WriteAheadLog(number) => numbers(&[2, *number]),
            Self::Next(number) => numbers(&[3, *number]),
            Self::Sequence(number) => numbers(&[4, *number]),
            Self::Pointer(level, _) => numbers(&[5, *level]),
            Self::Removed { level, number } => numbers(&[6, *level, *number]),
            Self::Added(it) => numbers(&[7, it.level, it.number, it.length]),
            Self::Previous(number) => numbers(&[9, *number]),
            Self::Raw(bytes) => out.extend_from_slice(bytes),
        }
        match self {
            Self::Comparator(bytes) | Self::Pointer(_, bytes) => put_prefixed(out, bytes),
            Self::Added(AddedTable { smallest, largest, .. }) => {
                put_prefixed(out, smallest);
                put_prefixed(out, largest);
            }
            _ => {}
        }
    }
}

/// A batch of writes.
#[derive(Clone, Debug)]
pub(super) struct WriteBatch {
    pub(super) first: u64,
    pub(super) count: u32,
    pub(super) versions: Vec<InternalEntry>,
    /// Bytes after the versions.
    pub(super) more: Vec<u8>,
}

impl WriteBatch {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.first.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.count.to_le_bytes());
        for version in &self.versions {
            bytes.push(version.kind);
            put_prefixed(&mut bytes, &version.key);
            if version.kind != 0 {
                put_prefixed(&mut bytes, &version.value);
            }
        }
        bytes.extend_from_slice(&self.more);
        bytes
    }
}

#[derive(Clone, Debug)]
pub(super) struct WriteAheadLog {
    pub(super) number: u64,
    pub(super) batches: Vec<WriteBatch>,
}

/// A database, in parts and as files.
pub struct LevelDbFolder {
    pub(super) tables: Vec<SortedTable>,
    pub(super) logs: Vec<WriteAheadLog>,
    pub(super) manifest_number: u64,
    pub(super) log_number: u64,
    pub(super) next_file: u64,
    pub(super) last_sequence: u64,
    pub(super) edits: Vec<Vec<Field>>,
    pub(super) files: BTreeMap<String, Vec<u8>>,
    pub(super) contents: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) keys: Vec<Vec<u8>>,
}
