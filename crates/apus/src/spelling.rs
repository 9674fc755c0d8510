//! Words of Bitcoin Core's command line that are written otherwise here, or mean something else:
//! what the user who gives them is told.
//!
//! Only asked where a line was refused, so nothing that is right is ever commented on.

use apus_chain::Network;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// What to write instead of the word that clap stumbled over, if it is one of Core's.
pub(crate) fn advice(error: &clap::Error, words: impl Iterator<Item = OsString>) -> Option<String> {
    if ![ErrorKind::UnknownArgument, ErrorKind::TooManyValues].contains(&error.kind()) {
        return None;
    }
    let Some(ContextValue::String(refused)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    words.iter().find_map(|word| of_word(word, refused))
}

/// `refused` is what clap names: a long option without its value, or the first letter of a word that
/// has one dash.
fn of_word(word: &str, refused: &str) -> Option<String> {
    let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
    let dashes = word.len() - word.trim_start_matches('-').len();
    let meant = match dashes {
        1 => name.len() > 1 && word.starts_with(refused),
        2 => refused.split(' ').next() == Some(&format!("--{name}")),
        _ => false,
    };
    if !meant {
        return None;
    }
    let instead = of_name(name);
    match (dashes, instead) {
        (_, Some(instead)) => Some(format!("unexpected argument '{word}': {instead}")),
        (1, None) => Some(format!(
            "unexpected argument '{word}': options have two dashes here, as in -{word}"
        )),
        _ => None,
    }
}

/// Options that are another one here.
fn of_name(name: &str) -> Option<String> {
    let chain = match name {
        "testnet" => Some(Network::Testnet3),
        "mainnet" => Some(Network::Main),
        _ => name.parse().ok(),
    };
    if let Some(chain) = chain {
        return Some(format!("the chain is chosen by --chain {chain}"));
    }
    let instead = match name {
        "prune" => {
            "--prune has no size here: only the last 288 blocks are kept, as in --out datadir:node \
             --prune, and the node is then started with -prune=550"
        }
        "port" | "bind" => "--listen names where to let others in, as in --listen 0.0.0.0:8333",
        "addnode" | "seednode" => "a node is named by --connect, as in --connect 192.168.1.10",
        "reindex" | "reindex-chainstate" => {
            "a node's coins are made anew by `apus reindex --datadir DIR`"
        }
        _ => return None,
    };
    Some(instead.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_word_that_was_refused_is_commented_on() {
        assert_eq!(of_word("-chain=regtest", "-p"), None);
        assert_eq!(of_word("--signet", "--outt"), None);
        assert_eq!(of_word("--outt", "--outt"), None);
        assert_eq!(of_word("-h", "-h"), None);
        assert!(of_word("-chain=regtest", "-c").unwrap().ends_with("as in --chain=regtest"));
        assert!(of_word("--signet", "--signet").unwrap().ends_with("--chain signet"));
        assert!(of_word("-testnet=1", "-t").unwrap().ends_with("--chain test"));
    }
}
