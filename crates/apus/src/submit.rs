//! `apus submit`: blocks from standard input, a verdict on each to standard output.
//!
//! The protocol: `docs/formats/submit.md`. Everything about blocks is the chain manager's; here is
//! the set-up, and the words. One answer for each line is written out before the next line is read. Whatever a line holds, the
//! next one is read; only a failure of the machine or a reader that has gone ends it.

mod lines;

use crate::failure::{Failure, IO};
use crate::machine::{clock, threads};
use crate::print;
use crate::workdir::WorkFolder;
use apus_chain::{ActivationHeight, BlockHash, Network, Params};
use apus_engine::script::{ScriptPool, script_verifier};
use apus_engine::utxo::store::{CoinsStore, DiskOptions, DiskStore, MemoryStore};
use apus_storage::{DirStorage, Storage};
use apus_sync::chainman::{
    ChainManager, ChainManagerError, LogSync, Resumed, TipCoins, ValidatedCoins,
};
use apus_sync::engines::in_order::{Chainstate, ChainstateOptions};
use apus_sync::{ErrorKind, LOCK};
use clap::Args;
use lines::{InputLine, LINE_BYTES_MAX, Lines, SubmitAnswer, SubmitRequest};
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

#[cfg(test)]
mod tests;
