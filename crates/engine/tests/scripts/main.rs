//! Core's interpreter behind the pool, against vectors and real blocks.

#![allow(clippy::unwrap_used, reason = "tests")]

mod names;
mod spend;
