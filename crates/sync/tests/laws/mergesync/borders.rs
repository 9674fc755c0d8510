//! Tests of cases just inside and just outside the rules. Segments end at every relevant place: the limit must
//! not depend on the segments of a coin's block and the spending block.

use crate::mergesync::harness::agree_cut;
use crate::swiftsync::harness::{Chain, without_bip34};
use apus_chain::{BLOCK_SIGOPS_COST_MAX, BlockHash, Height, KnownBlock, Network, Params};
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, coins_of};
use bitcoin::hashes::Hash;
use bitcoin::script::PushBytesBuf;
use bitcoin::transaction::Version;
use bitcoin::{Amount, OutPoint, ScriptBuf, Sequence, Transaction, TxOut, Witness};

const OP_TRUE: u8 = 0x51;
const OP_CHECKSIG: u8 = 0xac;
const OP_CHECKMULTISIG: u8 = 0xae;

fn spend(builder: &mut ChainBuilder, coin: (OutPoint, TxOut), satoshi: u64) -> Transaction {
    let output = builder.output(satoshi, ScriptKind::OpTrue);
    builder.spend_coins(&[coin], vec![output])
}

/// Returns the coin of an early block's coinbase.
fn coinbase_of(builder: &ChainBuilder, height: Height) -> (OutPoint, TxOut) {
    coins_of(&builder.blocks()[height as usize].txdata[0])[0].clone()
}

/// Returns the result of both engines for a chain whose blocks at these heights depend on each other. The
/// blocks are in one segment, at the end or the beginning of one, or alone.
#[track_caller]
fn verdict(chain: &Chain, heights: [Height; 2]) -> Option<(Height, String)> {
    verdict_near_limit((chain, None), heights)
}

/// Does the same for a chain with a block near the limit of signature operations.
#[track_caller]
fn verdict_near_limit(
    (chain, near_limit): (&Chain, Option<Height>),
    [low, high]: [Height; 2],
) -> Option<(Height, String)> {
    let cuts: [&[Height]; 6] =
        [&[], &[low], &[low + 1], &[high], &[low, low + 1, high], &[low + 1, high, high + 1]];
    let verdict = cuts.map(|cuts| agree_cut((chain, near_limit), u64::from(high), cuts).refused);
    assert!(verdict.iter().all(|other| *other == verdict[0]));
    let [first, ..] = verdict;
    first.map(|(height, error)| (height, error.reject_reason()))
}

fn reason(height: Height, reason: &str) -> Option<(Height, String)> {
    Some((height, reason.to_owned()))
}

#[test]
fn a_coinbase_is_mature_after_a_hundred_blocks() {
    for (rests, refused) in [(99, true), (100, false)] {
        let mut builder = ChainBuilder::new(80);
        builder.empty_blocks(9);
        let coinbase = builder.block(builder.tip()).txdata[0].clone();
        builder.empty_blocks(rests as usize - 1);
        let tx = spend(&mut builder, coins_of(&coinbase)[0].clone(), 1_000);
        builder.block_with(vec![tx]);
        builder.empty_blocks(2);
        let expected = reason(9 + rests, "bad-txns-premature-spend-of-coinbase");
        let verdict = verdict(&Chain::of(&builder), [9, 9 + rests]);
        assert_eq!(verdict, expected.filter(|_| refused), "{rests}");
    }
}

/// Core checks that all coins of a transaction exist before it checks any of them (`consensus/tx_verify.cpp`,
/// `CheckTxInputs`).
#[test]
fn missing_coins_are_reported_before_immature_ones() {
    let mut builder = ChainBuilder::new(80);
    builder.empty_blocks(101);
    let young = coinbase_of(&builder, 101);
    let mut missing = coinbase_of(&builder, 1);
    missing.0.vout += 1;
    let output = builder.output(1_000, ScriptKind::OpTrue);
    let tx = builder.spend_coins(&[young, missing], vec![output]);
    builder.block_with(vec![tx]);
    builder.empty_blocks(1);
    let expected = reason(102, "bad-txns-inputs-missingorspent");
    assert_eq!(verdict(&Chain::of(&builder), [101, 102]), expected);
}

/// Makes a chain in which block 102 creates a coin, and the block `rests` above it spends it with this
/// sequence.
fn locked(rests: u32, sequence: u32, version: i32) -> ChainBuilder {
    let mut builder = ChainBuilder::new(81);
    builder.empty_blocks(101);
    let coin = builder.mature_coin();
    let first = spend(&mut builder, coin, 9_000);
    let mut second = spend(&mut builder, coins_of(&first)[0].clone(), 1_000);
    second.version = Version(version);
    second.input[0].sequence = Sequence(sequence);
    if rests == 0 {
        builder.block_with(vec![first, second]);
    } else {
        builder.block_with(vec![first]);
        builder.empty_blocks(rests as usize - 1);
        builder.block_with(vec![second]);
    }
    builder.empty_blocks(1);
    builder
}

