//! Bitcoin's peer-to-peer network: talks to peers, and downloads headers and blocks from many of them at
//! once.
//!
//! All decisions are made without sockets, clocks or threads, so that tests can drive them through any
//! schedule: the caller reports events to [`headers`] and [`download`], and they return actions. Other
//! modules touch the network; [`network`] puts everything together. This crate treats blocks, and message
//! contents it does not know, as opaque data: the caller checks them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod addresses;
pub mod download;
pub mod headers;
pub mod message;
pub mod network;
pub mod transport;

/// Identifies a peer within this execution. Ids are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);
