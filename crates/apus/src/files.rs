//! Files that a command line names, judged before hours of work are spent on them.
//!
//! What is said here is for a user who mistyped; nothing relies on it later, when a file may have
//! come or gone.

use crate::args::HintsArg;
use crate::failure::{Failure, IO};
use crate::node::quoted;
use crate::print;
use crate::report::bytes;
use crate::unpack::InputFile;
use apus_datadir::{DatadirLock, LEVELDB_LOCK};
use apus_storage::place::{
    Lacking, NameDurability, Unmovable, expect_movable, expect_movable_by_looks, is_mount,
    look_at_place, sync_names_of, try_place,
};
use apus_storage::{expect_own_draft, publish_file};
use apus_sync::engines::swiftsync::hints::{Detected, Format, detect_format};
use apus_sync::{
    FolderKind, FolderOutput, WrittenFolder, draft_of, expect_draft, expect_not_planted,
    is_unfinished_folder, owner_out_of_reach, parent,
};
use std::fmt::Write;
use std::fs::{self, File};
use std::io::Read;
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
    /// Looks at a plain file.
    pub(crate) fn of(input: &InputFile) -> Result<Self, Failure> {
        let mut first = Vec::new();
        File::open(input.path())
            .and_then(|file| file.take(5).read_to_end(&mut first))
            .map_err(|error| Failure::opening(input.named(), &error))?;
        Ok(Self::of_bytes(&first))
    }

    /// What begins with these bytes.
    pub(crate) fn of_bytes(first: &[u8]) -> Self {
        match detect_format(&first[..first.len().min(5)]) {
            Some(Detected::Hints(format)) => Self::Hints(format),
            Some(Detected::Gzip) => Self::Hints(Format::Btcd),
            None if first.starts_with(SNAPSHOT_MAGIC) => Self::Snapshot,
            None => Self::Unknown,
        }
    }
}

/// The hints of a run must be there and of the kind that the command line says.
pub(crate) fn expect_hints(hints: &HintsArg) -> Result<(), Failure> {
    let name = hints.named().display();
    match (hints, Content::of(hints.input())?) {
        (HintsArg::File(_), Content::Hints(Format::Bip456))
        | (HintsArg::Snapshot(_), Content::Snapshot | Content::Unknown) => Ok(()),
        (HintsArg::File(_), Content::Snapshot) => {
            Err(Failure::usage(format!("{name} is a UTXO snapshot: give it as snapshot:{name}")))
        }
        (HintsArg::File(_), Content::Hints(format)) => Err(Failure::usage(format!(
            "{name} has the encoding {format}, which a run does not read: rewrite it with `apus \
             hints convert {name} --to bip456 --out FILE`"
        ))),
        (HintsArg::File(_), Content::Unknown) => Err(Failure::wrong(format!(
            "{name} is no BIP-456 hintsfile, which would begin with 5554584f00: it is damaged, or \
             has another encoding and must be rewritten with `apus hints convert`"
        ))),
        (HintsArg::Snapshot(_), Content::Hints(_)) => Err(Failure::usage(format!(
            "{name} is a hintsfile, not a UTXO snapshot: give it without `snapshot:`"
        ))),
    }
}

/// A file to be written needs a folder, or a place where that can be made, a name, and to be new. `may_exist` is for files that an
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
    expect_room_for_folders(parent(path))?;
    if path.symlink_metadata().is_ok() && !may_exist(path) {
        return Err(Failure::usage(format!(
            "{name} exists already: remove it, or name another output"
        )));
    }
    let draft = draft_of(path);
    match expect_own_draft(&draft).map_err(|error| Failure::io(&draft, error))? {
        Ok(()) => Ok(()),
        Err(why) => Err(Failure::usage(format!(
            "{}: {why}, and {name} is written there first: remove it, or name another output",
            draft.display()
        ))),
    }
}

/// A folder to be written needs a folder to be in, or a place where that can be made; a name, and to
/// be new, unless it replaces one, or an earlier start of the same run made it.
pub(crate) fn expect_new_folder(output: &FolderOutput, resuming: bool) -> Result<(), Failure> {
    let (path, name) = (&output.path, output.path.display());
    if path.file_name().is_none_or(|name| name.to_str().is_none()) {
        return Err(Failure::usage(format!("{name} is no name for a folder")));
    }
    expect_room_for_folders(parent(path))?;
    expect_draft(output)?;
    let Ok(there) = path.symlink_metadata() else { return Ok(()) };
    if there.is_symlink() {
        return Err(Failure::usage(format!(
            "{name} is a link: name the folder that it leads to, or another one"
        )));
    }
    if !there.is_dir() {
        return Err(Failure::usage(format!("{name} is a file: name a folder")));
    }
    if is_mount(path).map_err(|error| Failure::io(path, error))? {
        return Err(unmovable(path, &Unmovable::Mount));
    }
    let empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    match output.kind {
        _ if empty => Ok(expect_not_planted(path)?),
        FolderKind::Chainstate if output.replace => {
            expect_unused(path)?;
            expect_its_owner(path)?;
            expect_to_move(path)
        }
        // Without the mark it is another's, or done: then only the end of a clean-up is left.
        _ if resuming && is_unfinished_folder(path) => Ok(()),
        FolderKind::Chainstate => Err(Failure::usage(format!(
            "{name} exists already: give --replace to have it moved aside, to {name}.old"
        ))),
        FolderKind::Datadir(_) | FolderKind::KeptDatadir => {
            Err(Failure::usage(format!("{name} exists already: remove it, or name another folder")))
        }
    }
}