/// Tests BIP-68 with locks in blocks, and in units of 512 seconds; blocks are 600 seconds apart.
#[test]
fn a_relative_lock_is_over_just_in_time() {
    const BLOCKS: u32 = 0;
    const TIME: u32 = 1 << 22;
    for rests in [0, 1, 2, 13] {
        for (kind, most) in [(BLOCKS, rests), (TIME, rests * 600 / 512)] {
            for (length, over) in [(most, true), (most + 1, false)] {
                let builder = locked(rests, kind | length, 2);
                let height = 102 + rests;
                let expected = reason(height, "bad-txns-nonfinal").filter(|_| !over);
                let verdict = verdict(&Chain::of(&builder), [102, height]);
                assert_eq!(verdict, expected, "{rests} {kind} {length}");
            }
        }
    }
}

/// These conditions disable a lock: a bit, an old version, a block before the rule. A negative version is not
/// old.
#[test]
fn relative_locks_that_do_not_count() {
    let csv_at = |csv_height| Params { csv_height, ..Params::of(Network::Regtest).clone() };
    let verdict = |sequence, version, params: &Params| {
        let builder = locked(3, sequence, version);
        verdict(&Chain::with(params, builder.blocks()), [102, 105])
    };
    let refused = reason(105, "bad-txns-nonfinal");
    assert_eq!(verdict(4, 2, &csv_at(1)), refused);
    assert_eq!(verdict(4 | 1 << 31, 2, &csv_at(1)), None);
    assert_eq!(verdict(4 | 1 << 16, 2, &csv_at(1)), refused, "a bit without meaning");
    assert_eq!(verdict(4, 1, &csv_at(1)), None);
    assert_eq!(verdict(4, 0, &csv_at(1)), None);
    assert_eq!(verdict(4, -1, &csv_at(1)), refused);
    assert_eq!(verdict(4, 2, &csv_at(105)), refused);
    assert_eq!(verdict(4, 2, &csv_at(106)), None);
}

/// A block spends an output that is not a coin, or the index past a transaction's last output, which may be
/// next to another transaction's first. The spending block is the same one, the next one or a later one.
#[test]
fn missing_outputs_cannot_be_spent() {
    for later in [0, 1, 5] {
        for kind in [
            None,
            Some(ScriptKind::OpReturn),
            Some(ScriptKind::OpReturnBare),
            Some(ScriptKind::TooLong),
            Some(ScriptKind::Longest),
        ] {
            let mut builder = ChainBuilder::new(82);
            builder.empty_blocks(102);
            let [one, other] = [1, 2].map(|height| coinbase_of(&builder, height));
            let outputs = vec![builder.output(5_000, kind.unwrap_or(ScriptKind::OpTrue))];
            let first = builder.spend_coins(&[one], outputs);
            let beside = spend(&mut builder, other, 7_000);
            let mut coin = coins_of(&first)[0].clone();
            coin.0.vout += u32::from(kind.is_none());
            let second = spend(&mut builder, coin, 1_000);
            if later == 0 {
                builder.block_with(vec![first, beside, second]);
            } else {
                builder.block_with(vec![first, beside]);
                builder.empty_blocks(later - 1);
                builder.block_with(vec![second]);
            }
            let height = builder.height();
            builder.empty_blocks(1);
            let is_coin = kind == Some(ScriptKind::Longest);
            let expected = reason(height, "bad-txns-inputs-missingorspent").filter(|_| !is_coin);
            assert_eq!(verdict(&Chain::of(&builder), [103, height]), expected, "{later} {kind:?}");
        }
    }
}

/// Core never adds the genesis coinbase to the set (`validation.cpp`, `ConnectBlock`).
#[test]
fn the_genesis_coinbase_is_not_a_coin() {
    let mut builder = ChainBuilder::new(83);
    let genesis = builder.block(builder.tip()).txdata[0].clone();
    builder.empty_blocks(110);
    let tx = spend(&mut builder, coins_of(&genesis)[0].clone(), 1_000);
    builder.block_with(vec![tx]);
    builder.empty_blocks(1);
    let expected = reason(111, "bad-txns-inputs-missingorspent");
    assert_eq!(verdict(&Chain::of(&builder), [1, 111]), expected);
    let chain = Chain::with(&without_bip34(), builder.blocks());
    assert_eq!(verdict(&chain, [1, 111]), expected);
}

