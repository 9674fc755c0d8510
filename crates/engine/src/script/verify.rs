//! [`InterpreterTx`]: a transaction in the hands of Core's interpreter, by the functions of `verify.cpp`.
//!
//! A transaction is read once, and what its inputs share is computed once; then it does not change, and any thread
//! may run its inputs. What is asked here has been looked at by [`kernel`](super::kernel): the flags are known to Core
//! and fit each other, without which it ends the program.
#![allow(unsafe_code)] // Calls of C++.

// What `verify.cpp` calls is linked by this crate, of which nothing else is used.
use libbitcoinkernel_sys as _;

use core::ffi::c_int;
use core::marker::{PhantomData, PhantomPinned};
use core::ptr::NonNull;

/// An output that is spent.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SpentOutput<'s> {
    script: *const u8,
    length: usize,
    amount: i64,
    of: PhantomData<&'s [u8]>,
}

impl<'s> SpentOutput<'s> {
    pub(super) fn new(script: &'s [u8], amount: i64) -> Self {
        Self { script: script.as_ptr(), length: script.len(), amount, of: PhantomData }
    }
}

/// A transaction, as C++ has it.
#[repr(C)]
struct Opaque {
    nothing: [u8; 0],
    /// Not to be moved or shared by what Rust knows of it.
    of: PhantomData<(*mut u8, PhantomPinned)>,
}

// SAFETY: these are the declarations in `verify.cpp`: `size_t` is `usize` on every system that Rust and Core know, and
// no function throws.
unsafe extern "C" {
    fn apus_tx_read(raw: *const u8, length: usize) -> *mut Opaque;
    fn apus_tx_inputs(tx: *const Opaque) -> usize;
    fn apus_tx_share(tx: *mut Opaque, spent: *const SpentOutput<'_>, count: usize) -> bool;
    fn apus_tx_verify(
        tx: *const Opaque,
        input: usize,
        spent: *const SpentOutput<'_>,
        flags: u32,
    ) -> c_int;
    fn apus_tx_free(tx: *mut Opaque);
}

/// A transaction that Core's interpreter has read.
pub(super) struct InterpreterTx(NonNull<Opaque>);

// SAFETY: it holds nothing of the thread that made it, and nothing else points to it.
unsafe impl Send for InterpreterTx {}
// SAFETY: what takes it by a shared reference only reads it (`verify.cpp`: `const ApusTx*`), and Core's functions that
// are called there keep what they work out on their own stack.
unsafe impl Sync for InterpreterTx {}

impl InterpreterTx {
    /// Reads a transaction; none where the bytes are not exactly one.
    pub(super) fn read(raw: &[u8]) -> Option<Self> {
        // SAFETY: so many bytes are there, and are only read until the call returns.
        NonNull::new(unsafe { apus_tx_read(raw.as_ptr(), raw.len()) }).map(Self)
    }

    pub(super) fn inputs(&self) -> usize {
        // SAFETY: the pointer is to a transaction that `read` made, until `drop`.
        unsafe { apus_tx_inputs(self.0.as_ptr()) }
    }

    /// Computes what the inputs share, with the outputs that all of them spend, or with none: then no signature of
    /// taproot passes. Whether that could be done.
    #[must_use]
    pub(super) fn share(&mut self, spent: &[SpentOutput<'_>]) -> bool {
        // SAFETY: as above, and no other reference to it is there; so many outputs are, with their scripts, and they
        // are copied.
        unsafe { apus_tx_share(self.0.as_ptr(), spent.as_ptr(), spent.len()) }
    }

    /// Runs the scripts of one input: the number of Core's `ScriptError`, or -1 where there is no answer.
    pub(super) fn verify(&self, input: usize, spent: SpentOutput<'_>, flags: u32) -> c_int {
        // SAFETY: as above; the output lives until the call returns, with its script.
        unsafe { apus_tx_verify(self.0.as_ptr(), input, &raw const spent, flags) }
    }
}

impl Drop for InterpreterTx {
    fn drop(&mut self) {
        // SAFETY: `read` made it, and it is not used again.
        unsafe { apus_tx_free(self.0.as_ptr()) }
    }
}
