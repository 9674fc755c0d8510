//! Making what is not there: a name that leads elsewhere is no new one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The folder that a path lies in.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

pub(crate) fn to_create(private: bool) -> OpenOptions {
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
