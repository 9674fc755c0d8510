//! A node's folder with blocks that the node stored and then found invalid.

use crate::handover::node_checks::{passes_all_checks, starts};
use crate::handover::reindex::REINDEX;
use crate::lived::{CHAIN, Lived, grow, submit};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::{BlockPlan, ScriptKind};
use bitcoin::consensus::encode::serialize_hex;
use serde_json::json;

/// The node gets the headers first, and then the blocks from the last to the first, so it stores all of them before it
/// validates one. Its folder then has a chain with more work than its active chain.
#[test]
fn a_stored_invalid_block_ends_the_chain_below_it() {
    for (seed, above) in [(60, 0), (61, 3)] {
        let (mut lived, node) = Lived::running(seed, &[]);
        let mut blocks = vec![lived.chain.block_with_a_wrong_signature()];
        blocks.extend(lived.chain.empty_blocks(above));
        for block in &blocks {
            node.call("submitheader", &[json!(serialize_hex(&block.header))]);
        }
        for block in blocks.iter().rev() {
            let said = node.submit_block(block).unwrap_err();
            let last = block == &blocks[0];
            assert_eq!(said.contains("script-verify-flag-failed"), last, "{said}");
        }
        assert_eq!(node.txoutset_info(), lived.set);
        node.stop();
        for by_index in [true, false] {
            if !by_index {
                lived.sandbox.remove("node/regtest/blocks/index");
            }
            let line = "sync --chain regtest --blocksdir node/regtest/blocks --assumevalid 0 \
                        --out datadir:new --muhash --report new.json";
            lived.sandbox.apus(line).succeeds();
            let report = lived.sandbox.json("new.json");
            assert_eq!(report["stop_hash"], lived.set.best_block.to_string());
            assert_eq!(report["tip_height"], lived.set.height);
            assert_eq!(report["muhash"], lived.set.muhash);
            assert_eq!(report["hash_serialized_3"], lived.set.hash_serialized_3);
            let warnings = report["warnings"].as_array().unwrap();
            let [warning] = &warnings[..] else { panic!("{warnings:?}") };
            let warning = warning.as_str().unwrap();
            let at = format!("block {} ({})", lived.set.height + 1, blocks[0].block_hash());
            let end = format!("block {} ({})", lived.set.height, lived.set.best_block);
            for words in [&at, &end, "script-verify-flag-failed"] {
                assert!(warning.contains(words), "{words}: {warning}");
            }
            assert_eq!(warning.contains("the 3 blocks above are"), above == 3, "{warning}");
            passes_all_checks(&lived.sandbox.path("new"), &lived.set).stop();
            lived.sandbox.remove("new");
            lived.sandbox.remove("new.json");
        }
    }
}

/// Two chains have the same work, and the node stored the invalid one first. The hints are for the node's active chain,
/// and a run with hints would not notice that the other chain is invalid.
#[test]
fn of_two_last_blocks_the_connected_one_is_chosen() {
    let (mut lived, node) = Lived::running(63, &[]);
    let invalid = lived.chain.block_with_a_wrong_signature();
    let said = node.submit_block(&invalid).unwrap_err();
    assert!(said.contains("script-verify-flag-failed"), "{said}");
    lived.chain.set_tip(lived.set.best_block);
    grow(&mut lived.chain, &node, 1);
    assert_eq!(node.height(), lived.set.height + 1);
    let set = node.txoutset_info();
    lived.sandbox.write_results(&lived.chain);
    node.stop();
    for hints in ["msb.hints", "snapshot:node.dat"] {
        let line = format!(
            "sync --chain regtest --blocksdir node/regtest/blocks --hints {hints} \
             --out chainstate:new --muhash --report new.json"
        );
        lived.sandbox.apus(&line).succeeds();
        let report = lived.sandbox.json("new.json");
        assert_eq!(report["stop_hash"], set.best_block.to_string());
        assert_eq!(report["muhash"], set.muhash);
        lived.sandbox.remove("new");
        lived.sandbox.remove("new.json");
    }
}

/// A node with a later activation height has connected a block that breaks the rule. Its index says that the block is
/// valid, so the coins of another chain would not be this node's.
#[test]
fn an_invalid_block_that_the_node_considers_valid_is_an_error() {
    let args = ["-testactivationheight=bip34@500"];
    let mut lived = Lived::new(62, &args);
    let node = Bitcoind::start_in(&lived.sandbox.path("node"), CHAIN, &args).unwrap();
    let output = lived.chain.output(1, ScriptKind::OpTrue);
    let coinbase = lived.chain.coinbase(lived.set.height + 300, vec![output]);
    let plan = BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() };
    let block = lived.chain.add_plan(plan);
    submit(&node, &block);
    assert_eq!(node.best_block_hash(), block.block_hash());
    let set = node.txoutset_info();
    node.stop();
    let hash = block.block_hash().to_string();
    let said = [&hash[..], "bad-cb-height", "own block index has this block as valid"];
    lived.sandbox.start(&format!("{REINDEX} --replace")).wait().fails(2, &said);
    assert!(!lived.sandbox.has("node/regtest/chainstate.old"));
    starts(&lived.sandbox.path("node"), &args, &set).stop();
}
