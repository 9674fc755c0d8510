//! The roots do not depend on the engine that makes the set.

use crate::harness::{Job, Place, World};
use crate::roots::{truth, with_roots};
use apus_sync::Engine;
use apus_testkit::rng::Rng;

#[test]
fn every_engine_computes_the_same_roots() {
    let mut rng = Rng::new(940);
    for seed in 940..943 {
        let world = World::small(seed);
        let hinted = Job { hints: Some(world.hints(world.truth.stop)), ..world.job() };
        let above = Job { hints: Some(world.hints(world.truth.stop - 9)), ..world.job() };
        let merged = Job { engine: Engine::MergeSync, ..world.job() };
        for job in [hinted, above, merged, world.job()] {
            let (threads, segment_bytes) = (1 + rng.index(4), 1_000 + rng.below(20_000));
            let job = with_roots(Job { threads, segment_bytes, ..job });
            job.expect(&truth(&world), &Place::new());
        }
    }
}
