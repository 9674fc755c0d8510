//! End-to-end tests of `apus submit`: recorded streams on its standard input, a real node for comparison, random blocks
//! with one change, kills, and invalid folders.
//!
//! Validating blocks needs a script interpreter, so most tests need a build with one.

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
