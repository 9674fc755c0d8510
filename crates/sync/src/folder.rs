//! [`FolderDraft`]: a folder that gets its name only once it is complete.
//!
//! It is written next to its final place, as `NAME.incomplete`, with a file in it that marks it as incomplete,
//! and renamed at the end. An existing folder is not touched until then; if the user asks for it, it is then
//! moved aside. The mark is removed when the sync ends: a folder that has both its name and the mark belongs to
//! a killed sync, and the next start reuses it as its draft, unless a node has used it since. The writer
//! decides what the folder contains.
//!
//! A folder has one writer at a time: its mark is locked from the creation of its [`FolderDraft`] until the
//! mark is removed, even after the folder has its name. So of two syncs with the same output, the second fails,
//! and touches nothing, until the first ends.
//!
//! A draft is continued only if this user owns it: in a place where others can write, they may have created a
//! folder of that name first.

mod output;
mod owner;

pub use apus_storage::parent;
pub use output::{BlocksRead, DatadirBlocks, FolderKind, FolderOutput, WrittenFolder};
pub use owner::owner_out_of_reach;

use crate::error::{IoError, SyncError, UsageError};
use apus_chain::Network;
use apus_datadir::{DATADIR_LOCK, DatadirLock, LEVELDB_LOCK, free_bytes};
use apus_storage::lock::FolderLock;
use apus_storage::{create_output_dir, expect_own_output, is_open_to_all, place::sync_names_of};
use owner::Owner;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Marks the folder of a sync that has not ended. LevelDB and Bitcoin Core ignore files whose names they do not
/// know.
const MARK: &str = "apus.incomplete";

/// The text in the file [`MARK`], for people.
const MARK_TEXT: &str = "This folder is being written by apus, and not complete while this file is \
                         here.\n";

/// Returns the free bytes on the disk of a folder.
pub fn room(folder: &Path) -> Result<u64, SyncError> {
    free_bytes(folder).map_err(at(folder))
}

/// Checks that the disk of a folder has enough free bytes, and returns their number.
///
/// # Errors
/// If fewer than `needed` are free: better to fail now than after hours of work.
pub fn expect_room(folder: &Path, needed: u64) -> Result<u64, SyncError> {
    let free = room(folder)?;
    if free < needed {
        let folder = folder.display().to_string();
        return Err(SyncError::Io(IoError::NoRoom { folder, needed, free }));
    }
    Ok(free)
}

/// Removes a folder with all its content, if it exists.
pub fn remove_folder(folder: &Path) -> Result<(), SyncError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at(folder)(error)),
        _ => Ok(()),
    }
}

/// A folder that is written under a draft name.
#[derive(Debug)]
pub struct FolderDraft {
    path: PathBuf,
    draft: PathBuf,
    replace: bool,
    mark: FolderMark,
}

impl FolderDraft {
    /// Removes the draft of an earlier start, and begins a new folder at `path`. If a folder exists there, it is
    /// moved aside at the end with `replace`.
    pub fn begin_at(path: &Path, replace: bool) -> Result<Self, SyncError> {
        match Self::find_at(path, replace)? {
            Some(draft) => draft.clear().map(|()| draft),
            None => Self::create(path, replace),
        }
    }

    /// Continues the draft of an earlier start, or begins a new folder.
    pub fn find_or_begin(path: &Path, replace: bool) -> Result<Self, SyncError> {
        Self::find_at(path, replace)?.map_or_else(|| Self::create(path, replace), Ok)
    }

    /// Finds the draft of an earlier start: under the draft's name, or under the folder's own name and still
    /// marked, in which case it gets the draft's name back. A folder of the draft's name that no sync made is
    /// not touched.
    pub fn find_at(path: &Path, replace: bool) -> Result<Option<Self>, SyncError> {
        let draft = draft_of(path);
        match expect_draft(path)? {
            DraftState::Marked => {
                let mark = FolderMark::take(&draft, FolderLock::try_take_given)?;
                expect_own(&draft, path)?;
                mark.explain(&draft)?;
                Ok(Some(Self::of(path, replace, mark)))
            }
            DraftState::Nothing if path.join(MARK).is_file() => {
                // The sync that published it may still be running.
                let mark = FolderMark::take(path, FolderLock::try_take_given)?;
                if is_replaced(path)? {
                    fs::rename(&draft, free_name(path)?).map_err(at(&draft))?;
                }
                if !is_unfinished(path) {
                    return Ok(None);
                }
                let _locks = lock(path)?;
                expect_own(path, path)?;
                fs::rename(path, &draft).map_err(at(path))?;
                Ok(Some(Self::of(path, replace, mark)))
            }
            DraftState::Nothing | DraftState::Empty => Ok(None),
        }
    }

