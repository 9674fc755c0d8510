//! A node's folders ([`NodeFolders`]), and what the user is told of them: how a node is started on a folder that a run made
//! ([`start_command`]), that a folder is no data directory, and what to do where the node has pruned its blocks.

mod conf;

pub(crate) use conf::NodeConf;

use crate::failure::Failure;
use crate::print::hex;
use apus_chain::{BlockHash, Network, Params};
use apus_datadir::{
    BlkError, BlockFiles, BlocksFolder, chain_folder, network_of, read_index_flags,
};
use apus_sync::{SourceError, SyncError};
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What the owner of a node can do that has only the last blocks.
pub(crate) fn pruned_node(blocksdir: &Path) -> String {
    format!(
        "the node has pruned its blocks, and coins come from all blocks since the first: {} has only the \
         last ones. Have a new node made: from peers by `apus sync --out datadir:DIR` (several times as \
         fast with --hints FILE; --prune keeps the last blocks alone), or from the blocks of another node \
         by --blocksdir. `apus verify` looks at the blocks that this one has left",
        blocksdir.display()
    )
}

/// Blocks must be there from the first on, which those of a node that prunes are not.
pub(crate) fn expect_first_blocks(blocks: &BlocksFolder) -> Result<(), Failure> {
    if blocks.files.join("blk00000.dat").exists() {
        return Ok(());
    }
    // What cannot be read is told by the run, in its own words.
    match read_index_flags(&blocks.home) {
        Ok(flags) if flags.pruned => Err(Failure::usage(pruned_node(&blocks.files))),
        _ => Ok(()),
    }
}

