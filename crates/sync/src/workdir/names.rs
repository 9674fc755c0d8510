//! What the files of a work folder are called, how to tell ours from others', and what small ones have in common.

use super::index::{RunIndex, SECTION_BYTES};
use crate::error::{StorageResult, SyncError};
use apus_chain::{HeightRange, Reader};
use apus_hash::sha256;
use apus_storage::Storage;
use std::io::{ErrorKind, Read};

/// Name of the file that says what a run computes, and in which segments.
pub(super) const PLAN: &str = "plan";

/// Begins the names of runs that were merged from others.
pub const MERGE: &str = "merge-";

/// Begins the names of a snapshot's coins in the order of segments.
pub const SPILL: &str = "spill-";

/// Name of the file in which a run that connects blocks notes how far it is.
pub const RECORD: &str = "connected";

/// Name of the file in which a run that joins coins with spends notes what came of that.
pub const JOINED: &str = "joined";

/// Name of the file in which a run over block files notes the blocks that proved invalid.
pub const INVALID: &str = "invalid";

/// Begins the names of the files of headers that came from peers.
pub const HEADERS: &str = "headers-";

/// Name of the file of peers' addresses.
pub const ADDRESSES: &str = "addresses";

/// Name of the file that says how many transactions blocks have that came from peers.
pub const COUNTS: &str = "counts";

/// Name of the file by which a run keeps others out of its folder.
pub const LOCK: &str = "lock";

/// Name of the file in which a run notes where the blocks lie that it puts into a data directory.
pub const POSITIONS: &str = "positions";

/// Name of the file that says where the blocks lie that a run with peers keeps.
pub const KEPT: &str = "kept";

/// Name of the folder in which a run that connects blocks has its coins.
pub const COINS: &str = "coins";

/// Name of the folder in which an index of the chain has its state, which stays when the run has ended.
pub const INDEX: &str = "forest";

/// Name of the folder of coins or hints while it is removed.
pub const GONE: &str = "discarded.incomplete";

/// There between two starts of a run that follows the tip, or has its coins on servers: the last one wrote all of its
/// outputs. Has the place of those coins, else nothing.
pub const ENDED: &str = "ended";

/// Name of the folder in which a run without hints works to write some.
pub const HINTS: &str = "hints";

/// How the names of runs end, whatever engine has them.
const RUN_ENDINGS: [&str; 9] =
    [".run", ".made", ".spent", ".answers", ".prints", ".added", ".claims", ".hints", ".leaves"];

/// Of these, what only some runs ask for: empty in others, without a file.
const ASKED_FOR: [&str; 3] = [".leaves", ".added", ".claims"];

/// A kind of run, which an engine's segments leave: how the names of its files end, and how one is cut into sections.
#[derive(Debug, Clone, Copy)]
pub struct RunKind {
    ending: &'static str,
    index: fn(&[u8]) -> RunIndex,
}

impl RunKind {
    /// Runs of sorted records, which are merged; [`cut`](crate::runs::cut) by their form is the `index`.
    ///
    /// # Panics
    /// At compile time, where nothing knows files of such names.
    pub const fn new(ending: &'static str, index: fn(&[u8]) -> RunIndex) -> Self {
        let (mut at, mut is_known) = (0, false);
        while at < RUN_ENDINGS.len() {
            is_known |= is_same(ending, RUN_ENDINGS[at]);
            at += 1;
        }
        assert!(is_known, "files of such names would be taken for a user's");
        Self { ending, index }
    }

    /// Runs of which many follow one another, and in which no place is looked for.
    pub const fn in_sequence(ending: &'static str) -> Self {
        Self::new(ending, |run| RunIndex::cut(run, SECTION_BYTES, |_| None))
    }

    /// How the names of its files end.
    pub const fn ending(self) -> &'static str {
        self.ending
    }

    /// The sections of a run.
    pub(super) fn index(self, run: &[u8]) -> RunIndex {
        (self.index)(run)
    }
}

