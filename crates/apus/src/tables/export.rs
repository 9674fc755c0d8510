//! `apus snapshot export`.

use super::source::{SetHead, SetSource, SetVisitor};
use super::{amount, failure, height_of, is_known};
use crate::args::{ExportArgs, ExportTarget};
use crate::failure::Failure;
use crate::files::{FileDrafts, NewFolders, expect_new_file, expect_places};
use crate::machine::watch_signals;
use crate::print;
use crate::report::{bytes, grouped};
use apus_chain::{CoinRef, HashSerialized3, Height, OutPoint, Reader, read_coin_strict};
use apus_tables::{AddressKinds, CsvStream, Table, TableColumns, TableFacts, TablePlace};
use std::io::{self, Stdout};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Runs `apus snapshot export`.
pub(crate) fn export(args: &ExportArgs) -> Result<(), Failure> {
    let columns = TableColumns { raw: args.raw, kind: args.kind, address: args.address };
    let source = SetSource::of(&args.set)?;
    let interrupt = watch_signals()?;
    match &args.to {
        ExportTarget::Stream if args.raw => {
            Err(Failure::usage("CSV is text and cannot hold raw bytes: leave out --raw"))
        }
        ExportTarget::Stream if args.replace => {
            Err(Failure::usage("--replace is for files, and - is standard output: leave it out"))
        }
        ExportTarget::Stream => to_stream(&source, columns, &interrupt),
        ExportTarget::Table(format, path) => {
            let place = TablePlace::new(path, *format, columns).map_err(Failure::usage)?;
            to_file(&source, &place.replacing(args.replace), args.replace, &interrupt)
        }
    }
}

fn to_file(
    source: &SetSource<'_>,
    place: &TablePlace,
    replace: bool,
    interrupt: &AtomicBool,
) -> Result<(), Failure> {
    let (files, left) = (place.files(), place.left_facts());
    let paths: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let is_left = |path: &Path| left.as_deref() == Some(path);
    paths.iter().try_for_each(|path| expect_new_file(path, replace || is_left(path)))?;
    expect_places(&paths, &[])?;
    let _made = NewFolders::around(paths)?;
    let _drafts = FileDrafts(&files);
    let begin = |head: SetHead| {
        let table = Table::create(place, head.network).map_err(failure)?;
        Ok(Export::new(head, Rows::Table(Box::new(table))))
    };
    let export = source.read(interrupt, "written", begin)?;
    let facts = export.facts()?;
    let Rows::Table(mut table) = export.rows else { unreachable!("it was begun so") };
    table.finish(&facts, interrupt).map_err(failure)?;
    table.publish().map_err(failure)?;
    let length = files[0].metadata().map(|it| it.len()).unwrap_or_default();
    for (name, value) in described(&facts) {
        print::result(format_args!("{name:<18} {value}"))?;
    }
    print::result(format_args!("{:<18} {} ({})", "written", files[0].display(), bytes(length)))
}

fn to_stream(
    source: &SetSource<'_>,
    columns: TableColumns,
    interrupt: &AtomicBool,
) -> Result<(), Failure> {
    let begin = |head: SetHead| {
        let stream = CsvStream::new(io::stdout(), columns, AddressKinds::of(head.network));
        Ok(Export::new(head, Rows::Stream(Box::new(stream))))
    };
    let export = source.read(interrupt, "written", begin)?;
    let facts = export.facts()?;
    let Rows::Stream(stream) = export.rows else { unreachable!("it was begun so") };
    let (rows, total) = stream.finish().map_err(failure)?;
    debug_assert_eq!((rows, total), (facts.coins, facts.total));
    for (name, value) in described(&facts) {
        print::aside(format_args!("{name:<18} {value}"));
    }
    Ok(())
}

/// The facts, for people.
fn described(facts: &TableFacts) -> [(&'static str, String); 5] {
    [
        ("chain", facts.network.to_string()),
        ("block", format!("{} {}", facts.height, facts.block)),
        ("coins", grouped(facts.coins)),
        ("total amount", amount(facts.total)),
        ("hash_serialized_3", facts.hash_serialized_3.to_string()),
    ]
}

enum Rows<'a> {
    Table(Box<Table<'a>>),
    Stream(Box<CsvStream<Stdout>>),
}

/// A set on its way into a table.
struct Export<'a> {
    head: SetHead,
    rows: Rows<'a>,
    hash: HashSerialized3,
    coins: u64,
    total: u64,
    highest: Height,
}

impl<'a> Export<'a> {
    fn new(head: SetHead, rows: Rows<'a>) -> Self {
        Self { head, rows, hash: HashSerialized3::new(), coins: 0, total: 0, highest: 0 }
    }

    /// Returns the facts about the whole set. Fails if Bitcoin Core knows another set for its block.
    fn facts(&self) -> Result<TableFacts, Failure> {
        let SetHead { network, block, height, .. } = self.head;
        let hash_serialized_3 = self.hash.clone().finish();
        is_known(network, &block, &hash_serialized_3)?;
        let height = height_of(network, &block, height, self.highest);
        let Self { coins, total, .. } = *self;
        Ok(TableFacts { network, block, height, coins, total, hash_serialized_3 })
    }
}

impl SetVisitor for Export<'_> {
    fn coin(&mut self, outpoint: OutPoint, stored: &[u8]) -> Result<(), Failure> {
        let coin = read_coin_strict(&mut Reader::new(stored))
            .map_err(|error| Failure::wrong(format!("coin {outpoint} is damaged: {error}")))?;
        let coin: CoinRef<'_> = coin.as_ref();
        self.hash.push(&outpoint, coin);
        self.coins += 1;
        // The table refuses a set with more than all money.
        self.total = self.total.wrapping_add(coin.amount);
        self.highest = self.highest.max(coin.height);
        let put = match &mut self.rows {
            Rows::Table(table) => table.put(&outpoint, coin),
            Rows::Stream(stream) => stream.put(&outpoint, coin),
        };
        put.map_err(failure)
    }
}
