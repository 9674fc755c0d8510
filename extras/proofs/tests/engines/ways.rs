//! Jobs that write roots of the forest: by proofs, and together with a set.

use crate::from_roots::from_roots;
use crate::harness::{Job, World};
use crate::roots::{truth, with_roots};
use crate::utreexo::by_proofs;
use crate::world::Truth;
use apus_sync::Engine;

/// Jobs over a chain, each with its name and its expected result.
pub(crate) fn ways(world: &World) -> Vec<(&'static str, Job, Truth)> {
    let by_hints = Job { hints: Some(world.hints(world.truth.stop)), ..world.job() };
    let (above, after) = from_roots(world, &[1, 50, 90, 101, 102, 110], 95);
    let all = [
        ("by proofs", by_proofs(world, &[1, 50, 90, 101, 102, 110])),
        ("by hints", with_roots(by_hints)),
        ("by a join", with_roots(Job { engine: Engine::MergeSync, ..world.job() })),
    ];
    let all = all.into_iter().map(|(name, job)| (name, job, truth(world)));
    all.chain([("by proofs, from roots", above, after)]).collect()
}
