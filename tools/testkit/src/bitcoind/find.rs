//! Where the node to run is: the environment, `PATH`, or what its script in `scripts/` fetched.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The bitcoind to run: `BITCOIND_EXE`, else the one on `PATH`, else the repository's own.
///
/// # Panics
/// When there is none, saying how to get one.
pub fn find() -> PathBuf {
    find_program("bitcoind")
}

/// The program of this name to run, likewise.
///
/// # Panics
/// When there is none, saying how to get one.
pub(crate) fn find_program(name: &str) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    choose(name, env::var_os(variable(name)), env::var_os("PATH"), &repository)
        .unwrap_or_else(|message| panic!("{message}"))
}

/// The variable that names a program.
fn variable(name: &str) -> String {
    format!("{}_EXE", name.to_ascii_uppercase().replace('-', "_"))
}

/// [`find_program`], with everything it looks at handed in.
fn choose(
    name: &str,
    named: Option<OsString>,
    path: Option<OsString>,
    repository: &Path,
) -> Result<PathBuf, String> {
    let variable = variable(name);
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        return match named.is_file() {
            true => Ok(named),
            false => Err(format!(
                "{variable} names {}, which is no file: correct or unset it",
                named.display()
            )),
        };
    }
    let on_path = path.iter().flat_map(env::split_paths).map(|folder| folder.join(name));
    let fetched = repository.join(format!(".peers/{name}/bin/{name}"));
    on_path.chain([fetched]).find(|candidate| candidate.is_file()).ok_or_else(|| {
        format!(
            "this test needs a {name} and there is none: run scripts/{name}, which gets one, or \
             name yours in {variable}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn named_first_then_path_then_fetched_then_a_clear_message() {
        let folder = tempfile::tempdir().unwrap();
        let place = |relative: &str| {
            let file = folder.path().join(relative);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            file
        };
        let path = || Some(folder.path().join("bin").into_os_string());
        let none = choose("bitcoind", None, path(), folder.path()).unwrap_err();
        assert!(none.contains("scripts/bitcoind"), "{none}");

        let fetched = place(".peers/bitcoind/bin/bitcoind");
        assert_eq!(choose("bitcoind", None, path(), folder.path()), Ok(fetched));
        let on_path = place("bin/bitcoind");
        assert_eq!(choose("bitcoind", None, path(), folder.path()), Ok(on_path));
        let named = place("mine");
        assert_eq!(
            choose("bitcoind", Some(named.clone().into()), path(), folder.path()),
            Ok(named)
        );
        // A wrong name is a mistake to report, not a reason to take another node.
        let gone = || Some(folder.path().join("gone").into());
        let wrong = choose("bitcoind", gone(), path(), folder.path());
        assert!(wrong.unwrap_err().contains("BITCOIND_EXE"));
        let wrong = choose("btcd", gone(), path(), folder.path());
        assert!(wrong.unwrap_err().contains("BTCD_EXE"));
    }
}
