//! Advice about options and commands of Bitcoin Core that Apus spells or interprets differently, and about features
//! that this build lacks.
//!
//! Apus uses this module only after it refused a line, so valid lines get no advice.

use apus_chain::Network;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// Features that a build may lack.
const FEATURES: [(&str, bool); 7] = [
    ("cluster", cfg!(feature = "cluster")),
    ("parquet", cfg!(feature = "parquet")),
    ("remote-coins", cfg!(feature = "remote-coins")),
    ("sqlite", cfg!(feature = "sqlite")),
    ("tables", cfg!(feature = "tables")),
    ("utreexo", cfg!(feature = "utreexo")),
    ("web", cfg!(feature = "web")),
];

/// Returns advice about the word that clap refused; `None` if there is none.
pub(crate) fn advice(error: &clap::Error, words: impl Iterator<Item = OsString>) -> Option<String> {
    let refused = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg];
    if refused.into_iter().any(|kind| error.get(kind).is_some_and(is_url)) {
        return Some(
            "unexpected argument: write a URL behind its option (not shown here, because it may contain a password)"
                .to_owned(),
        );
    }
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

/// Returns true for a word that clap would quote although it may contain a password.
fn is_url(refused: &ContextValue) -> bool {
    matches!(refused, ContextValue::String(text) if text.contains("://"))
}

/// Returns advice about a word. clap reports as `refused` a long option without its value, or the first letter of a
/// word with one dash.
fn of_word(word: &str, refused: &str) -> Option<String> {
    // Do not quote the value: it may contain a password.
    let word = word.split('=').next().unwrap_or_default();
    let name = word.trim_start_matches('-');
    let dashes = word.len() - name.len();
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
        (1, None) => {
            Some(format!("unexpected argument '{word}': options take two dashes, as in -{word}"))
        }
        _ => None,
    }
}

/// Returns advice about a command that belongs to another program, or to a feature.
fn of_command(name: &str) -> Option<String> {
    let feature = match name {
        "cluster" => "cluster",
        "coins" => "remote-coins",
        "export" | "find" => "tables",
        "utreexo" => "utreexo",
        _ => return None,
    };
    let why = without(feature, &FEATURES)?;
    Some(format!("unrecognized subcommand '{name}': {why}"))
}

/// Returns advice about a value that only a feature provides.
fn of_value(value: &str) -> Option<String> {
    let why = without(Some(value).filter(|it| *it == "utreexo")?, &FEATURES)?;
    Some(format!("invalid value '{value}': {why}"))
}

/// Returns advice about a feature that this build lacks.
#[cfg(feature = "cluster")]
pub(crate) fn lacking_feature(feature: &str) -> Option<String> {
    without(feature, &FEATURES)
}

/// Returns advice about an option or a kind of output that needs a feature which this build lacks.
pub(crate) fn lacking(option: &str) -> Option<String> {
    let feature = match option.split(['-', ':']).next() {
        Some("coins") => "remote-coins",
        Some("csv") => "tables",
        Some("parquet") => "parquet",
        Some("sqlite") => "sqlite",
        Some("proofs" | "roots" | "utreexo") => "utreexo",
        Some("web") => "web",
        _ => return None,
    };
    without(feature, &FEATURES)
}

fn without(feature: &str, features: &[(&str, bool)]) -> Option<String> {
    features.contains(&(feature, false)).then(|| {
        format!(
            "this build lacks the feature {feature}. The Debian package and the container have it, or build it \
             with `cargo install --locked --path crates/apus --features extras`"
        )
    })
}

/// Returns advice about an option that has another name here, or needs a feature.
fn of_name(name: &str) -> Option<String> {
    let chain = match name {
        "testnet" => Some(Network::Testnet3),
        "mainnet" => Some(Network::Main),
        _ => name.parse().ok(),
    };
    if let Some(chain) = chain {
        return Some(format!("choose the chain with --chain {chain}"));
    }
    let instead = match name {
        "prune" => {
            "--prune takes no size: Apus keeps the last 288 blocks, as in --out datadir:node --prune; then start \
             the node with -prune=550"
        }
        "port" | "bind" => "use --listen to accept connections, as in --listen 0.0.0.0:8333",
        "addnode" | "seednode" => "give a node with --connect, as in --connect 192.168.1.10",
        "reindex" | "reindex-chainstate" => {
            "rebuild a node's coins with `apus reindex --datadir DIR`"
        }
        _ => return lacking(name),
    };
    Some(instead.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_refused_word_gets_advice() {
        assert_eq!(of_word("-chain=regtest", "-p"), None);
        assert_eq!(of_word("--signet", "--outt"), None);
        assert_eq!(of_word("--outt", "--outt"), None);
        assert_eq!(of_word("-h", "-h"), None);
        assert!(of_word("-chain=regtest", "-c").unwrap().ends_with("as in --chain"));
        assert!(of_word("--signet", "--signet").unwrap().ends_with("--chain signet"));
        assert!(of_word("-testnet=1", "-t").unwrap().ends_with("--chain test"));
    }

    #[test]
    fn advice_quotes_no_value() {
        let url = "redis://u:hidden@h/x";
        let words = [format!("-coins={url}"), format!("--prune={url}"), format!("--web={url}")];
        for (word, refused) in words.iter().zip(["-c", "--prune", "--web"]) {
            let advice = of_word(word, refused).unwrap_or_default();
            assert!(!advice.contains("hidden"), "{advice}");
        }
        let line = |line: &[&str]| {
            let line = ["apus"].iter().chain(line);
            let error = crate::cli::Cli::whole_command().try_get_matches_from(line).unwrap_err();
            advice(&error, std::iter::empty())
        };
        for words in [&[url][..], &["sync", url], &["sync", "--out", "null", url]] {
            let advice = line(words).unwrap();
            assert!(!advice.contains("hidden") && advice.contains("behind its option"), "{advice}");
        }
        assert_eq!(line(&["sync", "word"]), None);
    }

    #[test]
    fn advice_about_a_missing_feature_says_where_to_get_it() {
        let advice = without("web", &[("web", false)]).unwrap();
        for part in ["the feature web", "Debian package", "--features extras"] {
            assert!(advice.contains(part), "{part}: {advice}");
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
            ("csv:utxos.csv", cfg!(feature = "tables")),
            ("sqlite:utxos.sqlite", cfg!(feature = "sqlite")),
            ("parquet:utxos.parquet", cfg!(feature = "parquet")),
        ] {
            assert_eq!(lacking(option).is_none(), is_in, "{option}");
        }
    }
}
