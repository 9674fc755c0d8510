//! Applies the spending rules to real blocks and all the coins that they spent.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use apus_chain::{
    Ancestry, BlockChecker, BlockContext, BlockHash, BlockTotals, CheckedBlock, CoinRef, Height,
    Network, OutPoint, Params, SpendError, TxView, Txid, check_sequence_locks, check_tx_inputs,
    transaction_sigop_cost,
};
use bitcoin::{Amount, ScriptBuf, TxOut};
use flate2::read::GzDecoder;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// A coin that a block spent.
struct Spent {
    outpoint: OutPoint,
    height: Height,
    coinbase: bool,
    amount: u64,
    script: Vec<u8>,
}

impl Spent {
    fn coin(&self) -> CoinRef<'_> {
        let Self { height, coinbase, amount, ref script, .. } = *self;
        CoinRef { height, coinbase, amount, script }
    }
}

/// A real block and the coins of each of its transactions; the coinbase has none.
struct RealBlock {
    block: CheckedBlock,
    spent: Vec<Vec<Spent>>,
}

fn path_of(height: Height, ending: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/main-blocks");
    let is_wanted = |name: &str| name.starts_with(&format!("{height}_")) && name.ends_with(ending);
    let mut paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.find(|path| is_wanted(path.file_name().unwrap().to_str().unwrap())).unwrap()
}

fn spent_of(line: &str) -> (usize, Spent) {
    let row: serde_json::Value = serde_json::from_str(line).unwrap();
    let number = |name: &str| row[name].as_u64().unwrap();
    let script: ScriptBuf = ScriptBuf::from_hex(row["script"].as_str().unwrap()).unwrap();
    let spent = Spent {
        outpoint: OutPoint {
            txid: row["txid"].as_str().unwrap().parse().unwrap(),
            vout: number("vout") as u32,
        },
        height: number("height") as Height,
        coinbase: row["coinbase"].as_bool().unwrap(),
        amount: number("value"),
        script: script.into_bytes(),
    };
    (number("tx") as usize, spent)
}

fn real(height: Height) -> RealBlock {
    let path = path_of(height, ".raw");
    let raw = std::fs::read(&path).unwrap();
    let time = u32::from_le_bytes(raw[68..72].try_into().unwrap());
    let name = path.file_stem().unwrap().to_str().unwrap();
    let context = BlockContext {
        params: Params::of(Network::Main),
        height,
        hash: name.split_once('_').unwrap().1.parse().unwrap(),
        // The previous blocks are not available; the median time past is about an hour earlier.
        median_time_past: time - 3600,
        verifier: None,
    };
    let block = BlockChecker::new().check_owned(raw, &context).unwrap();
    let mut spent: Vec<Vec<Spent>> = block.bytes().txs().map(|_| Vec::new()).collect();
    let file = std::fs::File::open(path_of(height, ".prevouts.jsonl.gz")).unwrap();
    for line in BufReader::new(GzDecoder::new(file)).lines() {
        let (tx, coin) = spent_of(&line.unwrap());
        spent[tx].push(coin);
    }
    let real = RealBlock { block, spent };
    real.check_that_coins_fit();
    real
}

impl RealBlock {
    fn txs(&self) -> impl Iterator<Item = (usize, Txid, TxView<'_>, &[Spent])> {
        let spent = self.spent.iter().map(Vec::as_slice);
        self.block
            .bytes()
            .txs()
            .zip(spent)
            .enumerate()
            .map(|(index, ((txid, tx), spent))| (index, txid, tx, spent))
    }

    /// Checks that each input has its coin.
    fn check_that_coins_fit(&self) {
        for (index, _, tx, spent) in self.txs().skip(1) {
            let outpoints: Vec<_> =
                tx.inputs().map(|input| OutPoint::from_bytes(input.outpoint())).collect();
            let coins: Vec<_> = spent.iter().map(|spent| spent.outpoint).collect();
            assert_eq!(outpoints, coins, "transaction {index}");
        }
    }

