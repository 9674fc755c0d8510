//! `apus snapshot find`.
//!
//! It prints coins as it finds them, so that any number of them takes no memory; the fields of the whole answer follow
//! at the end. An answer without its end is incomplete.

use super::source::{SetHead, SetSource, SetVisitor};
use super::{amount, height_of};
use crate::args::FindArgs;
use crate::failure::Failure;
use crate::machine::watch_signals;
use crate::print::{self, hex};
use crate::report::{bitcoins, grouped};
use apus_chain::{Height, Network, OutPoint, Reader, read_coin_value};
use apus_tables::{FoundCoin, Wanted, WantedScript, scripts_of_query};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The limit of scripts in one command. They take about 300 bytes of memory each.
const SCRIPTS_MAX: usize = 1_000_000;

/// The limit of a line of a file, in bytes.
const LINE_BYTES_MAX: u64 = 100_000;

/// Runs `apus snapshot find`.
pub(crate) fn find(args: &FindArgs) -> Result<(), Failure> {
    let source = SetSource::of(&args.set)?;
    let interrupt = watch_signals()?;
    let begin = |head: SetHead| {
        let wanted = wanted(args, head.network)?;
        let answer = if args.json { Form::Json } else { Form::Text };
        let search = Search {
            head,
            wanted,
            answer,
            searched: 0,
            highest: 0,
            found: 0,
            total: 0,
            has_printed: false,
            group: Vec::new(),
        };
        search.begin()?;
        Ok(search)
    };
    source.read(&interrupt, "searched", begin)?.end()
}

/// Collects the scripts to find.
fn wanted(args: &FindArgs, network: Network) -> Result<Wanted, Failure> {
    let mut scripts: Vec<WantedScript> = Vec::new();
    let mut add = |query: &str, place: &str| {
        let more = scripts_of_query(query, network, args.range)
            .map_err(|error| Failure::usage(format!("{place}{query}: {error}")))?;
        scripts.extend(more);
        match scripts.len() > SCRIPTS_MAX {
            true => Err(Failure::usage(format!(
                "these are more than {} scripts: search in several commands, or with a smaller --range",
                grouped(SCRIPTS_MAX as u64)
            ))),
            false => Ok(()),
        }
    };
    args.queries.iter().try_for_each(|query| add(query, ""))?;
    if let Some(path) = &args.from {
        each_line(path, &mut |number, line| add(line, &format!("{}:{number}: ", path.display())))?;
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
struct Search {
    head: SetHead,
    wanted: Wanted,
    answer: Form,
    searched: u64,
    highest: Height,
    found: u64,
    total: u64,
    has_printed: bool,
    /// Coins of the last transaction, not printed yet: outputs are printed in numeric order.
    group: Vec<(OutPoint, String)>,
}

impl SetVisitor for Search {
    #[inline]
    fn coin(&mut self, outpoint: OutPoint, stored: &[u8]) -> Result<(), Failure> {
        self.searched += 1;
        let damaged = |error| Failure::wrong(format!("coin {outpoint} is damaged: {error}"));
        // Only coins of the last blocks matter, and the search shall not read every number.
        if self.head.height.is_none() {
            let value = read_coin_value(&mut Reader::new(stored)).map_err(damaged)?;
            self.highest = self.highest.max(value.height);
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

impl Search {
    fn begin(&self) -> Result<(), Failure> {
        match self.answer {
            Form::Json => print::result("{\n  \"unspents\": ["),
            Form::Text => Ok(()),
        }
    }

    /// Prints the coins of one transaction.
    fn print_group(&mut self) -> Result<(), Failure> {
        self.group.sort_unstable_by_key(|(outpoint, _)| outpoint.vout);
        for (_, line) in self.group.drain(..) {
            match self.answer {
                // JSON has a comma between values, but none after the last.
                Form::Json if self.has_printed => print::result(format_args!("    ,{line}"))?,
                Form::Json => print::result(format_args!("    {line}"))?,
                Form::Text => print::result(line)?,
            }
            self.has_printed = true;
        }
        Ok(())
    }

    fn end(mut self) -> Result<(), Failure> {
        self.print_group()?;
        let Self { head, searched, found, total, highest, .. } = self;
        let SetHead { network, block, height } = head;
        let height = height_of(network, &block, height, highest);
        if self.answer == Form::Json {
            return print::result(format_args!(
                "  ],\n  \"success\": true,\n  \"txouts\": {searched},\n  \"height\": {height},\n  \
                 \"bestblock\": \"{block}\",\n  \"total_amount\": {}\n}}",
                bitcoins(total)
            ));
        }
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
        ] {
            print::result(format_args!("{name:<18} {value}"))?;
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
