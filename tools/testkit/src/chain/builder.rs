//! [`ChainBuilder`]: a tree of blocks, a tip to build on, and full control over each block.

use super::model::{self, UtxoSet};
use super::wallet::{ScriptKind, Wallet};
use crate::rng::Rng;
use bitcoin::absolute::LockTime;
use bitcoin::block::{Header, Version};
use bitcoin::hashes::Hash;
use bitcoin::script::Builder;
use bitcoin::{
    Amount, Block, BlockHash, CompactTarget, Network, OutPoint, ScriptBuf, Sequence, Transaction,
    TxIn, TxMerkleNode, TxOut, Txid, Witness, transaction,
};
use std::collections::HashMap;

/// Seconds from one block to the next.
const SPACING_S: u32 = 600;
/// Regtest's target: half of all hashes meet it, and it never changes.
const REGTEST_BITS: u32 = 0x207f_ffff;
/// Regtest halves the subsidy this often (Core `kernel/chainparams.cpp`).
const HALVING_INTERVAL: u32 = 150;

/// Number of blocks above a coinbase before a block can spend its outputs (Core `consensus.h`).
pub(super) const COINBASE_MATURITY: u32 = 100;

/// When a block commits to its witnesses (BIP-141).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Commitment {
    /// Commits if there are witnesses, as the rule demands.
    #[default]
    WhenNeeded,
    /// Commits even without witnesses.
    Always,
    /// Never commits, even if the rule demands it.
    Never,
}

/// The content of a block. The default is an empty block that is valid.
#[derive(Debug, Clone, Default)]
pub struct BlockPlan {
    /// All transactions except the coinbase.
    pub transactions: Vec<Transaction>,
    /// The coinbase's outputs; by default, the subsidy to OP_TRUE.
    pub coinbase_outputs: Option<Vec<TxOut>>,
    /// The whole coinbase. The witness commitment is still added if it is due.
    pub coinbase: Option<Transaction>,
    /// When to commit to witnesses.
    pub commitment: Commitment,
    /// The header's time; by default, some minutes after the parent's.
    pub time: Option<u32>,
    /// The header's version; by default, one with every rule since BIP-65.
    pub version: Option<i32>,
}

#[derive(Debug)]
struct BuiltBlock {
    block: Block,
    height: u32,
}

/// Builds regtest chains from the genesis block on.
#[derive(Debug)]
pub struct ChainBuilder {
    pub(super) rng: Rng,
    pub(super) wallet: Wallet,
    entries: HashMap<BlockHash, BuiltBlock>,
    pub(super) outputs: HashMap<OutPoint, TxOut>,
    coins: UtxoSet,
    tip: BlockHash,
    extra_nonce: u64,
}

impl ChainBuilder {
    /// Makes a builder at the genesis block. `seed` determines all its choices.
    pub fn new(seed: u64) -> Self {
        let genesis = bitcoin::constants::genesis_block(Network::Regtest);
        let tip = genesis.block_hash();
        Self {
            rng: Rng::new(seed),
            wallet: Wallet::new(seed),
            entries: HashMap::from([(tip, BuiltBlock { block: genesis, height: 0 })]),
            outputs: HashMap::new(),
            coins: UtxoSet::new(),
            tip,
            extra_nonce: 0,
        }
    }

    /// Returns the block to build on.
    pub fn tip(&self) -> BlockHash {
        self.tip
    }

    /// Returns the tip's height.
    pub fn height(&self) -> u32 {
        self.entries[&self.tip].height
    }

    /// Builds on another block from now on.
    pub fn set_tip(&mut self, tip: BlockHash) {
        self.coins = self.utxo_at(tip);
        self.tip = tip;
    }

    /// Returns a block built or added before.
    pub fn block(&self, hash: BlockHash) -> &Block {
        &self.entries[&hash].block
    }

    /// Returns the median of the times of block `tip` and the ten blocks before it.
    pub fn median_time_past(&self, tip: BlockHash) -> u32 {
        let header = |hash: &BlockHash| self.entries.get(hash).map(|entry| entry.block.header);
        let chain = std::iter::successors(header(&tip), |last| header(&last.prev_blockhash));
        let mut times: Vec<u32> = chain.take(11).map(|header| header.time).collect();
        times.sort_unstable();
        times[times.len() / 2]
    }

    /// Returns the chain from the genesis block to the tip, both included.
    pub fn blocks(&self) -> Vec<Block> {
        self.blocks_to(self.tip)
    }

