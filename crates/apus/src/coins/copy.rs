//! `apus coins get` looks up a batch of coins and prints them as JSON (`docs/remote-coins.md`). `apus coins copy`
//! copies a whole set of coins to servers, from a file, a node or other servers.
//!
//! A copy walks the source twice: first to check that it is complete and to compute its MuHash, then to copy it as one
//! flush of a new store. So a stopped or killed copy leaves the store either empty or complete. If it is empty,
//! rerunning the command starts from scratch; if it is complete, the command continues with reading back and comparing.
//! A store with other coins is refused.

use super::servers::{AccessArgs, place, store_failure};
use crate::failure::{Failure, INTERRUPTED};
use crate::machine::watch_signals;
use crate::print::{self, hex};
use apus_chain::{
    BlockHash, Coin, Height, KnownBlock, MuHashBatch, Network, OutPoint, Params, Txid, UtxoSetHash,
    write_utxo_element,
};
use apus_coins::{Access, CoinsReader, StoreUrl};
use apus_datadir::chainstate::read_node;
use apus_datadir::snapshot::SnapshotReader;
use apus_engine::connect::UndoBytes;
use apus_engine::utxo::store::{EachChange, OWN_RECORD, UndoRecord};
use apus_engine::utxo::{Changes, CoinBytes, CoinsStore, Flush, StoreError};
use apus_sync::numbers::grouped;
use clap::Args;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval between a walk's progress messages.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Number of coins between two checks of the clock and of signals.
const LOOK_EVERY: u64 = 1 << 14;

const COPY_EXAMPLES: &str = "\
Examples:
  A snapshot, for indexers that read it from a database:
    apus coins copy --from snapshot:utxo.dat --to postgres://me@db/coins/main

  The coins of a stopped node, to three servers of a Redis Cluster:
    apus coins copy --from chainstate:/srv/bitcoin/chainstate \\
         --to redis://10.0.0.1:6379,10.0.0.2:6379,10.0.0.3:6379/main

Set the password in the environment variable APUS_COINS_PASSWORD.";

#[derive(Args)]
#[command(after_help = COPY_EXAMPLES)]
pub(crate) struct CopyArgs {
    /// Source of the coins: snapshot:FILE, chainstate:DIR of a node, or the URL of a store, as for --to
    #[arg(long, value_name = "SOURCE")]
    from: String,

    /// Target of the coins: a store without coins. See --coins of `apus sync --help`
    #[arg(long, value_name = "URL")]
    to: String,

    #[command(flatten)]
    access: AccessArgs,

    /// Which chain: main, test, testnet4, signet or regtest
    #[arg(long, default_value = "main")]
    chain: Network,
}

/// Runs `apus coins copy`.
pub(super) fn copy(args: &CopyArgs) -> Result<(), Failure> {
    let interrupt = watch_signals()?;
    // clap quotes a value that it rejects, and this one may contain a password, so it is parsed here.
    let from = args.from.parse::<SourceArg>();
    let from = from.map_err(|why| Failure::usage(format!("the value of --from: {why}")))?;
    let place = place("--to", &args.to)?;
    if let SourceArg::Store(from) = &from
        && *from == place
    {
        return Err(Failure::usage("--from and --to are the same store"));
    }
    let from_place = match &from {
        SourceArg::Store(from) => Some(from),
        _ => None,
    };
    let places: Vec<&StoreUrl> = from_place.into_iter().chain([&place]).collect();
    let access = args.access.access(&places)?;
    let source = CoinsSource::open(&from, args.chain, &access)?;
    let (base, expected) = scan(&source, &interrupt)?;
    let tip = KnownBlock { height: height_of(args.chain, base, &expected), hash: base.hash };

    let store =
        apus_coins::open(&place, args.chain, &access).map_err(|error| store_failure(&error))?;
    match store.tip().map_err(|error| store_failure(&error))? {
        None => write(&source, &*store, tip, &interrupt)?,
        Some(there) if there == tip => {
            print::aside(format_args!("{place} already has the coins of block {}", tip.hash));
        }
        Some(there) => {
            return Err(Failure::usage(format!(
                "{place} already has the coins of block {} ({}): use another NAME at the end of --to",
                there.height, there.hash
            )));
        }
    }

    let mut walk = CoinsWalk::new("read back", &interrupt);
    let target = CoinsSource::Store(store);
    target.walk(&mut |outpoint, coin| walk.step(|summing| summing.push(outpoint, coin)))?;
    let found = walk.finish();
    if found != expected {
        return Err(Failure::wrong(format!(
            "{place} now has {} coins with muhash {}, but the source has {} with {}: remove the store and copy \
             again",
            grouped(found.coins),
            found.muhash,
            grouped(expected.coins),
            expected.muhash
        )));
    }
    print::facts([
        ("to", place.to_string()),
        ("block", format!("{} {}", tip.height, tip.hash)),
        ("coins", grouped(found.coins)),
        ("muhash", found.muhash.to_string()),
    ])
}

