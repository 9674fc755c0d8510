//! The chain state against a plain model: connecting, going back, refusing, resuming.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod bip30;
mod harness;
mod model;
mod pending;
mod refusals;
mod sums;
