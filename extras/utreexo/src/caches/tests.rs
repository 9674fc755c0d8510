use super::model::{ModelForest, ModelVerifier};
use super::outline::Outline;
use super::*;
use crate::position::Position;
use crate::{Forest, NodeHash, PageId, Pages, Roots};
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use std::collections::BTreeSet;
use std::convert::Infallible;

/// A store without pages: the forest keeps everything in memory.
struct NoPages;

impl Pages for NoPages {
    type Error = Infallible;

    fn read(&self, _: PageId, _: &mut Vec<u8>) -> Result<bool, Infallible> {
        Ok(false)
    }
}

fn leaf(number: u64) -> NodeHash {
    NodeHash(Rng::at(31, number).bytes(32).try_into().unwrap())
}

/// A block of a made-up chain.
struct Step {
    height: Height,
    spent: Vec<u64>,
    leaves_after: u64,
    proof: Proof,
    leaf_bytes: Vec<u32>,
}

impl Step {
    fn block(&self) -> ProvedBlock<'_> {
        let (height, leaves_after) = (self.height, self.leaves_after);
        ProvedBlock { height, leaves_after, proof: &self.proof }
    }
}

/// Blocks that spend random leaves, many of them young, with the forest's proofs.
fn chain(rng: &mut Rng, blocks: u32, added_below: u64) -> Vec<Step> {
    let mut forest = Forest::open(NoPages, Roots::default(), usize::MAX);
    let mut live: Vec<u64> = Vec::new();
    (1..=blocks)
        .map(|height| {
            let odds = [1, 2, 3, 10][rng.index(4)];
            let mut spent = Vec::new();
            for _ in 0..live.len() as u64 / odds {
                let young = live.len().min(6);
                let at = match rng.below(2) {
                    0 => rng.index(live.len()),
                    _ => live.len() - 1 - rng.index(young),
                };
                spent.push(live.remove(at));
            }
            let first = forest.leaves();
            let added: Vec<NodeHash> = (first..first + rng.below(added_below)).map(leaf).collect();
            let proof = forest.block(&spent, &added).unwrap();
            let leaves_after = forest.leaves();
            live.extend(first..leaves_after);
            let leaf_bytes = spent.iter().map(|leaf| 13 + (leaf % 7) as u32).collect();
            Step { height, spent, leaves_after, proof, leaf_bytes }
        })
        .collect()
}

fn spends(steps: &[Step]) -> Spends {
    let mut lifetimes = Lifetimes::new(steps.last().map_or(0, |step| step.leaves_after)).unwrap();
    steps.iter().for_each(|step| lifetimes.block(&step.block()).unwrap());
    lifetimes.finish()
}

/// When each leaf of a made-up chain is spent.
fn spent_at(steps: &[Step]) -> Vec<Option<Height>> {
    let mut spent_at = vec![None; steps.last().map_or(0, |step| step.leaves_after) as usize];
    for step in steps {
        step.spent.iter().for_each(|leaf| spent_at[*leaf as usize] = Some(step.height));
    }
    spent_at
}

fn rules(rng: &mut Rng) -> Vec<CacheRule> {
    let look_ahead = CachePolicy::LookAhead(rng.below(6) as u32);
    let of = |policy| [0, 1, 3, 10, 1000].map(|leaves| CacheRule { policy, leaves });
    [of(CachePolicy::Clairvoyant), of(look_ahead)].concat()
}

/// The leaves remembered after a block, found by sorting all candidates.
fn remembered_after(
    rule: CacheRule,
    before: &BTreeSet<u64>,
    step: &Step,
    added: std::ops::Range<u64>,
    spent_at: &[Option<Height>],
) -> BTreeSet<u64> {
    let kept = before.iter().copied().filter(|leaf| !step.spent.contains(leaf));
    let end = |leaf: &u64| spent_at[*leaf as usize];
    match rule.policy {
        CachePolicy::Clairvoyant => {
            let mut all: Vec<u64> = kept.chain(added).filter(|leaf| end(leaf).is_some()).collect();
            all.sort_by_key(|leaf| (end(leaf), *leaf));
            all.into_iter().take(rule.leaves).collect()
        }
        CachePolicy::LookAhead(blocks) => {
            let is_near = |leaf: &u64| end(leaf).is_some_and(|end| end <= step.height + blocks);
            kept.chain(added.filter(is_near)).take(rule.leaves).collect()
        }
    }
}

