//! The commands: what each takes, and how what it measures is told.

mod apus;
pub(crate) mod chain;
pub(crate) mod chainstate;
mod common;
pub(crate) mod decorate;
pub(crate) mod floor;
pub(crate) mod peers;
pub(crate) mod prevouts;
pub(crate) mod run;
#[cfg(feature = "remote-coins")]
mod servers;
