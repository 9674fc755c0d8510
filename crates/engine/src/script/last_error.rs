//! Which rule a script broke, in Core's words.
//!
//! The kernel library answers yes or no: it calls `VerifyScript` without a place for the reason.
//! The linker (`build.rs`) puts the function here in place of that call. It passes the call on with
//! a place, keeps what comes back for the thread, and returns the answer as it came: the verdict
//! never depends on it. In a program that is linked without that argument the function is never
//! called, and reasons have no name.
#![allow(unsafe_code)] // A name that the linker must find as it stands, and a call to C++.

use super::error_text::error_text;
use core::arch::global_asm;
use core::ffi::{c_int, c_void};
use std::cell::Cell;

thread_local! {
    /// What `VerifyScript` said last, in this thread.
    static LAST: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// Forgets what an earlier script said.
pub(super) fn forget_error() {
    LAST.set(None);
}

/// What the last script said, if it was heard.
pub(super) fn error_name() -> Option<&'static str> {
    LAST.get().and_then(error_text)
}

/// Core's `script_verify_flags` (`script/verify_flags.h`): a class of one number, passed as such.
#[repr(C)]
struct VerifyFlags(u64);

// Without the argument the linker knows no such name: then it is null, and is never called.
global_asm!(
    ".weak __real__Z12VerifyScriptRK7CScriptS1_PK14CScriptWitness19script_verify_flagsRK20BaseSignatureCheckerP13ScriptError_t"
);

// SAFETY: this is the declaration in `script/interpreter.h`: references are pointers, the checker
// is only passed on, and `ScriptError` is an enum of C, an `int`.
unsafe extern "C-unwind" {
    fn __real__Z12VerifyScriptRK7CScriptS1_PK14CScriptWitness19script_verify_flagsRK20BaseSignatureCheckerP13ScriptError_t(
        script_sig: *const c_void,
        script_pubkey: *const c_void,
        witness: *const c_void,
        flags: VerifyFlags,
        checker: *const c_void,
        error: *mut c_int,
    ) -> bool;
}

/// Core's `VerifyScript`, overheard.
// SAFETY: the name is the linker's for this purpose alone, and no other symbol has it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __wrap__Z12VerifyScriptRK7CScriptS1_PK14CScriptWitness19script_verify_flagsRK20BaseSignatureCheckerP13ScriptError_t(
    script_sig: *const c_void,
    script_pubkey: *const c_void,
    witness: *const c_void,
    flags: VerifyFlags,
    checker: *const c_void,
    error: *mut c_int,
) -> bool {
    let mut heard: c_int = 0;
    // SAFETY: only the wrapped call of Core's own code comes here, and then the name below is
    // `VerifyScript`. All arguments are that call's, save the place for the reason, which lives
    // until the call has returned and which nothing keeps.
    let verdict = unsafe {
        __real__Z12VerifyScriptRK7CScriptS1_PK14CScriptWitness19script_verify_flagsRK20BaseSignatureCheckerP13ScriptError_t(
            script_sig, script_pubkey, witness, flags, checker, &raw mut heard,
        )
    };
    LAST.set(Some(heard));
    if !error.is_null() {
        // SAFETY: the caller gave this place to be written before the call returns.
        unsafe { error.write(heard) };
    }
    verdict
}
