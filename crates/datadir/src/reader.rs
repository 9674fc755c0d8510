//! [`BlockReader`]: many blocks off the disk, in the order in which they lie there.
//!
//! Neighbours are read together, as much as the buffer takes, and the kernel is told about the
//! next stretch before the current one is handed out, so that the disk works while the caller
//! does. A reader holds one buffer and one open file; give every thread its own.
//!
//! Blocks are not looked into: what comes back is what lies at the given places.

use crate::error::BlkError;
use crate::files::{BLOCK_SIZES, BlockFiles, BlockLocation};
use core::ops::ControlFlow;
use std::fs::File;

/// Called with the caller's key, the block's place and its bytes.
pub type Each<'a> = dyn FnMut(u32, BlockLocation, &[u8]) -> ControlFlow<()> + 'a;

/// Unwanted bytes between two blocks that are read rather than skipped: about what a disk delivers
/// in the time that another request costs.
const GAP_BYTES_MAX: u64 = 128 << 10;

/// Read with one call and de-obfuscated while it is in the second-level cache.
const PIECE_BYTES: usize = 256 << 10;

/// Reads blocks by their places.
#[derive(Debug)]
pub struct BlockReader<'a> {
    files: &'a BlockFiles,
    buffer: Vec<u8>,
    buffer_bytes: usize,
    /// The file read last.
    open: Option<(u32, File)>,
}

/// Blocks that are read with one request: all in one file, one after the other.
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
    /// A reader whose buffer has `buffer_bytes`. Only a block that is larger than that makes it
    /// grow, to 4,000,000 bytes at most.
    pub fn new(files: &'a BlockFiles, buffer_bytes: usize) -> Self {
        Self { files, buffer: Vec::new(), buffer_bytes, open: None }
    }

    /// Sorts `wanted` by place and hands every block to `each`, until it breaks. The same place
    /// may be wanted more than once.
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

    /// Refuses a place that cannot be one before any memory is taken for it.
    fn check(&self, location: BlockLocation) -> Result<(), BlkError> {
        let file = self.files.file(location.file, location.offset)?;
        if !BLOCK_SIZES.contains(&location.size) {
            let BlockLocation { offset, size, .. } = location;
            return Err(BlkError::Strange(format!(
                "a block of {size} bytes is claimed in {} at byte {offset}; a block has 80 to \
                 4000000: the place is wrong, or the file changed: start the same command again",
                file.path.display()
            )));
        }
        if location.end() > file.length {
            return Err(BlkError::shortened(&file.path, location.end()));
        }
        Ok(())
    }

    /// Splits off what fits into the buffer, but one block at least.
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
        // No more than the buffer was to have, or the one block needs: see `next_stretch`.
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
            // A file that cannot be opened is reported when its turn comes.
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

/// Asks the kernel to start reading `start..end`. Only a wish: whatever it answers, the read that
/// follows is correct.
#[cfg(target_os = "linux")]
fn announce(file: &File, start: u64, end: u64) {
    use core::num::NonZeroU64;
    use rustix::fs::{Advice, fadvise};
    // Linux cuts each wish to what the disk takes in one request, often far less than a stretch.
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

/// Other systems go by their own readahead.
#[cfg(not(target_os = "linux"))]
fn announce(_: &File, _: u64, _: u64) {}

#[cfg(test)]
mod tests;
