//! Runs and numbers as pictures, in SVG and PNG, with no system font or library.
//!
//! - [`bars()`]: a few numbers beside each other.
//! - [`Picture`]: what all of them make, and the way to files.
//!
//! The same input gives the same bytes. Nothing here writes files.

#![allow(dead_code, reason = "the chart of runs draws with the rest")]

mod axis;
mod bars;
mod font;
mod picture;
mod png;
mod svg;
mod words;

pub use bars::{Bar, BarsError, bars};
pub use picture::Picture;
pub use png::PngError;
