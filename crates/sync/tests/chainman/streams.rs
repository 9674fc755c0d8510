//! Replays the streams of `fixtures/block-streams`: the tip after every call and all reasons must match the
//! record.

use crate::sandbox::{Scripts, manager, reason};
use apus_chain::{Network, Params};
use apus_sync::chainman::{ChainManager, SubmitOutcome};
use apus_testkit::streams::{Given, RECORDED_AT, Stream, StreamStep, block_streams};
use std::collections::HashMap;

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks_exact(2);
    digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

/// Submits one step, and returns the differences in the answer.
fn take(manager: &mut ChainManager, step: &StreamStep) -> Vec<String> {
    let mut complaints = Vec::new();
    match &step.given {
        Given::SetMockTime(seconds) => manager.set_mock_time(*seconds),
        Given::Invalidate(hash) => assert!(manager.invalidate(&hash.parse().unwrap()).unwrap()),
        Given::Block(hex) => {
            let outcome = manager.submit(bytes(hex)).unwrap().outcome;
            let stated = step.reason.as_deref().unwrap_or_default();
            if !reason(&outcome).contains(stated) {
                complaints.push(format!("{outcome:?} where the reason is {stated}"));
            }
            if step.answered && step.reason.is_none() && outcome != SubmitOutcome::Accepted {
                complaints.push(format!("{outcome:?} where it was accepted"));
            }
        }
    }
    let tip = manager.tip().hash.to_string();
    match &step.tip_after {
        Some(stated) if *stated != tip => complaints.push(format!("tip {tip}, not {stated}")),
        _ => {}
    }
    complaints
}

fn replay(stream: &Stream, scripts: Scripts) {
    let mut params = Params::of(Network::Regtest).clone();
    params.activate(stream.activation.parse().unwrap());
    let mut manager = manager(&params, scripts);
    manager.set_mock_time(RECORDED_AT);
    let complaints: Vec<String> = stream
        .steps
        .iter()
        .flat_map(|step| {
            let complaints = take(&mut manager, step);
            complaints.into_iter().map(|what| format!("{} {}: {what}", stream.name, step.seq))
        })
        .collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
#[cfg(feature = "kernel")]
fn every_stream_gives_the_recorded_result() {
    for stream in block_streams() {
        replay(&stream, Scripts::Run);
    }
}

/// Returns the blocks that fail by a script according to the stream.
fn failing_scripts(stream: &Stream) -> HashMap<String, String> {
    let by_script = |reason: &&String| {
        reason.contains("script-verify-flag-failed") || reason.contains("disabled opcode")
    };
    let failing = stream.steps.iter().filter_map(|step| {
        let reason = step.reason.as_ref().filter(by_script)?;
        let Given::Block(hex) = &step.given else { return None };
        let header = apus_chain::Header::parse(bytes(&hex[..160])[..].first_chunk()?);
        Some((header.hash().to_string(), reason.clone()))
    });
    failing.collect()
}

#[test]
fn every_stream_gives_the_recorded_result_with_listed_script_verdicts() {
    let mut failed = 0;
    for stream in block_streams() {
        let failing = failing_scripts(&stream);
        failed += failing.len();
        replay(&stream, Scripts::Listed(failing));
    }
    assert!(failed >= 20, "{failed} blocks fail by a script");
}