/// Walks the source; returns the coins' block, and their sums.
fn scan(source: &CoinsSource, interrupt: &AtomicBool) -> Result<(BaseBlock, Summary), Failure> {
    let mut walk = CoinsWalk::new("checked", interrupt);
    let base =
        source.walk(&mut |outpoint, coin| walk.step(|summing| summing.push(outpoint, coin)))?;
    Ok((base, walk.finish()))
}

/// Returns the height of the block: from the source, or from Core's assumeutxo table. Otherwise takes the height of the
/// highest coin, since no coinbase of the last 100 blocks can be spent. If the block has no coin in the set, this is
/// wrong, and Apus cannot detect it.
fn height_of(network: Network, base: BaseBlock, summary: &Summary) -> u32 {
    let params = Params::of(network);
    let known = || params.assumeutxo.iter().find(|known| known.block_hash == base.hash);
    let height = base.height.or_else(|| known().map(|known| known.height));
    height.unwrap_or(summary.height_max)
}

fn write(
    source: &CoinsSource,
    store: &dyn CoinsStore,
    tip: KnownBlock,
    interrupt: &AtomicBool,
) -> Result<(), Failure> {
    let changes = All { source, interrupt, failure: Mutex::new(None) };
    // With the record of the sync that made the coins, a later sync can prove the copy.
    let record = match source {
        CoinsSource::Store(store) => store.undo(&OWN_RECORD.hash),
        CoinsSource::Snapshot(..) | CoinsSource::Chainstate(_) => Ok(None),
    };
    let record = record.map_err(|error| store_failure(&error))?.map(|bytes| UndoRecord {
        block: OWN_RECORD,
        bytes: UndoBytes::default().followed_by(&bytes),
    });
    let undo: Vec<UndoRecord> = record.into_iter().collect();
    let flush = Flush { tip, changes: &changes, undo: &undo, undo_from: tip.height };
    let written = store.write(&flush);
    match (changes.failure.into_inner(), written) {
        (Some(failure), _) => Err(failure),
        (None, written) => written.map_err(|error| store_failure(&error)),
    }
}

/// All coins of a source, as the changes that fill a new store.
struct All<'a> {
    source: &'a CoinsSource,
    interrupt: &'a AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl Changes for All<'_> {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        let mut walk = CoinsWalk::new("copied", self.interrupt);
        let mut refused = None;
        let mut give: Box<Each<'_>> = Box::new(|outpoint, coin| {
            walk.step(|summing| summing.count())?;
            each(outpoint, Some(coin)).map_err(|error| {
                let failure = store_failure(&error);
                refused = Some(error);
                failure
            })
        });
        let walked = self.source.walk(&mut *give);
        drop(give);
        match (refused, walked) {
            (Some(error), _) => Err(error),
            (None, Ok(_)) => Ok(()),
            (None, Err(failure)) => {
                *self.failure.lock() = Some(failure);
                Err(StoreError::Stopped)
            }
        }
    }
}

/// A walk over all coins that prints its progress and stops when the user interrupts it.
struct CoinsWalk<'a> {
    what: &'static str,
    interrupt: &'a AtomicBool,
    reported_at: Instant,
    summing: SummaryBuilder,
}

