//! The parts of indexes against other implementations and a real node.

mod check;
mod coin_stats;
mod filters;
mod node;
mod numbers;
mod standing;
mod support;
