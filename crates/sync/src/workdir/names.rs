//! The names of files in a work folder, how to distinguish a sync's files from others, and the common form of
//! small files.

use super::index::{RunIndex, SECTION_BYTES};
use crate::error::{IoError, StorageResult, SyncError};
use apus_chain::{HeightRange, Reader};
use apus_hash::sha256;
use apus_storage::{Storage, read_whole};
use std::io::{ErrorKind, Read};

/// Name of the file with the plan of a sync.
pub(super) const PLAN: &str = "plan";

/// Prefix of the names of merged runs.
pub const MERGE: &str = "merge-";

/// Prefix of the names of a snapshot's coins in the order of segments.
pub const SPILL: &str = "spill-";

/// Name of the file in which a sync that connects blocks records its progress.
pub const RECORD: &str = "connected";

/// Name of the file in which a sync that joins coins with spends records the result.
pub const JOINED: &str = "joined";

/// Name of the file in which a sync in batches records the set between two of them.
pub const BASE: &str = "base";

/// Prefix of the names of the runs of such a set.
pub const SPILL_BASE: &str = "spill-base-";

/// Name of the file in which a sync over block files records invalid blocks.
pub const INVALID: &str = "invalid";

/// Prefix of the names of files of headers from peers.
pub const HEADERS: &str = "headers-";

/// Name of the file of peers' addresses.
pub const ADDRESSES: &str = "addresses";

/// Name of the file with the numbers of transactions of blocks from peers.
pub const COUNTS: &str = "counts";

/// Name of the file with the numbers that are not in [`COUNTS`] yet.
pub const NEW_COUNTS: &str = "counts-new";

/// Name of the file that a sync locks to keep others out of its folder.
pub const LOCK: &str = "lock";

/// Name of the file in which a sync records the positions of blocks that it writes to a data directory.
pub const POSITIONS: &str = "positions";

/// Name of the file in which a sync with peers records the positions of kept blocks.
pub const KEPT: &str = "kept";

/// Name of the folder with the coins of a sync that connects blocks.
pub const COINS: &str = "coins";

/// Name of the folder with the state of a chain index, which stays when the sync has ended.
pub const INDEX: &str = "forest";

/// Name of the folder of coins or hints while it is being removed.
pub const GONE: &str = "discarded.incomplete";

/// Present between two starts of a sync that follows the tip, or has its coins on servers: the last start wrote
/// all its outputs. Contains the place of those coins, if there is one.
pub const ENDED: &str = "ended";

/// Name of the folder in which a sync without hints prepares the hints that it writes.
pub const HINTS: &str = "hints";

/// Endings of the names of runs, for all engines.
const RUN_ENDINGS: [&str; 11] = [
    ".run", ".made", ".spent", ".answers", ".prints", ".added", ".claims", ".blocks", ".hints",
    ".leaves", ".undo",
];

/// Endings of runs that only some syncs write. In other syncs these runs are empty and have no file.
const ASKED_FOR: [&str; 5] = [".leaves", ".added", ".claims", ".blocks", ".undo"];

/// A kind of run that an engine's segments leave: the ending of its file names, and how it is cut into
/// sections.
#[derive(Debug, Clone, Copy)]
pub struct RunKind {
    ending: &'static str,
    index: fn(&[u8]) -> RunIndex,
}

impl RunKind {
    /// Describes runs of sorted records, which are merged; `index` [cuts](crate::runs::cut) them by their form.
    ///
    /// # Panics
    /// At compile time, if the ending is not a known one.
    pub const fn new(ending: &'static str, index: fn(&[u8]) -> RunIndex) -> Self {
        let (mut at, mut is_known) = (0, false);
        while at < RUN_ENDINGS.len() {
            is_known |= is_same(ending, RUN_ENDINGS[at]);
            at += 1;
        }
        assert!(is_known, "files of such names would be taken for a user's");
        Self { ending, index }
    }

    /// Describes runs that are read in order, so that no reader searches for a place.
    pub const fn in_sequence(ending: &'static str) -> Self {
        Self::new(ending, |run| RunIndex::cut(run, SECTION_BYTES, |_| None))
    }

    /// Returns the ending of its file names.
    pub const fn ending(self) -> &'static str {
        self.ending
    }

    /// Returns the sections of a run.
    pub(super) fn index(self, run: &[u8]) -> RunIndex {
        (self.index)(run)
    }
}

/// Returns whether a run of this name is written only by some syncs.
pub(super) fn is_asked_for(run: &str) -> bool {
    ASKED_FOR.iter().any(|ending| run.ends_with(ending))
}

impl PartialEq for RunKind {
    fn eq(&self, other: &Self) -> bool {
        self.ending == other.ending
    }
}

impl Eq for RunKind {}

const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

pub(super) fn run_name(range: HeightRange, kind: RunKind) -> String {
    format!("segment-{:08}-{:08}{}", range.start, range.end, kind.ending)
}

/// Returns the name of the partial result of a run's segment.
pub(super) fn partial_of_run(run: &str) -> String {
    let segment = RUN_ENDINGS.iter().find_map(|ending| run.strip_suffix(ending));
    format!("{}.part", segment.unwrap_or(run))
}

pub(super) fn partial_name(range: HeightRange) -> String {
    format!("segment-{:08}-{:08}.part", range.start, range.end)
}

