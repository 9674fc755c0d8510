//! [`Chromium`]: a real headless browser, driven through its DevTools protocol.
//!
//! A test that needs it fails if chromium is not installed; it is never skipped. The browser resolves no names, so
//! requests to other hosts fail, and are recorded like all requests. Dropping it kills the browser.

use apus_testkit::programs::{PATIENCE, POLL_EVERY, find_program};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tungstenite::{Message, WebSocket, client};

/// A browser with one page. Dropping it kills it.
pub(crate) struct Chromium {
    process: Child,
    socket: WebSocket<TcpStream>,
    session: String,
    next: u64,
    requests: Vec<String>,
    complaints: Vec<String>,
    _profile: TempDir,
}

/// The screen that shows a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Screen {
    /// In pixels of CSS.
    pub(crate) width: u32,
    /// In pixels of CSS.
    pub(crate) height: u32,
    /// Whether the user prefers dark pages.
    pub(crate) dark: bool,
    /// Whether it is a phone's screen.
    pub(crate) phone: bool,
}

impl Chromium {
    /// Starts a browser.
    ///
    /// # Panics
    /// If chromium is not installed, or does not start.
    pub(crate) fn start() -> Self {
        let profile = tempfile::Builder::new().prefix("chromium").tempdir().unwrap();
        let said = profile.path().join("said");
        let process = Command::new(find_program("chromium"))
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--no-first-run",
                "--remote-debugging-port=0",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&said).unwrap())
            .spawn()
            .unwrap();
        let address = address(&profile.path().join("DevToolsActivePort"), &said);
        let (port, path) = address;
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (socket, _) = client(format!("ws://127.0.0.1:{port}{path}"), stream).unwrap();
        let mut browser = Self {
            process,
            socket,
            session: String::new(),
            next: 0,
            requests: Vec::new(),
            complaints: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attached = browser.call(
            "Target.attachToTarget",
            json!({"targetId": target["targetId"], "flatten": true}),
        );
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Network", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method, and waits for its result.
    fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        self.socket.send(Message::text(message.to_string())).unwrap();
        loop {
            let message = self.socket.read().unwrap();
            let Message::Text(text) = message else { continue };
            let said: Value = serde_json::from_str(&text).unwrap();
            if said["id"] == id {
                assert!(said["error"].is_null(), "{method}: {said}");
                return said["result"].clone();
            }
            self.note(&said);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                self.requests.push(params["request"]["url"].as_str().unwrap().to_owned());
            }
            Some("Runtime.exceptionThrown") => {
                self.complaints.push(params["exceptionDetails"].to_string());
            }
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.complaints.push(params["entry"].to_string());
            }
            _ => {}
        }
    }

    /// Shows pages on this screen from now on.
    pub(crate) fn show_on(&mut self, screen: Screen) {
        let Screen { width, height, dark, phone } = screen;
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "deviceScaleFactor": if phone { 2 } else { 1 }, "mobile": phone}),
        );
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Opens a page.
    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url}));
    }

    /// Evaluates a JavaScript expression on the page.
    ///
    /// # Panics
    /// If it throws.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true});
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true on the page.
    ///
    /// # Panics
    /// If it stays false for too long; the message has the page's text.
    pub(crate) fn wait_for(&mut self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        // Between two pages there is no document.
        let asked = format!(
            "(() => {{ try {{ return Boolean({expression}); }} catch {{ return false; }} }})()"
        );
        while self.evaluate(&asked) != true {
            if Instant::now() > deadline {
                let shown = self.text();
                panic!("{expression} is not true: {shown}\n{:?}", self.complaints);
            }
            sleep(Duration::from_millis(100));
        }
    }

    /// The text that the page shows.
    pub(crate) fn text(&mut self) -> String {
        self.evaluate("document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Takes a screenshot of the whole page, as PNG.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        let params = json!({"format": "png", "captureBeyondViewport": true});
        let picture = self.call("Page.captureScreenshot", params);
        let base64 = picture["data"].as_str().unwrap();
        data_encoding::BASE64.decode(base64.as_bytes()).unwrap()
    }

    /// URLs that pages requested.
    pub(crate) fn requests(&self) -> &[String] {
        &self.requests
    }

    /// Errors from scripts, from requests, and from violations of the page's content security policy.
    pub(crate) fn complaints(&self) -> &[String] {
        &self.complaints
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits for the browser to write its DevTools port and path.
fn address(file: &Path, said: &Path) -> (u16, String) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        if let Some((port, path)) = text.split_once('\n').filter(|(_, path)| !path.is_empty()) {
            return (port.parse().unwrap(), path.trim().to_owned());
        }
        let output = || fs::read_to_string(said).unwrap_or_default();
        assert!(Instant::now() < deadline, "chromium does not start: {}", output());
        sleep(POLL_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_errors_of_a_page_are_recorded() {
        let mut browser = Chromium::start();
        let page = "data:text/html,<p id=a>first</p><img src='http://other.example/x.png'>\
                    <script>document.getElementById('a').textContent = 1 + 1; undefined.x;</script>";
        browser.open(page);
        browser.wait_for("document.getElementById('a').textContent == '2'");
        browser.wait_for("document.readyState == 'complete'");
        assert_eq!(browser.text().trim(), "2");
        let is_other = |url: &String| url.starts_with("http://other.example/");
        assert!(browser.requests().iter().any(is_other), "{:?}", browser.requests());
        assert!(browser.complaints().len() >= 2, "{:?}", browser.complaints());
        browser.show_on(Screen { width: 390, height: 600, dark: true, phone: true });
        assert_eq!(browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches"), true);
        assert!(browser.picture().starts_with(b"\x89PNG"));
    }
}
