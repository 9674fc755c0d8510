//! [`Keys`]: names of what a store has on the servers. Each begins with the store's own name.
//!
//! A key is alone in its slot of the cluster, so what belongs together may lie on different servers,
//! and no command is about two keys.

use super::wal::Token;

/// The names of one store.
#[derive(Debug, Clone)]
pub(super) struct Keys(String);

impl Keys {
    pub(super) fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// What the store is, and at which block: a string.
    pub(super) fn record(&self) -> String {
        format!("{}:record", self.0)
    }

    /// Who writes: a string that goes away by itself.
    pub(super) fn lease(&self) -> String {
        format!("{}:lease", self.0)
    }

    /// Tokens of flushes that were begun: a set.
    pub(super) fn flushes(&self) -> String {
        format!("{}:flushes", self.0)
    }

    /// A chunk of a flush: a string.
    pub(super) fn chunk(&self, token: &Token, number: u32) -> String {
        format!("{}:w:{token}:{number}", self.0)
    }

    /// A bucket of coins: a hash.
    pub(super) fn coins(&self, bucket: u16) -> String {
        format!("{}:c:{bucket:04x}", self.0)
    }

    /// A bucket of undo data: a hash.
    pub(super) fn undo(&self, bucket: u8) -> String {
        format!("{}:u:{bucket:02x}", self.0)
    }

    /// The blocks whose undo data is there: a hash.
    pub(super) fn undo_blocks(&self) -> String {
        format!("{}:undo", self.0)
    }
}
