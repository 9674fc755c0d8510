//! Random blocks, most with exactly one change, compared with a real node: the same verdict and the same tip after each
//! block.
//!
//! A seed determines everything, so a disagreement can be reproduced: the failure shows the seed, the change and the
//! block. `cargo test -p apus --test program submit:: -- --ignored --nocapture` runs thousands of cases and prints
//! how often each change occurred. `DIFFERENTIAL_SEEDS=5..9` in the environment selects other seeds.

use crate::submit::node::{agree, submit};
use crate::submit::program::Program;
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::{Case, Mutator};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;
use std::str::FromStr;

/// How often each change occurred, and how often the block was accepted.
type Tally = BTreeMap<&'static str, (usize, usize)>;

/// The node and the program, on the same chain.
struct Both {
    seed: u64,
    node: Bitcoind,
    program: Program,
    mutator: Mutator,
    given: Vec<Case>,
    tally: Tally,
}

fn hex(raw: &[u8]) -> String {
    raw.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

impl Both {
    fn start(seed: u64) -> Self {
        let mut both = Self {
            seed,
            node: Bitcoind::start(&[]),
            program: Program::start(&[]),
            mutator: Mutator::new(seed),
            given: Vec::new(),
            tally: Tally::new(),
        };
        for block in both.mutator.base() {
            let raw = apus_testkit::chain::raw_of(&block);
            let answer = both.compare(&Case { mutation: "base", raw }).unwrap();
            assert_eq!(answer["result"], "accepted", "seed {seed}: {answer}");
        }
        both.tally.clear();
        both
    }

    /// Submits a block to both, which must give the same verdict and have the same tip.
    fn compare(&mut self, case: &Case) -> Result<Value, String> {
        let block = hex(&case.raw);
        let said = submit(&self.node, &block);
        let answer = self.program.ask(&block);
        let tip = self.node.best_block_hash().to_string();
        let (met, accepted) = self.tally.entry(case.mutation).or_default();
        *met += 1;
        *accepted += usize::from(answer["result"] == "accepted");
        if agree(&said, &answer) && answer["tip"] == tip {
            return Ok(answer);
        }
        let Self { seed, .. } = self;
        let mutation = case.mutation;
        Err(format!(
            "seed {seed}, {mutation}: the node says {said:?}, tip {tip}; {answer}: {block}"
        ))
    }

    /// Submits a case on the tip, a repeated case, or a branch.
    fn round(&mut self) -> Result<(), String> {
        if self.mutator.one_in(25) && !self.given.is_empty() {
            // The cases are random, so any fixed index picks a random one.
            let index = self.given.len() / 2;
            let again = Case { mutation: "given again", ..self.given.swap_remove(index) };
            self.compare(&again)?;
            return Ok(());
        }
        if self.mutator.one_in(10) {
            for case in self.mutator.branch(3) {
                self.compare(&case)?;
            }
            self.mutator.go_to(self.node.best_block_hash());
            return Ok(());
        }
        let case = self.mutator.case();
        let answer = self.compare(&case)?;
        if answer["result"] == "accepted" {
            self.mutator.accept(&case.raw);
        }
        self.given.push(case);
        Ok(())
    }
}

/// Runs rounds until there were `cases`, or a disagreement, after which the chains differ.
fn run(seed: u64, cases: usize) -> (Tally, Option<String>) {
    let mut both = Both::start(seed);
    let count = |tally: &Tally| tally.values().map(|(met, _)| met).sum::<usize>();
    while count(&both.tally) < cases {
        if let Err(disagreement) = both.round() {
            return (both.tally, Some(disagreement));
        }
    }
    both.program.end();
    (both.tally, None)
}

#[test]
fn random_blocks_get_a_real_nodes_verdict() {
    let (tally, disagreement) = run(1, 300);
    assert_eq!(disagreement, None);
    let sums = tally.values().fold((0, 0), |sum, (met, accepted)| (sum.0 + met, sum.1 + accepted));
    // Both verdicts occur often, with many changes.
    assert!(tally.len() > 80 && sums.1 > 60 && sums.0 - sums.1 > 60, "{tally:?}");
}

/// The seeds `A..B` from the environment.
fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("DIFFERENTIAL_SEEDS") else { return 100..112 };
    let (from, to) = text.split_once("..").expect("DIFFERENTIAL_SEEDS is of the form 5..9");
    u64::from_str(from).unwrap()..u64::from_str(to).unwrap()
}

#[test]
#[ignore = "thousands of cases, for every change of a rule"]
fn thousands_of_random_blocks_get_a_real_nodes_verdict() {
    let mut tally = Tally::new();
    let mut disagreements = Vec::new();
    for seed in seeds() {
        let (more, disagreement) = run(seed, 300);
        for (mutation, (met, accepted)) in more {
            let sum = tally.entry(mutation).or_default();
            *sum = (sum.0 + met, sum.1 + accepted);
        }
        disagreement.iter().for_each(|text| println!("{text}"));
        disagreements.extend(disagreement);
    }
    let cases: usize = tally.values().map(|(met, _)| met).sum();
    tally.iter().for_each(|(name, (met, accepted))| println!("{met:5} {accepted:5} {name}"));
    println!("{cases} cases, {} disagreements", disagreements.len());
    assert!(disagreements.is_empty(), "{}", disagreements.join("\n"));
}
