//! [`SetAccount`]: the maker's own account of the set: its hash at chosen heights.
//!
//! A maker knows which coins are never spent as soon as it makes them. Their hash is a product that only
//! grows. At a chosen height the coins that wait to be spent are added to it. So no coin is ever removed, and
//! the cost is that of the coins left and not of all coins ever made. A thread of its own multiplies.
//!
//! Nothing here is shared with the engines of Apus, except for the hash functions.

use super::coins::SpendableCoin;
use super::keys::Keyring;
use crate::manifest::ExpectedSet;
use apus_chain::{BlockHash, Height, UtxoSetHash, write_compact_size};
use apus_hash::muhash::{Num3072, Product};
use apus_hash::{Message, sha256, sha256_many};
use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Coins that are hashed together.
const BATCH: usize = 4_096;
/// Batches that may wait for the thread.
const WAITING: usize = 4;

/// Coins in the form that is hashed (Core `kernel/coinstats.cpp`, `TxOutSer`).
#[derive(Debug, Default)]
struct Elements {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Elements {
    fn push(&mut self, keys: &Keyring, coin: &SpendableCoin, script: &mut Vec<u8>) {
        let out = &mut self.bytes;
        out.extend(coin.txid);
        out.extend(coin.vout.to_le_bytes());
        out.extend((coin.height * 2 + u32::from(coin.coinbase)).to_le_bytes());
        out.extend(coin.value.to_le_bytes());
        script.clear();
        keys.put_script(coin.script, script);
        write_compact_size(out, script.len() as u64);
        out.extend_from_slice(script);
        self.ends.push(out.len());
    }

    fn multiply(&self, product: &mut Product) {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let messages: Vec<Message<'_>> = starts
            .zip(&self.ends)
            .map(|(from, &to)| Message::from(&self.bytes[from..to]))
            .collect();
        let mut keys = vec![[0; 32]; messages.len()];
        sha256_many(&messages, &mut keys);
        product.multiply(&keys);
    }
}

/// Work for the thread.
enum Work {
    /// Coins that are never spent.
    Left(Elements),
    /// Coins that wait, at a chosen height.
    Waiting(Elements),
    /// All coins of a chosen height were sent.
    Set(ExpectedSet),
}

/// The account of one chain.
pub(super) struct SetAccount<'a> {
    keys: &'a Keyring,
    /// Heights to come, the highest first.
    heights: Vec<Height>,
    left: Elements,
    script: Vec<u8>,
    work: SyncSender<Work>,
    thread: JoinHandle<Vec<ExpectedSet>>,
}

impl<'a> SetAccount<'a> {
    /// Starts an account that is wanted at these heights.
    pub(super) fn start(keys: &'a Keyring, mut heights: Vec<Height>) -> Self {
        heights.sort_unstable_by(|one, other| other.cmp(one));
        heights.dedup();
        let (work, received) = sync_channel(WAITING);
        let thread = std::thread::spawn(move || multiply_all(&received));
        Self { keys, heights, left: Elements::default(), script: Vec::new(), work, thread }
    }

    /// Adds coins that are never spent.
    pub(super) fn left(&mut self, coins: &[SpendableCoin]) {
        for coin in coins {
            self.left.push(self.keys, coin, &mut self.script);
            if self.left.ends.len() >= BATCH {
                self.send_left();
            }
        }
    }

    /// Whether the set after this block is wanted.
    pub(super) fn wants(&self, height: Height) -> bool {
        self.heights.last() == Some(&height)
    }

    /// Completes the set after this block, with the coins that wait.
    pub(super) fn complete<'c>(
        &mut self,
        height: Height,
        hash: BlockHash,
        total_amount_sat: u64,
        coins: u64,
        waiting: impl Iterator<Item = &'c SpendableCoin>,
    ) {
        self.heights.pop();
        self.send_left();
        let mut batch = Elements::default();
        for coin in waiting {
            batch.push(self.keys, coin, &mut self.script);
            if batch.ends.len() >= BATCH {
                self.send(Work::Waiting(std::mem::take(&mut batch)));
            }
        }
        self.send(Work::Waiting(batch));
        let (block_hash, muhash) = (hash.to_string(), String::new());
        self.send(Work::Set(ExpectedSet { height, block_hash, coins, total_amount_sat, muhash }));
    }

    fn send_left(&mut self) {
        let left = std::mem::take(&mut self.left);
        self.send(Work::Left(left));
    }

    fn send(&self, work: Work) {
        // Fails only if the thread panicked, which the end reports.
        let _ = self.work.send(work);
    }

    /// Returns the sets, the lowest first.
    pub(super) fn finish(self) -> Vec<ExpectedSet> {
        drop(self.work);
        self.thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

fn multiply_all(work: &Receiver<Work>) -> Vec<ExpectedSet> {
    let mut sets = Vec::new();
    let mut all_left = Num3072::ONE;
    let (mut left, mut waiting) = (Product::new(), Product::new());
    for work in work {
        match work {
            Work::Left(coins) => coins.multiply(&mut left),
            Work::Waiting(coins) => coins.multiply(&mut waiting),
            Work::Set(set) => {
                all_left.multiply(&std::mem::take(&mut left).finish());
                let mut all = all_left.clone();
                all.multiply(&std::mem::take(&mut waiting).finish());
                let muhash = UtxoSetHash(sha256(&all.to_bytes())).to_string();
                sets.push(ExpectedSet { muhash, ..set });
            }
        }
    }
    sets
}
