//! Access to the page: from which addresses, and with which token.

use crate::page::{open_page, start_with_page, start_with_page_at, wait_for_the_end};
use crate::sandbox::{REGTEST, Sandbox};
use apus_testkit::http::{get, send};

const LINE: &str = "sync --chain regtest --blocksdir blocks --hints msb.hints --out snapshot:utxo.dat \
                    --web-stay forever";

#[test]
fn on_a_loopback_address_only_names_of_this_machine_are_accepted() {
    let sandbox = Sandbox::with(REGTEST);
    let (mut run, port) = start_with_page(&sandbox, LINE);
    for path in ["/", "/page.css", "/page.js", "/charts.js", "/icon.svg", "/state.json", "/metrics"]
    {
        let answer = get(port, path, &[]);
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.head.contains("content-security-policy: default-src 'none';"), "{path}");
        assert!(answer.head.contains("cache-control: no-store"), "{path}");
    }
    assert_eq!(get(port, "/state.json", &["Host: evil.example"]).status, 421);
    assert_eq!(get(port, "/../Cargo.toml", &[]).status, 404);
    let posted = send(port, &format!("POST / HTTP/1.0\r\nHost: localhost:{port}\r\n\r\n"));
    assert_eq!(posted.status, 405);
    let endless = format!("GET / HTTP/1.0\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(17_000));
    assert_eq!(send(port, &endless).status, 431);
    wait_for_the_end(&mut run, port, &[]);
    run.signal(&["TERM"]);
    run.wait().succeeds();
}

#[test]
fn other_addresses_need_a_token() {
    let sandbox = Sandbox::with(REGTEST);
    let token = "a-token-of-30-characters-in-all";
    let line = format!("{LINE} --web-token {token}");
    let (run, port) = start_with_page_at(&sandbox, "0.0.0.0", &line);
    for path in ["/", "/page.js", "/state.json", "/metrics", "/?token=wrong"] {
        let answer = get(port, path, &[]);
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
        assert!(!answer.body.contains("regtest"), "{}", answer.body);
    }
    let bearer = format!("Authorization: Bearer {token}");
    assert_eq!(get(port, "/metrics", &[&bearer]).status, 200);
    // With the right token, any host name is accepted.
    assert_eq!(get(port, "/metrics", &["Host: the-server.example", &bearer]).status, 200);
    let mut browser = open_page(port, &format!("/?token={token}"));
    browser.wait_for("document.getElementById('state').textContent == 'done'");
    assert_eq!(browser.evaluate("location.search"), "");
    assert_eq!(browser.evaluate("document.cookie"), "");
    run.signal(&["INT"]);
    run.wait().succeeds();
}

#[test]
fn a_token_is_made_if_none_is_given() {
    let sandbox = Sandbox::with(REGTEST);
    let (mut run, port) = start_with_page_at(&sandbox, "0.0.0.0", LINE);
    // The page answers before its URL is printed, and before the program handles signals.
    assert!(run.until(|| sandbox.has("utxo.dat")), "it ended before its page did");
    run.signal(&["INT"]);
    let ended = run.wait();
    let said = format!("watch the progress at http://THIS-MACHINE:{port}/?token=");
    let token = ended.stderr.split(&said).nth(1).unwrap_or_else(|| panic!("{ended}"));
    let token = token.lines().next().unwrap();
    assert!(token.len() == 32 && token.chars().all(|c| c.is_ascii_hexdigit()), "{token}");
}

#[test]
fn invalid_options_fail_before_the_job_starts() {
    let sandbox = Sandbox::with(REGTEST);
    let at = |web: &str| sandbox.apus(&format!("{LINE} --web {web}"));
    at("127.0.0.1:0 --web-token short").fails(1, &["--web-token", "16 to 128"]);
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    at(&address).fails(1, &["cannot listen", "use another --web"]);
    for wrong in ["nowhere", "localhost:8337", "8337"] {
        let said = ["--web", wrong, "give an IP address and a port, such as 127.0.0.1:8337"];
        at(wrong).fails(1, &said);
    }
    let stay = "sync --chain regtest --blocksdir blocks --web 127.0.0.1:0 --web-stay long";
    sandbox.apus_as_typed(stay).fails(1, &["forever"]);
    sandbox
        .apus_as_typed("sync --chain regtest --blocksdir blocks --log none/run.log")
        .fails(3, &["none/run.log"]);
}
