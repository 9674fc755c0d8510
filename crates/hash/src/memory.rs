//! [`prefetch`] makes the processor fetch data before it is read; [`release`] returns large memory to the
//! system without delaying other threads.
//!
//! If each of many records lies in a different place, a program waits for memory once per record; with
//! prefetching it waits for many records at a time. A prefetch is a hint that changes only the timing. It
//! does nothing on processors without such an instruction.
//!
//! Freeing hundreds of megabytes at once takes the kernel some milliseconds, during which it locks the
//! process's memory map: a thread that starts or grows its heap waits until the end. This module returns
//! pages in pieces, so that the final free has no work left. On systems without such a call it frees memory
//! as usual.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

/// Prefetches the cache line that holds the first byte of a value.
#[inline(always)]
pub fn prefetch<T>(soon: &T) {
    let at = core::ptr::from_ref(soon).cast::<i8>();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is in the baseline (SSE) and never faults, regardless of the address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction is in the baseline, never faults, and changes neither memory nor
    // registers nor flags.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// The minimum length in bytes; shorter vectors are freed as usual.
static KEPT_BELOW: AtomicUsize = AtomicUsize::new(0);

/// Makes [`release`] free vectors of fewer than `bytes` bytes as usual from now on, because the
/// allocator is configured to keep such pieces for reuse.
pub fn keep_below(bytes: usize) {
    KEPT_BELOW.store(bytes, Ordering::Relaxed);
}

/// Frees a vector without delaying other threads that need memory.
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

    /// The number of bytes returned at a time, which takes a fraction of a millisecond.
    const PIECE_BYTES: usize = 2 << 20;

    /// Empties the vector and returns it with only the pages that it may share with others.
    pub(super) fn emptied<T: Copy>(mut values: Vec<T>) -> Vec<T> {
        values.clear();
        let page = rustix::param::page_size();
        let room = values.spare_capacity_mut();
        let (start, length) = (room.as_mut_ptr().cast::<u8>(), size_of_val(room));
        let before = start.align_offset(page).min(length);
        let whole = (length - before) / page * page;
        for at in (0..whole).step_by(PIECE_BYTES) {
            let bytes = PIECE_BYTES.min(whole - at);
            // SAFETY: these bytes belong to the vector, hold no values, and have no references to them: no
            // code can notice that they become zeros. The parts before the first whole page and after the
            // last stay unchanged, because an allocator may keep data of its own there.
            let given =
                unsafe { madvise(start.add(before + at).cast(), bytes, Advice::LinuxDontNeed) };
            if given.is_err() {
                break; // Locked memory: freed as usual.
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
        fn pages_are_returned_before_the_memory() {
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
        fn neighbours_stay_untouched() {
            // Try all lengths around that of a page, so that some vectors share their first and last pages.
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