/// A coinbase may claim subsidy and fees, to the satoshi, on both sides of a halving.
#[test]
fn a_coinbase_takes_no_satoshi_more() {
    for (height, subsidy) in [(149, 50), (150, 25), (299, 25), (300, 12)] {
        let subsidy = subsidy * 100_000_000 + if subsidy == 12 { 50_000_000 } else { 0 };
        for (more, refused) in [(0, false), (1, true)] {
            let mut builder = ChainBuilder::new(84);
            builder.empty_blocks(height - 1);
            let coin = builder.mature_coin();
            let satoshi = coin.1.value.to_sat() - 77;
            let tx = spend(&mut builder, coin, satoshi);
            let outputs = vec![
                builder.output(subsidy, ScriptKind::OpTrue),
                builder.output(77 + more, ScriptKind::OpTrue),
            ];
            let plan = BlockPlan {
                transactions: vec![tx],
                coinbase_outputs: Some(outputs),
                ..BlockPlan::default()
            };
            builder.add_plan(plan);
            builder.empty_blocks(1);
            let height = height as Height;
            let expected = reason(height, "bad-cb-amount").filter(|_| refused);
            assert_eq!(verdict(&Chain::of(&builder), [1, height]), expected, "{height} {more}");
        }
    }
}

/// A transaction is twice in one block, but not next to itself, which the Merkle tree would show
/// (CVE-2012-2459). The second copy has no coins to spend, whether or not the first one's outputs are spent.
#[test]
fn a_transaction_twice_in_one_block() {
    for spent in [false, true] {
        for params in [Params::of(Network::Regtest).clone(), without_bip34()] {
            let mut builder = ChainBuilder::new(85);
            builder.empty_blocks(101);
            let coin = builder.mature_coin();
            let first = spend(&mut builder, coin, 9_000);
            let next = spend(&mut builder, coins_of(&first)[0].clone(), 8_000);
            let last = spend(&mut builder, coins_of(&next)[0].clone(), 7_000);
            let again =
                if spent { [first.clone(), next, first] } else { [first.clone(), last, first] };
            builder.block_with(again.into());
            builder.empty_blocks(1);
            let expected = reason(102, "bad-txns-inputs-missingorspent");
            let chain = Chain::with(&params, builder.blocks());
            assert_eq!(verdict(&chain, [101, 102]), expected, "{spent}");
        }
    }
}

fn pushed(bytes: &[u8]) -> ScriptBuf {
    let push = PushBytesBuf::try_from(bytes.to_vec()).unwrap();
    ScriptBuf::builder().push_slice(push).into_script()
}

/// Gives an input this many signature operations, in the script whose hash is in the coin; returns their cost.
fn with_sigops(kind: ScriptKind, tx: &mut Transaction, vin: usize, count: usize) -> u64 {
    let script = vec![OP_CHECKSIG; count];
    let input = &mut tx.input[vin];
    match kind {
        ScriptKind::Sh => {
            input.script_sig = pushed(&script);
            4 * count as u64
        }
        ScriptKind::Wsh => {
            input.witness = Witness::from_slice(&[script]);
            count as u64
        }
        ScriptKind::ShWsh => {
            let program = [&[0, 32][..], &[7; 32]].concat();
            input.script_sig = pushed(&program);
            input.witness = Witness::from_slice(&[script]);
            count as u64
        }
        ScriptKind::Wpkh | ScriptKind::ShWpkh => 1,
        _ => 0,
    }
}

