//! Submits random blocks, most with exactly one mutation, to Core's own chain state and to ours: verdict,
//! reason and tip must be equal after each block.
//!
//! Core's side is the kernel library's `ChainstateManager` in a temporary folder. Our side is the engine, which
//! connects block by block; the chain manager's tests cover branches. `cargo test -p apus-engine --test
//! differential -- --ignored` runs thousands of cases.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod core;
mod ours;

use crate::core::Core;
use crate::ours::{Ours, Verdict};
use apus_testkit::chain::{Case, Mutator, raw_of};
use std::collections::BTreeSet;

/// Counts of what occurred, by name.
#[derive(Default)]
struct Tally {
    mutations: BTreeSet<&'static str>,
    accepted: usize,
    rejected: usize,
}

/// Submits a block to both sides.
fn submit(seed: u64, core: &Core, ours: &mut Ours, case: &Case) -> Verdict {
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
        submit(seed, &core, &mut ours, &case).unwrap();
    }
    for _ in 0..cases {
        // An RPC node would complete such blocks; the library gets them unchanged.
        let case = match mutator.one_in(100) {
            true => mutator.case_without_nonce(),
            false => mutator.case(),
        };
        tally.mutations.insert(case.mutation);
        match submit(seed, &core, &mut ours, &case) {
            Ok(()) => {
                tally.accepted += 1;
                mutator.accept(&case.raw);
            }
            Err(_) => tally.rejected += 1,
        }
    }
}

// One test at a time: the reasons are in Core's log, which the whole process shares.
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
