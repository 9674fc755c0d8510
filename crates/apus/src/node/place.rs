//! [`Node`]: where a node has what, by its data directory and its configuration.

use super::access::reach;
use super::conf::NodeConf;
use super::shell::{challenge_of, option_of, quoted};
use crate::failure::Failure;
use apus_chain::{BlockHash, Network};
use apus_datadir::{BlocksFolder, chain_folder};
use std::path::{Path, PathBuf};

/// A node's folders.
pub(crate) struct Node {
    /// Its data directory.
    pub(crate) datadir: PathBuf,
    pub(crate) chain: Network,
    /// The chain's folder in it.
    pub(crate) folder: PathBuf,
    pub(crate) blocks: BlocksFolder,
    /// What the node is to be told again when it is started.
    options: String,
}

impl Node {
    /// Finds the folders. `blocksdir` is what the node was told by `-blocksdir`.
    pub(crate) fn find(
        named: &Path,
        chain: Network,
        blocksdir: Option<&Path>,
    ) -> Result<Self, Failure> {
        let conf = NodeConf::read(named)?;
        let datadir = real_datadir(named, chain, &conf)?;
        let folder = chain_folder(&datadir, chain);
        let home = folder.join("blocks");
        let files = match (blocksdir, conf.blocksdir(chain)?) {
            (Some(given), _) => files_in(given, chain)?,
            (None, Some(said)) => files_of_conf(&said, &datadir, chain)?,
            (None, None) => home.clone(),
        };
        let mut options = String::new();
        if datadir != named {
            options.push_str(&format!(" -conf={}", shown(&named.join("bitcoin.conf"))));
        }
        // Of two that choose the chain a node takes neither.
        if conf.chain().map(Network::name) != Some(chain.name()) {
            options.push_str(&option_of(chain));
        }
        if conf.signet_challenge()?.is_none() {
            options.push_str(&challenge_of(chain));
        }
        if let Some(given) = blocksdir {
            options.push_str(&format!(" -blocksdir={}", shown(given)));
        }
        Ok(Self { datadir, chain, folder, blocks: BlocksFolder { files, home }, options })
    }

    /// How the node is started, for a POSIX shell.
    pub(crate) fn start_command(&self) -> String {
        format!("bitcoind -datadir={}{}", shown(&self.datadir), self.options)
    }

    /// How the node, while it runs, is told to judge a block once more, for a POSIX shell.
    pub(crate) fn reconsider_command(&self, hash: &BlockHash) -> String {
        let chain = option_of(self.chain);
        format!("bitcoin-cli -datadir={}{chain} reconsiderblock {hash}", shown(&self.datadir))
    }
}

fn shown(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// The data directory to which that of a command line leads: itself, unless it has no blocks and its
/// configuration names another.
fn real_datadir(named: &Path, chain: Network, conf: &NodeConf) -> Result<PathBuf, Failure> {
    let here = reach(&chain_folder(named, chain).join("blocks"))?.is_some();
    match conf.datadir().filter(|_| !here) {
        Some(other) if reach(&chain_folder(&other, chain).join("blocks"))?.is_some() => Ok(other),
        _ => Ok(named.to_owned()),
    }
}

/// The folder of block files of a chain in one of `-blocksdir` (Core `common/args.cpp`, `GetBlocksDirPath`); or
/// that folder itself where it has block files and no place for those of chains.
fn files_in(blocksdir: &Path, chain: Network) -> Result<PathBuf, Failure> {
    let files = chain_folder(blocksdir, chain).join("blocks");
    if reach(&files)?.is_some() {
        return Ok(files);
    }
    if reach(&blocksdir.join("blk00000.dat"))?.is_some() {
        return Ok(blocksdir.to_owned());
    }
    Err(Failure::usage(format!(
        "there is no folder {}, in which a node that runs with -blocksdir={} has its block files: see that the \
         disk is mounted, or name another folder by --blocksdir",
        files.display(),
        blocksdir.display()
    )))
}

/// The same of what `bitcoin.conf` says. A relative path begins where the node was started, which nothing says:
/// in this folder, perhaps, or in the data directory.
fn files_of_conf(said: &Path, datadir: &Path, chain: Network) -> Result<PathBuf, Failure> {
    if said.is_absolute() {
        return files_in(said, chain);
    }
    let places = [said.to_owned(), datadir.join(said)];
    for place in &places {
        if let Ok(files) = files_in(place, chain) {
            return Ok(files);
        }
    }
    Err(Failure::usage(format!(
        "the node's configuration says blocksdir={}, which begins where the node was started, and the blocks are \
         neither in {} nor in {}: name the folder by --blocksdir DIR",
        said.display(),
        places[0].display(),
        places[1].display()
    )))
}
