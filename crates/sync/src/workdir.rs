//! The work folder: what makes a run resumable at any moment.
//!
//! A finished segment is two files, written in this order: its run of coins, synced; then its
//! partial result, which names the run's length and SHA-256 and appears under its name only whole.
//! So a segment is either done or not, whenever the power goes. Nothing else in the folder counts:
//! what else a crash left is removed by the next start. Formats: `docs/formats/workdir.md`.

use crate::error::{StorageResult, SyncError};
use crate::plan::{Plan, VERSION};
use crate::runs::RunInfo;
use apus_chain::{HeightRange, Reader};
use apus_engine::storage::{Storage, read_whole, write_atomically};
use apus_engine::swiftsync::{Finished, Partial};
use apus_hash::sha256;
use std::io::Write;

const PLAN: &str = "plan";

/// Begins the names of runs that were merged from others.
pub(crate) const MERGE: &str = "merge-";

/// Begins the names of a snapshot's coins in the order of segments.
pub(crate) const SPILL: &str = "spill-";

const MAGIC: &[u8; 8] = b"APUSPART";

/// Greatest length of a plan: four bytes for each of at most as many segments as heights exist.
const PLAN_BYTES_MAX: u64 = 64 << 20;

/// Greatest length of a partial result: the hints of a segment and its coinbases dominate.
const PARTIAL_BYTES_MAX: u64 = 1 << 30;

/// A finished segment as it lies in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    /// Its heights.
    pub range: HeightRange,
    /// Its result.
    pub partial: Partial,
    /// Its coins.
    pub run: RunInfo,
    /// Its hints, one encoded element a block.
    pub hints: Vec<u8>,
}

/// A folder with a run's progress.
pub(crate) struct Workdir<'a> {
    storage: &'a dyn Storage,
    /// SHA-256 of the plan: partial results of another plan do not count.
    plan_id: [u8; 32],
}

fn run_name(range: HeightRange) -> String {
    format!("segment-{:08}-{:08}.run", range.start, range.end)
}

fn partial_name(range: HeightRange) -> String {
    format!("segment-{:08}-{:08}.part", range.start, range.end)
}

/// Whether a file in the folder is one that a run makes.
fn is_ours(name: &str) -> bool {
    let segment = name.starts_with("segment-")
        && [".run", ".part", ".part.tmp"].iter().any(|end| name.ends_with(end));
    let scratch = (name.starts_with(MERGE) || name.starts_with(SPILL)) && name.ends_with(".run");
    segment || scratch || name == PLAN || name == "plan.tmp" || name == LOCK
}

/// Name of the file by which a run keeps others out of its folder.
pub const LOCK: &str = "lock";

impl<'a> Workdir<'a> {
    /// Reads the plan of an earlier start, if there is one. A folder that holds files which no run
    /// makes, and no plan, is not ours to use.
    pub(crate) fn read_plan(storage: &dyn Storage) -> Result<Option<Plan>, SyncError> {
        let names = storage.names().at(storage, "")?;
        if names.iter().any(|name| name == PLAN) {
            let bytes = read_whole(storage, PLAN, PLAN_BYTES_MAX).at(storage, PLAN)?;
            let damaged = || SyncError::WorkdirDamaged { file: storage.describe(PLAN) };
            return Plan::from_bytes(&bytes).map(Some).ok_or_else(damaged);
        }
        match names.iter().find(|name| !is_ours(name)) {
            Some(name) => Err(SyncError::OtherRun {
                folder: storage.describe(""),
                what: format!("it holds {name}, which is no file of a run"),
            }),
            None => Ok(None),
        }
    }

    /// Removes what an earlier start left that no later one can use: runs merged on the way and
    /// the spilled coins of a snapshot.
    pub(crate) fn clear_scratch(storage: &'a dyn Storage) -> Result<(), SyncError> {
        let workdir = Self { storage, plan_id: [0; 32] };
        workdir.remove(|name| name.starts_with(MERGE) || name.starts_with(SPILL))
    }

    /// Starts a run: makes its plan durable.
    pub(crate) fn start(storage: &'a dyn Storage, plan: &Plan) -> Result<Self, SyncError> {
        let bytes = plan.to_bytes();
        let workdir = Self { storage, plan_id: sha256(&bytes) };
        workdir.remove(|name| name != LOCK && !name.starts_with(SPILL))?;
        write_atomically(storage, PLAN, &bytes).at(storage, PLAN)?;
        Ok(workdir)
    }

