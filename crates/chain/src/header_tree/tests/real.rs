//! Real headers pass, and fail if a rule of their chain is changed.

use super::{NOW, TRUSTED, raw_headers, tree_at};
use crate::header::{Header, Height};
use crate::header_tree::{HeaderAcceptance, HeaderStatus, HeaderTree};
use crate::params::{Network, Params};

fn tip_height(tree: &HeaderTree) -> Height {
    match tree.status(tree.tip()) {
        HeaderStatus::Connected(header) => header.height,
        other => panic!("the tip is {other:?}"),
    }
}

fn bits(raw: &[u8; 80]) -> u32 {
    Header::parse(raw).bits
}

#[test]
fn whole_chains_connect_from_genesis() {
    for (network, file, tip) in [
        (Network::Main, "main_0_4040.bin", 4040),
        (Network::Signet, "signet_0_2015.bin", 2015),
        (Network::Testnet4, "test4_0_100.bin", 100),
    ] {
        let mut tree = HeaderTree::new(Params::of(network), NOW);
        let raw = raw_headers(file);
        for (i, raw) in raw.iter().enumerate() {
            let accepted = tree.accept(raw).unwrap();
            assert_eq!(accepted.id().index(), i);
            assert_eq!(matches!(accepted, HeaderAcceptance::Known(_)), i == 0, "{file} {i}");
        }
        assert_eq!(tip_height(&tree), tip, "{file}");
        assert_eq!((tree.len(), tree.rejected_count()), (raw.len(), 0));
    }
}

/// Each file begins a period and ends after the next retarget, which changes the target.
#[test]
fn late_retargets_connect() {
    for (network, file, first) in [
        (Network::Main, "main_80640_82662.bin", 80_640),
        (Network::Main, "main_191520_193542.bin", 191_520),
        (Network::Testnet4, "test4_141120_143136.bin", 141_120),
    ] {
        let raw = raw_headers(file);
        let mut tree = tree_at(Params::of(network), &raw, first);
        for raw in &raw[TRUSTED..] {
            tree.accept(raw).unwrap();
        }
        assert_eq!(tip_height(&tree) as usize, first as usize + raw.len() - 1);
        assert_ne!(bits(&raw[0]), bits(&raw[2016]), "{file} shows no retarget");
    }
}

/// A chain that never retargets rejects main's retarget. A chain that starts from the period's last header,
/// which has minimum difficulty, rejects testnet4's.
#[test]
fn a_retarget_by_other_rules_is_refused() {
    let mut main = Params::of(Network::Main).clone();
    main.pow_no_retargeting = true;
    let mut test4 = Params::of(Network::Testnet4).clone();
    test4.enforce_bip94 = false;
    for (params, file, first) in
        [(main, "main_80640_82662.bin", 80_640), (test4, "test4_141120_143136.bin", 141_120)]
    {
        let raw = raw_headers(file);
        let mut tree = tree_at(&params, &raw, first);
        for raw in &raw[TRUSTED..2016] {
            tree.accept(raw).unwrap();
        }
        let error = tree.accept(&raw[2016]).unwrap_err();
        assert_eq!(error.reason(), "bad-diffbits");
        assert!(error.to_string().contains(&format!("at height {}", first + 2016)), "{error}");
    }
}

/// Without the minimum-difficulty exception, testnet4's headers that use it are rejected.
#[test]
fn the_twenty_minute_rule_carries_testnet4() {
    let raw = raw_headers("test4_141120_143136.bin");
    let mut params = Params::of(Network::Testnet4).clone();
    params.pow_allow_min_difficulty_blocks = false;
    let mut tree = tree_at(&params, &raw, 141_120);
    let error = raw[TRUSTED..].iter().find_map(|raw| tree.accept(raw).err()).unwrap();
    assert_eq!(error.reason(), "bad-diffbits");
}

/// Connects heights 191,810 to 191,812 of the main chain with both blocks at 191,810.
#[test]
fn a_real_fork_is_decided_by_the_block_after() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/main-fork");
    let header = |name: &str| {
        let block = std::fs::read(format!("{folder}/{name}.raw")).unwrap();
        *block.first_chunk::<80>().unwrap()
    };
    let names = [
        "191810_00000000000008324ab78e2274603ef9ab8b5f8238c6d9409236e121bf720785",
        "191810_000000000000073335b2c6ccdfeff59658a1714b6c6de3eadf9ee3954aad0562",
        "191811_000000000000047a70dd377762e9d134e8d2268a238174c11db5bb0829c1ac58",
        "191812_0000000000000130767cce191b7e515df6563c02ed7ed6fbe14526fe31817137",
    ];
    let [a, b, next, last] = names.map(header);
    let trunk = raw_headers("main_191520_193542.bin");
    let (winner, loser) =
        if Header::parse(&next).prev == Header::parse(&a).hash() { (a, b) } else { (b, a) };
    for order in
        [[winner, loser, next, last], [loser, winner, next, last], [last, next, loser, winner]]
    {
        let mut tree = tree_at(Params::of(Network::Main), &trunk, 191_520);
        for raw in &trunk[TRUSTED..290] {
            tree.accept(raw).unwrap();
        }
        assert_eq!(tip_height(&tree), 191_809);
        for (i, raw) in order.iter().enumerate() {
            let accepted = tree.accept(raw).unwrap();
            // Of two headers with equal work, the one that connected first stays.
            if order[2] == next && i < 2 {
                assert_eq!(tree.hash(tree.tip()), &Header::parse(&order[0]).hash());
                assert!(matches!(accepted, HeaderAcceptance::New(_)));
            }
        }
        assert_eq!(tree.hash(tree.tip()), &Header::parse(&last).hash());
        assert_eq!(tip_height(&tree), 191_812);
        assert_eq!(tree.orphans_count(), 0);
    }
}
