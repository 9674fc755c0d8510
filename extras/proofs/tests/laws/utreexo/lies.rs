//! False roots, proofs and coins: no chain passes with them, and each has its own error.

use crate::swiftsync::harness::{Chain, without_bip34};
use crate::utreexo::bridge::{Entry, ProofCoin, ProofData, proofs_of, proofs_with_lie};
use crate::utreexo::harness::{Ranges, engine, range, run};
use crate::utreexo::valid::random;
use apus_chain::{Height, HeightRange, KnownBlock, Network, Params, ReadError};
use apus_proofs::engine::{EntryError, LeafFault, Partial, ProvenError, ProvenMergeError};
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind};
use apus_testkit::rng::Rng;
use apus_utreexo::{NodeHash, Proof, ProofError, Roots};
use bitcoin::OutPoint;

/// A range of one block.
fn alone(height: Height) -> [HeightRange; 1] {
    [HeightRange::new(height, height + 1)]
}

/// The result of a single block with this entry.
fn check_block(
    chain: &Chain,
    data: &ProofData,
    height: Height,
    entry: Option<Vec<u8>>,
) -> Result<Partial, ProvenError> {
    let mut ranges = Ranges::of(data, &alone(height));
    ranges.entries[height as usize] = entry;
    range(&engine(chain), chain, &ranges, alone(height)[0])
}

/// A chain, its data, and a block that spends coins of other blocks, the first two of which differ in every
/// field.
fn example(seed: u64) -> (Chain, ProofData, Height) {
    let chain = random(seed, 40);
    let data = proofs_of(&chain.blocks);
    let suits = |entry: &Entry| {
        let coins: Vec<&ProofCoin> = entry.coins.iter().map(|(_, coin)| coin).collect();
        coins.len() > 2 && coins.len() < 9 && coins[0].script != coins[1].script
    };
    let (last, _) = data.entries.split_at(data.entries.len() - 8);
    let height = last.iter().rposition(suits).unwrap() as Height;
    (chain, data, height)
}

/// Changes an entry, checks that it is refused as invalid, and returns the cause.
fn changed(example: &(Chain, ProofData, Height), change: impl FnOnce(&mut Entry)) -> EntryError {
    let (chain, data, height) = example;
    let mut entry = data.entries[*height as usize].clone();
    change(&mut entry);
    invalid_entry(check_block(chain, data, *height, Some(entry.bytes())), *height)
}

