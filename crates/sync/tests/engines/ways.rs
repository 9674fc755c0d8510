//! Each engine, and a run of two.

use crate::harness::{ENGINES, Job, World};
use crate::world::Truth;
use apus_sync::Engine;

/// Runs over a chain, each with its name and what must come of it.
pub(crate) fn ways(world: &World) -> Vec<(&'static str, Job, Truth)> {
    let job = world.job();
    let mut all = vec![
        ("by hints", Job { hints: Some(world.hints(world.truth.stop)), ..job.clone() }),
        ("by hints, then in order", Job { hints: Some(world.hints(110)), ..job.clone() }),
    ];
    all.extend(ENGINES.map(|engine| (name(engine), Job { engine, ..job.clone() })));
    all.into_iter().map(|(name, job)| (name, job, world.truth.clone())).collect()
}

fn name(engine: Engine) -> &'static str {
    match engine {
        Engine::Utxo => "in order",
        Engine::MergeSync => "by a join",
        Engine::Outside(name) => name,
    }
}
