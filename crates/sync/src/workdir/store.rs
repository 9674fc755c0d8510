//! Finished segments on their way to the disk.
//!
//! A disk takes as long to be waited for once as for many files, and on the main chain there are tens of thousands of
//! them. So segments are made durable by the batch: their files are waited for side by side, and their names together.

use super::names::partial_name;
use super::{FinishedRange, Workdir};
use crate::engines::pass::PartialResult;
use crate::error::{StorageResult, SyncError};
use apus_storage::draft_name;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, scope};

/// Threads that wait for the disk at once: file systems write down for all of them together what they note of each.
const WAITING: usize = 8;

impl Workdir<'_> {
    /// Writes the runs of a finished segment into their files, and lets go of the memory that they took. They
    /// are not durable yet, and the segment does not count.
    pub fn write<P>(&self, done: &mut FinishedRange<P>) -> Result<(), SyncError> {
        for run in &mut done.runs {
            if let Some(held) = run.held.as_ref().filter(|_| run.has_file()) {
                let mut file = self.storage.create(&run.name).at(self.storage, &run.name)?;
                file.write_all(&held.bytes).at(self.storage, &run.name)?;
                file.write_all(&held.index.to_bytes()).at(self.storage, &run.name)?;
            }
            run.held = None;
        }
        Ok(())
    }

    /// Makes finished segments durable, and lets go of the memory that they took. Where one cannot be
    /// written, those before it are durable all the same.
    pub fn store<P: PartialResult>(&self, done: &mut [FinishedRange<P>]) -> Result<(), SyncError> {
        let mut new: Vec<&mut FinishedRange<P>> =
            done.iter_mut().filter(|done| !done.stored).collect();
        let mut files = Vec::new();
        let write = |done: &mut &mut FinishedRange<P>| self.write_whole(done, &mut files);
        let failed =
            new.iter_mut().map(write).enumerate().find_map(|(at, it)| Some((at, it.err()?)));
        let (count, failure) = failed.map_or((new.len(), None), |(at, error)| (at, Some(error)));
        self.wait_for(&files)?;
        for done in &new[..count] {
            let name = partial_name(done.range);
            self.storage.rename(&draft_name(&name), &name).at(self.storage, &name)?;
        }
        if count > 0 {
            self.storage.sync_names().at(self.storage, "")?;
        }
        new.iter_mut().take(count).for_each(|done| done.stored = true);
        failure.map_or(Ok(()), Err)
    }

    /// Writes everything of a segment, the partial result under the name of a draft, and adds the files to those that are
    /// to be waited for.
    fn write_whole<P: PartialResult>(
        &self,
        done: &mut FinishedRange<P>,
        files: &mut Vec<String>,
    ) -> Result<(), SyncError> {
        self.write(done)?;
        let name = draft_name(&partial_name(done.range));
        let mut file = self.storage.create(&name).at(self.storage, &name)?;
        file.write_all(&done.to_bytes(&self.plan_id)).at(self.storage, &name)?;
        let runs = done.runs.iter().filter(|run| run.has_file());
        files.extend(runs.map(|run| run.name.clone()).chain([name]));
        Ok(())
    }

    /// Waits until the bytes of files are durable.
    fn wait_for(&self, files: &[String]) -> Result<(), SyncError> {
        let next = AtomicUsize::new(0);
        let wait = || {
            while let Some(name) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.storage.sync(name).at(self.storage, name).inspect_err(|_| {
                    // None of the others waits any longer.
                    next.store(files.len(), Ordering::Relaxed);
                })?;
            }
            Ok(())
        };
        scope(|scope| {
            // Where the system has no threads left, this one waits for all.
            let others = (1..WAITING.min(files.len())).map_while(|_| {
                Builder::new().name("disk".to_owned()).spawn_scoped(scope, wait).ok()
            });
            let others: Vec<_> = others.collect();
            let own = wait();
            let ended = others.into_iter().map(|thread| thread.join());
            let mut ended =
                ended.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            own.and_then(|()| ended.try_for_each(|end| end))
        })
    }
}
