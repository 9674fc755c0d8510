//! [`reads_as_sent`]: anything that machines send each other, for tests that try any bytes.

use super::shuffle::any_reads_as_sent;
use super::wire::read_key;
use super::{JobAnswer, JobMessage, RunId, RunSpec, SentUndo, hints, proven};
use apus_chain::{HeightRange, Reader};

/// Whether bytes are read as a job, an answer, what a job is told, the description of a run, or what a job of
/// mergesync leaves.
///
/// # Panics
/// Where what was read is not written as it was, or reads as something else then: a mistake in the program.
pub fn reads_as_sent(bytes: &[u8]) -> bool {
    let number = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk());
    let run = bytes.get(12..44).and_then(|run| run.try_into().ok()).map_or(RunId([0; 32]), RunId);
    let job = JobMessage::from_bytes(bytes, run).map(|job| job.to_bytes());
    let answer = JobAnswer::from_bytes(bytes, run).map(|answer| answer.to_bytes());
    let spec = RunSpec::from_bytes(bytes).map(|spec| spec.to_bytes().unwrap_or_default());
    let written = job.or(answer).or(spec);
    if let Ok(written) = &written {
        assert!(written == bytes, "it is written in another way");
    }
    let [start, end] = [12, 16].map(|at| number(at).map_or(0, |it| u32::from_le_bytes(*it)));
    // Memory is taken for each height.
    let range = HeightRange::new(start, end.clamp(start, start.saturating_add(1000)));
    let told = hints::read(bytes, range);
    if let Ok(told) = &told {
        assert!(hints::read(&hints::write(told), range).as_ref() == Ok(told), "it reads otherwise");
    }
    let roots = proven::read(bytes, range);
    if let Ok(told) = &roots {
        let told = told.as_ref().map(|(before, after)| (before, after));
        assert!(proven::write(range, told) == bytes, "it is written in another way");
    }
    if let Ok(all) = SentUndo::all(bytes) {
        let mut written = Vec::new();
        all.iter().for_each(|record| record.write(&mut written));
        assert!(written == bytes, "it is written in another way");
    }
    let key = bytes.get(44..).and_then(|rest| read_key(&mut Reader::new(rest)));
    written.is_ok()
        || told.is_ok()
        || roots.is_ok()
        || key.is_some_and(|key| any_reads_as_sent(bytes, run, key))
}
