//! Hashes many independent messages at once with SHA-256 and SHA-512/256, and computes MuHash3072,
//! using the machine's fastest kernel.
//!
//! - [`Sha256`], [`sha256()`], [`sha256d`]: one message.
//! - [`sha256_many`]: many messages, each a [`Message`] in up to three pieces.
//! - [`sha256d_many`]: the same, hashed twice, as for transaction ids.
//! - [`sha256d_pairs`]: one level of a merkle tree.
//! - [`KeyedHasher`]: outpoints under a secret key, and sums of their digests.
//! - [`sha512_256`]: Utreexo's hash function, for messages and for levels of a tree.
//! - [`Sha256Kernel`]: the kernel in use; the environment variable `APUS_SHA256_KERNEL` forces one of
//!   `portable`, `shani`, `avx2`, `avx512`, `armv8`.
//! - [`prefetch`](prefetch()): prefetches bytes that will be read soon; [`release`](release()): frees
//!   large vectors, unless an allocator keeps them ([`keep_below`]).
//! - [`muhash`]: 3072-bit numbers from keys, and their products.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(target_arch = "aarch64")]
mod armv8;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod groups;
mod kernel;
mod lanes;
mod memory;
pub mod muhash;
mod padded;
mod rounds;
mod sha256;
mod sha512;
#[cfg(target_arch = "x86_64")]
mod shani;
mod single;
#[cfg(test)]
mod tests;

pub use kernel::Sha256Kernel;
pub use memory::{keep_below, prefetch, release};
pub use padded::Message;
pub use sha256::{
    KeyedHasher, Sha256, sha256, sha256_many, sha256d, sha256d_each, sha256d_many, sha256d_pairs,
};
pub use sha512::sha512_256;