/// Whether a run of this name is one that only some runs ask for.
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

/// The name of the partial result of the segment that left a run.
pub(super) fn partial_of_run(run: &str) -> String {
    let segment = RUN_ENDINGS.iter().find_map(|ending| run.strip_suffix(ending));
    format!("{}.part", segment.unwrap_or(run))
}

pub(super) fn partial_name(range: HeightRange) -> String {
    format!("segment-{:08}-{:08}.part", range.start, range.end)
}

/// Whether a name in a work folder is one that a run makes.
pub fn is_work_file(name: &str) -> bool {
    let segment = name.starts_with("segment-")
        && (RUN_ENDINGS.iter().any(|ending| name.ends_with(ending))
            || [".part", ".part.tmp"].iter().any(|end| name.ends_with(end)));
    let scratch = (name.starts_with(MERGE) || name.starts_with(SPILL)) && name.ends_with(".run");
    let note =
        [RECORD, INVALID, JOINED, ENDED].contains(&name.strip_suffix(".tmp").unwrap_or(name));
    segment
        || is_download(name)
        || scratch
        || note
        || [PLAN, "plan.tmp", LOCK, COINS, INDEX, HINTS, GONE, POSITIONS].contains(&name)
}

/// Whether a file is there before the plan is: what the run needs of its hints, or of peers, or to
/// choose its chain.
pub(super) fn is_input(name: &str) -> bool {
    name.starts_with(SPILL) || name == INVALID || is_download(name)
}

/// Whether a file is about what came from peers, whatever becomes of it.
pub(super) fn is_download(name: &str) -> bool {
    let name = name.strip_suffix(".tmp").unwrap_or(name);
    name.starts_with(HEADERS) || [KEPT, ADDRESSES, COUNTS].contains(&name)
}

/// A file whose name could be another program's, where no such file in the folder begins as ours do. One of
/// those may well be damaged, or empty after a crash.
pub(super) fn look_alike(
    storage: &dyn Storage,
    names: &[String],
) -> Result<Option<String>, SyncError> {
    let mut found = None;
    for name in names {
        let is_common = name.starts_with(HEADERS)
            || [RECORD, INVALID, JOINED, POSITIONS, KEPT, ADDRESSES, COUNTS]
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
        // What reads the record says what is wrong with it, and touches nothing then.
        if !head.is_empty() && name != RECORD {
            found.get_or_insert_with(|| name.clone());
        }
    }
    Ok(found)
}

/// How files of ours begin whose names could be another program's.
const MARKS: [&[u8]; 7] = [
    b"APUSHDRS",
    b"APUSCONN",
    b"APUSKEPT",
    b"APUSTXNS",
    b"APUSINVD",
    b"APUSJOIN",
    b"apus-addresses ",
];

/// No mark is longer.
const MARKS_BYTES: u64 = 16;

// What small files have in common: magic and version before their content, and a SHA-256 of all that behind it.

/// The first bytes of a file: its content is to follow, and [`seal`].
pub(crate) fn begin(magic: &[u8; 8], version: u32) -> Vec<u8> {
    let mut out = magic.to_vec();
    out.extend_from_slice(&version.to_le_bytes());
    out
}

/// Ends what [`begin`] began.
pub(crate) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = sha256(&bytes);
    bytes.extend_from_slice(&checksum);
    bytes
}

/// The content of a file; none if it is damaged, another kind of file, or of another version.
pub(crate) fn open<'a>(bytes: &'a [u8], magic: &[u8; 8], version: u32) -> Option<Reader<'a>> {
    let (body, checksum) = bytes.split_last_chunk::<32>()?;
    let mut reader = Reader::new(body);
    let intact =
        sha256(body) == *checksum && reader.array().ok()? == magic && reader.u32().ok()? == version;
    intact.then_some(reader)
}
