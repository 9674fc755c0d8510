//! Whether a chain has the documented shape.

use crate::Chain;
use apus_bench::maker::{ChainProfile, MakeOptions};
use bitcoin::{Block, Script, Transaction};

/// The share of scripts of a kind among the outputs, in percent.
fn percent(outputs: &[&Script], of: impl Fn(&Script) -> bool) -> f64 {
    100.0 * outputs.iter().filter(|script| of(script)).count() as f64 / outputs.len() as f64
}

fn mean(numbers: impl Iterator<Item = usize> + Clone) -> f64 {
    numbers.clone().sum::<usize>() as f64 / numbers.count() as f64
}

/// One chain for all of these, because making it takes long.
#[test]
fn busy_blocks_resemble_the_main_chain() {
    let chain = Chain::make(&MakeOptions { signed: false, threads: 2, ..MakeOptions::new(40, 21) });
    let blocks = chain.blocks();
    let busy: Vec<&Block> = blocks.iter().filter(|block| block.txdata.len() > 1).collect();
    assert_eq!(busy.len(), 40);
    for block in &busy {
        let weight = block.weight().to_wu();
        assert!((3_960_000..=4_000_000).contains(&weight), "{weight}");
        let size = block.total_size();
        assert!((1_600_000..2_200_000).contains(&size), "{size}");
        assert!((2_000..5_000).contains(&block.txdata.len()));
    }
    let txs: Vec<&Transaction> = busy.iter().flat_map(|block| &block.txdata[1..]).collect();
    let inputs = mean(txs.iter().map(|tx| tx.input.len()));
    assert!((2.0..2.5).contains(&inputs), "{inputs}");
    let outputs = mean(txs.iter().map(|tx| tx.output.len()));
    assert!((2.4..2.8).contains(&outputs), "{outputs}");
    let share = |of: fn(&Transaction) -> bool| {
        100.0 * txs.iter().filter(|tx| of(tx)).count() as f64 / txs.len() as f64
    };
    let few = share(|tx| tx.input.len() <= 2);
    assert!((80.0..90.0).contains(&few), "{few} % with one or two inputs");
    let consolidations = share(|tx| tx.input.len() >= 50);
    assert!((0.1..0.6).contains(&consolidations), "{consolidations} %");
    let batches = share(|tx| tx.output.len() >= 50);
    assert!((0.08..0.4).contains(&batches), "{batches} %");
    assert!(txs.iter().any(|tx| tx.input.len() > 300));
    assert!(txs.iter().any(|tx| tx.output.len() > 1_000));

    let scripts: Vec<&Script> =
        txs.iter().flat_map(|tx| &tx.output).map(|output| &*output.script_pubkey).collect();
    for (name, low, high, of) in [
        ("P2WPKH", 40.0, 45.0, Script::is_p2wpkh as fn(&Script) -> bool),
        ("P2TR", 25.0, 30.0, Script::is_p2tr),
        ("P2PKH", 8.0, 12.0, Script::is_p2pkh),
        ("P2SH", 7.0, 10.0, Script::is_p2sh),
        ("P2WSH", 3.0, 5.0, Script::is_p2wsh),
        ("OP_RETURN", 4.0, 6.0, Script::is_op_return),
        ("P2PK", 0.3, 0.7, Script::is_p2pk),
        ("multisig", 0.3, 0.7, Script::is_multisig),
    ] {
        let found = percent(&scripts, of);
        assert!((low..high).contains(&found), "{name}: {found} %");
    }
    let leaves = txs.iter().flat_map(|tx| &tx.input).filter(|input| input.witness.len() == 3);
    assert!(leaves.count() > 1_000, "taproot outputs are spent by scripts too");
}

/// Coins that busy blocks create and later ones spend: a chain of many light blocks.
#[test]
fn coins_are_spent_at_the_ages_of_the_main_chain() {
    let options =
        MakeOptions { block_weight: 100_000, tail_blocks: 0, ..MakeOptions::new(1_000, 22) };
    let chain = Chain::make(&MakeOptions { signed: false, ..options });
    let manifest = &chain.manifest;
    let within =
        |blocks: u32| 100.0 * manifest.spent_within[&blocks] as f64 / manifest.inputs as f64;
    for (blocks, low, high) in
        [(0, 3.0, 6.0), (1, 10.0, 17.0), (10, 37.0, 45.0), (100, 66.0, 78.0), (1_000, 97.0, 100.0)]
    {
        let found = within(blocks);
        assert!((low..=high).contains(&found), "{found} % within {blocks} blocks");
    }
    // The supply lasts: a remaining coin's value is far above the cost of spending it.
    assert!(manifest.total_amount_sat / manifest.coins > 100_000);
    let unspent = manifest.coins as f64 / (manifest.outputs - manifest.unspendable) as f64;
    assert!((0.06..0.25).contains(&unspent), "{unspent}");
}

/// Fewer coins remain, but later blocks lack none: these are as full.
#[test]
fn blocks_with_few_coins_are_as_full() {
    let [like, few] = [ChainProfile::MainnetLike, ChainProfile::FewCoins].map(|profile| {
        let options =
            MakeOptions { block_weight: 50_000, tail_blocks: 0, ..MakeOptions::new(1_000, 23) };
        Chain::make(&MakeOptions { profile, signed: false, ..options }).manifest
    });
    assert_eq!((&*like.profile, &*few.profile), ("mainnet-like", "few-coins"));
    let bytes = few.bytes as f64 / like.bytes as f64;
    assert!((0.98..1.02).contains(&bytes), "{bytes}");
    let coins = few.coins as f64 / like.coins as f64;
    assert!((0.3..0.75).contains(&coins), "{coins}");
}
