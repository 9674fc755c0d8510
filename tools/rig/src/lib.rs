//! What the benchmarks and the testkit share, and no other part of Apus uses.
//!
//! - [`rng`]: random numbers that a seed fixes, the same everywhere.
//! - [`rpc`]: calls to a node on this machine.
//!
//! Nothing here decides what a block or a coin is: the testkit's account of those is held against
//! the benchmarks' chains, and shares none of it with them.

pub mod rng;
pub mod rpc;
