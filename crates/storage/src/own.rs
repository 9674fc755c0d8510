//! Creates files and folders, and opens files for writing; no other code in the program does. Before this
//! process writes to a file or folder, or trusts it, it checks the owner ([`OwnerError`]).
//!
//! Creating a file never follows a link, and never writes to a file that another user put there. A file of an
//! earlier start is reused only if it is a plain file of ours with no other name. Nothing here waits for a
//! pipe, except [`open_to_append`].
//!
//! In a folder that others can write to, a name may already exist: a link to a file of ours, a second name of
//! such a file, or a folder that its creator can still write to. So only files of ours are reused. The
//! system's administrator is trusted, no matter which user runs this program.
//!
//! Some file systems have no owners and modes, and show all files alike. On these, a file counts as ours if
//! it looks like a new file of ours. This does not help against a user who can change the names on the path
//! to a folder.

use rustix::fs::{OFlags, fstatfs};
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// How often to try opening a file that other processes create and remove in the meantime.
const TRIES: u32 = 100;

/// Returns the folder that contains a path.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn to_create(private: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    // The system removes the bits of the user's umask.
    options.create_new(true).mode(if private { 0o600 } else { 0o666 });
    options
}

/// Creates a new file, with the user's default permissions. Fails if it exists.
pub fn create_file(path: &Path) -> io::Result<File> {
    to_create(false).write(true).open(path)
}

/// Creates a new file for its owner alone. Fails if it exists.
pub fn create_private_file(path: &Path) -> io::Result<File> {
    to_create(true).write(true).open(path)
}

/// Creates a new folder that only its owner can read. Fails if it exists.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)
}

/// Makes up a name for a temporary file that tests the abilities of a folder.
pub(crate) fn probe_name(folder: &Path) -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    folder.join(format!(".apus-{}-{number}.incomplete", std::process::id()))
}

/// Options for existing files: do not follow a link, do not wait for a pipe.
fn of_existing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    options
}

/// The draft of a file, locked until it is dropped. A child process that is just starting holds a copy of the open file, so
/// closing it would not end the lock.
#[derive(Debug)]
pub(crate) struct DraftFile(File);

impl DraftFile {
    /// Makes the bytes written so far durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

impl Write for DraftFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Drop for DraftFile {
    fn drop(&mut self) {
        // Some disks have no locks.
        let _ = self.0.unlock();
    }
}

/// Creates an empty file, replacing a file that an earlier start of ours left. Fails if another process, which has not
/// closed it yet, created it in this way: it would give its name to our unfinished file.
pub(crate) fn replace_file(path: &Path) -> io::Result<DraftFile> {
    expect_unlocked(path)?;
    remove_own_file(path)?;
    let file = create_file(path)?;
    if is_remote(&file) {
        return Ok(DraftFile(file));
    }
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => return Err(in_use()),
        // Some disks have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => {}
    }
    // Another process may have replaced the file before it was locked.
    match path.symlink_metadata() {
        Ok(there) if is_same(&file.metadata()?, &there) => Ok(DraftFile(file)),
        _ => Err(in_use()),
    }
}

/// Whether a file is on another machine's disk. A lock there would keep this process, too, from opening the file a
/// second time (flock(2), "CIFS details" and "NFS details").
fn is_remote(file: &File) -> bool {
    // Of NFS, SMB, CIFS and SMB 2 (statfs(2)).
    let remote = [0x6969_u32, 0x517b, 0xff53_4d42, 0xfe53_4d42];
    fstatfs(file).is_ok_and(|disk| remote.contains(&(disk.f_type as u32)))
}

/// The error for a draft that another run holds.
fn in_use() -> io::Error {
    io::Error::new(
        ErrorKind::ResourceBusy,
        "another run is writing this file: wait until it ends, or use another output",
    )
}

/// Removes the draft of a file that this process or an earlier start began; a missing one is not an error.
pub fn remove_draft(path: &Path) -> io::Result<()> {
    expect_unlocked(path)?;
    remove_own_file(path)
}

/// Fails if a process holds the file that [`replace_file`] created.
fn expect_unlocked(path: &Path) -> io::Result<()> {
    let open = of_existing().read(true).open(path);
    match open.map(|file| file.try_lock()) {
        Ok(Err(TryLockError::WouldBlock)) => Err(in_use()),
        // Other errors are reported when the file is removed or created.
        _ => Ok(()),
    }
}

/// Like [`replace_file`], for its owner alone.
pub(crate) fn replace_private_file(path: &Path) -> io::Result<File> {
    remove_own_file(path)?;
    create_private_file(path)
}

/// Removes a file of ours; a missing one is not an error.
fn remove_own_file(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        // Let the system report the error.
        Ok(there) if there.is_dir() => fs::remove_file(path),
        Ok(there) => {
            check_file(path, &there)?;
            fs::remove_file(path)
        }
    }
}

/// Opens an existing file of ours for reading and writing.
pub fn open_own_file(path: &Path) -> io::Result<File> {
    let file = of_existing().read(true).write(true).open(path).map_err(explain_link)?;
    check_file(path, &file.metadata()?)?;
    Ok(file)
}

