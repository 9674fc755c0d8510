//! A page that shows a run in a browser, and its numbers for Prometheus.
//!
//! [`PageServer`] answers from a thread of its own; what there is to say it gets from a [`Board`]. It serves a page whose
//! parts are all in the program, the state that the page draws, and metrics, and nothing else: nothing here changes a
//! run, and no request names a file.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod access;
mod answer;
mod guests;
mod server;

pub use access::{Token, TokenError};
pub use server::{PageServer, ServerOptions, WebError};

/// What a server shows.
pub trait Board: Send + Sync + 'static {
    /// Everything that the page draws, as one JSON object.
    fn state(&self) -> String;

    /// All numbers, in Prometheus' text format.
    fn metrics(&self) -> String;

    /// Called about once a second, while the server is there.
    fn tick(&self);
}
