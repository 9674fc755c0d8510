//! [`InputFile`]: a hints or snapshot file, which may be a pipe or compressed.
//!
//! A sync reads such a file repeatedly and in many places. So it first unpacks a pipe or compressed file into an
//! unnamed file, which disappears when the program ends for any reason. Only the free space on the disk bounds its
//! size: memory holds only a part of it at a time.
//!
//! Opening or reading a pipe without a writer blocks forever. So a separate thread does both ([`PipeSource`]), and the
//! program abandons it when the user interrupts.

use crate::failure::{Failure, IO};
use apus_datadir::free_bytes;
use apus_storage::create_private_file;
use apus_sync::numbers::bytes;
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

/// Bytes to write between checks of the free space.
const LOOK_BYTES: u64 = 16 << 20;

/// Maximum free space to leave for other programs, in bytes. With less than twenty times as much free, a twentieth of
/// the free space.
const RESERVE_BYTES: u64 = 1 << 30;

/// A file from the command line, and its unpacked copy if necessary.
#[derive(Debug, Clone)]
pub(crate) struct InputFile {
    named: PathBuf,
    unpacked: Arc<OnceLock<UnpackedFile>>,
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
    /// Returns the path that the user gave.
    pub(crate) fn named(&self) -> &Path {
        &self.named
    }

    /// Returns the path to read, after [`make_plain`](Self::make_plain).
    pub(crate) fn path(&self) -> &Path {
        self.unpacked.get().map_or(&self.named, |unpacked| &unpacked.path)
    }

    /// Whether the file can be read directly and repeatedly. Does not read from a pipe.
    pub(crate) fn is_plain(&self) -> Result<bool, Failure> {
        if self.unpacked.get().is_some() {
            return Ok(true);
        }
        let path = &self.named;
        let kind = fs::metadata(path).map_err(|error| Failure::opening(path, &error))?;
        if kind.is_dir() {
            return Err(Failure::io(path, "this is a folder: give a file"));
        }
        if !kind.is_file() {
            return Ok(false);
        }
        let mut first = Vec::new();
        let file = File::open(path).map_err(|error| Failure::opening(path, &error))?;
        let read = file.take(CompressionFormat::MARK_BYTES as u64).read_to_end(&mut first);
        read.map_err(|error| Failure::io(path, error))?;
        Ok(CompressionFormat::of(&first).is_none())
    }

    /// Unpacks the file if it is not plain, on the disk of the folder `near`.
    pub(crate) fn make_plain(&self, near: &Path, interrupt: &AtomicBool) -> Result<(), Failure> {
        if self.is_plain()? {
            return Ok(());
        }
        let unpacked = UnpackedFile::new(&self.named, place(near), interrupt)?;
        // It cannot be set yet, since no threads exist at this point.
        let _ = self.unpacked.set(unpacked);
        Ok(())
    }

    /// Reads the file once from start to end; unpacks it while reading, without a temporary file.
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

/// The unpacked copy of a file.
#[derive(Debug)]
struct UnpackedFile {
    path: PathBuf,
    /// Open handle that keeps the unnamed file alive.
    file: File,
    /// The file's name, if the system does not support unnamed files.
    name: Option<PathBuf>,
}

impl UnpackedFile {
    fn create(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(format!(".apus-{}.unpacked", std::process::id()));
        let making = |error| Failure::making(&path, &error, "use another --workdir");
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
                    "{error}, after {} of {}: give a folder with more space with --workdir DIR (or TMPDIR, if the \
                     command has no --workdir){by}",
                    bytes(target.written),
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

impl Drop for UnpackedFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // A leftover file does no harm.
            let _ = fs::remove_file(name);
        }
    }
}

/// Returns the failure, or instead "interrupted" if the user interrupted the program.
fn unless_stopped(interrupt: &AtomicBool, failure: Failure) -> Failure {
    if interrupt.load(Ordering::Relaxed) { Failure::interrupted() } else { failure }
}

/// Explains why a file cannot be unpacked.
fn failed(
    named: &Path,
    packing: CompressionFormat,
    source: &PipeSource<'_>,
    what: String,
) -> Failure {
    match source.failed() {
        true => Failure::io(named, what),
        false => Failure::wrong(format!(
            "{}: cannot unpack this {packing} file: {what}. The file is damaged or truncated: get it again, or try \
             `{}`",
            named.display(),
            packing.command(named)
        )),
    }
}

