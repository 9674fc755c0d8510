//! Coin stores: the behaviour required of each, and the failures that the disk store survives.
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
