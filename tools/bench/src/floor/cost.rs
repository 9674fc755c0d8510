//! [`ChainFloor`]: amounts of work over the machine's rates, item by item, and their sums.
//!
//! With all threads, an item's time is its amount divided by the rate of all threads together. The exception
//! is `hash_serialized_3`, a single stream over the sorted set: more threads cannot speed it up, but they can
//! do other work at the same time.

use super::work::ChainWork;
use crate::table::{TextTable, grouped, short};
use serde::{Deserialize, Serialize};

/// Bytes before each block in a block file.
const RECORD_HEAD: u64 = 8;

/// The part of a sync that an item belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FloorPart {
    /// Validation of blocks.
    Blocks,
    /// The proof by keyed SHA-256.
    AggregateSha256,
    /// The proof by MuHash, its alternative.
    AggregateMuhash,
    /// The finished set.
    Set,
    /// The set's MuHash, which syncs compute on request.
    SetMuhash,
}

/// Times on one thread and on all threads, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct FloorTimes {
    /// On one thread.
    pub one_thread_ms: f64,
    /// On all threads.
    pub all_threads_ms: f64,
}

/// One kind of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FloorItem {
    /// Its name.
    pub item: String,
    /// The part it belongs to.
    pub part: FloorPart,
    /// The amount of work.
    pub amount: u64,
    /// The amount's unit.
    pub unit: String,
    /// Units per second.
    pub rate: WorkRate,
    /// The resulting times.
    pub times: FloorTimes,
    /// Whether only one thread can do it.
    pub serial: bool,
}

/// The floor of a sync with one kind of aggregate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FloorOf {
    /// `none`, `sha256` or `muhash`.
    pub aggregate: String,
    /// Blocks and proof.
    pub validation: FloorTimes,
    /// The set's hash and coins too: all the work of a sync without a MuHash.
    pub run: FloorTimes,
}

/// The floor of a chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChainFloor {
    /// The work of the chain.
    pub work: ChainWork,
    /// The kinds of work.
    pub items: Vec<FloorItem>,
    /// The sums, by aggregate.
    pub floors: Vec<FloorOf>,
}

impl ChainFloor {
    /// Sums up `work` at the rates of `limits`; `None` if these have no kernel.
    pub fn new(work: ChainWork, limits: &MachineLimits) -> Option<Self> {
        let items = work_items(&work, limits)?;
        let floors = [
            ("none", None),
            ("sha256", Some(FloorPart::AggregateSha256)),
            ("muhash", Some(FloorPart::AggregateMuhash)),
        ]
        .map(|(aggregate, proof)| FloorOf {
            aggregate: aggregate.to_owned(),
            validation: sum(&items, &|part| part == FloorPart::Blocks || Some(part) == proof),
            run: sum(&items, &|part| {
                matches!(part, FloorPart::Blocks | FloorPart::Set) || Some(part) == proof
            }),
        });
        Some(Self { work, items, floors: floors.into() })
    }

    /// The floor with this aggregate.
    pub fn of(&self, aggregate: &str) -> Option<&FloorOf> {
        self.floors.iter().find(|floor| floor.aggregate == aggregate)
    }
}

/// Blocks and proof, then the set. Single-threaded work is hidden if the other threads have enough other work
/// of its part at the same time.
fn sum(items: &[FloorItem], counts: &dyn Fn(FloorPart) -> bool) -> FloorTimes {
    let mut times = FloorTimes::default();
    let (mut blocks, mut set, mut stream) = (0.0, 0.0, 0.0);
    for item in items.iter().filter(|item| counts(item.part)) {
        times.one_thread_ms += item.times.one_thread_ms;
        let share = milliseconds(item.amount, item.rate.all_threads);
        if item.part == FloorPart::Set {
            set += share
        } else {
            blocks += share
        }
        if item.serial {
            stream += item.times.all_threads_ms;
        }
    }
    times.all_threads_ms = blocks + f64::max(set, stream);
    times
}

/// The one item that is a single stream.
const STREAM: &str = "hash_serialized_3";

