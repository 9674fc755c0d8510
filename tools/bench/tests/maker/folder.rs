//! The folder of a chain: the same bytes for the same arguments; complete or removed.

use crate::{Chain, small};
use apus_bench::maker::{MadeChain, MakeOptions, make};
use apus_bench::{BenchError, ErrorKind};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn make_at(folder: &Path, options: &MakeOptions) -> Result<MadeChain, BenchError> {
    make(folder, options, &AtomicBool::new(false), &mut |_| {})
}

#[test]
fn the_same_arguments_give_the_same_bytes() {
    let options = small(6, 31);
    let files = Chain::make(&options).contents();
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["blk00000.dat", "chain.hints", "manifest.json", "xor.dat"]);
    assert_ne!(files["xor.dat"], [0; 8]);
    for threads in [1, 3, 16] {
        let again = Chain::make(&MakeOptions { threads, ..options.clone() });
        assert!(again.contents() == files, "{threads} threads");
    }
}

#[test]
fn another_seed_gives_another_chain() {
    let [one, two] = [41, 42].map(|seed| Chain::make(&small(2, seed)).contents());
    for name in ["blk00000.dat", "chain.hints", "xor.dat"] {
        assert_ne!(one[name], two[name], "{name}");
    }
}

/// Measurements on one hold for the other: only the signatures are missing.
#[test]
fn an_unsigned_chain_is_the_signed_one_without_signatures() {
    let signed = Chain::make(&small(3, 43));
    let unsigned = Chain::make(&MakeOptions { signed: false, ..small(3, 43) });
    assert_eq!(signed.contents()["chain.hints"], unsigned.contents()["chain.hints"]);
    let [signed, unsigned] = [signed, unsigned].map(|chain| chain.manifest);
    assert_ne!(signed.tip_hash, unsigned.tip_hash);
    assert_eq!(signed.coins, unsigned.coins);
    assert_eq!(signed.total_amount_sat, unsigned.total_amount_sat);
    let difference = signed.bytes.abs_diff(unsigned.bytes);
    assert!(difference * 1_000 < signed.bytes, "{difference} of {} bytes", signed.bytes);
}

/// Measurements on one hold for the other: only the key is zeros.
#[test]
fn plain_files_differ_only_in_the_key() {
    let with_key = Chain::make(&small(2, 44));
    let plain = Chain::make(&MakeOptions { obfuscated: false, ..small(2, 44) });
    let (mut with_key_files, plain_files) = (with_key.contents(), plain.contents());
    assert_eq!(plain_files["xor.dat"], [0; 8]);
    let key = with_key_files["xor.dat"].clone();
    let blocks = with_key_files.get_mut("blk00000.dat").unwrap();
    blocks.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
    for name in ["blk00000.dat", "chain.hints"] {
        assert!(with_key_files[name] == plain_files[name], "{name}");
    }
    assert!(with_key.manifest.obfuscated && !plain.manifest.obfuscated);
}

#[test]
fn an_interrupted_maker_removes_its_files() {
    let parent = tempfile::tempdir().unwrap();
    let there = parent.path().join("there");
    fs::create_dir(&there).unwrap();
    for folder in [there.clone(), parent.path().join("not/yet")] {
        let interrupt = AtomicBool::new(false);
        let mut blocks = 0;
        let made = make(&folder, &small(5, 51), &interrupt, &mut |progress| {
            blocks = progress.blocks;
            interrupt.store(progress.busy == 2, Ordering::Relaxed);
        });
        assert!(
            made.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted),
            "{made:?}"
        );
        assert!(blocks > 100, "the interruption came in the middle");
    }
    assert_eq!(fs::read_dir(&there).unwrap().count(), 0, "the caller's folder stays");
    assert!(!parent.path().join("not").exists(), "our folder is removed");
    // The folder can be reused.
    assert!(matches!(make_at(&there, &small(2, 51)), Ok(MadeChain::Now(_))));
}

#[test]
fn existing_files_are_never_touched() {
    let chain = Chain::make(&small(2, 61));
    let files = chain.contents();
    let made = make_at(chain.path(), &MakeOptions { threads: 2, ..small(2, 61) }).unwrap();
    assert_eq!(made, MadeChain::Before(chain.manifest.clone()));
    let others = [
        small(3, 61),
        small(2, 62),
        MakeOptions { signed: false, ..small(2, 61) },
        MakeOptions { obfuscated: false, ..small(2, 61) },
        MakeOptions { block_weight: 300_000, ..small(2, 61) },
        MakeOptions { tail_blocks: 4, ..small(2, 61) },
    ];
    for other in others {
        let refused = make_at(chain.path(), &other).unwrap_err();
        assert!(refused.to_string().contains("is not empty"), "{refused}");
    }
    assert!(chain.contents() == files);
    // Without its manifest a chain is incomplete, and still not ours to remove.
    fs::remove_file(chain.path().join("manifest.json")).unwrap();
    assert!(make_at(chain.path(), &small(2, 61)).is_err_and(|it| it.kind() == ErrorKind::Usage));
    assert!(chain.path().join("blocks/blk00000.dat").exists());
}

#[test]
fn impossible_arguments_are_refused_before_any_file_is_made() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("chain");
    for wrong in [
        MakeOptions::new(0, 1),
        MakeOptions::new(u32::MAX, 1),
        MakeOptions { block_weight: 4_000_001, ..small(1, 1) },
        MakeOptions { block_weight: 0, ..small(1, 1) },
        MakeOptions { tail_blocks: u32::MAX, ..small(1, 1) },
    ] {
        let refused = make_at(&folder, &wrong).unwrap_err();
        assert!(
            refused.kind() == ErrorKind::Usage && !refused.to_string().contains("empty"),
            "{refused}"
        );
        assert!(!folder.exists());
    }
}

/// Published numbers identify their chain by its arguments. A change of the resulting bytes would invalidate
/// all of them, so it needs a new profile name.
#[test]
fn a_chain_never_changes() {
    for (signed, tip) in [
        (true, "1e97e3a8311974fef1dc7ef48f063cacbddc0d27cab6a707accf47d8d9da2621"),
        (false, "03214bb2c328cbc3c404d29d1b96231c6b9fa8ad64136a6a8b1ee2707d88ec1d"),
    ] {
        let chain = Chain::make(&MakeOptions { signed, ..small(4, 1) });
        assert_eq!(chain.manifest.tip_hash, tip);
    }
}
