//! `apus snapshot find`, compared with a node's `scantxoutset`.

use crate::sandbox::{REGTEST, SIGNET, Sandbox, fixtures};
use apus_chain::{Network, Params};
use apus_testkit::bitcoind::Bitcoind;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const KEYS: [&str; 3] = [
    "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798",
    "02c6047f9441ed7d6d3045406e95c07cd85c778e4b8cef3ca7abac09b95c709ee5",
    "02f9308a019258c31049344f85f89d5229b531c845836f99b08601f113bce036f9",
];
const UNCOMPRESSED: &str = "0479be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8";
/// This has an odd y, and an x below those of the other keys: by its compressed form it comes after them.
const UNCOMPRESSED_ODD: &str = "042f8bde4d1a07209355b4a7250a5c5128e88b84bddc619ab7cba8d569b240efe42753ddd9c91a1c292b24562259363bd90877d8e454f297bf235782c459539959";
const TPUB: &str = "tpubD6NzVbkrYhZ4WaWSyoBvQwbpLkojyoTZPRsgXELWz3Popb3qkjcJyJUGLnL4qHHoQvao8ESaAstxYSnhyswJ76uZPStJRJCTKvosUCJZL5B";

/// A descriptor of every kind, and of every place in which a key may be.
fn descriptors() -> Vec<String> {
    let [a, b, c] = KEYS;
    let x = &a[2..];
    let mut all = vec![
        format!("pk({a})"),
        format!("pk({UNCOMPRESSED})"),
        format!("pkh({a})"),
        format!("pkh({UNCOMPRESSED})"),
        format!("pkh([d34db33f/44h/0h/0h]{b})"),
        format!("wpkh({a})"),
        format!("sh(wpkh({b}))"),
        format!("multi(2,{b},{a},{c})"),
        format!("sortedmulti(1,{b},{a})"),
        format!("sh(multi(1,{a},{b}))"),
        format!("sh(sortedmulti(2,{c},{b},{a}))"),
        format!("wsh(multi(1,{b},{a}))"),
        format!("wsh(sortedmulti(2,{c},{a}))"),
        format!("sh(wsh(sortedmulti(1,{c},{b})))"),
        format!("sortedmulti(1,{UNCOMPRESSED},{b})"),
        format!("sortedmulti(2,{UNCOMPRESSED},{UNCOMPRESSED_ODD},{c})"),
        format!("sh(sortedmulti(1,{UNCOMPRESSED},{b}))"),
        format!("sh(sortedmulti(2,{UNCOMPRESSED},{UNCOMPRESSED_ODD}))"),
        format!("sh(multi(2,{UNCOMPRESSED},{a}))"),
        format!("sh(pkh({c}))"),
        format!("wsh(pk({c}))"),
        format!("wsh(and_v(v:pk({a}),older(144)))"),
        format!("tr({x})"),
        format!("tr({b})"),
        format!("tr({x},pk({}))", &c[2..]),
        format!("rawtr({x})"),
        format!("rawtr({c})"),
        "raw(51)".to_owned(),
        "raw(51024e73)".to_owned(),
        format!("raw(5120{})", &b[2..]),
        // Unknown and impossible witness programs, a hybrid key, and keys that multi() cannot have.
        "raw(5202abcd)".to_owned(),
        format!("raw(0015{})", "ab".repeat(21)),
        format!("raw(4106{}ac)", &UNCOMPRESSED[2..]),
        format!("raw(5141{}51ae)", UNCOMPRESSED.replacen("04", "07", 1)),
        format!("raw(51{}0111ae)", format!("21{a}").repeat(17)),
        format!("raw(51{}0112ae)", format!("21{a}").repeat(17)),
    ];
    for path in ["/1/*", "/7"] {
        all.push(format!("wpkh({TPUB}{path})"));
        all.push(format!("sh(wpkh([d34db33f/49h/0h]{TPUB}{path}))"));
        all.push(format!("tr({TPUB}{path})"));
        all.push(format!("wsh(sortedmulti(1,{TPUB}{path},{a}))"));
    }
    all
}