    fn of(path: &Path, replace: bool, mark: FolderMark) -> Self {
        Self { path: path.to_owned(), draft: draft_of(path), replace, mark }
    }

    fn create(path: &Path, replace: bool) -> Result<Self, SyncError> {
        let draft = draft_of(path);
        match create_output_dir(&draft) {
            // An empty folder may take the draft's name.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                expect_own(&draft, path)?;
            }
            other => other.map_err(at(&draft))?,
        }
        let mark = FolderMark::take(&draft, FolderLock::try_take)?;
        mark.explain(&draft)?;
        Ok(Self::of(path, replace, mark))
    }

    /// Removes the draft that an earlier start left for a folder at `path`, if any.
    pub fn discard_at(path: &Path) -> Result<(), SyncError> {
        match expect_draft(path)? {
            DraftState::Marked => Self::find_at(path, false)?.map_or(Ok(()), |it| it.discard()),
            DraftState::Nothing | DraftState::Empty => Ok(()),
        }
    }

    /// Removes the draft.
    pub fn discard(&self) -> Result<(), SyncError> {
        self.clear()?;
        remove_folder(&self.draft)
    }

    /// Removes everything except the mark, which stays locked.
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

    /// The folder's current path.
    pub fn folder(&self) -> &Path {
        &self.draft
    }

    /// Gives the folder its final owner and name, and returns where the previous folder was moved. Its content
    /// must be durable. The folder keeps its mark until [`complete`]; the holder of the mark keeps other syncs
    /// out.
    pub fn publish(self) -> Result<(Option<PathBuf>, FolderMark), SyncError> {
        sync_folder(&self.draft)?;
        let occupied = match self.path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(at(&self.path)(error)),
            Ok(there) if there.is_dir() && is_empty(&self.path)? => {
                expect_not_planted(&self.path)?;
                false
            }
            Ok(_) => true,
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
            // If no folder is replaced, failing to change the owner is not an error: this process's user
            // remains the owner.
            given.or_else(|error| if moved_to.is_some() { Err(error) } else { Ok(()) })?;
        }
        // A node that has the old database open would continue under its name, in the new database. The locks keep
        // nodes from opening it until it is moved aside.
        let _locks = match &moved_to {
            Some(_) => lock(&self.path)?,
            None => Vec::new(),
        };
        match &moved_to {
            Some(aside) => self.replace(aside)?,
            // This replaces an empty folder of the same name.
            None => fs::rename(&self.draft, &self.path).map_err(at(&self.path))?,
        }
        sync_folder(parent(&self.path))?;
        Ok((moved_to, self.mark))
    }

    /// Moves the previous folder aside, and puts the new one in its place: at once, so that the node never lacks its
    /// folder, if the file system can.
    fn replace(&self, aside: &Path) -> Result<(), SyncError> {
        // With the mark of a sync that ended badly before a node used the folder, it would look like a draft.
        match fs::remove_file(self.path.join(MARK)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(at(&self.path)(error)),
            _ => sync_folder(&self.path)?,
        }
        if renameat_with(CWD, &self.draft, CWD, &self.path, RenameFlags::EXCHANGE).is_ok() {
            return fs::rename(&self.draft, aside).map_err(at(&self.draft));
        }
        fs::rename(&self.path, aside).map_err(at(&self.path))?;
        fs::rename(&self.draft, &self.path).map_err(|error| self.not_published(aside, error))
    }

    /// Moves the previous folder back after the new one could not take its place.
    fn not_published(&self, aside: &Path, error: io::Error) -> SyncError {
        match fs::rename(aside, &self.path) {
            // No name has changed, so none needs to be made durable.
            Ok(()) => at(&self.path)(error),
            Err(back) => {
                let (path, draft) = (self.path.display(), self.draft.display());
                let aside = aside.display();
                SyncError::io(format!(
                    "{path}: {error}. The previous folder is intact in {aside}, but could not be moved back: \
                     {back}. The new folder is complete in {draft}. Rename {aside} to {path} and rerun the \
                     same command, which continues with {draft}"
                ))
            }
        }
    }
}

