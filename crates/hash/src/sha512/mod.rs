//! SHA-512/256 of many messages at once (FIPS 180-4): the hash function of Utreexo's trees and
//! leaves.
//!
//! The kernels are those of SHA-512: portable for one message, AVX2 for four, AVX-512 for eight.
//! Few x86-64 processors have instructions for its rounds, so lanes gain more here than they do in
//! SHA-256. Rounds, padding, sorting and the tokens of kernels are those of SHA-256. Only
//! [`sha512_256`] is seen from outside.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod constants;
mod groups;
mod lanes;
mod portable;
pub mod sha512_256;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vector;

/// Bytes in a block.
const BLOCK: usize = 128;

/// A message as SHA-512 sees it.
type Padded<'a> = crate::message::Padded<'a, BLOCK>;
