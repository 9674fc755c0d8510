//! What the user is told of a node: how it is started on a folder that a run made ([`start_command`]), that a
//! folder is no data directory, and what to do where the node has pruned its blocks.

use crate::failure::Failure;
use apus_chain::{BlockHash, Network};
use apus_datadir::{BlkError, BlockFiles, chain_folder, network_of, read_index_flags};
use apus_sync::{SourceError, SyncError};
use std::path::Path;

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
pub(crate) fn expect_first_blocks(blocksdir: &Path) -> Result<(), Failure> {
    if blocksdir.join("blk00000.dat").exists() {
        return Ok(());
    }
    // What cannot be read is told by the run, in its own words.
    match read_index_flags(blocksdir) {
        Ok(flags) if flags.pruned => Err(Failure::usage(pruned_node(blocksdir))),
        _ => Ok(()),
    }
}

/// The folder must be a node's, with what is needed in it.
pub(crate) fn expect_folders(
    datadir: &Path,
    chain: Network,
    blocksdir: &Path,
) -> Result<(), Failure> {
    if !blocksdir.is_dir() {
        let advice = match chain_held(&datadir.join("blocks")) {
            Some(held) => format!(". {}", misnamed(datadir, held)),
            None => other_chains(datadir),
        };
        return Err(Failure::usage(format!(
            "{} is no data directory of a node on the chain {chain}: there is no folder {}{advice}",
            datadir.display(),
            blocksdir.display(),
        )));
    }
    match chain_held(blocksdir) {
        // Such a folder is sound, and every block in it would be judged by wrong rules.
        Some(held) if held != chain => {
            let folder = blocksdir.parent().unwrap_or(datadir);
            return Err(Failure::usage(misnamed(folder, held)));
        }
        Some(_) => {}
        None => expect_readable(blocksdir, chain)?,
    }
    let index = blocksdir.join("index");
    if !index.join("CURRENT").is_file() {
        return Err(Failure::usage(format!(
            "there is no block index in {}, which a node needs beside its coins: `apus sync \
             --blocksdir {} --out datadir:DIR` makes a data directory with all of it, and `bitcoind \
             -reindex` makes it here",
            index.display(),
            blocksdir.display()
        )));
    }
    Ok(())
}

/// The chain of the first block in a folder of blocks; none where it cannot be told.
fn chain_held(blocksdir: &Path) -> Option<Network> {
    network_of(blocksdir).ok().flatten()
}

/// Some block must be readable. Otherwise each would be called lost, whatever is wrong with all of them.
fn expect_readable(blocksdir: &Path, chain: Network) -> Result<(), Failure> {
    match BlockFiles::open(blocksdir, chain.magic()).and_then(|files| files.expect_blocks()) {
        Err(error @ (BlkError::NoBlocks { .. } | BlkError::WrongChain { .. })) => {
            Err(SyncError::from(SourceError::from(error)).into())
        }
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

/// Says of which chains a data directory is, if of any.
fn other_chains(datadir: &Path) -> String {
    let has = |chain: &Network| chain_folder(datadir, *chain).join("blocks").is_dir();
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
    if chain != Network::Main {
        command.push_str(&format!(" -chain={chain}"));
    }
    if pruned {
        command.push_str(" -prune=550");
    }
    command
}

/// How a node that runs is told to judge a block once more, for a POSIX shell.
pub(crate) fn reconsider_command(datadir: &Path, chain: Network, hash: &BlockHash) -> String {
    let chain = if chain == Network::Main { String::new() } else { format!(" -chain={chain}") };
    let datadir = quoted(&datadir.display().to_string());
    format!("bitcoin-cli -datadir={datadir}{chain} reconsiderblock {hash}")
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

#[cfg(test)]
mod tests {
    use super::*;
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
}
