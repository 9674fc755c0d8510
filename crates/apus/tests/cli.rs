//! The program from outside, as users run it: command lines in; files, texts and exit codes out.
//!
//! [`sandbox::Sandbox::apus`] holds every run to what the program always promises: no file of the user's changes, a failure
//! leaves nothing under an output's name, success leaves nothing but outputs, and there is never a panic.

mod anchored;
mod bad_blocks;
mod bad_hints;
mod bad_usage;
mod bitcoind;
#[cfg(feature = "utreexo")]
mod caches;
#[cfg(feature = "remote-coins")]
mod coins;
#[cfg(feature = "remote-coins")]
mod coins_out;
mod convert;
mod few_files;
#[cfg(feature = "descriptors")]
mod find;
mod fixtures;
mod folders;
mod full_disk;
mod help;
mod history;
mod memory;
mod pipes;
mod plan;
mod plot;
#[cfg(feature = "utreexo")]
mod proofs;
#[cfg(feature = "remote-coins")]
mod recipes;
mod resume;
mod shared;
mod short;
#[cfg(feature = "kernel")]
mod sighints;
mod snapshot;
#[cfg(all(feature = "parquet", feature = "sqlite"))]
mod tables;
#[cfg(all(feature = "kernel", feature = "remote-coins"))]
mod taken_up;
#[cfg(feature = "utreexo")]
mod utreexo;
mod workdir;
