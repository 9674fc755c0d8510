//! An invalid chain with hints that match it exactly: the sums balance, but the chain breaks rules that sums cannot
//! check. Apus makes nothing from it unless the user vouches for it.

use crate::sandbox::{MAIN, REGTEST_MAGIC, Sandbox};
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, UtxoSet, coins_of, hints};
use apus_testkit::oracle::{self, BitOrder};
use bitcoin::{Amount, OutPoint, ScriptBuf, Transaction, TxOut};
use serde_json::{Value, json};

/// Satoshis per bitcoin.
const COIN: u64 = 100_000_000;

/// Number of empty blocks at the end, so that the invalid blocks are deep.
const ABOVE: usize = 300;

fn pay(bitcoins: u64) -> TxOut {
    let script_pubkey = ScriptBuf::from_bytes(vec![0x51]);
    TxOut { value: Amount::from_sat(bitcoins * COIN), script_pubkey }
}

fn coinbase_of(chain: &ChainBuilder, height: usize) -> OutPoint {
    let txid = chain.blocks()[height].txdata[0].compute_txid();
    OutPoint { txid, vout: 0 }
}

fn mine_paying(chain: &mut ChainBuilder, output: TxOut) {
    let coinbase_outputs = Some(vec![output]);
    chain.add_plan(BlockPlan { coinbase_outputs, ..BlockPlan::default() });
}

/// A spend of a coinbase without the signature that it needs, spends of two coinbases before they are mature, a
/// transaction that creates 900 BTC out of 50, and a coin that is spent ten blocks before it exists.
fn broken() -> (ChainBuilder, UtxoSet) {
    let mut chain = ChainBuilder::new(770);
    let keyed = chain.output(50 * COIN, ScriptKind::Pkh);
    mine_paying(&mut chain, keyed);
    mine_paying(&mut chain, pay(50));
    // These blocks leave rewards unclaimed, which hides the money created later.
    (0..20).for_each(|_| mine_paying(&mut chain, pay(0)));
    chain.empty_blocks(27);
    let young =
        |chain: &ChainBuilder, height| chain.spend(&[coinbase_of(chain, height)], vec![pay(50)]);
    let later: Transaction = young(&chain, 30);
    let sooner = chain.spend_coins(&coins_of(&later), vec![pay(50)]);
    let spent_before: OutPoint = sooner.input[0].previous_output;
    chain.block_with(vec![sooner]);
    assert_eq!(chain.height(), 50);
    chain.empty_blocks(9);
    chain.block_with(vec![later]);
    let second = young(&chain, 31);
    chain.block_with(vec![second]);
    chain.empty_blocks(63);
    let mut unsigned = chain.spend(&[coinbase_of(&chain, 1)], vec![pay(50)]);
    unsigned.input[0].script_sig = ScriptBuf::new();
    let made = chain.spend(&[coinbase_of(&chain, 2)], vec![pay(900)]);
    chain.block_with(vec![unsigned, made]);
    chain.empty_blocks(5);
    assert_eq!(chain.height(), 130);
    chain.empty_blocks(ABOVE);
    let mut coins = chain.utxo().clone();
    // The model applies blocks in order, so there the coin still exists.
    coins.remove(&spent_before).unwrap();
    (chain, coins)
}

/// A sandbox with that chain and both kinds of hints for it.
fn broken_desk() -> Sandbox {
    let (chain, coins) = broken();
    let sandbox = Sandbox::of(&chain);
    sandbox.write("node.dat", &oracle::snapshot(REGTEST_MAGIC, chain.tip(), &coins));
    let hints = hints(&chain.blocks(), &coins);
    sandbox.write("msb.hints", &oracle::hints_file(&hints, BitOrder::Msb));
    sandbox
}

const RUN: &str = "sync --chain regtest --blocksdir blocks --progress json";
const HINTS: [&str; 2] = ["--hints msb.hints", "--hints snapshot:node.dat"];

