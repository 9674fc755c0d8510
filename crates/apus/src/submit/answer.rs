//! [`Answer`]: the line of JSON that a line is answered by. Fields: `docs/formats/submit.md`.

use apus_chain::BlockHash;
use apus_sync::chainman::{Submission, SubmitOutcome};
use serde::Serialize;

/// One line of output.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Answer {
    /// To a block.
    Block {
        /// Its hash; none for bytes too short to have a header.
        hash: Option<String>,
        /// What became of it.
        result: &'static str,
        /// Why it was rejected.
        reason: Option<String>,
        /// The tip now.
        tip: String,
    },
    /// To a command.
    Command {
        /// The tip now.
        tip: String,
    },
    /// To a line that asks for nothing that can be done.
    Error {
        /// What is wrong.
        error: String,
        /// The tip, as it was before.
        tip: String,
    },
}

impl Answer {
    /// The answer to a block.
    pub(super) fn block(submission: Submission, tip: BlockHash) -> Self {
        let (result, reason) = match submission.outcome {
            SubmitOutcome::Accepted => ("accepted", None),
            SubmitOutcome::Rejected { reason } => ("rejected", Some(reason)),
            SubmitOutcome::Duplicate => ("duplicate", None),
            SubmitOutcome::Inconclusive => ("inconclusive", None),
            SubmitOutcome::Orphan => ("orphan", None),
        };
        let hash = submission.hash.map(|hash| hash.to_string());
        Self::Block { hash, result, reason, tip: tip.to_string() }
    }

    /// The answer to a command.
    pub(super) fn command(tip: BlockHash) -> Self {
        Self::Command { tip: tip.to_string() }
    }

    /// The answer to line `number` where something is wrong with it.
    pub(super) fn error(number: u64, what: &str, tip: BlockHash) -> Self {
        Self::Error { error: format!("line {number}: {what}"), tip: tip.to_string() }
    }
}
