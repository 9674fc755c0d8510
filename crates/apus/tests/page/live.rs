//! The page of a run that goes on: it follows without being loaded anew.

use crate::lived::{Lived, grow};
use crate::{expect_fits, expect_sound, free_port, wait_until_it_answers};
use apus_testkit::chromium::Chromium;

#[test]
fn a_run_that_follows_the_tip_is_shown_as_it_goes_on() {
    let (mut lived, node) = Lived::running(1, &["-maxtipage=2000000000"]);
    let port = free_port();
    let line = format!(
        "sync --chain regtest --workdir w.work --connect 127.0.0.1:{} --follow --web 127.0.0.1:{port} \
         --out snapshot:set.dat",
        node.p2p_port()
    );
    let mut run = lived.desk.start(&line);
    wait_until_it_answers(&mut run, port);
    let mut browser = Chromium::start();
    browser.open(&format!("http://127.0.0.1:{port}/"));
    browser.wait_for("document.getElementById('state').textContent == 'at the tip'");
    let peer = format!("127.0.0.1:{}", node.p2p_port());
    browser.wait_for(&format!("document.getElementById('peers').innerText.includes('{peer}')"));
    browser.evaluate("window.loaded = 'once'");
    for _ in 0..2 {
        grow(&mut lived.chain, &node, 1);
        let tip = node.best_block_hash();
        browser.wait_for(&format!("document.getElementById('events').innerText.includes('{tip}')"));
    }
    assert_eq!(browser.evaluate("window.loaded"), "once");
    assert!(browser.text().contains("Satoshi:"), "{}", browser.text());
    expect_sound(&browser, port);
    expect_fits(&mut browser, "live");
    run.signal(&["INT"]);
    browser.wait_for("document.getElementById('state').textContent == 'done'");
    run.wait().succeeds();
    assert!(lived.desk.has("set.dat"));
}
