//! [`ObjectFetcher`]: fetches runs from the object store into memory or into files of the work folder.
//!
//! Runs may fill a part of the memory budget, since the coordinator keeps little else in memory. A restarted
//! coordinator fetches them again.

use crate::queue::{ObjectRef, RunObjects};
use crate::scheduler::AnswerError;
use apus_sync::error::StorageResult;
use apus_sync::request::RunEnv;
use apus_sync::workdir::RunInfo;
use apus_sync::workdir::index::RunIndex;
use std::cell::Cell;
use std::io::Write;

/// Reads an object. If it is lost, the result that named it is invalid.
pub(super) type GetObject<'g> = dyn Fn(&ObjectRef) -> Result<Vec<u8>, AnswerError> + 'g;

/// Fetches runs.
pub(super) struct ObjectFetcher<'g> {
    env: &'g RunEnv<'g>,
    /// Reads an object.
    object: &'g GetObject<'g>,
    /// Remaining memory, in bytes.
    left: Cell<u64>,
}

impl<'g> ObjectFetcher<'g> {
    pub(super) fn new(env: &'g RunEnv<'g>, object: &'g GetObject<'g>) -> Self {
        Self { env, object, left: Cell::new(env.memory_bytes / 4) }
    }

    /// Fetches a run into memory, or into a file of the work folder if memory is short.
    pub(super) fn run(&self, run: &RunObjects, name: String) -> Result<RunInfo, AnswerError> {
        let RunObjects { bytes, sections, checksum, ref objects } = *run;
        let info = RunInfo { name, bytes, sections, checksum, held: None };
        let length = objects.iter().try_fold(0_u64, |all, it| all.checked_add(it.bytes));
        let length = length.filter(|all| bytes <= 1 << 48 && info.file_bytes() == *all);
        let too_short = || AnswerError::Invalid("its coins have the wrong length".to_owned());
        match self.left.get().checked_sub(length.ok_or_else(too_short)?) {
            Some(left) => {
                let held = self.held(objects, info)?;
                self.left.set(left);
                Ok(held)
            }
            None => self.written(objects, info),
        }
    }

    fn each(
        &self,
        objects: &[ObjectRef],
        take: &mut dyn FnMut(Vec<u8>) -> Result<(), AnswerError>,
    ) -> Result<(), AnswerError> {
        objects.iter().try_for_each(|it| take((self.object)(it)?))
    }

    fn held(&self, objects: &[ObjectRef], info: RunInfo) -> Result<RunInfo, AnswerError> {
        let mut run = Vec::new();
        self.each(objects, &mut |bytes| {
            if run.is_empty() {
                run = bytes;
            } else {
                run.extend_from_slice(&bytes);
            }
            Ok(())
        })?;
        let index = run.split_at_checked(info.bytes as usize).and_then(|(records, index)| {
            RunIndex::read(index, info.bytes).filter(|index| index.is_of(records))
        });
        let held = index.map(|index| {
            run.truncate(info.bytes as usize);
            RunInfo::held(info.name.clone(), run, index)
        });
        let is_it =
            |held: &RunInfo| (held.sections, held.checksum) == (info.sections, info.checksum);
        let damaged = || AnswerError::Invalid("its coins do not match their index".to_owned());
        held.filter(is_it).ok_or_else(damaged)
    }

