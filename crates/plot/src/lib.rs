//! Runs and numbers as pictures, in SVG and PNG, with no system font or library.
//!
//! - [`read()`]: a run from its file, a report of Apus or a `debug.log` of Bitcoin Core.
//! - [`Comparison`]: how many times as fast as one of them runs are.
//! - [`chart()`]: runs as lines, height over time, and the ratios below.
//! - [`bars()`]: a few numbers beside each other.
//! - [`Picture`]: what charts make, and the way to files.
//! - [`csv()`]: the points for other programs.
//!
//! The same input gives the same bytes. Nothing here writes files.

mod axis;
mod bars;
mod chart;
mod compare;
mod course;
mod csv;
mod font;
mod picture;
mod png;
mod read;
mod svg;
mod words;

pub use bars::{Bar, BarsError, bars};
pub use chart::{TimeScale, chart};
pub use compare::{Comparison, UnknownBaseline};
pub use course::{Measure, Point, Run, Scripts};
pub use csv::csv;
pub use picture::Picture;
pub use png::PngError;
pub use read::{ReadError, ReadOptions, Since, labels, read};
pub use words::total;
