//! Words of Bitcoin Core's command line that are written otherwise here, or mean something else, and
//! words of parts that this program lacks: what the user who gives them is told.
//!
//! Only asked where a line was refused, so nothing that is right is ever commented on.

use apus_chain::Network;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// Features that not every program has.
const FEATURES: [(&str, bool); 4] = [
    ("cluster", cfg!(feature = "cluster")),
    ("remote-coins", cfg!(feature = "remote-coins")),
    ("utreexo", cfg!(feature = "utreexo")),
    ("web", cfg!(feature = "web")),
];

/// What to write instead of the word that clap stumbled over, if it is one of Core's.
pub(crate) fn advice(error: &clap::Error, words: impl Iterator<Item = OsString>) -> Option<String> {
    if let Some(ContextValue::String(command)) = error.get(ContextKind::InvalidSubcommand) {
        return of_command(command);
    }
    if error.kind() == ErrorKind::InvalidValue
        && let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue)
    {
        return of_value(value);
    }
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

/// Commands that are in another program, or in a feature.
fn of_command(name: &str) -> Option<String> {
    let feature = match name {
        "bench" => {
            return Some(
                "'apus bench' is a program of its own now, apus-bench: `cargo build --release -p \
                 apus-bench` builds it, and what followed 'bench' follows its name"
                    .to_owned(),
            );
        }
        "cluster" => "cluster",
        "coins" => "remote-coins",
        "utreexo" => "utreexo",
        _ => return None,
    };
    let why = without(feature, &FEATURES)?;
    Some(format!("unrecognized subcommand '{name}': {why}"))
}

/// Values that are in a feature.
fn of_value(value: &str) -> Option<String> {
    let why = without(Some(value).filter(|it| *it == "utreexo")?, &FEATURES)?;
    Some(format!("invalid value '{value}': {why}"))
}

/// What to say of a feature that this program lacks.
#[cfg(feature = "cluster")]
pub(crate) fn lacking_feature(feature: &str) -> Option<String> {
    without(feature, &FEATURES)
}

/// What to say of an option, or a kind of output, that is in a feature which this program lacks.
pub(crate) fn lacking(option: &str) -> Option<String> {
    let feature = match option.split(['-', ':']).next() {
        Some("coins") => "remote-coins",
        Some("proofs" | "utreexo") => "utreexo",
        Some("web") => "web",
        _ => return None,
    };
    without(feature, &FEATURES)
}

fn without(feature: &str, features: &[(&str, bool)]) -> Option<String> {
    features.contains(&(feature, false)).then(|| {
        format!(
            "this program was built without the feature {feature}. The Debian package and the \
             container have it, and so has what `cargo install --locked --path crates/apus \
             --features extras` builds"
        )
    })
}

/// Options that are another one here, or in a feature.
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
        _ => return lacking(name),
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

    #[test]
    fn a_feature_that_is_not_there_is_named_with_where_it_is() {
        let said = without("web", &[("web", false)]).unwrap();
        for part in ["the feature web", "Debian package", "--features extras"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(without("web", &[("web", true)]), None);
        assert_eq!(of_command("sync"), None);
        assert_eq!(lacking("dbcache"), None);
        for (option, is_in) in [
            ("web", cfg!(feature = "web")),
            ("web-stay", cfg!(feature = "web")),
            ("coins-timeout", cfg!(feature = "remote-coins")),
            ("proofs", cfg!(feature = "utreexo")),
            ("utreexo:roots", cfg!(feature = "utreexo")),
        ] {
            assert_eq!(lacking(option).is_none(), is_in, "{option}");
        }
    }
}
