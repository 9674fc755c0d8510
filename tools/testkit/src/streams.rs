//! Core's functional tests as streams of blocks, with what came out of each: the fixtures in
//! `fixtures/block-streams`.
//!
//! A stream says what a node did, step by step; some steps say nothing, since the test looked only
//! after several. Its times are those of the day it was recorded, so a replay has to set the clock.

use flate2::read::GzDecoder;
use serde_json::Value;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// A moment after all blocks of the streams, and before those that are to come from the future.
pub const RECORDED_AT: i64 = 1_795_289_400;

/// What is given to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Given {
    /// A block in hexadecimal.
    Block(String),
    /// The clock is set.
    SetMockTime(i64),
    /// A block is to count as invalid: its hash.
    Invalidate(String),
}

/// One step of a stream, and what is known of its outcome.
#[derive(Debug, Clone)]
pub struct StreamStep {
    /// Number of the step in the stream.
    pub seq: u64,
    /// What is given.
    pub given: Given,
    /// The tip after it.
    pub tip_after: Option<String>,
    /// What the node's reject reason contains.
    pub reason: Option<String>,
    /// The step was answered, by this reason if it was rejected.
    pub answered: bool,
}

/// A recorded test.
#[derive(Debug, Clone)]
pub struct Stream {
    /// Its name.
    pub name: &'static str,
    /// `NAME@HEIGHT`, as `-testactivationheight` takes it.
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
        Some(other) => panic!("{other} is no call that is known"),
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
    fn the_streams_state_what_they_should() {
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
