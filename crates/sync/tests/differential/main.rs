//! Random blocks, most with exactly one thing changed, under the eyes of Core's own chain state:
//! the same verdict, for the same reason, and the same tip after each of them.
//!
//! Core's side is the kernel library's `ChainstateManager` in a temporary folder. Ours is what the
//! engine has, block by block on the tip; what becomes of branches is tested where they are
//! managed. `cargo test -p apus-engine --test differential -- --ignored` runs thousands of cases.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod core;
mod ours;

use crate::core::Core;
use crate::ours::{Ours, Verdict};
use apus_testkit::chain::{Case, Mutator, raw_of};
use std::collections::BTreeSet;

/// What was met, by name.
#[derive(Default)]
struct Tally {
    mutations: BTreeSet<&'static str>,
    accepted: usize,
    rejected: usize,
}

/// Gives a block to both.
fn judge(seed: u64, core: &Core, ours: &mut Ours, case: &Case) -> Verdict {
    let verdict = ours.submit(&case.raw);
    let theirs = core.submit(&case.raw);
    let tip = core.tip();
    let same = match &verdict {
        Ok(()) => theirs.accepted,
        Err(reason) => !theirs.accepted && theirs.says(reason),
    };
    let block: String = case.raw.iter().map(|byte| format!("{byte:02x}")).collect();
    let Case { mutation, .. } = case;
    assert!(same, "seed {seed}, {mutation}: {verdict:?}, but Core: {theirs:?}: {block}");
    assert_eq!(ours.tip(), tip, "seed {seed}, {mutation}: {verdict:?}: {block}");
    verdict
}

fn run(seed: u64, cases: usize, tally: &mut Tally) {
    let core = Core::start();
    let mut ours = Ours::start();
    let mut mutator = Mutator::new(seed);
    for block in mutator.base() {
        let case = Case { mutation: "base", raw: raw_of(&block) };
        judge(seed, &core, &mut ours, &case).unwrap();
    }
    for _ in 0..cases {
        // What a node mends when it comes by RPC is judged as it is by the library.
        let case = match mutator.one_in(100) {
            true => mutator.case_without_nonce(),
            false => mutator.case(),
        };
        tally.mutations.insert(case.mutation);
        match judge(seed, &core, &mut ours, &case) {
            Ok(()) => {
                tally.accepted += 1;
                mutator.accept(&case.raw);
            }
            Err(_) => tally.rejected += 1,
        }
    }
}

// One test at a time: Core's log, which tells its reasons, is the process's.
#[test]
fn random_blocks_get_cores_verdict() {
    let mut tally = Tally::default();
    run(1, 300, &mut tally);
    let Tally { mutations, accepted, rejected } = tally;
    assert!(mutations.len() > 80 && accepted > 60 && rejected > 60, "{accepted} {rejected}");
    assert!(mutations.contains("nonce missing"));
}

#[test]
#[ignore = "thousands of cases, for every change of a rule"]
fn thousands_of_random_blocks_get_cores_verdict() {
    let mut tally = Tally::default();
    (200..212).for_each(|seed| run(seed, 300, &mut tally));
    assert!(tally.mutations.len() > 170, "{:?}", tally.mutations);
}
