//! Compares the manager with a model on random trees in random order. The model only knows the rule: the tip is
//! the best complete chain without a failed block; on a tie, the chain that was complete first.

use super::sandbox::{Sandbox, TestState, ours, regtest};
use crate::chainman::{ChainManager, SubmitOutcome};
use apus_chain::BlockHash;
use apus_testkit::chain::ChainBuilder;
use apus_testkit::storage::CrashStorage;
use bitcoin::consensus::serialize;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

/// A tree of blocks, each with the index of its parent. The genesis block has no index.
struct Forest {
    blocks: Vec<(BlockHash, Vec<u8>)>,
    parents: Vec<Option<usize>>,
}

impl Forest {
    fn new(shape: &[usize]) -> Self {
        let mut builder = ChainBuilder::new(3);
        let mut tips = vec![builder.tip()];
        let mut forest = Self { blocks: Vec::new(), parents: Vec::new() };
        for choice in shape {
            // Mostly near the end, so that chains grow long.
            let parent = tips.len() - 1 - choice % tips.len().min(5);
            builder.set_tip(tips[parent]);
            let block = builder.block_with(Vec::new());
            tips.push(block.block_hash());
            forest.parents.push(parent.checked_sub(1));
            forest.blocks.push((ours(block.block_hash()), serialize(&block)));
        }
        forest
    }

    fn lineage(&self, block: usize) -> impl Iterator<Item = usize> {
        let mut next = Some(block);
        std::iter::from_fn(move || {
            let this = next?;
            next = self.parents[this];
            Some(this)
        })
    }
}

/// The model.
#[derive(Clone)]
struct Model {
    /// Whether each block arrived and was kept.
    here: Vec<bool>,
    /// When each block's chain became complete.
    whole: Vec<Option<u64>>,
    failed: Vec<bool>,
    bad: Vec<bool>,
    next: u64,
}

impl Model {
    fn new(bad: &[bool]) -> Self {
        let count = bad.len();
        let (here, failed) = (vec![false; count], vec![false; count]);
        Self { here, whole: vec![None; count], failed, bad: bad.to_vec(), next: 1 }
    }

    fn submit(&mut self, forest: &Forest, block: usize) {
        if self.here[block] {
            return;
        }
        self.here[block] = true;
        self.settle(forest, block);
    }

    /// Settles a block and its waiting descendants, breadth first, each validated before the next.
    fn settle(&mut self, forest: &Forest, block: usize) {
        let is_whole =
            |model: &Self, at: Option<usize>| at.is_none_or(|p| model.whole[p].is_some());
        if !is_whole(self, forest.parents[block]) {
            return;
        }
        let mut queue = vec![block];
        while !queue.is_empty() {
            let block = queue.remove(0);
            if forest.parents[block].is_some_and(|parent| self.failed[parent]) {
                // A child of a failed block is not kept.
                self.here[block] = false;
                continue;
            }
            self.whole[block] = Some(self.next);
            self.next += 1;
            self.tip(forest);
            let waiting: Vec<usize> = WAITING.with_borrow(|order| {
                let child = |&&at: &&usize| forest.parents[at] == Some(block) && self.here[at];
                order.iter().filter(child).copied().collect()
            });
            queue.extend(waiting.into_iter().filter(|&at| self.whole[at].is_none()));
        }
    }

    fn mark(
        &mut self,
        forest: &Forest,
        block: usize,
        family: impl Fn(usize, usize) -> bool,
        to: bool,
    ) {
        for at in 0..self.failed.len() {
            let known = self.whole[at].is_some();
            if known && (at == block || family(at, block)) {
                self.failed[at] = to;
            }
        }
        let _ = forest;
    }

    fn invalidate(&mut self, forest: &Forest, block: usize) {
        if self.whole[block].is_some() {
            self.mark(forest, block, |at, of| forest.lineage(at).any(|a| a == of), true);
        }
        self.tip(forest);
    }

    fn reconsider(&mut self, forest: &Forest, block: usize) {
        if self.whole[block].is_some() {
            let related =
                |at, of| forest.lineage(at).any(|a| a == of) || forest.lineage(of).any(|a| a == at);
            self.mark(forest, block, related, false);
        }
        self.tip(forest);
    }

    /// Returns the best block, or `None` for the genesis block. Validates the blocks of its chain first.
    fn tip(&mut self, forest: &Forest) -> Option<usize> {
        loop {
            let whole = (0..self.whole.len()).filter(|&at| self.whole[at].is_some());
            let standing = whole.filter(|&at| !self.failed[at]);
            let best = standing.max_by_key(|&at| {
                (forest.lineage(at).count(), std::cmp::Reverse(self.whole[at]))
            })?;
            let mut path: Vec<usize> = forest.lineage(best).collect();
            path.reverse();
            match path.into_iter().find(|&at| self.bad[at]) {
                Some(bad) => {
                    self.mark(forest, bad, |at, of| forest.lineage(at).any(|a| a == of), true);
                }
                None => return Some(best),
            }
        }
    }
}

