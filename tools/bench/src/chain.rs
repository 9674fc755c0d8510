//! [`BenchChain`]: the input of benchmarks: block files, hints for them, and the facts known about both.

use crate::error::{AtPath, BenchError};
use crate::manifest::{ChainManifest, FILE_NAME};
use apus_chain::{BlockHash, Header, Network, Params};
use apus_datadir::BlockFiles;
use apus_sync::SourceError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Maximum length of a JSON file.
const JSON_BYTES_MAX: u64 = 64 << 20;

/// A chain on disk.
#[derive(Debug, Clone)]
pub struct BenchChain {
    /// Its name in reports.
    pub name: String,
    /// The folder that contains everything.
    pub folder: PathBuf,
    /// Its network.
    pub network: Network,
    /// The folder of its block files.
    pub blocksdir: PathBuf,
    /// Its hintsfile.
    pub hints: PathBuf,
    /// The maker's description, unverified.
    pub manifest: Option<ChainManifest>,
}

impl BenchChain {
    /// A generated chain: `DIR/blocks`, `DIR/chain.hints` and, if the chain is complete, `DIR/manifest.json`.
    pub fn in_folder(folder: &Path) -> Result<Self, BenchError> {
        let (blocksdir, hints) = (folder.join("blocks"), folder.join("chain.hints"));
        if !blocksdir.is_dir() || !hints.is_file() {
            return Err(BenchError::usage(format!(
                "{}: no generated chain (`blocks` and `chain.hints`) in this folder: make one \
                 with `apus-bench chain make`",
                folder.display()
            )));
        }
        let path = folder.join(FILE_NAME);
        let manifest =
            if path.exists() { Some(ChainManifest::read(folder).at(&path)?) } else { None };
        // Resolve `.` and `..` to a name.
        let name = fs::canonicalize(folder).at(folder)?;
        let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self {
            name,
            folder: folder.to_owned(),
            network: Network::Regtest,
            blocksdir,
            hints,
            manifest,
        })
    }

    /// A name for derived files: another chain in a folder of the same name has a different tip.
    pub(crate) fn mark(&self) -> String {
        let tip = self.manifest.as_ref().map_or("", |manifest| &manifest.tip_hash);
        // Hashes begin with zeros on chains with proof of work, so use the end of the hash.
        let end = tip.char_indices().rev().nth(15).map_or(tip, |(at, _)| &tip[at..]);
        [&self.name, end].join("-")
    }

    /// The hash of a block at height 1: the first one in the files.
    pub(crate) fn block_1(&self) -> Result<BlockHash, BenchError> {
        let files =
            BlockFiles::open(&self.blocksdir, self.network.magic()).map_err(SourceError::from)?;
        let (genesis, mut found) = (Params::of(self.network).genesis_hash, None);
        let mut visit = |raw: &[u8; Header::SIZE], _| {
            let header = Header::parse(raw);
            found = (header.prev == genesis).then(|| header.hash());
            if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        files.scan(&mut visit).map_err(SourceError::from)?;
        let chain = self.network.name();
        Ok(found.ok_or(SourceError::NoChain { chain })?)
    }

    /// The block files, by name.
    pub fn files(&self) -> Result<Vec<PathBuf>, BenchError> {
        block_files(&self.blocksdir)
    }
}

/// The block files in a folder, by name.
pub(crate) fn block_files(folder: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).at(folder)? {
        let path = entry.at(folder)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("blk") && name.ends_with(".dat") {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Reads a file of JSON.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, BenchError> {
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(JSON_BYTES_MAX).read_to_end(&mut text)).at(path)?;
    serde_json::from_slice(&text).map_err(|error| BenchError::file(path, error))
}

// ---- the page cache ----
//
// Warming and dropping are only requests to the system, so check the files afterwards: a read with
// `RWF_NOWAIT` succeeds only for a page in memory. On systems without such a check the share is unknown, and
// is reported as such.

/// Number of pages probed in each file.
const PROBES: u64 = 256;

/// State of the page cache for the block files when a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageCache {
    /// The files were read once before the first run.
    Warm,
    /// The files are dropped from the page cache before every run.
    Dropped,
}

/// Reads all files into the page cache, as far as they fit.
pub(crate) fn warm(files: &[PathBuf]) -> Result<(), BenchError> {
    let mut buffer = vec![0; 1 << 20];
    for path in files {
        let mut file = File::open(path).at(path)?;
        while file.read(&mut buffer).at(path)? > 0 {}
    }
    Ok(())
}

