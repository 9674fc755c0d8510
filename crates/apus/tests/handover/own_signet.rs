//! A signet of one's own: its magic and the rule of its blocks' signatures follow from its challenge.

use crate::desk::{Desk, SIGNET};
use apus_testkit::bitcoind::Bitcoind;
use serde_json::Value;

/// What OP_TRUE locks anybody may spend, so blocks that the public signet's keys signed are right there, too.
const TRUE: ([u8; 4], &str) = ([0x54, 0xd2, 0x6f, 0xbd], "51");
/// And what OP_0 locks nobody may.
const FALSE: &str = "00";

const PUBLIC: [u8; 4] = [0x0a, 0x03, 0xcf, 0x40];

/// The blocks of the public signet under another magic.
fn own(magic: [u8; 4]) -> Desk {
    let desk = Desk::with(SIGNET);
    desk.edit("blocks/blk00000.dat", |bytes| {
        let mut at = 0;
        while bytes[at..].starts_with(&PUBLIC) {
            bytes[at..at + 4].copy_from_slice(&magic);
            let size = bytes[at + 4..at + 8].try_into().unwrap();
            at += 8 + u32::from_le_bytes(size) as usize;
        }
    });
    desk
}

#[test]
fn a_node_of_ones_own_signet_goes_on_from_what_was_made_for_it() {
    let (magic, challenge) = TRUE;
    let desk = own(magic);
    let told = ["a signet of its own, of the magic 54d26fbd", "--signetchallenge HEX"];
    for line in ["sync --blocksdir blocks", "sync --chain signet --blocksdir blocks"] {
        desk.apus(line).fails(1, &told);
    }
    let sync = "sync --blocksdir blocks --signetchallenge";
    let made = desk.apus(&format!("{sync} {challenge} --out datadir:node --out snapshot:set"));
    let start = format!("bitcoind -datadir=node -chain=signet -signetchallenge={challenge}");
    made.succeeds().says(&[&start, "every script"]);
    assert_eq!(desk.read("set")[7..11], magic);
    // Everything but the magic is as it is on the public one.
    let said: Value = desk.json("gettxoutsetinfo.json");
    let args = [format!("-signetchallenge={challenge}")];
    let node = Bitcoind::start_in(&desk.path("node"), "signet", &[&args[0]]).unwrap();
    assert_eq!(node.txoutset_info().hash_serialized_3, said["hash_serialized_3"]);
    node.stop();
    // What its configuration says need not be said.
    let info = format!("snapshot info set --signetchallenge {challenge}");
    desk.apus(&info).succeeds().says(&["signet"]);
    desk.start("plan --datadir node").wait().fails(1, &told);
    desk.write("node/bitcoin.conf", format!("[signet]\nsignetchallenge={challenge}\n").as_bytes());
    desk.start("plan --datadir node").wait().succeeds().says(&["signet: "]);
    desk.start("verify --datadir node/signet --progress none").wait().succeeds();
    let reindex = desk.start("reindex --datadir node --replace").wait().succeeds();
    assert!(reindex.stdout.contains("bitcoind -datadir=node -chain=signet\n"), "{reindex}");
}

#[test]
fn another_challenge_makes_another_signet() {
    let desk = own(TRUE.0);
    let told = ["a signet of its own, of the magic 54d26fbd"];
    desk.apus(&format!("sync --chain signet --blocksdir blocks --signetchallenge {FALSE}"))
        .fails(1, &told);
    // The magic alone makes no block valid.
    let sha = |bytes: &[u8]| bitcoin::hashes::sha256d::Hash::hash(bytes).to_byte_array();
    use bitcoin::hashes::Hash;
    let [m0, m1, m2, m3, ..] = sha(&[1, 0]);
    let desk = own([m0, m1, m2, m3]);
    desk.apus(&format!("sync --blocksdir blocks --signetchallenge {FALSE}"))
        .fails(2, &["bad-signet-blksig"]);
    // A challenge is for a signet alone, and is a script.
    let said = ["--signetchallenge is for --chain signet", "the chain regtest"];
    desk.apus("sync --chain regtest --blocksdir blocks --signetchallenge 51").fails(1, &said);
    for wrong in ["5", "5x", "+1"] {
        let line = format!("sync --blocksdir blocks --signetchallenge {wrong}");
        desk.apus(&line).fails(1, &["hexadecimal digits, two for each byte"]);
    }
    // No node of such a signet is published.
    let said = ["no addresses of nodes are published", "--connect NODE"];
    desk.apus("sync --chain signet --signetchallenge 51 --out snapshot:s").fails(1, &said);
}