impl<'a> CoinsWalk<'a> {
    fn new(what: &'static str, interrupt: &'a AtomicBool) -> Self {
        Self { what, interrupt, reported_at: Instant::now(), summing: SummaryBuilder::new() }
    }

    fn step(&mut self, push: impl FnOnce(&mut SummaryBuilder)) -> Result<(), Failure> {
        push(&mut self.summing);
        let coins = self.summing.coins();
        if coins.is_multiple_of(LOOK_EVERY) {
            if self.interrupt.load(Ordering::Relaxed) {
                return Err(interrupted());
            }
            if self.reported_at.elapsed() >= REPORT_EVERY {
                self.reported_at = Instant::now();
                print::aside(format_args!("{} coins {}", grouped(coins), self.what));
            }
        }
        Ok(())
    }

    fn finish(self) -> Summary {
        self.summing.finish()
    }
}

const GET_EXAMPLES: &str = "\
Examples:
  Check whether coins are unspent, during a sync or after it:
    apus coins get --coins redis://10.0.0.1:6379/main TXID:0 TXID:1

Set the password in the environment variable APUS_COINS_PASSWORD.";

#[derive(Args)]
#[command(after_help = GET_EXAMPLES)]
pub(crate) struct GetArgs {
    /// The coins, each as TXID:VOUT
    #[arg(required = true, value_name = "OUTPOINT")]
    outpoints: Vec<String>,

    /// The store, as for --coins of `apus sync --help`. Look-ups do not block a writer
    #[arg(long, value_name = "URL")]
    coins: String,

    #[command(flatten)]
    access: AccessArgs,

    /// Which chain: main, test, testnet4, signet or regtest
    #[arg(long, default_value = "main")]
    chain: Network,
}

/// Runs `apus coins get`.
pub(super) fn get(args: &GetArgs) -> Result<(), Failure> {
    let wanted = outpoints(&args.outpoints)?;
    let place = place("--coins", &args.coins)?;
    let access = args.access.access(&[&place])?;
    let reader =
        CoinsReader::open(&place, args.chain, &access).map_err(|error| store_failure(&error))?;
    let seen = reader.look_up(&wanted).map_err(|error| store_failure(&error))?;
    let coins: Vec<Value> = wanted.iter().zip(&seen.coins).map(coin_json).collect();
    let (height, hash) = (seen.tip.height, seen.tip.hash.to_string());
    let answer =
        json!({ "chain": args.chain.to_string(), "height": height, "hash": hash, "coins": coins });
    print::result(format_args!("{answer:#}"))
}

/// Formats an outpoint and its coin; null if the coin does not exist.
fn coin_json((outpoint, coin): (&OutPoint, &Option<CoinBytes>)) -> Value {
    let coin = coin.as_ref().map(|coin| {
        let coin = coin.coin();
        let coin = coin.as_ref();
        let script = hex(coin.script);
        json!({
            "height": coin.height,
            "coinbase": coin.coinbase,
            "amount_sat": coin.amount,
            "script_pubkey": script,
        })
    });
    json!({ "txid": outpoint.txid.to_string(), "vout": outpoint.vout, "coin": coin })
}

/// Parses the coins. clap would quote an invalid one, which may be the URL of a store with a password.
fn outpoints(texts: &[String]) -> Result<Vec<OutPoint>, Failure> {
    let read = |(text, number): (&String, usize)| {
        let wrong = || format!("OUTPOINT {number}: use TXID:VOUT, with the txid as 64 hex digits");
        outpoint(text).ok_or_else(|| Failure::usage(wrong()))
    };
    texts.iter().zip(1..).map(read).collect()
}

fn outpoint(text: &str) -> Option<OutPoint> {
    text.split_once(':').and_then(|(txid, vout)| {
        // Only digits: `parse` would also accept a plus sign.
        let digits = vout.bytes().all(|byte| byte.is_ascii_digit());
        let vout = vout.parse().ok().filter(|_| digits)?;
        Some(OutPoint { txid: txid.parse::<Txid>().ok()?, vout })
    })
}

