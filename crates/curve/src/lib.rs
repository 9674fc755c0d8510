//! Verifies many independent signatures of secp256k1 at once, ECDSA or BIP-340, one in each SIMD
//! lane.
//!
//! - [`SignatureCheck`]: one check, as Core's interpreter asks for it.
//! - [`Verifier`]: says which of many checks are proven valid.
//! - [`Kernel`]: the kernels that this processor can run: plain Rust, AVX2, AVX-512 IFMA.
//!
//! The rule: a check counts as proven only if the arithmetic is exact and says so. Anything else,
//! also a rare valid signature (one whose R has the x coordinate r + n, or whose sum meets an
//! exception of a formula), is not proven, and libsecp256k1 has to verify it.
//!
//! From the bottom up: `words` (registers), `field` with its kernels `portable`, `radix29` on
//! `avx2`, and `radix52` on `ifma`; `scalar`; `point`; `der` and `check`; `lanes` (the algorithm);
//! `self_test`; `verifier`.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(target_arch = "x86_64")]
mod avx2;
mod check;
mod der;
mod field;
#[cfg(target_arch = "x86_64")]
mod ifma;
mod lanes;
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

pub use check::SignatureCheck;
pub use verifier::{Kernel, Verifier};