thread_local! {
    /// The order in which blocks arrive.
    static WAITING: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) };
}

#[derive(Debug, Clone)]
enum Step {
    Submit(usize),
    Invalidate(usize),
    Reconsider(usize),
    Reopen,
}

fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    let near = move |step: usize, jitter: usize| (step + jitter).saturating_sub(3) % count;
    let order = proptest::collection::vec((0..12u8, 0..7usize, 0..count), count * 2);
    order.prop_map(move |order| {
        let step = |(at, (kind, jitter, any)): (usize, (u8, usize, usize))| match kind {
            0 => Step::Invalidate(any),
            1 => Step::Reconsider(any),
            2 => Step::Reopen,
            3 | 4 => Step::Submit(any),
            _ => Step::Submit(near(at, jitter)),
        };
        order.into_iter().enumerate().map(step).collect()
    })
}

const COUNT: usize = 24;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn the_tip_matches_the_rule(
        shape in proptest::collection::vec(0..5usize, COUNT),
        bad in proptest::collection::vec(proptest::bool::weighted(0.12), COUNT),
        steps in steps(COUNT),
    ) {
        let forest = Forest::new(&shape);
        let mut model = Model::new(&bad);
        WAITING.with_borrow_mut(Vec::clear);
        let state = Arc::new(Mutex::new(TestState::default()));
        for (at, _) in bad.iter().enumerate().filter(|(_, bad)| **bad) {
            state.lock().unwrap().bad.insert(forest.blocks[at].0, format!("bad-{at}"));
        }
        let storage = CrashStorage::new();
        let (mut manager, _) = Sandbox::on(&storage, &state);
        for step in steps {
            match step {
                Step::Submit(at) => {
                    if !model.here[at] {
                        WAITING.with_borrow_mut(|order| {
                            order.retain(|&other| other != at);
                            order.push(at);
                        });
                    }
                    submit(&mut manager, &forest, &mut model, at)?;
                }
                Step::Invalidate(at) => {
                    let known = manager.invalidate(&forest.blocks[at].0).unwrap();
                    prop_assert_eq!(known, model.whole[at].is_some());
                    model.invalidate(&forest, at);
                }
                Step::Reconsider(at) => {
                    let known = manager.reconsider(&forest.blocks[at].0).unwrap();
                    prop_assert_eq!(known, model.whole[at].is_some());
                    model.reconsider(&forest, at);
                }
                Step::Reopen => {
                    drop(manager);
                    manager = Sandbox::on(&storage, &state).0;
                }
            }
            let tip = model.tip(&forest).map_or(regtest().genesis_hash, |at| forest.blocks[at].0);
            prop_assert_eq!(manager.tip().hash, tip);
            let at = state.lock().unwrap().chain.last().copied();
            prop_assert_eq!(at.unwrap_or(regtest().genesis_hash), tip);
        }
    }
}

/// Submits a block and compares the outcome.
fn submit(
    manager: &mut ChainManager,
    forest: &Forest,
    model: &mut Model,
    at: usize,
) -> Result<(), TestCaseError> {
    let (known, failed) = (model.whole[at].is_some(), model.failed[at]);
    let parent = forest.parents[at];
    let orphan = parent.is_some_and(|parent| model.whole[parent].is_none());
    let of_failed = parent.is_some_and(|parent| model.failed[parent]);
    model.submit(forest, at);
    let outcome = manager.submit(forest.blocks[at].1.clone()).unwrap().outcome;
    let reason = match &outcome {
        SubmitOutcome::Rejected { reason } => reason.as_str(),
        _ => "",
    };
    let tip = model.tip(forest);
    let active = tip.is_some_and(|tip| forest.lineage(tip).any(|block| block == at));
    match (known, failed) {
        (true, true) => prop_assert_eq!(reason, "duplicate-invalid"),
        (true, false) => prop_assert_eq!(&outcome, &SubmitOutcome::Duplicate),
        _ if orphan => prop_assert_eq!(&outcome, &SubmitOutcome::Orphan),
        _ if of_failed => prop_assert_eq!(reason, "bad-prevblk"),
        _ if active => prop_assert_eq!(&outcome, &SubmitOutcome::Accepted),
        _ if model.failed[at] => {
            let guilty = |at: &usize| model.bad[*at] && reason == format!("bad-{at}");
            prop_assert!(forest.lineage(at).any(|at| guilty(&at)), "{}", reason);
        }
        _ => prop_assert_eq!(&outcome, &SubmitOutcome::Inconclusive),
    }
    Ok(())
}
