//! [`MergedSet`]: the set that joining led to, handed to what is to be written.

use super::WalkOutcome;
use super::joined::Joined;
use crate::engines::pass::Counts;
use crate::engines::swiftsync::CoinTotals;
use crate::engines::swiftsync::hints::HintsWriter;
use crate::error::{StorageResult, SyncError};
use crate::proofs::ProofsMade;
use crate::request::{Output, OutputKind, Request};
use crate::runs::{KeyRange, MergeBudget, PlacesForm, Runs};
use crate::sink::forest::{SortedLeaves, draft_roots, roots};
use crate::sink::put::{KnownOfSet, Put, SetMuHash, SetRecords, put_set};
use crate::sink::{FileDraft, SetInfo, SnapshotSink, folders};
use crate::source::ChainSource;
use apus_chain::Height;
use apus_storage::StorageFile;
use apus_utreexo::Roots;
use std::io::BufWriter;
use std::sync::Arc;

/// The set that joining led to.
pub(crate) struct MergedSet<'a> {
    pub(crate) dir: Arc<dyn ChainSource + 'a>,
    pub(crate) set: SetInfo,
    pub(crate) counts: Counts,
    pub(crate) judged: WalkOutcome,
    /// Blocks whose witnesses were left alone.
    pub(crate) unseen: u64,
    pub(super) joined: Joined,
    /// Of what the roots of the Utreexo forest come, where they are asked for.
    pub(super) forest: Option<RootsFrom>,
    /// The proofs that were made.
    pub(crate) proofs: Option<ProofsMade>,
}

/// Of what the roots of the Utreexo forest come.
pub(super) enum RootsFrom {
    /// Of the leaves that survive, of so many that all blocks add.
    Leaves(u64),
    /// They are known.
    Known(Roots),
}

impl MergedSet<'_> {
    /// Hands the coins to the set's hashes and the sinks, and their places to the hints.
    pub(crate) fn write_out(
        &mut self,
        request: &Request<'_>,
    ) -> Result<(Put, CoinTotals), SyncError> {
        let set = self.set;
        let places = folders::places(request);
        let with_blocks = self.judged.with_blocks.take();
        let mut sinks = folders::sinks(request, &*self.dir, set, &places, with_blocks)?;
        let forest = self.forest.as_ref().filter(|_| request.wants_leaves());
        let forest = forest.map(|of| self.roots(request, of)).transpose()?;
        let mut drafts = Vec::new();
        for output @ Output { storage, name, .. } in request.outputs {
            match output.kind {
                OutputKind::Snapshot => {
                    sinks.push(Box::new(SnapshotSink::create(&**storage, name, set)?));
                }
                OutputKind::Hints => drafts.push(self.draft_hints(request, output)?),
                OutputKind::Utreexo => drafts.push(draft_roots(&**storage, name, &forest)?),
            }
        }
        let bytes = self.joined.coin_bytes();
        let muhash = request.muhash.then(|| self.joined.muhash.finalize());
        let muhash = SetMuHash::Known(muhash);
        let known = KnownOfSet { muhash, hashed: self.judged.hashed };
        let records = SetRecords::Runs(self.joined.coins.clone());
        let mut put = put_set(request, set, sinks, known, bytes, records)?;
        put.utreexo = forest;
        drafts.into_iter().try_for_each(|(draft, file)| draft.publish(file))?;
        Ok((put, self.joined.totals))
    }

    /// The roots of the Utreexo forest.
    fn roots(&self, request: &Request<'_>, of: &RootsFrom) -> Result<Roots, SyncError> {
        let count = match of {
            RootsFrom::Known(roots) => return Ok(roots.clone()),
            RootsFrom::Leaves(count) => *count,
        };
        let runs = self.joined.leaves.clone().unwrap_or_default();
        let leaves = SortedLeaves::open(&request.env, runs, count)?;
        let roots = roots(&request.env, &leaves)?;
        leaves.close().map(|()| roots)
    }

    /// Writes a hintsfile that has no name yet.
    fn draft_hints<'o>(
        &self,
        request: &Request<'_>,
        output: &'o Output,
    ) -> Result<(FileDraft<'o>, Box<dyn StorageFile>), SyncError> {
        let Output { storage, name, .. } = output;
        let (draft, file) = FileDraft::create(&**storage, name)?;
        let failed = |error| SyncError::Hints { file: storage.describe(name), error };
        let out = BufWriter::with_capacity(1 << 18, file);
        let mut writer = HintsWriter::new(out, self.set.height).map_err(failed)?;
        let budget = MergeBudget::new(request.env.memory_bytes / 4);
        let runs = self.joined.places.clone();
        let runs = Runs::<PlacesForm>::open(request.env.workdir, runs, budget, &|| Ok(()))?;
        let mut places = runs.part(KeyRange::ALL)?;
        places.next()?;
        let mut indices = Vec::new();
        for height in 1..=self.set.height {
            indices.clear();
            while let Some((_, index)) = places.current().map(place).filter(|it| it.0 == height) {
                indices.push(index);
                places.next()?;
            }
            writer.put(&indices).map_err(failed)?;
        }
        runs.close()?;
        let out = writer.finish().map_err(failed)?;
        let file = out.into_inner().map_err(std::io::IntoInnerError::into_error);
        Ok((draft, file.at(&**storage, name)?))
    }
}

/// Height and index of a place.
fn place(record: &[u8]) -> (Height, u32) {
    let number = |at: usize| record[at..].first_chunk().map_or(0, |it| u32::from_be_bytes(*it));
    (number(0), number(4))
}
