//! [`FolderDraft`]: a folder that has its name only once it is whole.
//!
//! It is made beside its place, as `NAME.incomplete`, with a file in it that says so, and renamed at
//! the end. A folder that was there before is not touched until then, and then only moved aside,
//! and only by order. The file that marks it goes last of all, once the run has nothing more to do: a
//! folder that has its name and the mark is one that a killed run would have finished, and the next
//! start takes it back, unless it has been used meanwhile. What is in the folder is its
//! writer's business.
//!
//! A folder has one writer at a time: the file that marks it is locked from the beginning of its
//! [`FolderDraft`] until it loses its mark, also while the folder has its name already. So of two runs
//! with the same output the second is refused, and touches nothing, until the first is over.

mod output;
mod owner;

pub use output::{BlocksRead, DatadirBlocks, FolderKind, FolderOutput, WrittenFolder};
pub use owner::owner_out_of_reach;

use crate::error::{IoError, SyncError, UsageError};
use apus_chain::Network;
use apus_datadir::{DATADIR_LOCK, DatadirLock, LEVELDB_LOCK, free_bytes};
use apus_storage::lock::FolderLock;
use owner::Owner;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Says that the run that makes a folder has not ended. LevelDB and Bitcoin Core
/// leave files alone whose names they don't know.
const MARK: &str = "apus.incomplete";

/// What [`MARK`] says to people.
const MARK_TEXT: &str = "This folder is being written by apus, and not complete while this file is \
                         here.\n";

/// Bytes that are free where a folder is.
pub(crate) fn room(folder: &Path) -> Result<u64, SyncError> {
    free_bytes(folder).map_err(at(folder))
}

/// The same.
///
/// # Errors
/// Where fewer are than are `needed`, so that it is said before hours of work.
pub(crate) fn expect_room(folder: &Path, needed: u64) -> Result<u64, SyncError> {
    let free = room(folder)?;
    if free < needed {
        let folder = folder.display().to_string();
        return Err(SyncError::Io(IoError::NoRoom { folder, needed, free }));
    }
    Ok(free)
}

/// Removes a folder with all that is in it, if it is there.
pub(crate) fn remove_folder(folder: &Path) -> Result<(), SyncError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at(folder)(error)),
        _ => Ok(()),
    }
}

/// A folder on its way to its name.
pub(crate) struct FolderDraft {
    path: PathBuf,
    draft: PathBuf,
    replace: bool,
    mark: Mark,
}

impl FolderDraft {
    /// Begins a new folder; what an earlier start drafted goes.
    pub(crate) fn begin(output: &FolderOutput) -> Result<Self, SyncError> {
        match Self::find(output)? {
            Some(draft) => draft.clear().map(|()| draft),
            None => Self::create(output),
        }
    }

    /// What an earlier start drafted, if it did: under the draft's name, or under the folder's own
    /// name and still marked, which is taken back. A folder of the draft's name that no run made is
    /// left alone.
    pub(crate) fn find(output: &FolderOutput) -> Result<Option<Self>, SyncError> {
        let draft = draft_of(&output.path);
        match draft.symlink_metadata() {
            Ok(_) if draft.join(MARK).is_file() => {
                let mark = Mark::take(&draft, FolderLock::try_take_existing)?;
                mark.explain(&draft)?;
                Ok(Some(Self::of(output, draft, mark)))
            }
            // A run was killed before it could mark it.
            Ok(there) if there.is_dir() && is_empty(&draft)? => Ok(None),
            Ok(_) => Err(SyncError::Usage(UsageError::OutputExists {
                file: draft.display().to_string(),
            })),
            Err(error) if error.kind() != ErrorKind::NotFound => Err(at(&draft)(error)),
            Err(_) if output.path.join(MARK).is_file() => {
                // The run that gave it its name may not be over.
                let mark = Mark::take(&output.path, FolderLock::try_take_existing)?;
                if !is_unfinished(&output.path) {
                    return Ok(None);
                }
                let _locks = lock(&output.path)?;
                fs::rename(&output.path, &draft).map_err(at(&output.path))?;
                Ok(Some(Self::of(output, draft, mark)))
            }
            Err(_) => Ok(None),
        }
    }

    fn of(output: &FolderOutput, draft: PathBuf, mark: Mark) -> Self {
        Self { path: output.path.clone(), draft, replace: output.replace, mark }
    }

