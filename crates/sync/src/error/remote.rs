//! [`RemoteError`]: what another machine says is wrong with blocks, or with what it was told of them.

use super::{ErrorKind, InvalidBlock};

/// See the module. It reads as the error does on the machine where it was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct RemoteError {
    /// What is at fault.
    pub kind: RemoteKind,
    /// For people.
    pub text: String,
}

/// What is at fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteKind {
    /// A block.
    Block(InvalidBlock),
    /// Hints, or a block.
    Hints,
    /// Something else that was judged.
    Other,
}

impl RemoteError {
    /// What it means.
    pub(super) fn kind(&self) -> ErrorKind {
        match self.kind {
            RemoteKind::Block(_) => ErrorKind::Invalid,
            RemoteKind::Hints | RemoteKind::Other => ErrorKind::Wrong,
        }
    }
}
