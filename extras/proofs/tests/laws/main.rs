//! The engine without files and threads: the same verdict whatever the order and the cut, and the same block for the
//! same reason where a chain is invalid.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod mergesync;
mod swiftsync;
mod utreexo;