    /// Returns the chain from the genesis block to `tip`, both included.
    pub fn blocks_to(&self, tip: BlockHash) -> Vec<Block> {
        let mut chain = vec![self.block(tip).clone()];
        while let Some(parent) = self.entries.get(&chain[chain.len() - 1].header.prev_blockhash) {
            chain.push(parent.block.clone());
        }
        chain.reverse();
        chain
    }

    /// Returns the coins at the tip.
    pub fn utxo(&self) -> &UtxoSet {
        &self.coins
    }

    /// Returns a coin of more than 10,000 satoshis that the next block can spend without a signature.
    ///
    /// # Panics
    /// If there is none.
    pub fn mature_coin(&self) -> (OutPoint, TxOut) {
        let height = self.height() + 1;
        let mut mature = self.coins.iter().filter(|(_, coin)| {
            let is_free = coin.output.script_pubkey.as_bytes() == [0x51];
            let has_enough = coin.output.value.to_sat() > 10_000;
            is_free && has_enough && (!coin.coinbase || coin.height + COINBASE_MATURITY <= height)
        });
        let (outpoint, coin) = mature.next().expect("a mature coin that anyone can spend");
        (*outpoint, coin.output.clone())
    }

    /// Returns the coins at any block.
    pub fn utxo_at(&self, tip: BlockHash) -> UtxoSet {
        model::utxo_set(&self.blocks_to(tip))
    }

    /// Returns the hints for the chain up to the tip: one entry for each height from 1 on.
    pub fn hints(&self) -> Vec<Vec<u32>> {
        model::hints(&self.blocks(), &self.coins)
    }

    /// Returns the hints for the chain up to any block.
    pub fn hints_at(&self, tip: BlockHash) -> Vec<Vec<u32>> {
        model::hints(&self.blocks_to(tip), &self.utxo_at(tip))
    }

    /// Makes a script that this builder can spend later, if the kind allows.
    pub fn script(&mut self, kind: ScriptKind) -> ScriptBuf {
        self.wallet.script(kind, &mut self.rng)
    }

    /// Makes an output of a kind.
    pub fn output(&mut self, satoshi: u64, kind: ScriptKind) -> TxOut {
        TxOut { value: Amount::from_sat(satoshi), script_pubkey: self.script(kind) }
    }

    /// Spends outputs of any block that this builder has, spent before or not. Inputs for unknown outputs stay
    /// empty.
    pub fn spend(&self, inputs: &[OutPoint], outputs: Vec<TxOut>) -> Transaction {
        let coins = inputs.iter().map(|outpoint| {
            (*outpoint, self.outputs.get(outpoint).cloned().unwrap_or(TxOut::NULL))
        });
        self.spend_coins(&coins.collect::<Vec<_>>(), outputs)
    }

    /// Spends outputs that the caller has, such as outputs of an earlier transaction in the same block
    /// ([`coins_of`]).
    pub fn spend_coins(&self, coins: &[(OutPoint, TxOut)], outputs: Vec<TxOut>) -> Transaction {
        let input = coins
            .iter()
            .map(|(outpoint, _)| TxIn { previous_output: *outpoint, ..TxIn::default() })
            .collect();
        let version = transaction::Version::TWO;
        let mut tx = Transaction { version, lock_time: LockTime::ZERO, input, output: outputs };
        self.sign(&mut tx, coins);
        tx
    }

    /// Signs a changed transaction again; `coins` are in the order of its inputs.
    pub fn sign(&self, tx: &mut Transaction, coins: &[(OutPoint, TxOut)]) {
        let spent: Vec<TxOut> = coins.iter().map(|(_, output)| output.clone()).collect();
        self.wallet.sign(tx, &spent);
    }

    /// Returns the subsidy of a block at `height` in satoshis.
    pub fn subsidy(height: u32) -> u64 {
        5_000_000_000u64.checked_shr(height / HALVING_INTERVAL).unwrap_or(0)
    }

    /// Adds a block with these transactions on the tip. The coinbase claims no fees.
    pub fn block_with(&mut self, transactions: Vec<Transaction>) -> Block {
        self.add_plan(BlockPlan { transactions, ..BlockPlan::default() })
    }

    /// Adds blocks with only a coinbase.
    pub fn empty_blocks(&mut self, count: usize) -> Vec<Block> {
        (0..count).map(|_| self.block_with(Vec::new())).collect()
    }

    /// Adds a block on the tip.
    pub fn add_plan(&mut self, plan: BlockPlan) -> Block {
        let block = self.propose(plan);
        self.add(block.clone());
        block
    }

