//! `apus submit` from outside: recorded streams through its standard input, a real node beside it,
//! random blocks with one thing changed, kills, and folders that cannot be.
//!
//! Everything that judges blocks needs an interpreter for scripts, so it is tested where the build
//! has one.

mod usage;

#[cfg(feature = "kernel")]
mod differential;
#[cfg(feature = "kernel")]
mod kill;
#[cfg(feature = "kernel")]
mod node;
#[cfg(feature = "kernel")]
mod program;
#[cfg(feature = "kernel")]
mod streams;
