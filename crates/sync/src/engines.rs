//! The engines: everything of one is in one folder, and beside them is what they share.
//!
//! SwiftSync and mergesync work by segments ([`pass`]); the engine in order takes one block after the other. Another one may
//! come from outside, as a [`ChainEngine`](crate::ChainEngine).

#[doc(hidden)]
pub mod bip30;
pub mod in_order;
pub mod mergesync;
pub mod pass;
pub mod swiftsync;