    /// Goes on with a run: its finished segments, and the folder cleared of everything else.
    pub(crate) fn resume(
        storage: &'a dyn Storage,
        plan: &Plan,
    ) -> Result<(Self, Vec<Done>), SyncError> {
        let workdir = Self { storage, plan_id: sha256(&plan.to_bytes()) };
        let done: Vec<Done> =
            plan.segments.iter().filter_map(|&range| workdir.read(range)).collect();
        let keep = |name: &str| {
            name == PLAN
                || name == LOCK
                || name.starts_with(SPILL)
                || done.iter().any(|d| name == d.run.name || name == partial_name(d.range))
        };
        workdir.remove(|name| !keep(name))?;
        Ok((workdir, done))
    }

    /// Makes a finished segment durable.
    pub(crate) fn store(
        &self,
        range: HeightRange,
        finished: Finished,
        hints: Vec<u8>,
    ) -> Result<Done, SyncError> {
        let name = run_name(range);
        let mut file = self.storage.create(&name).at(self.storage, &name)?;
        file.write_all(&finished.run).at(self.storage, &name)?;
        file.sync().at(self.storage, &name)?;
        drop(file);
        let run = RunInfo { bytes: finished.run.len() as u64, sha256: sha256(&finished.run), name };
        let done = Done { range, partial: finished.partial, run, hints };
        let name = partial_name(range);
        write_atomically(self.storage, &name, &self.encode(&done)).at(self.storage, &name)?;
        Ok(done)
    }

    /// Forgets a finished segment, so that the next start processes it anew.
    pub(crate) fn forget(&self, run_name: &str) -> Result<(), SyncError> {
        let partial = run_name.replace(".run", ".part");
        self.storage.remove(&partial).at(self.storage, &partial)?;
        self.storage.sync_names().at(self.storage, "")
    }

    /// Removes everything that a run made, the plan last.
    pub(crate) fn discard(storage: &'a dyn Storage) -> Result<(), SyncError> {
        let workdir = Self { storage, plan_id: [0; 32] };
        workdir.remove(|name| name != LOCK && name != PLAN)?;
        workdir.remove(|name| name == PLAN)
    }

    /// Removes everything that a run made after its verdict was a failure. The plan, and with it
    /// the key, goes first: whatever survives a crash from here on is worth nothing.
    pub(crate) fn wipe(&self) -> Result<(), SyncError> {
        self.storage.remove(PLAN).at(self.storage, PLAN)?;
        self.storage.sync_names().at(self.storage, "")?;
        self.remove(|name| name != LOCK)
    }

    fn remove(&self, which: impl Fn(&str) -> bool) -> Result<(), SyncError> {
        for name in self.storage.names().at(self.storage, "")? {
            if is_ours(&name) && which(&name) {
                self.storage.remove(&name).at(self.storage, &name)?;
            }
        }
        self.storage.sync_names().at(self.storage, "")
    }

    fn encode(&self, done: &Done) -> Vec<u8> {
        let mut out = Vec::with_capacity(2048 + done.hints.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.plan_id);
        out.extend_from_slice(&done.range.start.to_le_bytes());
        out.extend_from_slice(&done.range.end.to_le_bytes());
        out.extend_from_slice(&done.run.bytes.to_le_bytes());
        out.extend_from_slice(&done.run.sha256);
        out.extend_from_slice(&(done.hints.len() as u32).to_le_bytes());
        out.extend_from_slice(&done.hints);
        done.partial.write(&mut out);
        let checksum = sha256(&out);
        out.extend_from_slice(&checksum);
        out
    }

    /// A segment, if it is done: its partial result whole and of this plan, its run there.
    fn read(&self, range: HeightRange) -> Option<Done> {
        let bytes = read_whole(self.storage, &partial_name(range), PARTIAL_BYTES_MAX).ok()?;
        let done = self.decode(range, &bytes)?;
        let length = self.storage.len(&done.run.name).ok()?;
        (length == done.run.bytes).then_some(done)
    }

    fn decode(&self, range: HeightRange, bytes: &[u8]) -> Option<Done> {
        let (body, checksum) = bytes.split_last_chunk::<32>()?;
        let mut reader = Reader::new(body);
        let ours = sha256(body) == *checksum
            && reader.array().ok()? == MAGIC
            && reader.u32().ok()? == VERSION
            && *reader.array().ok()? == self.plan_id
            && reader.u32().ok()? == range.start
            && reader.u32().ok()? == range.end;
        if !ours {
            return None;
        }
        let run_bytes = reader.u64().ok()?;
        let run =
            RunInfo { name: run_name(range), bytes: run_bytes, sha256: *reader.array().ok()? };
        let hints_bytes = reader.u32().ok()? as usize;
        let hints = reader.take(hints_bytes).ok()?.to_vec();
        let partial = Partial::read(&mut reader)?;
        reader.finish().ok()?;
        (partial.ranges() == [range]).then_some(Done { range, partial, run, hints })
    }
}
