//! Headers from peers.