fn work_items(work: &ChainWork, limits: &MachineLimits) -> Option<Vec<FloorItem>> {
    let hashes = limits.best_kernel()?;
    let need = &work.compressions;
    let spent = 2 * work.inputs;
    let file_bytes = work.bytes + RECORD_HEAD * work.blocks;
    let obfuscated = if work.obfuscated { file_bytes } else { 0 };
    let stream = (work.element_bytes + 9).div_ceil(64) + 1;
    let (txs, nodes) = (hashes.transactions, hashes.merkle_nodes);
    let (read, unmask, write) = (limits.read, limits.obfuscation, limits.write);
    let rows = [
        ("reading from the page cache", FloorPart::Blocks, file_bytes, "bytes", read),
        ("de-obfuscation", FloorPart::Blocks, obfuscated, "bytes", unmask),
        ("parsing", FloorPart::Blocks, work.bytes, "bytes", limits.parse),
        ("block hashes", FloorPart::Blocks, need.headers, "compressions", nodes),
        ("transaction ids", FloorPart::Blocks, need.txids, "compressions", txs),
        ("merkle trees", FloorPart::Blocks, need.merkle, "compressions", nodes),
        ("ids with witness", FloorPart::Blocks, need.wtxids, "compressions", txs),
        ("witness trees", FloorPart::Blocks, need.witness_merkle, "compressions", nodes),
        ("outpoints, SHA-256", FloorPart::AggregateSha256, spent, "compressions", hashes.outpoints),
        ("outpoints, MuHash", FloorPart::AggregateMuhash, spent, "elements", limits.muhash),
        ("muhash", FloorPart::SetMuhash, work.coins, "coins", limits.muhash),
        (STREAM, FloorPart::Set, stream, "compressions", hashes.stream),
        ("writing coins", FloorPart::Set, work.coin_bytes, "bytes", write),
    ];
    Some(rows.into_iter().map(item).collect())
}

fn milliseconds(amount: u64, per_second: f64) -> f64 {
    if amount == 0 { 0.0 } else { amount as f64 / per_second * 1e3 }
}

fn item((name, part, amount, unit, rate): (&str, FloorPart, u64, &str, WorkRate)) -> FloorItem {
    let serial = name == STREAM;
    let one_thread_ms = milliseconds(amount, rate.one_thread);
    let all_threads_ms =
        if serial { one_thread_ms } else { milliseconds(amount, rate.all_threads) };
    FloorItem {
        item: name.to_owned(),
        part,
        amount,
        unit: unit.to_owned(),
        rate,
        times: FloorTimes { one_thread_ms, all_threads_ms },
        serial,
    }
}

// ---- rates and limits ----

/// Units per second, of one thread and of all threads together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorkRate {
    /// One thread, with the others idle.
    pub one_thread: f64,
    /// All threads at once.
    pub all_threads: f64,
}

impl WorkRate {
    /// The greater of two rates, for one thread and for all threads.
    #[must_use]
    pub fn best(self, other: Self) -> Self {
        Self {
            one_thread: self.one_thread.max(other.one_thread),
            all_threads: self.all_threads.max(other.all_threads),
        }
    }

    /// How many times faster all threads are than one.
    pub fn scaling(self) -> f64 {
        self.all_threads / self.one_thread
    }
}

/// Compressions per second of one SHA-256 kernel, for the message shapes of a sync.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelRates {
    /// Its name, as in `APUS_SHA256_KERNEL`.
    pub kernel: String,
    /// Double SHA-256 of messages of all lengths that transactions of a block have.
    pub transactions: WorkRate,
    /// The same for messages of one length: no lane waits for another.
    pub transactions_of_one_length: WorkRate,
    /// Double SHA-256 of 64 bytes: an inner node of a merkle tree, counted as 3 compressions.
    pub merkle_nodes: WorkRate,
    /// Outpoints after a key whose state is cached: 1 compression each.
    pub outpoints: WorkRate,
    /// One long message, whose blocks depend on each other.
    pub stream: WorkRate,
}

impl KernelRates {
    /// The greater rate of each shape.
    #[must_use]
    fn best(&self, other: &Self) -> Self {
        Self {
            kernel: "best".to_owned(),
            transactions: self.transactions.best(other.transactions),
            transactions_of_one_length: self
                .transactions_of_one_length
                .best(other.transactions_of_one_length),
            merkle_nodes: self.merkle_nodes.best(other.merkle_nodes),
            outpoints: self.outpoints.best(other.outpoints),
            stream: self.stream.best(other.stream),
        }
    }
}

/// One machine's rate for each kind of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MachineLimits {
    /// Number of threads that "all" means.
    pub threads: usize,
    /// Copying memory that exceeds a core's own caches, in bytes.
    pub copy_large: WorkRate,
    /// Copying memory that stays in the second-level cache, in bytes.
    pub copy_cached: WorkRate,
    /// Reading block files that are in the page cache, in bytes.
    pub read: WorkRate,
    /// Undoing the XOR of block files in cache, in bytes.
    pub obfuscation: WorkRate,
    /// Parsing blocks, in bytes of blocks.
    pub parse: WorkRate,
    /// Adding coins to a MuHash, in coins.
    pub muhash: WorkRate,
    /// Writing to a file in the page cache, in bytes.
    pub write: WorkRate,
    /// Every SHA-256 kernel of the machine, the fastest first.
    pub kernels: Vec<KernelRates>,
}

