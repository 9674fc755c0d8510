//! [`survey_proofs`]: reads proof files and checks that they fit together.
//!
//! This module proves nothing. The engine checks each proof against the roots before its block when it
//! validates the block.

use crate::bridge_error::BridgeError;
use crate::proof_files::{ProofsTotals, StoredFile, failed, open};
use apus_chain::{BlockHash, Height, HeightRange, Network, Reader};
use apus_storage::Storage;
use apus_sync::SyncError;
use apus_sync::error::StorageResult;
use apus_utreexo::{Proof, RangeFile, Roots, TARGETS_MAX};

/// The result of a survey of adjacent proof files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyedFiles {
    /// The network, if known.
    pub network: Option<Network>,
    /// Heights of the blocks.
    pub heights: HeightRange,
    /// The last block.
    pub last: BlockHash,
    /// Leaves ever added, before the first block.
    pub leaves_before: u64,
    /// The roots after the last block.
    pub after: Roots,
    /// Totals over the files.
    pub totals: ProofsTotals,
}

/// Reads proof files by ascending height, with every entry. Checks formats and checksums, and that each file
/// begins where the one before it ends.
pub fn survey_proofs(storage: &dyn Storage, names: &[String]) -> Result<SurveyedFiles, SyncError> {
    let none = || BridgeError::None { folder: storage.describe("") };
    let (first, others) = names.split_first().ok_or_else(none)?;
    let mut whole = survey_file(storage, first)?;
    for name in others {
        let next = survey_file(storage, name)?;
        expect_seam(&whole, &next, &storage.describe(name))?;
        whole.heights.end = next.heights.end;
        (whole.last, whole.after) = (next.last, next.after);
        add(&mut whole.totals, &next.totals);
    }
    Ok(whole.surveyed())
}

/// The survey of one file, or of adjacent files.
pub(crate) struct FileSurvey {
    pub(crate) magic: [u8; 4],
    pub(crate) heights: HeightRange,
    pub(crate) before: BlockHash,
    pub(crate) roots: Roots,
    pub(crate) last: BlockHash,
    pub(crate) after: Roots,
    pub(crate) totals: ProofsTotals,
}

impl FileSurvey {
    /// The survey of a file, without totals.
    pub(crate) fn of(file: &RangeFile<StoredFile<'_>>) -> Self {
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

    fn surveyed(self) -> SurveyedFiles {
        SurveyedFiles {
            network: Network::from_magic(self.magic),
            heights: self.heights,
            last: self.last,
            leaves_before: self.roots.leaves(),
            after: self.after,
            totals: self.totals,
        }
    }
}

pub(crate) fn expect_seam(
    before: &FileSurvey,
    next: &FileSurvey,
    file: &str,
) -> Result<(), BridgeError> {
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
        let read = ProofEntry::read(&entry, height, || storage.describe(name))?;
        let (targets, hashes) = (read.proof.targets.len(), read.proof.hashes.len());
        totals.count(targets, hashes, read.proof_bytes, entry.len());
    }
    Ok(FileSurvey { totals, ..FileSurvey::of(&file) })
}

/// Adds the totals of another file.
fn add(totals: &mut ProofsTotals, other: &ProofsTotals) {
    totals.files += other.files;
    totals.blocks += other.blocks;
    totals.targets += other.targets;
    totals.hashes += other.hashes;
    totals.proof_bytes += other.proof_bytes;
    totals.leaf_bytes += other.leaf_bytes;
    totals.file_bytes += other.file_bytes;
    totals.entry_bytes_max = totals.entry_bytes_max.max(other.entry_bytes_max);
}

/// The entry of a block.
pub(crate) struct ProofEntry {
    pub(crate) proof: Proof,
    /// Bytes of the proof; the leaf data follow.
    proof_bytes: usize,
    /// Bytes of each coin's leaf data.
    pub(crate) leaf_bytes: Vec<u32>,
}

impl ProofEntry {
    pub(crate) fn read(
        entry: &[u8],
        height: Height,
        file: impl Fn() -> String,
    ) -> Result<Self, BridgeError> {
        let mut reader = Reader::new(entry);
        let proof = Proof::read(&mut reader, TARGETS_MAX).map_err(|error| BridgeError::Entry {
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

/// Reads the leaf data of `count` coins and returns the length of each. Scripts that were left out are not
/// rebuilt, since that needs the block's inputs.
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
