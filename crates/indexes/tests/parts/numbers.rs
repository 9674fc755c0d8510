//! The chain in numbers against a real node's.

use crate::check::Node;
use crate::support::{TestChain, coin_stats_index, new_folder};
use apus_chain::{Network, ScriptType};
use apus_indexes::{
    CoinStatsForm, NumbersDraft, NumbersPart, NumbersPlace, NumbersSegment, csv_numbers,
};
use apus_storage::{DirStorage, Storage};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::rng::Rng;
use apus_testkit::storage::{AfterCrash, CrashStorage};
use bitcoin::hex::DisplayHex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// The numbers of a chain cut at some heights.
fn parts<'s>(
    chain: &'s TestChain,
    cuts: &[usize],
    scratch: &'s DirStorage,
) -> Vec<NumbersPart<'s>> {
    let mut parts = Vec::new();
    for heights in chain.segments(cuts) {
        let mut segment = NumbersSegment::new(&chain.params, scratch);
        chain.for_each(heights, &mut |block, _| segment.block(block)).unwrap();
        parts.extend(segment.finish().unwrap());
    }
    parts
}

/// The lines of a chain cut at some heights, by the names of the columns.
fn lines(chain: &TestChain, cuts: &[usize]) -> Vec<BTreeMap<String, String>> {
    let folder = new_folder();
    let scratch = DirStorage::new(folder.path());
    let path = folder.path().join("chain.csv");
    let place = NumbersPlace::new(&path, csv_numbers, false);
    let draft = place.write(parts(chain, cuts, &scratch), &chain.tip).unwrap();
    assert!(!path.exists());
    draft.publish().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    let mut rows = text.lines().map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    let names = rows.next().unwrap();
    rows.map(|row| {
        assert_eq!(row.len(), names.len());
        names.iter().cloned().zip(row).collect()
    })
    .collect()
}

#[test]
fn numbers_are_those_of_a_node() {
    let chain = TestChain::of_fixture("regtest-315/regtest/blocks", Network::Regtest);
    let rows = lines(&chain, &[]);
    assert_eq!(lines(&chain, &[100, 7, 200]), rows);
    let (_, stats) = coin_stats_index(&chain, &[], CoinStatsForm::Wide);
    let node = Node::without_indexes();
    let bitcoind = Bitcoind::start_in(node.folder.path(), "regtest", &["-connect=0"]).unwrap();
    let (mut kinds, mut age) = (std::collections::BTreeSet::new(), 0);
    for (height, row) in rows.iter().enumerate() {
        let number = |name: &str| row[name].parse::<u64>().unwrap();
        assert_eq!(number("height"), height as u64);
        let key = [&b"t"[..], &(height as u32).to_be_bytes()].concat();
        let of_set = |at: usize| u64::from_le_bytes(*stats.rows[&key][at..].first_chunk().unwrap());
        assert_eq!((number("coins"), number("amount_sat")), (of_set(64), of_set(80)), "{height}");
        for kind in ["made", "spent"] {
            let of = |it: &ScriptType| number(&format!("{kind}_{}", it.name()));
            let all: u64 = ScriptType::ALL.iter().map(of).sum();
            let expected = if kind == "made" { "outputs" } else { "inputs" };
            assert_eq!(all, number(expected), "{height}");
        }
        let block = bitcoind.call("getblock", &[json!(row["hash"]), json!(1)]);
        let expected = ["time", "nTx", "size", "weight"].map(|name| block[name].as_u64().unwrap());
        assert_eq!(["time", "transactions", "bytes", "weight"].map(number), expected);
        if height > 0 {
            let of_node = bitcoind.call("getblockstats", &[json!(height)]);
            let expected = ["ins", "outs", "totalfee"].map(|name| of_node[name].as_u64().unwrap());
            assert_eq!(["inputs", "outputs", "fees_sat"].map(number), expected, "{height}");
        }
        kinds.extend(
            row.iter().filter(|(name, it)| name.contains("e_") && *it != "0").map(|it| it.0),
        );
        age += number("age_spent_blocks");
    }
    assert!(kinds.len() > 6 && age > 0, "{kinds:?} {age}");
}