    fn create(output: &FolderOutput) -> Result<Self, SyncError> {
        let draft = draft_of(&output.path);
        match fs::create_dir(&draft) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(at(&draft)(error));
            }
            // An empty one.
            _ => {}
        }
        let mark = Mark::take(&draft, FolderLock::try_take)?;
        mark.explain(&draft)?;
        Ok(Self::of(output, draft, mark))
    }

    /// Removes everything but the mark, which stays locked.
    fn clear(&self) -> Result<(), SyncError> {
        for entry in fs::read_dir(&self.draft).map_err(at(&self.draft))? {
            let entry = entry.map_err(at(&self.draft))?;
            let path = entry.path();
            match entry.file_type().map_err(at(&path))?.is_dir() {
                true => fs::remove_dir_all(&path).map_err(at(&path))?,
                false if entry.file_name() == MARK => {}
                false => fs::remove_file(&path).map_err(at(&path))?,
            }
        }
        Ok(())
    }

    /// Where it is while it is written.
    pub(crate) fn folder(&self) -> &Path {
        &self.draft
    }

    /// Gives the folder to the owner of its place, and its name, and says where that which was there
    /// went. Everything in it must be durable. It keeps its mark until [`complete`]; the
    /// run that holds the mark keeps others out.
    pub(crate) fn publish(self) -> Result<(Option<PathBuf>, Mark), SyncError> {
        sync_folder(&self.draft)?;
        let occupied = match self.path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(at(&self.path)(error)),
            Ok(there) => !there.is_dir() || !is_empty(&self.path)?,
        };
        let moved_to = match occupied {
            false => None,
            true if !self.replace => {
                return Err(SyncError::Usage(UsageError::OutputExists {
                    file: self.path.display().to_string(),
                }));
            }
            true => Some(free_name(&self.path)?),
        };
        if let Some(owner) = Owner::of_place(&self.path).map_err(at(&self.path))? {
            let given = owner.give(&self.draft).map_err(at(&self.draft));
            // Where nothing is replaced, one that cannot be given stays this process's own.
            given.or_else(|error| if moved_to.is_some() { Err(error) } else { Ok(()) })?;
        }
        // A node that has the old database open would go on under its name, in the new one. None can
        // open it until it is out of the way.
        let _locks = match &moved_to {
            Some(_) => lock(&self.path)?,
            None => Vec::new(),
        };
        if let Some(aside) = &moved_to {
            fs::rename(&self.path, aside).map_err(at(&self.path))?;
        }
        // An empty folder of the name is replaced.
        if let Err(error) = fs::rename(&self.draft, &self.path) {
            return Err(self.not_published(moved_to.as_deref(), error));
        }
        sync_folder(parent(&self.path))?;
        Ok((moved_to, self.mark))
    }

    /// Puts back what was moved aside, since nothing came in its place.
    fn not_published(&self, moved_to: Option<&Path>, error: io::Error) -> SyncError {
        let Some(aside) = moved_to else { return at(&self.path)(error) };
        match fs::rename(aside, &self.path) {
            // The names as they were before: whether this is durable does not matter.
            Ok(()) => at(&self.path)(error),
            Err(back) => SyncError::Io(IoError::NotPublished {
                path: self.path.display().to_string(),
                draft: self.draft.display().to_string(),
                aside: aside.display().to_string(),
                error,
                back,
            }),
        }
    }
}

/// The mark of a folder that this run writes, locked as long as this is there.
#[derive(Debug)]
pub(crate) struct Mark(FolderLock);

impl Mark {
    /// Locks the mark in `folder` as `take` does, or fails where another run has it.
    fn take(
        folder: &Path,
        take: impl FnOnce(&Path) -> io::Result<Option<FolderLock>>,
    ) -> Result<Self, SyncError> {
        let path = folder.join(MARK);
        let mark = take(&path).map_err(at(&path))?.map(Self);
        match mark {
            // Between its opening and its locking the folder may have got its name or lost its mark.
            Some(mark) if mark.is_in(folder)? => Ok(mark),
            _ => Err(SyncError::Usage(UsageError::DraftInUse {
                draft: folder.display().to_string(),
            })),
        }
    }

    /// Writes down what it is, which an earlier start may not have come to.
    fn explain(&self, folder: &Path) -> Result<(), SyncError> {
        self.0.file().write_all(MARK_TEXT.as_bytes()).map_err(at(&folder.join(MARK)))
    }

