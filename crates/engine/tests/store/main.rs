//! Stores of coins: what every one of them must do, and what the one on disk survives.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod concurrent;
mod conformance;
mod damage;
mod faults;
mod kill;
mod laws;
mod model;
mod power;
mod refusals;
mod support;
