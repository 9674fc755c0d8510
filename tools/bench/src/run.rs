//! `apus-bench run`: Apus and Bitcoin Core on the same blocks, compared.
//!
//! - [`matrix`]: the runs, as tables of data.
//! - [`session()`]: executes them round after round, each in a separate process, so that a slow minute
//!   of the machine affects every kind; and compares the results.
//! - [`node`]: the other program.
//! - [`BenchRecord`]: the results, as JSON; [`tables()`] for people; [`markdown()`] and [`chart()`] show the
//!   same.
//!
//! Times mean nothing if results differ, so results are compared first: all runs with each other, with the
//! chain maker's numbers, and with the node's own set. A difference ends the benchmark with an error and
//! without numbers.

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
