//! [`Buffers`]: the memory of large messages, used again.
//!
//! Memory for a block that comes from the system is zeros that the system has to make, page by page,
//! and goes back to it as soon as the block is taken: with blocks of megabytes at hundreds a second
//! that was a tenth of all time. What comes from here is what an earlier block left.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Smaller messages are the allocator's, which is good at them.
const BYTES_LEAST: usize = 128 << 10;

/// Bytes that may lie unused at least: room for a block of any size.
const FREE_BYTES_LEAST: u64 = 4 << 20;

/// Memory that is not in use now; by default none is kept.
#[derive(Debug, Default)]
pub struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    /// Bytes that may lie here unused.
    free_bytes_max: usize,
}

impl Buffers {
    /// For so many `bytes` of blocks that are on their way or wait: an eighth more may lie unused.
    pub(crate) fn beside(bytes: u64) -> Self {
        let free_bytes_max = usize::try_from((bytes / 8).max(FREE_BYTES_LEAST));
        Self { free: Mutex::default(), free_bytes_max: free_bytes_max.unwrap_or(usize::MAX) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for `total` bytes, with anything in it, and at most a quarter larger, since only the
    /// bytes of blocks are counted; none if none fits. It was taken from the system before, so a
    /// peer that promises a block and does not send it costs no more.
    pub(crate) fn take(&self, total: usize) -> Option<Vec<u8>> {
        if total < BYTES_LEAST {
            return None;
        }
        let mut free = self.lock();
        let fits = |buffer: &Vec<u8>| (total..=total + total / 4).contains(&buffer.capacity());
        let place = free.iter().rposition(fits)?;
        Some(free.remove(place))
    }

    fn give(&self, bytes: Vec<u8>) {
        if !(BYTES_LEAST..=self.free_bytes_max).contains(&bytes.capacity()) {
            return;
        }
        let mut free = self.lock();
        // Blocks may have grown: what lies here longest is what fits least.
        let mut held: usize = free.iter().map(Vec::capacity).sum();
        while held + bytes.capacity() > self.free_bytes_max && !free.is_empty() {
            held -= free.remove(0).capacity();
        }
        free.push(bytes);
    }
}

/// The bytes of a block. Their memory is used again when this is dropped.
pub struct BlockBytes {
    bytes: Vec<u8>,
    home: Arc<Buffers>,
}

impl BlockBytes {
    pub(crate) fn new(bytes: Vec<u8>, home: &Arc<Buffers>) -> Self {
        Self { bytes, home: Arc::clone(home) }
    }
}

impl Clone for BlockBytes {
    fn clone(&self) -> Self {
        Self::new(self.bytes.clone(), &self.home)
    }
}

impl Deref for BlockBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for BlockBytes {
    fn drop(&mut self) {
        self.home.give(std::mem::take(&mut self.bytes));
    }
}

impl fmt::Debug for BlockBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 1 << 20;

    fn block(size: usize, home: &Arc<Buffers>) -> BlockBytes {
        BlockBytes::new(vec![1; size], home)
    }

    #[test]
    fn memory_is_used_again_where_it_fits() {
        let buffers = Arc::new(Buffers::beside(0));
        assert!(buffers.take(SIZE).is_none());
        let first = block(SIZE, &buffers);
        let place = first.as_ptr();
        assert_eq!(first[..4], [1; 4]);
        drop(first);
        let least = SIZE / 5 * 4 + 1;
        for other in [SIZE + 1, least - 1, SIZE / 2, 0] {
            assert!(buffers.take(other).is_none(), "{other}");
        }
        let again = buffers.take(least).unwrap();
        assert_eq!(again.as_ptr(), place);
        assert!(buffers.take(SIZE).is_none());
    }

    #[test]
    fn what_lies_unused_is_bounded() {
        for (bytes, most) in [(0, 4 * SIZE), (16 << 20, 4 * SIZE), (128 << 20, 16 * SIZE)] {
            let buffers = Arc::new(Buffers::beside(bytes));
            let held = || buffers.lock().iter().map(Vec::capacity).sum::<usize>();
            let blocks: Vec<BlockBytes> = (0..40).map(|_| block(SIZE, &buffers)).collect();
            drop(blocks);
            assert_eq!(held(), most);
            // Those that came last stay.
            drop(block(2 * SIZE, &buffers));
            assert_eq!(held(), most);
            assert!(buffers.take(2 * SIZE).is_some());
            // What is larger than all the room, small ones and what was taken out are not kept.
            drop(block(most + 1, &buffers));
            assert_eq!(held(), most - 2 * SIZE);
            drop(block(100, &buffers));
            drop(BlockBytes::new(Vec::new(), &buffers));
            assert!(buffers.take(100).is_none());
        }
        let none = Arc::new(Buffers::default());
        drop(block(SIZE, &none));
        assert!(none.take(SIZE).is_none());
    }
}
