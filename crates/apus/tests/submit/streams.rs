//! The streams of `fixtures/block-streams` through standard input.

use crate::submit::program::Program;
use apus_testkit::streams::{Given, RECORDED_AT, Stream, StreamStep, block_streams};
use serde_json::Value;

pub(crate) fn line(given: &Given) -> String {
    match given {
        Given::Block(hex) => hex.clone(),
        Given::SetMockTime(seconds) => format!("{{\"setmocktime\": {seconds}}}"),
        Given::Invalidate(hash) => format!("{{\"invalidateblock\": \"{hash}\"}}"),
    }
}

/// Compares an answer with the recorded step; returns the differences.
fn complaints(step: &StreamStep, answer: &Value) -> Vec<String> {
    let mut complaints = Vec::new();
    let reason = answer["reason"].as_str().unwrap_or_default();
    match &step.reason {
        Some(stated) if !reason.contains(stated) => complaints.push(format!("not {stated}")),
        Some(_) if answer["result"] != "rejected" => complaints.push("not rejected".to_owned()),
        None if step.answered && answer["result"] != "accepted" => {
            complaints.push("not accepted".to_owned());
        }
        _ => {}
    }
    match &step.tip_after {
        Some(tip) if answer["tip"] != **tip => complaints.push(format!("not tip {tip}")),
        _ => {}
    }
    complaints.into_iter().map(|what| format!("{}: {what}: {answer}", step.seq)).collect()
}

fn expect(stream: &Stream, complaints: &[String]) {
    assert!(complaints.is_empty(), "{}: {complaints:#?}", stream.name);
}

#[test]
fn every_stream_gives_the_recorded_answers() {
    for stream in block_streams() {
        let mut program = Program::start(&["--testactivationheight", stream.activation]);
        program.ask(&line(&Given::SetMockTime(RECORDED_AT)));
        let answers = stream.steps.iter().map(|step| (step, program.ask(&line(&step.given))));
        let found: Vec<String> =
            answers.flat_map(|(step, answer)| complaints(step, &answer)).collect();
        expect(&stream, &found);
        assert_eq!(program.end(), "");
    }
}

/// Restarts the program every few steps, sometimes by a kill.
#[test]
fn every_stream_gives_the_recorded_answers_over_many_starts() {
    for stream in block_streams() {
        let folder = tempfile::tempdir().unwrap();
        let workdir = folder.path().join("state").display().to_string();
        let args = ["--testactivationheight", stream.activation, "--workdir", &workdir];
        let mut found = Vec::new();
        let mut clock = RECORDED_AT;
        for (number, steps) in stream.steps.chunks(40).enumerate() {
            let mut program = Program::start(&args);
            program.ask(&line(&Given::SetMockTime(clock)));
            for step in steps {
                if let Given::SetMockTime(seconds) = step.given {
                    clock = seconds;
                }
                found.extend(complaints(step, &program.ask(&line(&step.given))));
            }
            match number % 2 {
                0 => program.kill(),
                _ => drop(program.end()),
            }
        }
        expect(&stream, &found);
    }
}