/// The cost of every cache equals the needs of a model verifier that has only hashes.
#[test]
fn costs_match_a_verifier_that_has_only_hashes() {
    for seed in 0..rounds(25, 2000) {
        let mut rng = Rng::new(seed);
        let added_below = [3, 8, 25][rng.index(3)];
        let steps = chain(&mut rng, 14, added_below);
        let (spends, spent_at, rules) = (spends(&steps), spent_at(&steps), rules(&mut rng));
        for (leaf, height) in (0..).zip(&spent_at) {
            let found = spends.of(leaf..leaf + 1).unwrap()[0];
            assert_eq!(found, height.unwrap_or(Height::MAX));
        }
        let mut replay = CacheReplay::new(&spends, &rules);
        let mut models: Vec<ModelVerifier> =
            rules.iter().map(|_| ModelVerifier::default()).collect();
        let mut sums = vec![CacheCost::default(); rules.len()];
        let mut forest = ModelForest::default();
        for step in &steps {
            replay.block(&step.block(), &step.leaf_bytes).unwrap();
            let (before, targets) = (forest.clone(), forest.targets());
            let first = forest.leaves.len() as u64;
            step.spent.iter().for_each(|leaf| forest.leaves[*leaf as usize] = NodeHash::EMPTY);
            forest.leaves.extend((first..step.leaves_after).map(leaf));
            for ((rule, model), sum) in rules.iter().zip(&mut models).zip(&mut sums) {
                let added = first..step.leaves_after;
                let next = remembered_after(*rule, &model.remembered, step, added, &spent_at);
                sum.held_max = sum.held_max.max(next.len());
                let (hashes, asked) = model.block(&before, &step.spent, &forest, next);
                let proof =
                    Proof { targets: asked.iter().map(|leaf| targets[leaf]).collect(), hashes };
                let mut bytes = Vec::new();
                proof.write(&mut bytes);
                let asked_data = step
                    .spent
                    .iter()
                    .zip(&step.leaf_bytes)
                    .filter(|(leaf, _)| asked.contains(leaf));
                sum.coins += step.spent.len() as u64;
                sum.remembered += (step.spent.len() - asked.len()) as u64;
                sum.hashes += proof.hashes.len() as u64;
                sum.proof_bytes += bytes.len() as u64;
                sum.leaf_bytes += asked_data.map(|(_, bytes)| u64::from(*bytes)).sum::<u64>();
            }
            let costs: Vec<_> = replay.costs().collect();
            let model: Vec<_> = rules.iter().copied().zip(sums.iter().copied()).collect();
            assert_eq!(costs, model, "seed {seed}, block {}", step.height);
        }
    }
}

/// Without a cache, the cost is the content of proof files.
#[test]
fn a_cache_without_room_saves_nothing() {
    let mut rng = Rng::new(5);
    let steps = chain(&mut rng, 40, 2500);
    assert!(steps.iter().any(|step| step.proof.hashes.len() > 0xfd && step.spent.len() > 0xfd));
    let spends = spends(&steps);
    let rule = CacheRule { policy: CachePolicy::Clairvoyant, leaves: 0 };
    let mut replay = CacheReplay::new(&spends, &[rule]);
    let (mut bytes, mut hashes, mut leaf_bytes) = (Vec::new(), 0, 0);
    for step in &steps {
        replay.block(&step.block(), &step.leaf_bytes).unwrap();
        step.proof.write(&mut bytes);
        hashes += step.proof.hashes.len() as u64;
        leaf_bytes += step.leaf_bytes.iter().copied().map(u64::from).sum::<u64>();
    }
    let (_, cost) = replay.costs().next().unwrap();
    assert!(hashes > 1000 && cost.coins > 1000);
    assert_eq!((cost.remembered, cost.held_max), (0, 0));
    assert_eq!(
        (cost.hashes, cost.proof_bytes, cost.leaf_bytes),
        (hashes, bytes.len() as u64, leaf_bytes)
    );
}

