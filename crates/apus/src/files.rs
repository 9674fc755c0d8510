//! Files that a command line names, judged before hours of work are spent on them.
//!
//! What is said here is for people who mistyped; nothing relies on it later, when a file may have
//! come or gone.

use crate::args::HintsArg;
use crate::failure::Failure;
use apus_engine::swiftsync::hints::{Detected, Format, detect_format};
use std::fs::{self, File};
use std::io::Read;
#[cfg(feature = "bench")]
use std::io::Write;
use std::path::{Path, PathBuf};

/// First bytes of every UTXO snapshot.
const SNAPSHOT_MAGIC: &[u8] = b"utxo\xff";

/// What a file is by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Hints in an encoding that has a mark.
    Hints(Format),
    /// A UTXO snapshot.
    Snapshot,
    /// Something else, or hints without a mark.
    Unknown,
}

impl Content {
    /// Looks at a file.
    pub(crate) fn of(path: &Path) -> Result<Self, Failure> {
        let mut first = Vec::new();
        File::open(path)
            .and_then(|file| file.take(5).read_to_end(&mut first))
            .map_err(|error| Failure::io(path, error))?;
        Ok(match detect_format(&first) {
            Some(Detected::Hints(format)) => Self::Hints(format),
            Some(Detected::Gzip) => Self::Hints(Format::Btcd),
            None if first == SNAPSHOT_MAGIC => Self::Snapshot,
            None => Self::Unknown,
        })
    }
}

/// The hints of a run must be there and of the kind that the command line says.
pub(crate) fn expect_hints(hints: &HintsArg) -> Result<(), Failure> {
    let (HintsArg::File(path) | HintsArg::Snapshot(path)) = hints;
    let name = path.display();
    match (hints, Content::of(path)?) {
        (HintsArg::File(_), Content::Hints(Format::Bip456))
        | (HintsArg::Snapshot(_), Content::Snapshot | Content::Unknown) => Ok(()),
        (HintsArg::File(_), Content::Snapshot) => {
            Err(Failure::usage(format!("{name} is a UTXO snapshot: give it as snapshot:{name}")))
        }
        (HintsArg::File(_), Content::Hints(format)) => Err(Failure::usage(format!(
            "{name} has the encoding {format}, which a run does not read: rewrite it with `apus \
             hints convert {name} --to bip456 --out FILE`"
        ))),
        (HintsArg::File(_), Content::Unknown) => Err(Failure::invalid(format!(
            "{name} is no BIP-456 hintsfile, which would begin with 5554584f00: it is damaged, or \
             has another encoding and must be rewritten with `apus hints convert`"
        ))),
        (HintsArg::Snapshot(_), Content::Hints(_)) => Err(Failure::usage(format!(
            "{name} is a hintsfile, not a UTXO snapshot: give it without `snapshot:`"
        ))),
    }
}

/// A file to be written needs a folder, a name, and to be new. `may_exist` is for files that an
/// earlier start of the same run may have finished.
pub(crate) fn expect_writable(
    path: &Path,
    may_exist: impl FnOnce(&Path) -> bool,
) -> Result<(), Failure> {
    let name = path.display();
    if path.is_dir() {
        return Err(Failure::usage(format!("{name} is a folder: name a file")));
    }
    if path.file_name().is_none_or(|name| name.to_str().is_none()) {
        return Err(Failure::usage(format!("{name} is no name for a file")));
    }
    let folder = parent(path);
    if !folder.is_dir() {
        return Err(Failure::io(folder, "no such folder: make it first"));
    }
    if path.symlink_metadata().is_ok() && !may_exist(path) {
        return Err(Failure::usage(format!(
            "{name} exists already: remove it, or name another output"
        )));
    }
    Ok(())
}

/// Files and folders to be made must not get in each other's way, whichever way their names are
/// written.
pub(crate) fn expect_apart(paths: &[&Path]) -> Result<(), Failure> {
    let places: Vec<PathBuf> = paths.iter().map(|path| place(path)).collect();
    for (index, place) in places.iter().enumerate() {
        for other in &places[..index] {
            if place == other || *place == draft_of(other) || draft_of(place) == *other {
                return Err(Failure::usage(format!(
                    "{} is named twice: outputs, the report and the work folder need names of \
                     their own",
                    paths[index].display()
                )));
            }
        }
    }
    Ok(())
}

/// The folder that a file is in.
pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Where a file is while it is not whole.
pub(crate) fn draft_of(path: &Path) -> PathBuf {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".incomplete");
    draft.into()
}

/// Writes a file so that it is never seen in part.
#[cfg(feature = "bench")]
pub(crate) fn publish(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let draft = draft_of(path);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    write().map_err(|error| Failure::io(path, error))
}

/// The one way to write a path, as far as its folders exist.
fn place(path: &Path) -> PathBuf {
    match (fs::canonicalize(parent(path)), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_file_are_seen_through() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("sub")).unwrap();
        std::os::unix::fs::symlink("sub", path("link")).unwrap();
        let apart = |a: &str, b: &str| expect_apart(&[&path(a), &path("c"), &path(b)]).is_ok();
        assert!(apart("a", "b"));
        assert!(apart("a", "sub/a"));
        assert!(apart("nowhere/a", "nowhere/b"));
        for (a, b) in [
            ("a", "a"),
            ("a", "./a"),
            ("a", "sub/../a"),
            ("link/a", "sub/a"),
            ("a", "a.incomplete"),
            ("a.incomplete", "a"),
            ("nowhere/a", "nowhere/a"),
        ] {
            assert!(!apart(a, b), "{a} {b}");
        }
    }

    #[test]
    fn only_a_new_file_in_a_folder_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("old"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", path("dangling")).unwrap();
        let code = |name: &str, may_exist: bool| {
            expect_writable(&path(name), |_| may_exist).err().map(|failure| failure.code)
        };
        assert_eq!(code("new", false), None);
        assert_eq!(code("old", true), None);
        for (name, expected) in [("old", 1), ("dangling", 1), ("..", 1), ("", 1), ("no/new", 3)] {
            assert_eq!(code(name, false), Some(expected), "{name}");
        }
    }
}
