//! Which chain a command is about where its line does not say: that of the blocks which it names.
//!
//! Only a suggestion is made here. What cannot be read, or is not clear, is left to the command, whose
//! errors say what is wrong.

use apus_chain::Network;
use apus_datadir::{chain_folder, network_of};
use clap::ArgMatches;
use clap::parser::ValueSource;
use std::path::{Path, PathBuf};

/// The option's name in the command's description.
pub(crate) const CHAIN: &str = "chain";

/// The chain that the line's blocks are of, where it names blocks and no chain.
pub(crate) fn of_line(matches: &ArgMatches) -> Option<Network> {
    let mut command = matches;
    while let Some((_, inner)) = command.subcommand() {
        command = inner;
    }
    let has_chain = command.try_contains_id(CHAIN).is_ok();
    if !has_chain || command.value_source(CHAIN) != Some(ValueSource::DefaultValue) {
        return None;
    }
    let folder = |name| command.try_get_one::<PathBuf>(name).ok().flatten();
    match (folder("blocksdir"), folder("datadir")) {
        (Some(blocksdir), _) => network_of(blocksdir).ok()?,
        (None, Some(datadir)) => of_datadir(datadir),
        (None, None) => None,
    }
}

/// The chain of a node's data directory, or of a chain's own folder in it. Where it has blocks of several
/// chains, that of the main one or none.
fn of_datadir(datadir: &Path) -> Option<Network> {
    let blocks = datadir.join("blocks");
    if blocks.is_dir() {
        return network_of(&blocks).ok()?;
    }
    let there = |chain: &Network| chain_folder(datadir, *chain).join("blocks").is_dir();
    let mut chains = Network::ALL.into_iter().filter(there);
    chains.next().filter(|_| chains.next().is_none())
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
