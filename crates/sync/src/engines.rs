//! The engines, each in a folder, and the modules that they share.
//!
//! SwiftSync and mergesync process segments in any order ([`pass`]); the in-order engine connects blocks one by
//! one. Another crate can supply its own engine as a [`ChainEngine`](crate::ChainEngine).

#[doc(hidden)]
pub mod bip30;
pub mod in_order;
pub mod mergesync;
pub mod pass;
pub mod swiftsync;
