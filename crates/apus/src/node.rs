//! A node's folders ([`NodeFolders`]), and texts about them: the command that starts a node on a run's result
//! ([`start_command`]), why a folder is not a data directory, and the remedy for a pruned node.

mod conf;

pub(crate) use conf::NodeConf;

use crate::failure::Failure;
use crate::print::hex;
use apus_chain::{BlockHash, Network, Params};
use apus_datadir::chainstate::SNAPSHOT_CHAINSTATE;
use apus_datadir::{
    BlkError, BlockFiles, BlocksFolder, chain_folder, network_of, read_index_flags,
};
use apus_sync::{SourceError, SyncError};
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns the error, with its remedy, for a node that has only the last blocks.
pub(crate) fn pruned_node(blocksdir: &Path) -> String {
    format!(
        "the node has pruned its blocks: {} has only the last blocks, but a rebuild needs all. Make a new node \
         from peers with `apus sync --out datadir:DIR` (several times as fast with --hints FILE; --prune keeps \
         only the last blocks), or from another node's blocks with --blocksdir. `apus verify` checks the blocks \
         that this node still has",
        blocksdir.display()
    )
}

/// Fails if the node lacks blocks, or is in the middle of a reindex or of validating a snapshot.
pub(crate) fn expect_whole(folder: &Path, blocks: &BlocksFolder) -> Result<(), Failure> {
    let index = blocks.index();
    let unreadable = |error| Failure::from(SyncError::from(SourceError::Index(error)));
    let flags = read_index_flags(&blocks.home).map_err(unreadable)?;
    if flags.reindexing {
        return Err(Failure::usage(format!(
            "the node was stopped in the middle of -reindex, so its block index in {} is incomplete: start the \
             node, and let it finish -reindex first",
            index.display()
        )));
    }
    if flags.pruned {
        return Err(Failure::usage(pruned_node(&blocks.files)));
    }
    let snapshot = folder.join(SNAPSHOT_CHAINSTATE);
    if snapshot.exists() {
        return Err(Failure::usage(format!(
            "the node has not finished validating a snapshot, and has its coins in {}: let the node finish, or \
             remove that folder first",
            snapshot.display()
        )));
    }
    Ok(())
}

/// Fails if the first blocks are missing because the node prunes.
pub(crate) fn expect_first_blocks(blocks: &BlocksFolder) -> Result<(), Failure> {
    if blocks.files.join("blk00000.dat").exists() {
        return Ok(());
    }
    // If a file is unreadable, the run itself reports it.
    match read_index_flags(&blocks.home) {
        Ok(flags) if flags.pruned => Err(Failure::usage(pruned_node(&blocks.files))),
        _ => Ok(()),
    }
}

/// Fails if the folder is not a node's, or lacks a part that a command needs.
pub(crate) fn expect_folders(node: &NodeFolders) -> Result<(), Failure> {
    let NodeFolders { datadir, chain, blocks, .. } = node;
    if !reach(&blocks.home)?.is_some_and(|it| it.is_dir()) {
        let advice = match chain_held(&datadir.join("blocks")) {
            Some(held) => format!(". {}", misnamed(datadir, held)),
            None => other_chains(datadir),
        };
        return Err(Failure::usage(format!(
            "{} is not the data directory of a node on the chain {chain}: there is no folder {}{advice}",
            datadir.display(),
            blocks.home.display(),
        )));
    }
    let index = blocks.index();
    let has_index = reach(&index.join("CURRENT"))?.is_some();
    match chain_held(&blocks.files) {
        // The folder is sound, but Apus would validate every block in it by another chain's rules.
        Some(held) if held != *chain => {
            let folder = blocks.files.parent().unwrap_or(datadir);
            return Err(Failure::usage(misnamed(folder, held)));
        }
        Some(_) => {}
        None => expect_readable(blocks, *chain, has_index)?,
    }
    match has_index {
        true => Ok(()),
        false => Err(without_index(blocks)),
    }
}

