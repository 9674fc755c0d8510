//! `apus submit`: reads blocks from standard input, and writes a verdict on each to standard output.
//!
//! `docs/formats/submit.md` describes the protocol. The chain manager handles the blocks; this file sets it up, parses
//! lines and formats answers. It writes each answer before it reads the next line. An invalid line never ends the
//! program: only a failure of the machine does, or a reader that closes the pipe.

use crate::args::{SignatureArgs, verifier};
use crate::failure::{Failure, IO};
use crate::machine::{clock, threads};
use crate::print;
use crate::workdir::WorkFolder;
use apus_chain::{ActivationHeight, BlockHash, Network, Params};
use apus_engine::script::ScriptPool;
use apus_engine::utxo::store::{CoinsStore, DiskOptions, DiskStore, MemoryStore};
use apus_storage::{DirStorage, Storage};
use apus_sync::chainman::{
    ChainManager, ChainManagerError, LogState, LogSync, Submission, SubmitOutcome, TipCoins,
    ValidatedCoins,
};
use apus_sync::engines::in_order::{Chainstate, ChainstateOptions};
use apus_sync::{ErrorKind, LOCK};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Memory for coins that are not yet in the store, in bytes.
const CACHE_BYTES: u64 = 64 << 20;

/// Name of the coins' folder in the work folder.
const COINS: &str = "coins";