/// Returns the heights of the segment whose partial result has this name.
pub(super) fn range_of_partial(name: &str) -> Option<HeightRange> {
    let heights = name.strip_prefix("segment-")?.strip_suffix(".part")?;
    let (start, end) = heights.split_once('-')?;
    let range = HeightRange::new(start.parse().ok()?, end.parse().ok()?);
    (partial_name(range) == name).then_some(range)
}

/// Returns whether a name in a work folder is one that a sync uses.
pub fn is_work_file(name: &str) -> bool {
    let segment = name.starts_with("segment-")
        && (RUN_ENDINGS.iter().any(|ending| name.ends_with(ending))
            || [".part", ".part.tmp"].iter().any(|end| name.ends_with(end)));
    let scratch = (name.starts_with(MERGE) || name.starts_with(SPILL)) && name.ends_with(".run");
    let note =
        [RECORD, INVALID, JOINED, BASE, ENDED].contains(&name.strip_suffix(".tmp").unwrap_or(name));
    segment
        || is_download(name)
        || scratch
        || note
        || [PLAN, "plan.tmp", LOCK, COINS, INDEX, HINTS, GONE, POSITIONS].contains(&name)
}

/// Returns whether a file exists before the plan: data from hints or peers, or for choosing the chain.
pub(super) fn is_input(name: &str) -> bool {
    name.starts_with(SPILL) || name == INVALID || is_download(name)
}

/// Returns whether a file contains data from peers, which stays valid in any case.
pub(super) fn is_download(name: &str) -> bool {
    let name = name.strip_suffix(".tmp").unwrap_or(name);
    name.starts_with(HEADERS) || [KEPT, ADDRESSES, COUNTS, NEW_COUNTS].contains(&name)
}

/// Finds a file whose name another program could use, if no file with such a name begins with a mark of ours. A
/// file of ours may be damaged, or empty after a crash.
pub(super) fn look_alike(
    storage: &dyn Storage,
    names: &[String],
) -> Result<Option<String>, SyncError> {
    let mut found = None;
    for name in names {
        let is_common = name.starts_with(HEADERS)
            || [RECORD, INVALID, JOINED, BASE, POSITIONS, KEPT, ADDRESSES, COUNTS, NEW_COUNTS]
                .contains(&name.as_str());
        if !is_common || name.ends_with(".tmp") {
            continue;
        }
        let mut head = Vec::new();
        let input =
            storage.open(name, 0).and_then(|it| it.take(MARKS_BYTES).read_to_end(&mut head));
        if input.as_ref().is_err_and(|error| error.kind() == ErrorKind::IsADirectory) {
            return Ok(Some(name.clone()));
        }
        input.at(storage, name)?;
        if MARKS.iter().any(|mark| head.starts_with(mark)) {
            return Ok(None);
        }
        // The record's reader reports an invalid record, and then changes nothing.
        if !head.is_empty() && name != RECORD {
            found.get_or_insert_with(|| name.clone());
        }
    }
    Ok(found)
}

/// The first bytes of our files with names that other programs could use.
const MARKS: [&[u8]; 8] = [
    b"APUSHDRS",
    b"APUSCONN",
    b"APUSKEPT",
    b"APUSTXNS",
    b"APUSINVD",
    b"APUSJOIN",
    b"APUSBASE",
    b"apus-addresses ",
];

/// Length of the longest mark.
const MARKS_BYTES: u64 = 16;

// The common form of small files: magic and version before their content, and a SHA-256 of everything after it.

/// Returns the first bytes of a file: its content follows, and then [`seal`].
pub(crate) fn begin(magic: &[u8; 8], version: u32) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend_from_slice(&version.to_le_bytes());
    out
}

/// Appends the checksum to a file that was begun with [`begin`].
pub(crate) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = sha256(&bytes);
    bytes.extend_from_slice(&checksum);
    bytes
}

/// Reads a file with `parse`, if the folder lists it; fails if it is damaged.
pub(super) fn read_listed<T>(
    storage: &dyn Storage,
    name: &str,
    limit: u64,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<Option<T>, SyncError> {
    if !storage.names().at(storage, "")?.iter().any(|listed| listed == name) {
        return Ok(None);
    }
    let bytes = read_whole(storage, name, limit).at(storage, name)?;
    let damaged = || SyncError::Io(IoError::WorkdirDamaged { file: storage.describe(name) });
    parse(&bytes).map(Some).ok_or_else(damaged)
}

/// Reads a byte that is 0 or 1; `None` if it is neither.
pub(crate) fn flag(reader: &mut Reader<'_>) -> Option<bool> {
    reader.u8().ok().filter(|flag| *flag <= 1).map(|flag| flag == 1)
}

/// Returns the content of a file; `None` if the file is damaged, or of another kind or version.
pub(crate) fn open<'a>(bytes: &'a [u8], magic: &[u8; 8], version: u32) -> Option<Reader<'a>> {
    open_any(bytes, magic).and_then(|(found, reader)| (found == version).then_some(reader))
}

/// Returns the version of a file; `None` if the file is damaged, or of another kind.
pub(super) fn version(bytes: &[u8], magic: &[u8; 8]) -> Option<u32> {
    open_any(bytes, magic).map(|(version, _)| version)
}

/// Returns the version of a file, and its content.
fn open_any<'a>(bytes: &'a [u8], magic: &[u8; 8]) -> Option<(u32, Reader<'a>)> {
    let (body, checksum) = bytes.split_last_chunk::<32>()?;
    let mut reader = Reader::new(body);
    let intact = sha256(body) == *checksum && reader.array().ok()? == magic;
    let version = reader.u32().ok().filter(|_| intact)?;
    Some((version, reader))
}
