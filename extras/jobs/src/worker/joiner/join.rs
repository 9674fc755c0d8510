//! A part of the join: records of all segments come from the store, coins and answers go there.

use super::Joiner;
use super::records::JoinRecords;
use super::segment::{PartOptions, join_part};
use crate::error::ClusterError;
use crate::queue::{
    FoundSlice, JoinDone, JoinFound, JoinSource, JoinTold, ObjectRef, RunObjects, Sent, digest,
};
use crate::worker::Hand;
use crate::worker::scratch::JobFolder;
use apus_sync::engines::mergesync::Joined;
use apus_sync::engines::pass::Work;
use apus_sync::error::{StorageResult, SyncError};
use apus_sync::request::RunEnv;
use apus_sync::runs::{
    Answers, HashesForm, KeyRange, MergeBudget, PlacesForm, RunCursor, RunForm, RunWriter, Runs,
};
use apus_sync::workdir::RunInfo;
use apus_sync::workdir::index::{SECTION_BYTES, prefix};
use std::io::Read;

/// Objects that are written here are about as long, at most.
const OBJECT_BYTES: usize = 32 << 20;

impl Joiner<'_> {
    pub(super) fn join(&self, hand: &Hand<'_>) -> Result<(Vec<u8>, Work), SyncError> {
        let told = hand.object(&hand.job.input)?;
        let told = JoinTold::from_bytes(&told, hand.run, hand.job.key);
        let told = told.map_err(|error| ClusterError::Message(error.to_string()))?;
        let folder: JobFolder = self.scratch.folder()?;
        let storage = folder.storage();
        let env = self.env(&storage);
        let runs = JoinRecords::new(hand, &storage, self.memory_bytes() / 2).all(&told.sources)?;
        let bytes = runs.iter().flatten().map(|run| run.bytes).sum();
        let keys = KeyRange { from: told.from, until: told.until };
        let leaves = self.numbered.then(|| self.dir.chain());
        let options = PartOptions { leaves, muhash: self.muhash, bare: self.bare };
        let joined = join_part(&env, runs, keys, options, &|| hand.lease.alive())?;
        let coins = joined.totals.coins;
        let done = Leaving { hand, env: &env }.all(joined, &told.sources)?;
        let work = Work { blocks: 0, bytes, coins };
        Ok((done.to_bytes(hand.run, hand.job.key), work))
    }
}

/// What a part leaves, on its way to the store.
struct Leaving<'l> {
    hand: &'l Hand<'l>,
    env: &'l RunEnv<'l>,
}

impl Leaving<'_> {
    fn all(&self, joined: Joined, sources: &[JoinSource]) -> Result<JoinDone, SyncError> {
        let Joined { answers, places, coins, hashes, totals, muhash, existed } = joined;
        let places = self.one_run::<PlacesForm>(places)?;
        let (mut done, mut all) = (RunObjects::default(), coins.into_iter());
        // A part has one run of coins.
        if let Some(run) = all.next() {
            done = self.run(&run)?;
        }
        let answers = self.found::<Answers>(answers, sources)?;
        let leaves = hashes.map(|leaves| self.found::<HashesForm>(leaves, sources)).transpose()?;
        let (coins, places, leaves) = (done, self.run(&places)?, leaves.unwrap_or_default());
        Ok(JoinDone { totals, muhash, existed, coins, places, answers, leaves })
    }

    fn budget(&self) -> MergeBudget {
        MergeBudget::new(self.env.memory_bytes / 8)
    }

    /// Some runs as one, in a file.
    fn one_run<F: RunForm>(&self, runs: Vec<RunInfo>) -> Result<RunInfo, SyncError> {
        let storage = self.env.workdir;
        let runs = Runs::<F>::open(storage, runs, self.budget(), &|| self.hand.go_on())?;
        let mut merged = runs.part(KeyRange::ALL)?;
        let name = format!("whole-{}run", F::NAME);
        let mut out = RunWriter::create(storage, name, SECTION_BYTES)?;
        while let Some(record) = merged.next()? {
            out.write(record)?;
        }
        runs.close()?;
        out.finish(false)
    }

    /// Puts a run that is in a file, with its index.
    fn run(&self, run: &RunInfo) -> Result<RunObjects, SyncError> {
        let storage = self.env.workdir;
        let mut file = storage.open(&run.name, 0).at(storage, &run.name)?;
        let (mut left, mut objects) = (run.file_bytes(), Vec::new());
        while left > 0 {
            let length = left.min(OBJECT_BYTES as u64);
            let mut bytes = vec![0; length as usize];
            file.read_exact(&mut bytes).at(storage, &run.name)?;
            objects.push(self.hand.put(bytes)?);
            left -= length;
            self.hand.go_on()?;
        }
        let RunInfo { bytes, sections, checksum, .. } = *run;
        Ok(RunObjects { bytes, sections, checksum, objects })
    }

    /// Puts records that begin with heights, those of each segment together.
    fn found<F: RunForm>(
        &self,
        runs: Vec<RunInfo>,
        sources: &[JoinSource],
    ) -> Result<JoinFound, SyncError> {
        let mut slices = SlicesLeft::new(self.hand, sources.len());
        let all_taken = match &runs[..] {
            // What all of it had room for: nothing is merged.
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
            let why = "some records are of blocks that are in no segment".to_owned();
            return Err(ClusterError::Message(why).into());
        }
        slices.finish()
    }

    /// Does so with the records of several runs. Whether all of them are of segments.
    fn merged<F: RunForm>(
        &self,
        runs: Vec<RunInfo>,
        sources: &[JoinSource],
        slices: &mut SlicesLeft<'_>,
    ) -> Result<bool, SyncError> {
        let storage = self.env.workdir;
        let runs = Runs::<F>::open(storage, runs, self.budget(), &|| self.hand.go_on())?;
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

/// With which number records begin that lie behind a segment: they begin with heights.
fn first_behind(source: &JoinSource) -> u64 {
    u64::from(source.range.end) << 32
}

/// What was found for segments, one after the other, on its way into objects.
struct SlicesLeft<'s> {
    hand: &'s Hand<'s>,
    found: JoinFound,
    /// The next object.
    bytes: Vec<u8>,
    /// Where the slice of the segment at hand begins in it.
    start: usize,
    /// The first segment that has something in it.
    first: usize,
}

impl<'s> SlicesLeft<'s> {
    fn new(hand: &'s Hand<'s>, segments: usize) -> Self {
        let found = JoinFound { objects: Vec::new(), slices: Vec::with_capacity(segments) };
        Self { hand, found, bytes: Vec::new(), start: 0, first: 0 }
    }

    /// A segment has all of its records.
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

    /// Puts the object. Others read it in slices alone.
    fn put(&mut self) -> Result<(), SyncError> {
        let bytes = std::mem::take(&mut self.bytes);
        let digests = self.found.slices[self.first..].iter().map(|slice| slice.digest);
        let of = ObjectRef::of_parts(digests, bytes.len() as u64);
        self.hand.put_as(of, bytes)?;
        self.found.objects.push(of);
        (self.start, self.first) = (0, self.found.slices.len());
        self.hand.go_on()
    }

    fn finish(mut self) -> Result<JoinFound, SyncError> {
        if !self.bytes.is_empty() {
            self.put()?;
        }
        Ok(self.found)
    }
}
