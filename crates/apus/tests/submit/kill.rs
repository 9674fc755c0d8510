//! Kills at any moment: every answer given before remains true.

use crate::submit::program::Program;
use apus_testkit::chain::{ChainBuilder, Shape};
use apus_testkit::rng::Rng;
use bitcoin::Block;
use bitcoin::consensus::encode::serialize_hex;

#[test]
fn every_answer_survives_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let workdir = folder.path().join("state").display().to_string();
    let mut chain = ChainBuilder::new(11);
    let blocks: Vec<Block> = (0..160).map(|_| chain.random_block(Shape::default())).collect();
    let mut rng = Rng::new(11);
    let mut given = 0;
    while given < blocks.len() {
        let mut program = Program::start(&["--workdir", &workdir]);
        if given > 0 {
            let known = program.ask(&serialize_hex(&blocks[given - 1]));
            assert_eq!(known["result"], "duplicate");
            assert_eq!(known["tip"], blocks[given - 1].block_hash().to_string());
        }
        let end = (given + rng.between(1, 25) as usize).min(blocks.len());
        for block in &blocks[given..end] {
            assert_eq!(program.ask(&serialize_hex(block))["result"], "accepted");
        }
        given = end;
        match rng.one_in(4) {
            true => drop(program.end()),
            false => program.kill(),
        }
    }
    let mut other = Program::start(&["--workdir", &workdir]);
    other.ask("");
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_apus"))
        .args(["submit", "--chain", "regtest", "--workdir", &workdir])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("in use"));
    assert!(other.end().contains("continuing from"));
}
