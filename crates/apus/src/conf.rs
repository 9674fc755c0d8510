//! Options from a file, `--conf FILE`. The command line and the environment take precedence.
//!
//! The format is Bitcoin Core's: `option=value`, `#` before a comment, and `[command]` before the options of one
//! command. Lines become words of the command line, so errors in values have the same text for both. Apus parses the
//! whole file before it uses any line.

use crate::failure::Failure;
use crate::spelling::lacking;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Command};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Name of the option for the file.
const CONF: &str = "conf";

/// Maximum size of the file, in bytes: far more than all options need.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A command line, merged with its --conf file.
pub(crate) struct ParsedArgs {
    /// The words from both.
    pub(crate) words: Vec<OsString>,
    /// Options from the file: name, value, and place.
    of_file: Vec<(String, Option<String>, String)>,
}

impl ParsedArgs {
    /// Returns the place of the value that caused an error, if it is not on the command line.
    pub(crate) fn place(&self, error: &clap::Error) -> Option<String> {
        if ![ErrorKind::InvalidValue, ErrorKind::ValueValidation].contains(&error.kind()) {
            return None;
        }
        let text = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.as_str()),
            _ => None,
        };
        // clap appends the name of the value: --dbcache <MiB>.
        let named = text(ContextKind::InvalidArg)?.strip_prefix("--")?;
        let option = named.split([' ', '=', '[']).next()?;
        let is_it = |(name, ..): &&(String, Option<String>, String)| name == option;
        let mut lines = self.of_file.iter().filter(is_it).peekable();
        let first = lines.peek().map(|(.., place)| place.clone());
        let value = text(ContextKind::InvalidValue);
        let exact = lines.find(|(_, of, _)| of.as_deref() == value);
        let in_file = exact.map(|(.., place)| place.clone()).or(first);
        let on_line = values(&self.words, option).next().is_some();
        let variable = Some(variable(option)).filter(|name| std::env::var_os(name).is_some());
        in_file.or_else(|| variable.filter(|_| !on_line))
    }
}

/// Parses the value of a flag; `None` if invalid.
pub(crate) fn yes_or_no(value: &str) -> Option<bool> {
    match value {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

/// Adds the options of the --conf file, if given, to the words of a command line.
///
/// # Errors
/// If the file cannot be read, or a line is invalid or names an unknown option.
pub(crate) fn with_file(command: &Command, words: Vec<OsString>) -> Result<ParsedArgs, Failure> {
    let given = |name: &str| values(&words, name).next();
    let named = given(CONF).or_else(|| std::env::var_os(variable(CONF)));
    let Some(path) = named.map(PathBuf::from) else {
        return Ok(ParsedArgs { words, of_file: Vec::new() });
    };
    let at = chosen(command, &words);
    let (mut more, mut of_file) = (Vec::new(), Vec::new());
    for line in read(&path)? {
        let place = format!("{}:{}", path.display(), line.number);
        let wrong = |what: String| Failure::usage(format!("{place}: {what}"));
        let kind = line.kind(command).map_err(wrong)?;
        let for_this = line.section.as_ref().is_none_or(|section| *section == at.name);
        let mut taken = at.command.get_arguments().chain(command.get_arguments());
        let takes = taken.any(|arg| arg.get_long() == Some(&line.option));
        if !for_this || !takes || given(&line.option).is_some() {
            continue;
        }
        if std::env::var_os(variable(&line.option)).is_some() {
            continue;
        }
        more.extend(line.word(kind).map_err(wrong)?);
        of_file.push((line.option, line.value, place));
    }
    let mut all = words;
    all.splice(at.behind..at.behind, more.into_iter().map(OsString::from));
    Ok(ParsedArgs { words: all, of_file })
}

/// Returns an option's environment variable.
pub(crate) fn variable(option: &str) -> String {
    format!("APUS_{}", option.to_uppercase().replace('-', "_"))
}

/// Returns the values of an option on a command line; an empty one if the value is missing. Always takes the next word
/// as the value.
fn values<'a>(words: &'a [OsString], option: &'a str) -> impl Iterator<Item = OsString> + 'a {
    words.iter().enumerate().filter_map(move |(index, word)| {
        let rest = word.to_str()?.strip_prefix("--")?.strip_prefix(option)?;
        match rest.strip_prefix('=') {
            Some(value) => Some(value.into()),
            None if rest.is_empty() => Some(words.get(index + 1).cloned().unwrap_or_default()),
            None => None,
        }
    })
}

/// The command that a command line selects.
struct SelectedCommand<'a> {
    /// The command's name, after the names of its parent commands.
    name: String,
    command: &'a Command,
    /// Index of the word after the command's name.
    behind: usize,
}

fn chosen<'a>(whole: &'a Command, words: &[OsString]) -> SelectedCommand<'a> {
    let mut at =
        SelectedCommand { name: String::new(), command: whole, behind: words.len().min(1) };
    for (index, word) in words.iter().enumerate().skip(1) {
        if let Some(inner) = word.to_str().and_then(|word| at.command.find_subcommand(word)) {
            let space = if at.name.is_empty() { "" } else { " " };
            at.name.push_str(&format!("{space}{}", inner.get_name()));
            (at.command, at.behind) = (inner, index + 1);
        }
    }
    at
}

