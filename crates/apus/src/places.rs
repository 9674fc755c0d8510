//! Places on disks for what a run writes, tried before hours of work are spent on it; and what `--replace` moved aside there,
//! this time and before, which nothing removes but the user.
//!
//! Rights, quotas, disks that are mounted to be read only, disks in a network and layers of a container all have a say in
//! what can be done there, so it is done, with a file that goes again at once. [`look_at`] does without.

use crate::failure::{Failure, IO};
use crate::node::quoted;
use crate::print;
use crate::report::bytes;
use apus_storage::place::{
    Lacking, NameDurability, Unmovable, expect_movable, expect_movable_by_looks, look_at_place,
    try_place,
};
use apus_sync::{FolderOutput, WrittenFolder, parent};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Files can be made in the folders of these outputs, or where these will be made, and all can be done with them that is
/// done at the end. Gives the folders whose names cannot be made durable.
pub(crate) fn expect_places(
    outputs: &[&Path],
    folders: &[FolderOutput],
) -> Result<Vec<PathBuf>, Failure> {
    let (mut tried, mut unsure) = (Vec::new(), Vec::new());
    for path in outputs {
        let folder = nearest(parent(path));
        if tried.contains(&folder) {
            continue;
        }
        // What a folder is drafted in is locked.
        let locks = folders.iter().any(|output| nearest(parent(&output.path)) == folder);
        if try_place(&folder, locks).map_err(|why| lacking(&folder, &why))?
            == NameDurability::Unknown
        {
            unsure.push(folder.clone());
        }
        tried.push(folder);
    }
    Ok(unsure)
}

