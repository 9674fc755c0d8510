//! The page of a running job: it updates without being reloaded.

use crate::lived::grow;
use crate::page::{Follower, expect_fits, expect_sound, open_page};

#[test]
fn the_page_of_a_sync_that_follows_the_tip_updates_itself() {
    let Follower { mut lived, node, run, port } = Follower::start();
    let mut browser = open_page(port, "/");
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
    assert!(lived.sandbox.has("set.dat"));
}