/// Drops all files from the page cache; returns an error if that fails.
pub(crate) fn drop_files(files: &[PathBuf]) -> Result<(), BenchError> {
    forget_all(files)?;
    let share = cached_share(files)?;
    // Probing triggers read-ahead.
    forget_all(files)?;
    match share {
        Some(share) if share > 0.1 => Err(BenchError::usage(format!(
            "the system did not drop the block files from the page cache (it kept {:.0} % of \
             them): run without --cold, or put them on another file system",
            100.0 * share
        ))),
        _ => Ok(()),
    }
}

fn forget_all(files: &[PathBuf]) -> Result<(), BenchError> {
    for path in files {
        let file = File::open(path).at(path)?;
        // The system keeps dirty pages, so write them to disk first.
        file.sync_all().at(path)?;
        forget(&file, path)?;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn forget(file: &File, path: &Path) -> Result<(), BenchError> {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(std::io::Error::from)
        .at(path)
}

#[cfg(not(target_os = "linux"))]
fn forget(_: &File, _: &Path) -> Result<(), BenchError> {
    Err(BenchError::usage(
        "this system cannot drop files from the page cache: run without --cold".to_owned(),
    ))
}

/// Share of the files' pages that are in memory, from samples; `None` if the system cannot report it. The
/// probes may read surrounding pages.
#[cfg(target_os = "linux")]
pub(crate) fn cached_share(files: &[PathBuf]) -> Result<Option<f64>, BenchError> {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    use std::io::IoSliceMut;
    let (mut inside, mut asked) = (0u64, 0u64);
    for path in files {
        let file = File::open(path).at(path)?;
        let length = file.metadata().at(path)?.len();
        for probe in 0..PROBES.min(length) {
            let place = length / PROBES.min(length) * probe;
            let mut byte = [0];
            asked += 1;
            match preadv2(&file, &mut [IoSliceMut::new(&mut byte)], place, ReadWriteFlags::NOWAIT) {
                Ok(_) => inside += 1,
                Err(Errno::AGAIN) => {}
                Err(_) => return Ok(None),
            }
        }
    }
    Ok((asked > 0).then(|| inside as f64 / asked as f64))
}

/// Other systems cannot report this.
#[cfg(not(target_os = "linux"))]
pub(crate) fn cached_share(_: &[PathBuf]) -> Result<Option<f64>, BenchError> {
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_a_chain_with_or_without_a_manifest() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let error = BenchChain::in_folder(folder.path()).unwrap_err();
        assert!(error.to_string().contains("`apus-bench chain make`"), "{error}");
        fs::create_dir(path("blocks")).unwrap();
        for name in ["chain.hints", "blocks/blk00001.dat", "blocks/blk00000.dat", "blocks/xor.dat"]
        {
            fs::write(path(name), "").unwrap();
        }
        let chain = BenchChain::in_folder(folder.path()).unwrap();
        assert_eq!(chain.manifest, None);
        let files: Vec<PathBuf> =
            ["blk00000.dat", "blk00001.dat"].map(|name| path("blocks").join(name)).into();
        assert_eq!(chain.files().unwrap(), files);

        let assumevalid_hash = "cd".repeat(32);
        let manifest = ChainManifest { assumevalid_hash, ..crate::run::tests::manifest() };
        fs::write(path(FILE_NAME), serde_json::to_vec(&manifest).unwrap()).unwrap();
        assert_eq!(BenchChain::in_folder(folder.path()).unwrap().manifest, Some(manifest.clone()));
        let newer = ChainManifest { version: 2, ..manifest };
        fs::write(path(FILE_NAME), serde_json::to_vec(&newer).unwrap()).unwrap();
        let error = BenchChain::in_folder(folder.path()).unwrap_err();
        assert!(error.to_string().contains("manifest version 2"), "{error}");
        fs::write(path(FILE_NAME), "{").unwrap();
        let error = BenchChain::in_folder(folder.path()).unwrap_err();
        assert!(error.to_string().contains(FILE_NAME), "{error}");
    }
}

#[cfg(test)]
mod cache_tests {
    use super::*;

    #[test]
    fn files_just_read_are_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; 3 << 20]).unwrap();
        let files = [path];
        warm(&files).unwrap();
        assert_eq!(cached_share(&files).unwrap().unwrap_or(1.0), 1.0);
        let gone = [folder.path().join("gone")];
        assert!(warm(&gone).is_err() && cached_share(&gone).is_err() && drop_files(&gone).is_err());
        assert_eq!(cached_share(&[]).unwrap(), None);
    }

    #[test]
    fn dropping_caches_succeeds_or_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let files = [folder.path().join("file")];
        std::fs::write(&files[0], vec![1; 3 << 20]).unwrap();
        match drop_files(&files) {
            Ok(()) => assert!(cached_share(&files).unwrap().is_none_or(|share| share <= 0.1)),
            // tmpfs keeps its files in memory.
            Err(error) => assert!(error.to_string().contains("--cold"), "{error}"),
        }
    }
}
