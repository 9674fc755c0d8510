//! [`Input`]: a file of hints or a snapshot as people have it, which may come through a pipe or be compressed.
//!
//! Runs read such a file in many places and more than once. So what is no plain file is unpacked before, into a
//! file that has no name and goes with the program, however that ends. How large it becomes the room on the disk
//! bounds, and nothing else can: memory holds a part of it at a time.

mod formats;
mod source;

use crate::failure::{Failure, IO};
use apus_datadir::free_bytes;
use apus_storage::create_private_file;
use formats::Packing;
use source::Source;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// After so many bytes it is looked whether the disk still has room.
const LOOK_BYTES: u64 = 16 << 20;

/// So much is left to others of a disk, at most; of one that has less than twenty times as much, a twentieth.
const RESERVE_BYTES: u64 = 1 << 30;

/// A file that a command line names, and what is read in its stead.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    named: PathBuf,
    unpacked: Arc<OnceLock<Unpacked>>,
}

impl From<PathBuf> for Input {
    fn from(named: PathBuf) -> Self {
        Self { named, unpacked: Arc::default() }
    }
}

impl From<OsString> for Input {
    fn from(named: OsString) -> Self {
        PathBuf::from(named).into()
    }
}

impl From<&str> for Input {
    fn from(named: &str) -> Self {
        PathBuf::from(named).into()
    }
}

impl Input {
    /// As the user calls it.
    pub(crate) fn named(&self) -> &Path {
        &self.named
    }

    /// What is read, once it is plain.
    pub(crate) fn path(&self) -> &Path {
        self.unpacked.get().map_or(&self.named, |unpacked| &unpacked.path)
    }

    /// Whether it can be read as it is, and as often as need be. Of a pipe nothing is read.
    pub(crate) fn is_plain(&self) -> Result<bool, Failure> {
        if self.unpacked.get().is_some() {
            return Ok(true);
        }
        let path = &self.named;
        let kind = fs::metadata(path).map_err(|error| Failure::opening(path, &error))?;
        if kind.is_dir() {
            return Err(Failure::io(path, "it is a folder: name a file"));
        }
        if !kind.is_file() {
            return Ok(false);
        }
        let mut first = Vec::new();
        let file = File::open(path).map_err(|error| Failure::opening(path, &error))?;
        let read = file.take(Packing::MARK_BYTES as u64).read_to_end(&mut first);
        read.map_err(|error| Failure::io(path, error))?;
        Ok(Packing::of(&first).is_none())
    }

    /// Unpacks what is not plain, on the disk of a folder.
    pub(crate) fn make_plain(&self, near: &Path, interrupt: &AtomicBool) -> Result<(), Failure> {
        if self.is_plain()? {
            return Ok(());
        }
        let unpacked = Unpacked::new(&self.named, place(near), interrupt)?;
        // Nobody else sets it: it is set before there are threads.
        let _ = self.unpacked.set(unpacked);
        Ok(())
    }

    /// Reads it once from start to end, unpacked and without a file in between.
    pub(crate) fn stream<T>(
        &self,
        interrupt: &AtomicBool,
        read: impl FnOnce(BufReader<Box<dyn Read + '_>>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let named = self.path();
        let mut source = Source::open(named, interrupt);
        let packing = source
            .packing()
            .map_err(|error| unless_stopped(interrupt, Failure::io(named, error)))?;
        let result = read(BufReader::with_capacity(1 << 20, formats::reader(packing, &mut source)));
        result.map_err(|failure| match packing {
            _ if failure.code != IO => failure,
            Some(packing) => {
                unless_stopped(interrupt, failed(named, packing, &source, failure.message))
            }
            None => unless_stopped(interrupt, failure),
        })
    }
}

/// What a file of the user's was unpacked into.
#[derive(Debug)]
struct Unpacked {
    path: PathBuf,
    /// Keeps it while there is no name of it.
    file: File,
    /// The name, where the system cannot do without.
    name: Option<PathBuf>,
}

impl Unpacked {
    fn create(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(format!(".apus-{}.unpacked", std::process::id()));
        let making = |error| Failure::making(&path, &error, "name another --workdir");
        let file = create_private_file(&path).map_err(making)?;
        let by_number = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        if !by_number.exists() {
            return Ok(Self { path: path.clone(), file, name: Some(path) });
        }
        fs::remove_file(&path).map_err(making)?;
        Ok(Self { path: by_number, file, name: None })
    }

