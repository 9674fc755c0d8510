//! The chain state against a plain model: connecting, going back, refusing, resuming.

mod bip30;
pub(crate) mod harness;
mod model;
mod pending;
mod refusals;
mod sums;