/// A line that sets an option.
#[derive(Debug, PartialEq)]
struct OptionLine {
    number: usize,
    section: Option<String>,
    option: String,
    value: Option<String>,
}

/// How an option takes its value.
#[derive(Clone, Copy, PartialEq)]
enum OptionKind {
    /// An option with a value.
    Valued,
    /// An option without a value, either set or not.
    Flag,
}

impl OptionLine {
    /// Returns the option's kind; the error says why it is not valid here.
    fn kind(&self, whole: &Command) -> Result<OptionKind, String> {
        let command = self.section.iter().flat_map(|section| section.split(' ')).try_fold(
            whole,
            |command, name| {
                let section = self.section.as_deref().unwrap_or_default();
                let inner = command.find_subcommand(name);
                inner.ok_or_else(|| format!("there is no command {section} for [{section}]"))
            },
        )?;
        let kind = kind_in(command, &self.option, self.section.is_none());
        match kind {
            Some(_) if self.option == CONF => {
                Err("a --conf file cannot name another --conf file".to_owned())
            }
            Some(kind) => Ok(kind),
            None => {
                let of =
                    self.section.as_ref().map_or_else(String::new, |of| format!(" of apus {of}"));
                Err(lacking(&self.option)
                    .map(|why| format!("--{}: {why}", self.option))
                    .unwrap_or_else(|| format!("there is no option --{}{of}", self.option)))
            }
        }
    }

    /// Returns the equivalent word of a command line; `None` for a flag that is off.
    fn word(&self, kind: OptionKind) -> Result<Option<String>, String> {
        match (kind, self.value.as_deref()) {
            (OptionKind::Valued, Some(value)) => Ok(Some(format!("--{}={value}", self.option))),
            (OptionKind::Valued, None) => {
                Err(format!("--{0} needs a value: write {0}=VALUE", self.option))
            }
            (OptionKind::Flag, None) => Ok(Some(format!("--{}", self.option))),
            (OptionKind::Flag, Some(value)) => match yes_or_no(value) {
                Some(yes) => Ok(yes.then(|| format!("--{}", self.option))),
                None => Err(format!("--{} takes 1 or 0, true or false, not {value}", self.option)),
            },
        }
    }
}

/// Returns the kind of a command's option; with `deep`, also searches its subcommands.
fn kind_in(command: &Command, option: &str, deep: bool) -> Option<OptionKind> {
    let own =
        command.get_arguments().find(|arg| arg.get_long() == Some(option)).map(|arg| {
            match arg.get_action() {
                ArgAction::Set | ArgAction::Append => OptionKind::Valued,
                _ => OptionKind::Flag,
            }
        });
    let inner = || command.get_subcommands().find_map(|inner| kind_in(inner, option, deep));
    own.or_else(|| if deep { inner() } else { None })
}

