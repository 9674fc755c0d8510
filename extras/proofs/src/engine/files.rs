//! [`ProofFiles`]: the proof files of a folder that together cover all blocks of a job.
//!
//! Before the first block is processed, the head and the tail of each file are read: the files must belong to
//! this network and chain, follow each other without gap or overlap, and each must begin with the roots with
//! which the one before it ends. Validation checks all of this again, against the roots computed from the
//! blocks.

use super::{ForestStart, RootsDiffer};
use crate::error::ProofsError;
use apus_chain::{HeaderChain, Height, HeightRange, KnownBlock, Network};
use apus_hash::sha256;
use apus_sync::SyncError;
use apus_utreexo::{RangeFile, Roots, range_file_name, range_of_name};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// The proof files that together cover all blocks of a job.
pub(super) struct ProofFiles {
    files: Vec<ProofFile>,
}

struct ProofFile {
    path: PathBuf,
    /// Its blocks, and the roots that it begins with.
    all: HeightRange,
    head: Roots,
    /// Those of its blocks that belong to the job, and the roots before them.
    heights: HeightRange,
    before: Roots,
    after: Roots,
    bytes: u64,
}

impl ProofFiles {
    /// Opens the files of `folder` for the blocks of `chain` from `start` to `stop`. The first file may begin below.
    pub(super) fn open(
        folder: &Path,
        network: Network,
        chain: &HeaderChain,
        (start, stop): (&ForestStart, Height),
    ) -> Result<Self, SyncError> {
        let named = named(folder)?;
        let files = covering(folder, &named, HeightRange::new(start.first(), stop + 1))?;
        let files = files.into_iter().map(|(heights, path)| check(heights, path, network, chain));
        let mut files: Vec<ProofFile> = files.collect::<Result<_, _>>()?;
        if let Some(file) = files.first_mut().filter(|file| file.heights.start < start.first()) {
            file.heights.start = start.first();
            file.before.clone_from(&start.roots);
        }
        let mut before = &start.roots;
        for file in &files {
            if file.before != *before {
                return Err(file.other_roots(before, start).into());
            }
            before = &file.after;
        }
        Ok(Self { files })
    }

    /// The ranges of the files, ascending.
    pub(super) fn heights(&self) -> impl Iterator<Item = HeightRange> {
        self.files.iter().map(|file| file.heights)
    }

    /// The roots before and after the blocks of a file.
    pub(super) fn roots(&self, heights: HeightRange) -> Option<(&Roots, &Roots)> {
        let file = self.files.iter().find(|file| file.heights == heights)?;
        Some((&file.before, &file.after))
    }

    /// Total bytes of the files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Identifies the roots before the first block, the ranges up to a height, and their roots, so that a later start
    /// recognizes them. Entries may differ.
    pub(super) fn id(&self, first: &Roots, last: Height) -> [u8; 32] {
        let mut bytes = b"ranges of proofs".to_vec();
        first.write(&mut bytes);
        let files = self.files.iter().take_while(|file| file.heights.end <= last + 1);
        for ProofFile { heights, before, after, .. } in files {
            bytes.extend_from_slice(&heights.start.to_le_bytes());
            bytes.extend_from_slice(&heights.end.to_le_bytes());
            before.write(&mut bytes);
            after.write(&mut bytes);
        }
        sha256(&bytes)
    }
}

impl ProofSource for ProofFiles {
    fn range(&self, heights: HeightRange) -> Result<ProofRange<'_>, String> {
        let found = self.files.iter().find(|file| file.heights == heights);
        found.ok_or_else(|| format!("no file covers blocks {heights}"))?.range()
    }
}

impl ProofFile {
    /// Opens the file for one thread.
    fn range(&self) -> Result<ProofRange<'static>, String> {
        let Self { path, all, head, heights, before, after, .. } = self;
        let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let opened = File::open(path).map_err(|error| named(&error))?;
        let opened = RangeFile::open(opened).map_err(|error| named(&error))?;
        if (opened.heights(), &opened.head().roots, opened.after()) != (*all, head, after) {
            return Err(named(&"the file was replaced after the job began"));
        }
        let (heights, before, after) = (*heights, before.clone(), after.clone());
        let reader = Box::new(FileEntries { path: path.clone(), file: opened });
        Ok(ProofRange { heights, before, after, reader })
    }

    /// The error if it does not begin with the roots that the blocks below lead to, or that the user trusts.
    fn other_roots(&self, expected: &Roots, start: &ForestStart) -> ProofsError {
        let (file, height) = (self.path.clone(), self.heights.start);
        let differ = RootsDiffer::between(&self.before, expected);
        match &start.origin {
            Some(origin) if height == start.first() => {
                start.other_roots(origin, format!("{} begins there with {differ}", file.display()))
            }
            _ => ProofsError::Roots { file, height, differ: differ.to_string() },
        }
    }
}