/// Tests signature operations of every kind, at the limit and one above it: directly in a script, in a script
/// behind a hash, and in witness programs.
#[test]
fn signature_operations_up_to_the_limit() {
    let kinds = [
        ScriptKind::Sh,
        ScriptKind::Wsh,
        ScriptKind::ShWsh,
        ScriptKind::Wpkh,
        ScriptKind::ShWpkh,
        ScriptKind::TrKey,
        ScriptKind::OpTrue,
    ];
    for (more, refused) in [(0, false), (1, true)] {
        let mut builder = ChainBuilder::new(86);
        builder.empty_blocks(101);
        let coin = builder.mature_coin();
        let outputs = kinds.iter().map(|kind| builder.output(10_000, *kind)).collect();
        let first = builder.spend_coins(&[coin], outputs);
        builder.block_with(vec![first.clone()]);
        let output = builder.output(1_000, ScriptKind::OpTrue);
        let mut second = builder.spend_coins(&coins_of(&first), vec![output]);
        let mut cost = 0;
        for (vin, kind) in kinds.into_iter().enumerate() {
            cost += with_sigops(kind, &mut second, vin, 100);
        }
        // The rest is directly in a script, where each costs four. Up to three more are in a witness.
        let left = BLOCK_SIGOPS_COST_MAX - cost;
        let in_witness = left % 4 + more;
        cost -= with_sigops(ScriptKind::Wsh, &mut second, 1, 100);
        cost += with_sigops(ScriptKind::Wsh, &mut second, 1, 100 + in_witness as usize);
        let plain = left / 4;
        cost += 4 * plain;
        assert_eq!(cost, BLOCK_SIGOPS_COST_MAX + more);
        for at in 0..plain.div_ceil(9_000) {
            let count = (plain - at * 9_000).min(9_000) as usize;
            let script_pubkey = ScriptBuf::from_bytes(vec![OP_CHECKSIG; count]);
            second.output.push(TxOut { value: Amount::ZERO, script_pubkey });
        }
        builder.block_with(vec![second]);
        builder.empty_blocks(1);
        let expected = reason(103, "bad-blk-sigops").filter(|_| refused);
        let verdict = verdict_near_limit((&Chain::of(&builder), Some(103)), [102, 103]);
        assert_eq!(verdict, expected, "{more}");
    }
}

/// A multisig operation counts as the number of keys before it, or as twenty, even in a script whose hash is in
/// the coin.
#[test]
fn multisig_counts_its_keys_or_twenty() {
    const OP_3: u8 = 0x53;
    for (script, cost) in [
        (&[OP_CHECKMULTISIG][..], 20),
        (&[OP_3, OP_CHECKMULTISIG], 3),
        (&[OP_TRUE, OP_CHECKSIG, OP_CHECKMULTISIG], 21),
    ] {
        for (more, refused) in [(0, false), (1, true)] {
            let mut builder = ChainBuilder::new(87);
            builder.empty_blocks(101);
            let coin = builder.mature_coin();
            let outputs = vec![builder.output(10_000, ScriptKind::Sh)];
            let first = builder.spend_coins(&[coin], outputs);
            builder.block_with(vec![first.clone()]);
            let output = builder.output(1_000, ScriptKind::OpTrue);
            let mut second = builder.spend_coins(&coins_of(&first), vec![output]);
            second.input[0].script_sig = pushed(script);
            let plain = BLOCK_SIGOPS_COST_MAX / 4 - cost + more;
            for part in [plain / 2, plain - plain / 2] {
                for count in [part / 2, part - part / 2] {
                    let script_pubkey = ScriptBuf::from_bytes(vec![OP_CHECKSIG; count as usize]);
                    second.output.push(TxOut { value: Amount::ZERO, script_pubkey });
                }
            }
            builder.block_with(vec![second]);
            builder.empty_blocks(1);
            let expected = reason(103, "bad-blk-sigops").filter(|_| refused);
            let verdict = verdict_near_limit((&Chain::of(&builder), Some(103)), [102, 103]);
            assert_eq!(verdict, expected, "{script:?} {more}");
        }
    }
}

/// Where a coinbase may be repeated by exception, only the later coin exists, with its own block's height
/// (BIP-30).
#[test]
fn a_repeated_coinbase_has_the_height_of_its_last_block() {
    for (rests, refused) in [(99, true), (100, false)] {
        let mut builder = ChainBuilder::new(88);
        let outputs = vec![builder.output(50 * 100_000_000, ScriptKind::OpTrue)];
        let coinbase = builder.coinbase(9, outputs);
        let plan = || BlockPlan { coinbase: Some(coinbase.clone()), ..BlockPlan::default() };
        builder.add_plan(plan());
        builder.empty_blocks(7);
        builder.add_plan(plan());
        let hash = BlockHash(builder.tip().to_byte_array());
        builder.empty_blocks(rests as usize - 1);
        let tx = spend(&mut builder, coins_of(&coinbase)[0].clone(), 1_000);
        builder.block_with(vec![tx]);
        builder.empty_blocks(1);
        let bip30_repeats = vec![KnownBlock { height: 9, hash }].into();
        let excepted = Params { bip30_repeats, ..without_bip34() };
        let expected = reason(9 + rests, "bad-txns-premature-spend-of-coinbase");
        let chain = Chain::with(&excepted, builder.blocks());
        assert_eq!(verdict(&chain, [9, 9 + rests]), expected.filter(|_| refused), "{rests}");
        // The exception only holds for the block with that hash.
        let chain = Chain::with(&without_bip34(), builder.blocks());
        assert_eq!(verdict(&chain, [1, 9]), reason(9, "bad-txns-BIP30"));
    }
}