#[test]
fn numbers_survive_a_crash_at_each_sync_point() {
    let chain = TestChain::of_fixture("signet-120/blocks", Network::Signet);
    let folder = new_folder();
    let scratch = DirStorage::new(folder.path());
    let write = |disk: &CrashStorage, replace: bool| {
        let storage = Arc::new(disk.clone());
        let place = NumbersPlace::in_storage(storage, Path::new("chain.csv"), csv_numbers, replace);
        place.write(parts(&chain, &[60], &scratch), &chain.tip).and_then(NumbersDraft::publish)
    };
    let old = BTreeMap::from([("chain.csv".to_owned(), b"of a shorter chain".to_vec())]);
    for (before, replace) in [(BTreeMap::new(), false), (old, true)] {
        let whole = CrashStorage::new();
        write(&whole, false).unwrap();
        let new = whole.live_files();
        for point in 0.. {
            let disk = CrashStorage::holding(before.clone());
            disk.crash_at(point, AfterCrash::Fail);
            let written = write(&disk, replace);
            if !disk.crashed() {
                written.unwrap();
                assert!(point > 1 && disk.durable_image().live_files() == new);
                break;
            }
            for seed in 0..20 {
                let image = disk.crash_image(seed);
                let found = image.live_files().remove("chain.csv");
                assert!(
                    found.as_ref() == before.get("chain.csv")
                        || found == Some(new["chain.csv"].clone())
                );
                write(&image, replace).unwrap();
                assert!(image.live_files() == new);
            }
        }
    }
    // Without --replace, another file stays.
    let disk = CrashStorage::new();
    disk.create("chain.csv").unwrap();
    assert!(write(&disk, false).is_err() && disk.len("chain.csv").unwrap() == 0);
}

/// Scripts of every kind, and others that differ in a byte.
fn scripts() -> Vec<Vec<u8>> {
    let (mut rng, mut all) = (Rng::new(3), Vec::new());
    let key =
        |first: u8, length: usize| [&[length as u8, first][..], &vec![7; length - 1]].concat();
    let multisig = |required: &[u8], keys: usize, number: &[u8]| {
        [required, &key(2, 33).repeat(keys), number, &[0xae]].concat()
    };
    let mut plain = vec![
        [&[0x76, 0xa9, 20][..], &[1; 20], &[0x88, 0xac]].concat(),
        [&[0xa9, 20][..], &[1; 20], &[0x87]].concat(),
        [&[0, 20][..], &[1; 20]].concat(),
        [&[0, 32][..], &[1; 32]].concat(),
        [&[0, 25][..], &[1; 25]].concat(),
        [&[0x51, 32][..], &[1; 32]].concat(),
        [&[0x52, 32][..], &[1; 32]].concat(),
        [&[0x60, 40][..], &[1; 40]].concat(),
        [&[0x60, 41][..], &[1; 41]].concat(),
        vec![0x51, 2, 0x4e, 0x73],
        vec![0x51, 1, 0x4e],
        vec![0x6a],
        vec![0x6a, 2, 1, 1],
        vec![0x6a, 0x4c, 1, 1, 0x51, 0x50, 0x4f],
        vec![0x6a, 2, 1],
        vec![0x6a, 0x61],
        multisig(&[0x51], 1, &[0x51]),
        multisig(&[0x51], 2, &[0x52]),
        multisig(&[0x53], 2, &[0x52]),
        multisig(&[0x50], 2, &[0x52]),
        multisig(&[1, 17], 17, &[1, 17]),
        multisig(&[0x51], 20, &[1, 20]),
        multisig(&[0x51], 21, &[1, 21]),
        multisig(&[1, 1], 2, &[0x52]),
        multisig(&[0x51], 2, &[0x53]),
        multisig(&[0x51], 0, &[0]),
        vec![0x51],
        vec![0xac],
    ];
    for (first, length) in [(2, 33), (3, 33), (4, 65), (6, 65), (7, 65), (5, 33), (4, 33), (2, 65)]
    {
        plain.push([&key(first, length)[..], &[0xac]].concat());
    }
    for script in plain {
        for _ in 0..6 {
            let mut altered = script.clone();
            let at = rng.below(altered.len().min(4) as u64) as usize;
            altered[at] = altered[at].wrapping_add(rng.between(1, 3) as u8);
            all.push(altered);
            let mut cut = script.clone();
            cut.pop();
            all.push(cut);
        }
        all.push([&script[..], &[0x51]].concat());
        all.push(script);
    }
    all.sort();
    all.dedup();
    all.retain(|script| !script.is_empty());
    all
}

#[test]
fn kinds_of_scripts_are_those_of_a_node() {
    let bitcoind = Bitcoind::start(&[]);
    let mut seen = std::collections::HashSet::new();
    for script in scripts() {
        let decoded: Value = bitcoind.call("decodescript", &[json!(script.to_lower_hex_string())]);
        let ours = ScriptType::of(&script);
        assert_eq!(ours.name(), decoded["type"], "{}", script.to_lower_hex_string());
        seen.insert(ours);
    }
    assert_eq!(seen.len(), ScriptType::ALL.len());
}
