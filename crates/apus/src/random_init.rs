//! Starts without Core's warm-up of its random numbers.
//!
//! Core's kernel library has a static object whose constructor calls `RandomInit`, which seeds its
//! generator by hashing for a tenth of a second: before `main`, in every start of the program, even
//! for `--version`. The linker (`build.rs`) puts the function here in place of that call. Nothing is
//! lost: `RandomInit` only brings forward what the first request for a random number does by itself
//! (Core `random.cpp`, `ProcRand`), and no script needs one.
#![allow(unsafe_code)] // A name that the linker must find as it stands.

/// Does nothing in place of Core's `RandomInit`.
// SAFETY: the name is the linker's for this purpose alone, and no other symbol has it.
#[unsafe(no_mangle)]
extern "C" fn __wrap__Z10RandomInitv() {}