/// No other choice of leaves that fits remembers more.
#[test]
fn no_choice_beats_the_clairvoyant_one() {
    for seed in 0..rounds(60, 3000) {
        let mut rng = Rng::new(seed);
        let steps = chain(&mut rng, 8, 4);
        let mut added_at = Vec::new();
        for step in &steps {
            added_at.resize(step.leaves_after as usize, step.height);
        }
        let lives: Vec<(Height, Height)> = added_at
            .into_iter()
            .zip(spent_at(&steps))
            .filter_map(|(from, to)| Some((from, to?)))
            .collect();
        let spends = spends(&steps);
        for leaves in [1, 2, 3] {
            let rule = CacheRule { policy: CachePolicy::Clairvoyant, leaves };
            let mut replay = CacheReplay::new(&spends, &[rule]);
            steps.iter().for_each(|step| replay.block(&step.block(), &step.leaf_bytes).unwrap());
            let fits = |chosen: u32| {
                (1..=8).all(|height| {
                    let is_held = |(index, life): (usize, &(Height, Height))| {
                        chosen >> index & 1 == 1 && (life.0..life.1).contains(&height)
                    };
                    lives.iter().enumerate().filter(|life| is_held(*life)).count() <= leaves
                })
            };
            let all = 0u32..1 << lives.len().min(12);
            if lives.len() <= 12 {
                let best = all.filter(|chosen| fits(*chosen)).map(u32::count_ones).max();
                let found = replay.costs().next().unwrap().1.remembered;
                assert_eq!(Some(found as u32), best, "seed {seed}, {leaves} leaves");
            }
        }
    }
}

/// Each number leads to the same leaf as in the slow forest, or to none.
#[test]
fn targets_lead_to_their_leaves_and_other_numbers_nowhere() {
    for seed in 0..rounds(20, 1000) {
        let mut rng = Rng::new(seed);
        let added_below = 2 + rng.below(12);
        let steps = chain(&mut rng, 9, added_below);
        let (mut outline, mut forest) = (Outline::default(), ModelForest::default());
        for step in &steps {
            step.spent.iter().for_each(|leaf| outline.delete(*leaf));
            step.spent.iter().for_each(|leaf| forest.leaves[*leaf as usize] = NodeHash::EMPTY);
            let first = outline.leaves();
            outline.add(step.leaves_after - first);
            forest.leaves.extend((first..step.leaves_after).map(leaf));
            let mut there: Vec<(u64, u64)> =
                forest.targets().into_iter().map(|(leaf, target)| (target, leaf)).collect();
            there.sort_unstable();
            let places = (0..9).flat_map(|row| (0..130).map(move |place| Position { row, place }));
            let numbers = places.filter_map(|at| at.number(63));
            let mut found: Vec<(u64, u64)> =
                numbers.filter_map(|target| Some((target, outline.leaf(target)?))).collect();
            found.sort_unstable();
            assert_eq!(found, there, "seed {seed}, block {}", step.height);
            for shift in 0..64 {
                let target = rng.below(u64::MAX) >> shift;
                let is_there = there.iter().any(|(number, _)| *number == target);
                assert_eq!(outline.leaf(target).is_some(), is_there);
            }
        }
    }
}

/// Leaves cross the ends of words and trees.
#[test]
fn outlines_of_many_leaves_are_right() {
    let mut rng = Rng::new(9);
    let mut outline = Outline::default();
    let mut live = BTreeSet::new();
    for _ in 0..40 {
        let (first, count) = (outline.leaves(), [0, 1, 63, 64, 65, 200, 1000][rng.index(7)]);
        outline.add(count);
        live.extend(first..first + count);
        let gone: Vec<u64> = live.iter().copied().filter(|_| rng.below(3) == 0).collect();
        for leaf in gone {
            outline.delete(leaf);
            live.remove(&leaf);
        }
        for row in 0..=crate::forest_rows(outline.leaves()) {
            for place in 0..outline.leaves().div_ceil(1 << row) {
                let below = (place << row)..(place + 1) << row;
                let is_live = live.range(below).next().is_some();
                assert_eq!(outline.is_live(row, place), is_live, "{row} {place}");
            }
        }
    }
}

