//! Makes jobs for each engine, and for a combination of two.

use crate::harness::{ENGINES, Job, World};
use crate::world::Truth;
use apus_sync::Engine;

/// Makes jobs over a chain, each with its name and its expected result.
pub(crate) fn ways(world: &World) -> Vec<(&'static str, Job, Truth)> {
    let job = world.job();
    let mut all = vec![
        ("by hints", Job { hints: Some(world.hints(world.truth.stop)), ..job.clone() }),
        ("with hints, then in order", Job { hints: Some(world.hints(110)), ..job.clone() }),
    ];
    all.extend(ENGINES.map(|engine| (name(engine), Job { engine, ..job.clone() })));
    let engine = Engine::MergeSync;
    all.push(("by joins in batches", Job { engine, batch_segments: Some(4), ..job }));
    all.into_iter().map(|(name, job)| (name, job, world.truth.clone())).collect()
}

fn name(engine: Engine) -> &'static str {
    match engine {
        Engine::Utxo => "in order",
        Engine::MergeSync => "by a join",
        Engine::Outside(name) => name,
    }
}
