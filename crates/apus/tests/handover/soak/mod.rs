//! The soak test: real nodes run on every kind of folder that the program writes.
//!
//! A [`world::World`] has a reference node, which did everything itself from the genesis block, and the blocks that
//! it was given. From that chain the program writes each kind of folder ([`kinds`]), and another node runs on it
//! ([`life`]): it switches to other branches, up to 100 blocks deep, it is restarted, killed, pruned, and checks
//! itself, and in between the program may rebuild its coins. Both nodes always get the same blocks, some of them
//! invalid, and must give the same verdict on each, have the same tip, and have the same coins.
//!
//! In addition, [`leveldb`] gives nodes chainstates that lie.
//!
//! A seed determines everything except time: how far a run has got when it is killed. `scripts/soak` runs it for as
//! long as wanted; one short world is among the tests.

mod kinds;
#[cfg(feature = "kernel")]
mod leveldb;
mod life;
mod tally;
mod world;

use kinds::{KINDS, Kind};
use life::Life;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};
use tally::Tally;
use world::{HEIGHT_MIN, World};

/// How long nodes run.
#[derive(Clone, Copy)]
struct Span {
    /// Upper bound on the blocks that a world begins with.
    height_max: u32,
    /// Upper bound on the events of a life.
    events_max: u64,
    /// No event begins after this.
    end: Option<Instant>,
}

impl Span {
    fn is_over(self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }
}

/// Runs a life on each of these kinds of folder, in one world.
fn run(seed: u64, kinds: &[Kind], span: Span, tally: &mut Tally) {
    let mut world = World::new(seed, span.height_max);
    let mut kinds = kinds.to_vec();
    world.rng.shuffle(&mut kinds);
    for kind in kinds {
        if span.is_over() {
            return;
        }
        Life::begin(&mut world, kind, tally).live(span);
    }
}

#[test]
fn a_node_runs_on_every_kind_of_folder() {
    let mut tally = Tally::default();
    let span = Span { height_max: HEIGHT_MIN, events_max: 3, end: None };
    run(1, &KINDS, span, &mut tally);
    println!("{tally}");
    for kind in KINDS {
        let counts = tally.of(kind.name);
        assert!(counts.reorganisations() > 0 && counts.comparisons > 0, "{tally}");
    }
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

/// The kinds that the environment names, or all.
fn kinds_wanted() -> Vec<Kind> {
    let Some(wanted) = std::env::var("SOAK_KIND").ok().filter(|text| !text.is_empty()) else {
        return KINDS.to_vec();
    };
    let kind = |name: &str| KINDS.into_iter().find(|kind| kind.name == name);
    let names = KINDS.map(|kind| kind.name).join(", ");
    let unknown = |name: &str| panic!("there is no kind {name:?}, but these: {names}");
    wanted.split(',').map(|name| kind(name).unwrap_or_else(|| unknown(name))).collect()
}

/// Runs world after world until the time is over, for `scripts/soak`.
#[test]
#[ignore = "as long as wanted: scripts/soak"]
fn nodes_live_for_as_long_as_asked() {
    let seconds = from_environment("SOAK_SECONDS").unwrap_or(60);
    let seed = from_environment("SOAK_SEED").unwrap_or(1);
    let kinds = kinds_wanted();
    let end = Some(Instant::now() + Duration::from_secs(seconds));
    let span = Span { height_max: 500, events_max: 24, end };
    let mut tally = Tally::default();
    let lives = AssertUnwindSafe(|| {
        for seed in (seed..).take_while(|_| !span.is_over()) {
            run(seed, &kinds, span, &mut tally);
        }
    });
    let ended = catch_unwind(lives);
    println!("{tally}");
    if let Err(disagreement) = ended {
        resume_unwind(disagreement);
    }
}
