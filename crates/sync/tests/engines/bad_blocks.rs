//! Makes blocks that break a rule, for the end of a valid chain; and reads the files of a folder.

use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind};
use bitcoin::{Amount, Block, OutPoint, Sequence, Transaction, TxOut};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn spend(builder: &mut ChainBuilder, satoshi: u64) -> Transaction {
    let (outpoint, _) = builder.mature_coin();
    let output = builder.output(satoshi, ScriptKind::OpTrue);
    builder.spend(&[outpoint], vec![output])
}

pub(crate) type Make = fn(&mut ChainBuilder) -> BlockPlan;

pub(crate) fn bad_blocks() -> [(&'static str, Make); 6] {
    [
        ("bad-txns-inputs-missingorspent", |builder| {
            let mut tx = spend(builder, 1_000);
            tx.input[0].previous_output.vout += 77;
            BlockPlan { transactions: vec![tx], ..BlockPlan::default() }
        }),
        ("bad-txns-inputs-missingorspent", |builder| {
            let (one, other) = (spend(builder, 1_000), spend(builder, 2_000));
            BlockPlan { transactions: vec![one, other], ..BlockPlan::default() }
        }),
        ("bad-txns-in-belowout", |builder| {
            let more = builder.mature_coin().1.value.to_sat() + 1;
            BlockPlan { transactions: vec![spend(builder, more)], ..BlockPlan::default() }
        }),
        ("bad-cb-amount", |builder| {
            let value = Amount::from_sat(ChainBuilder::subsidy(builder.height() + 1) + 1);
            let script_pubkey = vec![0x51].into();
            let outputs = vec![TxOut { value, script_pubkey }];
            BlockPlan { coinbase_outputs: Some(outputs), ..BlockPlan::default() }
        }),
        ("bad-txns-nonfinal", |builder| {
            let (outpoint, _) = builder.mature_coin();
            let output = builder.output(1_000, ScriptKind::OpTrue);
            let mut tx = builder.spend(&[outpoint], vec![output]);
            // About 30,000 blocks.
            tx.input[0].sequence = Sequence::from_height(30_000);
            BlockPlan { transactions: vec![tx], ..BlockPlan::default() }
        }),
        ("bad-txns-premature-spend-of-coinbase", |builder| {
            let last = builder.block(builder.tip()).txdata[0].compute_txid();
            let outpoint = OutPoint { txid: last, vout: 0 };
            let output = builder.output(1_000, ScriptKind::OpTrue);
            let tx = builder.spend(&[outpoint], vec![output]);
            BlockPlan { transactions: vec![tx], ..BlockPlan::default() }
        }),
    ]
}

/// Makes a block whose coinbase states another height; finding this fault takes no coin.
pub(crate) fn wrong_height(builder: &mut ChainBuilder) -> Block {
    let height = builder.height() + 1;
    let output = builder.output(ChainBuilder::subsidy(height), ScriptKind::OpTrue);
    let coinbase = Some(builder.coinbase(height + 5, vec![output]));
    builder.add_plan(BlockPlan { coinbase, ..BlockPlan::default() })
}

/// Reads the files of a folder, except its databases.
pub(crate) fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.path().is_file());
    files
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect()
}