/// Creates the error for block files without an index next to them: it was lost, or is in another folder.
fn without_index(blocks: &BlocksFolder) -> Failure {
    Failure::wrong(format!(
        "there is no block index in {index}, but a node needs one besides its coins. If these are the block files \
         of a node that runs with -blocksdir, its index is in its data directory: use that as --datadir, and add \
         --blocksdir if its bitcoin.conf does not set blocksdir. Otherwise `bitcoind -reindex` rebuilds the index \
         here, and `apus sync --blocksdir {files} --out datadir:DIR` makes a complete data directory",
        index = blocks.index().display(),
        files = blocks.files.display()
    ))
}

/// Detects the chain of a node's data directory, or of a chain's folder in it. Takes the chain of the node's
/// configuration if the directory has its blocks. Otherwise, if the directory has blocks of several chains, returns
/// main if it is one of them, or else `None`.
pub(crate) fn of_datadir(datadir: &Path) -> Option<Network> {
    let conf = NodeConf::read(datadir).unwrap_or_default();
    let has = |datadir: &Path, chain| may_have_blocks(datadir, chain);
    let other = conf.datadir();
    if let Some(chosen) = conf.chain()
        && (has(datadir, chosen) || other.as_deref().is_some_and(|other| has(other, chosen)))
    {
        return Some(chosen);
    }
    let any = Network::ALL.into_iter().any(|chain| has(datadir, chain));
    let datadir = other.as_deref().filter(|_| !any).unwrap_or(datadir);
    let blocks = datadir.join("blocks");
    if blocks.is_dir() {
        // A folder without block files holds only an index; then the folder's name gives the chain.
        let named = || Network::ALL.into_iter().find(|chain| is_folder_of(datadir, *chain));
        return network_of(&blocks).unwrap_or_else(|_| named());
    }
    let mut chains = Network::ALL.into_iter().filter(|chain| has(datadir, *chain));
    chains.next().filter(|_| chains.next().is_none())
}

/// Whether a folder's name is that of a chain's folder in a data directory.
pub(crate) fn is_folder_of(folder: &Path, chain: Network) -> bool {
    chain.data_folder().is_some_and(|name| folder.ends_with(name))
}

/// Returns the chain of the first block in a folder of blocks; `None` if unknown.
fn chain_held(blocksdir: &Path) -> Option<Network> {
    network_of(blocksdir).ok().flatten()
}

/// Fails if no block is readable. Without this check, each would be reported as lost, although all have the same
/// problem.
fn expect_readable(blocks: &BlocksFolder, chain: Network, has_index: bool) -> Result<(), Failure> {
    match BlockFiles::open(blocks, chain.magic()).and_then(|files| files.expect_blocks()) {
        Err(BlkError::NoFiles { path }) if has_index && blocks.is_one() => {
            Err(Failure::usage(format!(
                "{} has a block index but no block files: if the node runs with -blocksdir=DIR, add --blocksdir DIR",
                path.display()
            )))
        }
        Err(
            error @ (BlkError::NoFiles { .. }
            | BlkError::NoBlocks { .. }
            | BlkError::WrongChain { .. }
            | BlkError::OwnSignet { .. }
            | BlkError::Open(_)),
        ) => Err(SyncError::from(SourceError::from(error)).into()),
        // The command reports other errors when it reads the files.
        _ => Ok(()),
    }
}

/// Tells the user how to name a folder whose `blocks` folder has blocks of the chain `held`.
fn misnamed(folder: &Path, held: Network) -> String {
    let shown = folder.display();
    match held.data_folder() {
        Some(name) if !folder.ends_with(name) => format!(
            "{shown} holds blocks of the chain {held}, but a node looks for them in a folder named {name}: rename \
             it to DIR/{name} for any DIR, and use --datadir DIR --chain {held}"
        ),
        _ => format!(
            "{shown} holds blocks of the chain {held}: use --datadir {shown} --chain {held}"
        ),
    }
}

/// Whether a data directory has blocks of a chain, or may have some: true if Apus cannot look there.
pub(crate) fn may_have_blocks(datadir: &Path, chain: Network) -> bool {
    let blocks = chain_folder(datadir, chain).join("blocks");
    reach(&blocks).map_or(true, |found| found.is_some_and(|it| it.is_dir()))
}

