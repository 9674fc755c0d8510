//! Replays the log when the program starts.

use super::{
    CHECK_BYTES, LogKind, LogPlace, MAGIC, PREAMBLE_BYTES, RECORD_HEAD_BYTES, UnsyncedFile,
    VERSION, check_of, continued, file_name, file_number,
};
use crate::chainman::ChainManagerError;
use apus_chain::{BLOCK_SIZE_MAX, Reader};
use apus_hash::sha256;
use apus_storage::Storage;
use std::io::{BufReader, ErrorKind, Read};

/// Receives records one by one. An error describes an invalid one.
pub(in crate::chainman) type EachRecord<'a> =
    dyn FnMut(LogKind, Vec<u8>, LogPlace) -> Result<(), String> + 'a;

/// A summary of the records that were read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::chainman) struct ReplaySummary {
    /// Number of complete records.
    pub(in crate::chainman) records: u64,
    /// Bytes of incomplete records at the ends of files.
    pub(in crate::chainman) torn_bytes: u64,
}

/// The state from which the log continues.
pub(super) struct NextRecord {
    pub(super) number: u32,
    pub(super) running: [u8; 32],
    pub(super) unsure: Option<UnsyncedFile>,
}

/// Reads all files of the log, in order.
pub(super) fn replay(
    storage: &dyn Storage,
    identity: &[u8; 32],
    each: &mut EachRecord<'_>,
) -> Result<(ReplaySummary, NextRecord), ChainManagerError> {
    let io = |name: &str, error| ChainManagerError::Storage { file: storage.describe(name), error };
    let names = storage.names().map_err(|error| io("", error))?;
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| file_number(name)).collect();
    numbers.sort_unstable();
    let mut replayed = ReplaySummary::default();
    let mut next = NextRecord { number: 1, running: sha256(identity), unsure: None };
    for (place, &number) in numbers.iter().enumerate() {
        let name = file_name(number);
        let damaged = |what: &str| {
            let file = storage.describe(&name);
            ChainManagerError::Damaged { file, what: what.to_owned() }
        };
        let length = storage.len(&name).map_err(|error| io(&name, error))?;
        let file = storage.open(&name, 0).map_err(|error| io(&name, error))?;
        let mut file = TreeLogFile { file: BufReader::with_capacity(1 << 16, file), offset: 0 };
        let preamble = file.take(PREAMBLE_BYTES).map_err(|error| io(&name, error))?;
        if let Some(found) = preamble.as_deref().and_then(version).filter(|&v| v > VERSION) {
            let file = storage.describe(&name);
            return Err(ChainManagerError::Newer { file, found, known: VERSION });
        }
        let Some(preamble) = preamble.as_deref().and_then(FilePreamble::read) else {
            // A crash right after creation left this file without a whole preamble. It has no records: the
            // preamble is made durable before the first one.
            if place + 1 == numbers.len() && length <= PREAMBLE_BYTES as u64 {
                replayed.torn_bytes += length;
                break;
            }
            return Err(damaged("it does not begin like a log file"));
        };
        if preamble.identity != *identity {
            return Err(ChainManagerError::OtherChain { file: storage.describe(&name) });
        }
        if number != next.number || preamble.number != number || preamble.running != next.running {
            return Err(damaged("it does not continue the file before it"));
        }
        let (mut whole, mut closed) = (file.offset, false);
        while let Some((kind, payload, place)) =
            file.record(number, &mut next.running).map_err(|error| io(&name, error))?
        {
            closed = kind == LogKind::Closed;
            if !closed {
                each(kind, payload, place).map_err(|what| damaged(&what))?;
                replayed.records += 1;
            }
            whole = file.offset;
        }
        replayed.torn_bytes += length.saturating_sub(whole);
        next.number =
            number.checked_add(1).ok_or_else(|| damaged("it has the last possible number"))?;
        next.unsure = (!closed).then_some(UnsyncedFile { number, whole_bytes: whole });
    }
    Ok((replayed, next))
}

/// Reads the version of a log file; the rest of the file may be invalid.
fn version(preamble: &[u8]) -> Option<u32> {
    let mut reader = Reader::new(preamble);
    (reader.take(MAGIC.len()).ok()? == MAGIC).then(|| reader.u32().ok())?
}

/// The preamble of a file.
struct FilePreamble {
    identity: [u8; 32],
    number: u32,
    running: [u8; 32],
}

impl FilePreamble {
    /// Reads a preamble; returns `None` if a crash left it incomplete.
    fn read(bytes: &[u8]) -> Option<Self> {
        let checked = bytes.len().checked_sub(CHECK_BYTES)?;
        if check_of(&sha256(&bytes[..checked])) != &bytes[checked..] {
            return None;
        }
        if version(bytes)? != VERSION {
            return None;
        }
        let mut reader = Reader::new(&bytes[MAGIC.len() + 4..]);
        Some(Self {
            identity: *reader.array().ok()?,
            number: reader.u32().ok()?,
            running: *reader.array().ok()?,
        })
    }
}

struct TreeLogFile<R> {
    file: R,
    offset: u64,
}

impl<R: Read> TreeLogFile<R> {
    /// Reads the next `count` bytes; `None` if there are fewer.
    fn take(&mut self, count: usize) -> std::io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; count];
        match self.file.read_exact(&mut bytes) {
            Ok(()) => {
                self.offset += count as u64;
                Ok(Some(bytes))
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the next record; `None` if no complete one follows.
    fn record(
        &mut self,
        number: u32,
        running: &mut [u8; 32],
    ) -> std::io::Result<Option<(LogKind, Vec<u8>, LogPlace)>> {
        let Some(head) = self.take(RECORD_HEAD_BYTES)? else { return Ok(None) };
        let mut reader = Reader::new(&head);
        let (Ok(kind), Ok(length)) = (reader.u8(), reader.u32()) else { return Ok(None) };
        let Some(kind) = LogKind::of(kind).filter(|_| length as usize <= BLOCK_SIZE_MAX) else {
            return Ok(None);
        };
        let place = LogPlace { file: number, offset: self.offset, length };
        let Some(payload) = self.take(length as usize)? else { return Ok(None) };
        let Some(check) = self.take(CHECK_BYTES)? else { return Ok(None) };
        let after = continued(running, kind, &payload);
        if check != check_of(&after) {
            return Ok(None);
        }
        *running = after;
        Ok(Some((kind, payload, place)))
    }
}