#[test]
fn invalid_proofs_are_refused() {
    let mut rng = Rng::new(3);
    let steps = chain(&mut rng, 30, 12);
    let at = steps.iter().position(|step| step.spent.len() > 2 && step.proof.hashes.len() > 2);
    let at = at.unwrap();
    let before = steps[at - 1].leaves_after;
    let refused = |change: &dyn Fn(&mut Proof, &mut u64)| {
        let mut lifetimes = Lifetimes::new(0).unwrap();
        steps[..at].iter().for_each(|step| lifetimes.block(&step.block()).unwrap());
        let (mut proof, mut leaves_after) = (steps[at].proof.clone(), steps[at].leaves_after);
        change(&mut proof, &mut leaves_after);
        let block = ProvedBlock { height: steps[at].height, leaves_after, proof: &proof };
        lifetimes.block(&block)
    };
    assert_eq!(refused(&|_, _| ()), Ok(()));
    let hashes = steps[at].proof.hashes.len();
    let needs = |found| Err(CachesError::Hashes { found, needed: hashes });
    assert_eq!(refused(&|proof, _| proof.hashes.truncate(hashes - 1)), needs(hashes - 1));
    assert_eq!(refused(&|proof, _| proof.hashes.push(leaf(0))), needs(hashes + 1));
    let target = steps[at].proof.targets[1];
    let twice = refused(&|proof, _| proof.targets[0] = target);
    assert_eq!(twice, Err(CachesError::Twice { target }));
    for target in [before, u64::MAX, 1 << 40, Position { row: 62, place: 0 }.number(63).unwrap()] {
        let result = refused(&|proof, _| proof.targets[1] = target);
        assert_eq!(result, Err(CachesError::NoLeaf { target, leaves: before }));
    }
    for after in [before - 1, before + ADDED_MAX + 1, u64::MAX] {
        let result = refused(&|_, leaves| *leaves = after);
        assert_eq!(result, Err(CachesError::Leaves { before, after }));
    }
    assert_eq!(refused(&|_, leaves| *leaves = before + ADDED_MAX), Ok(()));
}

#[test]
fn files_that_change_between_the_passes_are_refused() {
    let mut rng = Rng::new(4);
    let steps = chain(&mut rng, 20, 12);
    let at = steps.iter().position(|step| step.spent.len() > 2).unwrap();
    let changed = |until: usize, change: &dyn Fn(&mut Step)| {
        let spends = spends(&steps[..until]);
        let rule = CacheRule { policy: CachePolicy::Clairvoyant, leaves: 5 };
        let mut replay = CacheReplay::new(&spends, &[rule]);
        steps[..at].iter().for_each(|step| replay.block(&step.block(), &step.leaf_bytes).unwrap());
        let Step { height, leaves_after, .. } = steps[at];
        let (spent, proof) = (steps[at].spent.clone(), steps[at].proof.clone());
        let leaf_bytes = steps[at].leaf_bytes.clone();
        let mut step = Step { height, spent, leaves_after, proof, leaf_bytes };
        change(&mut step);
        replay.block(&step.block(), &step.leaf_bytes)
    };
    let all = steps.len();
    assert_eq!(changed(all, &|_| ()), Ok(()));
    let spends_nothing = |step: &mut Step| (step.proof, step.leaf_bytes) = Default::default();
    assert_eq!(
        changed(all, &spends_nothing),
        Ok(()),
        "a leaf that is spent later is noticed later"
    );
    assert_eq!(changed(all, &|step| step.height += 1), Err(CachesError::Changed));
    assert_eq!(changed(all, &|step| step.leaf_bytes.truncate(1)), Err(CachesError::Changed));
    assert_eq!(changed(at, &|_| ()), Err(CachesError::Changed));
    let grows = |step: &mut Step| step.leaves_after = steps[all - 1].leaves_after + 1;
    assert_eq!(changed(all, &grows), Err(CachesError::Changed));
}

#[test]
fn leaves_that_do_not_fit_in_memory_are_refused() {
    for leaves in [u64::MAX, 1 << 62] {
        let refused = Lifetimes::new(leaves).map(|_| ());
        let bytes = caches_bytes(leaves);
        assert_eq!(refused, Err(CachesError::Memory { leaves, bytes }));
    }
    assert_eq!(caches_bytes(1000), 4250);
}
