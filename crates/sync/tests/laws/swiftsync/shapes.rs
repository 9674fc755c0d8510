//! Makes chains to attack: small ones with a bit of everything, and random ones.

use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, coins_of};
use apus_testkit::rng::Rng;
use bitcoin::{Amount, OutPoint, ScriptBuf, Transaction, TxOut};

/// Makes an output that any transaction can spend.
pub(crate) fn pay(satoshi: u64) -> TxOut {
    pay_to(satoshi, vec![0x51])
}

/// Makes an output with this script.
pub(crate) fn pay_to(satoshi: u64, script: Vec<u8>) -> TxOut {
    TxOut { value: Amount::from_sat(satoshi), script_pubkey: ScriptBuf::from_bytes(script) }
}

/// Makes a data output, which is never a coin.
pub(crate) fn data(satoshi: u64) -> TxOut {
    pay_to(satoshi, vec![0x6a, 1, 2])
}

/// Returns the outpoint of an output.
pub(crate) fn coin(tx: &Transaction, vout: u32) -> OutPoint {
    OutPoint { txid: tx.compute_txid(), vout }
}

/// Adds an empty block and returns its coinbase.
pub(crate) fn mined(builder: &mut ChainBuilder) -> Transaction {
    builder.block_with(Vec::new()).txdata[0].clone()
}

/// Makes a transaction that spends `inputs` into `outputs` outputs that any transaction can spend. Its amount
/// makes it unique.
pub(crate) fn spend(builder: &ChainBuilder, inputs: &[OutPoint], outputs: usize) -> Transaction {
    builder.spend(inputs, vec![pay(1_000); outputs])
}

/// Makes nine blocks: spends in the same block, in the next and later ones, transactions with many outputs,
/// some of which survive, unspendable outputs in every place, a block whose outputs were all spent.
pub(crate) fn small_chain() -> ChainBuilder {
    let mut chain = ChainBuilder::new(1);
    let (first, second) = (mined(&mut chain), mined(&mut chain));
    let many = chain.spend(
        &[coin(&first, 0)],
        vec![pay(10), data(0), pay(20), pay(30), data(5), pay(40), pay(50), data(0)],
    );
    let same_block = spend(&chain, &[coin(&many, 0)], 2);
    chain.block_with(vec![many.clone(), same_block.clone()]);
    let two = spend(&chain, &[coin(&second, 0)], 4);
    let one_of_each = spend(&chain, &[coin(&many, 3), coin(&same_block, 1)], 3);
    chain.block_with(vec![two.clone(), one_of_each.clone()]);
    chain.block_with(vec![spend(&chain, &[coin(&two, 0), coin(&two, 3)], 1)]);
    let outputs = Some(vec![data(0), pay(7), data(1), pay(8)]);
    let block = chain.add_plan(BlockPlan { coinbase_outputs: outputs, ..BlockPlan::default() });
    let all = [coin(&block.txdata[0], 1), coin(&block.txdata[0], 3), coin(&one_of_each, 2)];
    let tx = spend(&chain, &all, 2);
    chain.block_with(vec![tx.clone(), spend(&chain, &[coin(&tx, 0), coin(&tx, 1)], 2)]);
    chain.empty_blocks(2);
    chain
}

/// Kinds of scripts that are cheap to spend, and all that are never coins.
const KINDS: [ScriptKind; 10] = [
    ScriptKind::OpTrue,
    ScriptKind::Empty,
    ScriptKind::Pkh,
    ScriptKind::PkUncompressed,
    ScriptKind::PkUncompressedOffCurve,
    ScriptKind::Wpkh,
    ScriptKind::Anchor,
    ScriptKind::Junk,
    ScriptKind::OpReturn,
    ScriptKind::OpReturnBare,
];

/// Makes a random chain in which any coin may be spent as soon as it exists, even in the same block.
/// Transactions pay out less than their inputs hold.
pub(crate) fn random_chain(seed: u64, blocks: u32) -> ChainBuilder {
    let mut rng = Rng::new(seed);
    let mut chain = ChainBuilder::new(seed);
    let mut coins: Vec<(OutPoint, TxOut)> = Vec::new();
    for _ in 0..blocks {
        let mut transactions = Vec::new();
        for _ in 0..rng.below(5) {
            let mut spent = Vec::new();
            for _ in 0..rng.between(1, 3) {
                if !coins.is_empty() {
                    spent.push(coins.swap_remove(rng.index(coins.len())));
                }
            }
            if spent.is_empty() {
                break;
            }
            let total: u64 = spent.iter().map(|(_, output)| output.value.to_sat()).sum();
            let outputs = random_outputs(&mut chain, &mut rng, total);
            let tx = chain.spend_coins(&spent, outputs);
            keep_spendable(&mut coins, &tx);
            transactions.push(tx);
        }
        let reward = ChainBuilder::subsidy(chain.height() + 1);
        let coinbase_outputs = Some(random_outputs(&mut chain, &mut rng, reward));
        let plan = BlockPlan { transactions, coinbase_outputs, ..BlockPlan::default() };
        let block = chain.add_plan(plan);
        keep_spendable(&mut coins, &block.txdata[0]);
    }
    chain
}

fn random_outputs(chain: &mut ChainBuilder, rng: &mut Rng, total: u64) -> Vec<TxOut> {
    let count = rng.between(1, 5);
    (0..count)
        .map(|_| {
            let amount = if rng.one_in(6) { 0 } else { rng.below(total / count + 1) };
            let kind = match rng.one_in(40) {
                true => [ScriptKind::Longest, ScriptKind::TooLong][rng.index(2)],
                false => KINDS[rng.index(KINDS.len())],
            };
            chain.output(amount, kind)
        })
        .collect()
}

fn keep_spendable(coins: &mut Vec<(OutPoint, TxOut)>, tx: &Transaction) {
    let model = apus_testkit::chain::is_unspendable;
    coins.extend(coins_of(tx).into_iter().filter(|(_, output)| !model(&output.script_pubkey)));
}