/// The proof files of a folder, each opened and checked only when its range is requested: files whose ranges
/// belong to other machines may be missing.
pub struct ProofFolder<'a> {
    /// The folder.
    pub folder: &'a Path,
    /// The network that the files must belong to.
    pub network: Network,
    /// The chain that they must belong to.
    pub chain: &'a HeaderChain,
}

impl ProofSource for ProofFolder<'_> {
    fn range(&self, heights: HeightRange) -> Result<ProofRange<'_>, String> {
        let path = self.folder.join(range_file_name(heights));
        let file = check(heights, path, self.network, self.chain);
        file.map_err(|error| error.to_string())?.range()
    }
}

/// The entries of one file.
struct FileEntries {
    path: PathBuf,
    file: RangeFile<File>,
}

impl ProofReader for FileEntries {
    fn read(&mut self, block: &KnownBlock, _: usize, out: &mut Vec<u8>) -> Result<(), String> {
        let named = |error: &dyn std::fmt::Display| format!("{}: {error}", self.path.display());
        match self.file.block(block.height) {
            Some(other) if other.hash != block.hash => {
                Err(named(&format!("it has another block at this height, {}", other.hash)))
            }
            _ => self.file.entry(block.height, out).map_err(|error| named(&error)),
        }
    }

    fn origin(&self) -> String {
        self.path.display().to_string()
    }
}

/// Lists the proof files in a folder, by ascending range. Ignores other files.
fn named(folder: &Path) -> Result<Vec<(HeightRange, PathBuf)>, SyncError> {
    let unreadable = |error: io::Error| ProofsError::Folder { folder: folder.to_owned(), error };
    let mut named = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if let Some(heights) = entry.file_name().to_str().and_then(range_of_name) {
            named.push((heights, entry.path()));
        }
    }
    named.sort_unstable();
    Ok(named)
}

/// Selects the files that cover exactly these heights, but the first may begin below.
fn covering(
    folder: &Path,
    named: &[(HeightRange, PathBuf)],
    wanted: HeightRange,
) -> Result<Vec<(HeightRange, PathBuf)>, ProofsError> {
    let (first, stop) = (wanted.start, wanted.end - 1);
    let mut found: Vec<(HeightRange, PathBuf)> = Vec::new();
    let is_of_job = |heights: &HeightRange| heights.start <= stop && heights.end > first;
    for (heights, path) in named.iter().filter(|(heights, _)| is_of_job(heights)) {
        let next = found.last().map_or(first, |(last, _)| last.end);
        if let Some((_, other)) = found.last().filter(|_| heights.start < next) {
            return Err(ProofsError::Overlap { file: path.clone(), other: other.clone() });
        }
        if heights.start > next {
            break;
        }
        found.push((*heights, path.clone()));
    }
    let end = found.last().map_or(first, |(last, _)| last.end);
    if end <= stop {
        // The stop height to suggest instead, if any.
        let below = (end > first).then(|| end - 1);
        let next = named.iter().map(|(heights, _)| heights.start).find(|start| *start > end);
        let missing = HeightRange::new(end, next.unwrap_or(stop + 1).min(stop + 1));
        return Err(ProofsError::Missing { folder: folder.to_owned(), missing, below });
    }
    if end > stop + 1 {
        let below = found.last().and_then(|(last, _)| last.start.checked_sub(1));
        let below = below.filter(|below| *below >= first);
        return Err(ProofsError::StopWithin { stop, below, above: end - 1 });
    }
    Ok(found)
}

