//! Signature hints: what one run learns, the next one uses; wrong hints change no verdict.

use crate::blocks::{Block, HEIGHTS};
use apus_chain::{BlockHash, Network};
use apus_engine::script::hints::{SignatureHintsReader, SignatureHintsWriter};
use apus_engine::script::{SignatureCounts, SignatureMode, Signatures};
use std::path::Path;
use std::sync::Arc;

const STOP: (u32, BlockHash) = (HEIGHTS[3], BlockHash([9; 32]));

/// Runs all blocks; returns what was counted.
fn run(signatures: Signatures) -> (Arc<Signatures>, SignatureCounts) {
    let signatures = Arc::new(signatures);
    let pool = signatures.pool(0).unwrap();
    for height in HEIGHTS {
        let block = Block::at(height);
        assert_eq!(block.batch(&pool, block.flags).wait(), Ok(()));
    }
    let counts = signatures.counts();
    (signatures, counts)
}

fn reader(path: &Path) -> SignatureHintsReader {
    SignatureHintsReader::open(path, Network::Main).unwrap()
}

fn writer(path: &Path) -> SignatureHintsWriter {
    SignatureHintsWriter::create_or_continue(path, Network::Main).unwrap()
}

/// Learns the hints of all blocks, with all of them proven at the first attempt in the next run.
#[test]
fn a_run_learns_what_the_next_one_uses() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let (learning, learned) = run(Signatures::new(SignatureMode::Shadow).learning(writer(&first)));
    let summary = learning.finish_learned(STOP.0, &STOP.1).unwrap().unwrap();
    assert_eq!((summary.blocks, learned.retried, learned.hinted), (4, 831, 0));

    let hinted = Signatures::new(SignatureMode::Fast).with_hints(reader(&first));
    let (hinted, counts) = run(hinted.learning(writer(&second)));
    let proven = (counts.ecdsa, counts.hinted, counts.wrong_hints);
    assert_eq!(proven, (learned.ecdsa, learned.ecdsa, 0));
    assert_eq!((counts.retried, counts.unproven), (0, 0), "no wrong key was tried");
    assert!(!hinted.ignores_hints());
    // Bits of keys that only a run without hints tries are not needed.
    let again = hinted.finish_learned(STOP.0, &STOP.1).unwrap().unwrap();
    assert!(again.blocks == 4 && again.signatures <= summary.signatures);
    let (_, counts) = run(Signatures::new(SignatureMode::Shadow).with_hints(reader(&second)));
    assert_eq!((counts.hinted, counts.retried), (learned.ecdsa, 0));
}

/// Blocks of another branch, and bits that are arbitrary.
#[test]
fn wrong_hints_change_no_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hints");
    let write = |of: &dyn Fn(u32) -> BlockHash| {
        let writer = writer(&path);
        for height in HEIGHTS {
            writer.add(height, &of(height), &[(1, true), (2, false)]).unwrap();
        }
        writer.finish(STOP.0, &STOP.1).unwrap();
    };
    write(&|_| BlockHash([5; 32]));
    let (_, counts) = run(Signatures::new(SignatureMode::Shadow).with_hints(reader(&path)));
    assert_eq!((counts.hinted, counts.wrong_hints, counts.unproven), (0, 0, 0));

    write(&|height| Block::at(height).id().hash);
    let wrong = Signatures::new(SignatureMode::Shadow).with_hints(reader(&path));
    let (wrong, counts) = run(wrong);
    assert!(counts.wrong_hints > 1000, "{counts:?}");
    assert!(wrong.ignores_hints(), "after so many wrong ones");
}

/// A block with one signature: libsecp256k1 checks it faster than lanes would.
#[test]
fn one_signature_is_left_to_libsecp256k1() {
    let block = Block::at(HEIGHTS[0]);
    for (mode, proven) in [(SignatureMode::Fast, 0), (SignatureMode::Shadow, 1)] {
        let signatures = Arc::new(Signatures::new(mode));
        let pool = signatures.pool(0).unwrap();
        assert_eq!(block.first_signed(&pool).wait(), Ok(()));
        let counts = signatures.counts();
        assert_eq!((counts.inputs, counts.ecdsa), (1, proven), "{mode:?}");
    }
}
