//! Real blocks, with every output that they spend.

use crate::provers::{our_pool, pool_with};
use crate::text::{fixture, unhex};
use crate::{coin, pools, verify};
use apus_chain::{
    BlockHash, BlockLayout, KnownBlock, Network, Params, ScriptError, VERIFY_TAPROOT,
    VERIFY_WITNESS,
};
use apus_engine::script::{
    RawBlock, RawTx, ScriptFailure, ScriptPool, SignatureMode, Verdict, interpreter,
};
use apus_engine::utxo::CoinBytes;
use bitcoin::Transaction;
use flate2::read::GzDecoder;
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::sync::Arc;

/// A block of the main chain.
pub(crate) struct Block {
    id: KnownBlock,
    raw: Arc<Vec<u8>>,
    /// The range of each transaction, and the outputs that it spends; the coinbase spends none.
    txs: Vec<(std::ops::Range<usize>, Vec<CoinBytes>)>,
    /// The rules that apply to it.
    pub(crate) flags: u32,
}

impl Block {
    /// Reads the block at a height, which must be in the fixtures.
    pub(crate) fn at(height: u32) -> Self {
        let files = std::fs::read_dir(fixture("main-blocks")).unwrap();
        let mut files = files.map(|file| file.unwrap().path());
        let prefix = format!("{height}_");
        let of_height = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with(&prefix) && name.ends_with(".raw")
        };
        let path = files.find(of_height).unwrap();
        let raw = std::fs::read(&path).unwrap();
        let mut layout = BlockLayout::new();
        let view = layout.read(&raw).unwrap();
        let hash: BlockHash = view.hash();
        let ranges = view.txs().map(|tx| tx.offset()..tx.offset() + tx.raw().len());
        let mut txs: Vec<_> = ranges.map(|range| (range, Vec::new())).collect();
        let prevouts = std::fs::File::open(path.with_extension("prevouts.jsonl.gz")).unwrap();
        for line in BufReader::new(GzDecoder::new(prevouts)).lines() {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let spent = &mut txs[usize::try_from(line["tx"].as_u64().unwrap()).unwrap()].1;
            assert_eq!(line["inp"], spent.len());
            let script = unhex(line["script"].as_str().unwrap());
            spent.push(coin(&script, line["value"].as_u64().unwrap()));
        }
        let flags = Params::of(Network::Main).block_script_flags(height, &hash);
        Self { id: KnownBlock { height, hash }, raw: Arc::new(raw), txs, flags }
    }

    pub(crate) fn id(&self) -> KnownBlock {
        self.id
    }

    fn run(&self, flags: u32) -> Result<(), ScriptFailure> {
        pools().verdict(|pool| self.batch(pool, flags).wait())
    }

    /// Runs only the first transaction with one input after the coinbase.
    pub(crate) fn first_signed(&self, pool: &ScriptPool) -> Verdict {
        let raw: Arc<dyn RawBlock> = Arc::<Vec<u8>>::clone(&self.raw);
        let mut batch = pool.begin(self.id, self.flags);
        let mut txs = self.txs.iter().enumerate().skip(1);
        let (index, (range, spent)) = txs.find(|(_, (_, spent))| spent.len() == 1).unwrap();
        batch.add(index, RawTx::new(raw, range.clone()), spent.clone());
        batch.finish()
    }

    pub(crate) fn batch(&self, pool: &ScriptPool, flags: u32) -> Verdict {
        let raw: Arc<dyn RawBlock> = Arc::<Vec<u8>>::clone(&self.raw);
        let mut batch = pool.begin(self.id, flags);
        for (index, (range, spent)) in self.txs.iter().enumerate().skip(1) {
            batch.add(index, RawTx::new(Arc::clone(&raw), range.clone()), spent.clone());
        }
        batch.finish()
    }
}

/// Before BIP-66, with BIP-65, SegWit's first block, and a block that is exempt from taproot rules.
pub(crate) const HEIGHTS: [u32; 4] = [277_647, 388_381, 481_824, 692_261];

#[test]
fn real_blocks_pass() {
    let inputs = HEIGHTS.map(|height| {
        let block = Block::at(height);
        assert_eq!(block.run(block.flags), Ok(()), "height {height}");
        block.txs.iter().map(|(_, spent)| spent.len()).sum::<usize>()
    });
    assert_eq!(inputs, [732, 1685, 5192, 6632]);
}

