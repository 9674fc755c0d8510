//! Making files and folders, and opening files to write: nothing else in the program does either. And [`NotOwn`]: whose a
//! file or a folder is, asked before this process writes to it or believes it.
//!
//! A new file is new: no link is followed, and what another user put there is never written to. What a run of ours left
//! is taken over only where it is a plain file of ours, with no other name. Nothing here waits for a pipe, but for
//! [`open_to_append`].
//!
//! In a folder that others can write to, a name may be there before us: a link that leads to a file of ours, a second
//! name of such a file, a folder that stays open to who made it. So only what is ours is gone on with. The system's
//! administrator is trusted, whoever runs this.
//!
//! Some file systems know no owners and no modes, and show all files alike. There what a file of our own looks like
//! counts as ours. It does not help against a user who can change the names on the way to a folder.

use rustix::fs::OFlags;
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// So often a file is opened that comes and goes meanwhile.
const TRIES: u32 = 100;

/// The folder that a path lies in.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn to_create(private: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    // Without rights that the user takes from all new files.
    options.create_new(true).mode(if private { 0o600 } else { 0o666 });
    options
}

/// Makes a file that is not there, with the rights that the user gives new ones.
pub fn create_file(path: &Path) -> io::Result<File> {
    to_create(false).write(true).open(path)
}

/// Makes a file that is not there, for its owner alone.
pub fn create_private_file(path: &Path) -> io::Result<File> {
    to_create(true).write(true).open(path)
}

/// Makes a folder that is not there, into which others may not look.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)
}

/// The name of a file that is made for a moment, to see what comes of it.
pub(crate) fn probe_name(folder: &Path) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    folder.join(format!(".apus-{}-{number}.incomplete", std::process::id()))
}

/// To open what is there: no link, and without waiting.
fn of_existing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    options
}

/// Makes an empty file, in place of one that a run of ours left.
pub fn replace_file(path: &Path) -> io::Result<File> {
    remove_own_file(path)?;
    create_file(path)
}

/// The same, for its owner alone.
pub(crate) fn replace_private_file(path: &Path) -> io::Result<File> {
    remove_own_file(path)?;
    create_private_file(path)
}

/// Removes a file of ours; one that is not there is no error.
fn remove_own_file(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        // For what the system says of it.
        Ok(there) if there.is_dir() => fs::remove_file(path),
        Ok(there) => {
            judge_file(path, &there)?;
            fs::remove_file(path)
        }
    }
}

/// Opens a file of ours that is there, to read and write it.
pub fn open_own_file(path: &Path) -> io::Result<File> {
    let file = of_existing().read(true).write(true).open(path).map_err(explain_link)?;
    judge_file(path, &file.metadata()?)?;
    Ok(file)
}

/// Opens a file of ours to read and write it, or makes it: with the rights that the user gives new ones, or `private`.
pub fn open_or_create(path: &Path, private: bool) -> io::Result<File> {
    for _ in 0..TRIES {
        match to_create(private).read(true).write(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            other => return other,
        }
        match open_own_file(path) {
            // Another process removed it.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => return other,
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Opens a file that is there to lock it, whoever has it.
pub fn open_to_lock(path: &Path) -> io::Result<File> {
    let file = of_existing().write(true).open(path).map_err(explain_link)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(NotOwn::Special.into()),
    }
}

/// Opens a file to read it: a link is followed, and a pipe is refused.
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    match file.metadata()?.file_type() {
        kind if kind.is_file() || kind.is_dir() => Ok(file),
        _ => Err(NotOwn::Special.into()),
    }
}

/// Opens a file to write behind what it has, and makes it where it is not there. It may be a pipe or a terminal, and be
/// named by links; but in a folder that others can write to only by those of this user or the administrator, and what
/// is there must be theirs, or of the folder's owner.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    for _ in 0..TRIES {
        let path = follow_own_links(path)??;
        if is_of_processes(&path) {
            return OpenOptions::new().append(true).open(&path);
        }
        match to_create(false).append(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            other => return other,
        }
        let there = match path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            other => other?,
        };
        judge_shared(&there, &fs::metadata(parent(&path))?)?;
        let mut options = OpenOptions::new();
        options.append(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(&path)?;
        if is_same(&file.metadata()?, &there) {
            return Ok(file);
        }
    }
    Err(io::Error::other("what lies there changes all the time"))
}

