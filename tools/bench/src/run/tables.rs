//! A [`BenchRecord`] for people: [`tables`], [`notes`], and both as [`markdown`].

use super::matrix::{ScriptValidation, Subject, SubjectNames};
use super::record::{BenchRecord, ChainRecord, SubjectMeasured};
use super::report::ForestResult;
use crate::chain::PageCache;
use crate::floor;
use crate::table::{MeasuredSpread, TextTable, bytes, grouped};

/// All tables of a record: of each chain, then of all chains together.
pub fn tables(record: &BenchRecord) -> Vec<TextTable> {
    let mut tables = Vec::new();
    let names = SubjectNames::of(subjects(record));
    for chain in &record.chains {
        tables.push(results(record, chain));
        if !record.timed {
            continue;
        }
        tables.push(times(chain, &names));
        if !chain.ratios.is_empty() {
            tables.push(ratios(record, chain, &names));
        }
        if !chain.outputs.is_empty() {
            tables.push(outputs(chain, &names));
        }
        if !chain.scaling.is_empty() {
            tables.push(scaling(chain, &names));
        }
        if let (Some(floor), Some(limits)) = (&chain.floor, &record.limits) {
            tables.push(floor::items(floor, limits));
            tables.push(floor::sums(floor, limits));
        }
    }
    if record.timed && record.chains.len() > 1 {
        tables.push(lengths(record, &names));
    }
    if let Some(limits) = record.limits.as_ref().filter(|_| record.timed) {
        tables.extend(floor::limits(limits));
    }
    tables
}

/// All subjects, on any chain.
fn subjects(record: &BenchRecord) -> impl Iterator<Item = &Subject> {
    record.chains.iter().flat_map(|chain| chain.measured.iter().map(|it| &it.subject))
}

/// The results that all runs agreed on.
fn results(record: &BenchRecord, chain: &ChainRecord) -> TextTable {
    let runs: usize = chain.measured.iter().map(|measured| measured.runs.len()).sum();
    let title = format!("{}: the same result in {runs} runs", chain.chain);
    let mut table = TextTable::new(title, &["what", ""]);
    let (set, counts) = (&chain.set, &chain.counts);
    let its_set = match (&chain.bitcoind_set, &record.bitcoind) {
        (Some(_), Some(_)) => format!("has the same set ({})", node(record)),
        _ => "not run".to_owned(),
    };
    let manifest = match &chain.manifest {
        Some(manifest) => format!("says the same (signed: {})", manifest.signed),
        None => "missing".to_owned(),
    };
    let files = match chain.manifest.as_ref().map(|manifest| manifest.obfuscated) {
        Some(true) => "XORed with a key, as in nodes since version 28",
        Some(false) => "plain, as in nodes before version 28",
        None => "-",
    };
    for (name, value) in [
        ("stop block", format!("{} {}", set.stop_height, set.stop_hash)),
        ("bytes of blocks", grouped(counts.bytes)),
        ("transactions", grouped(counts.transactions)),
        ("inputs", grouped(counts.inputs)),
        ("outputs", grouped(counts.outputs)),
        ("coins", grouped(set.coins)),
        ("total amount, satoshi", grouped(set.total_amount_sat)),
        ("muhash", set.muhash.clone().unwrap_or_else(none)),
        ("hash_serialized_3", set.hash_serialized_3.clone().unwrap_or_else(none)),
        ("utreexo", set.utreexo.as_ref().map_or_else(none, forest)),
        ("manifest", manifest),
        ("block files", files.to_owned()),
        ("bitcoind", its_set),
    ] {
        table.row([name.to_owned(), value]);
    }
    table
}

fn forest(forest: &ForestResult) -> String {
    let (leaves, roots) = (grouped(forest.leaves), forest.roots.len());
    format!("{leaves} leaves, {roots} roots, the same in all runs that report them")
}

fn seconds(spread: MeasuredSpread) -> [String; 2] {
    let MeasuredSpread { median, min, max } = spread;
    [format!("{median:.3}"), format!("{min:.3}–{max:.3}")]
}

fn times(chain: &ChainRecord, names: &SubjectNames) -> TextTable {
    let title = format!("{}: wall time of the whole process", chain.chain);
    let columns = [
        "run",
        "wall s",
        "least–greatest",
        "CPU s",
        "bytes/s",
        "ns/transaction",
        "peak memory",
        "× floor",
        "blocks/s",
        "headers",
    ];
    let mut table = TextTable::new(title, &columns);
    for measured in &chain.measured {
        let [wall, spread] = seconds(measured.wall_seconds);
        table.row([
            names.name(&measured.subject),
            wall,
            spread,
            format!("{:.2}", measured.cpu_seconds.median),
            bytes(measured.bytes_per_second),
            format!("{:.0}", measured.ns_per_transaction),
            measured.rss_peak_bytes.map_or_else(none, |peak| bytes(peak as f64)),
            measured.over_floor.map_or_else(none, |times| format!("{times:.2}")),
            measured.blocks_per_second.map_or_else(none, |blocks| format!("{blocks:.0}")),
            measured.headers_share.map_or_else(none, |share| format!("{:.3} %", 100.0 * share)),
        ]);
    }
    table
}