#[track_caller]
fn invalid_entry(result: Result<Partial, ProvenError>, height: Height) -> EntryError {
    match result {
        Err(ProvenError::Entry { block, error, .. }) => {
            assert_eq!(block.height, height);
            *error
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it passed"),
    }
}

#[track_caller]
fn expect_proof(error: EntryError) {
    assert!(matches!(error, EntryError::Proof(_)), "{error}");
}

#[test]
fn a_change_to_any_field_of_a_coin_is_refused() {
    let example = example(60);
    let coins = example.1.entries[example.2 as usize].coins.len();
    for at in 0..coins {
        expect_proof(changed(&example, |it| it.coins[at].1.height -= 1));
        expect_proof(changed(&example, |it| it.coins[at].1.coinbase ^= true));
        expect_proof(changed(&example, |it| it.coins[at].1.amount ^= 1));
        expect_proof(changed(&example, |it| it.coins[at].1.script.push(0x61)));
        expect_proof(changed(&example, |it| it.coins[at].1.script = vec![0x51, 0x61]));
    }
}

/// The error names the wrong height.
#[test]
fn coins_with_impossible_heights_or_scripts_are_refused() {
    let example = example(61);
    let height = example.2;
    for wrong in [0, height, height + 1, 1 << 30] {
        let error = changed(&example, |it| it.coins[1].1.height = wrong);
        let fault = LeafFault::Height { height: wrong };
        let is_it = matches!(&error, EntryError::Leaf { leaf: 1, fault: it, .. } if *it == fault);
        assert!(is_it, "{error}");
    }
    let unspendable = changed(&example, |it| it.coins[0].1.script = vec![0x6a]);
    let is_it =
        matches!(unspendable, EntryError::Leaf { leaf: 0, fault: LeafFault::Unspendable, .. });
    assert!(is_it, "{unspendable}");
}

#[test]
fn a_change_to_any_byte_is_refused() {
    let (chain, data, height) = example(62);
    let bytes = data.entries[height as usize].bytes();
    let check_block = |bytes: Vec<u8>| check_block(&chain, &data, height, Some(bytes));
    assert!(check_block(bytes.clone()).is_ok());
    for at in 0..bytes.len() {
        for flip in [1, 0x80, 0xff] {
            let mut other = bytes.clone();
            other[at] ^= flip;
            match check_block(other) {
                Err(ProvenError::Entry { .. }) => {}
                // Fewer coins than the block spends, so one is missing.
                Err(ProvenError::Refused { .. }) if at < 2 => {}
                found => panic!("byte {at}: {found:?}"),
            }
        }
    }
    for end in 0..bytes.len() {
        invalid_entry(check_block(bytes[..end].to_vec()), height);
    }
    let trailing = invalid_entry(check_block([&bytes[..], &[0]].concat()), height);
    assert_eq!(trailing, EntryError::Trailing { offset: bytes.len(), count: 1 });
}

#[test]
fn proofs_of_other_coins_are_refused() {
    let example = example(63);
    let (chain, data, height) = (&example.0, &example.1, example.2);
    expect_proof(changed(&example, |it| it.proof.targets.swap(0, 1)));
    expect_proof(changed(&example, |it| {
        let (one, other) = (it.coins[0].1.clone(), it.coins[1].1.clone());
        (it.coins[0].1, it.coins[1].1) = (other, one);
    }));
    expect_proof(changed(&example, |it| it.proof.targets[0] ^= 1));
    let surplus = changed(&example, |it| it.proof.hashes.push(NodeHash([1; 32])));
    assert!(matches!(surplus, EntryError::Proof(ProofError::Surplus { .. })), "{surplus}");
    let missing = changed(&example, |it| it.proof.hashes.truncate(it.proof.hashes.len() - 1));
    assert!(matches!(missing, EntryError::Proof(ProofError::Missing { .. })), "{missing}");
    let twice = changed(&example, |it| {
        it.proof.targets[1] = it.proof.targets[0];
        it.coins[1].1 = it.coins[0].1.clone();
    });
    expect_proof(twice);
    let more = changed(&example, |it| {
        it.proof.targets.push(0);
        it.coins.push(it.coins[0].clone());
    });
    let needed = data.entries[height as usize].coins.len();
    let txs = &chain.blocks[height as usize].txdata[1..];
    let inputs = txs.iter().map(|tx| tx.input.len()).sum::<usize>();
    let too_many = |value: usize| {
        let (value, limit) = (value as u64, inputs as u64);
        EntryError::Bytes(ReadError::TooLarge { offset: 0, value, limit }.into())
    };
    match inputs == needed {
        true => assert_eq!(more, too_many(needed + 1)),
        false => assert_eq!(more, EntryError::Surplus { leaves: needed + 1, needed }),
    }
    let many = changed(&example, |it| it.proof.targets.resize(inputs + 9, 0));
    assert_eq!(many, too_many(inputs + 9));
    // A coin is left out, as if it did not exist.
    let mut fewer = data.entries[height as usize].clone();
    fewer.coins.pop();
    fewer.proof = Proof::default();
    let forest = data.roots[height as usize - 1].clone();
    assert!(forest.leaves() > 0 && !fewer.coins.is_empty());
    expect_proof(changed(&example, |it| {
        it.proof.targets.pop();
        it.coins.pop();
    }));
    // The entry of another block.
    let other = data.entries.iter().position(|entry| !entry.coins.is_empty()).unwrap();
    assert_ne!(other as Height, height);
    let other = data.entries[other].bytes();
    assert!(check_block(chain, data, height, Some(other)).is_err());
    let lost = check_block(chain, data, height, None).unwrap_err();
    let ProvenError::NotThere { block, what } = lost else { panic!("{lost}") };
    assert_eq!((block.height, &*what), (height, "it was lost"));
}

/// A coin left out of an entry is reported as missing.
#[test]
fn left_out_coins_are_missing() {
    let mut builder = ChainBuilder::new(64);
    builder.empty_blocks(101);
    let coin = builder.mature_coin();
    let output = builder.output(1_000, ScriptKind::OpTrue);
    let tx = builder.spend_coins(&[coin], vec![output]);
    builder.block_with(vec![tx]);
    let chain = Chain::of(&builder);
    let data = proofs_of(&chain.blocks);
    let error = check_block(&chain, &data, 102, Some(Entry::default().bytes())).unwrap_err();
    let ProvenError::Refused { block, error, .. } = error else { panic!("{error}") };
    assert_eq!(block.height, 102);
    assert_eq!(error.reject_reason(), "bad-txns-inputs-missingorspent");
}

/// The heights from 1 to the tip in three ranges; one begins at `at`.
fn three(chain: &Chain, at: Height) -> [HeightRange; 3] {
    let end = chain.stop() + 1;
    [HeightRange::new(1, at), HeightRange::new(at, at + 5), HeightRange::new(at + 5, end)]
}

/// Replaces the last root.
fn other(roots: &Roots) -> Roots {
    let mut bytes = Vec::new();
    roots.write(&mut bytes);
    *bytes.last_mut().unwrap() ^= 1;
    Roots::read(&bytes).unwrap()
}

#[test]
fn ranges_with_wrong_roots_are_refused() {
    let (chain, data, height) = example(65);
    let (cuts, mut rng) = (three(&chain, height), Rng::new(65));
    let right = Ranges::of(&data, &cuts);
    assert!(run(&chain, &right, &mut rng).is_ok());
    // The range begins with wrong roots.
    let mut begins = right.clone();
    let before = other(&begins.from(height).1);
    begins.from(height).1 = before.clone();
    let error = run(&chain, &begins, &mut rng).unwrap_err();
    let is_it = matches!(error, ProvenError::Entry { .. } | ProvenError::After { .. });
    assert!(is_it, "{error}");
    // The range below claims the same roots, so the error is found there.
    let mut both = begins;
    both.from(1).2 = before;
    let error = run(&chain, &both, &mut rng).unwrap_err();
    assert!(matches!(error, ProvenError::After { range, .. } if range == cuts[0]), "{error}");
}

/// A fake coin in the roots with which a range begins: the range is consistent in itself, but does not begin
/// where the range below ends.
#[test]
fn a_fake_coin_in_the_roots_is_detected() {
    for (at, begins) in [(103, false), (1, true)] {
        let mut builder = ChainBuilder::new(66);
        builder.empty_blocks(102);
        let coin = builder.mature_coin();
        let output = builder.output(1_000, ScriptKind::OpTrue);
        let mut tx = builder.spend_coins(&[coin], vec![output]);
        tx.input[0].previous_output.vout += 7;
        let name: OutPoint = tx.input[0].previous_output;
        builder.block_with(vec![tx]);
        builder.empty_blocks(7);
        let chain = Chain::of(&builder);
        let coin =
            ProofCoin { leaf: 0, height: 1, coinbase: false, amount: 70_000, script: vec![0x51] };
        let data = proofs_with_lie(&chain.blocks, Some((at, name, coin)));
        let mut ranges = Ranges::of(&data, &three(&chain, 103));
        if !begins {
            // The range below has the right roots.
            ranges.from(1).2 = proofs_of(&chain.blocks[..103]).roots[102].clone();
        }
        for seed in 0..4 {
            let error = run(&chain, &ranges, &mut Rng::new(seed)).unwrap_err();
            match error {
                ProvenError::Before { first: 1, .. } if begins => {}
                ProvenError::Merge(ProvenMergeError::Roots { height: 103, .. }) if !begins => {}
                other => panic!("{at}: {other}"),
            }
        }
    }
}

#[test]
fn missing_and_duplicate_ranges_are_refused() {
    let (chain, data, height) = example(67);
    let cuts = three(&chain, height);
    let (ranges, engine) = (Ranges::of(&data, &cuts), engine(&chain));
    let parts = cuts.map(|cut| range(&engine, &chain, &ranges, cut).unwrap());
    for lacks in 0..3 {
        let mut whole = engine.nothing();
        for (at, part) in parts.iter().enumerate().filter(|(at, _)| *at != lacks) {
            whole.merge(part).unwrap();
            assert_eq!(whole.merge(part), Err(ProvenMergeError::Overlap(cuts[at].start)));
        }
        let error = engine.conclude(&whole, chain.stop()).unwrap_err();
        let is_it =
            matches!(error, ProvenError::Incomplete { missing, .. } if missing == cuts[lacks]);
        assert!(is_it, "{error}");
    }
}

/// A later coinbase with the same txid creates the same outpoint again, but another leaf (BIP-30).
#[test]
fn a_repeated_coinbase_is_refused() {
    let mut builder = ChainBuilder::new(68);
    builder.empty_blocks(2);
    let coinbase = builder.block(builder.tip()).txdata[0].clone();
    builder.empty_blocks(2);
    builder.add_plan(BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() });
    builder.empty_blocks(1);
    let stop = builder.height();
    let chain = Chain::with(&without_bip34(), builder.blocks());
    let data = proofs_of(&chain.blocks);
    for cuts in [vec![HeightRange::new(1, stop + 1)], (1..=stop).map(|at| alone(at)[0]).collect()] {
        let error = run(&chain, &Ranges::of(&data, &cuts), &mut Rng::new(1)).unwrap_err();
        let is_it = matches!(error, ProvenError::DuplicateCoinbase { first: 2, second: 5, .. });
        assert!(is_it, "{error}");
    }
    // The historical case: the first coinbase is overwritten before it is spent, which is an exception.
    let overwritten = KnownBlock { height: 2, hash: *chain.headers.hash(2).unwrap() };
    let params = Params { bip30_unspendable: vec![overwritten].into(), ..without_bip34() };
    let chain = Chain::with(&params, builder.blocks());
    let cuts = [HeightRange::new(1, 4), HeightRange::new(4, stop + 1)];
    let verdict = run(&chain, &Ranges::of(&data, &cuts), &mut Rng::new(1)).unwrap();
    assert_eq!(verdict.coins.unwrap().coins as usize, chain.utxo().len());
    assert_eq!(verdict.roots.leaves(), u64::from(stop));
}

