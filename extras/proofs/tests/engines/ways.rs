//! Runs by proofs, for what every engine promises.

use crate::harness::{Job, World};
use crate::utreexo::by_proofs;

/// Runs over a chain, each with its name.
pub(crate) fn ways(world: &World) -> Vec<(&'static str, Job)> {
    vec![("by proofs", by_proofs(world, &[1, 50, 90, 101, 102, 110]))]
}