    /// Fails unless the folder of this name is the one that it marks.
    fn expect_in(&self, folder: &Path) -> Result<(), SyncError> {
        match self.is_in(folder)? {
            true => Ok(()),
            false => {
                Err(SyncError::Io(IoError::FolderGone { folder: folder.display().to_string() }))
            }
        }
    }

    /// Whether it is the mark of this folder.
    fn is_in(&self, folder: &Path) -> Result<bool, SyncError> {
        let path = folder.join(MARK);
        let place = |file: fs::Metadata| (file.dev(), file.ino());
        match path.symlink_metadata() {
            Ok(there) => Ok(place(there) == place(self.0.file().metadata().map_err(at(&path))?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(at(&path)(error)),
        }
    }
}

/// Takes the marks from folders that have their names: the run that made them has ended. An error
/// where one is not the folder any more that the run made: then all keep their marks, and the next start
/// takes those back that are there.
pub fn complete(folders: &[WrittenFolder]) -> Result<(), SyncError> {
    complete_all(folders.iter().map(|folder| (&*folder.mark, &*folder.path)))
}

fn complete_all<'a>(
    folders: impl Iterator<Item = (&'a Mark, &'a Path)> + Clone,
) -> Result<(), SyncError> {
    for (mark, folder) in folders.clone() {
        mark.expect_in(folder)?;
    }
    let mut folders = folders;
    folders.try_for_each(|(mark, folder)| take_off(mark, folder))
}

fn take_off(mark: &Mark, folder: &Path) -> Result<(), SyncError> {
    mark.expect_in(folder)?;
    let path = folder.join(MARK);
    fs::remove_file(&path).map_err(at(&path))?;
    sync_folder(folder)
}

/// Keeps nodes out of a folder that is to be moved, as a data directory or a database, or fails where
/// one is in it.
fn lock(folder: &Path) -> Result<Vec<DatadirLock>, SyncError> {
    let chains = Network::ALL.into_iter().map(|network| {
        let chain = network.data_folder();
        (chain.map_or_else(|| folder.to_owned(), |name| folder.join(name)), DATADIR_LOCK)
    });
    let mut locks = Vec::new();
    for (folder, name) in chains.chain([(folder.to_owned(), LEVELDB_LOCK)]) {
        if folder.join(name).exists() {
            locks.push(DatadirLock::take(&folder, name)?);
        }
    }
    Ok(locks)
}

/// Whether the folder of this name is one that a run made and did not end, and that has not been used since:
/// the next start may take it back, and remove it.
pub fn is_unfinished(path: &Path) -> bool {
    // Where it cannot be told, it has been.
    path.join(MARK).is_file() && is_unused(path).unwrap_or(false)
}

/// Whether there is nothing in a folder but what runs write. A node that was started on it leaves
/// its locks at least, and in a data directory its wallets.
fn is_unused(folder: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let Some(name) = name.to_str() else { return Ok(false) };
        let ours = match kind.is_dir() {
            true => is_folder_of_ours(name) && is_unused(&entry.path())?,
            false => kind.is_file() && is_file_of_ours(name),
        };
        if !ours {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_folder_of_ours(name: &str) -> bool {
    ["blocks", "chainstate", "index"].contains(&name)
        || Network::ALL.iter().any(|network| network.data_folder() == Some(name))
}

/// The names in a database and in a folder of blocks.
fn is_file_of_ours(name: &str) -> bool {
    [MARK, "CURRENT", "xor.dat"].contains(&name)
        || name.starts_with("MANIFEST-")
        || [".ldb", ".dbtmp"].iter().any(|end| name.ends_with(end))
        || (name.ends_with(".dat") && (name.starts_with("blk") || name.starts_with("rev")))
}

/// Where a file or folder is while it is not whole.
pub fn draft_of(path: &Path) -> PathBuf {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".incomplete");
    draft.into()
}

/// The first free one of `NAME.old`, `NAME.old-2` and so on.
fn free_name(path: &Path) -> Result<PathBuf, SyncError> {
    let mut number = 1u32;
    loop {
        let mut name: OsString = path.as_os_str().to_owned();
        name.push(if number == 1 { ".old".to_owned() } else { format!(".old-{number}") });
        let name = PathBuf::from(name);
        match name.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(name),
            Err(error) => return Err(at(&name)(error)),
            Ok(_) => number += 1,
        }
    }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<(), SyncError> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(at(path))
}

/// The folder that a path lies in.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn is_empty(path: &Path) -> Result<bool, SyncError> {
    Ok(fs::read_dir(path).map_err(at(path))?.next().is_none())
}

