//! The main chain's history in miniature: every engine finds the set that its maker expects, from files and
//! from a peer that makes the blocks as they are asked for.

use crate::sandbox::Sandbox;
use apus_bench::maker::serve::{PeerServer, WINDOW_BYTES};
use apus_bench::maker::{self, ChainOutput, MakeOptions};
use std::sync::atomic::AtomicBool;

#[test]
fn every_engine_finds_the_sets_that_the_maker_expects() {
    let scale = "blocks=1/1000,bytes=1/50,coins=1/10".parse().unwrap();
    let files = MakeOptions { set_heights: vec![500], ..MakeOptions::history(scale, 1) };
    let headers = MakeOptions { output: ChainOutput::Headers, ..files.clone() };
    let sandbox = Sandbox::empty();
    for (options, folder) in [(&files, "files"), (&headers, "headers")] {
        maker::make(&sandbox.path(folder), options, &AtomicBool::new(false), &mut |_| {}).unwrap();
    }
    let listen = "127.0.0.1:0".parse().unwrap();
    let server = PeerServer::start(&sandbox.path("headers"), &headers, listen, WINDOW_BYTES);
    let server = server.unwrap();
    let manifest = sandbox.json("files/manifest.json");
    let assumed = manifest["assumevalid_hash"].as_str().unwrap();
    let from_peer = format!("--connect {}", server.address());
    for source in ["--blocksdir files/blocks", &from_peer] {
        for engine in ["utxo", "mergesync"] {
            for set in manifest["sets"].as_array().unwrap() {
                let line = format!(
                    "sync --chain regtest {source} --engine {engine} --assumevalid {assumed} \
                     --stopatheight {} --muhash --report run.json",
                    set["height"]
                );
                sandbox.start(&line).wait().succeeds();
                let found = sandbox.json("run.json");
                for name in ["coins", "total_amount_sat", "muhash"] {
                    assert_eq!(found[name], set[name], "{name}: {line}");
                }
                sandbox.remove("run.json");
            }
        }
    }
}
