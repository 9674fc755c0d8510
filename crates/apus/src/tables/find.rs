//! `apus snapshot find`.
//!
//! It prints coins as it finds them, so that any number of them takes no memory; the fields of the whole answer follow
//! at the end. An answer without its end is incomplete.

use super::source::{SetHead, SetSource, SetVisitor};
use super::{amount, height_of, is_known};
use crate::args::FindArgs;
use crate::failure::Failure;
use crate::machine::watch_signals;
use crate::print::{self, hex};
use crate::report::{bitcoins, grouped};
use apus_chain::{
    HashSerialized3, Height, Network, OutPoint, Params, Reader, read_coin_strict, read_coin_value,
};
use apus_tables::{FoundCoin, QueryError, Wanted, WantedScript, scripts_of_query};
use std::cell::Cell;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// The limit of scripts in one command. They take about 300 bytes of memory each.
const SCRIPTS_MAX: usize = 1_000_000;

/// The limit of a line of a file, in bytes.
const LINE_BYTES_MAX: u64 = 100_000;

/// Runs `apus snapshot find`.
pub(crate) fn find(args: &FindArgs) -> Result<(), Failure> {
    let source = SetSource::of(&args.set)?;
    let interrupt = watch_signals()?;
    let is_closed = Cell::new(false);
    let begin = |head: SetHead| {
        let wanted = wanted(args, head.network, &interrupt)?;
        let answer = if args.json { Form::Json } else { Form::Text };
        let knows_block = Params::of(head.network).assumeutxo_for(&head.block).is_some();
        let search = Search {
            head,
            wanted,
            answer,
            hash: (head.is_snapshot && knows_block).then(HashSerialized3::new),
            searched: 0,
            highest: 0,
            found: 0,
            total: 0,
            has_printed: false,
            group: Vec::new(),
            is_closed: &is_closed,
        };
        search.begin()?;
        Ok(search)
    };
    let read = source.read(&interrupt, "searched", begin).and_then(Search::end);
    // Who closes the answer early, as `head` does, has enough of it.
    if is_closed.get() { Ok(()) } else { read }
}

/// Collects the scripts to find.
fn wanted(args: &FindArgs, network: Network, interrupt: &AtomicBool) -> Result<Wanted, Failure> {
    let mut scripts: Vec<WantedScript> = Vec::new();
    let mut add = |query: &str, number: usize, file: Option<&Path>| {
        let left = SCRIPTS_MAX - scripts.len();
        let more = scripts_of_query(query, network, args.range, left, interrupt);
        scripts.extend(more.map_err(|error| {
            let place = file.map(|file| format!("{}:{number}", file.display()));
            match error {
                QueryError::Interrupted => Failure::interrupted(),
                QueryError::TooMany { .. } => Failure::usage(format!(
                    "these are more than {} scripts: search in several commands, or with a smaller --range",
                    grouped(SCRIPTS_MAX as u64)
                )),
                // Errors get into logs, where a key would be lost.
                QueryError::Private => {
                    let place = place.unwrap_or_else(|| format!("argument {number}"));
                    Failure::usage(format!("{place}: {error}"))
                }
                _ => {
                    let place = place.map(|place| format!("{place}: ")).unwrap_or_default();
                    Failure::usage(format!("{place}{query}: {error}"))
                }
            }
        })?);
        Ok(())
    };
    args.queries.iter().zip(1..).try_for_each(|(query, number)| add(query, number, None))?;
    if let Some(path) = &args.from {
        each_line(path, &mut |number, line| add(line, number, Some(path)))?;
    }
    match scripts.is_empty() {
        true => Err(Failure::usage("there is nothing to find: --from has no line")),
        false => Ok(Wanted::new(scripts)),
    }
}

/// Passes the lines of a file on, without empty lines and comments.
fn each_line(
    path: &Path,
    each: &mut dyn FnMut(usize, &str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed = |error| Failure::opening(path, &error);
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    for number in 1.. {
        let mut line = Vec::new();
        let mut limited = std::io::Read::take(&mut file, LINE_BYTES_MAX);
        if limited.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            break;
        }
        let wrong = |what: &str| Failure::usage(format!("{}:{number}: {what}", path.display()));
        if line.len() as u64 == LINE_BYTES_MAX {
            return Err(wrong("the line is too long"));
        }
        let line = str::from_utf8(&line).map_err(|_| wrong("the line is not text"))?.trim();
        if !line.is_empty() && !line.starts_with('#') {
            each(number, line)?;
        }
    }
    Ok(())
}

/// The form of the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Json,
}

/// A search in progress.
struct Search<'a> {
    head: SetHead,
    wanted: Wanted,
    answer: Form,
    /// The hash of the set, if Bitcoin Core knows that of its block.
    hash: Option<HashSerialized3>,
    searched: u64,
    highest: Height,
    found: u64,
    total: u64,
    has_printed: bool,
    /// Coins of the last transaction, not printed yet: outputs are printed in numeric order.
    group: Vec<(OutPoint, String)>,
    /// Whether the reader of the answer has closed it.
    is_closed: &'a Cell<bool>,
}

