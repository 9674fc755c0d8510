//! Which peer is asked for which block.
