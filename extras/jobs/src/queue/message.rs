//! [`JobMessage`] and [`JobAnswer`]: a job for a machine, and the machine's answer.
//!
//! ```text
//! job                                            answer
//! 8     41 50 55 53 4a 4f 42 53 "APUSJOBS"       8     41 50 55 53 41 4e 53 57 "APUSANSW"
//! 4     version                                  4     version
//! 32    the run                                  32    the run
//! 1     step: 0 blocks, 1 join, 2 connect        9     the job
//! 4     first height, or the part                40    its input, an object
//! 4     first height after, or the next part     4+n   the machine's name
//! 40    its input, an object                     1     0 done, 1 refused, 2 trouble, 3 an object is lost
//! 4+n   for an audit, the first machine, or 0          4 the machine computes wrongly
//!                                                …     see below
//! ```
//!
//! Done: its result (40), blocks, bytes, surviving coins, microseconds (8 each). Refused: 0 for a block with height
//! (4), hash (32) and reason, 1 for hints, 2 for anything else; and the message. Trouble: the message. Lost: the
//! object's digest (32) and the message.

use crate::error::{RemoteError, RemoteKind};
use crate::job::JobKey;
use crate::queue::shuffle::any_reads_as_sent;
use crate::queue::wire::{
    ObjectRef, WireError, begin, open, read_key, read_text, write_key, write_text,
};
use crate::queue::{RunId, RunSpec, SentUndo, hints, payload};
use apus_chain::{BlockHash, HeightRange, KnownBlock, Reader};
use apus_sync::engines::pass::Work;
use apus_sync::system::random_bytes;
use std::time::Duration;

/// First bytes of a job.
const JOB_MAGIC: &[u8; 8] = b"APUSJOBS";

/// First bytes of an answer.
const ANSWER_MAGIC: &[u8; 8] = b"APUSANSW";

const JOB: &str = "the job";
const ANSWER: &str = "the answer";

/// A job for a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobMessage {
    pub(crate) run: RunId,
    pub(crate) key: JobKey,
    /// Its payload.
    pub(crate) input: ObjectRef,
    /// For an audit, the machine that processed the job first; another one must repeat it.
    pub(crate) not_by: Option<String>,
}

impl JobMessage {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = begin(JOB_MAGIC);
        out.extend_from_slice(&self.run.0);
        write_key(self.key, &mut out);
        self.input.write(&mut out);
        write_text(self.not_by.as_deref().unwrap_or_default(), &mut out);
        out
    }

    /// Decodes a job, which must belong to `run`.
    pub(crate) fn from_bytes(bytes: &[u8], run: RunId) -> Result<Self, WireError> {
        let mut reader = open(bytes, JOB_MAGIC, JOB)?;
        let read = |reader: &mut Reader<'_>| {
            let found = RunId(*reader.array().ok()?);
            let (key, input) = (read_key(reader)?, ObjectRef::read(reader)?);
            let not_by = Some(read_text(reader)?).filter(|name| !name.is_empty());
            (reader.remaining() == 0).then_some(Self { run: found, key, input, not_by })
        };
        let job = read(&mut reader).ok_or(WireError::Damaged { what: JOB })?;
        expect_run(JOB, job.run, run)?;
        Ok(job)
    }
}

fn expect_run(what: &'static str, found: RunId, wanted: RunId) -> Result<(), WireError> {
    if found == wanted { Ok(()) } else { Err(WireError::OtherRun { what, found, wanted }) }
}

/// A machine's answer to a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobAnswer {
    pub(crate) run: RunId,
    pub(crate) key: JobKey,
    /// The payload that it used: an answer for another payload is ignored.
    pub(crate) input: ObjectRef,
    /// The machine.
    pub(crate) worker: String,
    pub(crate) kind: AnswerKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AnswerKind {
    /// The job is done.
    Done {
        /// The object with the result.
        result: ObjectRef,
        work: Work,
        /// Time the machine took, in microseconds.
        micros: u64,
    },
    /// The blocks or the payload are invalid.
    Refused(RemoteError),
    /// The machine failed, or lacks something that the job needs.
    Trouble(String),
    /// An object that the job needs, named by its digest, is missing or damaged.
    Lost { object: [u8; 32], text: String },
    /// A test found that the machine computes wrongly.
    Faulty,
}