/// Two historical coinbases were overwritten. Their leaves stay in the forest forever and can be proved, but
/// they are not coins.
#[test]
fn an_overwritten_coinbase_cannot_be_spent() {
    let mut builder = ChainBuilder::new(69);
    builder.empty_blocks(101);
    let spent = bitcoin::OutPoint { txid: builder.blocks()[1].txdata[0].compute_txid(), vout: 0 };
    let output = builder.output(1_000, ScriptKind::OpTrue);
    let tx = builder.spend(&[spent], vec![output]);
    builder.block_with(vec![tx]);
    let regtest = Params::of(Network::Regtest);
    let chain = Chain::with(regtest, builder.blocks());
    let data = proofs_of(&chain.blocks);
    let cuts = [HeightRange::new(1, 50), HeightRange::new(50, 103)];
    let whole = run(&chain, &Ranges::of(&data, &cuts), &mut Rng::new(1)).unwrap();
    let overwritten = KnownBlock { height: 1, hash: *chain.headers.hash(1).unwrap() };
    let params = Params { bip30_unspendable: vec![overwritten].into(), ..regtest.clone() };
    let chain = Chain::with(&params, builder.blocks());
    let error = run(&chain, &Ranges::of(&data, &cuts), &mut Rng::new(1)).unwrap_err();
    let ProvenError::Entry { block, error, .. } = error else { panic!("{error}") };
    let fault = LeafFault::Overwritten { height: 1 };
    assert_eq!(block.height, 102);
    assert!(matches!(*error, EntryError::Leaf { fault: found, .. } if found == fault));
    // The overwritten coin is not counted as unspent either.
    let unspent = ChainBuilder::blocks(&builder)[..102].to_vec();
    let chain = Chain::with(&params, unspent);
    let ranges = Ranges::of(&data, &[HeightRange::new(1, 50), HeightRange::new(50, 102)]);
    let left = run(&chain, &ranges, &mut Rng::new(1)).unwrap();
    assert_eq!((left.coins.unwrap().coins, left.roots.leaves()), (100, 101));
    assert_eq!(whole.coins.unwrap().coins, 102);
}
