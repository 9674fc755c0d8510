//! The page about a run, in a real browser, and its numbers, in a real Prometheus.
//!
//! With APUS_PICTURES in the environment, the folder that it names gets pictures of the page, for a person to look at.

mod access;
mod chromium;
mod ended;
mod failed;
mod live;
mod metrics;
mod prometheus;

use crate::desk::{Desk, Running};
use crate::lived::Lived;
use apus_testkit::bitcoind::Bitcoind;
use chromium::{Chromium, Screen};
use std::net::TcpListener;
use std::path::PathBuf;

/// A computer's screen, and a phone's; light and dark.
const SCREENS: [(&str, Screen); 3] = [
    ("desktop", Screen { width: 1200, height: 900, dark: false, phone: false }),
    ("dark", Screen { width: 1200, height: 900, dark: true, phone: false }),
    ("phone", Screen { width: 390, height: 844, dark: false, phone: true }),
];

/// A port that is free now. Another program may take it before the run does; then the test says so.
fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Starts a run with a page at an address of this machine, and waits until it answers at the port that is told.
fn start_with_page_at(desk: &Desk, ip: &str, line: &str) -> (Running, u16) {
    let port = free_port();
    let mut run = desk.start(&format!("{line} --web {ip}:{port}"));
    let answers = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    assert!(run.until(answers), "it ended before it answered");
    (run, port)
}

/// The same where only this machine sees the page.
fn start_with_page(desk: &Desk, line: &str) -> (Running, u16) {
    start_with_page_at(desk, "127.0.0.1", line)
}

/// A run with a page that follows a node until it is interrupted.
struct Follower {
    lived: Lived,
    node: Bitcoind,
    run: Running,
    port: u16,
}

impl Follower {
    fn start() -> Self {
        let (lived, node) = Lived::running(1, &["-maxtipage=2000000000"]);
        let line = format!(
            "sync --chain regtest --workdir w.work --connect 127.0.0.1:{} --follow --out snapshot:set.dat",
            node.p2p_port()
        );
        let (run, port) = start_with_page(&lived.desk, &line);
        Self { lived, node, run, port }
    }
}

/// A browser that shows the page at a port, or what else is there.
fn open_page(port: u16, path: &str) -> Chromium {
    let mut browser = Chromium::start();
    browser.open(&format!("http://127.0.0.1:{port}{path}"));
    browser
}

/// Waits until a run has ended and only its page stays. Ended by a signal before, it would be interrupted.
fn wait_for_the_end(run: &mut Running, port: u16, headers: &[&str]) {
    let has_ended = || {
        let answer = apus_testkit::http::get(port, "/state.json", headers);
        let state: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(10));
        state["ended"].is_object()
    };
    assert!(run.until(has_ended), "it ended before its page did");
}

/// What a browser has to say against the page: nothing, and every request went to the run.
fn expect_sound(browser: &Chromium, port: u16) {
    assert_eq!(browser.complaints(), [""; 0]);
    let here = format!("http://127.0.0.1:{port}/");
    let other = |url: &&String| !url.starts_with(&here) && *url != "about:blank";
    let others: Vec<_> = browser.requests().iter().filter(other).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(browser.requests().len() > 5, "{:?}", browser.requests());
}

/// Nothing on the page is wider than the screen, on any; takes pictures, if they are wanted.
fn expect_fits(browser: &mut Chromium, name: &str) {
    for (screen_name, screen) in SCREENS {
        browser.show_on(screen);
        let wide = "[...document.querySelectorAll('main > *')].filter(it => !it.hidden && \
                    it.getBoundingClientRect().right > innerWidth + 1).map(it => it.id || it.className).join()";
        assert_eq!(browser.evaluate(wide), "", "{name} on {screen_name}");
        assert_eq!(
            browser.evaluate("document.documentElement.scrollWidth <= innerWidth"),
            true,
            "{name} on {screen_name}"
        );
        if let Some(folder) = std::env::var_os("APUS_PICTURES") {
            let path = PathBuf::from(folder).join(format!("{name}-{screen_name}.png"));
            std::fs::write(path, browser.picture()).unwrap();
        }
    }
}
