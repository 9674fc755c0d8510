//! What the system's allocator is told.
//!
//! What it keeps of freed memory it keeps where that was: in one of several heaps, between coins that
//! stay. glibc has up to eight heaps for each core, and gives back by itself only what lies at a heap's
//! end. So blocks that one thread reads and another drops leave holes in each, and coins that a flush
//! freed make no room for undo data, which comes in larger pieces. Both grow as long as a run lasts.
//! With few heaps, blocks mapped by themselves, and free pages given back when a flush begins, what is
//! in use beyond what is counted stays what it is. Other allocators are left to themselves.
#![cfg_attr(all(target_os = "linux", target_env = "gnu"), allow(unsafe_code))] // Calls of glibc.

/// Shorter pieces are kept: the longest for which glibc's heaps can be made to take them.
#[cfg(feature = "cluster")]
const KEPT_BYTES: usize = 32 << 20;

/// Says how to manage memory. To be called before there are threads.
pub(crate) fn begin() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::set_bounds();
}

/// Keeps what large pieces were in, for the next ones. For a machine that does jobs: each has tens of megabytes of
/// records, made and dropped once in a second or so, and to map them afresh took a tenth of its time. What is kept is
/// [given back](give_back) when there are no more jobs.
#[cfg(feature = "cluster")]
pub(crate) fn keep_large() {
    apus_hash::keep_below(KEPT_BYTES);
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::keep_large();
}

/// Gives free pages back to the system.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::trim();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::ffi::c_int;

    // As `malloc.h` declares them.
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
        fn malloc_trim(keep: usize) -> c_int;
    }

    /// `M_ARENA_MAX`: heaps. Small pieces come from a store that each thread has before any of them.
    const HEAPS_MAX: (c_int, c_int) = (-8, 2);

    /// `M_MMAP_THRESHOLD`: pieces of so many bytes are mapped by themselves. By default this grows with
    /// what is freed, until blocks come from the heaps.
    const MAPPED_FROM: (c_int, c_int) = (-3, 1 << 20);

    /// `M_TRIM_THRESHOLD`: what is kept at a heap's end. By default it would grow too.
    const KEPT_AT_END: (c_int, c_int) = (-1, 4 << 20);

    pub(super) fn set_bounds() {
        set(&[HEAPS_MAX, MAPPED_FROM, KEPT_AT_END]);
    }

    /// Such pieces come from the heaps, and what all jobs of a machine take stays at their ends.
    #[cfg(feature = "cluster")]
    pub(super) fn keep_large() {
        set(&[(MAPPED_FROM.0, super::KEPT_BYTES as c_int), (KEPT_AT_END.0, c_int::MAX)]);
    }

    fn set(bounds: &[(c_int, c_int)]) {
        for &(what, value) in bounds {
            // SAFETY: two numbers by value, which it checks. Where it refuses them memory is
            // managed as before, so its answer is not needed.
            unsafe { mallopt(what, value) };
        }
    }

    pub(super) fn trim() {
        // SAFETY: a number by value. It takes the allocator's own locks, and touches only free memory.
        unsafe { malloc_trim(0) };
    }
}
