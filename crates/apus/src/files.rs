//! Checks the files that a command line names, before Apus spends hours of work on them.
//!
//! These checks catch typing errors early. No later step relies on them, since a file may appear or disappear
//! meanwhile.

use crate::args::HintsArg;
use crate::failure::{Failure, IO};
use crate::node::quoted;
use crate::print;
use crate::report::bytes;
use crate::unpack::InputFile;
use apus_datadir::{DatadirLock, LEVELDB_LOCK};
use apus_storage::place::{
    MissingAbility, MoveAsideError, NameDurability, expect_movable, expect_movable_by_looks,
    is_mount, look_at_place, sync_names_of, try_place,
};
use apus_storage::{expect_own_draft, publish_file, remove_draft};
use apus_sync::engines::swiftsync::hints::{DetectedFormat, Format, detect_format};
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

/// The kind of a file, according to its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Hints in an encoding with a magic number.
    Hints(Format),
    /// A UTXO snapshot.
    Snapshot,
    /// Something else, or hints without a magic number.
    Unknown,
}

impl Content {
    /// Detects the kind of a plain file.
    pub(crate) fn of(input: &InputFile) -> Result<Self, Failure> {
        let mut first = Vec::new();
        File::open(input.path())
            .and_then(|file| file.take(5).read_to_end(&mut first))
            .map_err(|error| Failure::opening(input.named(), &error))?;
        Ok(Self::of_bytes(&first))
    }

    /// Detects the kind of a file that begins with these bytes.
    pub(crate) fn of_bytes(first: &[u8]) -> Self {
        match detect_format(&first[..first.len().min(5)]) {
            Some(DetectedFormat::Hints(format)) => Self::Hints(format),
            Some(DetectedFormat::Gzip) => Self::Hints(Format::Btcd),
            None if first.starts_with(SNAPSHOT_MAGIC) => Self::Snapshot,
            None => Self::Unknown,
        }
    }
}

/// Fails if the hints of a run are missing, or of another kind than the command line says.
pub(crate) fn expect_hints(hints: &HintsArg) -> Result<(), Failure> {
    let name = hints.named().display();
    match (hints, Content::of(hints.input())?) {
        (HintsArg::File(_), Content::Hints(Format::Bip456))
        | (HintsArg::Snapshot(_), Content::Snapshot | Content::Unknown) => Ok(()),
        (HintsArg::File(_), Content::Snapshot) => {
            Err(Failure::usage(format!("{name} is a UTXO snapshot: give it as snapshot:{name}")))
        }
        (HintsArg::File(_), Content::Hints(format)) => Err(Failure::usage(format!(
            "{name} has the encoding {format}, but a sync reads only bip456. Convert the file: `apus hints convert \
             {name} --to bip456 --out FILE`"
        ))),
        (HintsArg::File(_), Content::Unknown) => Err(Failure::wrong(format!(
            "{name} is not a BIP-456 hintsfile, which begins with 5554584f00. The file is damaged, or has another \
             encoding: convert it with `apus hints convert`"
        ))),
        (HintsArg::Snapshot(_), Content::Hints(_)) => Err(Failure::usage(format!(
            "{name} is a hintsfile, not a UTXO snapshot: give it without `snapshot:`"
        ))),
    }
}

/// Fails unless Apus can write a file: the path needs a name, and a folder that exists or can be created, and the file
/// must be new. `may_exist` accepts files that an earlier start of the same run may have finished.
pub(crate) fn expect_writable(
    path: &Path,
    may_exist: impl FnOnce(&Path) -> bool,
) -> Result<(), Failure> {
    let name = path.display();
    if path.is_dir() {
        return Err(Failure::usage(format!("{name} is a folder: give a file")));
    }
    if path.file_name().is_none_or(|name| name.to_str().is_none()) {
        return Err(Failure::usage(format!("{name} is not a valid name for a file")));
    }
    expect_room_for_folders(parent(path))?;
    if path.symlink_metadata().is_ok() && !may_exist(path) {
        return Err(Failure::usage(format!(
            "{name} exists already: remove it, or use another output"
        )));
    }
    let draft = draft_of(path);
    match expect_own_draft(&draft).map_err(|error| Failure::io(&draft, error))? {
        Ok(()) => Ok(()),
        Err(why) => Err(Failure::usage(format!(
            "{}: {why}, but Apus first writes {name} there: remove that file, or use another output",
            draft.display()
        ))),
    }
}