/// Opens a file of ours for reading and writing. Creates a missing file with the user's default permissions
/// or, if `private`, for its owner alone.
pub fn open_or_create(path: &Path, private: bool) -> io::Result<File> {
    for _ in 0..TRIES {
        match to_create(private).read(true).write(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            other => return other,
        }
        match open_own_file(path) {
            // Another process has just removed the file.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => return other,
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Opens an existing file for locking, regardless of its owner.
pub fn open_to_lock(path: &Path) -> io::Result<File> {
    let file = of_existing().write(true).open(path).map_err(explain_link)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(OwnerError::Special.into()),
    }
}

/// Opens a file for reading. Follows links, but refuses a pipe.
pub(crate) fn open_to_read(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    match file.metadata()?.file_type() {
        kind if kind.is_file() || kind.is_dir() => Ok(file),
        _ => Err(OwnerError::Special.into()),
    }
}

/// Opens a file for appending; creates a missing file. The file may be a pipe or a terminal, and the path may
/// contain links. But in a folder that others can write to, links must belong to this user or the
/// administrator, and an existing file must belong to one of these or to the folder's owner.
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
        check_shared(&there, &fs::metadata(parent(&path))?)?;
        let mut options = OpenOptions::new();
        options.append(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(&path)?;
        if is_same(&file.metadata()?, &there) {
            return Ok(file);
        }
    }
    Err(io::Error::other("the file keeps changing while it is being opened"))
}

fn is_same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// The error with which the system refuses to follow a link: "too many links".
fn explain_link(error: io::Error) -> io::Error {
    match rustix::io::Errno::from_io_error(&error) {
        Some(rustix::io::Errno::LOOP) => OwnerError::Link.into(),
        _ => error,
    }
}

/// Creates a folder that others cannot read, and its parents with the system's default permissions. An
/// existing folder must belong to this user and not be writable by others; a link of this user may lead to
/// it.
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

/// Creates a folder for an output, with the user's default permissions but never writable by others.
pub fn create_output_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o775).create(path)
}

/// The bit that lets others write.
const OTHERS_WRITE: u32 = 0o002;

/// The bits that let the group or others write.
const GROUP_OR_OTHERS_WRITE: u32 = 0o022;

/// The longest chain of links to follow, the same as in operating systems.
const LINKS_MAX: u32 = 40;

/// Why a file or folder does not count as this user's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerError {
    /// Another user made the link.
    LinkOf(u32),
    /// A link in a place where none is allowed.
    Link,
    /// Another user owns it.
    Of(u32),
    /// It is the user's own, but the group or others can write to it; holds the mode.
    OpenTo(u32),
    /// It has several names; holds their number.
    Names(u64),
    /// It is neither a file nor a folder.
    Special,
    /// It is a file instead of a folder, or a folder instead of a file.
    OtherKind,
}

impl Display for OwnerError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::LinkOf(user) => write!(f, "it is a link that user {user} made"),
            Self::Link => f.write_str("it is a link"),
            Self::Of(user) => write!(f, "it belongs to user {user}, not to user {}", user_id()),
            Self::OpenTo(mode) => write!(f, "other users can write to it (mode {mode:03o})"),
            Self::Names(names) => {
                write!(f, "it has {names} names (hard links), so another program may use it")
            }
            Self::Special => f.write_str("it is neither a file nor a folder"),
            Self::OtherKind => {
                f.write_str("it is a file instead of a folder, or a folder instead of a file")
            }
        }
    }
}

impl From<OwnerError> for io::Error {
    fn from(why: OwnerError) -> Self {
        io::Error::other(format!("{why}: remove it, or choose another path"))
    }
}

/// The result of an ownership check, or the error that prevented it.
pub type Ownership<T> = io::Result<Result<T, OwnerError>>;

/// Returns the user who owns files made by this process.
fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns whether this process trusts this user's files: those of its own user and of the administrator.
fn is_trusted(user: u32) -> bool {
    [0, user_id()].contains(&user)
}

/// How a file system shows a private file of this process.
struct ShownOwner {
    user: u32,
    /// The group's and others' write permissions that it shows, regardless of the requested mode.
    open: u32,
}

impl ShownOwner {
    /// The values on a file system with owners and modes.
    fn usual() -> Self {
        Self { user: user_id(), open: 0 }
    }

    /// Creates a test file in `folder` and reads its metadata, through the open file because the folder's
    /// owner could replace the name.
    fn probe(folder: &Path) -> Self {
        let name = probe_name(folder);
        let Ok(file) = create_private_file(&name) else { return Self::usual() };
        let shown = file.metadata().map_or_else(
            |_| Self::usual(),
            |made| Self { user: made.uid(), open: made.mode() & GROUP_OR_OTHERS_WRITE },
        );
        let _ = fs::remove_file(&name);
        shown
    }