/// Runs all blocks in a pool. Returns for each its inputs, and how many were run again.
fn counts(pool: &ScriptPool) -> [(u64, u64); 4] {
    let mut before = pool.signature_counts();
    HEIGHTS.map(|height| {
        let block = Block::at(height);
        assert_eq!(block.batch(pool, block.flags).wait(), Ok(()));
        let now = pool.signature_counts();
        let counts = (now.inputs - before.inputs, now.retried - before.retried);
        before = now;
        counts
    })
}

/// Only scripts that tried a wrong key first are run again: a 2-of-3 script tries the last key first.
#[test]
fn most_inputs_of_real_blocks_are_proven_at_once() {
    let mode = SignatureMode::Fast;
    let honest = pool_with(interpreter().unwrap(), mode, 0);
    let ours = our_pool(interpreter().unwrap(), mode);
    for pool in ours.iter().chain([&honest]) {
        assert_eq!(counts(pool), [(732, 0), (1685, 265), (5192, 166), (6632, 400)]);
        let counts = pool.signature_counts();
        assert_eq!((counts.ecdsa, counts.schnorr, counts.unproven), (15_806, 0, 0));
    }
}

#[test]
fn a_block_exempt_from_taproot_would_fail_it() {
    let block = Block::at(692_261);
    assert_eq!(block.flags & (VERIFY_TAPROOT | VERIFY_WITNESS), VERIFY_WITNESS);
    let failure = block.run(block.flags | VERIFY_TAPROOT).unwrap_err();
    assert_eq!(failure.error, ScriptError::Invalid);
    assert_eq!((failure.tx_index, failure.input), (193, 0), "{failure}");
    assert_eq!(failure.name, Some("Witness program was passed an empty witness"));
}

/// Flips a bit in the data that unlocks an input: within a signature, or in the data that replaces it.
fn damage(tx: &mut Transaction, input: usize) -> bool {
    let input = &mut tx.input[input];
    let mut script_sig = std::mem::take(&mut input.script_sig).into_bytes();
    let in_script = script_sig.len() > 20;
    if in_script {
        script_sig[12] ^= 1;
    }
    input.script_sig = script_sig.into();
    if in_script {
        return true;
    }
    let mut items = input.witness.to_vec();
    let Some(signature) = items.iter_mut().find(|item| item.len() >= 64) else { return false };
    signature[20] ^= 1;
    input.witness = bitcoin::Witness::from_slice(&items);
    true
}

#[test]
fn a_damaged_signature_fails_at_its_input() {
    for height in HEIGHTS {
        let block = Block::at(height);
        let mut damaged = 0;
        for (range, spent) in block.txs.iter().skip(1).step_by(5) {
            let tx: Transaction =
                bitcoin::consensus::deserialize(&block.raw[range.clone()]).unwrap();
            let input = (range.start * 7) % spent.len();
            let mut changed = tx.clone();
            if damage(&mut changed, input) {
                let raw = bitcoin::consensus::serialize(&changed);
                let failure = verify(raw, spent.clone(), block.flags).unwrap_err();
                assert_eq!(failure.error, ScriptError::Invalid, "{height} {}", tx.compute_txid());
                assert_eq!(failure.input, input, "{height} {}", tx.compute_txid());
                damaged += 1;
            }
        }
        assert!(damaged * 6 >= block.txs.len(), "height {height}: {damaged}");
    }
}

#[test]
fn a_wrong_amount_fails_segwit() {
    let block = Block::at(692_261);
    let (range, spent) = block
        .txs
        .iter()
        .skip(1)
        .find(|(_, spent)| spent.iter().all(|coin| coin.coin().script.starts_with(&[0, 20])))
        .unwrap();
    let more = |coin_of: &CoinBytes| {
        let old = coin_of.coin();
        coin(&old.script, old.amount + 1)
    };
    let raw = block.raw[range.clone()].to_vec();
    assert_eq!(verify(raw.clone(), spent.clone(), block.flags), Ok(()));
    let failure = verify(raw, spent.iter().map(more).collect(), block.flags).unwrap_err();
    assert_eq!((failure.error, failure.input), (ScriptError::Invalid, 0));
}