    fn written(&self, objects: &[ObjectRef], info: RunInfo) -> Result<RunInfo, AnswerError> {
        let (storage, here) = (self.env.workdir, AnswerError::Local);
        let mut file = storage.create(&info.name).at(storage, &info.name).map_err(here)?;
        self.each(objects, &mut |bytes| {
            file.write_all(&bytes).at(storage, &info.name).map_err(here)
        })?;
        file.flush().at(storage, &info.name).map_err(here)?;
        Ok(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{Network, Params};
    use apus_storage::DirStorage;
    use apus_sync::progress::SilentObserver;
    use apus_sync::runs::{CoinsForm, KeyRange, MergeBudget, Runs, cut};
    use std::sync::atomic::AtomicBool;

    /// A run of `coins` coins, followed by its index.
    fn run(coins: u16) -> (RunObjects, Vec<u8>) {
        let mut bytes = Vec::new();
        for coin in 0..coins {
            let mut txid = [0; 32];
            txid[..2].copy_from_slice(&coin.to_be_bytes());
            bytes.extend_from_slice(&txid);
            bytes.extend_from_slice(&200_u32.to_le_bytes());
            bytes.extend_from_slice(&[7; 200]);
        }
        let index = cut::<CoinsForm>(&bytes);
        let info = RunInfo::held(String::new(), bytes.clone(), index.clone());
        let RunInfo { bytes: length, sections, checksum, .. } = info;
        bytes.extend_from_slice(&index.to_bytes());
        (RunObjects { bytes: length, sections, checksum, objects: Vec::new() }, bytes)
    }

    #[test]
    fn runs_go_into_files_when_memory_is_full() {
        let (temp, interrupt) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let storage = DirStorage::new(temp.path());
        let env = RunEnv::new(Params::of(Network::Regtest), &storage, &SilentObserver, &interrupt);
        let (mut listed, bytes) = run(3000);
        let objects: Vec<&[u8]> = bytes.chunks(300_000).collect();
        listed.objects = objects.iter().map(|bytes| ObjectRef::of(bytes)).collect();
        let get = |of: &ObjectRef| {
            let found = objects.iter().find(|bytes| of.is_of(bytes));
            Ok(found.unwrap().to_vec())
        };
        let fetcher = ObjectFetcher::new(&env, &get);
        let got = |name: &str| fetcher.run(&listed, name.to_owned()).ok().unwrap();
        let (first, second) = (got("first"), got("second"));
        assert!(first.held.is_some() && second.held.is_none());
        let budget = MergeBudget::new(1 << 20);
        for run in [first, second] {
            let run = Runs::<CoinsForm>::open(&storage, vec![run], budget, &|_| Ok(())).unwrap();
            let mut coins = run.part(KeyRange::ALL).unwrap();
            let mut read = 0;
            while coins.next().unwrap().is_some() {
                read += 1;
            }
            assert_eq!(read, 3000);
        }
    }

    #[test]
    fn runs_that_differ_from_their_description_are_refused() {
        let (temp, interrupt) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let storage = DirStorage::new(temp.path());
        let env = RunEnv::new(Params::of(Network::Regtest), &storage, &SilentObserver, &interrupt);
        let (listed, bytes) = run(100);
        let refused = |listed: RunObjects, bytes: &[u8]| {
            let get = |_: &ObjectRef| Ok(bytes.to_vec());
            let listed = RunObjects { objects: vec![ObjectRef::of(bytes)], ..listed };
            match ObjectFetcher::new(&env, &get).run(&listed, "run".to_owned()) {
                Err(AnswerError::Invalid(why)) => Some(why),
                Err(AnswerError::Local(error)) => panic!("{error}"),
                Ok(_) => None,
            }
        };
        assert_eq!(refused(listed.clone(), &bytes), None);
        let short = refused(listed.clone(), &bytes[1..]).unwrap();
        assert!(short.contains("wrong length"), "{short}");
        // The sum of the lengths overflows.
        let endless = vec![ObjectRef { digest: [1; 32], bytes: u64::MAX }; 2];
        let endless = RunObjects { objects: endless, ..listed.clone() };
        let get = |_: &ObjectRef| panic!("no object is fetched");
        let refused_at_once = ObjectFetcher::new(&env, &get).run(&endless, "run".to_owned());
        assert!(matches!(refused_at_once, Err(AnswerError::Invalid(_))));
        let mut other = bytes.clone();
        other[50] ^= 1;
        let checksum = [0; 16];
        for (listed, bytes) in
            [(listed.clone(), &other), (RunObjects { checksum, ..listed }, &bytes)]
        {
            let other = refused(listed, bytes).unwrap();
            assert!(other.contains("do not match their index"), "{other}");
        }
    }
}