// ---- sources of coins ----

/// Upper bound on the memory of one transaction's coins, since its outputs fit into a block.
const TRANSACTION_BYTES_MAX: usize = 16 << 20;

/// A source of coins from the command line.
#[derive(Debug, Clone)]
enum SourceArg {
    Snapshot(PathBuf),
    Chainstate(PathBuf),
    Store(StoreUrl),
}

impl FromStr for SourceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("snapshot", path)) if !path.is_empty() => Ok(Self::Snapshot(path.into())),
            Some(("chainstate", path)) if !path.is_empty() => Ok(Self::Chainstate(path.into())),
            _ => text.parse().map(Self::Store).map_err(|error| {
                format!("use snapshot:FILE, chainstate:DIR or the URL of a store: {error}")
            }),
        }
    }
}

/// An open source of a set of coins, which can be walked repeatedly. A walk passes coins in ascending order of
/// outpoint, also where the source orders a transaction's coins differently.
enum CoinsSource {
    Snapshot(PathBuf, Network),
    Chainstate(PathBuf),
    Store(Arc<dyn CoinsStore>),
}

/// Receives coins one by one.
type Each<'a> = dyn FnMut(&OutPoint, &CoinBytes) -> Result<(), Failure> + 'a;

/// Sums over a set of coins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Summary {
    coins: u64,
    /// The height of the highest coin.
    height_max: Height,
    muhash: UtxoSetHash,
}

impl CoinsSource {
    /// Opens the source. A store is locked against other writers while it is open.
    fn open(arg: &SourceArg, network: Network, access: &Access) -> Result<Self, Failure> {
        Ok(match arg {
            SourceArg::Snapshot(path) => Self::Snapshot(path.clone(), network),
            SourceArg::Chainstate(path) => Self::Chainstate(path.clone()),
            SourceArg::Store(place) => {
                // A mistyped name is an error, not a new store.
                let store = apus_coins::open_existing(place, network, access);
                Self::Store(store.map_err(|error| store_failure(&error))?)
            }
        })
    }

    /// Passes all coins to `each`; returns the coins' block.
    fn walk(&self, each: &mut Each<'_>) -> Result<BaseBlock, Failure> {
        let of = |hash| BaseBlock { hash, height: None };
        match self {
            Self::Snapshot(path, network) => snapshot(path, *network, each).map(of),
            Self::Chainstate(path) => chainstate(path, each).map(of),
            Self::Store(store) => walk_store(&**store, each),
        }
    }
}

/// A block, with its height if the source has it.
#[derive(Debug, Clone, Copy)]
struct BaseBlock {
    hash: BlockHash,
    height: Option<Height>,
}

/// Passes all coins of a store to `each`.
fn walk_store(store: &dyn CoinsStore, each: &mut Each<'_>) -> Result<BaseBlock, Failure> {
    let tip = store.tip().map_err(|error| store_failure(&error))?;
    let tip =
        tip.ok_or_else(|| Failure::usage("--from: the store has no coins: check its NAME"))?;
    let mut failure = None;
    let walked = store.for_each(&mut |outpoint, coin| {
        each(outpoint, coin).map_err(|error| {
            failure = Some(error);
            StoreError::Stopped
        })
    });
    match (failure, walked) {
        (Some(failure), _) => Err(failure),
        (None, Err(error)) => Err(store_failure(&error)),
        (None, Ok(())) => Ok(BaseBlock { hash: tip.hash, height: Some(tip.height) }),
    }
}

/// The coins of one transaction, collected for sorting.
#[derive(Default)]
struct CoinGroup {
    coins: Vec<(OutPoint, CoinBytes)>,
    bytes: usize,
}

impl CoinGroup {
    fn take(
        &mut self,
        outpoint: OutPoint,
        coin: CoinBytes,
        each: &mut Each<'_>,
    ) -> Result<(), Failure> {
        if self.coins.last().is_some_and(|(last, _)| last.txid != outpoint.txid) {
            self.flush(each)?;
        }
        self.bytes += size_of::<(OutPoint, CoinBytes)>() + coin.heap_bytes();
        if self.bytes > TRANSACTION_BYTES_MAX {
            let txid = outpoint.txid;
            return Err(Failure::wrong(format!(
                "transaction {txid} has more coins than fit into a block: the set is damaged"
            )));
        }
        self.coins.push((outpoint, coin));
        Ok(())
    }

