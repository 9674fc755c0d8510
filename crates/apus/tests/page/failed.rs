//! Jobs that fail: the page, the report and the log say why.

use crate::page::{expect_fits, expect_sound, open_page, start_with_page};
use crate::sandbox::{REGTEST, Sandbox};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{ChainBuilder, Shape};

#[test]
fn wrong_hints_are_reported_everywhere() {
    let mut chain = ChainBuilder::new(20);
    chain.empty_blocks(20);
    let sandbox = Sandbox::of(&chain);
    // The first block with its one coin is the element 01 00 80 at byte 9. Change it to have no coin.
    sandbox.edit("msb.hints", |hints| drop(hints.splice(9..12, [0])));
    let line = "sync --chain regtest --blocksdir blocks --hints msb.hints --out snapshot:utxo.dat \
                --report report.json --log run.log";
    let (run, port) = start_with_page(&sandbox, &format!("{line} --web-stay forever"));
    let mut browser = open_page(port, "/");
    browser.wait_for("document.getElementById('state').textContent == 'failed'");
    let report = sandbox.json("report.json");
    let failure = &report["failure"];
    assert_eq!((&failure["code"], &failure["class"]), (&4.into(), &"wrong_hints".into()));
    let why = failure["text"].as_str().unwrap();
    assert!(why.contains("msb.hints"), "{why}");
    let text = browser.text();
    assert!(text.contains(why) && text.contains("wrong_hints"), "{text}");
    expect_sound(&browser, port);
    expect_fits(&mut browser, "failed");
    run.signal(&["INT"]);
    let ended = run.wait().fails(4, &["msb.hints"]);
    assert!(ended.stderr.contains(why.lines().next().unwrap()), "{ended}");
    assert!(!sandbox.has("utxo.dat"));
    let log = String::from_utf8(sandbox.read("run.log")).unwrap();
    assert!(log.contains("failed: msb.hints"), "{log}");
    for field in ["verified", "stop_hash", "muhash", "coins"] {
        assert!(report[field].is_null(), "the report of a failed job has {field}");
    }

    // The failed job does not prevent a later one.
    sandbox.write_results(&chain);
    sandbox.start(line).wait().succeeds();
    assert_eq!(sandbox.json("report.json")["version"], 1);
    assert!(sandbox.json("report.json")["failure"].is_null());
    let log = String::from_utf8(sandbox.read("run.log")).unwrap();
    assert!(log.contains("failed: ") && log.contains("done: at block 20"), "{log}");
    sandbox.start(line).wait().fails(1, &["exists already"]);
}

#[test]
fn an_invalid_block_is_named_for_programs() {
    let mut chain = ChainBuilder::new(5);
    chain.random_blocks(20, Shape { outputs_max: 3, ..Shape::default() });
    let sandbox = Sandbox::of(&chain);
    // The last byte of a block belongs to a lock time, which the merkle root covers.
    let mut files = BlockFiles::regtest();
    let mut blocks = chain.blocks();
    let hash = blocks[10].block_hash().to_string();
    blocks[10].txdata[0].output[0].value = bitcoin::Amount::from_sat(1);
    files.blocks(&blocks);
    sandbox.remove("blocks");
    files.write(&sandbox.path("blocks"));
    let line = "sync --chain regtest --blocksdir blocks --hints msb.hints --out snapshot:utxo.dat \
                --report report.json";
    sandbox.start(line).wait();
    let failure = &sandbox.json("report.json")["failure"];
    let text = failure["text"].as_str().unwrap();
    assert!(text.contains(&hash) || failure["height"] == 10, "{failure}");
}

#[test]
fn an_interrupted_job_says_so_and_its_report_can_be_replaced() {
    let sandbox = Sandbox::with(REGTEST);
    let line = "sync --chain regtest --connect 127.0.0.1:1 --hints msb.hints --report report.json \
                --out snapshot:utxo.dat --log run.log";
    let mut run = sandbox.start(line);
    let log = || std::fs::read_to_string(sandbox.path("run.log")).unwrap_or_default();
    assert!(run.until(|| log().contains("headers started")), "it ended too early: {}", log());
    run.signal(&["INT"]);
    run.wait().fails(130, &["interrupted"]);
    let failure = sandbox.json("report.json")["failure"].clone();
    assert_eq!((&failure["code"], &failure["class"]), (&130.into(), &"interrupted".into()));
    assert_eq!(failure["phase"], "headers");
    let blocks = "sync --chain regtest --blocksdir blocks --hints msb.hints --report report.json \
                  --out snapshot:utxo.dat";
    sandbox.start(blocks).wait().succeeds();
    assert!(sandbox.json("report.json")["verified"].is_object());
}