/// The state of the path of a folder's draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftState {
    /// The path does not exist.
    Nothing,
    /// An empty folder: a sync was killed before it could mark it.
    Empty,
    /// A draft of an earlier start, or of a sync that is still writing it.
    Marked,
}

/// Returns the state of the path of the draft of `path`, or fails if another program or user put something there.
pub fn expect_draft(path: &Path) -> Result<DraftState, SyncError> {
    let draft = draft_of(path);
    let exists = |file: &Path| {
        Err(SyncError::Usage(UsageError::OutputExists { file: file.display().to_string() }))
    };
    let drafted = match draft.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(DraftState::Nothing),
        Err(error) => return Err(at(&draft)(error)),
        Ok(there) if !there.is_dir() => return exists(&draft),
        Ok(_) if draft.join(MARK).is_file() => DraftState::Marked,
        Ok(_) if is_replaced(path)? => return Ok(DraftState::Nothing),
        Ok(_) if is_empty(&draft)? => DraftState::Empty,
        Ok(_) => return exists(&draft),
    };
    match owner::given(&draft, path).map_err(at(&draft))? {
        Some(_) => Ok(drafted),
        None => expect_made_here(&draft).map(|()| drafted),
    }
}

/// Whether a killed sync put its folder at `path`, and left the previous folder under the draft's name.
fn is_replaced(path: &Path) -> Result<bool, SyncError> {
    let draft = draft_of(path);
    Ok(path.join(MARK).is_file()
        && draft.is_dir()
        && !draft.join(MARK).is_file()
        && !is_empty(&draft)?)
}

/// The locked mark of a folder that this sync writes.
#[derive(Debug)]
pub struct FolderMark(FolderLock);

impl FolderMark {
    /// Locks the mark in `folder` with `take`, or fails if another sync holds it.
    fn take(
        folder: &Path,
        take: impl FnOnce(&Path) -> io::Result<Option<FolderLock>>,
    ) -> Result<Self, SyncError> {
        let path = folder.join(MARK);
        let mark = take(&path).map_err(at(&path))?.map(Self);
        match mark {
            // Another sync may have published the folder or removed the mark between opening and locking it.
            Some(mark) if mark.is_in(folder)? => Ok(mark),
            _ => Err(SyncError::Usage(UsageError::DraftInUse {
                draft: folder.display().to_string(),
            })),
        }
    }

    /// Writes the text of the mark, which an earlier start may not have written.
    fn explain(&self, folder: &Path) -> Result<(), SyncError> {
        self.0.file().write_all(MARK_TEXT.as_bytes()).map_err(at(&folder.join(MARK)))
    }

    /// Fails unless the mark belongs to the folder at this path.
    fn expect_in(&self, folder: &Path) -> Result<(), SyncError> {
        match self.is_in(folder)? {
            true => Ok(()),
            false => Err(SyncError::io(format!(
                "{}: this is no longer the folder that this sync wrote. Something moved, removed or replaced that \
                 folder meanwhile. Look for it, or rerun the same command",
                folder.display()
            ))),
        }
    }

    /// Returns whether the mark belongs to this folder.
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

/// Removes the marks of published folders, because the sync that wrote them has ended. Fails if one of them is
/// no longer the folder that the sync wrote: then all keep their marks, and the next start reuses the folders
/// that exist.
pub fn complete(folders: &[WrittenFolder]) -> Result<(), SyncError> {
    complete_all(folders.iter().map(|folder| (&*folder.mark, &*folder.path)))
}

/// Like [`complete`], for marks with the paths of their folders.
pub fn complete_all<'a>(
    folders: impl Iterator<Item = (&'a FolderMark, &'a Path)> + Clone,
) -> Result<(), SyncError> {
    for (mark, folder) in folders.clone() {
        mark.expect_in(folder)?;
    }
    let mut folders = folders;
    folders.try_for_each(|(mark, folder)| take_off(mark, folder))
}

