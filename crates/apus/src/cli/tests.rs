//! Checks that every option and command named in the program's texts exists, in a build with all features.
#![cfg(feature = "extras")]

use super::Cli;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Options of other programs in our texts.
const OF_OTHERS: [&str; 7] = [
    "cluster",
    "features",
    "flatutreexoproofindex",
    "locked",
    "no-default-features",
    "path",
    "release",
];

/// Returns the source files of all crates whose texts users see; not the tools.
fn sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders: Vec<PathBuf> = ["crates", "extras"]
        .iter()
        .flat_map(|room| fs::read_dir(root.join(room)).unwrap())
        .map(|entry| entry.unwrap().path().join("src"))
        .collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_test = name == "tests" || name.ends_with("tests.rs");
            match path.is_dir() {
                _ if is_test => {}
                true => folders.push(path),
                false if path.extension().is_none_or(|kind| kind == "log") => {}
                false => files.push(path),
            }
        }
    }
    assert!(files.len() > 300, "{}", files.len());
    files
}

/// Returns a source file's string literals, except in its tests, and its doc comments, because clap shows those of
/// options to users.
fn texts(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let (mut texts, mut rest) = (Vec::new(), source);
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let (mark, after) = (rest.as_bytes()[at], &rest[at + 1..]);
        rest = match mark {
            b'/' if after.starts_with('/') => {
                let (line, behind) = after.split_once('\n').unwrap_or((after, ""));
                if let Some(text) = line.strip_prefix("//") {
                    texts.push(text.to_owned());
                }
                behind
            }
            b'/' => after,
            // A quote in a character literal, not a lifetime.
            b'\'' => ["\"'", "\\\"'", "\\''"]
                .iter()
                .find_map(|it| after.strip_prefix(it))
                .unwrap_or(after),
            _ => {
                let is_raw = rest[..at].trim_end_matches('#').ends_with('r');
                let hashes = rest[..at].len() - rest[..at].trim_end_matches('#').len();
                let end = match is_raw {
                    true => after.find(&format!("\"{}", "#".repeat(hashes))),
                    false => end_of_literal(after),
                };
                let end = end.expect("a literal has an end");
                texts.push(after[..end].replace("\\\n", " "));
                &after[end + 1..]
            }
        };
    }
    texts
}

fn end_of_literal(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// Returns the words of a text that look like options.
fn options(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices("--").filter(|(at, _)| {
        text[..*at]
            .chars()
            .next_back()
            .is_none_or(|before| !before.is_alphanumeric() && !"-{".contains(before))
    });
    starts.filter_map(|(at, _)| {
        let rest = &text[at + 2..];
        let end = rest.find(|letter: char| {
            !letter.is_ascii_lowercase() && letter != '-' && !letter.is_ascii_digit()
        });
        let name = rest[..end.unwrap_or(rest.len())].trim_end_matches('-');
        (!name.is_empty() && !rest.starts_with('-')).then_some(name)
    })
}

fn longs(command: &clap::Command, into: &mut BTreeSet<String>) {
    into.extend(command.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned));
    command.get_subcommands().for_each(|inner| longs(inner, into));
}

#[test]
fn texts_name_only_existing_options_and_commands() {
    let whole = Cli::whole_command();
    let mut known = BTreeSet::from(["help".to_owned(), "version".to_owned()]);
    longs(&whole, &mut known);
    for file in sources() {
        for text in texts(&fs::read_to_string(&file).unwrap()) {
            for option in options(&text) {
                let exists = known.contains(option) || OF_OTHERS.contains(&option);
                assert!(exists, "{}: there is no --{option}: {text}", file.display());
            }
            for (at, _) in text.match_indices("`apus ") {
                let mut command = &whole;
                let words = text[at + 6..].split('`').next().unwrap_or_default();
                for word in words.split_whitespace() {
                    match command.find_subcommand(word) {
                        Some(inner) => command = inner,
                        None => {
                            let takes_any = !command.has_subcommands() || word.starts_with('-');
                            assert!(takes_any, "{}: there is no {word}: {text}", file.display());
                            break;
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_missing_option_would_be_found() {
    let text = r##"
        /// Gives up (`--give-up`).
        // Not a text: --comment.
        fn f() { let _ = ('"', "run \"it\" again with --restart, or \
            --workdir=DIR", r#"--raw"#, "{--} a--b ---x"); }
        #[cfg(test)]
        mod tests { "--hidden" }
    "##
    .replace("        #[cfg(test)]\n        mod", "#[cfg(test)]\nmod");
    let texts = texts(&text);
    let found: Vec<&str> = texts.iter().flat_map(|text| options(text)).collect();
    assert_eq!(found, ["give-up", "restart", "workdir", "raw"]);
}
