//! A part of the join: reads records of all segments from the object store, and writes coins and prevouts to it.

use super::Joiner;
use super::records::JoinRecords;
use super::segment::{PartOptions, join_part};
use crate::error::ClusterError;
use crate::queue::{
    FoundSlice, JoinDone, JoinFound, JoinPayload, JoinSource, ObjectRef, RunObjects, Sent, digest,
};
use crate::worker::HeldJob;
use crate::worker::scratch::JobFolder;
use apus_sync::engines::mergesync::JoinResult;
use apus_sync::engines::pass::Work;
use apus_sync::error::{StorageResult, SyncError};
use apus_sync::request::RunEnv;
use apus_sync::runs::{
    HashesForm, KeyRange, MergeBudget, PlacesForm, PrevoutForm, RunCursor, RunForm, RunWriter, Runs,
};
use apus_sync::workdir::RunInfo;
use apus_sync::workdir::index::{SECTION_BYTES, prefix};
use std::io::Read;

/// Approximate maximum length of the objects written here.
const OBJECT_BYTES: usize = 32 << 20;

impl Joiner<'_> {
    pub(super) fn join(&self, task: &HeldJob<'_>) -> Result<(Vec<u8>, Work), SyncError> {
        let payload = task.object(&task.job.input)?;
        let payload = JoinPayload::from_bytes(&payload, task.run, task.job.key);
        let payload = payload.map_err(|error| ClusterError::Message(error.to_string()))?;
        let folder: JobFolder = self.scratch.folder()?;
        let storage = folder.storage();
        let env = self.env(&storage);
        let runs =
            JoinRecords::new(task, &storage, self.memory_bytes() / 2).all(&payload.sources)?;
        let bytes = runs.iter().flatten().map(|run| run.bytes).sum();
        let keys = KeyRange { from: payload.from, until: payload.until };
        let leaves = self.numbered.then(|| self.dir.chain());
        let options = PartOptions { leaves, muhash: self.muhash, bare: self.bare };
        let joined = join_part(&env, runs, keys, options, &|| task.lease.alive())?;
        let coins = joined.totals.coins;
        let done = JoinOutput { task, env: &env }.all(joined, &payload.sources)?;
        let work = Work { blocks: 0, bytes, coins };
        Ok((done.to_bytes(task.run, task.job.key), work))
    }
}

/// Writes the results of a part to the object store.
struct JoinOutput<'l> {
    task: &'l HeldJob<'l>,
    env: &'l RunEnv<'l>,
}

