//! Verifies many signatures of secp256k1 at once: each on its own in a SIMD lane, or by one sum
//! many BIP-340 signatures and ECDSA signatures with a hint.
//!
//! - [`SignatureCheck`]: one check, as Core's interpreter asks for it.
//! - [`Verifier`]: says which of many checks are proven valid.
//! - [`Kernel`]: the kernels that this processor can run: plain Rust, AVX2, AVX-512 IFMA.
//!
//! The rule: a check counts as proven only if exact arithmetic says so, or a sum in which a false
//! signature passes with a probability of at most 2^-128. Anything else, also a rare valid
//! signature (one whose R has the x coordinate r + n, or whose sum meets an exception of a
//! formula), is not proven, and libsecp256k1 has to verify it.
//!
//! From the bottom up: `words` (registers), `field` with its kernels `portable`, `radix29` on
//! `avx2`, and `radix52` on `ifma`; `scalar`; `point`; `der` and `check`; `lanes` (each signature
//! on its own); `complete`, `msm` and `batch` (one sum); `self_test`; `verifier`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(target_arch = "x86_64")]
mod avx2;
mod batch;
mod check;
mod complete;
mod der;
mod field;
#[cfg(target_arch = "x86_64")]
mod ifma;
mod lanes;
mod msm;
mod point;
mod portable;
#[cfg(any(target_arch = "x86_64", test))]
mod radix29;
#[cfg(any(target_arch = "x86_64", test))]
mod radix52;
mod scalar;
mod self_test;
#[cfg(test)]
mod tests;
mod verifier;
mod words;

pub use batch::is_faulty;
pub use check::{Parity, SignatureCheck};
pub use verifier::{Kernel, Verifier};