#[test]
fn a_chain_that_no_node_would_accept_is_refused_before_its_blocks_are_read() {
    let sandbox = broken_desk();
    let before = sandbox.names("");
    for hints in HINTS {
        for out in [
            "--out datadir:new --prune",
            "--out chainstate:cs",
            "--out snapshot:utxo.dat",
            "--out hints:out.hints --report run.json",
            "--out null --workdir other.work",
        ] {
            let said = [
                "which Bitcoin Core would check: no block is assumed",
                "no hints, which checks every rule",
                "--assumevalid hints, if you know",
            ];
            let ended = sandbox.apus_as_typed(&format!("{RUN} {hints} {out}")).fails(1, &said);
            assert!(!ended.stderr.contains("\"phase\":\"blocks\""), "{ended}");
            if out.contains("--report") {
                assert_eq!(sandbox.json("run.json")["failure"]["code"], 1);
                sandbox.remove("run.json");
            }
            assert_eq!(sandbox.names(""), before, "{ended}");
        }
    }
}

/// The report, its warnings and the last line on the screen name the assumption.
#[test]
fn an_assumption_of_the_user_is_named_everywhere() {
    let sandbox = broken_desk();
    let outputs = ["--out datadir:new --prune", "--out chainstate:cs", "--out snapshot:utxo.dat"];
    for (number, (hints, out)) in
        HINTS.into_iter().flat_map(|hints| outputs.map(|out| (hints, out))).enumerate()
    {
        let out = out.replacen(":", &format!(":{number}"), 1);
        let more = "--assumevalid hints --report run.json";
        let ended = sandbox.apus_as_typed(&format!("{RUN} {hints} {out} {more}")).succeeds();
        let start = "--assumevalid hints: blocks 1 to ";
        let last = ended.stdout.trim_end().lines().last().unwrap_or_default();
        assert!(last.starts_with(start), "{ended}");
        let report = sandbox.json("run.json");
        let warning = report["warnings"][0].as_str().unwrap();
        assert!(warning.starts_with(start) && last.starts_with(warning), "{warning}");
        for words in ["scripts and signatures", "amounts", "mature", "never re-checks"] {
            assert!(warning.contains(words), "{warning}");
        }
        let assumed = &report["assume_hinted_valid"];
        assert_eq!(assumed["first_height"], 1);
        assert!(assumed["last_height"].as_u64() > Some(130), "{assumed}");
        assert_eq!(assumed["reason"], "no block is assumed to be valid");
        sandbox.remove("run.json");
    }
}

/// `hints check` and `snapshot verify` only compare with the blocks, and say that the blocks may be invalid.
#[test]
fn hints_are_checked_wherever_they_stop() {
    let sandbox = broken_desk();
    let blocks = "--chain regtest --blocksdir blocks --report run.json";
    for line in
        [format!("hints check msb.hints {blocks}"), format!("snapshot verify node.dat {blocks}")]
    {
        let open = "This does not check whether the blocks are valid";
        let ended = sandbox.apus(&line).succeeds().says(&[open]);
        assert!(!ended.stdout.contains("--assumevalid hints"), "{ended}");
        let report = sandbox.json("run.json");
        assert_eq!(
            (&report["warnings"], &report["assume_hinted_valid"]),
            (&json!([]), &Value::Null)
        );
        assert_eq!(report["verified"]["amounts"], false);
        sandbox.remove("run.json");
    }
}

/// The blocks are real, but too few: they lack the real chain's work and its assumed-valid block.
#[test]
fn the_beginning_of_the_real_chain_could_be_any_chain() {
    let sandbox = Sandbox::with(MAIN);
    let run = "sync --blocksdir blocks --hints msb.hints --out snapshot:utxo.dat";
    let said = ["block 4521 (00000000ac08f7d984f6b36027395e654a5f1e3bb006cd9df9c60b9897ea4c40)"];
    let ended = sandbox.apus_as_typed(run).fails(1, &said);
    assert!(ended.stderr.contains("not in the best chain of headers"), "{ended}");
    assert!(!ended.stderr.contains("--assumevalid 0"), "{ended}");
    // Assuming the last block does not help either: the chain lacks work.
    let tip = "--assumevalid 00000000ac08f7d984f6b36027395e654a5f1e3bb006cd9df9c60b9897ea4c40";
    sandbox.apus_as_typed(&format!("{run} {tip}")).fails(1, &["less work than the real chain"]);
    sandbox.apus_as_typed(&format!("{run} --assumevalid hints")).succeeds();
    assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"));
}
