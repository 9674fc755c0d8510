use super::*;
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn the_same_seed_makes_the_same_cases() {
    let cases = |seed| {
        let mut mutator = Mutator::new(seed);
        (0..20).map(|_| mutator.case().raw).collect::<Vec<_>>()
    };
    assert_eq!(cases(7), cases(7));
    assert_ne!(cases(7), cases(8));
}

#[test]
fn names_are_unique() {
    let names: Vec<_> = Mutator::mutations().iter().map(|mutation| mutation.name).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
}

#[test]
fn every_change_can_be_made() {
    let mut made = BTreeMap::new();
    for seed in 0..3 {
        let mut mutator = Mutator::new(seed);
        for mutation in Mutator::mutations() {
            *made.entry(mutation.name).or_insert(0) +=
                u32::from((mutation.make)(&mut mutator).is_some());
        }
    }
    let never: Vec<_> = made.iter().filter(|(_, count)| **count == 0).collect();
    assert!(never.is_empty(), "{never:?}");
}

#[test]
fn a_branch_does_not_move_the_tip() {
    let mut mutator = Mutator::new(3);
    let tip = mutator.chain.tip();
    let cases = mutator.branch(3);
    assert!((2..=4).contains(&cases.len()));
    assert_eq!(mutator.chain.tip(), tip);
}
