//! Tests of the tree: real chains, each rule, and orders.

mod orders;
mod real;
mod rules;
pub(crate) mod testing;