impl JobAnswer {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = begin(ANSWER_MAGIC);
        out.extend_from_slice(&self.run.0);
        write_key(self.key, &mut out);
        self.input.write(&mut out);
        write_text(&self.worker, &mut out);
        match &self.kind {
            AnswerKind::Done { result, work, micros } => {
                out.push(0);
                result.write(&mut out);
                for number in [work.blocks, work.bytes, work.coins, *micros] {
                    out.extend_from_slice(&number.to_le_bytes());
                }
            }
            AnswerKind::Refused(error) => {
                out.push(1);
                match &error.kind {
                    RemoteKind::Block(block) => {
                        out.push(0);
                        out.extend_from_slice(&block.block.height.to_le_bytes());
                        out.extend_from_slice(&block.block.hash.0);
                        write_text(&block.why, &mut out);
                    }
                    RemoteKind::Hints => out.push(1),
                    RemoteKind::Other => out.push(2),
                }
                write_text(&error.text, &mut out);
            }
            AnswerKind::Trouble(text) => {
                out.push(2);
                write_text(text, &mut out);
            }
            AnswerKind::Lost { object, text } => {
                out.push(3);
                out.extend_from_slice(object);
                write_text(text, &mut out);
            }
            AnswerKind::Faulty => out.push(4),
        }
        out
    }

    /// Decodes an answer, which must belong to `run`.
    pub(crate) fn from_bytes(bytes: &[u8], run: RunId) -> Result<Self, WireError> {
        let mut reader = open(bytes, ANSWER_MAGIC, ANSWER)?;
        let answer = Self::read(&mut reader).ok_or(WireError::Damaged { what: ANSWER })?;
        expect_run(ANSWER, answer.run, run)?;
        Ok(answer)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let run = RunId(*reader.array().ok()?);
        let (key, input) = (read_key(reader)?, ObjectRef::read(reader)?);
        let worker = read_text(reader)?;
        let kind = match reader.u8().ok()? {
            0 => {
                let result = ObjectRef::read(reader)?;
                let [mut blocks, mut bytes, mut coins, mut micros] = [0; 4];
                for number in [&mut blocks, &mut bytes, &mut coins, &mut micros] {
                    *number = reader.u64().ok()?;
                }
                AnswerKind::Done { result, work: Work { blocks, bytes, coins }, micros }
            }
            1 => AnswerKind::Refused(read_error(reader)?),
            2 => AnswerKind::Trouble(read_text(reader)?),
            3 => AnswerKind::Lost { object: *reader.array().ok()?, text: read_text(reader)? },
            4 => AnswerKind::Faulty,
            _ => return None,
        };
        (reader.remaining() == 0).then_some(Self { run, key, input, worker, kind })
    }
}

fn read_error(reader: &mut Reader<'_>) -> Option<RemoteError> {
    let kind = match reader.u8().ok()? {
        0 => {
            let height = reader.u32().ok()?;
            let block = KnownBlock { height, hash: BlockHash(*reader.array().ok()?) };
            RemoteKind::Block(apus_sync::error::InvalidBlock { block, why: read_text(reader)? })
        }
        1 => RemoteKind::Hints,
        2 => RemoteKind::Other,
        _ => return None,
    };
    Some(RemoteError { kind, text: read_text(reader)? })
}

// [`pass_on_delay`]: how long a job waits after a machine passed it on to others.
//
// The delay is random. A server offers jobs in the order in which their delays end, to machines in the order in which
// they ask. With equal delays, two machines that each pass on the job meant for the other could be offered their own
// job forever.

/// The shortest delay, and the difference to the longest one, in milliseconds.
const SHORTEST_MS: u64 = 100;
const SPREAD_MS: u64 = 400;

/// Returns a random delay, or the shortest one if the system has no random numbers.
pub fn pass_on_delay() -> Duration {
    let random = random_bytes().map_or(0, u64::from_le_bytes);
    Duration::from_millis(SHORTEST_MS) + Duration::from_micros(random % (SPREAD_MS * 1000))
}

// [`reads_as_sent`]: decodes anything that machines send each other, for tests with arbitrary bytes.