fn read(path: &Path) -> Result<Vec<OptionLine>, Failure> {
    let failed = |error| Failure::io(path, error);
    let mut text = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    let wrong = |what: String| Failure::usage(format!("{}: {what}", path.display()));
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(wrong(format!(
            "too large: a file of options has at most {FILE_BYTES_MAX} bytes"
        )));
    }
    let text = String::from_utf8(text).map_err(|_| wrong("not UTF-8 text".to_owned()))?;
    lines(&text).map_err(|(number, what)| wrong(format!("line {number}: {what}")))
}

fn lines(text: &str) -> Result<Vec<OptionLine>, (usize, String)> {
    let (mut section, mut lines) = (None, Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            let name =
                name.strip_suffix(']').ok_or((number, "a [command] ends with ]".to_owned()))?;
            section = Some(name.split_whitespace().collect::<Vec<_>>().join(" "));
            continue;
        }
        let (option, value) = match line.split_once('=') {
            Some((option, value)) => (option.trim(), Some(value.trim().to_owned())),
            None => (line, None),
        };
        if option.starts_with('-') {
            let bare = option.trim_start_matches('-');
            return Err((number, format!("options take no dashes here: write {bare}=VALUE")));
        }
        let (section, option) = (section.clone(), option.to_owned());
        lines.push(OptionLine { number, section, option, value });
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    /// Returns the command line that results from a file with this text.
    fn line_with(text: &str, line: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("apus.conf");
        std::fs::write(&path, text).unwrap();
        let words = format!("apus {line}").split(' ').map(OsString::from).collect::<Vec<_>>();
        let conf = OsString::from(format!("--conf={}", path.display()));
        let words = [words, vec![conf]].concat();
        match with_file(&Cli::whole_command(), words) {
            Ok(ParsedArgs { words, .. }) => {
                let shown = words.iter().map(|word| word.to_string_lossy());
                Ok(shown.filter(|word| !word.starts_with("--conf=")).collect::<Vec<_>>().join(" "))
            }
            Err(failure) => {
                assert_eq!(failure.code, crate::failure::USAGE);
                Err(failure.message.replace(&path.display().to_string(), "FILE"))
            }
        }
    }

    #[test]
    fn lines_of_the_file_become_words_after_the_command() {
        let text = "# for all\n dbcache = 2000 \nreplace=true\nprune=0\nmuhash=false\n\n[reindex]\nhints=a b=c\n\
                    [ hints  check ]\naggregate=muhash\n[sync]\nout=null\nout=snapshot:x\n";
        for (line, words) in [
            ("reindex --par 1", "apus reindex --dbcache=2000 --replace --hints=a b=c --par 1"),
            ("reindex --dbcache 5 --hints=x", "apus reindex --replace --dbcache 5 --hints=x"),
            ("hints check", "apus hints check --dbcache=2000 --aggregate=muhash"),
            ("sync", "apus sync --dbcache=2000 --replace --out=null --out=snapshot:x"),
            ("hints info f", "apus hints info f"),
        ] {
            assert_eq!(line_with(text, line).unwrap(), words);
        }
    }

    #[test]
    fn errors_name_the_line_of_the_file() {
        for (text, words) in [
            ("\ndbcach=1", "FILE:2: there is no option --dbcach"),
            ("[sync]\ndatadir=x", "FILE:2: there is no option --datadir of apus sync"),
            ("[snyc]\npar=1", "FILE:2: there is no command snyc"),
            ("dbcache", "FILE:1: --dbcache needs a value: write dbcache=VALUE"),
            ("replace=yes", "FILE:1: --replace takes 1 or 0, true or false, not yes"),
            ("--dbcache=1", "FILE: line 1: options take no dashes here: write dbcache=VALUE"),
            ("[sync\n", "FILE: line 1: a [command] ends with ]"),
            ("conf=other", "FILE:1: a --conf file cannot name another --conf file"),
        ] {
            let error = line_with(text, "reindex").unwrap_err();
            assert!(error.contains(words), "{words} is not in {error}");
        }
    }
}
