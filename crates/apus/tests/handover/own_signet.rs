//! A custom signet: its challenge determines its magic and the rule for its blocks' signatures.

use crate::sandbox::{SIGNET, Sandbox};
use apus_testkit::bitcoind::Bitcoind;
use serde_json::Value;

/// OP_TRUE, which anyone may spend, so blocks signed with the public signet's keys are valid there, too.
const TRUE: ([u8; 4], &str) = ([0x54, 0xd2, 0x6f, 0xbd], "51");
/// OP_0, which no one may spend.
const FALSE: &str = "00";

const PUBLIC: [u8; 4] = [0x0a, 0x03, 0xcf, 0x40];

/// The blocks of the public signet under another magic.
fn own(magic: [u8; 4]) -> Sandbox {
    let sandbox = Sandbox::with(SIGNET);
    sandbox.edit("blocks/blk00000.dat", |bytes| {
        let mut at = 0;
        while bytes[at..].starts_with(&PUBLIC) {
            bytes[at..at + 4].copy_from_slice(&magic);
            let size = bytes[at + 4..at + 8].try_into().unwrap();
            at += 8 + u32::from_le_bytes(size) as usize;
        }
    });
    sandbox
}

#[test]
fn a_node_of_a_custom_signet_continues_from_our_folder() {
    let (magic, challenge) = TRUE;
    let sandbox = own(magic);
    let words = ["a custom signet with the magic 54d26fbd", "--signetchallenge HEX"];
    for line in ["sync --blocksdir blocks", "sync --chain signet --blocksdir blocks"] {
        sandbox.apus(line).fails(1, &words);
    }
    let sync = "sync --blocksdir blocks --signetchallenge";
    let made = sandbox.apus(&format!("{sync} {challenge} --out datadir:node --out snapshot:set"));
    let start = format!("bitcoind -datadir=node -chain=signet -signetchallenge={challenge}");
    made.succeeds().says(&[&start, "every script"]);
    assert_eq!(sandbox.read("set")[7..11], magic);
    // Everything except the magic is as on the public signet.
    let said: Value = sandbox.json("gettxoutsetinfo.json");
    let args = [format!("-signetchallenge={challenge}")];
    let node = Bitcoind::start_in(&sandbox.path("node"), "signet", &[&args[0]]).unwrap();
    assert_eq!(node.txoutset_info().hash_serialized_3, said["hash_serialized_3"]);
    node.stop();
    // Options in its configuration need not be repeated.
    let info = format!("snapshot info set --signetchallenge {challenge}");
    sandbox.apus(&info).succeeds().says(&["signet"]);
    sandbox.start("plan --datadir node").wait().fails(1, &words);
    sandbox
        .write("node/bitcoin.conf", format!("[signet]\nsignetchallenge={challenge}\n").as_bytes());
    sandbox.start("plan --datadir node").wait().succeeds().says(&["signet: "]);
    sandbox.start("verify --datadir node/signet --progress none").wait().succeeds();
    let reindex = sandbox.start("reindex --datadir node --replace").wait().succeeds();
    assert!(reindex.stdout.contains("bitcoind -datadir=node -chain=signet\n"), "{reindex}");
}

#[test]
fn another_challenge_makes_another_signet() {
    let sandbox = own(TRUE.0);
    let words = ["a custom signet with the magic 54d26fbd"];
    sandbox
        .apus(&format!("sync --chain signet --blocksdir blocks --signetchallenge {FALSE}"))
        .fails(1, &words);
    // The magic alone does not make a block valid.
    let sha = |bytes: &[u8]| bitcoin::hashes::sha256d::Hash::hash(bytes).to_byte_array();
    use bitcoin::hashes::Hash;
    let [m0, m1, m2, m3, ..] = sha(&[1, 0]);
    let sandbox = own([m0, m1, m2, m3]);
    sandbox
        .apus(&format!("sync --blocksdir blocks --signetchallenge {FALSE}"))
        .fails(2, &["bad-signet-blksig"]);
    // A challenge needs a signet, and must be a script.
    let said = ["--signetchallenge needs --chain signet", "the chain regtest"];
    sandbox.apus("sync --chain regtest --blocksdir blocks --signetchallenge 51").fails(1, &said);
    for wrong in ["5", "5x", "+1"] {
        let line = format!("sync --blocksdir blocks --signetchallenge {wrong}");
        sandbox.apus(&line).fails(1, &["hexadecimal digits, two per byte"]);
    }
    // No node of such a signet is published.
    let said = ["no published addresses of nodes", "--connect NODE"];
    sandbox.apus("sync --chain signet --signetchallenge 51 --out snapshot:s").fails(1, &said);
}
