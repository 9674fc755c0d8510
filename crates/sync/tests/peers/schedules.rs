//! Tests random peers whose random behaviour changes from one connection to the next.

use crate::harness::World;
use apus_testkit::effort::rounds;
use apus_testkit::peer::{Behaviour, FakePeer};
use apus_testkit::rng::Rng;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of syncs in parallel: they mostly wait.
const THREADS: usize = 16;

/// Maximum number of peers.
const PEERS: u64 = 5;

/// Runs one schedule: if some peer is honest in the end, the sync must give the right set.
fn run(world: &World, seed: u64) {
    let mut rng = Rng::new(seed);
    let count = rng.between(1, PEERS);
    let honest = rng.below(count);
    let mut said = Vec::new();
    let peers: Vec<FakePeer> = (0..count)
        .map(|number| {
            let mut behaviours: Vec<Behaviour> = (0..rng.between(0, 2))
                .map(|_| Behaviour::BAD[rng.index(Behaviour::BAD.len())])
                // These behaviours would exceed the idle timeout before the next one's turn.
                .filter(|behaviour| number != honest || !is_slow(*behaviour))
                .collect();
            let last = if number == honest || rng.one_in(2) {
                Behaviour::Honest
            } else {
                Behaviour::BAD[rng.index(Behaviour::BAD.len())]
            };
            behaviours.push(last);
            said.push(behaviours.clone());
            FakePeer::slow(&world.chain, &behaviours, Duration::from_micros(rng.below(2000)))
        })
        .collect();
    let mut job = world.job();
    job.patience = Duration::from_secs(60);
    job.bytes_max = 1 << rng.between(10, 20);
    if let Err(error) = job.try_expect(&peers.iter().collect::<Vec<_>>()) {
        panic!("seed {seed}, {said:?}: {error}");
    }
}

/// Returns whether a peer may keep a connection without progress for longer than the idle timeout.
fn is_slow(behaviour: Behaviour) -> bool {
    matches!(
        behaviour,
        Behaviour::Drip
            | Behaviour::DripBlocks
            | Behaviour::SilentAtOnce
            | Behaviour::SilentAfterHandshake
            | Behaviour::NoHeaders
            | Behaviour::SameHeaders
            | Behaviour::NoVerack
            | Behaviour::NotFound
    )
}

#[test]
fn each_gives_the_right_set() {
    let world = World::small(31);
    let (seeds, next) = (rounds(60, 2_000), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    run(&world, seed);
                }
            });
        }
    });
}
