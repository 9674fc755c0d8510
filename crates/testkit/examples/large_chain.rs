//! Writes a large regtest chain in Core's block files, with its hints, to measure with.
//!
//! `cargo run --release -p apus-testkit --example large_chain -- OUT MEGABYTES` makes `OUT/blocks`
//! and `OUT/chain.hints`. The same arguments give the same bytes. Blocks are near the weight limit
//! and shaped after the main chain's of today: some 2.2 inputs and 2.6 outputs a transaction, half
//! of the coins spent soon after they were made. Every rule holds but one: witnesses are the right
//! size and nothing else, so that only validation that assumes scripts accepts the chain.

#![allow(clippy::print_stdout, reason = "a program")]
#![allow(clippy::unwrap_used, reason = "test machinery: a failure here is a failed run")]

use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{commit_witness, seal};
use apus_testkit::oracle::{BitOrder, hints_file};
use apus_testkit::rng::Rng;
use bitcoin::absolute::LockTime;
use bitcoin::block::{Header, Version};
use bitcoin::script::Builder;
use bitcoin::{
    Amount, Block, CompactTarget, OutPoint, ScriptBuf, Sequence, Transaction, TxIn, TxMerkleNode,
    TxOut, Witness, hashes::Hash, transaction,
};
use std::path::PathBuf;

/// Blocks of coinbases alone at the start, whose outputs the chain lives on.
const FUNDING_BLOCKS: u32 = 300;
/// Outputs of each of them.
const FUNDING_OUTPUTS: u64 = 100;
/// Transactions in a full block: about 3.9 million weight units.
const TRANSACTIONS: usize = 4_150;

/// A coin that can be spent, and its place: the block's height and the index in its hints.
struct Coin {
    outpoint: OutPoint,
    satoshi: u64,
    height: u32,
    index: u32,
}

struct Maker {
    rng: Rng,
    coins: Vec<Coin>,
    parent: Header,
    height: u32,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (Some(out), Some(megabytes)) = (args.next(), args.next()) else {
        println!("usage: large_chain OUT MEGABYTES");
        return;
    };
    let (out, bytes_max) = (PathBuf::from(out), megabytes.parse::<usize>().unwrap() * 1_000_000);
    let genesis = bitcoin::constants::genesis_block(bitcoin::Network::Regtest);
    let mut maker =
        Maker { rng: Rng::new(1), coins: Vec::new(), parent: genesis.header, height: 0 };
    let mut files = BlockFiles::regtest().key(*b"apus/key");
    files.block(&genesis);
    let mut bytes = 0;
    while bytes < bytes_max {
        let transactions = if maker.height < FUNDING_BLOCKS { 0 } else { TRANSACTIONS };
        let block = maker.block(transactions);
        bytes += block.total_size();
        files.block(&block);
    }
    files.write(&out.join("blocks"));
    let mut hints = vec![Vec::new(); maker.height as usize];
    for coin in &maker.coins {
        hints[coin.height as usize - 1].push(coin.index);
    }
    hints.iter_mut().for_each(|indices| indices.sort_unstable());
    std::fs::write(out.join("chain.hints"), hints_file(&hints, BitOrder::Msb)).unwrap();
    println!("{} blocks, {bytes} bytes, {} coins", maker.height, maker.coins.len());
}

impl Maker {
    fn block(&mut self, transactions: usize) -> Block {
        self.height += 1;
        let mut txdata = vec![self.coinbase()];
        for _ in 0..transactions {
            txdata.push(self.transaction());
        }
        let header = Header {
            version: Version::from_consensus(0x2000_0000),
            prev_blockhash: self.parent.block_hash(),
            merkle_root: TxMerkleNode::all_zeros(),
            time: self.parent.time + 600,
            bits: CompactTarget::from_consensus(0x207f_ffff),
            nonce: 0,
        };
        let mut block = Block { header, txdata };
        if transactions > 0 {
            commit_witness(&mut block);
        }
        seal(&mut block);
        self.parent = block.header;
        self.keep_coins(&block);
        block
    }

    fn keep_coins(&mut self, block: &Block) {
        let mut index = 0;
        for tx in &block.txdata {
            let txid = tx.compute_txid();
            for (vout, output) in (0..).zip(&tx.output) {
                if output.script_pubkey.is_op_return() {
                    continue;
                }
                let (outpoint, satoshi) = (OutPoint { txid, vout }, output.value.to_sat());
                self.coins.push(Coin { outpoint, satoshi, height: self.height, index });
                index += 1;
            }
        }
    }

    fn coinbase(&mut self) -> Transaction {
        let script_sig = Builder::new().push_int(self.height.into()).push_int(0).into_script();
        let outputs = if self.height <= FUNDING_BLOCKS { FUNDING_OUTPUTS } else { 1 };
        let satoshi = (5_000_000_000 >> (self.height / 150).min(63)) / outputs;
        Transaction {
            version: transaction::Version::TWO,
            lock_time: LockTime::ZERO,
            input: vec![TxIn { script_sig, sequence: Sequence::MAX, ..TxIn::default() }],
            output: (0..outputs).map(|_| self.output(satoshi)).collect(),
        }
    }

    fn transaction(&mut self) -> Transaction {
        let inputs = 1 + self.rng.below(4).saturating_sub(self.rng.below(2)) as usize;
        let spent: Vec<Coin> = (0..inputs).map(|_| self.take()).collect();
        let satoshi: u64 = spent.iter().map(|coin| coin.satoshi).sum();
        let outputs = 1 + self.rng.below(4) + u64::from(self.rng.one_in(10));
        Transaction {
            version: transaction::Version::TWO,
            lock_time: LockTime::ZERO,
            input: spent
                .iter()
                .map(|coin| TxIn {
                    previous_output: coin.outpoint,
                    script_sig: ScriptBuf::new(),
                    sequence: Sequence::MAX,
                    witness: Witness::from_slice(&[&[0u8; 72][..], &[2; 33]]),
                })
                .collect(),
            output: (0..outputs).map(|_| self.output(satoshi / outputs)).collect(),
        }
    }

    /// A coin to spend: a recent one as often as one of any age.
    fn take(&mut self) -> Coin {
        let count = self.coins.len() as u64;
        let recent = if self.rng.one_in(2) { count.min(20_000) } else { count };
        let index = count - 1 - self.rng.below(recent);
        self.coins.swap_remove(index as usize)
    }

    fn output(&mut self, satoshi: u64) -> TxOut {
        let mut script = vec![0x00, 0x14];
        script.extend((0..20).map(|_| self.rng.below(256) as u8));
        TxOut { value: Amount::from_sat(satoshi), script_pubkey: script.into() }
    }
}