impl MachineLimits {
    /// The best rate of each shape by any kernel. The two shapes of transactions count as one.
    pub fn best_kernel(&self) -> Option<KernelRates> {
        let mut best = self.kernels.iter().cloned().reduce(|best, other| best.best(&other))?;
        best.transactions = best.transactions.best(best.transactions_of_one_length);
        Some(best)
    }
}

// ---- tables ----

/// Column title for rates and times on all threads.
fn on_all(threads: usize) -> String {
    format!("{threads} threads")
}

fn rates(table: &mut TextTable, name: String, unit: &str, rate: WorkRate) {
    table.row([
        name,
        unit.to_owned(),
        short(rate.one_thread),
        short(rate.all_threads),
        format!("{:.2}", rate.scaling()),
    ]);
}

/// The machine's limits: everything but SHA-256, then its kernels.
pub fn limits(limits: &MachineLimits) -> [TextTable; 2] {
    let all = on_all(limits.threads);
    let columns = ["work", "unit", "1 thread /s", &format!("{all} /s"), "scaling"];
    let mut general = TextTable::new("Limits of this machine", &columns);
    for (name, unit, rate) in [
        ("copying memory, larger than the caches", "bytes", limits.copy_large),
        ("copying memory, within the second-level cache", "bytes", limits.copy_cached),
        ("reading block files from the page cache", "bytes", limits.read),
        ("de-obfuscation", "bytes", limits.obfuscation),
        ("parsing", "bytes", limits.parse),
        ("MuHash", "coins", limits.muhash),
        ("writing to the page cache", "bytes", limits.write),
    ] {
        rates(&mut general, name.to_owned(), unit, rate);
    }
    let columns = ["shape", "kernel", "1 thread /s", &format!("{all} /s"), "scaling"];
    let mut kernels = TextTable::new("SHA-256 compressions", &columns);
    for kernel in &limits.kernels {
        for (shape, rate) in [
            ("transactions of a block", kernel.transactions),
            ("transactions of one length", kernel.transactions_of_one_length),
            ("inner nodes of merkle trees", kernel.merkle_nodes),
            ("outpoints", kernel.outpoints),
            ("one long message", kernel.stream),
        ] {
            rates(&mut kernels, shape.to_owned(), &kernel.kernel, rate);
        }
    }
    [general, kernels]
}

/// The floor of a chain, item by item.
pub fn items(floor: &ChainFloor, limits: &MachineLimits) -> TextTable {
    let all = on_all(limits.threads);
    let columns =
        ["item", "part", "amount", "unit", "1 thread /s", "1 thread ms", &format!("{all} ms")];
    let title = format!("Floor of a chain of {} bytes", grouped(floor.work.bytes));
    let mut table = TextTable::new(title, &columns);
    for item in &floor.items {
        let part = match item.part {
            FloorPart::Blocks => "blocks",
            FloorPart::AggregateSha256 | FloorPart::AggregateMuhash => "proof",
            FloorPart::Set => "set",
            FloorPart::SetMuhash => "if asked for",
        };
        table.row([
            item.item.clone(),
            part.to_owned(),
            grouped(item.amount),
            item.unit.clone(),
            short(item.rate.one_thread),
            format!("{:.1}", item.times.one_thread_ms),
            format!("{:.1}", item.times.all_threads_ms),
        ]);
    }
    table
}

