//! Which chain a command is about where its line does not say: that of the blocks which it names.
//!
//! Only a suggestion is made here. What cannot be read, or is not clear, is left to the command, whose
//! errors say what is wrong.

use crate::args::ChallengeArg;
use crate::failure::Failure;
use crate::node::{NodeConf, may_have_blocks};
use apus_chain::{Network, Params};
use apus_datadir::{chain_folder, network_of};
use clap::ArgMatches;
use clap::parser::ValueSource;
use std::path::{Path, PathBuf};

/// The option's name in the command's description.
pub(crate) const CHAIN: &str = "chain";

/// The option's name of the challenge of a signet.
const CHALLENGE: &str = "signetchallenge";

/// The part of a line that is about its command.
pub(crate) fn innermost(matches: &ArgMatches) -> &ArgMatches {
    let mut command = matches;
    while let Some((_, inner)) = command.subcommand() {
        command = inner;
    }
    command
}

/// The folder that an option names, where the command has it.
fn folder<'a>(command: &'a ArgMatches, name: &str) -> Option<&'a PathBuf> {
    command.try_get_one::<PathBuf>(name).ok().flatten()
}

/// Makes the signet known whose challenge the line has, or the configuration of the node that it names.
pub(crate) fn know_signet(matches: &ArgMatches) -> Result<Option<Network>, Failure> {
    let command = innermost(matches);
    let given = command.try_get_one::<ChallengeArg>(CHALLENGE).ok().flatten();
    let challenge = match (given, folder(command, "datadir")) {
        (Some(given), _) => Some(given.clone()),
        (None, Some(datadir)) => challenge_of(datadir)?,
        (None, None) => None,
    };
    let known = challenge.map(|challenge| Params::know_signet(&challenge.0));
    known.transpose().map_err(Failure::usage)
}

/// The challenge that the configuration of a node has; a chain's own folder in a data directory leads to it.
fn challenge_of(datadir: &Path) -> Result<Option<ChallengeArg>, Failure> {
    let datadir = datadir_of(datadir.to_owned(), Network::Signet);
    let Some(digits) = NodeConf::read(&datadir)?.signet_challenge()? else { return Ok(None) };
    let wrong = |what| {
        let said = format!("{CHALLENGE}={digits}, which the node's configuration says: {what}");
        Failure::io(&datadir, said)
    };
    digits.parse().map(Some).map_err(wrong)
}

/// A challenge on the line is of use on its signet alone.
pub(crate) fn expect_signet(matches: &ArgMatches, signet: Option<Network>) -> Result<(), Failure> {
    let command = innermost(matches);
    let chain = command.try_get_one::<Network>(CHAIN).ok().flatten();
    match (command.try_contains_id(CHALLENGE).unwrap_or_default(), chain) {
        (true, Some(chain)) if Some(*chain) != signet => Err(Failure::usage(format!(
            "--{CHALLENGE} is for --chain signet, and this is about the chain {chain}"
        ))),
        _ => Ok(()),
    }
}

/// The chain that the line's blocks are of, where it names blocks and no chain.
pub(crate) fn of_line(matches: &ArgMatches) -> Option<Network> {
    let command = innermost(matches);
    let has_chain = command.try_contains_id(CHAIN).is_ok();
    if !has_chain || command.value_source(CHAIN) != Some(ValueSource::DefaultValue) {
        return None;
    }
    match (folder(command, "blocksdir"), folder(command, "datadir")) {
        (_, Some(datadir)) => of_datadir(datadir),
        (Some(blocksdir), None) => network_of(blocksdir).ok()?,
        (None, None) => None,
    }
}

/// The chain of a node's data directory, or of a chain's own folder in it: as its configuration says, if there
/// are blocks of that chain. Otherwise, where it has blocks of several chains, that of the main one or none.
fn of_datadir(datadir: &Path) -> Option<Network> {
    let conf = NodeConf::read(datadir).unwrap_or_default();
    let has = |datadir: &Path, chain| may_have_blocks(datadir, chain);
    let other = conf.datadir();
    if let Some(said) = conf.chain()
        && (has(datadir, said) || other.as_deref().is_some_and(|other| has(other, said)))
    {
        return Some(said);
    }
    let any = Network::ALL.into_iter().any(|chain| has(datadir, chain));
    let datadir = other.as_deref().filter(|_| !any).unwrap_or(datadir);
    let blocks = datadir.join("blocks");
    if blocks.is_dir() {
        // Without block files it is the place of an index alone, and the folder's name tells.
        let named = || Network::ALL.into_iter().find(|chain| is_folder_of(datadir, *chain));
        return network_of(&blocks).unwrap_or_else(|_| named());
    }
    let mut chains = Network::ALL.into_iter().filter(|chain| has(datadir, *chain));
    chains.next().filter(|_| chains.next().is_none())
}

/// Whether a folder has the name of a chain's own in a data directory.
fn is_folder_of(folder: &Path, chain: Network) -> bool {
    chain.data_folder().is_some_and(|name| folder.ends_with(name))
}

/// The data directory that is meant where a chain's own folder in it is named, as `node/regtest`.
pub(crate) fn datadir_of(named: PathBuf, chain: Network) -> PathBuf {
    if chain_folder(&named, chain).join("blocks").is_dir() || !named.join("blocks").is_dir() {
        return named;
    }
    let Ok(whole) = std::path::absolute(&named) else { return named };
    match (chain.data_folder(), whole.parent()) {
        (Some(folder), Some(around)) if whole.ends_with(folder) => match named.parent() {
            // As the user wrote it, where that says it.
            Some(short) if !short.as_os_str().is_empty() && named.ends_with(folder) => short.into(),
            _ => around.to_owned(),
        },
        _ => named,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_chains_own_folder_leads_to_the_data_directory() {
        let desk = tempfile::tempdir().unwrap();
        let path = |name: &str| desk.path().join(name);
        fs::create_dir_all(path("node/regtest/blocks")).unwrap();
        fs::create_dir_all(path("copy/blocks")).unwrap();
        let of = |name: &str, chain| datadir_of(path(name), chain);
        assert_eq!(of("node/regtest", Network::Regtest), path("node"));
        assert_eq!(of("node/regtest/", Network::Regtest), path("node"));
        assert_eq!(of("node", Network::Regtest), path("node"));
        for chain in [Network::Main, Network::Signet] {
            assert_eq!(of("node/regtest", chain), path("node/regtest"));
        }
        assert_eq!(of("copy", Network::Regtest), path("copy"));
        assert_eq!(of("nowhere", Network::Main), path("nowhere"));
    }

    #[test]
    fn a_data_directory_is_of_the_chain_that_it_has_blocks_of() {
        let desk = tempfile::tempdir().unwrap();
        let path = |name: &str| desk.path().join(name);
        let file = |folder: &str, chain: Network| {
            fs::create_dir_all(path(folder)).unwrap();
            let record = [&chain.magic()[..], &[0; 100]].concat();
            fs::write(path(folder).join("blk00000.dat"), record).unwrap();
        };
        assert_eq!(of_datadir(desk.path()), None);
        file("regtest/blocks", Network::Regtest);
        for folder in ["", "regtest"] {
            assert_eq!(of_datadir(&path(folder)), Some(Network::Regtest), "{folder}");
        }
        file("signet/blocks", Network::Signet);
        assert_eq!(of_datadir(desk.path()), None, "either could be meant");
        file("blocks", Network::Main);
        assert_eq!(of_datadir(desk.path()), Some(Network::Main));
    }
}
