//! A web page that shows a sync in the browser, and its metrics for Prometheus.
//!
//! [`PageServer`] answers from its own thread, with the contents of a [`Board`]. It serves a page whose parts are
//! compiled into the program, the state that the page draws, and metrics. Nothing here can change a sync, and no
//! request can name a file.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod access;
mod answer;
mod guests;
mod server;

pub use access::{Token, TokenError};
pub use server::{PageServer, ServerOptions, WebError};

/// The contents that a server shows.
pub trait Board: Send + Sync + 'static {
    /// Everything that the page draws, as one JSON object.
    fn state(&self) -> String;

    /// All metrics, in Prometheus' text format.
    fn metrics(&self) -> String;

    /// Called about once a second while the server is running.
    fn tick(&self);
}
