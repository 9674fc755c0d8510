//! [`BlockReader`]: reads many blocks in disk order.
//!
//! It reads as many neighbours together as fit the buffer. Before it passes on a stretch, it announces the
//! next one to the kernel, so that the disk works while the caller does. A reader holds one buffer and one
//! open file; give each thread its own.
//!
//! It does not check blocks: it returns the bytes at the given positions.

use crate::error::BlkError;
use crate::files::{BLOCK_SIZES, BlockFiles, BlockLocation};
use core::ops::ControlFlow;
use std::fs::File;

/// Receives the caller's key, the block's position and its bytes.
pub type Each<'a> = dyn FnMut(u32, BlockLocation, &[u8]) -> ControlFlow<()> + 'a;

/// The largest gap between two blocks that is read rather than skipped: about what a disk delivers
/// in the time of another request.
const GAP_BYTES_MAX: u64 = 128 << 10;

/// The length of a read call. Its bytes are de-obfuscated while they are in the second-level cache.
const PIECE_BYTES: usize = 256 << 10;

/// Reads blocks by their positions.
#[derive(Debug)]
pub struct BlockReader<'a> {
    files: &'a BlockFiles,
    buffer: Vec<u8>,
    buffer_bytes: usize,
    /// The file read last.
    open: Option<(u32, File)>,
}

/// Blocks to read with one request: all in one file, in ascending order.
struct ReadSpan<'w> {
    blocks: &'w [(u32, BlockLocation)],
    start: u64,
    end: u64,
}

impl ReadSpan<'_> {
    fn file(&self) -> u32 {
        self.blocks[0].1.file
    }
}

impl<'a> BlockReader<'a> {
    /// Creates a reader with a buffer of `buffer_bytes`. Only a larger block makes the buffer grow, to
    /// 4,000,000 bytes at most.
    pub fn new(files: &'a BlockFiles, buffer_bytes: usize) -> Self {
        Self { files, buffer: Vec::new(), buffer_bytes, open: None }
    }

    /// Sorts `wanted` by position and passes every block to `each`, until `each` breaks. `wanted` may contain
    /// the same position more than once.
    pub fn read(
        &mut self,
        wanted: &mut [(u32, BlockLocation)],
        each: &mut Each<'_>,
    ) -> Result<(), BlkError> {
        for &(_, location) in wanted.iter() {
            self.check(location)?;
        }
        wanted.sort_unstable_by_key(|&(key, location)| (location, key));
        let (mut stretch, mut rest) = self.next_stretch(wanted);
        while let Some(current) = stretch {
            let (next, after) = self.next_stretch(rest);
            if self.hand_out(&current, next.as_ref(), each)?.is_break() {
                return Ok(());
            }
            (stretch, rest) = (next, after);
        }
        Ok(())
    }

    /// Refuses an impossible position before allocating memory for it.
    fn check(&self, location: BlockLocation) -> Result<(), BlkError> {
        let file = self.files.file(location.file, location.offset)?;
        if !BLOCK_SIZES.contains(&location.size) {
            let BlockLocation { offset, size, .. } = location;
            return Err(BlkError::Strange(format!(
                "a block of {size} bytes is stated in {} at byte {offset}; a block has 80 to 4000000. The position \
                 is wrong, or the file changed: rerun the same command",
                file.path.display()
            )));
        }
        if location.end() > file.length {
            return Err(BlkError::shortened(&file.path, location.end()));
        }
        Ok(())
    }

    /// Splits off as many blocks as fit the buffer, but at least one.
    fn next_stretch<'w>(
        &self,
        wanted: &'w [(u32, BlockLocation)],
    ) -> (Option<ReadSpan<'w>>, &'w [(u32, BlockLocation)]) {
        let Some(&(_, first)) = wanted.first() else { return (None, wanted) };
        let (start, mut end) = (first.offset, first.end());
        let mut count = 1;
        for &(_, location) in &wanted[1..] {
            let longer = end.max(location.end());
            if location.file != first.file
                || location.offset.saturating_sub(end) > GAP_BYTES_MAX
                || longer - start > self.buffer_bytes as u64 && longer > end
            {
                break;
            }
            end = longer;
            count += 1;
        }
        let (blocks, rest) = wanted.split_at(count);
        (Some(ReadSpan { blocks, start, end }), rest)
    }

    fn hand_out(
        &mut self,
        current: &ReadSpan<'_>,
        next: Option<&ReadSpan<'_>>,
        each: &mut Each<'_>,
    ) -> Result<ControlFlow<()>, BlkError> {
        let number = current.file();
        let file = self.files.file(number, current.start)?;
        let handle = match self.open.take() {
            Some((open, handle)) if open == number => handle,
            _ => file.open()?,
        };
        // At most the buffer's size or the size of one block: see `next_stretch`.
        let length = (current.end - current.start) as usize;
        if self.buffer.len() < length {
            self.buffer = vec![0; length.max(self.buffer_bytes)];
        }
        let pieces = self.buffer[..length].chunks_mut(PIECE_BYTES);
        for (piece, at) in pieces.zip((current.start..).step_by(PIECE_BYTES)) {
            file.read(&handle, piece, at)?;
            self.files.obfuscation().apply(piece, at);
        }
        self.open = match next {
            Some(next) if next.file() == number => Some((number, handle)),
            // If the file cannot be opened, reading it reports the error later.
            Some(next) => {
                let file = self.files.file(next.file(), next.start)?;
                file.open().ok().map(|handle| (next.file(), handle))
            }
            None => Some((number, handle)),
        };
        if let (Some((_, handle)), Some(next)) = (&self.open, next) {
            announce(handle, next.start, next.end);
        }
        let bytes = &self.buffer[..length];
        for &(key, location) in current.blocks {
            let skip = (location.offset - current.start) as usize;
            let block = &bytes[skip..skip + location.size as usize];
            if each(key, location, block).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Asks the kernel to start reading `start..end`. Only a hint: the read that follows is correct
/// regardless of the result.
#[cfg(target_os = "linux")]
fn announce(file: &File, start: u64, end: u64) {
    use core::num::NonZeroU64;
    use rustix::fs::{Advice, fadvise};
    // Linux limits each request to the size that the disk takes at once, often far less than a stretch.
    const SLICE: u64 = 128 << 10;
    let mut at = start;
    while at < end {
        let length = SLICE.min(end - at);
        if fadvise(file, at, NonZeroU64::new(length), Advice::WillNeed).is_err() {
            return;
        }
        at += length;
    }
}

/// Other systems use their own readahead.
#[cfg(not(target_os = "linux"))]
fn announce(_: &File, _: u64, _: u64) {}

#[cfg(test)]
mod tests;
