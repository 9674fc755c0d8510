//! Each engine, and a run of two.

use crate::harness::{Job, World};
use crate::world::Truth;
use apus_sync::Engine;

/// Runs over a chain, each with its name and what must come of it.
pub(crate) fn ways(world: &World) -> Vec<(&'static str, Job, Truth)> {
    let job = world.job();
    let all = [
        ("by hints", Job { hints: Some(world.hints(world.truth.stop)), ..job.clone() }),
        ("in order", job.clone()),
        ("by a join", Job { engine: Engine::MergeSync, ..job.clone() }),
        ("by hints, then in order", Job { hints: Some(world.hints(110)), ..job }),
    ];
    all.into_iter().map(|(name, job)| (name, job, world.truth.clone())).collect()
}
