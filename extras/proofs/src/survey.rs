//! [`survey_proofs`]: what a folder of proofs holds, and whether its files fit together.
//!
//! Nothing is proved here. Whether a proof holds with the roots before its block, the engine finds when it judges the block.

use crate::bridge_error::BridgeError;
use crate::proof_files::{ProofsTotals, StoredFile, failed, open};
use apus_chain::{BlockHash, Height, HeightRange, Network, Reader};
use apus_storage::Storage;
use apus_sync::SyncError;
use apus_sync::error::StorageResult;
use apus_utreexo::{Proof, RangeFile, Roots};

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
        add(&mut whole.totals, &next.totals);
    }
    Ok(whole.surveyed())
}

/// A file, or some that follow one another.
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
    /// A file of which nothing was counted yet.
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

/// Adds those of other files.
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

/// What the entry of a block has.
pub(crate) struct ProofEntry {
    pub(crate) proof: Proof,
    /// Bytes of the proof, behind which are the leaf data.
    proof_bytes: usize,
    /// Those of each coin's data.
    pub(crate) leaf_bytes: Vec<u32>,
}

impl ProofEntry {
    pub(crate) fn read(
        entry: &[u8],
        height: Height,
        file: impl Fn() -> String,
    ) -> Result<Self, BridgeError> {
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
