use super::*;
use crate::bitcoind::Bitcoind;
use bitcoin::Amount;
use std::collections::HashSet;

#[test]
fn a_seed_determines_every_byte() {
    let build = |seed| {
        let mut chain = ChainBuilder::new(seed);
        chain.random_blocks(130, Shape::default());
        chain.blocks()
    };
    assert_eq!(build(3), build(3));
    assert_ne!(build(3).last(), build(4).last());
}

#[test]
fn random_chains_have_the_promised_shape() {
    let mut chain = ChainBuilder::new(11);
    chain.random_blocks(300, Shape::default());
    let blocks = chain.blocks();
    let (mut same_block, mut next_block, mut far, mut unspendable) = (0, 0, 0, 0);
    let mut heights = std::collections::HashMap::new();
    for (height, block) in (0u32..).zip(&blocks) {
        assert!(block.check_merkle_root());
        assert!(block.check_witness_commitment());
        for tx in &block.txdata {
            heights.insert(tx.compute_txid(), height);
            unspendable += tx.output.iter().filter(|o| is_unspendable(&o.script_pubkey)).count();
        }
        for input in block.txdata.iter().skip(1).flat_map(|tx| &tx.input) {
            match height - heights[&input.previous_output.txid] {
                0 => same_block += 1,
                1 => next_block += 1,
                _ => far += 1,
            }
        }
    }
    assert!(same_block > 50 && next_block > 20 && far > 100, "{same_block} {next_block} {far}");
    assert!(unspendable > 20);
    assert_eq!(chain.utxo(), &utxo_set(&blocks));
    let scripts: HashSet<_> = chain.utxo().values().map(|c| &c.output.script_pubkey).collect();
    for wanted in [0, 1, 4, 22, 23, 25, 34, 35, 67, 10_000] {
        assert!(scripts.iter().any(|s| s.len() == wanted), "no script of {wanted} bytes");
    }
}

#[test]
fn hints_name_exactly_the_coins() {
    let mut chain = ChainBuilder::new(12);
    chain.random_blocks(180, Shape::default());
    let hints = chain.hints();
    assert_eq!(hints.len(), 180);
    assert_eq!(hints.iter().map(Vec::len).sum::<usize>(), chain.utxo().len());
    let mut named = HashSet::new();
    for (block, hints) in chain.blocks().iter().skip(1).zip(&hints) {
        let spendable = block.txdata.iter().flat_map(coins_of);
        let spendable = spendable.filter(|(_, out)| !is_unspendable(&out.script_pubkey));
        let names: Vec<_> = spendable.map(|(outpoint, _)| outpoint).collect();
        named.extend(hints.iter().map(|hint| names[*hint as usize]));
    }
    assert_eq!(named, chain.utxo().keys().copied().collect());
}

#[test]
fn forks_double_spends_and_foreign_outpoints_can_be_built() {
    let mut chain = ChainBuilder::new(13);
    chain.empty_blocks(101);
    let fork = chain.tip();
    let coin = *chain.utxo().keys().next().unwrap();
    let pay = chain.output(1, ScriptKind::Wpkh);
    let spend = chain.spend(&[coin], vec![pay]);
    let first = chain.block_with(vec![spend.clone()]);
    chain.block_with(vec![spend.clone()]);
    let at_double = chain.utxo().clone();

    chain.set_tip(fork);
    let rival = chain.empty_blocks(1).remove(0);
    assert_ne!(rival.block_hash(), first.block_hash());
    assert_eq!(rival.header.prev_blockhash, first.header.prev_blockhash);
    assert!(chain.utxo().contains_key(&coin));
    assert!(!at_double.contains_key(&coin));
    assert_eq!(chain.hints_at(first.block_hash()).len(), 102);

    let nothing = bitcoin::OutPoint { txid: spend.compute_txid(), vout: 9 };
    let foreign = chain.spend(&[nothing], vec![]);
    assert_eq!(foreign.input[0].previous_output, nothing);
}