/// Does the same for a file that may take the place of an existing one, with `--replace`.
pub(crate) fn expect_new_file(path: &Path, replace: bool) -> Result<(), Failure> {
    let name = path.display();
    match path.symlink_metadata() {
        // A folder or a bad name has an error of its own.
        Ok(there) if !there.is_dir() && !replace => Err(Failure::usage(format!(
            "{name} exists already: add --replace to replace it, or use another output"
        ))),
        Ok(there) if !there.is_dir() && !there.is_file() => Err(Failure::usage(format!(
            "{name} is a link or a device, and --replace is for plain files: give the file that a link leads to, or use \
             another output"
        ))),
        _ => expect_writable(path, |_| true),
    }
}

/// The drafts of files. They are removed at the end: a complete file has none.
pub(crate) struct FileDrafts<'a>(pub(crate) &'a [PathBuf]);

impl Drop for FileDrafts<'_> {
    fn drop(&mut self) {
        for file in self.0 {
            // Most are not there, and one of another run must stay.
            let _ = remove_draft(&draft_of(file));
        }
    }
}

/// Fails unless Apus can write a folder: the path needs a name, and a parent folder that exists or can be created. The
/// folder must be new, unless it replaces one, or an earlier start of the same run made it.
pub(crate) fn expect_new_folder(output: &FolderOutput, resuming: bool) -> Result<(), Failure> {
    let (path, name) = (&output.path, output.path.display());
    if path.file_name().is_none_or(|name| name.to_str().is_none()) {
        return Err(Failure::usage(format!("{name} is not a valid name for a folder")));
    }
    expect_room_for_folders(parent(path))?;
    expect_draft(&output.path)?;
    let Ok(there) = path.symlink_metadata() else { return Ok(()) };
    if there.is_symlink() {
        return Err(Failure::usage(format!(
            "{name} is a link: give the folder that the link leads to, or use another folder"
        )));
    }
    if !there.is_dir() {
        return Err(Failure::usage(format!("{name} is a file: give a folder")));
    }
    if is_mount(path).map_err(|error| Failure::io(path, error))? {
        return Err(unmovable(path, &MoveAsideError::Mount));
    }
    let empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    match output.kind {
        _ if empty => Ok(expect_not_planted(path)?),
        FolderKind::Chainstate if output.replace => {
            expect_unused(path)?;
            expect_its_owner(path)?;
            expect_to_move(path)
        }
        // Without the mark, another program made the folder, or it is complete and only the clean-up is missing.
        _ if resuming && is_unfinished_folder(path) => Ok(()),
        FolderKind::Chainstate => Err(Failure::usage(format!(
            "{name} exists already: add --replace to move it to {name}.old"
        ))),
        FolderKind::Datadir(_) | FolderKind::KeptDatadir => Err(Failure::usage(format!(
            "{name} exists already: remove that folder, or use another folder"
        ))),
    }
}

/// Fails if the folder is missing and cannot be created, because a file occupies its path or a parent's.
fn expect_room_for_folders(folder: &Path) -> Result<(), Failure> {
    let there = folder.ancestors().find(|it| it.symlink_metadata().is_ok());
    match there {
        Some(file) if !file.is_dir() => Err(Failure::io(
            file,
            format!("not a folder, so Apus cannot create {}: use another output", folder.display()),
        )),
        _ => Ok(()),
    }
}

/// Folders that Apus created for outputs. Dropping the list removes the empty ones.
pub(crate) struct NewFolders(Vec<PathBuf>);

impl NewFolders {
    /// Creates the missing parent folders of these paths.
    pub(crate) fn around<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<Self, Failure> {
        let mut made = Self(Vec::new());
        paths.into_iter().try_for_each(|path| made.make(parent(path)))?;
        Ok(made)
    }

