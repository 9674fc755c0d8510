//! A folder of proofs: what files it has, and whether they fit together.
//!
//! Nothing is proved here. Whether a proof holds with the roots before its block, the engine finds when it judges the block.

use crate::error::{BridgeError, StorageResult, SyncError};
use apus_chain::{BlockHash, Height, HeightRange, Network, Reader};
use apus_storage::Storage;
use apus_utreexo::{Proof, RangeFile, RangeFileError, Roots, range_of_name};
use std::io::{self, Read, Seek, SeekFrom};

pub(crate) mod caches;

/// What files of proofs have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProofsTotals {
    /// Files.
    pub files: u64,
    /// Blocks.
    pub blocks: u64,
    /// Coins that are proved.
    pub targets: u64,
    /// Hashes in proofs.
    pub hashes: u64,
    /// Bytes of proofs: places and hashes.
    pub proof_bytes: u64,
    /// Bytes of leaf data.
    pub leaf_bytes: u64,
    /// Bytes of the files.
    pub file_bytes: u64,
    /// Bytes of the longest entry.
    pub entry_bytes_max: u64,
}

/// What came of a run that makes proofs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofsMade {
    /// The first block whose proof this start made.
    pub from: Height,
    /// What the files have that it wrote.
    pub totals: ProofsTotals,
    /// The roots after the last block.
    pub roots: Roots,
}

/// Files of proofs that follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surveyed {
    /// The network, where it is known.
    pub network: Option<Network>,
    /// Heights of the blocks.
    pub heights: HeightRange,
    /// The last block.
    pub last: BlockHash,
    /// Leaves that there ever were before the first block.
    pub leaves_before: u64,
    /// The roots after the last block.
    pub after: Roots,
    /// What the files have.
    pub totals: ProofsTotals,
}

/// The files of proofs of a folder, by ascending height. Of other files nothing is said.
pub fn proofs_files(storage: &dyn Storage) -> Result<Vec<(HeightRange, String)>, SyncError> {
    let names = storage.names().at(storage, "")?;
    let file = |name: String| Some((range_of_name(&name)?, name));
    let mut files: Vec<_> = names.into_iter().filter_map(file).collect();
    files.sort_unstable_by_key(|(range, _)| (range.start, range.end));
    Ok(files)
}

/// Opens a file of proofs, whose heights are those of its name.
pub(crate) fn open<'s>(
    storage: &'s dyn Storage,
    name: &str,
) -> Result<RangeFile<StoredFile<'s>>, SyncError> {
    let file = StoredFile::open(storage, name).at(storage, name)?;
    let file = RangeFile::open(file).map_err(|error| failed(storage, name, error))?;
    let (found, file_name) = (file.heights(), storage.describe(name));
    match range_of_name(name).is_none_or(|range| range == found) {
        true => Ok(file),
        false => Err(BridgeError::Name { file: file_name, found }.into()),
    }
}

fn failed(storage: &dyn Storage, name: &str, error: RangeFileError) -> SyncError {
    BridgeError::File { file: storage.describe(name), error }.into()
}

/// Goes through files of proofs by ascending height, with every entry: form, checksums, and that each begins where
/// the one before it ends.
pub fn survey_proofs(storage: &dyn Storage, names: &[String]) -> Result<Surveyed, SyncError> {
    let none = || BridgeError::None { folder: storage.describe("") };
    let (first, others) = names.split_first().ok_or_else(none)?;
    let mut whole = survey_file(storage, first)?;
    for name in others {
        let next = survey_file(storage, name)?;
        expect_seam(&whole, &next, &storage.describe(name))?;
        whole.heights.end = next.heights.end;
        (whole.last, whole.after) = (next.last, next.after);
        whole.totals.add(&next.totals);
    }
    Ok(whole.surveyed())
}

/// A file, or some that follow one another.
struct FileSurvey {
    magic: [u8; 4],
    heights: HeightRange,
    before: BlockHash,
    roots: Roots,
    last: BlockHash,
    after: Roots,
    totals: ProofsTotals,
}

impl FileSurvey {
    /// A file of which nothing was counted yet.
    fn of(file: &RangeFile<StoredFile<'_>>) -> Self {
        let head = file.head();
        Self {
            magic: head.network,
            heights: file.heights(),
            before: head.before,
            roots: head.roots.clone(),
            last: file.blocks().last().map(|block| block.hash).unwrap_or_default(),
            after: file.after().clone(),
            totals: ProofsTotals::default(),
        }
    }

    fn surveyed(self) -> Surveyed {
        Surveyed {
            network: Network::from_magic(self.magic),
            heights: self.heights,
            last: self.last,
            leaves_before: self.roots.leaves(),
            after: self.after,
            totals: self.totals,
        }
    }
}