/// The node's answer, without what only a node knows.
fn comparable(answer: &Value) -> (Value, BTreeSet<String>) {
    let coin = |coin: &Value| {
        let mut coin = coin.clone();
        for key in ["blockhash", "confirmations"] {
            coin.as_object_mut().unwrap().remove(key);
        }
        coin.to_string()
    };
    let whole =
        ["success", "txouts", "height", "bestblock", "total_amount"].map(|key| &answer[key]);
    (json!(whole), answer["unspents"].as_array().unwrap().iter().map(coin).collect())
}

#[test]
fn every_kind_of_descriptor_finds_what_a_node_finds() {
    let node = Bitcoind::start(&[]);
    for descriptor in descriptors() {
        let info = node.call("getdescriptorinfo", &[json!(descriptor)]);
        let whole = info["descriptor"].as_str().unwrap();
        let mine = |script: &Value| node.call("generatetodescriptor", &[json!(1), script.clone()]);
        if info["isrange"] == true {
            let addresses = node.call("deriveaddresses", &[json!(whole), json!([3, 5])]);
            for address in addresses.as_array().unwrap() {
                mine(
                    &node.call(
                        "getdescriptorinfo",
                        &[json!(format!("addr({})", address.as_str().unwrap()))],
                    )["descriptor"],
                );
            }
        } else {
            mine(&json!(whole));
        }
    }
    let ask =
        |descriptors: &[Value]| node.call("scantxoutset", &[json!("start"), json!(descriptors)]);
    let mut lines: Vec<(String, Value)> = Vec::new();
    for descriptor in descriptors() {
        let answer = ask(&[json!(descriptor)]);
        assert!(!answer["unspents"].as_array().unwrap().is_empty(), "{descriptor}: {answer}");
        lines.push((descriptor, answer));
    }
    for key in [KEYS[0], UNCOMPRESSED] {
        lines.push((format!("combo({key})"), ask(&[json!(format!("combo({key})"))])));
    }
    let ranged = format!("wpkh({TPUB}/1/*)");
    let part = ask(&[json!({ "desc": ranged, "range": [4, 9] })]);
    assert_eq!(part["unspents"].as_array().unwrap().len(), 2);
    lines.push((format!("{ranged} --range [4-9]"), part));
    let all: Vec<Value> = descriptors().into_iter().map(Value::from).collect();
    let every = ask(&all);
    let scripts = every["unspents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|coin| coin["scriptPubKey"].as_str().unwrap());
    let decoded = |script: &str| {
        let said = node.call("decodescript", &[json!(script)]);
        let text = |key: &str| said[key].as_str().unwrap_or_default().to_owned();
        (script.to_owned(), (text("type"), text("address")))
    };
    let decoded: BTreeMap<String, (String, String)> = scripts.map(decoded).collect();
    assert!(decoded.len() > 30, "{decoded:?}");
    let folder = node.stop();
    let sandbox = Sandbox::empty();
    let set = folder.path().display();
    for (line, answer) in lines {
        let ours = sandbox.apus(&format!("snapshot find {set} --json {line}")).succeeds();
        let ours: Value = serde_json::from_str(&ours.stdout).unwrap();
        assert_eq!(comparable(&ours), comparable(&answer), "{line}");
    }
    let csv =
        sandbox.apus(&format!("snapshot export {set} --to - --type --address")).succeeds().stdout;
    let columns = |line: &str| line.split(',').skip(5).map(str::to_owned).collect::<Vec<_>>();
    for row in csv.lines().map(columns) {
        if let Some((kind, address)) = decoded.get(&row[0]) {
            assert_eq!((&row[1], &row[2]), (kind, address), "{row:?}");
        }
    }
    let text: String = descriptors().iter().map(|line| format!("{line}\n\n# comment\n")).collect();
    sandbox.write("wanted.txt", text.as_bytes());
    let ours = sandbox.apus(&format!("snapshot find {set} --json --from wanted.txt")).succeeds();
    let ours: Value = serde_json::from_str(&ours.stdout).unwrap();
    assert_eq!(comparable(&ours), comparable(&every));
}

#[test]
fn addresses_and_scripts_are_found_in_a_snapshot() {
    let sandbox = Sandbox::with(REGTEST);
    sandbox.apus("snapshot export node.dat --to csv:all.csv --address").succeeds();
    sandbox.copy(&fixtures().join("regtest-315"), "node");
    let csv = String::from_utf8(sandbox.read("all.csv")).unwrap();
    let rows: Vec<Vec<&str>> = csv.lines().skip(1).map(|line| line.split(',').collect()).collect();
    // Every 500th coin, by its script and by its address.
    for row in rows.iter().step_by(1500) {
        let [_, _, _, _, _, script, address] = row[..] else { panic!("{row:?}") };
        let expected: Vec<_> = rows.iter().filter(|other| other[5] == script).collect();
        let total: u64 = expected.iter().map(|row| row[2].parse::<u64>().unwrap()).sum();
        for query in [script, address].into_iter().filter(|query| !query.is_empty()) {
            for set in ["node.dat", "node/regtest/chainstate"] {
                let said = sandbox.apus(&format!("snapshot find {set} {query} --json")).succeeds();
                let answer: Value = serde_json::from_str(&said.stdout).unwrap();
                let coins = answer["unspents"].as_array().unwrap();
                let names = coins
                    .iter()
                    .map(|it| (it["txid"].as_str().unwrap(), it["vout"].as_u64().unwrap()));
                let names: Vec<(&str, u64)> = names.collect();
                let in_order =
                    |pair: &[(&str, u64)]| pair[0].0 != pair[1].0 || pair[0].1 < pair[1].1;
                assert!(names.windows(2).all(in_order), "{query}");
                let expected = expected.iter().map(|row| (row[0], row[1].parse().unwrap()));
                assert_eq!(
                    names.into_iter().collect::<BTreeSet<_>>(),
                    expected.collect(),
                    "{query}"
                );
                let btc = answer["total_amount"].as_f64().unwrap();
                assert!((btc - total as f64 / 1e8).abs() < 1e-8, "{query}");
                assert_eq!(answer["txouts"], rows.len());
                assert_eq!(answer["height"], 315);
            }
        }
    }
    let [txid, vout, _, _, height, script] = rows[7][..6] else { panic!() };
    let lines = [&format!("{txid}:{vout} ")[..], &format!(" BTC height {height}"), "found", "315 "];
    sandbox.apus(&format!("snapshot find node.dat {script}")).succeeds().says(&lines);
    let none = "snapshot find node.dat 51ffffffffff";
    sandbox.apus(none).succeeds().says(&["0 coins, 0.00000000 BTC", "20,326 coins, for 1 scripts"]);
}

#[test]
fn wrong_queries_are_refused() {
    let sandbox = Sandbox::with(SIGNET);
    sandbox.write("empty.txt", b"# nothing\n\n");
    sandbox.write("wrong.txt", b"51\nraw(51)#00000000\n");
    sandbox.write("bytes.txt", b"\xff\n");
    for (line, said) in [
        ("bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4", "not of this chain, but of main"),
        ("bcrt1qw508d6qejxtdg4y5r3zarvary0c5xw7kygt080", "not of this chain, but of regtest"),
        ("1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", "not of this chain, but of main"),
        ("tb1qw508d6qejxtdg4y5r3zarvary0c5xw7kxpjzsy", "checksum"),
        ("raw(51)#00000000", "a character is mistyped"),
        ("wpkh(xpub)", "wpkh(xpub): "),
        ("nothing(51)", "nothing(51): "),
        ("--from empty.txt", "nothing to find"),
        ("--from wrong.txt", "wrong.txt:2: raw(51)#00000000: "),
        ("--from bytes.txt", "bytes.txt:1: "),
        ("51 --range 5-4", "a range is"),
        (&format!("wpkh({TPUB}/<0;1>/*) --range 999999"), "more than 1,000,000 scripts"),
        ("", "required arguments"),
    ] {
        sandbox.apus(&format!("snapshot find node.dat {line}")).fails(1, &[said]);
    }
    for key in [
        "5HueCGU8rMjxEXxiPuD5BDku4MkFqeZyd4dZ1jvhTVqvbTLvyTJ",
        "cMahea7zqjxrtgAbB7LSGbcQUr1uX1ojuat9jZodMN87JcbXMTcA",
        "tprv8ZgxMBicQKsPd7Uf69XL1XwhmjHopUGep8GuEiJDZmbQz6o58LninorQAfcKZWARbtRtfnLcJ5MQ2AtHcQJCCRUcMRvmDUjyEmNUWwx8UbK",
    ] {
        for query in [key, &format!("wpkh({key})"), &format!("tr([d34db33f/86h]{key}/0/*)")] {
            sandbox.write("private.txt", format!("51\n{query}\n").as_bytes());
            for (line, place) in
                [(format!("51 {query}"), "argument 2: "), ("--from private.txt".into(), ".txt:2: ")]
            {
                let ended = sandbox.apus(&format!("snapshot find node.dat {line}"));
                let ended = ended.fails(1, &[place, "a private key"]);
                assert!(!ended.stderr.contains(&key[..12]), "{}", ended.stderr);
            }
        }
    }
    sandbox.apus("snapshot find node.dat --from missing.txt").fails(3, &["missing.txt"]);
}

/// A flipped bit would hide a coin, and so would a script in a form that Core never writes.
#[test]
fn a_snapshot_that_may_hide_coins_is_refused_or_said_to_be_unchecked() {
    let sandbox = Sandbox::with(REGTEST);
    let line = "snapshot find node.dat 51";
    sandbox.apus(line).succeeds().says(&["hash_serialized_3  not checked"]);
    let said = sandbox.apus(&format!("{line} --json")).succeeds().stdout;
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["hash_checked"], false);
    // The block of a set that Core knows.
    let known = &Params::of(Network::Regtest).assumeutxo[0];
    sandbox.edit("node.dat", |bytes| bytes[11..43].copy_from_slice(&known.block_hash.0));
    sandbox.apus(line).fails(4, &["NOT the set of block"]);
    sandbox.apus("snapshot export node.dat --to csv:x").fails(4, &["NOT the set of block"]);
    // One coin, whose script is stored whole although it has a short form.
    let script = [&[0x76, 0xa9, 20], &[7; 20][..], &[0x88, 0xac]].concat();
    let header = |bytes: &[u8]| [&bytes[..11], &[9; 32], &1_u64.to_le_bytes()].concat();
    let coin = [&[5; 32][..], &[1, 0, 2, 0, 25 + 6], &script].concat();
    sandbox.edit("node.dat", |bytes| *bytes = [header(bytes), coin].concat());
    let digits: String = script.iter().map(|byte| format!("{byte:02x}")).collect();
    sandbox.apus(&format!("snapshot find node.dat {digits}")).fails(4, &["stored whole"]);
}

#[test]
fn a_search_whose_answer_nobody_reads_ends() {
    let sandbox = Sandbox::with(REGTEST);
    // The end of the search would see the damage.
    sandbox.edit("node.dat", |bytes| bytes.truncate(bytes.len() - 1));
    let line = "snapshot find node.dat 51 --json";
    sandbox.apus(line).fails(4, &["truncated"]);
    let script = r#"{ sleep 1; "$0" "$@"; echo $? >code; } | true; exit $(cat code)"#;
    sandbox.start_in_shell(script, line).wait().succeeds();
}
