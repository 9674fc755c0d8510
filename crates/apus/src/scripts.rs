//! What runs scripts, where this build has it.

use crate::failure::{Failure, WITHOUT_SCRIPTS};
use apus_chain::{Params, ScriptVerifier};

/// Scripts are run for signet's block solutions alone; without an interpreter signet cannot be.
pub(crate) fn verifier(params: &Params) -> Result<Option<Box<dyn ScriptVerifier>>, Failure> {
    if params.signet_challenge.is_none() {
        return Ok(None);
    }
    apus_sync::script_verifier().map(Some).map_err(|error| {
        Failure::usage(format!(
            "signet blocks are signed, and their signatures cannot be checked: {error}"
        ))
    })
}

/// Fails in a build that runs no scripts.
pub(crate) fn expect_interpreter() -> Result<(), Failure> {
    let missing = apus_sync::script_verifier().map(drop);
    missing.map_err(|error| Failure::usage(format!("{error}{WITHOUT_SCRIPTS}")))
}