const EXAMPLES: &str = "\
Each line of standard input is a block in hexadecimal, or one of
  {\"setmocktime\": SECONDS}
  {\"invalidateblock\": \"HASH\"}
  {\"reconsiderblock\": \"HASH\"}
Apus answers each with one line of JSON:
  {\"hash\": …, \"result\": …, \"reason\": …, \"tip\": …}   for a block
  {\"tip\": …}                                          for a command
  {\"error\": …, \"tip\": …}                              for any other line
A result is accepted, rejected (with Bitcoin Core's reject reason), duplicate,
inconclusive or orphan. Apus checks every rule and runs every script, on every
chain.

Examples:
  The blocks of a node, one by one:
    for h in $(seq 1 $(bitcoin-cli -regtest getblockcount)); do
        bitcoin-cli -regtest getblock $(bitcoin-cli -regtest getblockhash $h) 0
    done | apus submit --chain regtest

  With other activation heights, and a state that is kept for the next time:
    apus submit --chain regtest --testactivationheight bip34@2 --workdir state \\
         < blocks.hex";

/// Arguments of `apus submit`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SubmitArgs {
    /// Chain: main, test, testnet4, signet or regtest
    #[arg(long, default_value = "main")]
    chain: Network,

    /// Folder for blocks, verdicts and coins; without it, they are kept in memory only
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,

    /// Activation height of a rule, on regtest: segwit, bip34, dersig, cltv or csv;
    /// may be repeated
    #[arg(long, value_name = "NAME@HEIGHT")]
    testactivationheight: Vec<ActivationHeight>,

    /// Threads that run scripts; 0 for one per core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    par: u16,

    #[command(flatten)]
    signatures: SignatureArgs,
}

/// Runs `apus submit`.
pub(crate) fn command(args: &SubmitArgs) -> Result<(), Failure> {
    let params = params(args)?;
    clock(&params)?;
    let threads = threads(args.par);
    let scripts = (args.signatures.checks(params.network)?)
        .pool(threads)
        .map_err(|error| Failure::usage(format!("cannot validate blocks: {error}")))?;
    // Hold the lock until the end, to keep other processes out.
    let mut _folder = None;
    let manager = match &args.workdir {
        None => in_memory(&params, Some(scripts))?,
        Some(path) => {
            let folder = WorkFolder::open(path)?;
            expect_ours(folder.storage(), path)?;
            folder.expect_own_content()?;
            folder.close_to_others(|_| true)?;
            _folder = Some(folder);
            let (manager, resumed) = on_disk(&params, path, scripts)?;
            tell(path, &manager, resumed);
            manager
        }
    };
    let stdin = BufReader::with_capacity(1 << 16, io::stdin());
    serve(stdin, &mut io::stdout().lock(), manager)
}

/// Returns the chain's rules, with the activation heights that the user changed.
fn params(args: &SubmitArgs) -> Result<Params, Failure> {
    let mut params = Params::of(args.chain).clone();
    if args.chain != Network::Regtest && !args.testactivationheight.is_empty() {
        return Err(Failure::usage(format!(
            "--testactivationheight needs --chain regtest: the rules of {} are fixed",
            args.chain
        )));
    }
    for &moved in &args.testactivationheight {
        params.activate(moved);
    }
    Ok(params)
}

/// Opens the manager's coins. Without a script pool, no scripts run.
fn coins(
    params: &Params,
    store: Arc<dyn CoinsStore>,
    scripts: Option<ScriptPool>,
) -> Result<Box<dyn TipCoins>, Failure> {
    let check_scripts = scripts.is_some();
    let options = ChainstateOptions { cache_bytes: CACHE_BYTES, prevout_threads: 0, scripts };
    let state = Chainstate::open(params, store, options)
        .map_err(|error| Failure::new(IO, error.to_string()))?;
    Ok(Box::new(ValidatedCoins::new(state, check_scripts)))
}

fn in_memory(params: &Params, scripts: Option<ScriptPool>) -> Result<ChainManager, Failure> {
    let coins = coins(params, Arc::new(MemoryStore::new()), scripts)?;
    Ok(ChainManager::in_memory(params, coins, verifier(params)?))
}

fn on_disk(
    params: &Params,
    path: &Path,
    scripts: ScriptPool,
) -> Result<(ChainManager, LogState), Failure> {
    let storage = DirStorage::private(path);
    let open_coins = |log: LogSync| {
        let folder = path.join(COINS);
        let store = DiskStore::open(&folder, params.network, DiskOptions::default())
            .map_err(|error| Failure::new(IO, error.to_string()))?;
        coins(params, log.before(Arc::new(store)), Some(scripts))
    };
    ChainManager::open(params, Arc::new(storage), verifier(params)?, open_coins)
}

/// Refuses a folder with files of another program.
fn expect_ours(storage: &DirStorage, path: &Path) -> Result<(), Failure> {
    let names = storage.names().map_err(|error| Failure::io(path, error))?;
    let is_ours = |name: &String| name == LOCK || name == COINS || name.starts_with("blocks-");
    match names.iter().find(|name| !is_ours(name)) {
        Some(name) => Err(Failure::usage(format!(
            "{} holds {name}, which is not a file of `apus submit`: use another --workdir. Apus creates the folder \
             if it is missing",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// Reports where an earlier start stopped.
fn tell(path: &Path, manager: &ChainManager, resumed: LogState) {
    if resumed.records > 0 {
        let tip = manager.tip();
        print::aside(format_args!(
            "apus: continuing from {} at block {} ({})",
            path.display(),
            tip.height,
            tip.hash
        ));
    }
    if resumed.torn_bytes > 0 {
        print::aside(format_args!(
            "apus: dropped {} bytes that an interrupted write left behind",
            resumed.torn_bytes
        ));
    }
}

impl From<ChainManagerError> for Failure {
    fn from(error: ChainManagerError) -> Self {
        match error.kind() {
            ErrorKind::Usage => Self::usage(error),
            _ => Failure::new(IO, error.to_string()),
        }
    }
}

/// Answers every line, then closes the manager, which saves its state.
fn serve(
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
    line: InputLine,
) -> Result<SubmitAnswer, ChainManagerError> {
    let request = match line {
        InputLine::Text(text) => SubmitRequest::read(&text),
        InputLine::TooLong => {
            Err(format!("longer than {LINE_BYTES_MAX} bytes, the limit for a block"))
        }
    };
    match request {
        Ok(request) => execute(manager, number, request),
        Err(what) => Ok(SubmitAnswer::error(number, &what, manager.tip().hash)),
    }
}

fn execute(
    manager: &mut ChainManager,
    number: u64,
    request: SubmitRequest,
) -> Result<SubmitAnswer, ChainManagerError> {
    let (known, hash) = match request {
        SubmitRequest::Block(raw) => {
            let submission = manager.submit(raw)?;
            return Ok(SubmitAnswer::block(submission, manager.tip().hash));
        }
        SubmitRequest::SetMockTime(seconds) => {
            manager.set_mock_time(seconds);
            (true, BlockHash::ZERO)
        }
        SubmitRequest::Invalidate(hash) => (manager.invalidate(&hash)?, hash),
        SubmitRequest::Reconsider(hash) => (manager.reconsider(&hash)?, hash),
    };
    let tip = manager.tip().hash;
    Ok(match known {
        true => SubmitAnswer::command(tip),
        false => SubmitAnswer::error(number, &format!("there is no block {hash}"), tip),
    })
}

/// Writes an answer. Returns false if the reader has closed the pipe.
fn write(output: &mut impl Write, answer: &SubmitAnswer) -> Result<bool, Failure> {
    let failed = |error| Failure::io(Path::new("standard output"), error);
    let mut line = serde_json::to_vec(answer).map_err(|error| failed(io::Error::from(error)))?;
    line.push(b'\n');
    match output.write_all(&line).and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Maximum length of a line in bytes: 8 million hexadecimal digits for a block of four million bytes, and as many
/// again, so that overlong blocks still get a verdict.
pub(super) const LINE_BYTES_MAX: usize = 16_000_000;

/// A line without its newline.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InputLine {
    /// A line within the limit.
    Text(Vec<u8>),
    /// A line over the limit, which was skipped.
    TooLong,
}

/// Reads a stream line by line.
pub(super) struct Lines<R> {
    input: R,
    bytes_max: usize,
}

impl<R: BufRead> Lines<R> {
    /// Creates a reader of lines with at most `bytes_max` bytes.
    pub(super) fn new(input: R, bytes_max: usize) -> Self {
        Self { input, bytes_max }
    }

    /// Reads the next line; returns `None` at the end. The last line may lack a newline.
    pub(super) fn next(&mut self) -> io::Result<Option<InputLine>> {
        let mut text = Vec::new();
        let mut fits = true;
        let mut any = false;
        loop {
            let part = match self.input.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if part.is_empty() && !any {
                return Ok(None);
            }
            any = true;
            let end = part.iter().position(|&byte| byte == b'\n');
            let content = &part[..end.unwrap_or(part.len())];
            fits &= text.len() + content.len() <= self.bytes_max;
            match fits {
                true => text.extend_from_slice(content),
                false => text = Vec::new(),
            }
            let (used, last) = (content.len() + usize::from(end.is_some()), part.is_empty());
            self.input.consume(used);
            if last || end.is_some() {
                return Ok(Some(if fits { InputLine::Text(text) } else { InputLine::TooLong }));
            }
        }
    }
}

/// One line of output.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum SubmitAnswer {
    /// Answer to a block.
    Block {
        /// The block's hash; `None` for bytes too short to have a header.
        hash: Option<String>,
        /// The verdict.
        result: &'static str,
        /// Why the block was rejected.
        reason: Option<String>,
        /// The tip after the line.
        tip: String,
    },
    /// Answer to a command.
    Command {
        /// The tip after the line.
        tip: String,
    },
    /// Answer to a line that is neither a block nor a valid command.
    Error {
        /// The error of the line.
        error: String,
        /// The tip, which is unchanged.
        tip: String,
    },
}

impl SubmitAnswer {
    /// Creates the answer to a block.
    pub(super) fn block(submission: Submission, tip: BlockHash) -> Self {
        let (result, reason) = match submission.outcome {
            SubmitOutcome::Accepted => ("accepted", None),
            SubmitOutcome::Rejected { reason } => ("rejected", Some(reason)),
            SubmitOutcome::Duplicate => ("duplicate", None),
            SubmitOutcome::Inconclusive => ("inconclusive", None),
            SubmitOutcome::Orphan => ("orphan", None),
        };
        let hash = submission.hash.map(|hash| hash.to_string());
        Self::Block { hash, result, reason, tip: tip.to_string() }
    }

    /// Creates the answer to a command.
    pub(super) fn command(tip: BlockHash) -> Self {
        Self::Command { tip: tip.to_string() }
    }

    /// Creates the answer to an invalid line.
    pub(super) fn error(number: u64, what: &str, tip: BlockHash) -> Self {
        Self::Error { error: format!("line {number}: {what}"), tip: tip.to_string() }
    }
}

/// A parsed line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SubmitRequest {
    /// A block, or bytes that may not be one.
    Block(Vec<u8>),
    /// Sets the current time, which decides whether headers are too new; 0 uses the machine's clock.
    SetMockTime(i64),
    /// Marks a block as invalid.
    Invalidate(BlockHash),
    /// Makes the manager validate a block again.
    Reconsider(BlockHash),
}

impl SubmitRequest {
    /// Parses a line. The error describes the problem.
    pub(super) fn read(line: &[u8]) -> Result<Self, String> {
        let line = line.trim_ascii();
        match line.first() {
            None => Err("the line is empty".to_owned()),
            Some(b'{') => Self::command(line),
            Some(_) => bytes(line).map(Self::Block),
        }
    }

    fn command(line: &[u8]) -> Result<Self, String> {
        let object: Map<String, Value> =
            serde_json::from_slice(line).map_err(|error| format!("not a JSON object: {error}"))?;
        let mut fields = object.iter();
        let (Some((name, value)), None) = (fields.next(), fields.next()) else {
            return Err(format!(
                "a command is an object with one field, this has {}",
                object.len()
            ));
        };
        match name.as_str() {
            "setmocktime" => match value.as_i64() {
                Some(seconds @ 0..) => Ok(Self::SetMockTime(seconds)),
                _ => Err(format!(
                    "setmocktime takes seconds since 1970, 0 or more, not {}",
                    shortened(value)
                )),
            },
            "invalidateblock" => hash(name, value).map(Self::Invalidate),
            "reconsiderblock" => hash(name, value).map(Self::Reconsider),
            _ => Err(format!(
                "there is no command {}: use setmocktime, invalidateblock or reconsiderblock",
                shortened(&Value::from(name.as_str()))
            )),
        }
    }
}

fn hash(name: &str, value: &Value) -> Result<BlockHash, String> {
    let parsed = value.as_str().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| {
        format!("{name} takes the hash of a block, 64 hexadecimal digits, not {}", shortened(value))
    })
}

/// Formats a value; cuts it if it is long.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Parses hexadecimal digits.
fn bytes(digits: &[u8]) -> Result<Vec<u8>, String> {
    let nibble = |at: usize| {
        char::from(digits[at]).to_digit(16).ok_or_else(|| {
            format!("not a block in hexadecimal: character {} is not a digit", at + 1)
        })
    };
    let pairs =
        (0..digits.len() / 2).map(|at| Ok((nibble(2 * at)? * 16 + nibble(2 * at + 1)?) as u8));
    let bytes = pairs.collect::<Result<Vec<u8>, String>>()?;
    match digits.len() % 2 {
        0 => Ok(bytes),
        _ => nibble(digits.len() - 1)
            .and(Err("not a block in hexadecimal: an odd number of digits".to_owned())),
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod line_tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::BufReader;

    /// Returns all lines; `None` for lines that are too long.
    fn lines(input: &[u8], buffer: usize) -> Vec<Option<Vec<u8>>> {
        let mut lines = Lines::new(BufReader::with_capacity(buffer, input), 4);
        std::iter::from_fn(|| lines.next().unwrap())
            .map(|line| match line {
                InputLine::Text(text) => Some(text),
                InputLine::TooLong => None,
            })
            .collect()
    }

    #[test]
    fn buffer_size_does_not_change_where_lines_end() {
        let text = |text: &str| Some(text.as_bytes().to_vec());
        for buffer in 1..9 {
            assert_eq!(lines(b"", buffer), []);
            assert_eq!(lines(b"\n", buffer), [text("")]);
            assert_eq!(lines(b"ab\n\ncdef", buffer), [text("ab"), text(""), text("cdef")]);
            assert_eq!(
                lines(b"abcde\nabcd\nabcdefghi\nx\n", buffer),
                [None, text("abcd"), None, text("x")]
            );
        }
    }

    fn read(line: &str) -> Result<SubmitRequest, String> {
        SubmitRequest::read(line.as_bytes())
    }

    fn complains(line: &str, about: &str) {
        let error = read(line).unwrap_err();
        assert!(error.contains(about), "{line:.100}: {error}");
        assert!(error.len() < 300);
    }

    const HASH: &str = "0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206";

    #[test]
    fn commands_are_objects_with_one_field() {
        let hash: BlockHash = HASH.parse().unwrap();
        assert_eq!(read("{\"setmocktime\": 0}"), Ok(SubmitRequest::SetMockTime(0)));
        assert_eq!(read(" {\"setmocktime\":5}\r"), Ok(SubmitRequest::SetMockTime(5)));
        let invalidate = format!("{{\"invalidateblock\": \"{HASH}\"}}");
        assert_eq!(read(&invalidate), Ok(SubmitRequest::Invalidate(hash)));
        let reconsider = format!("{{\"reconsiderblock\": \"{HASH}\"}}");
        assert_eq!(read(&reconsider), Ok(SubmitRequest::Reconsider(hash)));
        complains("{}", "this has 0");
        complains("{\"setmocktime\": 1, \"invalidateblock\": 2}", "this has 2");
        for bad in ["-1", "1.5", "\"1\"", "null", "9223372036854775808"] {
            complains(&format!("{{\"setmocktime\": {bad}}}"), "seconds since 1970");
        }
        complains("{\"invalidateblock\": \"12\"}", "not \"12\"");
        complains(&format!("{{\"reconsiderblock\": [\"{}\"]}}", "é".repeat(1000)), "…");
        complains(&format!("{{\"{}\": 1}}", "x".repeat(1000)), "there is no command");
        complains("{\"setmocktime\": 0", "not a JSON object");
        complains(&"{\"a\":".repeat(100_000), "not a JSON object");
    }

    #[test]
    fn every_line_but_a_command_is_a_block() {
        assert_eq!(read("00fFa1"), Ok(SubmitRequest::Block(vec![0, 255, 0xa1])));
        complains("", "empty");
        complains(" \r", "empty");
        complains("0g", "character 2");
        complains("000", "odd number");
        complains("00x", "character 3");
        complains("[1]", "character 1");
        complains("0 0", "character 2");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(line in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Err(error) = SubmitRequest::read(&line) {
                prop_assert!(!error.is_empty());
            }
        }

        #[test]
        fn hexadecimal_round_trips(block in proptest::collection::vec(any::<u8>(), 1..100)) {
            let text: String = block.iter().map(|byte| format!("{byte:02x}")).collect();
            prop_assert_eq!(read(&text), Ok(SubmitRequest::Block(block)));
        }
    }
}
