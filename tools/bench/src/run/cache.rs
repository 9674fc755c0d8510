//! The page cache: block files all in it, or out of it, and which of the two it was.
//!
//! Both are only wishes to the system, so afterwards the files are asked: a read that must not wait
//! for the disk succeeds exactly where the page is in memory. Where a system cannot be asked, the
//! share is unknown and said so.

use super::error::{At, RunError};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Pages asked for in each file.
const PROBES: u64 = 256;

/// How the files lay when runs began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageCache {
    /// Read once before.
    Warm,
    /// Dropped before every run.
    Dropped,
}

/// Reads all files, so that they are in memory if they fit.
pub(super) fn warm(files: &[PathBuf]) -> Result<(), RunError> {
    let mut buffer = vec![0; 1 << 20];
    for path in files {
        let mut file = File::open(path).at(path)?;
        while file.read(&mut buffer).at(path)? > 0 {}
    }
    Ok(())
}

/// Makes the system forget all files, or says that it doesn't.
pub(super) fn drop_files(files: &[PathBuf]) -> Result<(), RunError> {
    forget_all(files)?;
    let share = cached_share(files)?;
    // Asking makes the system read ahead.
    forget_all(files)?;
    match share {
        Some(share) if share > 0.1 => Err(RunError::Usage(format!(
            "the system was told to drop the block files from the page cache but kept {:.0} % of \
             them: run without --cold, or put them on another file system",
            100.0 * share
        ))),
        _ => Ok(()),
    }
}

fn forget_all(files: &[PathBuf]) -> Result<(), RunError> {
    for path in files {
        let file = File::open(path).at(path)?;
        // Pages that are not yet on the disk are kept.
        file.sync_all().at(path)?;
        forget(&file, path)?;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn forget(file: &File, path: &Path) -> Result<(), RunError> {
    rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(std::io::Error::from)
        .at(path)
}

#[cfg(not(target_os = "linux"))]
fn forget(_: &File, _: &Path) -> Result<(), RunError> {
    Err(RunError::Usage(
        "this system cannot drop files from its page cache: run without --cold".to_owned(),
    ))
}

/// Which part of the files' pages is in memory, by samples; none where the system does not tell.
/// Pages around those asked for may be read.
#[cfg(target_os = "linux")]
pub(super) fn cached_share(files: &[PathBuf]) -> Result<Option<f64>, RunError> {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    use std::io::IoSliceMut;
    let (mut inside, mut asked) = (0u64, 0u64);
    for path in files {
        let file = File::open(path).at(path)?;
        let length = file.metadata().at(path)?.len();
        for probe in 0..PROBES.min(length) {
            let place = length / PROBES.min(length) * probe;
            let mut byte = [0];
            asked += 1;
            match preadv2(&file, &mut [IoSliceMut::new(&mut byte)], place, ReadWriteFlags::NOWAIT) {
                Ok(_) => inside += 1,
                Err(Errno::AGAIN) => {}
                Err(_) => return Ok(None),
            }
        }
    }
    Ok((asked > 0).then(|| inside as f64 / asked as f64))
}

/// Other systems do not tell.
#[cfg(not(target_os = "linux"))]
pub(super) fn cached_share(_: &[PathBuf]) -> Result<Option<f64>, RunError> {
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; 3 << 20]).unwrap();
        let files = [path];
        warm(&files).unwrap();
        assert_eq!(cached_share(&files).unwrap().unwrap_or(1.0), 1.0);
        let gone = [folder.path().join("gone")];
        assert!(warm(&gone).is_err() && cached_share(&gone).is_err() && drop_files(&gone).is_err());
        assert_eq!(cached_share(&[]).unwrap(), None);
    }

    #[test]
    fn dropping_is_done_or_refused_but_never_pretended() {
        let folder = tempfile::tempdir().unwrap();
        let files = [folder.path().join("file")];
        std::fs::write(&files[0], vec![1; 3 << 20]).unwrap();
        match drop_files(&files) {
            Ok(()) => assert!(cached_share(&files).unwrap().is_none_or(|share| share <= 0.1)),
            // A file system in memory keeps its files there.
            Err(error) => assert!(error.to_string().contains("--cold"), "{error}"),
        }
    }
}