/// Puts a path to an error of the system.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> SyncError + use<> {
    let file = path.display().to_string();
    move |error| SyncError::Io(IoError::Storage { file, error })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A name that a run gives to a file.
    const FILE: &str = "000003.ldb";

    fn output(desk: &TempDir, replace: bool) -> FolderOutput {
        FolderOutput { kind: FolderKind::Chainstate, path: desk.path().join("out"), replace }
    }

    fn draft(desk: &TempDir, replace: bool, content: &str) -> FolderDraft {
        let draft = FolderDraft::begin(&output(desk, replace)).unwrap();
        fs::write(draft.folder().join(FILE), content).unwrap();
        draft
    }

    /// Goes on with what an earlier start drafted, or begins.
    fn resume(output: &FolderOutput) -> Result<FolderDraft, SyncError> {
        FolderDraft::find(output)?.map_or_else(|| FolderDraft::create(output), Ok)
    }

    fn names(desk: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(desk.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn read(desk: &TempDir, folder: &str) -> String {
        fs::read_to_string(desk.path().join(folder).join(FILE)).unwrap()
    }

    #[test]
    fn room_is_expected_before_it_is_needed() {
        let folder = tempfile::tempdir().unwrap();
        assert!(expect_room(folder.path(), 1).unwrap() > 1);
        let error = expect_room(folder.path(), u64::MAX).unwrap_err();
        assert!(matches!(error, SyncError::Io(IoError::NoRoom { .. })), "{error}");
        assert!(expect_room(&folder.path().join("none"), 1).is_err());
    }

    #[test]
    fn a_folder_appears_whole() {
        let desk = tempfile::tempdir().unwrap();
        let draft = draft(&desk, false, "new");
        assert_eq!(names(&desk), ["out.incomplete"]);
        let (moved_to, mark) = draft.publish().unwrap();
        assert_eq!(moved_to, None);
        take_off(&mark, &desk.path().join("out")).unwrap();
        assert_eq!((names(&desk), read(&desk, "out")), (vec!["out".to_owned()], "new".into()));
        assert_eq!(fs::read_dir(desk.path().join("out")).unwrap().count(), 1, "the mark is gone");
    }

    #[test]
    fn what_is_there_is_moved_aside_by_order_only() {
        let desk = tempfile::tempdir().unwrap();
        let old = desk.path().join("out");
        fs::create_dir(&old).unwrap();
        fs::write(old.join(FILE), "old").unwrap();
        fs::create_dir(desk.path().join("out.old")).unwrap();
        let error = draft(&desk, false, "new").publish().unwrap_err();
        assert!(matches!(error, SyncError::Usage(UsageError::OutputExists { .. })), "{error}");
        assert_eq!(read(&desk, "out"), "old");
        let (aside, _mark) = draft(&desk, true, "newer").publish().unwrap();
        assert_eq!(aside, Some(desk.path().join("out.old-2")));
        assert_eq!((read(&desk, "out"), read(&desk, "out.old-2")), ("newer".into(), "old".into()));
    }

    #[test]
    fn an_empty_folder_is_not_in_the_way() {
        let desk = tempfile::tempdir().unwrap();
        fs::create_dir(desk.path().join("out")).unwrap();
        assert_eq!(draft(&desk, false, "new").publish().unwrap().0, None);
        assert_eq!(read(&desk, "out"), "new");
    }

    /// Two runs with work folders of their own.
    #[test]
    fn a_draft_has_one_writer_at_a_time() {
        let desk = tempfile::tempdir().unwrap();
        let first = draft(&desk, false, "first");
        for begin in [FolderDraft::begin, resume] {
            let error = begin(&output(&desk, true)).err().unwrap();
            assert!(matches!(error, SyncError::Usage(UsageError::DraftInUse { .. })), "{error}");
            assert!(error.to_string().contains("out.incomplete"), "{error}");
        }
        assert_eq!(read(&desk, "out.incomplete"), "first");
        drop(first);
        drop(resume(&output(&desk, false)).unwrap());
        let second = draft(&desk, false, "second");
        second.publish().unwrap();
        assert_eq!(read(&desk, "out"), "second");
    }

    /// The first has its folder under its name, and has hints or a report to write yet.
    #[test]
    fn a_folder_is_its_runs_until_it_loses_its_mark() {
        let desk = tempfile::tempdir().unwrap();
        let out = desk.path().join("out");
        let (_, mark) = draft(&desk, false, "first").publish().unwrap();
        for used in [false, true] {
            for begin in [FolderDraft::begin, resume] {
                let error = begin(&output(&desk, true)).err().unwrap();
                assert!(
                    matches!(error, SyncError::Usage(UsageError::DraftInUse { .. })),
                    "{error}"
                );
                assert!(error.to_string().contains("/out:"), "{error}");
            }
            assert_eq!((names(&desk), read(&desk, "out")), (vec!["out".into()], "first".into()));
            // Also once a node was started on it.
            if !used {
                fs::create_dir(out.join("wallets")).unwrap();
            }
        }
        take_off(&mark, &out).unwrap();
        // Now it is an output that is done.
        let (aside, second) = draft(&desk, true, "second").publish().unwrap();
        assert_eq!(
            (aside, read(&desk, "out")),
            (Some(desk.path().join("out.old")), "second".into())
        );
        // No mark is taken from a folder that has come in the place of the first.
        let error = take_off(&mark, &out).unwrap_err();
        assert!(matches!(error, SyncError::Io(IoError::FolderGone { .. })), "{error}");
        take_off(&second, &out).unwrap();
    }

    /// Another run opened the mark just before the folder was renamed, or done.
    #[test]
    fn a_mark_that_is_elsewhere_by_now_is_no_ones_leave() {
        let desk = tempfile::tempdir().unwrap();
        let out = desk.path().join("out");
        let draft = draft(&desk, false, "first");
        let in_draft = draft.folder().to_owned();
        let late = |path: &Path| -> io::Result<Option<FolderLock>> {
            let lock = FolderLock::try_take_existing(path)?;
            fs::remove_file(path)?;
            Ok(lock)
        };
        let (_, mark) = draft.publish().unwrap();
        drop(mark);
        let error = Mark::take(&out, late).unwrap_err();
        assert!(matches!(error, SyncError::Usage(UsageError::DraftInUse { .. })), "{error}");
        let error = Mark::take(&in_draft, FolderLock::try_take_existing).unwrap_err();
        assert!(matches!(error, SyncError::Io(IoError::Storage { .. })), "{error}");
    }

    /// It was moved away before the run was over.
    #[test]
    fn a_folder_that_is_gone_is_not_done() {
        let desk = tempfile::tempdir().unwrap();
        let out = desk.path().join("out");
        let (_, mark) = draft(&desk, false, "mine").publish().unwrap();
        fs::rename(&out, desk.path().join("elsewhere")).unwrap();
        let error = take_off(&mark, &out).unwrap_err();
        assert!(matches!(error, SyncError::Io(IoError::FolderGone { .. })), "{error}");
        assert!(error.to_string().contains("/out "), "{error}");
        assert!(desk.path().join("elsewhere").join(MARK).is_file());
    }

    #[test]
    fn one_that_is_gone_leaves_the_marks_of_all() {
        let desk = tempfile::tempdir().unwrap();
        let (one, two) = (desk.path().join("one"), desk.path().join("two"));
        let publish = |path: &Path| {
            let output = FolderOutput { path: path.to_owned(), ..output(&desk, false) };
            FolderDraft::begin(&output).unwrap().publish().unwrap().1
        };
        let marks = [publish(&one), publish(&two)];
        let all = || marks.iter().zip([one.as_path(), two.as_path()]);
        fs::rename(&two, desk.path().join("elsewhere")).unwrap();
        let error = complete_all(all()).unwrap_err();
        assert!(error.to_string().contains("/two "), "{error}");
        assert!(one.join(MARK).is_file());
        fs::rename(desk.path().join("elsewhere"), &two).unwrap();
        complete_all(all()).unwrap();
        assert!(!one.join(MARK).exists() && !two.join(MARK).exists());
    }

    /// Another program took the draft away, or put something in its way, between the two renames.
    #[test]
    fn what_was_moved_aside_is_put_back() {
        let desk = tempfile::tempdir().unwrap();
        let (path, aside) = (desk.path().join("out"), desk.path().join("out.old"));
        let draft = draft(&desk, true, "new");
        fs::create_dir(&aside).unwrap();
        fs::write(aside.join(FILE), "old").unwrap();
        let failed = || io::Error::from(ErrorKind::PermissionDenied);
        let error = draft.not_published(Some(&aside), failed());
        assert!(matches!(error, SyncError::Io(IoError::Storage { .. })), "{error}");
        assert_eq!(names(&desk), ["out", "out.incomplete"]);
        assert_eq!(read(&desk, "out"), "old");

        // It cannot be put back either: the error says where everything is.
        fs::rename(&path, &aside).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("theirs"), "").unwrap();
        let error = draft.not_published(Some(&aside), failed());
        assert!(matches!(error, SyncError::Io(IoError::NotPublished { .. })), "{error}");
        let text = error.to_string();
        for place in [&path, &aside, &draft.draft] {
            assert!(text.contains(&place.display().to_string()), "{text}");
        }
        assert!(text.contains(". The new folder is whole in ") && !text.contains("  "), "{text}");
        assert_eq!(
            (read(&desk, "out.old"), read(&desk, "out.incomplete")),
            ("old".into(), "new".into())
        );
        assert!(matches!(
            draft.not_published(None, failed()),
            SyncError::Io(IoError::Storage { .. })
        ));
    }

    /// An earlier start was ended at any step.
    #[test]
    fn what_an_earlier_start_left() {
        let desk = tempfile::tempdir().unwrap();
        drop(draft(&desk, false, "half"));
        let again = resume(&output(&desk, false)).unwrap();
        assert_eq!(read(&desk, "out.incomplete"), "half");
        // It had its name, and the run was not over.
        again.publish().unwrap();
        let again = resume(&output(&desk, false)).unwrap();
        assert_eq!(
            (names(&desk), read(&desk, "out.incomplete")),
            (vec!["out.incomplete".to_owned()], "half".into())
        );
        again.publish().unwrap();
        let (_, mark) = draft(&desk, false, "whole").publish().unwrap();
        take_off(&mark, &desk.path().join("out")).unwrap();
        assert_eq!((names(&desk), read(&desk, "out")), (vec!["out".to_owned()], "whole".into()));
    }

    #[test]
    fn a_folder_that_no_run_made_is_left_alone() {
        let desk = tempfile::tempdir().unwrap();
        let theirs = desk.path().join("out.incomplete");
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join(FILE), "theirs").unwrap();
        for begin in [FolderDraft::begin, resume] {
            let error = begin(&output(&desk, true)).err().unwrap();
            assert!(matches!(error, SyncError::Usage(UsageError::OutputExists { .. })), "{error}");
        }
        assert_eq!(read(&desk, "out.incomplete"), "theirs");
    }

    /// A run was killed between making the folder and marking it.
    #[test]
    fn an_empty_draft_is_not_in_the_way() {
        for begin in [FolderDraft::begin, resume] {
            let desk = tempfile::tempdir().unwrap();
            fs::create_dir(desk.path().join("out.incomplete")).unwrap();
            drop(begin(&output(&desk, false)).unwrap());
            assert!(FolderDraft::find(&output(&desk, false)).unwrap().is_some());
        }
    }

    /// A run was killed before it ended, and a node started on what it had made.
    #[test]
    fn a_folder_that_a_node_used_is_not_taken_back() {
        for used in ["LOCK", "wallets/", "blocks/.lock", "regtest/wallet.dat", "bitcoin.conf"] {
            let desk = tempfile::tempdir().unwrap();
            draft(&desk, false, "used").publish().unwrap();
            assert!(is_unfinished(&desk.path().join("out")));
            let theirs = desk.path().join("out").join(used);
            fs::create_dir_all(theirs.parent().unwrap()).unwrap();
            match used.ends_with('/') {
                true => fs::create_dir(&theirs).unwrap(),
                false => fs::write(&theirs, "").unwrap(),
            }
            assert!(!is_unfinished(&desk.path().join("out")));
            for replace in [false, true] {
                let again = draft(&desk, replace, "again").publish();
                let place = if replace { "out.old" } else { "out" };
                assert_eq!(again.is_ok(), replace);
                assert_eq!(read(&desk, place), "used");
                assert!(desk.path().join(place).join(used).exists(), "{used}");
            }
        }
    }

    /// The lock cannot be had, as when a node has it: nothing is moved.
    #[test]
    fn a_database_that_cannot_be_locked_stays() {
        let desk = tempfile::tempdir().unwrap();
        let old = desk.path().join("out");
        fs::create_dir_all(old.join(LEVELDB_LOCK)).unwrap();
        let error = draft(&desk, true, "new").publish().unwrap_err();
        assert!(matches!(error, SyncError::Lock(_)), "{error}");
        assert_eq!(names(&desk), ["out", "out.incomplete"]);
        assert!(old.join(LEVELDB_LOCK).is_dir());
    }
}