impl SetVisitor for Search<'_> {
    #[inline]
    fn coin(&mut self, outpoint: OutPoint, stored: &[u8]) -> Result<(), Failure> {
        self.searched += 1;
        let damaged = |error| Failure::wrong(format!("coin {outpoint} is damaged: {error}"));
        // Only coins of the last blocks matter, and the search shall not read every number.
        if self.head.height.is_none() {
            let value = read_coin_value(&mut Reader::new(stored)).map_err(damaged)?;
            self.highest = self.highest.max(value.height);
        }
        if let Some(hash) = &mut self.hash {
            let coin = read_coin_strict(&mut Reader::new(stored)).map_err(damaged)?;
            hash.push(&outpoint, coin.as_ref());
        }
        let Some(found) = self.wanted.find(stored).map_err(damaged)? else { return Ok(()) };
        let line = self.answer.coin(outpoint, found);
        self.found += 1;
        self.total = self.total.saturating_add(found.value.amount);
        if self.group.first().is_some_and(|(first, _)| first.txid != outpoint.txid) {
            self.print_group()?;
        }
        self.group.push((outpoint, line));
        Ok(())
    }
}

impl Search<'_> {
    fn begin(&self) -> Result<(), Failure> {
        match self.answer {
            Form::Json => self.print("{\n  \"unspents\": ["),
            Form::Text => Ok(()),
        }
    }

    /// Prints a part of the answer. The search ends if nobody reads it.
    fn print(&self, line: impl Display) -> Result<(), Failure> {
        if print::result_is_read(line)? {
            return Ok(());
        }
        self.is_closed.set(true);
        Err(Failure::interrupted())
    }

    /// Prints the coins of one transaction.
    fn print_group(&mut self) -> Result<(), Failure> {
        let mut group = std::mem::take(&mut self.group);
        group.sort_unstable_by_key(|(outpoint, _)| outpoint.vout);
        for (_, line) in group.drain(..) {
            match self.answer {
                // JSON has a comma between values, but none after the last.
                Form::Json if self.has_printed => self.print(format_args!("    ,{line}"))?,
                Form::Json => self.print(format_args!("    {line}"))?,
                Form::Text => self.print(line)?,
            }
            self.has_printed = true;
        }
        self.group = group;
        Ok(())
    }

    fn end(mut self) -> Result<(), Failure> {
        self.print_group()?;
        let SetHead { network, block, height, is_snapshot } = self.head;
        let is_checked = match self.hash.take() {
            Some(hash) => is_known(network, &block, &hash.finish())?,
            None => false,
        };
        let Self { searched, found, total, highest, .. } = self;
        let height = height_of(network, &block, height, highest);
        if self.answer == Form::Json {
            return self.print(format_args!(
                "  ],\n  \"success\": true,\n  \"txouts\": {searched},\n  \"height\": {height},\n  \
                 \"bestblock\": \"{block}\",\n  \"total_amount\": {},\n  \"hash_checked\": {is_checked}\n}}",
                bitcoins(total)
            ));
        }
        let check = match (is_checked, is_snapshot) {
            (true, _) => "the set that Bitcoin Core knows for this block",
            (false, true) => {
                "not checked, since Bitcoin Core knows no set for this block: a damaged snapshot may lack coins. \
                 `apus snapshot verify` checks it against blocks"
            }
            (false, false) => "not checked: these are the node's own coins",
        };
        for (name, value) in [
            ("found", format!("{} coins, {}", grouped(found), amount(total))),
            (
                "searched",
                format!(
                    "{} coins, for {} scripts",
                    grouped(searched),
                    grouped(self.wanted.len() as u64)
                ),
            ),
            ("block", format!("{height} {block}")),
            ("hash_serialized_3", check.to_owned()),
        ] {
            self.print(format_args!("{name:<18} {value}"))?;
        }
        Ok(())
    }
}

impl Form {
    /// Formats a coin that was found, with the fields of scantxoutset.
    fn coin(self, outpoint: OutPoint, found: FoundCoin<'_>) -> String {
        let FoundCoin { value, wanted: WantedScript { script, descriptor } } = found;
        let (OutPoint { txid, vout }, amount) = (outpoint, bitcoins(value.amount));
        let (coinbase, height) = (value.coinbase, value.height);
        match self {
            // No descriptor has a character that JSON escapes.
            Self::Json => format!(
                "{{\"txid\": \"{txid}\", \"vout\": {vout}, \"scriptPubKey\": \"{}\", \"desc\": \"{descriptor}\", \
                 \"amount\": {amount}, \"coinbase\": {coinbase}, \"height\": {height}}}",
                hex(script)
            ),
            Self::Text => {
                let coinbase = if coinbase { " coinbase" } else { "" };
                format!("{txid}:{vout} {amount} BTC height {height}{coinbase} {descriptor}")
            }
        }
    }
}