/// Returns the folder, or its nearest ancestor that exists.
fn place(near: &Path) -> &Path {
    let mut around = near.ancestors().filter(|folder| !folder.as_os_str().is_empty());
    around.find(|folder| folder.is_dir()).unwrap_or(Path::new("."))
}

/// A file that grows only while its disk has enough free space.
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

/// Maximum window of a decoder, in bytes: the default of `zstd -d`, and twice the need of `xz -9`.
const MEMORY_BYTES: u32 = 128 << 20;

/// A compression format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CompressionFormat {
    Gzip,
    Xz,
    Zstd,
}

impl CompressionFormat {
    /// Number of leading bytes that identify a format.
    const MARK_BYTES: usize = 6;

    fn of(first: &[u8]) -> Option<Self> {
        let marks: [(&[u8], Self); 3] = [
            (&[0x1f, 0x8b, 8], Self::Gzip),
            (&[0xfd, b'7', b'z', b'X', b'Z', 0], Self::Xz),
            (&[0x28, 0xb5, 0x2f, 0xfd], Self::Zstd),
        ];
        marks.into_iter().find(|(mark, _)| first.starts_with(mark)).map(|(_, packing)| packing)
    }

    /// Returns the command that unpacks a file of this format.
    fn command(self, file: &Path) -> String {
        let program = match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        };
        format!("{program} -d {}", file.display())
    }
}

impl Display for CompressionFormat {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        })
    }
}

/// Wraps a source in the decoder for its format.
fn reader<'s>(
    packing: Option<CompressionFormat>,
    source: &'s mut PipeSource<'_>,
) -> Box<dyn Read + 's> {
    match packing {
        None => Box::new(source),
        Some(CompressionFormat::Gzip) => Box::new(MultiGzDecoder::new(source)),
        Some(CompressionFormat::Xz) => {
            Box::new(XzReader::new_mem_limit(source, true, MEMORY_BYTES >> 10))
        }
        Some(CompressionFormat::Zstd) => Box::new(Zstd::new(source)),
    }
}

/// A decoder for concatenated zstd frames. It skips skippable frames.
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

    /// Starts the next frame; returns false at the end.
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
                Err(_) => return Err(io::Error::other("invalid frame header")),
            }
        }
        Ok(false)
    }

    fn end(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let stated = self.decoder.get_checksum_from_data();
        match stated.is_some() && stated != self.decoder.get_calculated_checksum() {
            true => Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum does not match")),
            false => Ok(()),
        }
    }
}

/// Creates an error that users understand, unlike the library's own messages.
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

/// Bytes per read.
const CHUNK: usize = 1 << 16;

/// Maximum number of queued chunks.
const WAITING: usize = 4;

/// Interval between checks for an interrupt.
const LOOK: Duration = Duration::from_millis(50);

/// The bytes of a file or pipe, which a separate thread reads.
struct PipeSource<'a> {
    /// The chunks in order; an empty chunk marks the end.
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
        // If the thread cannot be started, its end of the channel is closed, which the first read reports.
        let _ = std::thread::Builder::new().name("input".to_owned()).spawn(move || {
            if let Err(error) = send_chunks(&path, &sender) {
                let _ = sender.send(Err(error));
            }
        });
        Self { chunks, chunk: Vec::new(), at: 0, ended: false, failed: false, interrupt }
    }

    /// Detects the compression format, if any. Error messages mention the path `named`.
    fn packing(&mut self, named: &Path) -> Result<Option<CompressionFormat>, Failure> {
        let stopped = self.interrupt;
        let failed = |error| unless_stopped(stopped, Failure::io(named, error));
        while self.chunk.len() - self.at < CompressionFormat::MARK_BYTES && !self.ended {
            let more = self.next().map_err(failed)?;
            self.chunk.extend_from_slice(&more);
        }
        Ok(CompressionFormat::of(&self.chunk[self.at..]))
    }

    /// Whether an error came from reading rather than from decoding.
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
                    break Err(io::Error::other("the thread that reads it has ended"));
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

/// Reads a file and sends its chunks, until the receiver is dropped.
fn send_chunks(path: &Path, sender: &SyncSender<io::Result<Vec<u8>>>) -> io::Result<()> {
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