fn none() -> String {
    "-".to_owned()
}

fn ratios(record: &BenchRecord, chain: &ChainRecord, names: &SubjectNames) -> TextTable {
    let title = format!(
        "{}: times faster than bitcoind with the same -dbcache, {}",
        chain.chain,
        bip30(record)
    );
    let mut table = TextTable::new(title, &["run", "against", "times faster", "least–greatest"]);
    for ratio in &chain.ratios {
        let MeasuredSpread { median, min, max } = ratio.times_faster;
        table.row([
            names.name(&ratio.apus),
            names.name(&ratio.bitcoind),
            format!("{median:.1}"),
            format!("{min:.1}–{max:.1}"),
        ]);
    }
    table
}

fn outputs(chain: &ChainRecord, names: &SubjectNames) -> TextTable {
    let title = format!("{}: wall time relative to the same run without output", chain.chain);
    let mut table = TextTable::new(title, &["run", "times as long", "least–greatest"]);
    for output in &chain.outputs {
        let MeasuredSpread { median, min, max } = output.over_null;
        table.row([
            names.name(&output.subject),
            format!("{median:.2}"),
            format!("{min:.2}–{max:.2}"),
        ]);
    }
    table
}

fn scaling(chain: &ChainRecord, names: &SubjectNames) -> TextTable {
    let title = format!("{}: times faster than with one thread", chain.chain);
    let mut table = TextTable::new(title, &["run", "threads", "times faster", "side by side"]);
    for scaling in &chain.scaling {
        table.row([
            names.name(&scaling.subject),
            scaling.threads.to_string(),
            format!("{:.2}", scaling.times_faster),
            scaling.side_by_side.map_or_else(String::new, |times| format!("{times:.2}")),
        ]);
    }
    table
}

/// Speed of each subject on each chain: equal if it does not depend on the length.
fn lengths(record: &BenchRecord, names: &SubjectNames) -> TextTable {
    let mut columns = vec!["bytes/s".to_owned()];
    columns.extend(
        record
            .chains
            .iter()
            .map(|chain| format!("{} ({})", chain.chain, bytes(chain.counts.bytes as f64))),
    );
    let mut table = TextTable { title: "Speed by length".to_owned(), columns, rows: Vec::new() };
    let subjects: Vec<&Subject> = record
        .chains
        .iter()
        .take(1)
        .flat_map(|it| it.measured.iter().map(|it| &it.subject))
        .collect();
    for subject in subjects {
        let on = |chain: &ChainRecord| {
            let same = |measured: &&SubjectMeasured| measured.subject == *subject;
            let found = chain.measured.iter().find(same);
            found.map_or_else(none, |measured| bytes(measured.bytes_per_second))
        };
        table.row(std::iter::once(names.name(subject)).chain(record.chains.iter().map(on)));
    }
    table
}

/// Facts needed to interpret the numbers.
pub(super) fn notes(record: &BenchRecord) -> Vec<String> {
    let mut notes = Vec::new();
    notes.push(match (record.page_cache, record.cached_share) {
        (PageCache::Dropped, _) => "The block files were dropped from the page cache before each \
                                    run."
            .to_owned(),
        (PageCache::Warm, Some(share)) if share > 0.99 => {
            "The block files were in the page cache.".to_owned()
        }
        (PageCache::Warm, Some(share)) => format!(
            "The block files were read before the first run, but only {:.0} % of them stayed in the \
             page cache: the machine has too little memory for these chains.",
            100.0 * share
        ),
        (PageCache::Warm, None) => "The block files were read before the first run; whether they \
                                    stayed in the page cache is unknown."
            .to_owned(),
    });
    if record.timed {
        notes.push(
            "Each run is a separate process, timed from its start to its end; runs of all kinds are \
             interleaved, and every run begins with no dirty pages to write to disk."
                .to_owned(),
        );
    }
    let busy = record.timed && record.machine.is_busy();
    if let Some(load) = record.machine.load.filter(|_| busy) {
        notes.push(format!(
            "The machine was busy at the start (load {load:.1}): times are too long, and rates of \
             several threads too low."
        ));
    }
    if subjects(record)
        .any(|it| matches!(it, Subject::Apus { aggregate: Some(kind), .. } if kind == "none"))
    {
        notes.push(
            "Aggregate none sums nothing and so proves nothing: it bounds the cost of a \
             proof."
                .to_owned(),
        );
    }
    if record.timed && record.chains.iter().any(|chain| !chain.scaling.is_empty()) {
        notes.push("Each run of Apus has as many processors as threads.".to_owned());
        notes.push(
            "Side by side: as many concurrent runs with one thread each, counted as one. It is this machine's gain \
             from threads that share nothing but its memory and its disk."
                .to_owned(),
        );
    }
    if record.timed {
        notes.push(
            "The column headers is the wall time in which one thread reads headers, before all others start, divided \
             by the processor time of the whole run."
                .to_owned(),
        );
    }
    if subjects(record).any(Subject::takes_proofs) {
        notes.push(FOREST_NOTE.to_owned());
    }
    if subjects(record).any(Subject::takes_snapshot) {
        notes.push(SNAPSHOT_NOTE.to_owned());
    }
    if subjects(record).any(|it| matches!(it, Subject::Bitcoind { .. })) {
        notes.push(match record.bip30_lookups {
            Some(false) => NODE_NOTE_KNOWN_BLOCK.to_owned(),
            Some(true) | None => NODE_NOTE_LOOKUPS.to_owned(),
        });
        notes.extend(NODE_NOTES.iter().map(|note| (*note).to_owned()));
    }
    let full =
        |it: &Subject| matches!(it, Subject::Bitcoind { validation: ScriptValidation::Full, .. });
    if subjects(record).any(full) {
        notes.push(NODE_NOTE_FULL.to_owned());
    }
    notes
}

