//! Attacks SwiftSync: wrong hints, chains and callers of every kind we could think of must make a sync fail,
//! and right hints must give the right set, however the work is divided.

mod bad_spends;
mod bip30;
mod coin_hashes;
pub(crate) mod harness;
mod pass_laws;
mod properties;
mod right_hints;
mod segments;
mod shapes;
mod snapshot_hints;
mod spent_later;
mod supply;
mod unspendable;
mod wrong_hints;
