//! [`prefetch`]: has the processor fetch what will be read soon; and [`release`]: gives much memory back to the system
//! without holding up other threads.
//!
//! Where each of many records lies somewhere else, a program waits for memory with each; with a prefetch it waits for many
//! at a time. It is a hint that changes nothing but time. Where a processor has no such instruction, nothing is done.
//!
//! Freeing hundreds of megabytes at once takes the kernel some milliseconds, for which it locks the process's map of
//! memory: a thread that is begun or that grows its heap waits for all of it. Here pages are given back in pieces, and
//! what is freed at the end is empty. Where a system has no such call, memory is freed as ever.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

/// Has the cache line fetched that holds the first byte of a value.
#[inline(always)]
pub fn prefetch<T>(soon: &T) {
    let at = core::ptr::from_ref(soon).cast::<i8>();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is of the baseline (SSE), and never faults, whatever the address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction is of the baseline, never faults, and changes neither memory nor registers nor flags.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// What is shorter is kept, in bytes.
static KEPT_BELOW: AtomicUsize = AtomicUsize::new(0);

/// From now on what has fewer `bytes` is freed as ever: the allocator was told to keep such pieces, for others that come
/// soon.
pub fn keep_below(bytes: usize) {
    KEPT_BELOW.store(bytes, Ordering::Relaxed);
}

/// Frees what a vector holds, which other threads may use meanwhile no more than ever.
pub fn release<T: Copy>(values: Vec<T>) {
    #[cfg(target_os = "linux")]
    if values.capacity() * size_of::<T>() >= KEPT_BELOW.load(Ordering::Relaxed) {
        return drop(linux::emptied(values));
    }
    drop(values);
}

#[cfg(target_os = "linux")]
mod linux {
    use rustix::mm::{Advice, madvise};

    /// Bytes that are given back at a time: a fraction of a millisecond.
    const PIECE_BYTES: usize = 2 << 20;

    /// The same vector, of whose memory only the pages are left that it may share.
    pub(super) fn emptied<T: Copy>(mut values: Vec<T>) -> Vec<T> {
        values.clear();
        let page = rustix::param::page_size();
        let room = values.spare_capacity_mut();
        let (start, length) = (room.as_mut_ptr().cast::<u8>(), size_of_val(room));
        let before = start.align_offset(page).min(length);
        let whole = (length - before) / page * page;
        for at in (0..whole).step_by(PIECE_BYTES) {
            let bytes = PIECE_BYTES.min(whole - at);
            // SAFETY: these bytes are the vector's own, no value is in them any more, and no reference to them is
            // left: that they become zeros is seen by none. What lies before the first whole page and after the last,
            // where an allocator may have something of its own, is left alone.
            let given =
                unsafe { madvise(start.add(before + at).cast(), bytes, Advice::LinuxDontNeed) };
            if given.is_err() {
                break; // Memory that is locked: freed as ever.
            }
        }
        values
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn resident_bytes() -> usize {
            let said = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: usize = said.split(' ').nth(1).unwrap().parse().unwrap();
            pages * rustix::param::page_size()
        }

        #[test]
        fn pages_are_gone_before_the_memory_is() {
            const BYTES: usize = 64 << 20;
            let values = vec![7u8; BYTES];
            let with = resident_bytes();
            let mut values = emptied(values);
            assert!(with - resident_bytes() > BYTES / 2);
            assert_eq!((values.len(), values.capacity() >= BYTES), (0, true));
            values.extend([1, 2, 3]);
            assert_eq!(values, [1, 2, 3]);
        }

        #[test]
        fn neighbours_are_left_alone() {
            // Of all lengths around that of a page, so that some share their first page and their last.
            let page = rustix::param::page_size();
            let kept: Vec<Vec<u32>> = (0..200u32).map(|of| vec![of; page / 8]).collect();
            for words in [0, 1, page / 4 - 1, page / 4, page, 3 * page + 5] {
                let between: Vec<Vec<u32>> = kept.iter().map(|_| vec![9; words]).collect();
                between.into_iter().for_each(super::super::release);
            }
            for (of, kept) in (0u32..).zip(kept) {
                assert!(kept.iter().all(|value| *value == of));
            }
        }
    }
}
