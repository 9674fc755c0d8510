//! Lines in, answers out, until the input ends.
//!
//! One answer for each line, written out before the next line is read. Whatever a line holds, the
//! next one is read; only a failure of the machine or a reader that has gone ends it.

use super::answer::Answer;
use super::lines::{LINE_BYTES_MAX, Line, Lines};
use super::request::Request;
use crate::failure::Failure;
use apus_chain::BlockHash;
use apus_sync::chainman::{ChainManager, ChainManagerError};
use std::io::{self, BufRead, ErrorKind, Write};
use std::path::Path;

/// Answers every line, and keeps what there is to keep.
pub(super) fn serve(
    input: impl BufRead,
    output: &mut impl Write,
    mut manager: ChainManager,
) -> Result<(), Failure> {
    let mut lines = Lines::new(input, LINE_BYTES_MAX);
    let mut number = 0;
    let broken = |error| Failure::io(Path::new("standard input"), error);
    while let Some(line) = lines.next().map_err(broken)? {
        number += 1;
        let answer = answer(&mut manager, number, line)?;
        if !write(output, &answer)? {
            break;
        }
    }
    Ok(manager.close()?)
}

fn answer(
    manager: &mut ChainManager,
    number: u64,
    line: Line,
) -> Result<Answer, ChainManagerError> {
    let request = match line {
        Line::Text(text) => Request::read(&text),
        Line::TooLong => {
            Err(format!("longer than {LINE_BYTES_MAX} bytes, which no block's line is"))
        }
    };
    match request {
        Ok(request) => obey(manager, number, request),
        Err(what) => Ok(Answer::error(number, &what, manager.tip().hash)),
    }
}

fn obey(
    manager: &mut ChainManager,
    number: u64,
    request: Request,
) -> Result<Answer, ChainManagerError> {
    let (known, hash) = match request {
        Request::Block(raw) => {
            let submission = manager.submit(raw)?;
            return Ok(Answer::block(submission, manager.tip().hash));
        }
        Request::SetMockTime(seconds) => {
            manager.set_mock_time(seconds);
            (true, BlockHash::ZERO)
        }
        Request::Invalidate(hash) => (manager.invalidate(&hash)?, hash),
        Request::Reconsider(hash) => (manager.reconsider(&hash)?, hash),
    };
    let tip = manager.tip().hash;
    Ok(match known {
        true => Answer::command(tip),
        false => Answer::error(number, &format!("there is no block {hash} here"), tip),
    })
}

/// Writes an answer out. False where the reader has gone.
fn write(output: &mut impl Write, answer: &Answer) -> Result<bool, Failure> {
    let failed = |error| Failure::io(Path::new("standard output"), error);
    let mut line = serde_json::to_vec(answer).map_err(|error| failed(io::Error::from(error)))?;
    line.push(b'\n');
    match output.write_all(&line).and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests;
