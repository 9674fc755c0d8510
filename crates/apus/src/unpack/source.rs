//! [`Source`]: bytes of a file that may never come.
//!
//! A pipe that nobody writes to holds up whoever opens or reads it, for good. So a thread of its own does both,
//! and is left alone when the user wants an end.

use super::formats::Packing;
use std::fs::File;
use std::io::{self, BufRead, ErrorKind, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Bytes read at once.
const CHUNK: usize = 1 << 16;

/// Chunks that wait.
const WAITING: usize = 4;

/// So often it is looked whether the user wants an end.
const LOOK: Duration = Duration::from_millis(50);

/// What a file gives.
pub(super) struct Source<'a> {
    /// One without bytes is the end.
    chunks: Receiver<io::Result<Vec<u8>>>,
    chunk: Vec<u8>,
    at: usize,
    ended: bool,
    failed: bool,
    interrupt: &'a AtomicBool,
}

impl<'a> Source<'a> {
    pub(super) fn open(path: &Path, interrupt: &'a AtomicBool) -> Self {
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

    /// How it is packed, if it is.
    pub(super) fn packing(&mut self) -> io::Result<Option<Packing>> {
        while self.chunk.len() - self.at < Packing::MARK_BYTES && !self.ended {
            let more = self.next()?;
            self.chunk.extend_from_slice(&more);
        }
        Ok(Packing::of(&self.chunk[self.at..]))
    }

    /// Whether the system failed.
    pub(super) fn failed(&self) -> bool {
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

impl BufRead for Source<'_> {
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

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        self.consume(count);
        Ok(count)
    }
}