    /// Creates a folder and its parents, unless they exist.
    pub(crate) fn make(&mut self, folder: &Path) -> Result<(), Failure> {
        if folder.is_dir() {
            return Ok(());
        }
        if parent(folder) != folder {
            self.make(parent(folder))?;
        }
        let failed = |error| Failure::making(folder, &error, "use another output");
        fs::create_dir(folder).map_err(failed)?;
        self.0.push(folder.to_owned());
        // Apus makes outputs durable together with their names, but their folder's name needs its own sync.
        sync_names_of(parent(folder)).map_err(failed)
    }
}

impl Drop for NewFolders {
    fn drop(&mut self) {
        // Remove inner folders first.
        for folder in self.0.iter().rev() {
            // This fails if the folder is not empty, which is the usual case.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Fails if a node has the database open, so that Apus cannot move it aside.
fn expect_unused(chainstate: &Path) -> Result<(), Failure> {
    if chainstate.join(LEVELDB_LOCK).exists() {
        DatadirLock::take(chainstate, LEVELDB_LOCK)?;
    }
    Ok(())
}

/// Fails if Apus cannot give the new folder to the old one's owner, whose node then could not open it.
fn expect_its_owner(folder: &Path) -> Result<(), Failure> {
    match owner_out_of_reach(folder).map_err(|error| Failure::io(parent(folder), error))? {
        None => Ok(()),
        Some((uid, gid)) => Err(Failure::usage(format!(
            "{} belongs to user {uid} and group {gid}, but Apus cannot give files to them, so their node could not \
             open the new folder. Run Apus as that user (sudo -u '#{uid}') or as root, or use another output",
            folder.display()
        ))),
    }
}

/// Fails if two paths collide: they are the same, even if spelled differently, or one is the other's draft.
pub(crate) fn expect_apart(paths: &[&Path]) -> Result<(), Failure> {
    let places: Vec<PathBuf> = paths.iter().map(|path| place(path)).collect();
    for (index, place) in places.iter().enumerate() {
        for other in &places[..index] {
            if place == other || *place == draft_of(other) || draft_of(place) == *other {
                return Err(Failure::usage(format!(
                    "{} is given twice: outputs, the report, the work folder and the blocks need different names",
                    paths[index].display()
                )));
            }
        }
    }
    Ok(())
}

/// Fails if a folder that Apus creates or moves aside contains a path that the run uses or creates.
pub(crate) fn expect_outside(folder: &Path, others: &[&Path]) -> Result<(), Failure> {
    let folders = [place(folder), place(&draft_of(folder))];
    let within = |other: &&&Path| {
        let place = place(other);
        folders.iter().any(|folder| place != *folder && place.starts_with(folder))
    };
    match others.iter().find(within) {
        None => Ok(()),
        Some(other) => Err(Failure::usage(format!(
            "{} is in {}, which Apus writes as a whole: use a place outside that folder",
            other.display(),
            folder.display()
        ))),
    }
}

/// Fails if an output is in a folder that Apus only reads.
pub(crate) fn expect_not_in(folder: &Path, written: &[&Path]) -> Result<(), Failure> {
    match written.iter().find(|path| place(path).starts_with(place(folder))) {
        None => Ok(()),
        Some(path) => Err(Failure::usage(format!(
            "{} is in {}, where Apus writes nothing: use a place outside that folder",
            path.display(),
            folder.display()
        ))),
    }
}

/// Writes a file atomically: readers never see a part of it.
pub(crate) fn publish(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let written =
        fs::create_dir_all(parent(path)).and_then(|()| publish_file(path, &draft_of(path), bytes));
    written.map_err(|error| Failure::io(path, error))
}

/// Returns the canonical form of a path, as far as its folders exist.
fn place(path: &Path) -> PathBuf {
    match (fs::canonicalize(parent(path)), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        (Err(_), Some(name)) if parent(path) != path => place(parent(path)).join(name),
        _ => path.to_owned(),
    }
}

// ---- abilities of disks ----

/// Fails unless Apus can create files in the folders of these outputs, or in the nearest existing ones, and finish them
/// as it finishes outputs. Returns the folders whose names cannot be made durable.
///
/// Permissions, quotas, read-only mounts, network disks and container layers all affect this. So Apus tries it with a
/// file that it removes at once, before it spends hours of work.
pub(crate) fn expect_places(
    outputs: &[&Path],
    folders: &[FolderOutput],
) -> Result<Vec<PathBuf>, Failure> {
    let (mut tried, mut not_durable) = (Vec::new(), Vec::new());
    for path in outputs {
        let folder = nearest(parent(path));
        if tried.contains(&folder) {
            continue;
        }
        // If the output is a folder, Apus must lock its draft.
        let locks = folders.iter().any(|output| nearest(parent(&output.path)) == folder);
        if try_place(&folder, locks).map_err(|why| lacking(&folder, &why))?
            == NameDurability::Unknown
        {
            not_durable.push(folder.clone());
        }
        tried.push(folder);
    }
    Ok(not_durable)
}

/// Returns the nearest ancestor of `folder` that exists, or `folder` itself.
pub(crate) fn nearest(folder: &Path) -> PathBuf {
    let around = folder.ancestors().find(|folder| folder.is_dir());
    match around {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn lacking(folder: &Path, why: &MissingAbility) -> Failure {
    let advice = match why {
        MissingAbility::Files(_) => "allow writing there (chmod), or use another place",
        MissingAbility::Durable(_) | MissingAbility::Renames(_) => {
            "some network disks are like that. Use an output on another disk, then copy the complete output here"
        }
        MissingAbility::Locks(_) => {
            "some network disks are like that. No node can use a folder there: use an output on another disk"
        }
    };
    Failure::io(folder, format!("{why}: {advice}"))
}

/// Does the same checks for outputs and a work folder, as far as possible without writing.
pub(crate) fn look_at(outputs: &[&Path], workdir: &Path) -> Result<(), Failure> {
    for path in outputs {
        let folder = nearest(parent(path));
        look_at_place(&folder).map_err(|why| lacking(&folder, &why))?;
    }
    let folder = nearest(workdir);
    match look_at_place(&folder) {
        Ok(NameDurability::Durable) => Ok(()),
        Ok(NameDurability::Unknown) => Err(no_progress_there(&folder)),
        Err(why) => Err(Failure::io(&folder, format!("{why}: {OTHER_WORKDIR}"))),
    }
}

/// The remedy if a place cannot hold progress.
pub(crate) const OTHER_WORKDIR: &str = "use another --workdir";

/// Creates the error for a folder without durable names, which the coins' storage library needs.
pub(crate) fn no_progress_there(folder: &Path) -> Failure {
    Failure::io(
        folder,
        format!(
            "this disk cannot make names of new files durable, as some network disks cannot, so progress could be \
             lost: {OTHER_WORKDIR}, on a local disk"
        ),
    )
}

/// Fails if Apus cannot move a folder aside.
pub(crate) fn expect_to_move(folder: &Path) -> Result<(), Failure> {
    expect_movable(folder).map_err(|why| unmovable(folder, &why))
}

/// Does the same check without writing anything.
pub(crate) fn look_whether_it_moves(folder: &Path) -> Result<(), Failure> {
    expect_movable_by_looks(folder).map_err(|why| unmovable(folder, &why))
}

/// Creates the error for a folder that cannot be moved aside, with the remedy.
pub(crate) fn unmovable(folder: &Path, why: &MoveAsideError) -> Failure {
    let name = folder.display();
    let word = quoted(&name.to_string());
    match why {
        MoveAsideError::Mount => Failure::usage(format!(
            "{name} is a mount point, which can be neither moved aside nor replaced. For a new output, use a \
             folder on that disk. For a node's chainstate, mount the disk at another place, move the chainstate \
             into a folder on it, and make {name} a link to that folder (ln -s): `apus reindex` follows it"
        )),
        MoveAsideError::LowerLayer => Failure::usage(format!(
            "{name} is in a lower layer of an overlay, such as a container image, and cannot be moved aside. Copy it \
             to the upper layer (cp -a {word} {word}.old && rm -r {word}), then rerun the command"
        )),
        MoveAsideError::Other(error) => Failure::new(
            IO,
            format!(
                "{name} cannot be moved aside ({error}): allow renaming it (chmod), or use another output"
            ),
        ),
    }
}

/// Prints the old copies next to a written folder, if there are more than the one just moved aside, which the report
/// mentions.
pub(crate) fn tell_aside(folder: &WrittenFolder) {
    if folder.moved_to.is_none() {
        return;
    }
    if let Some(words) = words(&folder.path, &older_copies(&folder.path)) {
        print::aside(words);
    }
}

/// Lists old copies in words; returns `None` for fewer than two.
fn words(path: &Path, aside: &[(PathBuf, u64)]) -> Option<String> {
    if aside.len() < 2 {
        return None;
    }
    let together = aside.iter().map(|(_, bytes)| bytes).sum();
    let mut words = format!(
        "apus: {}: {} earlier copies are still there ({}): remove the copies that you do not need",
        path.display(),
        aside.len(),
        bytes(together)
    );
    for (path, count) in aside {
        // Writing to a string cannot fail.
        let _ = write!(words, "\n  {} ({})", path.display(), bytes(*count));
    }
    Some(words)
}

/// Returns the folders `NAME.old`, `NAME.old-2` and so on next to a folder `NAME`, and their bytes.
fn older_copies(path: &Path) -> Vec<(PathBuf, u64)> {
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

/// Sums up the bytes of all files in a folder; unreadable files count as 0.
pub(crate) fn bytes_in(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            // For a link, this is the metadata of the link itself.
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
    fn different_spellings_of_a_path_collide() {
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
    fn an_existing_folder_is_only_resumed_with_its_mark() {
        let sandbox = tempfile::tempdir().unwrap();
        let path = sandbox.path().join("out");
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
    fn parent_folders_are_created_and_removed_if_empty() {
        let sandbox = tempfile::tempdir().unwrap();
        let path = |name: &str| sandbox.path().join(name);
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
        let around = || NewFolders::around(outputs.iter().map(PathBuf::as_path)).unwrap();
        let made = around();
        assert!(path("new/er").is_dir());
        drop(made);
        assert!(!path("new").exists());
        let made = around();
        fs::create_dir(path("new/cs")).unwrap();
        drop(made);
        assert!(path("new/cs").exists() && !path("new/er").exists());
        // A folder that already existed stays.
        fs::remove_dir(path("new/cs")).unwrap();
        drop(around());
        assert!(path("new").exists());
    }

    #[test]
    fn paths_within_an_output_folder_are_refused() {
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
    fn the_check_of_a_place_leaves_no_files() {
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

    /// In `/proc`, no user can create files, and no folder is durable.
    #[test]
    fn errors_say_what_a_place_lacks() {
        let failure = expect_places(&[Path::new("/proc/self/out")], &[]).unwrap_err();
        assert_eq!(failure.code, IO);
        assert!(failure.message.contains("nothing can be written there"), "{}", failure.message);
        let failure = look_at(&[], Path::new("/proc/self/work")).unwrap_err();
        assert!(failure.message.contains("--workdir"), "{}", failure.message);
    }

    #[test]
    fn folders_moved_aside_are_listed_in_order_with_their_bytes() {
        let sandbox = tempfile::tempdir().unwrap();
        let path = |name: &str| sandbox.path().join(name);
        for name in ["cs", "cs.old-10", "cs.old", "cs.old-x", "cs.older", "other.old", "cs.old-2"] {
            fs::create_dir_all(path(name).join("within")).unwrap();
            fs::write(path(name).join("within/000003.ldb"), [0; 1000]).unwrap();
        }
        fs::write(path("cs.old-3"), "a file").unwrap();
        let found = older_copies(&path("cs"));
        let wanted = ["cs.old", "cs.old-2", "cs.old-10"].map(|name| (path(name), 1000));
        assert_eq!(found, wanted);
        assert_eq!(words(&path("cs"), &found[..1]), None);
        let words = words(&path("cs"), &found).unwrap();
        assert!(words.contains("3 earlier copies") && words.contains("cs.old-10 ("), "{words}");
    }
}