fn expect_seam(before: &FileSurvey, next: &FileSurvey, file: &str) -> Result<(), BridgeError> {
    let file = file.to_owned();
    let (found, wanted) = (next.heights.start, before.heights.end);
    if found != wanted {
        return Err(BridgeError::Gap { file, found, wanted });
    }
    let differs = [
        (next.magic != before.magic, "another network"),
        (next.before != before.last, "another block before it"),
        (next.roots != before.after, "other roots"),
    ];
    match differs.into_iter().find(|(differs, _)| *differs) {
        Some((_, what)) => Err(BridgeError::Seam { file, what }),
        None => Ok(()),
    }
}

fn survey_file(storage: &dyn Storage, name: &str) -> Result<FileSurvey, SyncError> {
    let mut file = open(storage, name)?;
    let file_bytes = storage.len(name).at(storage, name)?;
    let mut totals = ProofsTotals { files: 1, file_bytes, ..ProofsTotals::default() };
    let mut entry = Vec::new();
    for height in file.heights().heights() {
        file.entry(height, &mut entry).map_err(|error| failed(storage, name, error))?;
        totals.add_entry(&entry, height, || storage.describe(name))?;
    }
    Ok(FileSurvey { totals, ..FileSurvey::of(&file) })
}

impl ProofsTotals {
    /// Adds those of other files.
    fn add(&mut self, other: &Self) {
        self.files += other.files;
        self.blocks += other.blocks;
        self.targets += other.targets;
        self.hashes += other.hashes;
        self.proof_bytes += other.proof_bytes;
        self.leaf_bytes += other.leaf_bytes;
        self.file_bytes += other.file_bytes;
        self.entry_bytes_max = self.entry_bytes_max.max(other.entry_bytes_max);
    }

    /// Counts an entry.
    fn add_entry(
        &mut self,
        entry: &[u8],
        height: Height,
        file: impl Fn() -> String,
    ) -> Result<(), BridgeError> {
        let ProofEntry { proof, proof_bytes, .. } = ProofEntry::read(entry, height, file)?;
        self.count(proof.targets.len(), proof.hashes.len(), proof_bytes, entry.len());
        Ok(())
    }

    /// Counts the entry of a block.
    pub(crate) fn count(
        &mut self,
        targets: usize,
        hashes: usize,
        proof_bytes: usize,
        entry_bytes: usize,
    ) {
        self.blocks += 1;
        self.targets += targets as u64;
        self.hashes += hashes as u64;
        self.proof_bytes += proof_bytes as u64;
        self.leaf_bytes += (entry_bytes - proof_bytes) as u64;
        self.entry_bytes_max = self.entry_bytes_max.max(entry_bytes as u64);
    }
}

/// What the entry of a block has.
struct ProofEntry {
    proof: Proof,
    /// Bytes of the proof, behind which are the leaf data.
    proof_bytes: usize,
    /// Those of each coin's data.
    leaf_bytes: Vec<u32>,
}

impl ProofEntry {
    fn read(entry: &[u8], height: Height, file: impl Fn() -> String) -> Result<Self, BridgeError> {
        let mut reader = Reader::new(entry);
        let proof = Proof::read(&mut reader).map_err(|error| BridgeError::Entry {
            file: file(),
            height,
            error,
        })?;
        let proof_bytes = reader.position();
        let targets = proof.targets.len();
        let leaf_bytes = leaf_bytes(&mut reader, targets).filter(|_| reader.remaining() == 0);
        let leaf_bytes =
            leaf_bytes.ok_or_else(|| BridgeError::Data { file: file(), height, targets })?;
        Ok(Self { proof, proof_bytes, leaf_bytes })
    }
}

/// Goes over the leaf data of so many coins: how many bytes each has. What was left out of them only the block's
/// inputs tell.
fn leaf_bytes(reader: &mut Reader<'_>, count: usize) -> Option<Vec<u32>> {
    let bytes = |_| {
        let start = reader.position();
        reader.take(12).ok()?;
        match reader.u8().ok()? {
            0 => {
                let length = reader.compact_size().ok()?;
                reader.take(length).ok()?;
            }
            1..=4 => {}
            _ => return None,
        }
        u32::try_from(reader.position() - start).ok()
    };
    (0..count).map(bytes).collect()
}

// [`StoredFile`]: a file behind the door, read at any place.

/// See the module.
pub(crate) struct StoredFile<'s> {
    storage: &'s dyn Storage,
    name: String,
    length: u64,
    at: u64,
    /// What reads on from there, if it was not left.
    reader: Option<Box<dyn Read + Send>>,
}

impl<'s> StoredFile<'s> {
    pub(crate) fn open(storage: &'s dyn Storage, name: &str) -> io::Result<Self> {
        let length = storage.len(name)?;
        Ok(Self { storage, name: name.to_owned(), length, at: 0, reader: None })
    }
}

impl Read for StoredFile<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(self.storage.open(&self.name, self.at)?),
        };
        let count = reader.read(out)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for StoredFile<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        if at != self.at {
            (self.at, self.reader) = (at, None);
        }
        Ok(at)
    }
}
