//! Disks that misbehave, behind the engine's [`Storage`](apus_storage::Storage) trait.
//!
//! - [`CrashStorage`] separates what a program has written from what a disk certainly holds, stops the world at any
//!   sync point, and shows the many states that a disk may then have.
//! - [`MirrorStorage`] does the same for a real folder.
//! - [`FaultStorage`] makes chosen operations of another storage fail, or do less than requested.
//!
//! They keep exactly the promises of the trait, and no others.

mod crash;
mod disk;
mod fault;
mod mirror;

pub use crash::{AfterCrash, CrashStorage};
pub use fault::{FaultStorage, Operation};
pub use mirror::MirrorStorage;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod fault_tests;
