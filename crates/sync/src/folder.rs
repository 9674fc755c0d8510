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
//!
//! A folder is gone on with only where it is this user's own: in a folder that others can write to, one of its name may
//! be there before us.

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
use std::ffi::OsString;
use std::fs;
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
pub fn room(folder: &Path) -> Result<u64, SyncError> {
    free_bytes(folder).map_err(at(folder))
}

/// The same.
///
/// # Errors
/// Where fewer are than are `needed`, so that it is said before hours of work.
pub fn expect_room(folder: &Path, needed: u64) -> Result<u64, SyncError> {
    let free = room(folder)?;
    if free < needed {
        let folder = folder.display().to_string();
        return Err(SyncError::Io(IoError::NoRoom { folder, needed, free }));
    }
    Ok(free)
}

/// Removes a folder with all that is in it, if it is there.
pub fn remove_folder(folder: &Path) -> Result<(), SyncError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at(folder)(error)),
        _ => Ok(()),
    }
}

/// A folder on its way to its name.
#[derive(Debug)]
pub struct FolderDraft {
    path: PathBuf,
    draft: PathBuf,
    replace: bool,
    mark: FolderMark,
}

impl FolderDraft {
    /// Begins a new folder; what an earlier start drafted goes.
    pub fn begin(output: &FolderOutput) -> Result<Self, SyncError> {
        match Self::find(output)? {
            Some(draft) => draft.clear().map(|()| draft),
            None => Self::create(output),
        }
    }

    /// Goes on with what an earlier start drafted, or begins.
    pub fn find_or_begin(output: &FolderOutput) -> Result<Self, SyncError> {
        Self::find(output)?.map_or_else(|| Self::create(output), Ok)
    }

    /// What an earlier start drafted, if it did: under the draft's name, or under the folder's own
    /// name and still marked, which is taken back. A folder of the draft's name that no run made is
    /// left alone.
    pub fn find(output: &FolderOutput) -> Result<Option<Self>, SyncError> {
        let draft = draft_of(&output.path);
        match expect_draft(output)? {
            Drafted::Marked => {
                let mark = FolderMark::take(&draft, FolderLock::try_take_given)?;
                expect_own(&draft, &output.path)?;
                mark.explain(&draft)?;
                Ok(Some(Self::of(output, draft, mark)))
            }
            Drafted::Nothing if output.path.join(MARK).is_file() => {
                // The run that gave it its name may not be over.
                let mark = FolderMark::take(&output.path, FolderLock::try_take_given)?;
                if !is_unfinished(&output.path) {
                    return Ok(None);
                }
                let _locks = lock(&output.path)?;
                expect_own(&output.path, &output.path)?;
                fs::rename(&output.path, &draft).map_err(at(&output.path))?;
                Ok(Some(Self::of(output, draft, mark)))
            }
            Drafted::Nothing | Drafted::Empty => Ok(None),
        }
    }

    fn of(output: &FolderOutput, draft: PathBuf, mark: FolderMark) -> Self {
        Self { path: output.path.clone(), draft, replace: output.replace, mark }
    }

    fn create(output: &FolderOutput) -> Result<Self, SyncError> {
        let draft = draft_of(&output.path);
        match create_output_dir(&draft) {
            // An empty one.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                expect_own(&draft, &output.path)?;
            }
            other => other.map_err(at(&draft))?,
        }
        let mark = FolderMark::take(&draft, FolderLock::try_take)?;
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
    pub fn folder(&self) -> &Path {
        &self.draft
    }

    /// Gives the folder to the owner of its place, and its name, and says where that which was there
    /// went. Everything in it must be durable. It keeps its mark until [`complete`]; the
    /// run that holds the mark keeps others out.
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
            Err(back) => {
                let (path, draft) = (self.path.display(), self.draft.display());
                let aside = aside.display();
                SyncError::io(format!(
                    "{path}: {error}. What was there is whole in {aside}, and could not be put back: {back}. The \
                     new folder is whole in {draft}. Rename {aside} to {path} and start again with the same \
                     command, which takes {draft} up"
                ))
            }
        }
    }
}

/// What lies at the name of a folder's draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drafted {
    /// Nothing.
    Nothing,
    /// A folder of a run that was killed before it could mark it.
    Empty,
    /// A folder that an earlier start began, or that another run is writing.
    Marked,
}

/// What lies there, or fails where no run of this user's left it.
pub fn expect_draft(output: &FolderOutput) -> Result<Drafted, SyncError> {
    let draft = draft_of(&output.path);
    let exists = |file: &Path| {
        Err(SyncError::Usage(UsageError::OutputExists { file: file.display().to_string() }))
    };
    let drafted = match draft.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Drafted::Nothing),
        Err(error) => return Err(at(&draft)(error)),
        Ok(there) if !there.is_dir() => return exists(&draft),
        Ok(_) if draft.join(MARK).is_file() => Drafted::Marked,
        Ok(_) if is_empty(&draft)? => Drafted::Empty,
        Ok(_) => return exists(&draft),
    };
    match owner::given(&draft, &output.path).map_err(at(&draft))? {
        Some(_) => Ok(drafted),
        None => expect_made_here(&draft).map(|()| drafted),
    }
}

/// The mark of a folder that this run writes, locked as long as this is there.
#[derive(Debug)]
pub struct FolderMark(FolderLock);

impl FolderMark {
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
            false => Err(SyncError::io(format!(
                "{} is not the folder any more that this run has written: it was moved, removed or \
                 replaced meanwhile. Look for it, or start again",
                folder.display()
            ))),
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
pub fn sync_folder(path: &Path) -> Result<(), SyncError> {
    sync_names_of(path).map_err(at(path))
}

/// Fails unless what an earlier start left is this user's own, to be given to the owner of `place`, or was given to
/// them: then it is taken back.
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
            "{folder}: {why}, so nothing is written there: remove it (rm -r), or name another output"
        ))
    })
}

/// Fails where an empty folder lies in the way that is another user's, in a place where all can put one: what takes
/// its place would be theirs.
pub fn expect_not_planted(folder: &Path) -> Result<(), SyncError> {
    match is_open_to_all(parent(folder)).map_err(at(folder))? {
        true => expect_own(folder, folder),
        false => Ok(()),
    }
}

fn is_empty(path: &Path) -> Result<bool, SyncError> {
    Ok(fs::read_dir(path).map_err(at(path))?.next().is_none())
}

/// Puts a path to an error of the system.
pub fn at(path: &Path) -> impl FnOnce(io::Error) -> SyncError + use<> {
    let file = path.display().to_string();
    move |error| SyncError::Io(IoError::Storage { file, error })
}

#[cfg(test)]
mod tests;
