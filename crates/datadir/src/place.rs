//! [`BlocksFolder`]: where a node has its block files, and where the index of them.

use apus_chain::Network;
use std::path::{Path, PathBuf};

/// Two folders, which are one unless the node runs with `-blocksdir`: Core then has block files, undo files and
/// their key in `blocksdir`, and the index still in its data directory (Core `init.cpp`, `AppInitMain`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlocksFolder {
    /// The folder of `blk*.dat`, `rev*.dat` and `xor.dat`.
    pub files: PathBuf,
    /// The folder in which `index` is.
    pub home: PathBuf,
}

impl BlocksFolder {
    /// The folder of the block index.
    pub fn index(&self) -> PathBuf {
        self.home.join("index")
    }

    /// Whether the index lies beside the files.
    pub fn is_one(&self) -> bool {
        self.files == self.home
    }
}

impl From<&Path> for BlocksFolder {
    fn from(folder: &Path) -> Self {
        Self { files: folder.to_owned(), home: folder.to_owned() }
    }
}

impl From<&PathBuf> for BlocksFolder {
    fn from(folder: &PathBuf) -> Self {
        folder.as_path().into()
    }
}

impl From<PathBuf> for BlocksFolder {
    fn from(folder: PathBuf) -> Self {
        folder.as_path().into()
    }
}

impl From<&BlocksFolder> for BlocksFolder {
    fn from(folder: &BlocksFolder) -> Self {
        folder.clone()
    }
}

/// The folder of a chain in a data directory (Core `chainparamsbase.cpp`).
pub fn chain_folder(datadir: &Path, network: Network) -> PathBuf {
    match network.data_folder() {
        Some(name) => datadir.join(name),
        None => datadir.to_owned(),
    }
}
