//! Core's functional tests as streams of blocks, with the results of each step: the fixtures in
//! `fixtures/block-streams`.
//!
//! A stream records what a node did, step by step; some steps have no result, because the test checked only
//! after several. Its times are from the day of recording, so a replay has to set the clock.

use flate2::read::GzDecoder;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// A moment after all blocks of the streams, except for blocks that must be in the future.
pub const RECORDED_AT: i64 = 1_795_289_400;

/// The input of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    /// A block in hexadecimal.
    Block(String),
    /// Sets the clock.
    SetMockTime(i64),
    /// Marks a block as invalid, by its hash.
    Invalidate(String),
}

/// One step of a stream, and its known results.
#[derive(Debug, Clone)]
pub struct StreamStep {
    /// Number of the step in the stream.
    pub seq: u64,
    /// The input.
    pub given: Given,
    /// The tip after the step.
    pub tip_after: Option<String>,
    /// A part of the node's reject reason.
    pub reason: Option<String>,
    /// Whether the node answered the step; `reason` is set if it rejected the block.
    pub answered: bool,
}

/// A recorded test.
#[derive(Debug, Clone)]
pub struct Stream {
    /// Its name.
    pub name: &'static str,
    /// `NAME@HEIGHT`, as for `-testactivationheight`.
    pub activation: &'static str,
    /// Its steps in order.
    pub steps: Vec<StreamStep>,
}

/// All streams.
pub fn block_streams() -> Vec<Stream> {
    [
        ("feature_block", "bip34@2"),
        ("feature_cltv", "cltv@111"),
        ("feature_dersig", "dersig@102"),
        ("feature_nulldummy", "segwit@105"),
    ]
    .map(|(name, activation)| Stream { name, activation, steps: steps(name) })
    .to_vec()
}

fn steps(name: &str) -> Vec<StreamStep> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/block-streams");
    let file = File::open(folder.join(format!("{name}.jsonl.gz"))).unwrap();
    let lines = BufReader::new(GzDecoder::new(file)).lines();
    let steps: Vec<StreamStep> = lines.map(|line| step(&line.unwrap())).collect();
    assert!(steps.len() > 100, "{name} has {} steps", steps.len());
    steps
}

fn step(line: &str) -> StreamStep {
    let line: Value = serde_json::from_str(line).unwrap();
    let text = |field: &str| line[field].as_str().map(str::to_owned);
    let parameter = &line["params"][0];
    let given = match line["rpc"].as_str() {
        None => Given::Block(text("block").unwrap()),
        Some("setmocktime") => match parameter.as_i64().unwrap() {
            0 => Given::SetMockTime(RECORDED_AT),
            seconds => Given::SetMockTime(seconds),
        },
        Some("invalidateblock") => Given::Invalidate(parameter.as_str().unwrap().to_owned()),
        Some(other) => panic!("unknown call {other}"),
    };
    StreamStep {
        seq: line["seq"].as_u64().unwrap(),
        given,
        tip_after: text("tip_after"),
        reason: text("reason").or_else(|| text("result")),
        answered: line.get("result").is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_streams_have_the_documented_fields() {
        let streams = block_streams();
        let count = |of: fn(&StreamStep) -> bool| {
            streams.iter().flat_map(|stream| &stream.steps).filter(|&step| of(step)).count()
        };
        assert_eq!(count(|_| true), 561);
        assert_eq!(count(|step| !matches!(step.given, Given::Block(_))), 4);
        assert!(count(|step| step.tip_after.is_some()) > 430);
        assert!(count(|step| step.reason.is_some()) > 70);
        assert_eq!(count(|step| step.answered), 5);
    }
}
