//! [`Getting`]: runs that machines put as objects, in memory or in files of the work folder.
//!
//! A part of the run's memory is theirs: the coordinator has not much else to keep there. What is lost of them with the process
//! is got again by the next start.

use crate::desk::Useless;
use crate::queue::{ObjectRef, RunObjects};
use apus_sync::error::StorageResult;
use apus_sync::request::RunEnv;
use apus_sync::workdir::RunInfo;
use apus_sync::workdir::index::RunIndex;
use std::cell::Cell;
use std::io::Write;

/// Gets an object; what is of no use is the result that named it.
pub(super) type GetObject<'g> = dyn Fn(&ObjectRef) -> Result<Vec<u8>, Useless> + 'g;

/// See the module.
pub(super) struct Getting<'g> {
    env: &'g RunEnv<'g>,
    /// Gets an object.
    object: &'g GetObject<'g>,
    /// Memory that is left for them, in bytes.
    left: Cell<u64>,
}

impl<'g> Getting<'g> {
    pub(super) fn new(env: &'g RunEnv<'g>, object: &'g GetObject<'g>) -> Self {
        Self { env, object, left: Cell::new(env.memory_bytes / 4) }
    }

    /// Gets a run into memory, or where there is too little into a file of the work folder.
    pub(super) fn run(&self, run: &RunObjects, name: String) -> Result<RunInfo, Useless> {
        let RunObjects { bytes, sections, checksum, ref objects } = *run;
        let info = RunInfo { name, bytes, sections, checksum, held: None };
        let length = objects.iter().try_fold(0_u64, |all, it| all.checked_add(it.bytes));
        let length = length.filter(|all| bytes <= 1 << 48 && info.file_bytes() == *all);
        let too_short =
            || Useless::Result("its coins are not as long as they should be".to_owned());
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
        take: &mut dyn FnMut(Vec<u8>) -> Result<(), Useless>,
    ) -> Result<(), Useless> {
        objects.iter().try_for_each(|it| take((self.object)(it)?))
    }

    fn held(&self, objects: &[ObjectRef], info: RunInfo) -> Result<RunInfo, Useless> {
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
        let damaged = || Useless::Result("its coins are not what their index says".to_owned());
        held.filter(is_it).ok_or_else(damaged)
    }

    fn written(&self, objects: &[ObjectRef], info: RunInfo) -> Result<RunInfo, Useless> {
        let (storage, here) = (self.env.workdir, Useless::Here);
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
    use apus_sync::progress::Silent;
    use apus_sync::runs::{CoinsForm, KeyRange, MergeBudget, Runs, cut};
    use std::sync::atomic::AtomicBool;

    /// A run of so many coins, with its index behind it.
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
    fn runs_are_in_memory_while_there_is_some_and_then_in_files() {
        let (desk, interrupt) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let storage = DirStorage::new(desk.path());
        let env = RunEnv::new(Params::of(Network::Regtest), &storage, &Silent, &interrupt);
        let (mut told, bytes) = run(3000);
        let objects: Vec<&[u8]> = bytes.chunks(300_000).collect();
        told.objects = objects.iter().map(|bytes| ObjectRef::of(bytes)).collect();
        let get = |of: &ObjectRef| {
            let found = objects.iter().find(|bytes| of.is_of(bytes));
            Ok(found.unwrap().to_vec())
        };
        let getting = Getting::new(&env, &get);
        let got = |name: &str| getting.run(&told, name.to_owned()).ok().unwrap();
        let (first, second) = (got("first"), got("second"));
        assert!(first.held.is_some() && second.held.is_none());
        let budget = MergeBudget::new(1 << 20);
        for run in [first, second] {
            let run = Runs::<CoinsForm>::open(&storage, vec![run], budget, &|| Ok(())).unwrap();
            let mut coins = run.part(KeyRange::ALL).unwrap();
            let mut read = 0;
            while coins.next().unwrap().is_some() {
                read += 1;
            }
            assert_eq!(read, 3000);
        }
    }

    #[test]
    fn runs_that_are_not_what_was_said_are_of_no_use() {
        let (desk, interrupt) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let storage = DirStorage::new(desk.path());
        let env = RunEnv::new(Params::of(Network::Regtest), &storage, &Silent, &interrupt);
        let (told, bytes) = run(100);
        let refused = |told: RunObjects, bytes: &[u8]| {
            let get = |_: &ObjectRef| Ok(bytes.to_vec());
            let told = RunObjects { objects: vec![ObjectRef::of(bytes)], ..told };
            match Getting::new(&env, &get).run(&told, "run".to_owned()) {
                Err(Useless::Result(why)) => Some(why),
                Err(Useless::Here(error)) => panic!("{error}"),
                Ok(_) => None,
            }
        };
        assert_eq!(refused(told.clone(), &bytes), None);
        let short = refused(told.clone(), &bytes[1..]).unwrap();
        assert!(short.contains("not as long"), "{short}");
        // So many that they cannot be added up.
        let endless = vec![ObjectRef { digest: [1; 32], bytes: u64::MAX }; 2];
        let endless = RunObjects { objects: endless, ..told.clone() };
        let get = |_: &ObjectRef| panic!("none is asked for");
        let refused_at_once = Getting::new(&env, &get).run(&endless, "run".to_owned());
        assert!(matches!(refused_at_once, Err(Useless::Result(_))));
        let mut other = bytes.clone();
        other[50] ^= 1;
        let checksum = [0; 16];
        for (told, bytes) in [(told.clone(), &other), (RunObjects { checksum, ..told }, &bytes)] {
            let other = refused(told, bytes).unwrap();
            assert!(other.contains("not what their index says"), "{other}");
        }
    }
}
