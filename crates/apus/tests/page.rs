//! The page about a job in a real browser, and its metrics in a real Prometheus.
//!
//! If APUS_PICTURES in the environment names a folder, the tests save screenshots of the page there.

mod access;
mod chromium;
mod ended;
mod failed;
mod live;
mod metrics;
mod prometheus;

use crate::lived::Lived;
use crate::sandbox::{Running, Sandbox};
use apus_testkit::bitcoind::Bitcoind;
use chromium::{Chromium, Screen};
use std::net::TcpListener;
use std::path::PathBuf;

/// Screens of a computer and of a phone, light and dark.
const SCREENS: [(&str, Screen); 3] = [
    ("desktop", Screen { width: 1200, height: 900, dark: false, phone: false }),
    ("dark", Screen { width: 1200, height: 900, dark: true, phone: false }),
    ("phone", Screen { width: 390, height: 844, dark: false, phone: true }),
];

/// Returns a port that is free now. If another program takes it before the job does, the test fails.
fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Starts a job with a page at an address of this machine, and waits until the page answers; returns its port.
fn start_with_page_at(sandbox: &Sandbox, ip: &str, line: &str) -> (Running, u16) {
    let port = free_port();
    let mut run = sandbox.start(&format!("{line} --web {ip}:{port}"));
    let answers = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
    assert!(run.until(answers), "it ended before it answered");
    (run, port)
}

/// Starts a job with a page that only this machine can reach.
fn start_with_page(sandbox: &Sandbox, line: &str) -> (Running, u16) {
    start_with_page_at(sandbox, "127.0.0.1", line)
}

/// A sync with a page that follows a node until it is interrupted.
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
        let (run, port) = start_with_page(&lived.sandbox, &line);
        Self { lived, node, run, port }
    }
}

/// Opens the page at a port in a browser.
fn open_page(port: u16, path: &str) -> Chromium {
    let mut browser = Chromium::start();
    browser.open(&format!("http://127.0.0.1:{port}{path}"));
    browser
}

/// Waits until a job has ended and only its page is left. A signal before that would interrupt the job.
fn wait_for_the_end(run: &mut Running, port: u16, headers: &[&str]) {
    let has_ended = || {
        let answer = apus_testkit::http::get(port, "/state.json", headers);
        let state: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(10));
        state["ended"].is_object()
    };
    assert!(run.until(has_ended), "it ended before its page did");
}

/// Asserts that the browser has no complaints, and that every request went to the page's server.
fn expect_sound(browser: &Chromium, port: u16) {
    assert_eq!(browser.complaints(), [""; 0]);
    let here = format!("http://127.0.0.1:{port}/");
    let other = |url: &&String| !url.starts_with(&here) && *url != "about:blank";
    let others: Vec<_> = browser.requests().iter().filter(other).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(browser.requests().len() > 5, "{:?}", browser.requests());
}

/// Asserts that nothing on the page is wider than the screen, on all screens; saves screenshots if they are wanted.
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
