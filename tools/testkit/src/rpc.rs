//! [`Rpc`]: one JSON-RPC call over one plain TCP connection.
//!
//! Each call has its own connection: slower than keeping one, but no call ever meets a connection that the node
//! has closed, so nothing is ever sent twice. Answers are bounded in time and in bytes. It speaks just enough
//! HTTP for a node on this machine.

use data_encoding::BASE64;
use serde_json::{Map, Value, json};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// The address of a node, and the limits for its answers.
#[derive(Debug, Clone)]
pub struct Rpc {
    /// The port on which it listens, on 127.0.0.1.
    pub port: u16,
    /// User and password with a colon between them, as in the cookie that a node writes for its own user.
    pub cookie: String,
    /// Time limit of a call.
    pub answer_wait: Duration,
    /// Maximum length of an answer.
    pub answer_bytes_max: u64,
}

/// The node answered with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcError {
    /// Core's code, as in `rpc/protocol.h`.
    pub code: i64,
    /// The message.
    pub message: String,
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bitcoind answers {}: {}", self.code, self.message)
    }
}

impl Rpc {
    /// Calls a method; the outer `Err` means that no answer came, the inner one that the node answered with an
    /// error.
    pub fn call(&self, method: &str, params: &[Value]) -> io::Result<Result<Value, RpcError>> {
        let body = json!({"jsonrpc": "1.0", "id": 0, "method": method, "params": params});
        let body = body.to_string();
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(self.answer_wait))?;
        stream.set_write_timeout(Some(self.answer_wait))?;
        let head = format!(
            "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Authorization: Basic {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            BASE64.encode(self.cookie.trim().as_bytes()),
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(self.answer_bytes_max).read_to_end(&mut answer)?;
        understand(&answer)
    }
}

/// Parses an HTTP answer. Errors have status 500 or 404, but also a JSON body.
fn understand(answer: &[u8]) -> io::Result<Result<Value, RpcError>> {
    let strange = |what: &str| {
        let start = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
        io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {start:?}"))
    };
    let gap = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let body = &answer[gap.ok_or_else(|| strange("no HTTP answer"))? + 4..];
    let mut reply: Map<String, Value> =
        serde_json::from_slice(body).map_err(|_| strange("no JSON object in the answer"))?;
    match reply.remove("error").unwrap_or_default() {
        Value::Null => Ok(Ok(reply.remove("result").unwrap_or_default())),
        error => Ok(Err(RpcError {
            code: error["code"].as_i64().ok_or_else(|| strange("an error without a code"))?,
            message: error["message"].as_str().unwrap_or("an error without words").to_owned(),
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    #[test]
    fn answers_and_errors_are_distinguished() {
        let http = |body: &str| format!("HTTP/1.1 500 X\r\nA: b\r\n\r\n{body}").into_bytes();
        assert_eq!(understand(&http(r#"{"result":7,"error":null}"#)).unwrap(), Ok(json!(7)));
        let error = understand(&http(r#"{"result":null,"error":{"code":-8,"message":"no"}}"#));
        assert_eq!(error.unwrap(), Err(RpcError { code: -8, message: "no".to_owned() }));
        // Neither a bare status, nor an error of unknown form, nor a list instead of a reply.
        for strange in ["", r#"{"error":"no"}"#, "[7]", "7"] {
            assert!(understand(&http(strange)).is_err(), "{strange}");
        }
        assert!(understand(b"\xff").is_err());
        assert!(understand(b"").is_err());
    }

    #[test]
    fn an_answer_that_is_too_long_is_not_read_to_its_end() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let reply = b"HTTP/1.1 200 OK\r\n\r\n{\"result\":\"0123456789\",\"error\":null}";
        let asked = |answer_bytes_max| {
            let cookie = "user:password\n".to_owned();
            let answer_wait = Duration::from_secs(60);
            let rpc = Rpc { port, cookie, answer_wait, answer_bytes_max };
            thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut stream, _) = listener.accept().unwrap();
                    let (mut request, mut byte) = (Vec::new(), [0]);
                    while !request.ends_with(b"\"params\":[]}") {
                        stream.read_exact(&mut byte).unwrap();
                        request.push(byte[0]);
                    }
                    let request = String::from_utf8(request).unwrap();
                    assert!(request.contains("Basic dXNlcjpwYXNzd29yZA==\r\n"), "{request}");
                    stream.write_all(reply).unwrap();
                });
                rpc.call("any", &[])
            })
        };
        let len = reply.len() as u64;
        assert_eq!(asked(len).unwrap(), Ok(json!("0123456789")));
        assert!(asked(len - 1).is_err());
    }
}
