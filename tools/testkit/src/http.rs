//! [`get`]: one HTTP request like a browser's or a scraper's, for tests of HTTP servers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longer than any answer takes on a slow and busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Debug, Clone)]
pub struct HttpAnswer {
    /// Its status.
    pub status: u16,
    /// Its headers as received, in lower case.
    pub head: String,
    /// The bytes after the headers.
    pub body: String,
}

/// Requests a path from a server on this machine. `headers` are whole lines; a host header is added unless they
/// contain one.
///
/// # Panics
/// If the server sends no readable answer.
pub fn get(port: u16, path: &str, headers: &[&str]) -> HttpAnswer {
    let has_host = headers.iter().any(|line| line.to_ascii_lowercase().starts_with("host:"));
    let host = if has_host { String::new() } else { format!("Host: 127.0.0.1:{port}\r\n") };
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    send(port, &format!("GET {path} HTTP/1.0\r\n{host}{headers}\r\n"))
}

/// Sends any request, and reads until the server closes the connection.
///
/// # Panics
/// If the server sends no readable answer.
pub fn send(port: u16, request: &str) -> HttpAnswer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
    HttpAnswer { status, head: head.to_lowercase(), body: body.to_owned() }
}
