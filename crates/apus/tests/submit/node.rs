//! A real node gets the same lines, and has the same tip after each of them.

use crate::submit::program::Program;
use crate::submit::streams::line;
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::streams::{Given, RECORDED_AT, block_streams};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// A node that keeps orphan blocks, as the program does.
struct Node {
    node: Bitcoind,
    /// Blocks that the node did not keep, in hexadecimal.
    unkept: Vec<String>,
}

/// The previous block's hash from a block's header, as hex in byte order.
fn prev(block: &str) -> &str {
    &block[8..72]
}

/// Reverses a header's hash into display order.
fn displayed(internal: &str) -> String {
    let pairs: Vec<&str> = (0..32).map(|at| &internal[2 * at..2 * at + 2]).collect();
    pairs.into_iter().rev().collect()
}

/// Submits a block to a node; returns the node's reason, or `accepted`.
pub(crate) fn submit(node: &Bitcoind, block: &str) -> String {
    match node.try_call("submitblock", &[json!(block)]) {
        Ok(Value::Null) => "accepted".to_owned(),
        Ok(reason) => reason.as_str().unwrap().to_owned(),
        Err(error) => error.to_string(),
    }
}

impl Node {
    fn give(&mut self, given: &Given, hash: Option<&str>) -> String {
        let Given::Block(block) = given else {
            let (method, parameter) = match given {
                Given::SetMockTime(seconds) => ("setmocktime", json!(seconds)),
                Given::Invalidate(hash) => ("invalidateblock", json!(hash)),
                Given::Block(_) => unreachable!("it was taken out above"),
            };
            self.node.call(method, &[parameter]);
            return String::new();
        };
        let said = submit(&self.node, block);
        if said == "prev-blk-not-found" {
            self.unkept.push(block.clone());
        } else if let Some(hash) = hash {
            self.offer_children_of(hash);
        }
        said
    }

    fn offer_children_of(&mut self, hash: &str) {
        let mut parents = VecDeque::from([hash.to_owned()]);
        while let Some(parent) = parents.pop_front() {
            let (children, others): (Vec<String>, Vec<String>) = std::mem::take(&mut self.unkept)
                .into_iter()
                .partition(|block| displayed(prev(block)) == parent);
            self.unkept = others;
            for block in children {
                let said = submit(&self.node, &block);
                if said != "prev-blk-not-found" {
                    let header = bitcoin::consensus::encode::deserialize_hex(&block[..160]);
                    let header: bitcoin::block::Header = header.unwrap();
                    parents.push_back(header.block_hash().to_string());
                } else {
                    self.unkept.push(block);
                }
            }
        }
    }
}

/// Whether a node's reason and an answer agree.
pub(crate) fn agree(said: &str, answer: &Value) -> bool {
    let result = answer["result"].as_str().unwrap_or_default();
    let reason = answer["reason"].as_str().unwrap_or_default();
    match said {
        "accepted" | "duplicate" => result == said,
        // The node gives no reason for a block whose chain fails below it.
        "inconclusive" => result != "duplicate" && result != "orphan",
        "prev-blk-not-found" => result == "orphan",
        unread if unread.contains("Block decode failed") => result == "rejected",
        // The node checks this before anything else; here it is one of the rules.
        headless if headless.contains("does not start with a coinbase") => {
            result == "rejected" && ["bad-cb-missing", "bad-blk-length"].contains(&reason)
        }
        refused => {
            // Versions of Core differ in the first word of a script failure. Knots has a separate reason for some
            // block versions that Core refuses as too old.
            let refused = refused.replace("mandatory-script", "block-script");
            let refused = match refused.as_str() {
                "bad-version-sha256d" if reason.starts_with("bad-version(") => reason.to_owned(),
                _ => refused,
            };
            result == "rejected" && reason.split(',').next() == Some(refused.as_str())
        }
    }
}

#[test]
fn a_real_node_agrees_on_every_stream() {
    for stream in block_streams() {
        let flag = format!("-testactivationheight={}", stream.activation);
        let clock = format!("-mocktime={RECORDED_AT}");
        let mut node = Node { node: Bitcoind::start(&[&flag, &clock]), unkept: Vec::new() };
        let mut program = Program::start(&["--testactivationheight", stream.activation]);
        program.ask(&line(&Given::SetMockTime(RECORDED_AT)));
        for step in &stream.steps {
            let answer = program.ask(&line(&step.given));
            let said = node.give(&step.given, answer["hash"].as_str());
            let tip = node.node.best_block_hash().to_string();
            let place = format!("{} {}: {said}, {answer}", stream.name, step.seq);
            assert_eq!(answer["tip"], tip, "{place}");
            assert!(said.is_empty() || agree(&said, &answer), "{place}");
        }
        program.end();
    }
}
