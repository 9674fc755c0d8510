//! What the system's allocator is told.
//!
//! What it keeps of freed memory it keeps where that was: in one of several heaps, between coins that
//! stay. glibc has up to eight heaps for each core, and gives back by itself only what lies at a heap's
//! end. So blocks that one thread reads and another drops leave holes in each, and coins that a flush
//! freed make no room for undo data, which comes in larger pieces. Both grow as long as a run lasts.
//! With few heaps, and free pages given back when a flush begins, what is in use beyond what is
//! counted stays what it is. Other allocators are left to themselves.
#![cfg_attr(all(target_os = "linux", target_env = "gnu"), allow(unsafe_code))] // Calls of glibc.

/// Says how to manage memory. To be called before there are threads.
pub(crate) fn begin() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::limit_heaps();
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

    /// `M_ARENA_MAX`.
    const HEAPS_MAX: c_int = -8;

    /// Threads that allocate small pieces have a store of their own before any heap, so that few heaps
    /// cost nothing that could be measured.
    const HEAPS: c_int = 2;

    pub(super) fn limit_heaps() {
        // SAFETY: two numbers by value, which it checks. Where it refuses them, as it says by an answer
        // that nobody needs, memory is managed as before.
        unsafe { mallopt(HEAPS_MAX, HEAPS) };
    }

    pub(super) fn trim() {
        // SAFETY: a number by value. It takes the allocator's own locks, and touches only free memory.
        unsafe { malloc_trim(0) };
    }
}