/// The nearest folder around that is there.
fn nearest(folder: &Path) -> PathBuf {
    let around = folder.ancestors().find(|folder| folder.is_dir());
    match around {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn lacking(folder: &Path, why: &Lacking) -> Failure {
    let advice = match why {
        Lacking::Files(_) => "allow it, or name another place",
        Lacking::Durable(_) | Lacking::Renames(_) => {
            "some disks in a network are like that. Name an output on another disk, and copy it there when it is whole"
        }
        Lacking::Locks(_) => {
            "some disks in a network are like that, and no node can use a folder there. Name an output on another disk"
        }
    };
    Failure::io(folder, format!("{why}: {advice}"))
}

/// The same of what can be seen without writing anything: of the outputs, and of a folder for progress.
pub(crate) fn look_at(outputs: &[&Path], workdir: &Path) -> Result<(), Failure> {
    for path in outputs {
        let folder = nearest(parent(path));
        look_at_place(&folder).map_err(|why| lacking(&folder, &why))?;
    }
    let folder = nearest(workdir);
    match look_at_place(&folder) {
        Ok(NameDurability::Durable) => Ok(()),
        Ok(NameDurability::Unknown) => Err(no_progress_there(&folder)),
        Err(why) => Err(Failure::io(&folder, format!("{why}: {ELSEWHERE}"))),
    }
}

/// What helps where there can be no progress.
pub(crate) const ELSEWHERE: &str = "name another folder for progress with --workdir";

/// Coins are in a library's hands there, which does without nothing.
pub(crate) fn no_progress_there(folder: &Path) -> Failure {
    Failure::io(
        folder,
        format!(
            "names of new files cannot be made durable there, as on some disks in a network, and progress would be \
             lost: {ELSEWHERE}, on a disk of this machine"
        ),
    )
}

/// A folder that is to be moved aside can be.
pub(crate) fn expect_to_move(folder: &Path) -> Result<(), Failure> {
    expect_movable(folder).map_err(|why| unmovable(folder, &why))
}

/// The same, without writing anything.
pub(crate) fn look_whether_it_moves(folder: &Path) -> Result<(), Failure> {
    expect_movable_by_looks(folder).map_err(|why| unmovable(folder, &why))
}

/// Why a folder cannot be moved aside, and what to do.
pub(crate) fn unmovable(folder: &Path, why: &Unmovable) -> Failure {
    let name = folder.display();
    let word = quoted(&name.to_string());
    match why {
        Unmovable::Mount => Failure::usage(format!(
            "{name} is where a disk is mounted, and can neither be moved aside nor be replaced. For a new output \
             name a folder on that disk. For the chainstate of a node mount the disk elsewhere, move the chainstate into a \
             folder on it, and make {name} a link to that folder (ln -s): `apus reindex` follows it"
        )),
        Unmovable::LowerLayer => Failure::usage(format!(
            "{name} lies in a lower layer of an overlay, as in the image of a container, and cannot be moved aside. Copy \
             it to the upper one (cp -a {word} {word}.old && rm -r {word}), and give the same command again"
        )),
        Unmovable::Other(error) => Failure::new(
            IO,
            format!("{name} cannot be moved aside ({error}): allow it, or name another output"),
        ),
    }
}

/// Says what lies beside a folder that was written, where that is more than what was moved aside for
/// it, which the report tells of.
pub(crate) fn tell_aside(folder: &WrittenFolder) {
    if folder.moved_to.is_none() {
        return;
    }
    if let Some(words) = words(&folder.path, &beside(&folder.path)) {
        print::aside(words);
    }
}

/// None of fewer than two.
fn words(path: &Path, aside: &[(PathBuf, u64)]) -> Option<String> {
    if aside.len() < 2 {
        return None;
    }
    let together = aside.iter().map(|(_, bytes)| bytes).sum();
    let mut words = format!(
        "apus: of {}, {} earlier ones are still there ({}): remove those that you don't need",
        path.display(),
        aside.len(),
        bytes(together)
    );
    for (path, count) in aside {
        // Writing to a string does not fail.
        let _ = write!(words, "\n  {} ({})", path.display(), bytes(*count));
    }
    Some(words)
}

/// The folders `NAME.old`, `NAME.old-2` and so on beside one called `NAME`, and their bytes.
fn beside(path: &Path) -> Vec<(PathBuf, u64)> {
    let Some(start) = path.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
    let number = |name: &str| {
        let rest = name.strip_prefix(start)?.strip_prefix(".old")?;
        match rest {
            "" => Some(1),
            _ => rest.strip_prefix('-')?.parse::<u32>().ok(),
        }
    };
    let Ok(entries) = fs::read_dir(parent(path)) else { return Vec::new() };
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| {
            let name = entry.file_name();
            Some((number(name.to_str()?)?, path.with_file_name(name)))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| (path.clone(), bytes_in(&path))).collect()
}

/// Bytes of all files in a folder; what cannot be looked at counts nothing.
pub(crate) fn bytes_in(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            // Of a link this is the link's own.
            let there = entry.metadata().ok()?;
            Some(if there.is_dir() { bytes_in(&entry.path()) } else { there.len() })
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn places_are_tried_and_left_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("sub")).unwrap();
        let outputs = ["a", "b", "sub/c", "missing/d"].map(path);
        let outputs: Vec<&Path> = outputs.iter().map(PathBuf::as_path).collect();
        assert_eq!(expect_places(&outputs, &[]).unwrap(), [""; 0].map(PathBuf::from));
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(names.len(), 1);
        assert!(fs::read_dir(path("sub")).unwrap().next().is_none());
        look_at(&outputs, &path("work")).unwrap();
    }

    /// Nobody makes files there, and no folder there can be made durable.
    #[test]
    fn a_place_that_lacks_something_is_told() {
        let failure = expect_places(&[Path::new("/proc/self/out")], &[]).unwrap_err();
        assert_eq!(failure.code, IO);
        assert!(failure.message.contains("nothing can be written there"), "{}", failure.message);
        let failure = look_at(&[], Path::new("/proc/self/work")).unwrap_err();
        assert!(failure.message.contains("--workdir"), "{}", failure.message);
    }

    #[test]
    fn what_was_moved_aside_is_found_in_order_with_its_bytes() {
        let desk = tempfile::tempdir().unwrap();
        let path = |name: &str| desk.path().join(name);
        for name in ["cs", "cs.old-10", "cs.old", "cs.old-x", "cs.older", "other.old", "cs.old-2"] {
            fs::create_dir_all(path(name).join("within")).unwrap();
            fs::write(path(name).join("within/000003.ldb"), [0; 1000]).unwrap();
        }
        fs::write(path("cs.old-3"), "a file").unwrap();
        let found = beside(&path("cs"));
        let wanted = ["cs.old", "cs.old-2", "cs.old-10"].map(|name| (path(name), 1000));
        assert_eq!(found, wanted);
        assert_eq!(words(&path("cs"), &found[..1]), None);
        let words = words(&path("cs"), &found).unwrap();
        assert!(words.contains("3 earlier ones") && words.contains("cs.old-10 ("), "{words}");
    }
}
