//! Verifies many independent signatures of secp256k1 at once, one in each SIMD lane.

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
mod radix29;
mod radix52;
mod scalar;
mod self_test;
#[cfg(test)]
mod tests;
mod verifier;
mod words;

pub use batch::is_faulty;
pub use check::SignatureCheck;
pub use verifier::{Kernel, Verifier};