/// What the runs with hints from a snapshot are compared with.
const SNAPSHOT_NOTE: &str = "The engine snapshot-hints is swiftsync with hints from a snapshot, which was made in advance. Where \
     runs are compared with those without output, its counterpart is swiftsync with hints from a hintsfile.";

/// About runs with proofs.
const FOREST_NOTE: &str = "The engine utreexo used proofs of all blocks, which were made in advance; only the times of \
     prove include them. It keeps no set, so the comparison covers coins, amounts and the roots of the forest.";

/// Limits of the comparison with a node.
const NODE_NOTES: &[&str] = &[
    "bitcoind starts with its index and undo data, and ends with a chainstate on disk; its time \
     includes the last flush. It computes no hash of the set; Apus computes hash_serialized_3. Apus writes \
     a snapshot or a chainstate only where the run's name says so, and reads a whole chainstate back before it ends. \
     Both XOR the coins in a chainstate with its key.",
    "bitcoind ran without the internal checks that are on by default on regtest only \
     (-checkblockindex=0 -checkmempool=0). In addition to -dbcache it uses the free part of its mempool: up \
     to 286 MiB, or 5 if -dbcache is below the default mempool size (-maxmempool=5). Its peak includes \
     memory-mapped files of its database.",
    "Without assumevalid=0 it ran no scripts: its log says so, and more than two weeks of work \
     follow the last block with transactions.",
];

/// Limits of the comparison with a node that does more than on the main chain.
const NODE_NOTE_LOOKUPS: &str = "On regtest this bitcoind looks up every output for BIP-30, unlike on the \
     main chain: in one measurement an eighth of Bitcoin Core's time with -assumevalid. The ratios to it are that much too high.";

/// About the comparison with a node of `scripts/core`.
const NODE_NOTE_KNOWN_BLOCK: &str = "bitcoind was given the chain's first block (-testbip34hash, an option that \
     scripts/core adds to Bitcoin Core) in place of the main chain's BIP-34 block: so it looks up no output for \
     BIP-30, as on the main chain.";

/// About the comparison of runs that validate scripts.
const NODE_NOTE_FULL: &str = "bitcoind assumevalid=0 ran every script, as its log confirms, on one thread \
     per core. Runs with scripts are compared with runs with scripts.";

/// The node's version, and whether it did work that no node does on the main chain.
fn node(record: &BenchRecord) -> String {
    let version = record.bitcoind.as_ref();
    version.map_or_else(none, |version| format!("{version}, {}", bip30(record)))
}

/// In records without this field, the nodes looked outputs up.
fn bip30(record: &BenchRecord) -> &'static str {
    match record.bip30_lookups {
        Some(false) => "without BIP-30 look-ups, as on the main chain",
        Some(true) | None => "with regtest's BIP-30 look-ups",
    }
}

/// Version, commit and features, as far as recorded.
fn program(record: &BenchRecord) -> String {
    let mut parts = vec![record.apus.clone()];
    parts.extend(record.commit.iter().map(|commit| format!("commit {commit}")));
    parts.extend(record.features.iter().map(|features| match &features[..] {
        [] => "no features".to_owned(),
        built_in => format!("with {}", built_in.join(", ")),
    }));
    parts.join(", ")
}