/// The folder must be a node's, with what is needed in it.
pub(crate) fn expect_folders(node: &NodeFolders) -> Result<(), Failure> {
    let NodeFolders { datadir, chain, blocks, .. } = node;
    if !reach(&blocks.home)?.is_some_and(|it| it.is_dir()) {
        let advice = match chain_held(&datadir.join("blocks")) {
            Some(held) => format!(". {}", misnamed(datadir, held)),
            None => other_chains(datadir),
        };
        return Err(Failure::usage(format!(
            "{} is no data directory of a node on the chain {chain}: there is no folder {}{advice}",
            datadir.display(),
            blocks.home.display(),
        )));
    }
    let index = blocks.index();
    let has_index = reach(&index.join("CURRENT"))?.is_some();
    match chain_held(&blocks.files) {
        // Such a folder is sound, and every block in it would be judged by wrong rules.
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

/// Block files have no index beside them: it was lost, or it is elsewhere.
fn without_index(blocks: &BlocksFolder) -> Failure {
    Failure::wrong(format!(
        "there is no block index in {index}, which a node needs beside its coins. If these are the block files \
         of a node that runs with -blocksdir, its index is in its data directory: give that as --datadir, and \
         --blocksdir where its bitcoin.conf does not say it. Otherwise `bitcoind -reindex` makes the index here, \
         and `apus sync --blocksdir {files} --out datadir:DIR` makes a data directory with all of it",
        index = blocks.index().display(),
        files = blocks.files.display()
    ))
}

/// The chain of the first block in a folder of blocks; none where it cannot be told.
fn chain_held(blocksdir: &Path) -> Option<Network> {
    network_of(blocksdir).ok().flatten()
}

/// Some block must be readable. Otherwise each would be called lost, whatever is wrong with all of them.
fn expect_readable(blocks: &BlocksFolder, chain: Network, has_index: bool) -> Result<(), Failure> {
    match BlockFiles::open(blocks, chain.magic()).and_then(|files| files.expect_blocks()) {
        Err(BlkError::NoFiles { path }) if has_index && blocks.is_one() => {
            Err(Failure::usage(format!(
                "{} has a block index and no block files: where the node runs with -blocksdir=DIR, give \
                 --blocksdir DIR, too",
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
        // What else is wrong the command tells as it reads the files.
        _ => Ok(()),
    }
}

/// Says how a folder is named that holds blocks of a chain, in `blocks` within it.
fn misnamed(folder: &Path, held: Network) -> String {
    let shown = folder.display();
    match held.data_folder() {
        Some(name) if !folder.ends_with(name) => format!(
            "{shown} holds blocks of the chain {held}, and a node looks for those in a folder of the name \
             {name}: rename it to DIR/{name}, DIR being any folder, and give --datadir DIR --chain {held}"
        ),
        _ => format!(
            "{shown} holds blocks of the chain {held}: give --datadir {shown} --chain {held}"
        ),
    }
}

/// Whether a data directory has blocks of a chain, or what is there cannot be looked at.
pub(crate) fn may_have_blocks(datadir: &Path, chain: Network) -> bool {
    let blocks = chain_folder(datadir, chain).join("blocks");
    reach(&blocks).map_or(true, |found| found.is_some_and(|it| it.is_dir()))
}

/// Says of which chains a data directory is, if of any.
fn other_chains(datadir: &Path) -> String {
    let has = |chain: &Network| may_have_blocks(datadir, *chain);
    let there: Vec<_> =
        Network::ALL.into_iter().filter(has).map(|chain| format!("--chain {chain}")).collect();
    match there.is_empty() {
        true => String::new(),
        false => format!("; use {}", there.join(" or ")),
    }
}

/// How a node is started on a data directory, for a POSIX shell.
pub(crate) fn start_command(datadir: &Path, chain: Network, pruned: bool) -> String {
    let mut command = format!("bitcoind -datadir={}", quoted(&datadir.display().to_string()));
    command.push_str(&option_of(chain));
    command.push_str(&challenge_of(chain));
    if pruned {
        command.push_str(" -prune=550");
    }
    command
}

/// What chooses the chain; nothing for the main one.
fn option_of(chain: Network) -> String {
    match chain {
        Network::Main => String::new(),
        chain => format!(" -chain={chain}"),
    }
}

/// What makes a signet that of one's own.
fn challenge_of(chain: Network) -> String {
    match (chain, &Params::of(chain).signet_challenge) {
        (Network::OwnSignet(_), Some(challenge)) => {
            format!(" -signetchallenge={}", hex(challenge))
        }
        _ => String::new(),
    }
}

/// One word of a command, for a POSIX shell. Where a shell would make something of it, in single
/// quotes, within which only these themselves mean anything.
pub(crate) fn quoted(word: &str) -> String {
    // Letters of other scripts are no different from ours; their spaces are to some shells.
    let plain = |letter: char| letter.is_alphanumeric() || "%+,-./:=@_".contains(letter);
    if word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// What a path leads to; none where there is nothing.
///
/// # Errors
/// Where that cannot be known, or a link on the way leads to nothing.
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
        // A file stands where a folder would have to be.
        ErrorKind::NotADirectory => Ok(None),
        ErrorKind::PermissionDenied => {
            let closed =
                path.ancestors().skip(1).find_map(|folder| Some((folder, folder.metadata().ok()?)));
            Err(match closed {
                Some((folder, found)) => Failure::io(
                    folder,
                    format!(
                        "it belongs to user {uid}, and this user may not look into it for {}: run this as the \
                         user that the node runs as (sudo -u '#{uid}'), or let this one in (chmod)",
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

/// Says of a link that leads to nothing where it leads.
fn dangling(path: &Path) -> Option<Failure> {
    let target = fs::read_link(path).ok()?;
    let is_gone = fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    is_gone.then(|| {
        let what = format!(
            "this is a link to {}, which is not there: mount the disk that it is on, or restore it",
            target.display()
        );
        Failure::io(path, what)
    })
}

/// A node's folders.
pub(crate) struct NodeFolders {
    /// Its data directory.
    pub(crate) datadir: PathBuf,
    pub(crate) chain: Network,
    /// The chain's folder in it.
    pub(crate) folder: PathBuf,
    pub(crate) blocks: BlocksFolder,
    /// What the node is to be told again when it is started.
    options: String,
}

impl NodeFolders {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    #[test]
    fn a_command_is_one_that_a_shell_takes_as_it_is_meant() {
        let plain = start_command(Path::new("/data/a-b_1.0"), Network::Main, false);
        assert_eq!(plain, "bitcoind -datadir=/data/a-b_1.0");
        for name in ["a b", "it's", "$HOME", "`date`", "a\"b\\", "~x", "a;b", "a\nb", "*", "für"] {
            let command = start_command(Path::new(name), Network::Signet, true);
            // The shell says the words that it makes of the command.
            let said = Command::new("sh")
                .arg("-c")
                .arg(format!("bitcoind() {{ printf '%s|' \"$@\"; }}; {command}"))
                .output()
                .unwrap();
            assert!(said.status.success(), "{command}");
            let said = String::from_utf8(said.stdout).unwrap();
            assert_eq!(said, format!("-datadir={name}|-chain=signet|-prune=550|"), "{command}");
        }
    }

    #[test]
    fn a_link_that_dangles_is_told_from_nothing() {
        let desk = tempfile::tempdir().unwrap();
        let path = |name: &str| desk.path().join(name);
        assert!(reach(&path("nothing/at/all")).unwrap().is_none());
        fs::write(path("file"), "").unwrap();
        assert!(reach(&path("file")).unwrap().is_some());
        assert!(reach(&path("file/within")).unwrap().is_none());
        symlink("/not/there", path("link")).unwrap();
        for name in ["link", "link/blocks", "link/blocks/index"] {
            let said = reach(&path(name)).unwrap_err();
            assert_eq!(said.code, crate::failure::IO);
            assert!(
                said.message.contains("link: this is a link to /not/there"),
                "{}",
                said.message
            );
        }
    }
}
