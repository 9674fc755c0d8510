//! [`InputFile`]: a file of hints or a snapshot as people have it, which may come through a pipe or be compressed.
//!
//! Runs read such a file in many places and more than once. So what is no plain file is unpacked before, into a
//! file that has no name and goes with the program, however that ends. How large it becomes the room on the disk
//! bounds, and nothing else can: memory holds a part of it at a time.
//!
//! A pipe that nobody writes to holds up whoever opens or reads it, for good. So a thread of its own does both
//! ([`PipeSource`]), and is left alone when the user wants an end.

use crate::failure::{Failure, IO};
use apus_datadir::free_bytes;
use apus_storage::create_private_file;
use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::ffi::OsString;
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// After so many bytes it is looked whether the disk still has room.
const LOOK_BYTES: u64 = 16 << 20;

/// So much is left to others of a disk, at most; of one that has less than twenty times as much, a twentieth.
const RESERVE_BYTES: u64 = 1 << 30;

/// A file that a command line names, and what is read in its stead.
#[derive(Debug, Clone)]
pub(crate) struct InputFile {
    named: PathBuf,
    unpacked: Arc<OnceLock<Unpacked>>,
}

impl From<PathBuf> for InputFile {
    fn from(named: PathBuf) -> Self {
        Self { named, unpacked: Arc::default() }
    }
}

impl From<OsString> for InputFile {
    fn from(named: OsString) -> Self {
        PathBuf::from(named).into()
    }
}

impl From<&str> for InputFile {
    fn from(named: &str) -> Self {
        PathBuf::from(named).into()
    }
}

impl InputFile {
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
        let mut source = PipeSource::open(named, interrupt);
        let packing = source.packing(named)?;
        let result = read(BufReader::with_capacity(1 << 20, reader(packing, &mut source)));
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
        let mut source = PipeSource::open(named, interrupt);
        let packing = source.packing(named)?;
        let mut target = Target::new(&unpacked.file, folder, interrupt)?;
        let copied = io::copy(&mut reader(packing, &mut source), &mut target);
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
fn failed(named: &Path, packing: Packing, source: &PipeSource<'_>, what: String) -> Failure {
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

/// The memory that a decoder may take for what it looks back to: what `zstd -d` takes, and twice what `xz -9`
/// needs.
const MEMORY_BYTES: u32 = 128 << 20;

/// A form of compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    Gzip,
    Xz,
    Zstd,
}

impl Packing {
    /// So many first bytes tell.
    const MARK_BYTES: usize = 6;

    fn of(first: &[u8]) -> Option<Self> {
        let marks: [(&[u8], Self); 3] = [
            (&[0x1f, 0x8b, 8], Self::Gzip),
            (&[0xfd, b'7', b'z', b'X', b'Z', 0], Self::Xz),
            (&[0x28, 0xb5, 0x2f, 0xfd], Self::Zstd),
        ];
        marks.into_iter().find(|(mark, _)| first.starts_with(mark)).map(|(_, packing)| packing)
    }

    /// What unpacks a file otherwise.
    fn command(self, file: &Path) -> String {
        let program = match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        };
        format!("{program} -d {}", file.display())
    }
}

impl Display for Packing {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        })
    }
}

/// Reads what a source holds.
fn reader<'s>(packing: Option<Packing>, source: &'s mut PipeSource<'_>) -> Box<dyn Read + 's> {
    match packing {
        None => Box::new(source),
        Some(Packing::Gzip) => Box::new(MultiGzDecoder::new(source)),
        Some(Packing::Xz) => Box::new(XzReader::new_mem_limit(source, true, MEMORY_BYTES >> 10)),
        Some(Packing::Zstd) => Box::new(Zstd::new(source)),
    }
}