    fn flush(&mut self, each: &mut Each<'_>) -> Result<(), Failure> {
        self.bytes = 0;
        self.coins.sort_unstable_by_key(|(outpoint, _)| *outpoint);
        self.coins.drain(..).try_for_each(|(outpoint, coin)| each(&outpoint, &coin))
    }
}

fn snapshot(path: &Path, network: Network, each: &mut Each<'_>) -> Result<BlockHash, Failure> {
    let about = |error| Failure::of_snapshot(path, &error);
    let file = File::open(path).map_err(|error| Failure::io(path, error))?;
    let mut reader = SnapshotReader::new(file, Some(network)).map_err(about)?;
    let mut group = CoinGroup::default();
    while let Some(next) = reader.next_coin().map_err(about)? {
        let coin = coin_of(next.bytes)?;
        group.take(next.outpoint, coin, each)?;
    }
    group.flush(each)?;
    Ok(reader.header().base_hash)
}

fn chainstate(path: &Path, each: &mut Each<'_>) -> Result<BlockHash, Failure> {
    let mut group = CoinGroup::default();
    let read = read_node(path, &mut |outpoint, bytes| {
        coin_of(bytes).and_then(|coin| group.take(outpoint, coin, each))
    })?;
    group.flush(each)?;
    Ok(read.best)
}

fn coin_of(bytes: &[u8]) -> Result<CoinBytes, Failure> {
    // Both readers return coins in their canonical form.
    CoinBytes::read(bytes).map_err(Failure::wrong)
}

/// Sums up coins one by one.
struct SummaryBuilder {
    coins: u64,
    height_max: Height,
    muhash: MuHashBatch,
    element: Vec<u8>,
}

impl SummaryBuilder {
    fn new() -> Self {
        Self { coins: 0, height_max: 0, muhash: MuHashBatch::new(), element: Vec::new() }
    }

    fn push(&mut self, outpoint: &OutPoint, coin: &CoinBytes) {
        let coin = coin.coin();
        let coin = Coin::as_ref(&coin);
        self.coins += 1;
        self.height_max = self.height_max.max(coin.height);
        self.element.clear();
        write_utxo_element(&mut self.element, outpoint, coin);
        self.muhash.insert(&self.element);
    }

    /// Counts a coin without hashing it; for a walk whose sums are already known.
    fn count(&mut self) {
        self.coins += 1;
    }

    /// Returns the number of coins so far.
    fn coins(&self) -> u64 {
        self.coins
    }

    fn finish(self) -> Summary {
        let muhash = UtxoSetHash(self.muhash.finish().finalize());
        Summary { coins: self.coins, height_max: self.height_max, muhash }
    }
}

/// Creates the failure for a copy that the user stopped.
fn interrupted() -> Failure {
    let message =
        "interrupted: rerun the command to find out whether all coins were copied or none"
            .to_owned();
    Failure::new(INTERRUPTED, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coins_are_named_by_transaction_and_output() {
        let txid = "0f".repeat(32);
        let read = outpoint(&format!("{txid}:4294967295")).unwrap();
        assert_eq!((read.txid, read.vout), (Txid([0x0f; 32]), u32::MAX));
        for wrong in [
            "",
            &txid,
            "0f:0",
            &format!("{txid}:"),
            &format!("{txid}:+1"),
            &format!("{txid}:4294967296"),
        ] {
            assert!(outpoint(wrong).is_none(), "{wrong}");
        }
        let why = outpoints(&[format!("{txid}:0"), "redis://u:hidden@h/x".to_owned()]).unwrap_err();
        assert!(why.message.starts_with("OUTPOINT 2: use TXID:VOUT"), "{}", why.message);
        assert!(!why.message.contains("hidden"), "{}", why.message);
    }
}
