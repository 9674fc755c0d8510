//! [`Permits`]: how many threads may compute at a time, where more of them wait for blocks.
//!
//! Peers are asked for many ranges at once, each by a thread of its own, and each checks the
//! blocks that it gets. A thread that waits for a block holds no permit, and one that holds a
//! permit waits for nothing.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A number of permits. See the module.
#[derive(Debug)]
pub(super) struct Permits {
    free: Mutex<usize>,
    returned: Condvar,
}

/// A permit; it is given back when it is dropped.
#[derive(Debug)]
pub struct Permit<'a>(&'a Permits);

impl Permits {
    /// So many, and one at least.
    pub(super) fn new(count: usize) -> Self {
        Self { free: Mutex::new(count.max(1)), returned: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one is free.
    pub(super) fn take(&self) -> Permit<'_> {
        let none = |free: &mut usize| *free == 0;
        let waited = self.returned.wait_while(self.lock(), none);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        Permit(self)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.lock() += 1;
        self.0.returned.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn so_many_at_a_time() {
        let (permits, now, most) = (Permits::new(3), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _permit = permits.take();
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 3);
        assert_eq!(*permits.lock(), 3);
    }

    #[test]
    fn one_that_panicked_gives_its_permit_back() {
        let permits = Permits::new(1);
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _permit = permits.take();
                panic!("on purpose");
            });
            thread.join().is_err()
        });
        assert!(panicked);
        drop(permits.take());
    }
}