/// The sums, by the kind of proof.
pub fn sums(floor: &ChainFloor, limits: &MachineLimits) -> TextTable {
    let all = on_all(limits.threads);
    let columns = [
        "proof",
        "validation, 1 thread ms",
        &format!("{all} ms"),
        "with the set, 1 thread ms",
        &format!("{all} ms"),
    ];
    let mut table = TextTable::new("Floor, summed up", &columns);
    for of in &floor.floors {
        let times = [
            of.validation.one_thread_ms,
            of.validation.all_threads_ms,
            of.run.one_thread_ms,
            of.run.all_threads_ms,
        ];
        let times = times.map(|ms| format!("{ms:.1}"));
        table.row(std::iter::once(of.aggregate.clone()).chain(times));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::cost::KernelRates;
    use crate::floor::work::Compressions;

    fn rate(one_thread: f64) -> WorkRate {
        WorkRate { one_thread, all_threads: 2.0 * one_thread }
    }

    /// Round numbers, so that every time is easy to compute by hand.
    fn limits() -> MachineLimits {
        MachineLimits {
            threads: 2,
            copy_large: rate(1.0),
            copy_cached: rate(1.0),
            read: rate(1_000.0),
            obfuscation: rate(10_000.0),
            parse: rate(2_000.0),
            muhash: rate(10.0),
            write: rate(500.0),
            kernels: vec![KernelRates {
                kernel: "any".to_owned(),
                transactions: rate(100.0),
                transactions_of_one_length: rate(200.0),
                merkle_nodes: rate(300.0),
                outpoints: rate(400.0),
                stream: rate(50.0),
            }],
        }
    }

    fn work() -> ChainWork {
        ChainWork {
            blocks: 10,
            bytes: 9_920,
            obfuscated: true,
            transactions: 30,
            inputs: 100,
            outputs: 120,
            unspendable: 1,
            coins: 19,
            coin_bytes: 1_000,
            element_bytes: 19 * 71,
            compressions: Compressions {
                headers: 30,
                txids: 180,
                merkle: 60,
                wtxids: 200,
                witness_merkle: 90,
            },
        }
    }

    #[test]
    fn items_are_amounts_over_rates() {
        let floor = ChainFloor::new(work(), &limits()).unwrap();
        let ms: Vec<(&str, f64)> = floor
            .items
            .iter()
            .map(|item| (item.item.as_str(), item.times.one_thread_ms.round()))
            .collect();
        assert_eq!(
            ms,
            [
                ("reading from the page cache", 10_000.0),
                ("de-obfuscation", 1_000.0),
                ("parsing", 4_960.0),
                ("block hashes", 100.0),
                ("transaction ids", 900.0),
                ("merkle trees", 200.0),
                ("ids with witness", 1_000.0),
                ("witness trees", 300.0),
                ("outpoints, SHA-256", 500.0),
                ("outpoints, MuHash", 20_000.0),
                ("muhash", 1_900.0),
                // 19 coins of 71 bytes: 22 blocks, and the second hash.
                ("hash_serialized_3", 460.0),
                ("writing coins", 2_000.0),
            ]
        );
    }

    #[test]
    fn sums_are_by_aggregate_and_with_or_without_the_set() {
        let floor = ChainFloor::new(work(), &limits()).unwrap();
        let rounded =
            |times: FloorTimes| [times.one_thread_ms, times.all_threads_ms].map(f64::round);
        let blocks = 18_460.0;
        for (aggregate, proof) in [("none", 0.0), ("sha256", 500.0), ("muhash", 20_000.0)] {
            let of = floor.of(aggregate).unwrap();
            let validation = blocks + proof;
            assert_eq!(rounded(of.validation), [validation, validation / 2.0]);
            // Two threads: the stream of 460 ms fits next to the writing of coins. The set's MuHash is not
            // requested.
            assert_eq!(rounded(of.run), [validation + 2_460.0, validation / 2.0 + 1_230.0]);
        }
        assert_eq!(floor.of("xor"), None);
    }

    #[test]
    fn a_stream_counts_fully_without_other_work() {
        let alone = ChainWork { coins: 0, coin_bytes: 0, ..work() };
        let floor = ChainFloor::new(alone, &limits()).unwrap();
        let of = floor.of("none").unwrap();
        assert_eq!((of.run.one_thread_ms - of.validation.one_thread_ms).round(), 460.0);
        assert_eq!((of.run.all_threads_ms - of.validation.all_threads_ms).round(), 460.0);
    }

    #[test]
    fn plain_files_skip_deobfuscation_and_no_kernel_means_no_floor() {
        let plain = ChainFloor::new(ChainWork { obfuscated: false, ..work() }, &limits()).unwrap();
        assert_eq!(plain.items[1].times, FloorTimes::default());
        let none = MachineLimits { kernels: Vec::new(), ..limits() };
        assert_eq!(ChainFloor::new(work(), &none), None);
    }
}

#[cfg(test)]
mod rates_tests {
    use super::*;

    fn rate(one_thread: f64) -> WorkRate {
        WorkRate { one_thread, all_threads: 2.0 * one_thread }
    }

    fn kernel(name: &str, rates: [f64; 5]) -> KernelRates {
        let [a, b, c, d, e] = rates.map(rate);
        KernelRates {
            kernel: name.to_owned(),
            transactions: a,
            transactions_of_one_length: b,
            merkle_nodes: c,
            outpoints: d,
            stream: e,
        }
    }

    #[test]
    fn the_best_kernel_of_each_shape_counts() {
        let limits = MachineLimits {
            threads: 2,
            copy_large: rate(1.0),
            copy_cached: rate(1.0),
            read: rate(1.0),
            obfuscation: rate(1.0),
            parse: rate(1.0),
            muhash: rate(1.0),
            write: rate(1.0),
            kernels: vec![
                kernel("lanes", [5.0, 7.0, 8.0, 9.0, 1.0]),
                kernel("single", [6.0, 4.0, 3.0, 3.0, 2.0]),
            ],
        };
        let best = limits.best_kernel().unwrap();
        assert_eq!(best, kernel("best", [7.0, 7.0, 8.0, 9.0, 2.0]));
        assert_eq!(best.outpoints.scaling(), 2.0);
        assert_eq!(MachineLimits { kernels: Vec::new(), ..limits }.best_kernel(), None);
    }
}