/// A folder is there, or can be made: what is there of the way to it are folders.
fn expect_room_for_folders(folder: &Path) -> Result<(), Failure> {
    let there = folder.ancestors().find(|it| it.symlink_metadata().is_ok());
    match there {
        Some(file) if !file.is_dir() => Err(Failure::io(
            file,
            format!(
                "this is no folder, so {} cannot be made: name another output",
                folder.display()
            ),
        )),
        _ => Ok(()),
    }
}

/// Folders that were made around outputs. They go again, unless something came into them.
pub(crate) struct MadeFolders(Vec<PathBuf>);

impl MadeFolders {
    /// Makes those that are missing around these paths.
    pub(crate) fn around<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<Self, Failure> {
        let mut made = Self(Vec::new());
        paths.into_iter().try_for_each(|path| made.make(parent(path)))?;
        Ok(made)
    }

    /// Makes a folder and those around it, unless they are there.
    pub(crate) fn make(&mut self, folder: &Path) -> Result<(), Failure> {
        if folder.is_dir() {
            return Ok(());
        }
        if parent(folder) != folder {
            self.make(parent(folder))?;
        }
        let failed = |error| Failure::making(folder, &error, "name another output");
        fs::create_dir(folder).map_err(failed)?;
        self.0.push(folder.to_owned());
        // Outputs are made durable with their names; this is what their folder's needs.
        sync_names_of(parent(folder)).map_err(failed)
    }
}

