//! [`Chain`]: what is measured on: block files, hints for them, and what is known of both.

use super::error::{At, RunError};
use crate::floor::WorkError;
use crate::manifest::{FILE_NAME, Manifest};
use apus_chain::{BlockHash, Header, Network, Params};
use apus_datadir::BlockFiles;
use apus_sync::SourceError;
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Greatest length of a file of JSON that is read.
const JSON_BYTES_MAX: u64 = 64 << 20;

/// A chain on disk.
#[derive(Debug, Clone)]
pub struct Chain {
    /// What to call it.
    pub name: String,
    /// The folder that everything is in.
    pub folder: PathBuf,
    /// Which network's.
    pub network: Network,
    /// The folder of its block files.
    pub blocksdir: PathBuf,
    /// Its hintsfile.
    pub hints: PathBuf,
    /// What its maker says of it. It is no proof of anything.
    pub manifest: Option<Manifest>,
}

impl Chain {
    /// A generated chain: `DIR/blocks`, `DIR/chain.hints` and, if it is whole, `DIR/manifest.json`.
    pub fn in_folder(folder: &Path) -> Result<Self, RunError> {
        let (blocksdir, hints) = (folder.join("blocks"), folder.join("chain.hints"));
        if !blocksdir.is_dir() || !hints.is_file() {
            return Err(RunError::Usage(format!(
                "{} holds no generated chain, which would be `blocks` and `chain.hints`: make one \
                 with `apus-bench chain make`",
                folder.display()
            )));
        }
        let path = folder.join(FILE_NAME);
        let manifest = if path.exists() { Some(Manifest::read(folder).at(&path)?) } else { None };
        // `.` and `..` have names too, once they are looked up.
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

    /// A name for what is made of it: another chain in a folder of the same name has another tip.
    pub(super) fn mark(&self) -> String {
        let tip = self.manifest.as_ref().map_or("", |manifest| &manifest.tip_hash);
        // The end tells hashes of hard chains apart as well, which begin with zeros.
        let end = tip.char_indices().rev().nth(15).map_or(tip, |(at, _)| &tip[at..]);
        [&self.name, end].join("-")
    }

    /// The hash of a block at height 1: of the first in the files.
    pub(super) fn block_1(&self) -> Result<BlockHash, RunError> {
        let files =
            BlockFiles::open(&self.blocksdir, self.network.magic()).map_err(WorkError::from)?;
        let (genesis, mut found) = (Params::of(self.network).genesis_hash, None);
        let mut visit = |raw: &[u8; Header::SIZE], _| {
            let header = Header::parse(raw);
            found = (header.prev == genesis).then(|| header.hash());
            if found.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        files.scan(&mut visit).map_err(WorkError::from)?;
        let chain = self.network.name();
        Ok(found.ok_or(SourceError::NoChain { chain }).map_err(WorkError::from)?)
    }

    /// The block files, by name.
    pub fn files(&self) -> Result<Vec<PathBuf>, RunError> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.blocksdir).at(&self.blocksdir)? {
            let path = entry.at(&self.blocksdir)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with("blk") && name.ends_with(".dat") {
                files.push(path);
            }
        }
        files.sort_unstable();
        Ok(files)
    }
}

/// Reads a file of JSON.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, RunError> {
    let mut text = Vec::new();
    File::open(path).and_then(|file| file.take(JSON_BYTES_MAX).read_to_end(&mut text)).at(path)?;
    serde_json::from_slice(&text)
        .map_err(|error| RunError::Json { path: path.to_owned(), message: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_a_chain_with_or_without_a_manifest() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let error = Chain::in_folder(folder.path()).unwrap_err();
        assert!(error.to_string().contains("`apus-bench chain make`"), "{error}");
        fs::create_dir(path("blocks")).unwrap();
        for name in ["chain.hints", "blocks/blk00001.dat", "blocks/blk00000.dat", "blocks/xor.dat"]
        {
            fs::write(path(name), "").unwrap();
        }
        let chain = Chain::in_folder(folder.path()).unwrap();
        assert_eq!(chain.manifest, None);
        let files: Vec<PathBuf> =
            ["blk00000.dat", "blk00001.dat"].map(|name| path("blocks").join(name)).into();
        assert_eq!(chain.files().unwrap(), files);

        let assumevalid_hash = "cd".repeat(32);
        let manifest = Manifest { assumevalid_hash, ..crate::run::testing::manifest() };
        fs::write(path(FILE_NAME), serde_json::to_vec(&manifest).unwrap()).unwrap();
        assert_eq!(Chain::in_folder(folder.path()).unwrap().manifest, Some(manifest.clone()));
        let newer = Manifest { version: 2, ..manifest };
        fs::write(path(FILE_NAME), serde_json::to_vec(&newer).unwrap()).unwrap();
        let error = Chain::in_folder(folder.path()).unwrap_err();
        assert!(error.to_string().contains("a manifest of version 2"), "{error}");
        fs::write(path(FILE_NAME), "{").unwrap();
        let error = Chain::in_folder(folder.path()).unwrap_err();
        assert!(error.to_string().contains(FILE_NAME), "{error}");
    }
}
