//! Runs the engine without files and threads: any order and any cut give the same verdict, and an invalid
//! chain gives the same block and reason.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod mergesync;
mod swiftsync;
mod utreexo;