#[test]
fn bitcoind_accepts_random_chains_and_counts_the_same_coins() {
    let node = Bitcoind::start(&[]);
    let mut chain = ChainBuilder::new(14);
    let shape = Shape { transactions_max: 12, ..Shape::default() };
    for (height, block) in (1..).zip(chain.random_blocks(320, shape)) {
        let height: u32 = height;
        node.submit_block(&block).unwrap_or_else(|why| panic!("height {height}: {why}"));
    }
    let info = node.txoutset_info();
    assert_eq!(info.best_block, chain.tip());
    assert_eq!(info.height, chain.height());
    assert_eq!(info.txouts, chain.utxo().len() as u64);
    let total: Amount = chain.utxo().values().map(|coin| coin.output.value).sum();
    assert_eq!(info.total_amount, total);
    // The independent implementation of the formats matches the node byte for byte.
    let tip = chain.tip();
    assert_eq!(info.muhash, crate::oracle::muhash(chain.utxo()));
    assert_eq!(info.hash_serialized_3, crate::oracle::hash_serialized_3(chain.utxo()));
    let file = node.datadir().join("utxo.dat");
    node.dump_txoutset(&file);
    let regtest = bitcoin::Network::Regtest.magic().to_bytes();
    let expected = crate::oracle::snapshot(regtest, tip, chain.utxo());
    assert!(std::fs::read(file).unwrap() == expected, "the snapshots differ");
}

#[test]
fn bitcoind_spends_every_kind_that_can_be_spent() {
    let node = Bitcoind::start(&[]);
    let mut chain = ChainBuilder::new(15);
    chain.empty_blocks(101);
    let coin = chain.utxo().iter().find(|(_, coin)| coin.height == 1).map(|(name, _)| *name);
    let outputs: Vec<_> = ScriptKind::ALL.map(|kind| chain.output(1_000, kind)).into();
    let make = chain.spend(&[coin.unwrap()], outputs);
    chain.block_with(vec![make.clone()]);
    // Five inputs of each kind, so that every signature hash type occurs.
    for (name, output) in coins_of(&make) {
        let known = chain.wallet.can_spend(&output.script_pubkey);
        assert!(!known || !is_unspendable(&output.script_pubkey));
        if known {
            let pay = chain.output(900, ScriptKind::OpTrue);
            let tx = chain.spend(&[name], vec![pay]);
            chain.block_with(vec![tx]);
        }
    }
    for block in chain.blocks().iter().skip(1) {
        node.submit_block(block).unwrap();
    }
    assert_eq!(node.best_block_hash(), chain.tip());
    assert_eq!(chain.height(), 102 + 16);
}

#[test]
fn bitcoind_refuses_what_the_model_ignores() {
    let node = Bitcoind::start(&[]);
    let mut chain = ChainBuilder::new(16);
    for block in chain.empty_blocks(101) {
        node.submit_block(&block).unwrap();
    }
    let good = chain.tip();
    let coin = *chain.utxo().iter().find(|(_, coin)| coin.height == 1).unwrap().0;
    let pay = chain.output(1, ScriptKind::OpTrue);
    let spend = chain.spend(&[coin], vec![pay.clone()]);
    let twice = chain.block_with(vec![spend.clone(), chain.spend(&[coin], vec![])]);
    assert_eq!(node.submit_block(&twice), Err("bad-txns-vout-empty".to_owned()));
    chain.set_tip(good);
    let again = chain.spend(&[coin], vec![pay.clone(), pay]);
    let twice = chain.block_with(vec![spend, again]);
    assert_eq!(node.submit_block(&twice), Err("bad-txns-inputs-missingorspent".to_owned()));
    chain.set_tip(good);
    let reward = ChainBuilder::subsidy(chain.height() + 1);
    let greedy = vec![chain.output(reward + 1, ScriptKind::OpTrue)];
    let plan = BlockPlan { coinbase_outputs: Some(greedy), ..BlockPlan::default() };
    assert_eq!(node.submit_block(&chain.add_plan(plan)), Err("bad-cb-amount".to_owned()));
}

#[test]
fn bitcoind_accepts_big_blocks() {
    let node = Bitcoind::start(&[]);
    let mut chain = ChainBuilder::new(17);
    let kinds = [ScriptKind::Longest, ScriptKind::TooLong];
    let outputs = (0..98).map(|place| chain.output(1, kinds[place % 2])).collect();
    let plan = BlockPlan { coinbase_outputs: Some(outputs), ..BlockPlan::default() };
    let block = chain.add_plan(plan);
    assert!(block.total_size() > 980_000);
    node.submit_block(&block).unwrap();
    assert_eq!(node.block_at(1), block);
    assert_eq!(node.txoutset_info().txouts, 49);
}
