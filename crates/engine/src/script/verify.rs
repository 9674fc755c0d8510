//! [`InterpreterTx`]: a transaction read by Core's interpreter, through the functions of
//! `verify.cpp`.
//!
//! A transaction is read once, and the data that its inputs share is computed once. After that it
//! does not change, and any thread may run its inputs. The module [`kernel`](super::kernel) has
//! already validated the arguments: Core knows the flags and they are consistent, otherwise it
//! would abort the process.
#![allow(unsafe_code)] // Calls of C++.

// This crate links what `verify.cpp` calls; nothing else of it is used.
use libbitcoinkernel_sys as _;

use super::recorded::{CheckRoom, KnownChecks, RecordedCheck};
use core::ffi::{c_int, c_void};
use core::marker::{PhantomData, PhantomPinned};
use core::ptr::NonNull;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A spent output.
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

/// Known checks, and room for new ones.
#[repr(C)]
struct Checks<'c> {
    proven: *const RecordedCheck,
    proven_count: usize,
    unproven: *const RecordedCheck,
    unproven_count: usize,
    room: *mut RecordedCheck,
    room_count: usize,
    used: usize,
    records_ecdsa: bool,
    passes_over: unsafe extern "C" fn(*mut c_void, *const RecordedCheck) -> bool,
    hints: *mut c_void,
    of: PhantomData<(&'c [RecordedCheck], &'c mut [RecordedCheck])>,
}

/// What a [`CheckRoom`] answers.
type PassesOver<'r> = &'r mut dyn FnMut(&RecordedCheck) -> bool;

/// Asks whether hints pass over a check.
///
/// # Safety
///
/// `hints` points to a [`PassesOver`] to which there is no other reference, and `check` to a check.
unsafe extern "C" fn passes_over(hints: *mut c_void, check: *const RecordedCheck) -> bool {
    // SAFETY: the caller's promise.
    let (ask, check) = unsafe { (&mut *hints.cast::<PassesOver<'_>>(), &*check) };
    // A panic must not enter C++.
    catch_unwind(AssertUnwindSafe(|| ask(check))).unwrap_or(false)
}

/// A transaction on the C++ side.
#[repr(C)]
struct Opaque {
    nothing: [u8; 0],
    /// Rust must not assume that it can be moved or shared.
    of: PhantomData<(*mut u8, PhantomPinned)>,
}

// SAFETY: these match the declarations in `verify.cpp`: `size_t` is `usize` on every system that
// Rust and Core support, and no function throws.
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
    fn apus_tx_verify_deferred(
        tx: *const Opaque,
        input: usize,
        spent: *const SpentOutput<'_>,
        flags: u32,
        checks: *mut Checks<'_>,
    ) -> c_int;
    fn apus_tx_free(tx: *mut Opaque);
}

/// A transaction that Core's interpreter has read.
pub(super) struct InterpreterTx(NonNull<Opaque>);

// SAFETY: it holds no data of the thread that created it, and nothing else points to it.
unsafe impl Send for InterpreterTx {}
// SAFETY: functions that take it by shared reference only read it (`verify.cpp`: `const ApusTx*`),
// and Core's functions called there keep intermediate results on their own stack.
unsafe impl Sync for InterpreterTx {}

impl InterpreterTx {
    /// Reads a transaction; `None` if the bytes are not exactly one transaction.
    pub(super) fn read(raw: &[u8]) -> Option<Self> {
        // SAFETY: `raw` has that many bytes, and they are only read until the call returns.
        NonNull::new(unsafe { apus_tx_read(raw.as_ptr(), raw.len()) }).map(Self)
    }

    pub(super) fn inputs(&self) -> usize {
        // SAFETY: the pointer is to a transaction that `read` created and that lives until `drop`.
        unsafe { apus_tx_inputs(self.0.as_ptr()) }
    }

    /// Computes the data that the inputs share, from the outputs that all of them spend, or from
    /// none: then no taproot signature passes. Returns whether this succeeded.
    #[must_use]
    pub(super) fn share(&mut self, spent: &[SpentOutput<'_>]) -> bool {
        // SAFETY: as above, and there is no other reference to it; there are that many outputs,
        // with their scripts, and they are copied.
        unsafe { apus_tx_share(self.0.as_ptr(), spent.as_ptr(), spent.len()) }
    }

    /// Runs the scripts of one input. Returns the number of Core's `ScriptError`, or -1 if they
    /// could not be run.
    pub(super) fn verify(&self, input: usize, spent: SpentOutput<'_>, flags: u32) -> c_int {
        // SAFETY: as above; the output and its script live until the call returns.
        unsafe { apus_tx_verify(self.0.as_ptr(), input, &raw const spent, flags) }
    }

    /// Runs the scripts of one input, and answers yes to signature checks that are known to be
    /// proven, or that are new and fit into `room`, without checking these; libsecp256k1 answers the
    /// others. Returns the same as [`Self::verify`], and how many checks are now in `room`.
    pub(super) fn verify_deferred(
        &self,
        input: usize,
        spent: SpentOutput<'_>,
        flags: u32,
        known: &KnownChecks,
        room: CheckRoom<'_>,
    ) -> (c_int, usize) {
        let KnownChecks { proven, unproven } = known;
        let CheckRoom { checks: room, takes_ecdsa, passes_over: mut ask } = room;
        let mut checks = Checks {
            proven: proven.as_ptr(),
            proven_count: proven.len(),
            unproven: unproven.as_ptr(),
            unproven_count: unproven.len(),
            room: room.as_mut_ptr(),
            room_count: room.len(),
            used: 0,
            records_ecdsa: takes_ecdsa,
            passes_over,
            hints: (&raw mut ask).cast(),
            of: PhantomData,
        };
        let (tx, checks_at) = (self.0.as_ptr(), &raw mut checks);
        // SAFETY: as above; all checks and `ask` live until the call returns, it writes only into `room` and
        // `used`, and every content of a check is valid.
        let error =
            unsafe { apus_tx_verify_deferred(tx, input, &raw const spent, flags, checks_at) };
        (error, checks.used)
    }
}

impl Drop for InterpreterTx {
    fn drop(&mut self) {
        // SAFETY: `read` created it, and it is not used again.
        unsafe { apus_tx_free(self.0.as_ptr()) }
    }
}
