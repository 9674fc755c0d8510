//! Code that the commands share.

use crate::error::{AtPath, BenchError};
use crate::table::TextTable;
use crate::terminal;
use apus_storage::create_private_dir;
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, fs};

// ---- helpers of all commands ----

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Seconds since 1970, by the machine's clock.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(i64::MAX)
}

/// The path of this program, which runs some parts in separate processes.
pub(crate) fn own_program() -> Result<PathBuf, BenchError> {
    env::current_exe()
        .map_err(|error| BenchError::usage(format!("cannot find this program itself: {error}")))
}

/// Writes a JSON file for programs and people.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), BenchError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| BenchError::io(path, error))?;
    fs::write(path, text + "\n").at(path)
}

/// Writes the results to a file if the user named one, and shows them.
pub(crate) fn show(
    json: Option<&Path>,
    found: &impl Serialize,
    table: &TextTable,
) -> Result<(), BenchError> {
    if let Some(path) = json {
        write_json(path, found)?;
    }
    terminal::result(table.text())
}

/// Another program to compare with.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Against {
    /// Bitcoin Core
    Bitcoind,
}

/// A waiting time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Latency(pub(crate) Duration);

/// Upper bound of a latency: longer than any disk or server takes.
const LATENCY_MAX: Duration = Duration::from_secs(10);

impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("us", 1u64), ("ms", 1000), ("s", 1_000_000)];
        let unit = units.iter().find_map(|(unit, us)| Some((text.strip_suffix(unit)?, us)));
        let us = match unit {
            Some((number, us)) => number.parse::<u64>().ok().and_then(|n| n.checked_mul(*us)),
            None => (text == "0").then_some(0),
        };
        let latency = us.map(Duration::from_micros).filter(|latency| *latency <= LATENCY_MAX);
        latency
            .map(Self)
            .ok_or_else(|| "expected 0 or a number with us, ms or s, up to 10s".to_owned())
    }
}

/// The folder of all generated files: the user's, or a temporary one.
pub(crate) struct ScratchFolder {
    pub(crate) folder: PathBuf,
    temporary: bool,
    /// The folders created here, including its parents: the innermost first.
    made: Vec<PathBuf>,
}

impl ScratchFolder {
    /// Opens the folder `given`, creating it if needed, or a temporary one called `name`.
    pub(crate) fn open(given: Option<&Path>, name: &str) -> Result<Self, BenchError> {
        let (folder, temporary) = match given {
            Some(folder) => (folder.to_owned(), false),
            None => {
                let name = format!("{name}-{}", std::process::id());
                (env::temp_dir().join(name), true)
            }
        };
        let named = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let made = folder.ancestors().take_while(named).map(Path::to_owned).collect();
        // In the system's temporary folder another user may own one of this name.
        let made_there = match temporary {
            true => create_private_dir(&folder),
            false => fs::create_dir_all(&folder),
        };
        made_there.map_err(|error| {
            BenchError::io(&folder, format!("{error}; use another folder with --dir"))
        })?;
        // A node needs the absolute path of its folder.
        let folder = fs::canonicalize(&folder).map_err(|error| BenchError::io(&folder, error))?;
        Ok(Self { folder, temporary, made })
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if self.temporary {
            // A leftover temporary folder is harmless.
            let _ = fs::remove_dir_all(&self.folder);
        }
        for folder in &self.made {
            // Fails if something was left in it on purpose.
            let _ = fs::remove_dir(folder);
        }
    }
}

// ---- the program that is measured ----

/// The program's file name.
const NAME: &str = "apus";

/// The `apus` program to measure.
#[derive(Debug)]
pub(crate) struct ApusProgram {
    /// Its absolute path, because benchmarks start it in other folders.
    pub(crate) program: PathBuf,
    /// Its release.
    pub(crate) version: String,
    /// The commit that it was built from, if the build recorded it.
    pub(crate) commit: Option<String>,
    /// Its optional features.
    pub(crate) features: Vec<String>,
}

