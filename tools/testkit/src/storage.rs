//! Disks that misbehave, behind the engine's own [`Storage`](apus_storage::Storage) door.
//!
//! - [`CrashStorage`] keeps apart what a program has written and what a disk holds for certain,
//!   stops the world at any sync point, and shows the many things that a disk may hold then.
//! - [`FaultStorage`] makes chosen operations of another storage fail, or do less than asked.
//!
//! They promise exactly what the trait promises and break everything that it does not.

mod crash;
mod disk;
mod fault;

pub use crash::{AfterCrash, CrashStorage};
pub use fault::{FaultStorage, Operation};

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod fault_tests;