/// Names the chains in a data directory; empty if it has none.
fn other_chains(datadir: &Path) -> String {
    let has = |chain: &Network| may_have_blocks(datadir, *chain);
    let there: Vec<_> =
        Network::ALL.into_iter().filter(has).map(|chain| format!("--chain {chain}")).collect();
    match there.is_empty() {
        true => String::new(),
        false => format!("; use {}", there.join(" or ")),
    }
}

/// Returns the command that starts a node on a data directory, for a POSIX shell.
pub(crate) fn start_command(datadir: &Path, chain: Network, pruned: bool) -> String {
    let mut command = format!("bitcoind -datadir={}", quoted(&datadir.display().to_string()));
    command.push_str(&option_of(chain));
    command.push_str(&challenge_of(chain));
    if pruned {
        command.push_str(" -prune=550");
    }
    command
}

/// Returns the option that selects the chain; empty for the main one.
fn option_of(chain: Network) -> String {
    match chain {
        Network::Main => String::new(),
        chain => format!(" -chain={chain}"),
    }
}

/// Returns the option with a custom signet's challenge.
fn challenge_of(chain: Network) -> String {
    match (chain, &Params::of(chain).signet_challenge) {
        (Network::OwnSignet(_), Some(challenge)) => {
            format!(" -signetchallenge={}", hex(challenge))
        }
        _ => String::new(),
    }
}

