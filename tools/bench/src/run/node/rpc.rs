//! The questions that a node is asked, and what they mean when it does not answer.

use crate::run::error::RunError;
use crate::run::report::SetResult;
use apus_testkit::rpc::Rpc;
use serde_json::{Value, json};
use std::time::Duration;

/// Longer than any of the calls takes, which go through a whole UTXO set.
const ANSWER_WAIT: Duration = Duration::from_secs(1800);

/// Longer than any answer that is asked for.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// A node that can be asked.
#[derive(Debug, Clone)]
pub(super) struct Asked(Rpc);

impl Asked {
    /// The node at a port, by the cookie that it left for its own user.
    pub(super) fn new(port: u16, cookie: String) -> Self {
        let (answer_wait, answer_bytes_max) = (ANSWER_WAIT, ANSWER_BYTES_MAX);
        Self(Rpc { port, cookie, answer_wait, answer_bytes_max })
    }

    /// Calls a method.
    pub(super) fn call(&self, method: &str, params: &[Value]) -> Result<Value, RunError> {
        let failed = |message: String| RunError::Rpc { method: method.to_owned(), message };
        let answer = self.0.call(method, params).map_err(|error| failed(error.to_string()))?;
        answer.map_err(|error| failed(error.message))
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
        muhash: Some(muhash["muhash"].as_str()?.to_owned()),
        hash_serialized_3: Some(serialized["hash_serialized_3"].as_str()?.to_owned()),
        utreexo: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_as_the_node_tells_it() {
        let muhash = json!({
            "height": 315, "bestblock": "ab", "txouts": 20_324, "muhash": "cd",
            "total_amount": 11_399.997_527_89
        });
        let serialized = json!({"bestblock": "ab", "hash_serialized_3": "ef"});
        let set = set_of(&muhash, &serialized).unwrap();
        assert_eq!(set.total_amount_sat, 1_139_999_752_789);
        assert_eq!((set.coins, set.hash_serialized_3.as_deref()), (20_324, Some("ef")));
        // Another tip by then, or no such hash.
        assert_eq!(set_of(&muhash, &json!({"bestblock": "ba"})), None);
        assert_eq!(set_of(&muhash, &json!({"bestblock": "ab"})), None);
    }
}