    /// Makes a block for the tip without adding it, for further changes ([`seal`]).
    pub fn propose(&mut self, plan: BlockPlan) -> Block {
        let height = self.height() + 1;
        let parent = self.block(self.tip).header;
        let coinbase = plan.coinbase.unwrap_or_else(|| {
            let outputs = plan.coinbase_outputs.unwrap_or_else(|| {
                vec![TxOut {
                    value: Amount::from_sat(Self::subsidy(height)),
                    script_pubkey: ScriptBuf::from_bytes(vec![0x51]),
                }]
            });
            self.coinbase(height, outputs)
        });
        let header = Header {
            version: Version::from_consensus(plan.version.unwrap_or(0x2000_0000)),
            prev_blockhash: self.tip,
            merkle_root: TxMerkleNode::all_zeros(),
            time: plan.time.unwrap_or(parent.time.saturating_add(SPACING_S)),
            bits: CompactTarget::from_consensus(REGTEST_BITS),
            nonce: 0,
        };
        let mut txdata = vec![coinbase];
        txdata.extend(plan.transactions);
        let mut block = Block { header, txdata };
        let witnesses = |tx: &Transaction| tx.input.iter().any(|input| !input.witness.is_empty());
        let needed = block.txdata.iter().any(witnesses);
        if plan.commitment == Commitment::Always
            || needed && plan.commitment == Commitment::WhenNeeded
        {
            commit_witness(&mut block);
        }
        seal(&mut block);
        block
    }

    /// Adds a block on the tip in which only one signature is wrong: it belongs to another transaction. A node
    /// stores the block before it notices.
    ///
    /// # Panics
    /// If there is no mature anyone-can-spend coin at the tip.
    pub fn block_with_a_wrong_signature(&mut self) -> Block {
        let (from, _) = self.mature_coin();
        let locked = self.output(9_000, ScriptKind::Wpkh);
        let first = self.spend(&[from], vec![locked]);
        let output = self.output(1_000, ScriptKind::OpTrue);
        let mut second = self.spend_coins(&coins_of(&first), vec![output]);
        second.output[0].value = Amount::from_sat(1_001);
        self.block_with(vec![first, second])
    }

    /// Makes a coinbase for `height` (BIP-34) that no other block has.
    pub fn coinbase(&mut self, height: u32, output: Vec<TxOut>) -> Transaction {
        self.extra_nonce += 1;
        let script_sig = Builder::new()
            .push_int(i64::from(height))
            .push_slice(self.extra_nonce.to_be_bytes())
            .into_script();
        let input = vec![TxIn { script_sig, sequence: Sequence::MAX, ..TxIn::default() }];
        let version = transaction::Version::TWO;
        Transaction { version, lock_time: LockTime::ZERO, input, output }
    }

    /// Adds any block whose parent is present, and makes it the tip.
    ///
    /// # Panics
    /// If the parent is missing.
    pub fn add(&mut self, block: Block) {
        let parent = block.header.prev_blockhash;
        let height = self.entries.get(&parent).expect("the parent was added before").height + 1;
        if parent != self.tip {
            self.set_tip(parent);
        }
        model::apply_block(&mut self.coins, height, &block);
        for tx in &block.txdata {
            self.outputs.extend(coins_of(tx));
        }
        self.tip = block.block_hash();
        self.entries.insert(self.tip, BuiltBlock { block, height });
    }
}

/// Returns the outputs of a transaction with their outpoints.
pub fn coins_of(tx: &Transaction) -> Vec<(OutPoint, TxOut)> {
    let txid: Txid = tx.compute_txid();
    (0..).zip(&tx.output).map(|(vout, out)| (OutPoint { txid, vout }, out.clone())).collect()
}

/// Adds the witness commitment as a last output of the coinbase (BIP-141).
pub fn commit_witness(block: &mut Block) {
    const RESERVED: [u8; 32] = [0; 32];
    block.txdata[0].input[0].witness = Witness::from_slice(&[RESERVED]);
    let root = block.witness_root().expect("a block has a coinbase");
    let commitment = Block::compute_witness_commitment(&root, &RESERVED);
    let mut script = vec![0x6a, 0x24, 0xaa, 0x21, 0xa9, 0xed];
    script.extend(commitment.to_byte_array());
    let script_pubkey = ScriptBuf::from_bytes(script);
    block.txdata[0].output.push(TxOut { value: Amount::ZERO, script_pubkey });
}

/// Makes the header match the transactions, and mines the block.
pub fn seal(block: &mut Block) {
    block.header.merkle_root = block.compute_merkle_root().expect("a block has a coinbase");
    mine(block);
}

/// Finds a nonce that meets the header's target, and changes nothing else.
pub fn mine(block: &mut Block) {
    let target = block.header.target();
    while block.header.validate_pow(target).is_err() {
        block.header.nonce = block.header.nonce.checked_add(1).expect("regtest blocks are easy");
    }
}
