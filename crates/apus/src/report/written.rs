//! [`WrittenFile`]: an output that is a file.

use super::bytes;
use crate::args::SinkArg;
use serde::Serialize;
use std::fmt;

/// A file that a run wrote.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct WrittenFile {
    /// As `--out` has it.
    pub(crate) kind: &'static str,
    pub(crate) path: String,
    /// Its length; null where the system does not tell.
    pub(crate) bytes: Option<u64>,
}

impl WrittenFile {
    /// Those among the outputs of a run that succeeded.
    pub(crate) fn all(outputs: &[SinkArg]) -> Vec<Self> {
        let file = |output: &SinkArg| {
            let (kind, path) = match output {
                SinkArg::Snapshot(path) => ("snapshot", path),
                SinkArg::Hints(path) => ("hints", path),
                SinkArg::Utreexo(path) => ("utreexo", path),
                SinkArg::Chainstate(_) | SinkArg::Datadir(_) | SinkArg::Null => return None,
            };
            let bytes = path.metadata().ok().map(|metadata| metadata.len());
            Some(Self { kind, path: path.display().to_string(), bytes })
        };
        outputs.iter().filter_map(file).collect()
    }
}

impl fmt::Display for WrittenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.bytes.map(|length| format!(" ({})", bytes(length))).unwrap_or_default();
        write!(
            f,
            "Written: {}{length}, {}.",
            self.path,
            match self.kind {
                "snapshot" => "a UTXO snapshot",
                "hints" => "hints",
                _ => "the roots of the Utreexo forest",
            }
        )
    }
}