fn is_same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// What the system says of a link that is not followed is that there are too many.
fn explain_link(error: io::Error) -> io::Error {
    match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::LOOP) => NotOwn::Link.into(),
        _ => error,
    }
}

/// Makes a folder into which others may not look, and those around it as the system makes folders. One that is there
/// must be this user's own, and closed to what others write; it may be named by a link of this user's.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    let path = follow_own_links(path)??;
    if let Some(around) = path.parent() {
        fs::create_dir_all(around)?;
    }
    match make_private_dir(&path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(expect_own_folder(&path)??),
        other => other,
    }
}

/// Makes a folder for an output: with the rights that the user gives new ones, but that others never write to it.
pub fn create_output_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o775).create(path)
}

/// That others can write.
const OTHERS_WRITE: u32 = 0o002;

/// That the group or others can write.
const GROUP_OR_OTHERS_WRITE: u32 = 0o022;

/// Links that lead to one another, as systems allow them.
const LINKS_MAX: u32 = 40;

/// Why a file or folder is not taken for one of this process's user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotOwn {
    /// It is a link that another user made.
    LinkOf(u32),
    /// It is a link where none may be.
    Link,
    /// It belongs to another user.
    Of(u32),
    /// The group or others can write to it, which is the user's own: the mode.
    OpenTo(u32),
    /// It has so many names.
    Names(u64),
    /// It is neither a file nor a folder.
    Special,
    /// It is a file where a folder should be, or a folder where a file should be.
    OtherKind,
}

impl Display for NotOwn {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkOf(user) => write!(f, "it is a link that user {user} made"),
            Self::Link => f.write_str("it is a link"),
            Self::Of(user) => write!(f, "it belongs to user {user}, not to user {}", user_id()),
            Self::OpenTo(mode) => write!(f, "other users can write to it (mode {mode:03o})"),
            Self::Names(names) => {
                write!(f, "it is a file with {names} names, which another one may need")
            }
            Self::Special => f.write_str("it is neither a file nor a folder"),
            Self::OtherKind => f.write_str("it is not of the kind that a run leaves"),
        }
    }
}

impl From<NotOwn> for io::Error {
    fn from(why: NotOwn) -> Self {
        io::Error::other(format!("{why}: remove it, or name another place"))
    }
}

/// What came of a question about an owner.
pub type Owned<T> = io::Result<Result<T, NotOwn>>;

/// The user as whom this process makes files.
fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether what this user makes can be trusted: it is this process's own, or the administrator.
fn is_trusted(user: u32) -> bool {
    [0, user_id()].contains(&user)
}

/// What a file system shows of a file that this process makes for itself alone.
struct ShownOwner {
    user: u32,
    /// Rights to write that it shows of group and others, whatever was asked for.
    open: u32,
}

impl ShownOwner {
    /// On a file system that keeps owners and modes.
    fn usual() -> Self {
        Self { user: user_id(), open: 0 }
    }

    /// Tried in a folder, by an open file: whoever owns the folder cannot put another one in its place.
    fn tried(folder: &Path) -> Self {
        let name = probe_name(folder);
        let Ok(file) = create_private_file(&name) else { return Self::usual() };
        let shown = file.metadata().map_or_else(
            |_| Self::usual(),
            |made| Self { user: made.uid(), open: made.mode() & GROUP_OR_OTHERS_WRITE },
        );
        let _ = fs::remove_file(&name);
        shown
    }

    fn judge(&self, there: &Metadata, closed: u32) -> Result<(), NotOwn> {
        if there.uid() != self.user {
            return Err(NotOwn::Of(there.uid()));
        }
        match there.mode() & closed & !self.open {
            0 => Ok(()),
            _ => Err(NotOwn::OpenTo(there.mode() & 0o777)),
        }
    }
}

/// Judges by what files of ours look like in `folder`, which is tried only where something seems to be another's.
fn judge(there: &Metadata, closed: u32, folder: &Path) -> Result<(), NotOwn> {
    let usual = ShownOwner::usual().judge(there, closed);
    usual.or_else(|_| ShownOwner::tried(folder).judge(there, closed))
}

