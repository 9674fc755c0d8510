//! `apus-bench run`: Apus and Bitcoin Core on the same blocks, side by side.
//!
//! - [`matrix`]: what is run, as tables of data.
//! - [`session()`]: all of it, round after round, each run a process of its own, so that a slow
//!   minute of the machine meets every kind; and the comparison of what came out.
//! - [`node`]: the other program.
//! - [`BenchRecord`]: what was found, as JSON; [`tables()`] for people, [`markdown()`] and [`chart()`] of the
//!   same.
//!
//! Times are worth nothing if results differ, so results are compared first: all runs with each
//! other, with what the chain's maker said, and with the node's own set. A difference ends the
//! benchmark with an error and without numbers.

mod chart;
pub mod command;
pub mod matrix;
pub mod node;
pub(crate) mod own;
mod record;
mod report;
mod session;
mod subject;
mod tables;
#[cfg(test)]
pub(crate) mod tests;

pub use crate::chain::{BenchChain, PageCache};
pub use crate::machine::BenchMachine;
pub use crate::process::Usage;
pub use crate::table::MeasuredSpread;
pub use crate::table::{TextTable, bytes, grouped, short};
pub use apus_chain::utc;
pub use chart::chart;
pub use record::{
    BenchRecord, ChainRecord, OneRun, OutputCost, Ratio, Scaling, SubjectMeasured, VERSION,
};
pub use report::{ApusReport, ForestResult, PhaseTime, RecordCounts, SetResult};
pub use session::{Attachments, SessionPlan, session};
pub use tables::{markdown, tables};
