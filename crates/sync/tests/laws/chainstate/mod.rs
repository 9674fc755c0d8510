//! Compares the chain state with a simple model: connecting, disconnecting, refusing, resuming.

mod bip30;
pub(crate) mod harness;
mod model;
mod pending;
mod refusals;
mod sums;