/// Whether a file that is to be written to or removed is this user's own and a plain one, by what `there` says of it.
fn judge_file(path: &Path, there: &Metadata) -> Result<(), NotOwn> {
    match there.file_type() {
        kind if kind.is_symlink() => return Err(NotOwn::Link),
        kind if kind.is_dir() => return Err(NotOwn::OtherKind),
        kind if !kind.is_file() => return Err(NotOwn::Special),
        _ => {}
    }
    judge(there, 0, parent(path))?;
    match there.nlink() {
        0 | 1 => Ok(()),
        names => Err(NotOwn::Names(names)),
    }
}

/// Whether the file of a draft's name, if one is there, can be taken over: it is plain and this user's own. A folder is
/// left to who makes the draft.
pub fn expect_own_draft(path: &Path) -> Owned<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Ok(())),
        Err(error) => Err(error),
        Ok(there) if there.is_dir() => Ok(Ok(())),
        Ok(there) => Ok(judge_file(path, &there)),
    }
}

/// Where a path leads: links as its last name are followed where this user or the administrator made them.
pub fn follow_own_links(path: &Path) -> Owned<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match path.symlink_metadata() {
            Ok(there) if there.is_symlink() && !is_trusted(there.uid()) => {
                return Ok(Err(NotOwn::LinkOf(there.uid())));
            }
            Ok(there) if there.is_symlink() && !is_of_processes(&path) => {
                path = parent(&path).join(fs::read_link(&path)?);
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => return Ok(Ok(path)),
        }
    }
    Err(io::Error::other("its links lead to one another without an end"))
}

/// The links there lead to open files, whatever they say.
fn is_of_processes(path: &Path) -> bool {
    fs::canonicalize(parent(path)).is_ok_and(|folder| folder.starts_with("/proc"))
}

/// Whether another user can have put something into a folder.
fn is_open_to_others(folder: &Metadata) -> bool {
    !is_trusted(folder.uid()) || folder.mode() & GROUP_OR_OTHERS_WRITE != 0
}

/// Whether all users can put something into a folder.
pub fn is_open_to_all(folder: &Path) -> io::Result<bool> {
    Ok(fs::metadata(folder)?.mode() & OTHERS_WRITE != 0)
}

/// Whether what is there already can be written to beside others: this user, the administrator or the owner of the
/// folder around made it, and a file has no other name.
fn judge_shared(there: &Metadata, around: &Metadata) -> Result<(), NotOwn> {
    if !is_open_to_others(around) {
        return Ok(());
    }
    if !is_trusted(there.uid()) && there.uid() != around.uid() {
        return Err(NotOwn::Of(there.uid()));
    }
    match there.nlink() {
        names if names > 1 && there.is_file() => Err(NotOwn::Names(names)),
        _ => Ok(()),
    }
}

/// Whether a folder is this user's own, and no other can write to it.
pub fn expect_own_folder(path: &Path) -> Owned<()> {
    judge_folder(path, GROUP_OR_OTHERS_WRITE)
}

/// The same, but that the group may write to it, where the user lets it do so with all that is new.
pub fn expect_own_output(path: &Path) -> Owned<()> {
    judge_folder(path, OTHERS_WRITE)
}

fn judge_folder(path: &Path, closed: u32) -> Owned<()> {
    let there = path.symlink_metadata()?;
    if there.is_symlink() {
        return Ok(Err(NotOwn::Link));
    }
    if !there.is_dir() {
        return Ok(Err(NotOwn::OtherKind));
    }
    Ok(judge(&there, closed, path))
}

/// What in a folder of this user's own is another's, with where: before it was closed to others, they may have left
/// something there.
pub fn find_of_others(folder: &Path) -> io::Result<Option<(PathBuf, NotOwn)>> {
    let (mut shown, mut folders) = (None, vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let there = match path.symlink_metadata() {
                // It went meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other?,
            };
            if ShownOwner::usual().judge(&there, 0).is_err() {
                let shown = shown.get_or_insert_with(|| ShownOwner::tried(&folder));
                if let Err(why) = shown.judge(&there, 0) {
                    return Ok(Some((path, why)));
                }
            }
            if there.is_file() && there.nlink() > 1 {
                return Ok(Some((path, NotOwn::Names(there.nlink()))));
            }
            if there.is_dir() {
                folders.push(path);
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
