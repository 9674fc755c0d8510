//! [`prefetch`]: has the processor fetch what will be read soon.
//!
//! Where each of many records lies somewhere else, a program waits for memory with each; with this it waits for many
//! at a time. It is a hint that changes nothing but time. Where a processor has no such instruction, nothing is done.
#![allow(unsafe_code)]

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