/// Formats one word of a command for a POSIX shell. Puts it in single quotes if a shell would interpret it; within
/// them, only the single quote itself is special.
pub(crate) fn quoted(word: &str) -> String {
    // Letters of all scripts are safe; spaces of other scripts are special to some shells.
    let plain = |letter: char| letter.is_alphanumeric() || "%+,-./:=@_".contains(letter);
    if word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Returns the metadata of a path's target; `None` if it does not exist.
///
/// # Errors
/// If that cannot be determined, or the path contains a dangling link.
pub(crate) fn reach(path: &Path) -> Result<Option<Metadata>, Failure> {
    let error = match fs::metadata(path) {
        Ok(found) => return Ok(Some(found)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::NotFound => match path.ancestors().find_map(dangling) {
            Some(failure) => Err(failure),
            None => Ok(None),
        },
        // One of the path's folders is a file.
        ErrorKind::NotADirectory => Ok(None),
        ErrorKind::PermissionDenied => {
            let closed =
                path.ancestors().skip(1).find_map(|folder| Some((folder, folder.metadata().ok()?)));
            Err(match closed {
                Some((folder, found)) => Failure::io(
                    folder,
                    format!(
                        "no permission to look for {} in this folder: run Apus as its owner, user {uid} (sudo -u \
                         '#{uid}'), or allow access (chmod)",
                        path.display(),
                        uid = found.uid()
                    ),
                ),
                None => Failure::opening(path, &error),
            })
        }
        _ => Err(Failure::io(path, error)),
    }
}

/// Returns the error for a path with a dangling link.
fn dangling(path: &Path) -> Option<Failure> {
    let target = fs::read_link(path).ok()?;
    let is_gone = fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    is_gone.then(|| {
        let what = format!(
            "broken link to {}: mount the disk of the target, or restore the target",
            target.display()
        );
        Failure::io(path, what)
    })
}

/// A node's folders.
pub(crate) struct NodeFolders {
    /// The node's data directory.
    pub(crate) datadir: PathBuf,
    pub(crate) chain: Network,
    /// The chain's folder in it.
    pub(crate) folder: PathBuf,
    pub(crate) blocks: BlocksFolder,
    /// Options that the node needs again at its next start.
    options: String,
}

impl NodeFolders {
    /// Finds the folders. `blocksdir` is the node's own `-blocksdir` option.
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
            (None, Some(setting)) => files_of_conf(&setting, &datadir, chain)?,
            (None, None) => home.clone(),
        };
        let mut options = String::new();
        if datadir != named {
            options.push_str(&format!(" -conf={}", shown(&named.join("bitcoin.conf"))));
        }
        // If two settings choose the chain, a node refuses both.
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

    /// Returns the command that starts the node, for a POSIX shell.
    pub(crate) fn start_command(&self) -> String {
        format!("bitcoind -datadir={}{}", shown(&self.datadir), self.options)
    }

    /// Returns the command that makes a running node check a block again, for a POSIX shell.
    pub(crate) fn reconsider_command(&self, hash: &BlockHash) -> String {
        let chain = option_of(self.chain);
        format!("bitcoin-cli -datadir={}{chain} reconsiderblock {hash}", shown(&self.datadir))
    }
}

fn shown(path: &Path) -> String {
    quoted(&path.display().to_string())
}

/// Returns the data directory that the node uses: the one named, unless it has no blocks and its configuration
/// redirects to another.
fn real_datadir(named: &Path, chain: Network, conf: &NodeConf) -> Result<PathBuf, Failure> {
    let here = reach(&chain_folder(named, chain).join("blocks"))?.is_some();
    match conf.datadir().filter(|_| !here) {
        Some(other) if reach(&chain_folder(&other, chain).join("blocks"))?.is_some() => Ok(other),
        _ => Ok(named.to_owned()),
    }
}

/// Returns the folder of a chain's block files in a `-blocksdir` folder (Core `common/args.cpp`, `GetBlocksDirPath`);
/// or `blocksdir` itself if it has block files but no such folder.
fn files_in(blocksdir: &Path, chain: Network) -> Result<PathBuf, Failure> {
    let files = chain_folder(blocksdir, chain).join("blocks");
    if reach(&files)?.is_some() {
        return Ok(files);
    }
    if reach(&blocksdir.join("blk00000.dat"))?.is_some() {
        return Ok(blocksdir.to_owned());
    }
    Err(Failure::usage(format!(
        "there is no folder {}, where a node that runs with -blocksdir={} has its block files: check that the disk \
         is mounted, or use another folder with --blocksdir",
        files.display(),
        blocksdir.display()
    )))
}

/// Does the same for the value in `bitcoin.conf`. A relative path starts at the folder from which the node was started,
/// which no file records: perhaps the current folder, or the data directory.
fn files_of_conf(setting: &Path, datadir: &Path, chain: Network) -> Result<PathBuf, Failure> {
    if setting.is_absolute() {
        return files_in(setting, chain);
    }
    let places = [setting.to_owned(), datadir.join(setting)];
    for place in &places {
        if let Ok(files) = files_in(place, chain) {
            return Ok(files);
        }
    }
    Err(Failure::usage(format!(
        "the node's configuration has blocksdir={}, relative to the folder where the node was started, and the \
         blocks are neither in {} nor in {}: give the folder with --blocksdir DIR",
        setting.display(),
        places[0].display(),
        places[1].display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    #[test]
    fn a_shell_parses_the_start_command_as_meant() {
        let plain = start_command(Path::new("/data/a-b_1.0"), Network::Main, false);
        assert_eq!(plain, "bitcoind -datadir=/data/a-b_1.0");
        for name in ["a b", "it's", "$HOME", "`date`", "a\"b\\", "~x", "a;b", "a\nb", "*", "für"] {
            let command = start_command(Path::new(name), Network::Signet, true);
            // Let the shell print the words of the command that it parsed.
            let output = Command::new("sh")
                .arg("-c")
                .arg(format!("bitcoind() {{ printf '%s|' \"$@\"; }}; {command}"))
                .output()
                .unwrap();
            assert!(output.status.success(), "{command}");
            let words = String::from_utf8(output.stdout).unwrap();
            assert_eq!(words, format!("-datadir={name}|-chain=signet|-prune=550|"), "{command}");
        }
    }

    #[test]
    fn a_dangling_link_differs_from_a_missing_path() {
        let sandbox = tempfile::tempdir().unwrap();
        let path = |name: &str| sandbox.path().join(name);
        assert!(reach(&path("nothing/at/all")).unwrap().is_none());
        fs::write(path("file"), "").unwrap();
        assert!(reach(&path("file")).unwrap().is_some());
        assert!(reach(&path("file/within")).unwrap().is_none());
        symlink("/not/there", path("link")).unwrap();
        for name in ["link", "link/blocks", "link/blocks/index"] {
            let failure = reach(&path(name)).unwrap_err();
            assert_eq!(failure.code, crate::failure::IO);
            assert!(
                failure.message.contains("link: broken link to /not/there"),
                "{}",
                failure.message
            );
        }
    }
}