    /// Applies every rule for amounts and signature operations, like an engine.
    fn totals(&self) -> Result<BlockTotals, SpendError> {
        let params = Params::of(Network::Main);
        let (height, hash) = (self.block.height(), self.block.hash());
        let flags = params.block_script_flags(height, &hash);
        let mut totals = BlockTotals::new();
        for (index, txid, tx, spent) in self.txs() {
            let coins: Vec<CoinRef<'_>> = spent.iter().map(Spent::coin).collect();
            if index > 0 {
                totals.add_fee(index, txid, check_tx_inputs(&tx, index, txid, &coins, height)?)?;
            }
            let scripts = coins.iter().map(|coin| coin.script);
            totals.add_sigop_cost(index, txid, transaction_sigop_cost(&tx, scripts, flags))?;
        }
        let (_, _, coinbase, _) = self.txs().next().unwrap();
        totals.check_coinbase(&coinbase, height, params)?;
        Ok(totals)
    }
}

const HEIGHTS: [Height; 4] = [277_647, 388_381, 481_824, 692_261];

#[test]
fn real_blocks_keep_every_rule() {
    for height in HEIGHTS {
        let real = real(height);
        let totals = real.totals().unwrap_or_else(|error| panic!("{height}: {error}"));
        // Each of these miners claimed the full reward, so the coinbase shows the fees.
        let subsidy = (50 * apus_chain::COIN) >> (height / 210_000);
        let (_, _, coinbase, _) = real.txs().next().unwrap();
        let taken: i64 = coinbase.outputs().map(|output| output.value()).sum();
        assert_eq!(taken as u64, subsidy + totals.fees(), "{height}");
    }
}

#[test]
fn real_sigop_costs_match_the_bitcoin_crate() {
    for height in HEIGHTS {
        let real = real(height);
        let mut expected = 0;
        for (_, _, tx, spent) in real.txs() {
            let theirs: bitcoin::Transaction = bitcoin::consensus::deserialize(tx.raw()).unwrap();
            let mut next = spent.iter().cycle();
            expected += theirs.total_sigop_cost(|_| {
                let Spent { amount, script, .. } = next.next()?;
                let script_pubkey = ScriptBuf::from_bytes(script.clone());
                Some(TxOut { value: Amount::from_sat(*amount), script_pubkey })
            });
        }
        assert_eq!(real.totals().unwrap().sigop_cost(), expected as u64, "{height}");
    }
}

/// If one coin has one satoshi less, the block cannot pay its coinbase; with an immature coinbase or a
/// missing coin, it cannot be connected at all.
#[test]
fn real_blocks_on_other_coins_break_a_rule() {
    for height in HEIGHTS {
        let mut real = real(height);
        let middle = real.spent.len() / 2;
        real.spent[middle][0].amount -= 1;
        assert_eq!(real.totals().unwrap_err().reason(), "bad-cb-amount", "{height}");
        real.spent[middle][0].coinbase = true;
        real.spent[middle][0].height = height - 99;
        let reason = "bad-txns-premature-spend-of-coinbase";
        assert_eq!(real.totals().unwrap_err().reason(), reason, "{height}");
        real.spent[middle][0].coinbase = false;
        real.spent[middle].pop();
        let reason = "bad-txns-inputs-missingorspent";
        assert_eq!(real.totals().unwrap_err().reason(), reason, "{height}");
    }
}

/// Has no medians, so only locks that count blocks can pass.
struct HeightsAlone;

impl Ancestry for HeightsAlone {
    fn hash(&self, _: Height) -> Option<BlockHash> {
        None
    }

    fn median_time_past(&self, _: Height) -> Option<u32> {
        None
    }
}

#[test]
fn real_relative_locks_of_blocks_have_passed() {
    let mut locked = 0;
    for height in [481_824, 692_261] {
        for (index, _, tx, spent) in real(height).txs().skip(1) {
            let over = |height| {
                check_sequence_locks(&tx, |vin| spent[vin].height, &HeightsAlone, height, true)
            };
            assert!(over(height), "transaction {index} of {height}");
            // At height 0 the spend would have been too early, if it has a lock.
            locked += u32::from(!over(0));
        }
    }
    assert_eq!(locked, 5, "transactions with locks");
}