/// Frames of zstd, one behind the other. Those for other programs are skipped.
struct Zstd<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MEMORY_BYTES.into());
        Self { source, decoder, in_frame: false }
    }

    /// Goes to the next frame; `false` where there is none.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut frame = (&mut self.source).take(length.into());
                    if io::copy(&mut frame, &mut io::sink())? < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(_) => return Err(io::Error::other("the head of a frame cannot be read")),
            }
        }
        Ok(false)
    }

    fn end(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let stated = self.decoder.get_checksum_from_data();
        match stated.is_some() && stated != self.decoder.get_calculated_checksum() {
            true => Err(io::Error::new(io::ErrorKind::InvalidData, "its checksum is another")),
            false => Ok(()),
        }
    }
}

/// The library's own words are for who works on it.
fn no_block() -> io::Error {
    io::Error::other("it ends within a block, or a block is damaged")
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame && !self.begin()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, one).map_err(|_| no_block())?;
            }
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(buffer);
            }
            self.end()?;
        }
    }
}

/// Bytes read at once.
const CHUNK: usize = 1 << 16;

/// Chunks that wait.
const WAITING: usize = 4;

/// So often it is looked whether the user wants an end.
const LOOK: Duration = Duration::from_millis(50);

/// What a file gives.
struct PipeSource<'a> {
    /// One without bytes is the end.
    chunks: Receiver<io::Result<Vec<u8>>>,
    chunk: Vec<u8>,
    at: usize,
    ended: bool,
    failed: bool,
    interrupt: &'a AtomicBool,
}

impl<'a> PipeSource<'a> {
    fn open(path: &Path, interrupt: &'a AtomicBool) -> Self {
        let (sender, chunks) = sync_channel(WAITING);
        let path = path.to_owned();
        // Where there is no thread its end of the channel is gone, which is told when something is read.
        let _ = std::thread::Builder::new().name("input".to_owned()).spawn(move || {
            if let Err(error) = give(&path, &sender) {
                let _ = sender.send(Err(error));
            }
        });
        Self { chunks, chunk: Vec::new(), at: 0, ended: false, failed: false, interrupt }
    }

    /// How it is packed, if it is, by the name of the file.
    fn packing(&mut self, named: &Path) -> Result<Option<Packing>, Failure> {
        let stopped = self.interrupt;
        let failed = |error| unless_stopped(stopped, Failure::io(named, error));
        while self.chunk.len() - self.at < Packing::MARK_BYTES && !self.ended {
            let more = self.next().map_err(failed)?;
            self.chunk.extend_from_slice(&more);
        }
        Ok(Packing::of(&self.chunk[self.at..]))
    }

    /// Whether the system failed.
    fn failed(&self) -> bool {
        self.failed
    }

    fn next(&mut self) -> io::Result<Vec<u8>> {
        let next = loop {
            if self.interrupt.load(Ordering::Relaxed) {
                break Err(io::Error::other("interrupted"));
            }
            match self.chunks.recv_timeout(LOOK) {
                Ok(next) => break next,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    break Err(io::Error::other("the thread that reads it is gone"));
                }
            }
        };
        match &next {
            Ok(chunk) => self.ended |= chunk.is_empty(),
            Err(_) => self.failed = true,
        }
        next
    }
}

/// Reads a file and gives it on, until nobody wants more.
fn give(path: &Path, sender: &SyncSender<io::Result<Vec<u8>>>) -> io::Result<()> {
    let mut file = File::open(path)?;
    loop {
        let mut chunk = vec![0; CHUNK];
        let count = match file.read(&mut chunk) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        chunk.truncate(count);
        if sender.send(Ok(chunk)).is_err() || count == 0 {
            return Ok(());
        }
    }
}

impl BufRead for PipeSource<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.chunk.len() && !self.ended {
            self.chunk = self.next()?;
            self.at = 0;
        }
        Ok(&self.chunk[self.at..])
    }

    fn consume(&mut self, count: usize) {
        self.at = (self.at + count).min(self.chunk.len());
    }
}

impl Read for PipeSource<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        self.consume(count);
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
