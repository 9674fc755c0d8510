//! `apus submit`: blocks from standard input, a verdict on each to standard output.
//!
//! The protocol: `docs/formats/submit.md`. Everything about blocks is the chain manager's; here is
//! the set-up, and the words. One answer for each line is written out before the next line is read. Whatever a line holds, the
//! next one is read; only a failure of the machine or a reader that has gone ends it.

use crate::failure::{Failure, IO};
use crate::machine::{clock, threads};
use crate::print;
use crate::workdir::WorkFolder;
use apus_chain::{ActivationHeight, BlockHash, Network, Params};
use apus_engine::script::{ScriptPool, script_verifier};
use apus_engine::utxo::store::{CoinsStore, DiskOptions, DiskStore, MemoryStore};
use apus_storage::{DirStorage, Storage};
use apus_sync::chainman::{
    ChainManager, ChainManagerError, LogSync, Resumed, Submission, SubmitOutcome, TipCoins,
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

/// Memory for coins before they are written to the store.
const CACHE_BYTES: u64 = 64 << 20;

/// Folder of the coins in the work folder.
const COINS: &str = "coins";

const EXAMPLES: &str = "\
Each line of standard input is a block in hexadecimal, or one of
  {\"setmocktime\": SECONDS}
  {\"invalidateblock\": \"HASH\"}
  {\"reconsiderblock\": \"HASH\"}
and is answered by one line of JSON:
  {\"hash\": …, \"result\": …, \"reason\": …, \"tip\": …}   for a block
  {\"tip\": …}                                          for a command
  {\"error\": …, \"tip\": …}                              for a line that is neither
A result is accepted, rejected (with Bitcoin Core's reject reason), duplicate,
inconclusive or orphan. Apus checks every rule and runs every script, on every
chain.

Examples:
  The blocks of a node, one by one:
    for h in $(seq 1 $(bitcoin-cli -regtest getblockcount)); do
        bitcoin-cli -regtest getblock $(bitcoin-cli -regtest getblockhash $h) 0
    done | apus submit --chain regtest

  Rules from other heights on, and a state that is kept for the next time:
    apus submit --chain regtest --testactivationheight bip34@2 --workdir state \\
         < blocks.hex";

/// Arguments of `apus submit`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SubmitArgs {
    /// Which chain: main, test, testnet4, signet or regtest
    #[arg(long, default_value = "main")]
    chain: Network,

    /// Folder that keeps blocks, verdicts and coins; in memory only if not given
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,

    /// A rule and the height from which it holds, on regtest: segwit, bip34, dersig, cltv or csv;
    /// may be given more than once
    #[arg(long, value_name = "NAME@HEIGHT")]
    testactivationheight: Vec<ActivationHeight>,

    /// Threads that run scripts; 0 for one on each core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    par: u16,
}

/// Runs `apus submit`.
pub(crate) fn command(args: &SubmitArgs) -> Result<(), Failure> {
    let params = params(args)?;
    clock(&params)?;
    let threads = threads(args.par);
    let scripts = ScriptPool::new(threads)
        .map_err(|error| Failure::usage(format!("no block can be judged: {error}")))?;
    // Held until the end: it keeps others out.
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

/// The chain's rules, moved where that is asked for.
fn params(args: &SubmitArgs) -> Result<Params, Failure> {
    let mut params = Params::of(args.chain).clone();
    if args.chain != Network::Regtest && !args.testactivationheight.is_empty() {
        return Err(Failure::usage(format!(
            "--testactivationheight is for --chain regtest; the rules of {} are what they are",
            args.chain
        )));
    }
    for &moved in &args.testactivationheight {
        params.activate(moved);
    }
    Ok(params)
}

/// The coins of a manager. Without a pool for scripts none are run.
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

/// Signet's blocks carry a script of their own.
fn verifier(params: &Params) -> Result<Option<Box<dyn apus_chain::ScriptVerifier>>, Failure> {
    match params.signet_challenge {
        Some(_) => script_verifier().map(Some).map_err(Failure::usage),
        None => Ok(None),
    }
}

fn in_memory(params: &Params, scripts: Option<ScriptPool>) -> Result<ChainManager, Failure> {
    let coins = coins(params, Arc::new(MemoryStore::new()), scripts)?;
    Ok(ChainManager::in_memory(params, coins, verifier(params)?))
}

fn on_disk(
    params: &Params,
    path: &Path,
    scripts: ScriptPool,
) -> Result<(ChainManager, Resumed), Failure> {
    let storage = DirStorage::private(path);
    let open_coins = |log: LogSync| {
        let folder = path.join(COINS);
        let store = DiskStore::open(&folder, params.network, DiskOptions::default())
            .map_err(|error| Failure::new(IO, error.to_string()))?;
        coins(params, log.before(Arc::new(store)), Some(scripts))
    };
    ChainManager::open(params, Arc::new(storage), verifier(params)?, open_coins)
}

/// Refuses a folder that something else uses.
fn expect_ours(storage: &DirStorage, path: &Path) -> Result<(), Failure> {
    let names = storage.names().map_err(|error| Failure::io(path, error))?;
    let is_ours = |name: &String| name == LOCK || name == COINS || name.starts_with("blocks-");
    match names.iter().find(|name| !is_ours(name)) {
        Some(name) => Err(Failure::usage(format!(
            "{} holds {name}, which is none of the files that are kept here: name another \
             --workdir, which need not be there yet",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// Tells where an earlier start stopped.
fn tell(path: &Path, manager: &ChainManager, resumed: Resumed) {
    if resumed.records > 0 {
        let tip = manager.tip();
        print::aside(format_args!(
            "apus: going on from {} at block {} ({})",
            path.display(),
            tip.height,
            tip.hash
        ));
    }
    if resumed.torn_bytes > 0 {
        print::aside(format_args!(
            "apus: {} bytes that an earlier end left unfinished were left out",
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

/// Answers every line, and keeps what there is to keep.
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
            Err(format!("longer than {LINE_BYTES_MAX} bytes, which no block's line is"))
        }
    };
    match request {
        Ok(request) => obey(manager, number, request),
        Err(what) => Ok(SubmitAnswer::error(number, &what, manager.tip().hash)),
    }
}

fn obey(
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
        false => SubmitAnswer::error(number, &format!("there is no block {hash} here"), tip),
    })
}

/// Writes an answer out. False where the reader has gone.
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

/// Greatest length of a line in bytes: twice the bytes of a block of four million, and as much
/// again for blocks that are to be refused for being too long.
pub(super) const LINE_BYTES_MAX: usize = 16_000_000;

/// One line, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InputLine {
    /// A line that fits.
    Text(Vec<u8>),
    /// A line that does not. It was read over.
    TooLong,
}

/// Reads a stream line by line.
pub(super) struct Lines<R> {
    input: R,
    bytes_max: usize,
}

impl<R: BufRead> Lines<R> {
    /// Lines of at most `bytes_max` bytes.
    pub(super) fn new(input: R, bytes_max: usize) -> Self {
        Self { input, bytes_max }
    }

    /// The next line, none at the end. A last line may lack its end.
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
    /// To a block.
    Block {
        /// Its hash; none for bytes too short to have a header.
        hash: Option<String>,
        /// What became of it.
        result: &'static str,
        /// Why it was rejected.
        reason: Option<String>,
        /// The tip now.
        tip: String,
    },
    /// To a command.
    Command {
        /// The tip now.
        tip: String,
    },
    /// To a line that asks for nothing that can be done.
    Error {
        /// What is wrong.
        error: String,
        /// The tip, as it was before.
        tip: String,
    },
}

impl SubmitAnswer {
    /// The answer to a block.
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

    /// The answer to a command.
    pub(super) fn command(tip: BlockHash) -> Self {
        Self::Command { tip: tip.to_string() }
    }

    /// The answer to line `number` where something is wrong with it.
    pub(super) fn error(number: u64, what: &str, tip: BlockHash) -> Self {
        Self::Error { error: format!("line {number}: {what}"), tip: tip.to_string() }
    }
}

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SubmitRequest {
    /// A block, or bytes that should be one.
    Block(Vec<u8>),
    /// The time against which headers may be too new; 0 for the machine's clock.
    SetMockTime(i64),
    /// A block is to count as invalid.
    Invalidate(BlockHash),
    /// A block is to be judged again.
    Reconsider(BlockHash),
}

impl SubmitRequest {
    /// Reads a line. An error says what is wrong with it.
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
            serde_json::from_slice(line).map_err(|error| format!("no JSON object: {error}"))?;
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

/// A value as it was given, or the beginning of it.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Reads hexadecimal digits.
fn bytes(digits: &[u8]) -> Result<Vec<u8>, String> {
    let nibble = |at: usize| {
        char::from(digits[at])
            .to_digit(16)
            .ok_or_else(|| format!("no block in hexadecimal: character {} is no digit", at + 1))
    };
    let pairs =
        (0..digits.len() / 2).map(|at| Ok((nibble(2 * at)? * 16 + nibble(2 * at + 1)?) as u8));
    let bytes = pairs.collect::<Result<Vec<u8>, String>>()?;
    match digits.len() % 2 {
        0 => Ok(bytes),
        _ => nibble(digits.len() - 1)
            .and(Err("no block in hexadecimal: an odd number of digits".to_owned())),
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod line_tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::BufReader;

    /// All lines, `None` for those that are too long.
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
    fn lines_end_where_they_end_however_they_arrive() {
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
        complains("{\"setmocktime\": 0", "no JSON object");
        complains(&"{\"a\":".repeat(100_000), "no JSON object");
    }

    #[test]
    fn everything_else_is_a_block() {
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
        fn hexadecimal_is_read_back(block in proptest::collection::vec(any::<u8>(), 1..100)) {
            let text: String = block.iter().map(|byte| format!("{byte:02x}")).collect();
            prop_assert_eq!(read(&text), Ok(SubmitRequest::Block(block)));
        }
    }
}
