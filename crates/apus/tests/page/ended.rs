//! The page and the log of a job that succeeded.

use crate::page::{expect_fits, expect_sound, open_page, start_with_page};
use crate::sandbox::{MAIN, Sandbox};

#[test]
fn a_run_that_ended_shows_its_report_until_ctrl_c() {
    let sandbox = Sandbox::with(MAIN);
    let line = "sync --chain main --blocksdir blocks --hints msb.hints --out snapshot:utxo.dat \
                --muhash --report report.json --log run.log --web-stay forever";
    let (run, port) = start_with_page(&sandbox, line);
    let mut browser = open_page(port, "/");
    browser.wait_for("document.getElementById('state').textContent == 'done'");
    let text = browser.text();
    let report = sandbox.json("report.json");
    for said in [
        "Apus sync main",
        "100 %",
        "4,348",
        "4,521 blocks",
        report["muhash"].as_str().unwrap(),
        report["hash_serialized_3"].as_str().unwrap(),
        report["stop_hash"].as_str().unwrap(),
        "utxo.dat",
        "headers",
        "hints",
        "coins",
        "chain of 4521 blocks in 1 file",
        "--assumevalid hints",
    ] {
        assert!(text.contains(said), "{said:?} is not shown: {text}");
    }
    let done = "document.querySelectorAll('#phases .done').length == 4";
    assert_eq!(browser.evaluate(done), true, "{text}");
    let squares = "document.querySelectorAll('#segments i').length == \
                   document.querySelectorAll('#segments i.done').length";
    assert_eq!(browser.evaluate(squares), true, "{text}");
    // The page of an ended job sends no more requests.
    let asked = browser.requests().len();
    std::thread::sleep(std::time::Duration::from_millis(2500));
    browser.evaluate("1");
    assert_eq!(browser.requests().len(), asked);
    expect_sound(&browser, port);
    expect_fits(&mut browser, "ended");
    run.signal(&["INT"]);
    run.wait().succeeds();

    // The browser keeps showing the last state.
    assert!(browser.text().contains("100 %"));
    let log = String::from_utf8(sandbox.read("run.log")).unwrap();
    for said in
        ["begin: apus ", "chain: chain of 4521", "phase: blocks started", "done: at block 4521"]
    {
        assert!(log.lines().any(|line| line.contains(said)), "{said:?} is not in {log}");
    }
    for line in log.lines().filter(|line| !line.starts_with("    ")) {
        let (time, _) = line.split_once(' ').unwrap();
        assert!(time.len() == 20 && time.starts_with("20") && time.ends_with('Z'), "{line}");
    }
}

/// A page that is open when the job ends gets the final state, although the job does not wait long.
#[test]
fn an_open_page_gets_the_final_state() {
    let sandbox = Sandbox::with(MAIN);
    let line = "sync --chain main --blocksdir blocks --hints msb.hints --out snapshot:utxo.dat --web-stay 1";
    let (run, port) = start_with_page(&sandbox, line);
    let state = apus_testkit::http::get(port, "/state.json", &[]);
    assert_eq!(state.status, 200);
    run.wait().succeeds();
    assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"), "another set");
}