    fn new(named: &Path, folder: &Path, interrupt: &AtomicBool) -> Result<Self, Failure> {
        let unpacked = Self::create(folder)?;
        let mut source = Source::open(named, interrupt);
        let packing = source
            .packing()
            .map_err(|error| unless_stopped(interrupt, Failure::io(named, error)))?;
        let mut target = Target::new(&unpacked.file, folder, interrupt)?;
        let copied = io::copy(&mut formats::reader(packing, &mut source), &mut target);
        let failure = match copied {
            Ok(_) => return Ok(unpacked),
            Err(error) if target.failed => {
                let by = packing.map_or_else(String::new, |it| {
                    format!(" (or unpack it: {})", it.command(named))
                });
                let what = format!(
                    "{error}, after {} bytes of {}: name a folder with more room by --workdir, or by TMPDIR where \
                     a command has no such option{by}",
                    target.written,
                    named.display()
                );
                Failure::io(folder, what)
            }
            Err(error) => match packing {
                Some(packing) => failed(named, packing, &source, error.to_string()),
                None => Failure::io(named, error),
            },
        };
        Err(unless_stopped(interrupt, failure))
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // What is left there is no harm.
            let _ = fs::remove_file(name);
        }
    }
}

/// A failure; a run that was interrupted has no other.
fn unless_stopped(interrupt: &AtomicBool, failure: Failure) -> Failure {
    if interrupt.load(Ordering::Relaxed) { Failure::interrupted() } else { failure }
}

/// Why something cannot be unpacked.
fn failed(named: &Path, packing: Packing, source: &Source<'_>, what: String) -> Failure {
    match source.failed() {
        true => Failure::io(named, what),
        false => Failure::wrong(format!(
            "{}: what begins like {packing} cannot be unpacked: {what}. It is damaged or cut short: get it again, \
             or see what `{}` makes of it",
            named.display(),
            packing.command(named)
        )),
    }
}

/// The folder, or the first one around it that is there.
fn place(near: &Path) -> &Path {
    let mut around = near.ancestors().filter(|folder| !folder.as_os_str().is_empty());
    around.find(|folder| folder.is_dir()).unwrap_or(Path::new("."))
}

/// A file that grows while its disk has room.
struct Target<'a> {
    file: &'a File,
    folder: &'a Path,
    interrupt: &'a AtomicBool,
    written: u64,
    look_at: u64,
    reserve: u64,
    failed: bool,
}

impl<'a> Target<'a> {
    fn new(file: &'a File, folder: &'a Path, interrupt: &'a AtomicBool) -> Result<Self, Failure> {
        let free = free_bytes(folder).map_err(|error| Failure::io(folder, error))?;
        let reserve = RESERVE_BYTES.min(free / 20);
        Ok(Self { file, folder, interrupt, written: 0, look_at: 0, reserve, failed: false })
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written >= self.look_at {
            if free_bytes(self.folder)? < self.reserve.saturating_add(LOOK_BYTES) {
                return Err(io::Error::new(io::ErrorKind::StorageFull, "the disk is nearly full"));
            }
            self.look_at = self.written + LOOK_BYTES;
        }
        self.file.write(bytes)
    }
}

impl Write for Target<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.interrupt.load(Ordering::Relaxed) {
            return Err(io::Error::other("interrupted"));
        }
        match self.put(bytes) {
            Ok(count) => {
                self.written += count as u64;
                Ok(count)
            }
            Err(error) => {
                self.failed |= error.kind() != io::ErrorKind::Interrupted;
                Err(error)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
