//! One JSON-RPC call over one plain TCP connection: as much HTTP as bitcoind speaks to its own
//! machine. Answers are bounded; a call that was sent is never sent twice.

use crate::run::error::RunError;
use crate::run::report::SetResult;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// Longer than any of the calls takes, which go through a whole UTXO set.
const ANSWER_WAIT: Duration = Duration::from_secs(1800);

/// Longer than any answer that is asked for.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// How to reach a node.
#[derive(Debug, Clone)]
pub(super) struct Rpc {
    pub(super) port: u16,
    /// User and password as the node left them for its own user.
    pub(super) cookie: String,
}

impl Rpc {
    /// Calls a method.
    pub(super) fn call(&self, method: &str, params: &[Value]) -> Result<Value, RunError> {
        let failed = |message: String| RunError::Rpc { method: method.to_owned(), message };
        let answer = self.exchange(method, params).map_err(|error| failed(error.to_string()))?;
        understand(&answer).map_err(failed)
    }

    fn exchange(&self, method: &str, params: &[Value]) -> io::Result<Vec<u8>> {
        let body = json!({"jsonrpc": "1.0", "id": 0, "method": method, "params": params});
        let body = body.to_string();
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(ANSWER_WAIT))?;
        stream.set_write_timeout(Some(ANSWER_WAIT))?;
        let head = format!(
            "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Authorization: Basic {}\r\nContent-Length: {}\r\n\r\n",
            base64(self.cookie.trim().as_bytes()),
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
        Ok(answer)
    }

    /// The set of the node's tip, by two calls that go through all of it.
    pub(super) fn set(&self) -> Result<SetResult, RunError> {
        let muhash = self.call("gettxoutsetinfo", &[json!("muhash")])?;
        let serialized = self.call("gettxoutsetinfo", &[json!("hash_serialized_3")])?;
        set_of(&muhash, &serialized).ok_or_else(|| RunError::Rpc {
            method: "gettxoutsetinfo".to_owned(),
            message: format!("an answer without all that is in it: {muhash} and {serialized}"),
        })
    }
}

fn set_of(muhash: &Value, serialized: &Value) -> Option<SetResult> {
    if muhash["bestblock"] != serialized["bestblock"] {
        return None;
    }
    // Satoshis fit in the digits of a float up to 90 million bitcoins.
    let satoshis = muhash["total_amount"].as_f64()? * 1e8;
    Some(SetResult {
        stop_height: u32::try_from(muhash["height"].as_u64()?).ok()?,
        stop_hash: muhash["bestblock"].as_str()?.to_owned(),
        coins: muhash["txouts"].as_u64()?,
        total_amount_sat: satoshis.round() as u64,
        muhash: muhash["muhash"].as_str()?.to_owned(),
        hash_serialized_3: serialized["hash_serialized_3"].as_str()?.to_owned(),
    })
}

/// Takes an HTTP answer apart. Errors come with a status of their own and a JSON body all the same.
fn understand(answer: &[u8]) -> Result<Value, String> {
    let text = String::from_utf8_lossy(answer);
    let strange = |what: &str| format!("{what}: {:.200}", text.trim());
    let (_, body) = text.split_once("\r\n\r\n").ok_or_else(|| strange("no HTTP answer"))?;
    let mut reply: Value =
        serde_json::from_str(body).map_err(|_| strange("no JSON in the answer"))?;
    match reply["error"].take() {
        Value::Null => Ok(reply["result"].take()),
        error => Err(error["message"].as_str().unwrap_or("an error without words").to_owned()),
    }
}

/// RFC 4648, 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for place in 0..4 {
            let digit = char::from(DIGITS[(bits >> (18 - 6 * place)) as usize & 63]);
            text.push(if place <= chunk.len() { digit } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_in_rfc_4648() {
        for (plain, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(plain.as_bytes()), text);
        }
    }

    #[test]
    fn answers_and_errors_are_told_apart() {
        let http =
            |body: &str| understand(format!("HTTP/1.1 500 X\r\nA: b\r\n\r\n{body}").as_bytes());
        assert_eq!(http(r#"{"result":7,"error":null}"#), Ok(json!(7)));
        let error = http(r#"{"result":null,"error":{"code":-8,"message":"no"}}"#);
        assert_eq!(error, Err("no".to_owned()));
        assert!(understand(b"HTTP/1.1 401 Unauthorized\r\n\r\n").is_err());
        assert!(understand(b"\xff").is_err());
    }

    #[test]
    fn a_set_as_the_node_tells_it() {
        let muhash = json!({
            "height": 315, "bestblock": "ab", "txouts": 20_324, "muhash": "cd",
            "total_amount": 11_399.997_527_89
        });
        let serialized = json!({"bestblock": "ab", "hash_serialized_3": "ef"});
        let set = set_of(&muhash, &serialized).unwrap();
        assert_eq!(set.total_amount_sat, 1_139_999_752_789);
        assert_eq!((set.coins, set.hash_serialized_3.as_str()), (20_324, "ef"));
        // Another tip by then, or no such hash.
        assert_eq!(set_of(&muhash, &json!({"bestblock": "ba"})), None);
        assert_eq!(set_of(&muhash, &json!({"bestblock": "ab"})), None);
    }
}
