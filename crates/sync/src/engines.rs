//! The engines, and what all of them share.

mod bip30;
pub mod in_order;
pub mod mergesync;
pub mod pass;
pub mod swiftsync;
pub mod utreexo;
