//! Where the bitcoind to run is: the environment, `PATH`, or what `scripts/bitcoind` fetched.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The bitcoind to run: `BITCOIND_EXE`, else the one on `PATH`, else the repository's own.
///
/// # Panics
/// When there is none, saying how to get one.
pub fn find() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    choose(env::var_os("BITCOIND_EXE"), env::var_os("PATH"), &repository)
        .unwrap_or_else(|message| panic!("{message}"))
}

/// [`find`], with everything it looks at handed in.
fn choose(
    named: Option<OsString>,
    path: Option<OsString>,
    repository: &Path,
) -> Result<PathBuf, String> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        let named = PathBuf::from(named);
        return match named.is_file() {
            true => Ok(named),
            false => Err(format!(
                "BITCOIND_EXE names {}, which is no file: correct or unset it",
                named.display()
            )),
        };
    }
    let on_path = path.iter().flat_map(env::split_paths).map(|folder| folder.join("bitcoind"));
    let fetched = repository.join(".peers/bitcoind/bin/bitcoind");
    on_path.chain([fetched]).find(|candidate| candidate.is_file()).ok_or_else(|| {
        "this test needs a bitcoind and there is none: run scripts/bitcoind, which fetches one, \
         or name yours in BITCOIND_EXE"
            .to_owned()
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
        let none = choose(None, path(), folder.path()).unwrap_err();
        assert!(none.contains("scripts/bitcoind"), "{none}");

        let fetched = place(".peers/bitcoind/bin/bitcoind");
        assert_eq!(choose(None, path(), folder.path()), Ok(fetched));
        let on_path = place("bin/bitcoind");
        assert_eq!(choose(None, path(), folder.path()), Ok(on_path));
        let named = place("mine");
        assert_eq!(choose(Some(named.clone().into()), path(), folder.path()), Ok(named));
        // A wrong name is a mistake to report, not a reason to take another node.
        let wrong = choose(Some(folder.path().join("gone").into()), path(), folder.path());
        assert!(wrong.unwrap_err().contains("BITCOIND_EXE"));
    }
}