impl JoinOutput<'_> {
    fn all(&self, joined: JoinResult, sources: &[JoinSource]) -> Result<JoinDone, SyncError> {
        let JoinResult { answers, places, coins, hashes, totals, muhash, existed, .. } = joined;
        let places = self.one_run::<PlacesForm>(places)?;
        let (mut done, mut all) = (RunObjects::default(), coins.into_iter());
        // A part has one run of coins.
        if let Some(run) = all.next() {
            done = self.run(&run)?;
        }
        let answers = self.found::<PrevoutForm>(answers, sources)?;
        let leaves = hashes.map(|leaves| self.found::<HashesForm>(leaves, sources)).transpose()?;
        let (coins, places, leaves) = (done, self.run(&places)?, leaves.unwrap_or_default());
        Ok(JoinDone { totals, muhash, existed, coins, places, answers, leaves })
    }

    fn budget(&self) -> MergeBudget {
        MergeBudget::new(self.env.memory_bytes / 8)
    }

    /// Merges runs into one, in a file.
    fn one_run<F: RunForm>(&self, runs: Vec<RunInfo>) -> Result<RunInfo, SyncError> {
        let storage = self.env.workdir;
        let runs = Runs::<F>::open(storage, runs, self.budget(), &|_| self.task.heartbeat())?;
        let mut merged = runs.part(KeyRange::ALL)?;
        let name = format!("whole-{}run", F::NAME);
        let mut out = RunWriter::create(storage, name, SECTION_BYTES)?;
        while let Some(record) = merged.next()? {
            out.write(record)?;
        }
        runs.close()?;
        out.finish(false)
    }

    /// Stores a run from a file, with its index.
    fn run(&self, run: &RunInfo) -> Result<RunObjects, SyncError> {
        let storage = self.env.workdir;
        let mut file = storage.open(&run.name, 0).at(storage, &run.name)?;
        let (mut left, mut objects) = (run.file_bytes(), Vec::new());
        while left > 0 {
            let length = left.min(OBJECT_BYTES as u64);
            let mut bytes = vec![0; length as usize];
            file.read_exact(&mut bytes).at(storage, &run.name)?;
            objects.push(self.task.put(bytes)?);
            left -= length;
            self.task.heartbeat()?;
        }
        let RunInfo { bytes, sections, checksum, .. } = *run;
        Ok(RunObjects { bytes, sections, checksum, objects })
    }

    /// Stores records that begin with heights; each segment's records become one slice.
    fn found<F: RunForm>(
        &self,
        runs: Vec<RunInfo>,
        sources: &[JoinSource],
    ) -> Result<JoinFound, SyncError> {
        let mut slices = SlicesLeft::new(self.task, sources.len());
        let all_taken = match &runs[..] {
            // One run in memory needs no merge.
            [RunInfo { held: Some(held), .. }] => {
                let mut run = RunCursor::<F>::new(held);
                for source in sources {
                    slices.bytes.extend_from_slice(run.below(first_behind(source)));
                    slices.end()?;
                }
                run.is_over()
            }
            _ => self.merged::<F>(runs, sources, &mut slices)?,
        };
        if !all_taken {
            let why = "some records belong to blocks outside all segments".to_owned();
            return Err(ClusterError::Message(why).into());
        }
        slices.finish()
    }

    /// Slices the records of several runs. Returns whether all of them belong to segments.
    fn merged<F: RunForm>(
        &self,
        runs: Vec<RunInfo>,
        sources: &[JoinSource],
        slices: &mut SlicesLeft<'_>,
    ) -> Result<bool, SyncError> {
        let storage = self.env.workdir;
        let runs = Runs::<F>::open(storage, runs, self.budget(), &|_| self.task.heartbeat())?;
        let mut merged = runs.part(KeyRange::ALL)?;
        merged.next()?;
        for source in sources {
            let is_below = |record: &&[u8]| prefix(record) < first_behind(source);
            while let Some(record) = merged.current().filter(is_below) {
                slices.bytes.extend_from_slice(record);
                merged.next()?;
            }
            slices.end()?;
        }
        let all_taken = merged.current().is_none();
        runs.close()?;
        Ok(all_taken)
    }
}

/// The first 8 bytes, as a number, of the first record after a segment: records begin with heights.
fn first_behind(source: &JoinSource) -> u64 {
    u64::from(source.range.end) << 32
}

/// Collects the records found for segments, in order, and stores them in objects.
struct SlicesLeft<'s> {
    task: &'s HeldJob<'s>,
    found: JoinFound,
    /// The bytes of the next object.
    bytes: Vec<u8>,
    /// Offset of the current segment's slice in `bytes`.
    start: usize,
    /// The first segment with a slice in `bytes`.
    first: usize,
}

impl<'s> SlicesLeft<'s> {
    fn new(task: &'s HeldJob<'s>, segments: usize) -> Self {
        let found = JoinFound { objects: Vec::new(), slices: Vec::with_capacity(segments) };
        Self { task, found, bytes: Vec::new(), start: 0, first: 0 }
    }

    /// Ends the slice of the current segment.
    fn end(&mut self) -> Result<(), SyncError> {
        let of_segment = &self.bytes[self.start..];
        self.found.slices.push(match of_segment {
            [] => FoundSlice::default(),
            _ => FoundSlice {
                object: self.found.objects.len() as u32,
                offset: self.start as u32,
                bytes: of_segment.len() as u32,
                digest: digest(of_segment),
            },
        });
        self.start = self.bytes.len();
        if self.bytes.len() > OBJECT_BYTES { self.put() } else { Ok(()) }
    }

    /// Stores the object, which others only read in slices.
    fn put(&mut self) -> Result<(), SyncError> {
        let bytes = std::mem::take(&mut self.bytes);
        let digests = self.found.slices[self.first..].iter().map(|slice| slice.digest);
        let of = ObjectRef::of_parts(digests, bytes.len() as u64);
        self.task.put_as(of, bytes)?;
        self.found.objects.push(of);
        (self.start, self.first) = (0, self.found.slices.len());
        self.task.heartbeat()
    }

    fn finish(mut self) -> Result<JoinFound, SyncError> {
        if !self.bytes.is_empty() {
            self.put()?;
        }
        Ok(self.found)
    }
}