impl ApusProgram {
    /// Finds the given program, else the one next to this program, else the one on `PATH`.
    pub(crate) fn find(named: Option<&Path>) -> Result<Self, BenchError> {
        let own = env::current_exe().ok();
        let own_folder = own.as_deref().and_then(Path::parent);
        let program = choose(named, own_folder, env::var_os("PATH"))?;
        let program =
            fs::canonicalize(&program).map_err(|error| BenchError::io(&program, error))?;
        let output = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
        let output = output.map_err(|error| BenchError::io(&program, error))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let (version, commit, features) = parse_version(&printed).ok_or_else(|| {
            BenchError::usage(format!(
                "{} is not an apus program: its `--version` output is not that of apus",
                program.display()
            ))
        })?;
        Ok(Self { program, version, commit, features })
    }

    /// The reason if this build cannot validate scripts.
    pub(crate) fn no_interpreter(&self) -> Option<String> {
        let has = self.features.iter().any(|feature| feature == "kernel");
        (!has).then(|| "this apus has no script interpreter (the feature kernel)".to_owned())
    }
}

/// Chooses among the possible paths.
fn choose(
    named: Option<&Path>,
    own_folder: Option<&Path>,
    path: Option<OsString>,
) -> Result<PathBuf, BenchError> {
    if let Some(named) = named {
        // A wrong name is an error, not a reason to use another program.
        return match named.is_file() {
            true => Ok(named.to_owned()),
            false => Err(BenchError::usage(format!(
                "--apus: {} is not a file: give the path of the program apus",
                named.display()
            ))),
        };
    }
    let on_path = path.iter().flat_map(env::split_paths);
    let mut places =
        own_folder.map(Path::to_owned).into_iter().chain(on_path).map(|it| it.join(NAME));
    places.find(|program| program.is_file()).ok_or_else(|| {
        BenchError::usage(
            "there is no apus next to this program or on PATH: build it (cargo build --release -p \
             apus), or give its path with --apus",
        )
    })
}

/// Parses version, commit and features from the output of `apus --version`.
fn parse_version(printed: &str) -> Option<(String, Option<String>, Vec<String>)> {
    let mut lines = printed.lines();
    let version = lines.next()?.strip_prefix("apus ")?.to_owned();
    let (mut commit, mut features) = (None, None);
    for line in lines {
        match line.split_once(' ').map(|(name, value)| (name, value.trim())) {
            Some(("commit", "not known")) => {}
            Some(("commit", known)) => commit = Some(known.to_owned()),
            Some(("features", "none")) => features = Some(Vec::new()),
            Some(("features", names)) => {
                features = Some(names.split(", ").map(str::to_owned).collect());
            }
            _ => {}
        }
    }
    Some((version, commit, features?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apus_comes_from_the_option_the_own_folder_or_the_path() {
        let sandbox = tempfile::tempdir().unwrap();
        let folder = |name: &str| sandbox.path().join(name);
        let find = |named: Option<&Path>| {
            choose(named, Some(&folder("own")), Some(folder("bin").into_os_string()))
        };
        let none = find(None).unwrap_err().to_string();
        assert!(none.contains("--apus"), "{none}");
        for place in ["bin", "own"] {
            fs::create_dir(folder(place)).unwrap();
            fs::write(folder(place).join(NAME), "").unwrap();
            assert_eq!(find(None).unwrap(), folder(place).join(NAME));
        }
        let mine = folder("bin/apus");
        assert_eq!(find(Some(&mine)).unwrap(), mine);
        let wrong = find(Some(&folder("gone"))).unwrap_err().to_string();
        assert!(wrong.starts_with("--apus: "), "{wrong}");
    }

    #[test]
    fn version_output_is_parsed() {
        let printed =
            "apus 0.1.0\ncommit    0123abc\nfeatures  kernel, web\nplatform  linux/x86_64\n";
        let (version, commit, features) = parse_version(printed).unwrap();
        assert_eq!((version.as_str(), commit.as_deref()), ("0.1.0", Some("0123abc")));
        assert_eq!(features, ["kernel", "web"]);
        let bare = "apus 0.1.0\ncommit    not known\nfeatures  none\n";
        assert_eq!(parse_version(bare), Some(("0.1.0".to_owned(), None, Vec::new())));
        for other in ["", "Bitcoin Core daemon version v31\n", "apus 0.1.0\n"] {
            assert_eq!(parse_version(other), None, "{other}");
        }
    }
}
