//! One JSON-RPC call over one plain TCP connection.
//!
//! A connection per call: slower than keeping one, but no call ever meets a connection that the
//! node has closed, so nothing is ever sent twice. Speaks just enough HTTP for bitcoind.

use serde_json::{Value, json};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// Longer than any call that a test makes should take, on a slow and busy machine.
const ANSWER_WAIT: Duration = Duration::from_secs(300);

/// The node answered with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcError {
    /// Core's code, as in `rpc/protocol.h`.
    pub code: i64,
    /// Its message.
    pub message: String,
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bitcoind answers {}: {}", self.code, self.message)
    }
}

/// Calls `method`; `Err` on the outside when no answer came, on the inside when it was an error.
pub(crate) fn call(
    port: u16,
    cookie: &str,
    method: &str,
    params: &[Value],
) -> io::Result<Result<Value, RpcError>> {
    let body = json!({"jsonrpc": "1.0", "id": 0, "method": method, "params": params}).to_string();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_WAIT))?;
    stream.set_write_timeout(Some(ANSWER_WAIT))?;
    let head = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Basic {}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        base64(cookie.as_bytes()),
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    understand(&answer)
}

/// Takes an HTTP answer apart. Errors come with status 500 or 404 and a JSON body all the same.
fn understand(answer: &[u8]) -> io::Result<Result<Value, RpcError>> {
    let strange = |what: &str| {
        let start = String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned();
        io::Error::new(io::ErrorKind::InvalidData, format!("{what}: {start:?}"))
    };
    let gap = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let body = &answer[gap.ok_or_else(|| strange("no HTTP answer"))? + 4..];
    let mut reply: Value =
        serde_json::from_slice(body).map_err(|_| strange("no JSON in the answer"))?;
    match reply["error"].take() {
        Value::Null => Ok(Ok(reply["result"].take())),
        error => Ok(Err(RpcError {
            code: error["code"].as_i64().ok_or_else(|| strange("an error without a code"))?,
            message: error["message"].as_str().unwrap_or_default().to_owned(),
        })),
    }
}

/// RFC 4648 §4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for place in 0..4 {
            match place <= chunk.len() {
                true => text.push(DIGITS[(bits >> (18 - 6 * place)) as usize & 63] as char),
                false => text.push('='),
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_in_rfc_4648() {
        for (plain, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), text);
        }
    }

    #[test]
    fn answers_and_errors_are_told_apart() {
        let http = |body: &str| format!("HTTP/1.1 500 X\r\nA: b\r\n\r\n{body}").into_bytes();
        assert_eq!(understand(&http(r#"{"result":7,"error":null}"#)).unwrap(), Ok(json!(7)));
        let error = understand(&http(r#"{"result":null,"error":{"code":-8,"message":"no"}}"#));
        assert_eq!(error.unwrap(), Err(RpcError { code: -8, message: "no".to_owned() }));
        assert!(understand(b"HTTP/1.1 401 Unauthorized\r\n\r\n").is_err());
        assert!(understand(b"").is_err());
    }
}
