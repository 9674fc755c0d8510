//! [`FinishedRange`]: a finished segment, and [`RunInfo`], what it leaves for others. Their byte form is here,
//! their files are the [work folder](super::Workdir)'s.

use super::index::{Checksum, RunIndex, checksum};
use super::names::{is_asked_for, partial_name, run_name};
use super::sealed;
use crate::engines::pass::{FinishedSegment, PartialResult, Pass, RunKind};
use apus_chain::{HeightRange, Reader};
use apus_hash::release;
use std::sync::Arc;

/// First bytes of a segment's partial result.
const MAGIC: &[u8; 8] = b"APUSPART";

/// Version of its file.
const VERSION: u32 = 6;

/// A finished segment as it lies in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedRange<P> {
    /// Its heights.
    pub range: HeightRange,
    /// Its result.
    pub partial: P,
    /// Its runs, one of each kind that the pass leaves.
    pub runs: Vec<RunInfo>,
    /// Whether it is durable, so that a later start finds it done.
    pub stored: bool,
}

/// The finished segments of a pass.
pub type SegmentsOf<P> = Vec<FinishedRange<<P as Pass>::Partial>>;

/// A run as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunInfo {
    /// Name in the storage.
    pub name: String,
    /// Length in bytes, without its index.
    pub bytes: u64,
    /// How many sections it has: their index follows the run in its file.
    pub sections: u32,
    /// Checksum of the index.
    pub checksum: Checksum,
    /// The bytes themselves, where they are in memory and in no file yet.
    pub held: Option<Arc<HeldRun>>,
}

/// A run in memory.
#[derive(Debug, PartialEq, Eq)]
pub struct HeldRun {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its sections.
    pub index: Arc<RunIndex>,
}

impl Drop for HeldRun {
    fn drop(&mut self) {
        release(std::mem::take(&mut self.bytes));
    }
}

impl RunInfo {
    /// A run that is in memory.
    pub fn held(name: String, bytes: Vec<u8>, index: RunIndex) -> Self {
        Self {
            name,
            bytes: bytes.len() as u64,
            sections: index.sections.len() as u32,
            checksum: checksum(&index.to_bytes()),
            held: Some(Arc::new(HeldRun { bytes, index: Arc::new(index) })),
        }
    }

    /// Whether it is in a file of its own once it is stored. What only some runs ask for is empty in the others.
    pub fn has_file(&self) -> bool {
        self.bytes > 0 || !is_asked_for(&self.name)
    }

    /// Length of its file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.bytes + u64::from(self.sections) * RunIndex::ENTRY_BYTES
    }
}

impl<P> FinishedRange<P> {
    /// A segment that is finished, but only in memory. Its runs are of these kinds.
    pub fn held(range: HeightRange, finished: FinishedSegment<P>, kinds: &[RunKind]) -> Self {
        let run = |(kind, run): (&RunKind, Vec<u8>)| {
            let index = kind.index(&run);
            RunInfo::held(run_name(range, *kind), run, index)
        };
        let FinishedSegment { partial, runs } = finished;
        let runs = kinds.iter().zip(runs).map(run).collect();
        Self { range, partial, runs, stored: false }
    }

    /// The same with what `to` makes of its result.
    pub fn map<R>(self, to: impl FnOnce(P) -> R) -> FinishedRange<R> {
        let Self { range, partial, runs, stored } = self;
        FinishedRange { range, partial: to(partial), runs, stored }
    }

    /// Memory that it takes until it is written.
    pub fn held_bytes(&self) -> u64 {
        self.runs.iter().filter(|run| run.held.is_some()).map(|run| run.bytes).sum()
    }

    /// Its run of a kind.
    pub fn run(&self, kind: RunKind) -> Option<&RunInfo> {
        let name = run_name(self.range, kind);
        self.runs.iter().find(|run| run.name == name)
    }

    /// Its runs of some kinds, which it has no more.
    pub fn take_runs(&mut self, kinds: &[RunKind]) -> Vec<RunInfo> {
        let names: Vec<String> = kinds.iter().map(|kind| run_name(self.range, *kind)).collect();
        self.runs.extract_if(.., |run| names.contains(&run.name)).collect()
    }

    /// The names of its files.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let runs = self.runs.iter().map(|run| run.name.clone());
        runs.chain([partial_name(self.range)])
    }
}

/// The runs of a kind that segments left.
pub fn runs_of<P>(done: &[FinishedRange<P>], kind: RunKind) -> Vec<RunInfo> {
    done.iter().filter_map(|done| done.run(kind)).cloned().collect()
}

impl<P: PartialResult> FinishedRange<P> {
    /// The byte form, under a plan: see `docs/formats/workdir.md`.
    pub(super) fn to_bytes(&self, plan_id: &[u8; 32]) -> Vec<u8> {
        let mut out = sealed::begin(MAGIC, VERSION);
        out.extend_from_slice(plan_id);
        out.extend_from_slice(&self.range.start.to_le_bytes());
        out.extend_from_slice(&self.range.end.to_le_bytes());
        for run in &self.runs {
            out.extend_from_slice(&run.bytes.to_le_bytes());
            out.extend_from_slice(&run.sections.to_le_bytes());
            out.extend_from_slice(&run.checksum);
        }
        self.partial.write(&mut out);
        sealed::seal(out)
    }

    /// Reads the byte form; none where it is damaged, or not of this plan, these heights and these kinds
    /// of runs.
    pub(super) fn from_bytes(
        bytes: &[u8],
        plan_id: &[u8; 32],
        range: HeightRange,
        kinds: &[RunKind],
    ) -> Option<Self> {
        let mut reader: Reader<'_> = sealed::open(bytes, MAGIC, VERSION)?;
        let ours = reader.array().ok()? == plan_id
            && reader.u32().ok()? == range.start
            && reader.u32().ok()? == range.end;
        if !ours {
            return None;
        }
        let mut runs = Vec::with_capacity(kinds.len());
        for kind in kinds {
            let (bytes, sections) = (reader.u64().ok()?, reader.u32().ok()?);
            let (name, checksum) = (run_name(range, *kind), *reader.array().ok()?);
            runs.push(RunInfo { name, bytes, sections, checksum, held: None });
        }
        let partial = P::read(&mut reader)?;
        reader.finish().ok()?;
        (partial.ranges() == [range]).then_some(Self { range, partial, runs, stored: true })
    }
}