impl Drop for MadeFolders {
    fn drop(&mut self) {
        // One within another goes first.
        for folder in self.0.iter().rev() {
            // Fails where there is something in it, which is the usual case.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// A database that a node has open cannot be moved aside.
fn expect_unused(chainstate: &Path) -> Result<(), Failure> {
    if chainstate.join(LEVELDB_LOCK).exists() {
        DatadirLock::take(chainstate, LEVELDB_LOCK)?;
    }
    Ok(())
}

/// What takes a folder's place must be its owner's, or no node of theirs can open it.
fn expect_its_owner(folder: &Path) -> Result<(), Failure> {
    match owner_out_of_reach(folder).map_err(|error| Failure::io(parent(folder), error))? {
        None => Ok(()),
        Some((uid, gid)) => Err(Failure::usage(format!(
            "{} belongs to user {uid} and group {gid}, and nothing can be given to them here, so their \
             node could not open what takes its place: run this as that user (sudo -u '#{uid}'), or as \
             root, or name another output",
            folder.display()
        ))),
    }
}

/// Files and folders to be made must not get in each other's way, whichever way their names are
/// written.
pub(crate) fn expect_apart(paths: &[&Path]) -> Result<(), Failure> {
    let places: Vec<PathBuf> = paths.iter().map(|path| place(path)).collect();
    for (index, place) in places.iter().enumerate() {
        for other in &places[..index] {
            if place == other || *place == draft_of(other) || draft_of(place) == *other {
                return Err(Failure::usage(format!(
                    "{} is named twice: outputs, the report, the work folder and the blocks need \
                     names of their own",
                    paths[index].display()
                )));
            }
        }
    }
    Ok(())
}

/// A folder that is made, or moved aside, must have nothing in it that the run uses or makes.
pub(crate) fn expect_outside(folder: &Path, others: &[&Path]) -> Result<(), Failure> {
    let folders = [place(folder), place(&draft_of(folder))];
    let within = |other: &&&Path| {
        let place = place(other);
        folders.iter().any(|folder| place != *folder && place.starts_with(folder))
    };
    match others.iter().find(within) {
        None => Ok(()),
        Some(other) => Err(Failure::usage(format!(
            "{} is in {}, which is written whole, and must have nothing else in it",
            other.display(),
            folder.display()
        ))),
    }
}

/// Nothing is written in a folder that is only looked at.
pub(crate) fn expect_not_in(folder: &Path, written: &[&Path]) -> Result<(), Failure> {
    match written.iter().find(|path| place(path).starts_with(place(folder))) {
        None => Ok(()),
        Some(path) => Err(Failure::usage(format!(
            "{} is in {}, where nothing is written: name another place",
            path.display(),
            folder.display()
        ))),
    }
}

/// Writes a file so that it is never seen in part.
pub(crate) fn publish(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let written =
        fs::create_dir_all(parent(path)).and_then(|()| publish_file(path, &draft_of(path), bytes));
    written.map_err(|error| Failure::io(path, error))
}

/// The one way to write a path, as far as its folders exist.
fn place(path: &Path) -> PathBuf {
    match (fs::canonicalize(parent(path)), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        (Err(_), Some(name)) if parent(path) != path => place(parent(path)).join(name),
        _ => path.to_owned(),
    }
}

// ---- places on disks ----

/// Files can be made in the folders of these outputs, or where these will be made, and all can be done with them that is
/// done at the end. Gives the folders whose names cannot be made durable.
///
/// Rights, quotas, read-only mounts, network disks and layers of a container all decide what can be done there. So it is
/// done, with a file that goes again at once, before hours of work are spent.
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
pub(crate) fn nearest(folder: &Path) -> PathBuf {
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
    use apus_sync::DatadirBlocks;

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
    fn a_folder_that_is_there_is_only_taken_back_with_its_mark() {
        let desk = tempfile::tempdir().unwrap();
        let path = desk.path().join("out");
        fs::create_dir(&path).unwrap();
        let output = |kind, replace| FolderOutput { kind, path: path.clone(), replace };
        let datadir = output(FolderKind::Datadir(DatadirBlocks::All), false);
        let code = |output: &FolderOutput, resuming: bool| {
            expect_new_folder(output, resuming).err().map(|failure| failure.code)
        };
        assert_eq!(code(&datadir, false), None);
        fs::write(path.join("000003.ldb"), "").unwrap();
        for output in [&datadir, &output(FolderKind::Chainstate, false)] {
            assert_eq!((code(output, false), code(output, true)), (Some(1), Some(1)));
        }
        assert_eq!(code(&output(FolderKind::Chainstate, true), false), None);
        fs::write(path.join("apus.incomplete"), "").unwrap();
        assert_eq!((code(&datadir, false), code(&datadir, true)), (Some(1), None));
    }

    #[test]
    fn a_folder_around_is_made_and_goes_again_if_nothing_came() {
        let desk = tempfile::tempdir().unwrap();
        let path = |name: &str| desk.path().join(name);
        let output = |name: &str| FolderOutput {
            kind: FolderKind::Chainstate,
            path: path(name),
            replace: false,
        };
        fs::write(path("file"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", path("link")).unwrap();
        let code = |name: &str| expect_new_folder(&output(name), false).err().map(|it| it.code);
        assert_eq!((code("new/cs"), code("new/er/cs")), (None, None));
        assert_eq!((code("file/cs"), code("link/cs")), (Some(3), Some(3)));
        assert_eq!((code("file/new/cs"), code("link/new/cs")), (Some(3), Some(3)));
        let outputs = ["cs", "new/cs", "new/er/cs", "new/cs2"].map(path);
        let around = || MadeFolders::around(outputs.iter().map(PathBuf::as_path)).unwrap();
        let made = around();
        assert!(path("new/er").is_dir());
        drop(made);
        assert!(!path("new").exists());
        let made = around();
        fs::create_dir(path("new/cs")).unwrap();
        drop(made);
        assert!(path("new/cs").exists() && !path("new/er").exists());
        // One that was there stays.
        fs::remove_dir(path("new/cs")).unwrap();
        drop(around());
        assert!(path("new").exists());
    }

    #[test]
    fn what_lies_in_a_folder_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("sub/cs")).unwrap();
        std::os::unix::fs::symlink("sub", path("link")).unwrap();
        let outside = |a: &str, b: &str| expect_outside(&path(a), &[&path("c"), &path(b)]).is_ok();
        for (a, b) in [("a", "b"), ("a", "ab/c"), ("sub/cs", "sub"), ("a", "a")] {
            assert!(outside(a, b), "{a} {b}");
        }
        for (a, b) in
            [("a", "a/b"), ("a", "a/new/newer"), ("a", "a.incomplete/b"), ("sub/cs", "link/cs/b")]
        {
            assert!(!outside(a, b), "{a} {b}");
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
        assert_eq!(code("no/such/new", false), None);
        assert_eq!(code("old", true), None);
        for (name, expected) in [("old", 1), ("dangling", 1), ("..", 1), ("", 1), ("old/new", 3)] {
            assert_eq!(code(name, false), Some(expected), "{name}");
        }
    }
}

#[cfg(test)]
mod places_tests {
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