/// The whole record as a page.
pub fn markdown(record: &BenchRecord) -> String {
    let mut page = format!("# Benchmark of {}\n\n", record.date);
    let machine = &record.machine;
    let memory = machine.memory_bytes.map_or_else(none, |memory| bytes(memory as f64));
    let rows = [
        ("profile", format!("{}, {} rounds", record.profile, record.rounds)),
        ("command", format!("`{}`", record.command.join(" "))),
        ("apus", program(record)),
        ("bitcoind", node(record)),
        (
            "machine",
            format!(
                "{}, {} cores, {memory} of memory, SHA-256 by {}",
                machine.cpu.as_deref().unwrap_or("unknown processor"),
                machine.cores,
                machine.sha256
            ),
        ),
        (
            "system",
            format!("{} {}", machine.platform, machine.system.as_deref().unwrap_or_default()),
        ),
    ];
    page.push_str("| | |\n|---|---|\n");
    for (name, value) in rows {
        page.push_str(&format!("| {name} | {} |\n", value.trim_end()));
    }
    page.push('\n');
    for note in &record.notes {
        page.push_str(&format!("- {note}\n"));
    }
    for table in tables(record) {
        page.push('\n');
        page.push_str(&table.markdown());
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::record;

    #[test]
    fn a_page_has_every_part_of_a_record() {
        let page = markdown(&record(&["short", "long"]));
        for words in [
            "# Benchmark of 2026-11-22T00:34:51Z",
            "| bitcoind | Bitcoin Core, without BIP-30 look-ups, as on the main chain |",
            "| block files | XORed with a key, as in nodes since version 28 |",
            "- a note",
            "### short: the same result in 12 runs",
            "| utreexo | 9 leaves, 1 roots, the same in all runs that report them |",
            "has the same set (Bitcoin Core, without BIP-30 look-ups, as on the main chain)",
            // 800 MB in 2 s, a million transactions; the floor on two threads is 1 s to parse and 1 s to
            // read.
            "par=2 dbcache=450 | 2.000 | 1.500–2.500 | 2.00 | 400 MB | 2000 | 50.0 MB | 1.00 | 1200 | 1.562 % |",
            "### long: times faster than bitcoind with the same -dbcache, without BIP-30 look-ups, as on the main chain",
            "| bitcoind dbcache=450 | 40.0 | 40.0–40.0 |",
            "### short: times faster than with one thread",
            "par=2 dbcache=450 | 2 | 2.00 |",
            "### short: wall time relative to the same run without output",
            "par=2 dbcache=450 utreexo | 1.12 | 1.12–1.12 |",
            "### Floor, summed up",
            "### Speed by length",
            "| bytes/s | short (800 MB) | long (800 MB) |",
            "### SHA-256 compressions",
        ] {
            assert!(page.contains(words), "{words} is not in {page}");
        }
    }

    #[test]
    fn records_without_timing_show_no_times() {
        let record = BenchRecord { timed: false, ..record(&["short"]) };
        assert_eq!(tables(&record).len(), 1);
        assert!(!markdown(&record).contains("wall"));
    }

    #[test]
    fn notes_state_the_limits_of_the_numbers() {
        let mentions =
            |record: &BenchRecord, words: &str| notes(record).iter().any(|it| it.contains(words));
        let mut warm = record(&["short"]);
        warm.machine.load = Some(0.0);
        assert!(mentions(&warm, "BIP-30") && mentions(&warm, "were in the page cache"));
        assert!(!mentions(&warm, "busy") && !mentions(&warm, "Aggregate none"));
        assert!(mentions(&warm, "-testbip34hash") && !mentions(&warm, "too high"));
        // A node without this option, and one of an older record.
        for bip30_lookups in [Some(true), None] {
            let lookups = BenchRecord { bip30_lookups, ..record(&["short"]) };
            assert!(mentions(&lookups, "too high") && !mentions(&lookups, "-testbip34hash"));
            let page = markdown(&lookups);
            assert_eq!(page.matches("with regtest's BIP-30 look-ups").count(), 3, "{page}");
        }
        let mut other = record(&["short"]);
        other.machine.load = Some(7.0);
        other.chains[0].measured.retain(|it| matches!(it.subject, Subject::Apus { .. }));
        assert!(mentions(&other, "(load 7.0)") && !mentions(&other, "BIP-30"));
        assert!(mentions(&BenchRecord { cached_share: Some(0.5), ..record(&["a"]) }, "only 50 %"));
        assert!(mentions(&BenchRecord { cached_share: None, ..record(&["a"]) }, "is unknown"));
        let cold = BenchRecord { page_cache: PageCache::Dropped, ..record(&["a"]) };
        assert!(mentions(&cold, "were dropped"));
        let mut none = record(&["a"]);
        none.chains[0].measured[0].subject = crate::run::tests::apus("none", 1);
        assert!(mentions(&none, "Aggregate none"));
    }
}
