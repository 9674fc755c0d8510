//! Verifies many independent signatures of secp256k1 at once, one in each SIMD lane.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(target_arch = "x86_64")]
mod avx2;
mod field;
#[cfg(target_arch = "x86_64")]
mod ifma;
mod portable;
mod radix29;
mod radix52;
#[cfg(test)]
mod tests;
mod words;
