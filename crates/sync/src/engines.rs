//! The engines: everything of one is in one folder, and beside them is what they share.
//!
//! SwiftSync, mergesync and Utreexo work by segments ([`pass`]); the engine in order takes one block after the other. Any of
//! them may be replaced from outside by a [`ChainEngine`](crate::ChainEngine).

mod bip30;
pub mod in_order;
pub mod mergesync;
pub mod pass;
pub mod swiftsync;
pub mod utreexo;
