//! [`Apus`]: the program that is measured, and what it says of itself.

use crate::failure::Failure;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Its file's name.
const NAME: &str = "apus";

/// The `apus` that is measured.
#[derive(Debug)]
pub(super) struct Apus {
    /// Where it is, in full: it is started in other folders.
    pub(super) program: PathBuf,
    /// Its release.
    pub(super) version: String,
    /// The commit that it was built from, if its builder knew.
    pub(super) commit: Option<String>,
    /// What was built in that can be left out.
    pub(super) features: Vec<String>,
}

impl Apus {
    /// The one named, else the one beside this program, else the one on `PATH`.
    pub(super) fn find(named: Option<&Path>) -> Result<Self, Failure> {
        let own = env::current_exe().ok();
        let beside = own.as_deref().and_then(Path::parent);
        let program = choose(named, beside, env::var_os("PATH"))?;
        let program = fs::canonicalize(&program).map_err(|error| Failure::io(&program, error))?;
        let output = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
        let output = output.map_err(|error| Failure::io(&program, error))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let (version, commit, features) = understood(&said).ok_or_else(|| {
            Failure::usage(format!(
                "{} is no apus: `--version` of it does not say what it is",
                program.display()
            ))
        })?;
        Ok(Self { program, version, commit, features })
    }

    /// Why its runs can run no scripts, if they cannot.
    pub(super) fn no_interpreter(&self) -> Option<String> {
        let has = self.features.iter().any(|feature| feature == "kernel");
        (!has).then(|| "this apus has no script interpreter (the feature kernel)".to_owned())
    }
}

/// Where it is, of all places where it may be.
fn choose(
    named: Option<&Path>,
    beside: Option<&Path>,
    path: Option<OsString>,
) -> Result<PathBuf, Failure> {
    if let Some(named) = named {
        // A wrong name is a mistake to report, no reason to take another program.
        return match named.is_file() {
            true => Ok(named.to_owned()),
            false => Err(Failure::usage(format!(
                "--apus names {}, which is no file: name the program apus itself",
                named.display()
            ))),
        };
    }
    let on_path = path.iter().flat_map(env::split_paths);
    let mut places = beside.map(Path::to_owned).into_iter().chain(on_path).map(|it| it.join(NAME));
    places.find(|program| program.is_file()).ok_or_else(|| {
        Failure::usage(
            "there is no apus beside this program or on PATH: build it (cargo build --release -p \
             apus), or name it with --apus",
        )
    })
}

/// Version, commit and features out of what `apus --version` prints.
fn understood(said: &str) -> Option<(String, Option<String>, Vec<String>)> {
    let mut lines = said.lines();
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
    fn named_first_then_beside_then_on_path_then_a_clear_message() {
        let desk = tempfile::tempdir().unwrap();
        let folder = |name: &str| desk.path().join(name);
        let find = |named: Option<&Path>| {
            choose(named, Some(&folder("beside")), Some(folder("bin").into_os_string()))
        };
        let none = find(None).unwrap_err().message;
        assert!(none.contains("--apus"), "{none}");
        for place in ["bin", "beside"] {
            fs::create_dir(folder(place)).unwrap();
            fs::write(folder(place).join(NAME), "").unwrap();
            assert_eq!(find(None).unwrap(), folder(place).join(NAME));
        }
        let mine = folder("bin/apus");
        assert_eq!(find(Some(&mine)).unwrap(), mine);
        let wrong = find(Some(&folder("gone"))).unwrap_err().message;
        assert!(wrong.starts_with("--apus names"), "{wrong}");
    }

    #[test]
    fn what_it_says_of_itself_is_understood() {
        let said = "apus 0.1.0\ncommit    0123abc\nfeatures  kernel, web\nplatform  linux/x86_64\n";
        let (version, commit, features) = understood(said).unwrap();
        assert_eq!((version.as_str(), commit.as_deref()), ("0.1.0", Some("0123abc")));
        assert_eq!(features, ["kernel", "web"]);
        let bare = "apus 0.1.0\ncommit    not known\nfeatures  none\n";
        assert_eq!(understood(bare), Some(("0.1.0".to_owned(), None, Vec::new())));
        for other in ["", "Bitcoin Core daemon version v31\n", "apus 0.1.0\n"] {
            assert_eq!(understood(other), None, "{other}");
        }
    }
}
