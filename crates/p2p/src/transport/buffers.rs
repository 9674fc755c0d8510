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

/// Bytes that may lie here unused.
const FREE_BYTES_MAX: usize = 32 << 20;

/// Memory that nobody uses now.
#[derive(Debug, Default)]
pub struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
}

impl Buffers {
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for `total` bytes, with anything in it, and at most twice as large; none if there is
    /// none. It was taken from the system before, so a peer that promises and does not send costs no
    /// more.
    pub(crate) fn take(&self, total: usize) -> Option<Vec<u8>> {
        if total < BYTES_LEAST {
            return None;
        }
        let mut free = self.lock();
        let fits = |buffer: &Vec<u8>| (total..=2 * total).contains(&buffer.capacity());
        let place = free.iter().rposition(fits)?;
        Some(free.remove(place))
    }

    fn give(&self, bytes: Vec<u8>) {
        if bytes.capacity() < BYTES_LEAST {
            return;
        }
        let mut free = self.lock();
        // Blocks may have grown: what lies here longest is what nobody wants.
        let mut held: usize = free.iter().map(Vec::capacity).sum();
        while held + bytes.capacity() > FREE_BYTES_MAX && !free.is_empty() {
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
        let buffers = Arc::new(Buffers::default());
        assert!(buffers.take(SIZE).is_none());
        let first = block(SIZE, &buffers);
        let place = first.as_ptr();
        assert_eq!(first[..4], [1; 4]);
        drop(first);
        for other in [SIZE + 1, SIZE / 2 - 1, 0] {
            assert!(buffers.take(other).is_none(), "{other}");
        }
        let again = buffers.take(SIZE / 2).unwrap();
        assert_eq!(again.as_ptr(), place);
        assert!(buffers.take(SIZE).is_none());
    }

    #[test]
    fn what_lies_unused_is_bounded() {
        let buffers = Arc::new(Buffers::default());
        let held = || buffers.lock().iter().map(Vec::capacity).sum::<usize>();
        let blocks: Vec<BlockBytes> = (0..40).map(|_| block(SIZE, &buffers)).collect();
        drop(blocks);
        assert_eq!(held(), FREE_BYTES_MAX);
        // Those that came last stay.
        drop(block(2 * SIZE, &buffers));
        assert_eq!(held(), FREE_BYTES_MAX);
        assert!(buffers.take(2 * SIZE).is_some());
        // Small ones and what was taken out are not kept.
        drop(block(100, &buffers));
        drop(BlockBytes::new(Vec::new(), &buffers));
        assert!(buffers.take(100).is_none());
    }
}