/// Whether bytes decode as a job, an answer, a payload, the description of a run, or the result of a mergesync job.
///
/// # Panics
/// If a decoded value encodes to other bytes, or decodes differently the second time: a bug in the program.
pub fn reads_as_sent(bytes: &[u8]) -> bool {
    let number = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk());
    let run = bytes.get(12..44).and_then(|run| run.try_into().ok()).map_or(RunId([0; 32]), RunId);
    let job = JobMessage::from_bytes(bytes, run).map(|job| job.to_bytes());
    let answer = JobAnswer::from_bytes(bytes, run).map(|answer| answer.to_bytes());
    let spec = RunSpec::from_bytes(bytes).map(|spec| spec.to_bytes().unwrap_or_default());
    let written = job.or(answer).or(spec);
    if let Ok(written) = &written {
        assert!(written == bytes, "it encodes differently");
    }
    let [start, end] = [12, 16].map(|at| number(at).map_or(0, |it| u32::from_le_bytes(*it)));
    // Decoding allocates memory for each height.
    let range = HeightRange::new(start, end.clamp(start, start.saturating_add(1000)));
    let decoded = hints::read(bytes, range);
    if let Ok(hints) = &decoded {
        assert!(
            hints::read(&hints::write(hints), range).as_ref() == Ok(hints),
            "it decodes differently"
        );
    }
    let outside = payload::read(bytes, range);
    if let Ok(outside) = outside {
        assert!(payload::write(range, outside) == bytes, "it encodes differently");
    }
    if let Ok(all) = SentUndo::all(bytes) {
        let mut written = Vec::new();
        all.iter().for_each(|record| record.write(&mut written));
        assert!(written == bytes, "it encodes differently");
    }
    let key = bytes.get(44..).and_then(|rest| read_key(&mut Reader::new(rest)));
    written.is_ok()
        || decoded.is_ok()
        || outside.is_ok()
        || key.is_some_and(|key| any_reads_as_sent(bytes, run, key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WIRE_VERSION;
    use crate::queue::reads_as_sent;
    use apus_chain::HeightRange;
    use apus_sync::error::InvalidBlock;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const RUN: RunId = RunId([7; 32]);

    fn answers() -> Vec<JobAnswer> {
        let of = |bytes| ObjectRef { digest: [bytes as u8; 32], bytes };
        let block = KnownBlock { height: 5, hash: BlockHash([9; 32]) };
        let error = |kind| AnswerKind::Refused(RemoteError { kind, text: "it is wrong".into() });
        [
            AnswerKind::Done {
                result: of(77),
                work: Work { blocks: 1, bytes: 2, coins: 3 },
                micros: 4,
            },
            error(RemoteKind::Block(InvalidBlock { block, why: "bad-cb-amount".into() })),
            error(RemoteKind::Hints),
            error(RemoteKind::Other),
            AnswerKind::Trouble("no such file\nnor another".into()),
            AnswerKind::Lost { object: [6; 32], text: "it is not there".into() },
            AnswerKind::Faulty,
        ]
        .map(|kind| JobAnswer {
            run: RUN,
            key: JobKey::blocks(HeightRange::new(3, 8)),
            input: of(1),
            worker: "rack-7".into(),
            kind,
        })
        .into()
    }

    #[test]
    fn messages_round_trip_and_truncated_ones_are_refused() {
        for answer in answers() {
            let bytes = answer.to_bytes();
            assert!(reads_as_sent(&bytes));
            assert_eq!(JobAnswer::from_bytes(&bytes, RUN), Ok(answer));
            for length in 0..bytes.len() {
                assert!(JobAnswer::from_bytes(&bytes[..length], RUN).is_err());
            }
            let more = [&bytes[..], &[0]].concat();
            assert!(JobAnswer::from_bytes(&more, RUN).is_err());
        }
        let input = ObjectRef { digest: [4; 32], bytes: 1 };
        for not_by in [None, Some("rack-7".to_owned())] {
            let job = JobMessage { run: RUN, key: JobKey::join(1), input, not_by };
            let bytes = job.to_bytes();
            assert!(reads_as_sent(&bytes));
            assert_eq!(JobMessage::from_bytes(&bytes, RUN), Ok(job));
            for length in 0..bytes.len() {
                assert!(JobMessage::from_bytes(&bytes[..length], RUN).is_err());
            }
        }
    }

    #[test]
    fn errors_name_the_mismatch() {
        let bytes = answers()[0].to_bytes();
        let error = |bytes: &[u8], run| JobAnswer::from_bytes(bytes, run).unwrap_err().to_string();
        let other = error(&bytes, RunId([8; 32]));
        assert!(other.contains("is for run 0707") && other.contains("not for run 0808"), "{other}");
        let mut newer = bytes.clone();
        newer[8] = WIRE_VERSION as u8 + 1;
        let newer = error(&newer, RUN);
        let expected =
            format!("version {}, but this program speaks version {WIRE_VERSION}", WIRE_VERSION + 1);
        assert!(newer.contains(&expected), "{newer}");
        let error = error(b"other bytes", RUN);
        assert!(error.contains("another program"), "{error}");
    }

    #[test]
    fn control_characters_are_refused_and_long_names_truncated() {
        let mut answer = answers().remove(4);
        answer.worker = "\u{1b}[2J".into();
        assert!(JobAnswer::from_bytes(&answer.to_bytes(), RUN).is_err());
        answer.worker = "é".repeat(4000);
        let read = JobAnswer::from_bytes(&answer.to_bytes(), RUN).unwrap();
        assert_eq!(read.worker, "é".repeat(2000));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            which in 0usize..7,
            places in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            any in vec(any::<u8>(), 0..300),
        ) {
            reads_as_sent(&any);
            let mut bytes = answers()[which].to_bytes();
            for (place, byte) in places {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            reads_as_sent(&bytes);
        }
    }
}

#[cfg(test)]
mod passed_on_tests {
    use super::*;

    #[test]
    fn delays_differ() {
        let mut delays: Vec<Duration> = (0..64).map(|_| pass_on_delay()).collect();
        delays.sort_unstable();
        let [shortest, longest] = [delays[0], delays[63]];
        assert!(shortest >= Duration::from_millis(100) && longest < Duration::from_millis(500));
        assert!(longest - shortest > Duration::from_millis(100), "{shortest:?} to {longest:?}");
    }
}
