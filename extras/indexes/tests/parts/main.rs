//! The parts of indexes against other implementations and a real node.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod check;
mod coin_stats;
mod filters;
mod node;
mod numbers;
mod support;
