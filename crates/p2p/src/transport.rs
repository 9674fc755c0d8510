//! Connections to peers.
