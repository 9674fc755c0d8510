//! What the commands that measure have in common.

use crate::failure::Failure;
use apus_bench::run::RunError;
use apus_storage::create_private_dir;
use serde::Serialize;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        Failure::of(error.kind(), &error)
    }
}

/// Cores that this process may use.
pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Seconds since 1970, by the machine's clock.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(i64::MAX)
}

/// This program, which does some parts in processes of their own.
pub(super) fn own_program() -> Result<PathBuf, Failure> {
    env::current_exe()
        .map_err(|error| Failure::usage(format!("cannot find this program itself: {error}")))
}

/// Writes a file of JSON for programs and people.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::io(path, error))?;
    fs::write(path, text + "\n").map_err(|error| Failure::io(path, error))
}

/// A time to wait.
#[derive(Clone, Copy)]
pub(super) struct Latency(pub(super) Duration);

/// More than any disk or server takes.
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
        latency.map(Self).ok_or_else(|| "not 0 or a number with us, ms or s, up to 10s".to_owned())
    }
}

/// Where everything is made: a folder of the user's, or one that goes away.
pub(super) struct Scratch {
    pub(super) folder: PathBuf,
    temporary: bool,
    /// Those around it, and itself, that were not there before: the innermost first.
    made: Vec<PathBuf>,
}

impl Scratch {
    /// The folder `given`, made if it is not there, or one of its own that is called `name`.
    pub(super) fn open(given: Option<&Path>, name: &str) -> Result<Self, Failure> {
        let (folder, temporary) = match given {
            Some(folder) => (folder.to_owned(), false),
            None => {
                let name = format!("{name}-{}", std::process::id());
                (env::temp_dir().join(name), true)
            }
        };
        let named = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let made = folder.ancestors().take_while(named).map(Path::to_owned).collect();
        // Among temporary files another user may have one of its name.
        let made_there = match temporary {
            true => create_private_dir(&folder),
            false => fs::create_dir_all(&folder),
        };
        made_there.map_err(|error| {
            Failure::io(&folder, format!("{error}; name another folder with --dir"))
        })?;
        // A node wants its folder by its full name.
        let folder = fs::canonicalize(&folder).map_err(|error| Failure::io(&folder, error))?;
        Ok(Self { folder, temporary, made })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.temporary {
            // At worst a folder among the temporary files stays.
            let _ = fs::remove_dir_all(&self.folder);
        }
        for folder in &self.made {
            // Fails where something was left in it on purpose.
            let _ = fs::remove_dir(folder);
        }
    }
}
