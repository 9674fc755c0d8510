//! Sets up the system's allocator, so that memory use stays bounded on long runs.
//!
//! glibc keeps freed memory in place: in one of several heaps, between coins that stay. It has up to eight heaps per
//! core, and returns to the system only what lies at a heap's end. So blocks that one thread reads and another drops
//! leave holes in each heap, and coins that a flush freed make no room for undo data, which needs larger pieces. Both
//! kinds of holes grow for as long as a run lasts. With few heaps, with blocks mapped separately, and with free pages
//! returned when a flush begins, the memory that we do not count stays constant. Other allocators keep their defaults.
#![cfg_attr(all(target_os = "linux", target_env = "gnu"), allow(unsafe_code))] // Calls of glibc.

/// Freed pieces shorter than this are kept: the maximum that glibc accepts for pieces in its heaps.
#[cfg(feature = "cluster")]
const KEPT_BYTES: usize = 32 << 20;

/// Sets the allocator up. Call it before starting threads.
pub(crate) fn begin() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::set_bounds();
}

/// Keeps the memory of large pieces for reuse, on a worker machine. A job allocates and drops tens of megabytes of
/// records about once a second, and mapping that memory again took a tenth of its time. [`give_back`] returns the
/// memory when there are no more jobs.
#[cfg(feature = "cluster")]
pub(crate) fn keep_large() {
    apus_hash::keep_below(KEPT_BYTES);
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::keep_large();
}

/// Returns free pages to the system.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::trim();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::ffi::c_int;

    // Declared in `malloc.h`.
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
        fn malloc_trim(keep: usize) -> c_int;
    }

    /// `M_ARENA_MAX`: number of heaps. Small pieces come from a per-thread cache before any heap.
    const HEAPS_MAX: (c_int, c_int) = (-8, 2);

    /// `M_MMAP_THRESHOLD`: pieces of at least this size are mapped separately. By default the threshold grows with
    /// freed pieces, until the heaps hold blocks, too.
    const MAPPED_FROM: (c_int, c_int) = (-3, 1 << 20);

    /// `M_TRIM_THRESHOLD`: free bytes kept at a heap's end. By default this grows, too.
    const KEPT_AT_END: (c_int, c_int) = (-1, 4 << 20);

    pub(super) fn set_bounds() {
        set(&[HEAPS_MAX, MAPPED_FROM, KEPT_AT_END]);
    }

    /// Allocates large pieces in the heaps, and never trims the heaps' ends, where the memory of all jobs stays.
    #[cfg(feature = "cluster")]
    pub(super) fn keep_large() {
        set(&[(MAPPED_FROM.0, super::KEPT_BYTES as c_int), (KEPT_AT_END.0, c_int::MAX)]);
    }

    fn set(bounds: &[(c_int, c_int)]) {
        for &(what, value) in bounds {
            // SAFETY: two numbers by value, which `mallopt` checks. If it refuses them, it changes nothing, so we
            // ignore its answer.
            unsafe { mallopt(what, value) };
        }
    }

    pub(super) fn trim() {
        // SAFETY: a number by value. `malloc_trim` takes the allocator's own locks, and touches only free memory.
        unsafe { malloc_trim(0) };
    }
}
