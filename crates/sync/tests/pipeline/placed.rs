//! A commitment to the set for tests: a list of all hashes with their places; and a slow and obvious count of
//! the same list.

use apus_chain::{BlockHash, CoinRef, OutPoint, write_coin};
use apus_hash::sha256;
use apus_storage::{Storage, StorageFile};
use apus_sync::SyncError;
use apus_sync::commitment::{CoinHash, CoinHasher, HashParts, NewHasher, SetCommitment};
use apus_sync::request::RunEnv;
use apus_sync::sink::FileDraft;
use bitcoin::Block;
use bitcoin::hashes::Hash;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

/// Writes the list to a file.
pub(crate) struct PlacedFile<'f> {
    storage: &'f dyn Storage,
    name: &'static str,
    made: Mutex<Option<(FileDraft<'f>, Box<dyn StorageFile>)>>,
    is_wanted: bool,
}

impl<'f> PlacedFile<'f> {
    pub(crate) fn new(storage: &'f dyn Storage, name: &'static str) -> Self {
        Self { storage, name, made: Mutex::default(), is_wanted: true }
    }

    /// Sets whether the sync should make the list.
    #[allow(dead_code, reason = "not all tests use it")]
    pub(crate) fn if_wanted(self, is: bool) -> Self {
        Self { is_wanted: is, ..self }
    }
}

impl SetCommitment for PlacedFile<'_> {
    fn hasher(&self) -> NewHasher {
        || Box::<Hasher>::default()
    }

    fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    fn make(&self, _: &RunEnv<'_>, hashes: &dyn HashParts) -> Result<(), SyncError> {
        let (mut made, mut end) = (Vec::new(), 0);
        for part in 0..hashes.count() {
            let places = hashes.places(part);
            assert_eq!(places.start, end, "parts are contiguous");
            end = places.end;
            hashes.part(part, &mut |placed| {
                assert!(places.contains(&placed.place));
                write(&mut made, placed.place, &placed.hash);
                Ok(())
            })?;
        }
        made.extend_from_slice(&end.to_le_bytes());
        let (draft, mut file) = FileDraft::create(self.storage, self.name)?;
        draft.write(&mut *file, &made)?;
        *self.made.lock().unwrap() = Some((draft, file));
        Ok(())
    }

    fn take_made(&self, _: &[u8]) -> Result<(), SyncError> {
        unreachable!("no other machines make it")
    }

    fn publish(&self) -> Result<(), SyncError> {
        let (draft, file) = self.made.lock().unwrap().take().unwrap();
        draft.publish(file)
    }
}

/// Appends an entry of the list.
pub(crate) fn write(out: &mut Vec<u8>, place: u64, hash: &CoinHash) {
    out.extend_from_slice(&place.to_le_bytes());
    out.extend_from_slice(hash);
}

/// Hashes coins in batches of three.
#[derive(Default)]
pub(crate) struct Hasher(Vec<CoinHash>);

impl CoinHasher for Hasher {
    fn push(
        &mut self,
        block: &BlockHash,
        outpoint: &OutPoint,
        coin: CoinRef<'_>,
        out: &mut Vec<CoinHash>,
    ) {
        self.0.push(hash(block, outpoint, coin));
        if self.0.len() == 3 {
            self.flush(out);
        }
    }

    fn flush(&mut self, out: &mut Vec<CoinHash>) {
        out.append(&mut self.0);
    }
}

fn hash(block: &BlockHash, outpoint: &OutPoint, coin: CoinRef<'_>) -> CoinHash {
    let mut bytes = [&block.0[..], &outpoint.to_bytes()].concat();
    write_coin(&mut bytes, coin);
    sha256(&bytes)
}

/// Computes the list of a chain that begins with the genesis block. Coinbases may repeat earlier ones.
pub(crate) fn placed(chain: &[Block]) -> Vec<u8> {
    let (mut all, mut places) = (Vec::new(), HashMap::new());
    for (height, block) in (0..).zip(chain).skip(1) {
        let inputs = block.txdata[1..].iter().flat_map(|tx| &tx.input);
        let spent: HashSet<_> = inputs.map(|input| input.previous_output).collect();
        for outpoint in &spent {
            if let Some(place) = places.remove(outpoint) {
                all[place] = None;
            }
        }
        let block_hash = BlockHash(block.block_hash().to_byte_array());
        for (at, tx) in block.txdata.iter().enumerate() {
            let txid = tx.compute_txid();
            for (vout, output) in (0..).zip(&tx.output) {
                let (name, script) = (bitcoin::OutPoint { txid, vout }, &output.script_pubkey);
                if script.is_op_return() || script.len() > 10_000 || spent.contains(&name) {
                    continue;
                }
                let outpoint = OutPoint { txid: apus_chain::Txid(txid.to_byte_array()), vout };
                let (coinbase, amount) = (at == 0, output.value.to_sat());
                let coin = CoinRef { height, coinbase, amount, script: script.as_bytes() };
                places.insert(name, all.len());
                all.push(Some(hash(&block_hash, &outpoint, coin)));
            }
        }
    }
    let mut out = Vec::new();
    for (place, hash) in (0..).zip(&all) {
        hash.iter().for_each(|hash| write(&mut out, place, hash));
    }
    out.extend_from_slice(&(all.len() as u64).to_le_bytes());
    out
}