    fn check(&self, there: &Metadata, closed: u32) -> Result<(), OwnerError> {
        if there.uid() != self.user {
            return Err(OwnerError::Of(there.uid()));
        }
        match there.mode() & closed & !self.open {
            0 => Ok(()),
            _ => Err(OwnerError::OpenTo(there.mode() & 0o777)),
        }
    }
}

/// Compares with the look of our own files in `folder`. Creates a test file only if something seems to belong
/// to another user.
fn check(there: &Metadata, closed: u32, folder: &Path) -> Result<(), OwnerError> {
    let usual = ShownOwner::usual().check(there, closed);
    usual.or_else(|_| ShownOwner::probe(folder).check(there, closed))
}

/// Checks that a file to be written or removed is a plain file of this user, given its metadata `there`.
fn check_file(path: &Path, there: &Metadata) -> Result<(), OwnerError> {
    match there.file_type() {
        kind if kind.is_symlink() => return Err(OwnerError::Link),
        kind if kind.is_dir() => return Err(OwnerError::OtherKind),
        kind if !kind.is_file() => return Err(OwnerError::Special),
        _ => {}
    }
    check(there, 0, parent(path))?;
    match there.nlink() {
        0 | 1 => Ok(()),
        names => Err(OwnerError::Names(names)),
    }
}

/// Checks that an existing file at a draft's path can be replaced: it must be plain and this user's own.
/// Accepts a folder, because creating the draft reports it.
pub fn expect_own_draft(path: &Path) -> Ownership<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Ok(())),
        Err(error) => Err(error),
        Ok(there) if there.is_dir() => Ok(Ok(())),
        Ok(there) => Ok(check_file(path, &there)),
    }
}

/// Follows links at the last name of a path if this user or the administrator made them; returns the final
/// path.
pub fn follow_own_links(path: &Path) -> Ownership<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match path.symlink_metadata() {
            Ok(there) if there.is_symlink() && !is_trusted(there.uid()) => {
                return Ok(Err(OwnerError::LinkOf(there.uid())));
            }
            Ok(there) if there.is_symlink() && !is_of_processes(&path) => {
                path = parent(&path).join(fs::read_link(&path)?);
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => return Ok(Ok(path)),
        }
    }
    Err(io::Error::other("too many links, or links in a circle"))
}

/// Links in `/proc` lead to open files, regardless of the path they show.
fn is_of_processes(path: &Path) -> bool {
    fs::canonicalize(parent(path)).is_ok_and(|folder| folder.starts_with("/proc"))
}

/// Returns whether another user may have put something into a folder.
fn is_open_to_others(folder: &Metadata) -> bool {
    !is_trusted(folder.uid()) || folder.mode() & GROUP_OR_OTHERS_WRITE != 0
}

/// Returns whether all users can put something into a folder.
pub fn is_open_to_all(folder: &Path) -> io::Result<bool> {
    Ok(fs::metadata(folder)?.mode() & OTHERS_WRITE != 0)
}

/// Checks that an existing file in a folder shared with others can be written to: its owner must be this
/// user, the administrator or the folder's owner, and a plain file must have no other name.
fn check_shared(there: &Metadata, around: &Metadata) -> Result<(), OwnerError> {
    if !is_open_to_others(around) {
        return Ok(());
    }
    if !is_trusted(there.uid()) && there.uid() != around.uid() {
        return Err(OwnerError::Of(there.uid()));
    }
    match there.nlink() {
        names if names > 1 && there.is_file() => Err(OwnerError::Names(names)),
        _ => Ok(()),
    }
}

/// Checks that a folder is this user's own, and that no other user can write to it.
pub fn expect_own_folder(path: &Path) -> Ownership<()> {
    check_folder(path, GROUP_OR_OTHERS_WRITE)
}

/// Like [`expect_own_folder`], but allows the group to write to it, because the user's umask may allow that
/// for all new files.
pub fn expect_own_output(path: &Path) -> Ownership<()> {
    check_folder(path, OTHERS_WRITE)
}

fn check_folder(path: &Path, closed: u32) -> Ownership<()> {
    let there = path.symlink_metadata()?;
    if there.is_symlink() {
        return Ok(Err(OwnerError::Link));
    }
    if !there.is_dir() {
        return Ok(Err(OwnerError::OtherKind));
    }
    Ok(check(&there, closed, path))
}

/// Finds an entry of another user in a folder of this user, and returns its path: others may have created it
/// before the folder was closed to them.
pub fn find_of_others(folder: &Path) -> io::Result<Option<(PathBuf, OwnerError)>> {
    let (mut shown, mut folders) = (None, vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let there = match path.symlink_metadata() {
                // Another process has just removed it.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other?,
            };
            if ShownOwner::usual().check(&there, 0).is_err() {
                let shown = shown.get_or_insert_with(|| ShownOwner::probe(&folder));
                if let Err(why) = shown.check(&there, 0) {
                    return Ok(Some((path, why)));
                }
            }
            if there.is_file() && there.nlink() > 1 {
                return Ok(Some((path, OwnerError::Names(there.nlink()))));
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
