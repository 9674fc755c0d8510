//! Peers: how to talk to them, how to get headers and blocks from many of them at once.
//!
//! What decides is written without sockets, clocks and threads, so that tests can drive it through
//! any schedule: [`headers`] and [`download`] are told what happened and say what to do. The parts
//! that touch the network are beside them; [`network`] puts all of it together. Blocks are mere
//! data here, and so is what messages hold that are not known here: the caller checks them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod addresses;
pub mod download;
pub mod headers;
pub mod message;
pub mod network;
pub mod transport;

/// A peer of this run: given out once, never again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);
