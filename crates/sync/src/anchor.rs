//! Where hints have to be anchored: which blocks may be taken under them.
//!
//! The sums of a run under hints prove that hints and blocks fit each other, not that the blocks are
//! valid. So of the blocks that are taken under hints, none may be one that Core would check by
//! running its scripts: they end at or below the assumed-valid block, on a chain that contains it,
//! under Core's other conditions ([`ScriptChecks`]). That Core, unlike SwiftSync, looks at amounts,
//! maturity and order below that block, too, is not what this is about: of valid blocks those are
//! right, and which blocks are valid the assumed-valid block says.

use crate::error::SyncError;
use crate::run::Request;
use apus_chain::{HeaderChain, Height, KnownBlock, ScriptCheckReason, ScriptChecks};
use std::fmt;

/// What a run does where blocks under hints are not all assumed valid by Core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HintedValidity {
    /// It refuses the hints, before the first block is taken.
    Anchored,
    /// It takes the blocks for valid, as its user does (`--assume-hinted-valid`), and warns of it.
    Assumed,
    /// It says nothing of it. For those who ask only whether hints and blocks fit each other, and for
    /// blocks that were checked by other means. What is written is to say no more than that.
    NotAsked,
}

/// Blocks taken for valid because the user says so: Core would run their scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanchored {
    /// The first of them.
    pub first: Height,
    /// The last that is taken under hints.
    pub last: Height,
    /// Why Core would run the scripts of the last one.
    pub reason: ScriptCheckReason,
}

impl fmt::Display for Unanchored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last, reason } = self;
        write!(
            f,
            "--assume-hinted-valid: blocks {first} to {last} are taken for valid, and Bitcoin Core \
             would check them ({reason}). This run does not look at their scripts and signatures, \
             their amounts, what their coinbases claim, whether coins are there before they are \
             spent and are mature, relative lock times, and signature operations of spent coins. A \
             node that starts on what comes of it believes all this, and never looks again"
        )
    }
}

/// Hints that are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAnchored {
    /// The last block that would be taken under them.
    pub last: KnownBlock,
    /// Why Core would run its scripts.
    pub reason: ScriptCheckReason,
    /// The last block whose scripts Core would not run, if there is one above genesis.
    pub last_assumed: Option<Height>,
    /// Whether all would be well if the last block were the assumed-valid one.
    pub could_be_assumed: bool,
}

impl NotAnchored {
    /// Whether it may be otherwise on a chain that goes on further.
    pub(crate) fn depends_on_chain(&self) -> bool {
        matches!(
            self.reason,
            ScriptCheckReason::NotInHeaders
                | ScriptCheckReason::NotInBestChain
                | ScriptCheckReason::TooLittleWork
                | ScriptCheckReason::TooRecent
        )
    }
}

impl std::error::Error for NotAnchored {}

impl fmt::Display for NotAnchored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { last: KnownBlock { height, hash }, reason, last_assumed, could_be_assumed } =
            self;
        write!(
            f,
            "block {height} ({hash}) would be taken under hints, and Bitcoin Core would check it: \
             {reason}. That hints and blocks fit each other does not make the blocks valid, so hints \
             may reach no further than what Core assumes valid. What helps: "
        )?;
        if let Some(height) = last_assumed {
            write!(f, "hints that stop at block {height} or below; ")?;
        }
        f.write_str("no hints, so that every rule is checked; ")?;
        if *could_be_assumed {
            write!(f, "--assumevalid {hash}, if you know that this block is valid; ")?;
        }
        f.write_str(
            "or --assume-hinted-valid, if you know where the hints are from and take the blocks for \
             valid yourself",
        )
    }
}

/// Asks whether the blocks of `chain` up to `last`, which is one of them, may be taken under hints.
/// Returns those that are taken for valid on the user's word.
///
/// Only the last block is asked about: where its scripts would not be run, those of no block below it
/// would ([`ScriptChecks::last_assumed`]).
pub(crate) fn expect_anchored(
    request: &Request<'_>,
    chain: &HeaderChain,
    last: KnownBlock,
) -> Result<Option<Unanchored>, SyncError> {
    let assumed = match &request.connect {
        Some(connect) => connect.assume_valid,
        None => request.params.default_assume_valid,
    };
    let checks = ScriptChecks::new(request.params, chain, assumed);
    // The genesis block is in every chain, and no run takes it.
    let Some(reason) = checks.reason(last.height).filter(|_| last.height > 0) else {
        return Ok(None);
    };
    let last_assumed = checks.last_assumed().filter(|height| *height > 0);
    match request.hinted_validity {
        HintedValidity::NotAsked => Ok(None),
        HintedValidity::Assumed => {
            let first = last_assumed.map_or(1, |height| height + 1);
            Ok(Some(Unanchored { first, last: last.height, reason }))
        }
        HintedValidity::Anchored => {
            let assuming_it = ScriptChecks::new(request.params, chain, Some(last.hash));
            let could_be_assumed = !assuming_it.needed(last.height);
            let refused = NotAnchored { last, reason, last_assumed, could_be_assumed };
            Err(SyncError::NotAnchored(Box::new(refused)))
        }
    }
}
