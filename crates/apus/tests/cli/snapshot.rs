//! `apus snapshot`: what `info` shows, and whether a snapshot is the set that the blocks produce.

use crate::sandbox::{MAIN, REGTEST, SIGNET, Sandbox};
use apus_testkit::chain::{ChainBuilder, Shape};
use apus_testkit::oracle;

#[test]
fn info_matches_the_node() {
    for fixture in [MAIN, REGTEST, SIGNET] {
        let sandbox = Sandbox::with(fixture);
        let node = sandbox.json("gettxoutsetinfo.json");
        let words = |name: &str| node[name].as_str().unwrap().to_owned();
        let info = sandbox.apus("snapshot info node.dat").succeeds().says(&[
            fixture.chain,
            &words("bestblock"),
            &words("hash_serialized_3"),
            "add --muhash",
        ]);
        assert!(!info.stdout.contains(&words("muhash")));
        sandbox.apus("snapshot info node.dat --muhash").succeeds().says(&[&words("muhash")]);
    }
    let sandbox = Sandbox::with(REGTEST);
    sandbox.apus("snapshot info node.dat").succeeds().says(&["20,326", "11399.99752789 BTC"]);
}

#[test]
fn a_true_snapshot_is_verified() {
    for fixture in [MAIN, REGTEST, SIGNET] {
        let sandbox = Sandbox::with(fixture);
        let node = sandbox.json("gettxoutsetinfo.json");
        let line = format!("snapshot verify node.dat --chain {} --blocksdir blocks", fixture.chain);
        let verdict = format!(
            "node.dat holds the coins that the blocks up to {} ({}) leave",
            node["height"],
            node["bestblock"].as_str().unwrap()
        );
        sandbox.apus(&line).succeeds().says(&[&verdict]);
    }
}

#[test]
fn one_wrong_coin_is_noticed() {
    let mut chain = ChainBuilder::new(11);
    chain.random_blocks(130, Shape::default());
    let sandbox = Sandbox::of(&chain);
    let write = |name: &str, coins: &apus_testkit::chain::UtxoSet| {
        sandbox.write(name, &oracle::snapshot(crate::sandbox::REGTEST_MAGIC, chain.tip(), coins));
    };
    let mut richer = chain.utxo().clone();
    richer.values_mut().next().unwrap().output.value += bitcoin::Amount::ONE_SAT;
    write("richer.dat", &richer);
    let mut poorer = chain.utxo().clone();
    poorer.pop_first();
    write("poorer.dat", &poorer);
    let mut moved = chain.utxo().clone();
    moved.values_mut().next().unwrap().height ^= 1;
    write("moved.dat", &moved);
    let mut invented = chain.utxo().clone();
    let (mut outpoint, coin) = invented.first_key_value().map(|(o, c)| (*o, c.clone())).unwrap();
    outpoint.vout = 77;
    invented.insert(outpoint, coin);
    write("invented.dat", &invented);
    for (name, said) in [
        ("richer.dat", "right outpoints but not the right contents"),
        ("poorer.dat", "the aggregate does not balance"),
        ("moved.dat", "coin"),
        ("invented.dat", "coin"),
    ] {
        let line = format!("snapshot verify {name} --chain regtest --blocksdir blocks");
        sandbox.apus(&line).fails(4, &[said]);
        assert_eq!(sandbox.names("").len(), 8, "a verdict leaves no work folder");
    }
}