fn take_off(mark: &FolderMark, folder: &Path) -> Result<(), SyncError> {
    mark.expect_in(folder)?;
    let path = folder.join(MARK);
    fs::remove_file(&path).map_err(at(&path))?;
    sync_folder(folder)
}

/// Keeps nodes out of a data directory or database that must be moved, or fails if a node uses it.
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

/// Returns whether an interrupted sync left this folder and no node has used it since: the next start may reuse
/// or remove it.
pub fn is_unfinished(path: &Path) -> bool {
    // If that is unknown, assume that it was used.
    path.join(MARK).is_file() && is_unused(path).unwrap_or(false)
}

/// Returns whether a folder contains only what syncs write. A node that was started on it leaves at least its
/// locks, and in a data directory its wallets.
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
    let of_indexes = ["indexes", "txindex", "txospenderindex", "coinstats", "coinstatsindex"];
    ["blocks", "chainstate", "index", "db", "blockfilter", "basic"].contains(&name)
        || of_indexes.contains(&name)
        || Network::ALL.iter().any(|network| network.data_folder() == Some(name))
}

/// Returns whether a name occurs in a database or in a blocks folder.
fn is_file_of_ours(name: &str) -> bool {
    [MARK, "CURRENT", "xor.dat"].contains(&name)
        || name.starts_with("MANIFEST-")
        || [".ldb", ".dbtmp"].iter().any(|end| name.ends_with(end))
        || (name.ends_with(".dat") && ["blk", "rev", "fltr"].iter().any(|it| name.starts_with(it)))
}

/// Creates a folder of a node, unless it exists. It belongs to the owner of the folder around it.
pub fn make_node_folder(path: &Path) -> Result<(), SyncError> {
    if path.is_dir() {
        return Ok(());
    }
    let owner = Owner::of_place(path).map_err(at(path))?;
    create_output_dir(path).map_err(at(path))?;
    owner.map_or(Ok(()), |owner| owner.give(path)).map_err(at(path))?;
    sync_folder(parent(path))
}

/// Returns the path of a file or folder while it is incomplete.
pub fn draft_of(path: &Path) -> PathBuf {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".incomplete");
    draft.into()
}

/// Returns the first free path of `NAME.old`, `NAME.old-2` and so on.
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
pub fn sync_folder(path: &Path) -> Result<(), SyncError> {
    sync_names_of(path).map_err(at(path))
}

/// Fails unless the draft of an earlier start belongs to this user, or root gave it to the owner of `place`. In
/// the latter case, root takes ownership again.
fn expect_own(folder: &Path, place: &Path) -> Result<(), SyncError> {
    if let Some(owner) = owner::given(folder, place).map_err(at(folder))? {
        owner.take_back(folder).map_err(at(folder))?;
    }
    expect_made_here(folder)
}

fn expect_made_here(folder: &Path) -> Result<(), SyncError> {
    let own = expect_own_output(folder).map_err(at(folder))?;
    own.map_err(|why| {
        let folder = folder.display();
        SyncError::usage(format!(
            "{folder}: {why}, so Apus writes nothing there: remove that folder (rm -r), or use another output"
        ))
    })
}

/// Fails if another user put an empty folder at this path, in a place where everyone can write: that user would
/// own the folder that replaces it.
pub fn expect_not_planted(folder: &Path) -> Result<(), SyncError> {
    match is_open_to_all(parent(folder)).map_err(at(folder))? {
        true => expect_own(folder, folder),
        false => Ok(()),
    }
}

fn is_empty(path: &Path) -> Result<bool, SyncError> {
    Ok(fs::read_dir(path).map_err(at(path))?.next().is_none())
}

/// Adds a path to an I/O error.
pub fn at(path: &Path) -> impl FnOnce(io::Error) -> SyncError + use<> {
    let file = path.display().to_string();
    move |error| SyncError::Io(IoError::Storage { file, error })
}

#[cfg(test)]
mod tests;
