//! `apus-bench run`: Apus and Bitcoin Core on the same blocks, side by side.
//!
//! - [`matrix`]: what is run, as tables of data.
//! - [`session()`]: all of it, round after round, each run a process of its own, so that a slow
//!   minute of the machine meets every kind; and the comparison of what came out.
//! - [`node`]: the other program.
//! - [`Record`]: what was found, as JSON; [`tables()`] for people, [`markdown()`] and [`chart()`] of the
//!   same.
//!
//! Times are worth nothing if results differ, so results are compared first: all runs with each
//! other, with what the chain's maker said, and with the node's own set. A difference ends the
//! benchmark with an error and without numbers.

mod beside;
mod cache;
pub(crate) mod chain;
mod chart;
mod course;
mod derive;
mod equality;
pub(crate) mod error;
mod fitness;
pub mod matrix;
pub mod node;
pub(crate) mod own;
mod profiles;
mod record;
mod report;
mod session;
mod subject;
mod tables;
#[cfg(test)]
mod testing;

pub use crate::machine::Machine;
pub use crate::process::{ProcessError, Usage};
pub use crate::stats::Spread;
pub use crate::table::{Table, bytes, grouped, short};
pub use apus_chain::utc;
pub use cache::PageCache;
pub use chain::Chain;
pub use chart::chart;
pub use error::RunError;
pub use record::{
    ChainRecord, Counts, Measured, OneRun, OutputCost, Ratio, Record, Scaling, VERSION,
};
pub use report::{ForestResult, PhaseTime, Report, SetResult};
pub use session::{Attachments, Event, Plan, session};
pub use tables::{markdown, tables};