/// Opens a file and checks it against its name, the network and the chain.
fn check(
    heights: HeightRange,
    path: PathBuf,
    network: Network,
    chain: &HeaderChain,
) -> Result<ProofFile, ProofsError> {
    let read = |error: io::Error| ProofsError::Folder { folder: path.clone(), error };
    let file = File::open(&path).map_err(read)?;
    let bytes = file.metadata().map_err(read)?.len();
    let damaged = |error| ProofsError::File { file: path.clone(), error };
    let opened = RangeFile::open(file).map_err(damaged)?;
    if opened.head().network != network.magic() {
        return Err(ProofsError::OtherNetwork { file: path, network });
    }
    if opened.heights() != heights {
        return Err(ProofsError::Name { file: path, heights: opened.heights() });
    }
    let hashes = opened.blocks().iter().map(|block| &block.hash);
    let hashes = std::iter::once(&opened.head().before).chain(hashes);
    if let Some((height, _)) =
        (heights.start - 1..).zip(hashes).find(|(height, hash)| chain.hash(*height) != Some(*hash))
    {
        return Err(ProofsError::OtherChain { file: path, height });
    }
    let (before, after) = (opened.head().roots.clone(), opened.after().clone());
    Ok(ProofFile { path, all: heights, head: before.clone(), heights, before, after, bytes })
}

// [`ProofSource`]: the untrusted source of roots, proofs and coins.

/// A source of ranges: files or bridge nodes.
pub trait ProofSource: Send + Sync {
    /// Opens a range for one thread.
    ///
    /// # Errors
    /// A message with the place and the cause.
    fn range(&self, heights: HeightRange) -> Result<ProofRange<'_>, String>;

    /// Tells of an error whether the ranges that were opened since this call can be done again, with other data.
    fn retry(&self) -> Retry<'_> {
        Box::new(|_| false)
    }
}

/// Tells of an error whether another try makes sense.
pub type Retry<'a> = Box<dyn Fn(&SyncError) -> bool + 'a>;

/// Reads the entries of one range.
pub trait ProofReader: Send {
    /// Reads the entry of a block into `out`, replacing its content: the proof of the coins that it spends, at
    /// most `spends_max`, then the compact leaves (`docs/utreexo.md`).
    ///
    /// # Errors
    /// A message with the place and the cause.
    fn read(
        &mut self,
        block: &KnownBlock,
        spends_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String>;

    /// The source of the data, for messages: a file or a peer.
    fn origin(&self) -> String;
}

/// The data of a range, from an untrusted source.
pub struct ProofRange<'a> {
    /// Its blocks.
    pub heights: HeightRange,
    /// The roots before the first block.
    pub before: Roots,
    /// The roots after the last block.
    pub after: Roots,
    /// The entries of the blocks.
    pub reader: Box<dyn ProofReader + 'a>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(ranges: &[(Height, Height)]) -> Vec<(HeightRange, PathBuf)> {
        let named = |&(start, end): &(Height, Height)| {
            let heights = HeightRange::new(start, end);
            (heights, PathBuf::from(range_file_name(heights)))
        };
        ranges.iter().map(named).collect()
    }

    fn of(ranges: &[(Height, Height)], stop: Height) -> Result<usize, String> {
        let found = covering(Path::new("proofs"), &named(ranges), HeightRange::new(1, stop + 1));
        found.map(|found| found.len()).map_err(|error| error.to_string())
    }

    #[test]
    fn files_must_cover_all_blocks_up_to_the_stop_height() {
        let all = [(1, 5), (5, 6), (6, 20), (20, 40)];
        assert_eq!([4, 5, 19, 39].map(|stop| of(&all, stop)), [Ok(1), Ok(2), Ok(3), Ok(4)]);
        // Files above the end are ignored.
        assert_eq!(of(&[(1, 5), (5, 9), (7, 8), (30, 31)], 4), Ok(1));
    }

    #[test]
    fn errors_name_missing_and_overlapping_files() {
        let refused = |ranges: &[(Height, Height)], stop, texts: &[&str]| {
            let error = of(ranges, stop).unwrap_err();
            assert!(texts.iter().all(|text| error.contains(text)), "{error}");
        };
        refused(&[], 9, &["proofs has no proof file for blocks 1 to 9"]);
        refused(&[(2, 10)], 9, &["for block 1"]);
        refused(&[(1, 4), (6, 10)], 9, &["blocks 4 to 5", "--stopatheight 3"]);
        refused(&[(1, 4), (4, 8)], 9, &["blocks 8 to 9", "--stopatheight 7"]);
        refused(
            &[(1, 4), (3, 10)],
            9,
            &["proofs-00000001-00000004.dat", "proofs-00000003-00000010.dat"],
        );
        refused(&[(1, 4), (1, 10)], 9, &["proofs-00000001-00000004.dat"]);
        refused(&[(1, 4), (4, 12)], 9, &["--stopatheight 3 or 11"]);
        refused(&[(1, 12)], 9, &["--stopatheight 11"]);
    }
}
