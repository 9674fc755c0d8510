//! [`ChainFloor`]: amounts of work over the machine's rates, item by item, and their sums.
//!
//! On all threads an item takes its amount over the rate of all threads together, except the one
//! that is a single stream by definition: `hash_serialized_3` runs over the sorted set from end to
//! end, which no second thread can help, though other threads can do other things beside it.

use super::rates::{Limits, Rate};
use super::work::Work;
use serde::{Deserialize, Serialize};

/// Bytes of a block's record in a file before the block.
const RECORD_HEAD: u64 = 8;

/// What an item belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Blocks, up to being known as valid.
    Blocks,
    /// The proof by keyed SHA-256.
    AggregateSha256,
    /// The proof by MuHash, which takes its place.
    AggregateMuhash,
    /// The finished set.
    Set,
    /// Its MuHash, which runs compute where it is asked for.
    SetMuhash,
}

/// Times on one thread and on all of them, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// On one thread.
    pub one_thread_ms: f64,
    /// On all threads.
    pub all_threads_ms: f64,
}

/// One kind of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// What it is.
    pub item: String,
    /// What it belongs to.
    pub part: Part,
    /// How much there is.
    pub amount: u64,
    /// Of what.
    pub unit: String,
    /// Units per second.
    pub rate: Rate,
    /// How long it takes.
    pub times: Times,
    /// Whether only one thread can do it.
    pub serial: bool,
}

/// The floor of a run with one kind of aggregate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FloorOf {
    /// `none`, `sha256` or `muhash`.
    pub aggregate: String,
    /// Blocks and proof.
    pub validation: Times,
    /// The set's hash and coins too: all that a run does which is not asked for a MuHash.
    pub run: Times,
}

/// The floor of a chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChainFloor {
    /// How much work there is.
    pub work: Work,
    /// The kinds of work.
    pub items: Vec<Item>,
    /// The sums, by aggregate.
    pub floors: Vec<FloorOf>,
}

impl ChainFloor {
    /// Sums up `work` at the rates of `limits`; none if these have no kernel.
    pub fn new(work: Work, limits: &Limits) -> Option<Self> {
        let items = items(&work, limits)?;
        let floors = [
            ("none", None),
            ("sha256", Some(Part::AggregateSha256)),
            ("muhash", Some(Part::AggregateMuhash)),
        ]
        .map(|(aggregate, proof)| FloorOf {
            aggregate: aggregate.to_owned(),
            validation: sum(&items, &|part| part == Part::Blocks || Some(part) == proof),
            run: sum(&items, &|part| {
                matches!(part, Part::Blocks | Part::Set) || Some(part) == proof
            }),
        });
        Some(Self { work, items, floors: floors.into() })
    }

    /// The floor with this aggregate.
    pub fn of(&self, aggregate: &str) -> Option<&FloorOf> {
        self.floors.iter().find(|floor| floor.aggregate == aggregate)
    }
}

/// Blocks and proof, then the set. What one thread alone can do is no longer than the rest of its
/// part where the other threads have that to do meanwhile.
fn sum(items: &[Item], counts: &dyn Fn(Part) -> bool) -> Times {
    let mut times = Times::default();
    let (mut blocks, mut set, mut stream) = (0.0, 0.0, 0.0);
    for item in items.iter().filter(|item| counts(item.part)) {
        times.one_thread_ms += item.times.one_thread_ms;
        let share = milliseconds(item.amount, item.rate.all_threads);
        if item.part == Part::Set {
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

fn items(work: &Work, limits: &Limits) -> Option<Vec<Item>> {
    let hashes = limits.best_kernel()?;
    let need = &work.compressions;
    let spent = 2 * work.inputs;
    let file_bytes = work.bytes + RECORD_HEAD * work.blocks;
    let obfuscated = if work.obfuscated { file_bytes } else { 0 };
    let stream = (work.element_bytes + 9).div_ceil(64) + 1;
    let (txs, nodes) = (hashes.transactions, hashes.merkle_nodes);
    let (read, unmask, write) = (limits.read, limits.obfuscation, limits.write);
    let rows = [
        ("reading from the page cache", Part::Blocks, file_bytes, "bytes", read),
        ("de-obfuscation", Part::Blocks, obfuscated, "bytes", unmask),
        ("parsing", Part::Blocks, work.bytes, "bytes", limits.parse),
        ("block hashes", Part::Blocks, need.headers, "compressions", nodes),
        ("transaction ids", Part::Blocks, need.txids, "compressions", txs),
        ("merkle trees", Part::Blocks, need.merkle, "compressions", nodes),
        ("ids with witness", Part::Blocks, need.wtxids, "compressions", txs),
        ("witness trees", Part::Blocks, need.witness_merkle, "compressions", nodes),
        ("outpoints, SHA-256", Part::AggregateSha256, spent, "compressions", hashes.outpoints),
        ("outpoints, MuHash", Part::AggregateMuhash, spent, "elements", limits.muhash),
        ("muhash", Part::SetMuhash, work.coins, "coins", limits.muhash),
        (STREAM, Part::Set, stream, "compressions", hashes.stream),
        ("writing coins", Part::Set, work.coin_bytes, "bytes", write),
    ];
    Some(rows.into_iter().map(item).collect())
}

fn milliseconds(amount: u64, per_second: f64) -> f64 {
    if amount == 0 { 0.0 } else { amount as f64 / per_second * 1e3 }
}

fn item((name, part, amount, unit, rate): (&str, Part, u64, &str, Rate)) -> Item {
    let serial = name == STREAM;
    let one_thread_ms = milliseconds(amount, rate.one_thread);
    let all_threads_ms =
        if serial { one_thread_ms } else { milliseconds(amount, rate.all_threads) };
    Item {
        item: name.to_owned(),
        part,
        amount,
        unit: unit.to_owned(),
        rate,
        times: Times { one_thread_ms, all_threads_ms },
        serial,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::rates::KernelRates;
    use crate::floor::work::Compressions;

    fn rate(one_thread: f64) -> Rate {
        Rate { one_thread, all_threads: 2.0 * one_thread }
    }

    /// Round numbers, so that every time can be worked out in the head.
    fn limits() -> Limits {
        Limits {
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

    fn work() -> Work {
        Work {
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
                // 19 coins of 71 bytes: 22 blocks, and the digest once more.
                ("hash_serialized_3", 460.0),
                ("writing coins", 2_000.0),
            ]
        );
    }

    #[test]
    fn sums_take_the_aggregate_that_is_asked_for_and_the_set_apart() {
        let floor = ChainFloor::new(work(), &limits()).unwrap();
        let rounded = |times: Times| [times.one_thread_ms, times.all_threads_ms].map(f64::round);
        let blocks = 18_460.0;
        for (aggregate, proof) in [("none", 0.0), ("sha256", 500.0), ("muhash", 20_000.0)] {
            let of = floor.of(aggregate).unwrap();
            let validation = blocks + proof;
            assert_eq!(rounded(of.validation), [validation, validation / 2.0]);
            // Two threads: the stream of 460 ms fits beside the writing of coins. The set's MuHash is not asked for.
            assert_eq!(rounded(of.run), [validation + 2_460.0, validation / 2.0 + 1_230.0]);
        }
        assert_eq!(floor.of("xor"), None);
    }

    #[test]
    fn a_stream_is_waited_for_where_there_is_nothing_beside_it() {
        let alone = Work { coins: 0, coin_bytes: 0, ..work() };
        let floor = ChainFloor::new(alone, &limits()).unwrap();
        let of = floor.of("none").unwrap();
        assert_eq!((of.run.one_thread_ms - of.validation.one_thread_ms).round(), 460.0);
        assert_eq!((of.run.all_threads_ms - of.validation.all_threads_ms).round(), 460.0);
    }

    #[test]
    fn plain_files_need_no_de_obfuscation_and_no_kernel_no_floor() {
        let plain = ChainFloor::new(Work { obfuscated: false, ..work() }, &limits()).unwrap();
        assert_eq!(plain.items[1].times, Times::default());
        let none = Limits { kernels: Vec::new(), ..limits() };
        assert_eq!(ChainFloor::new(work(), &none), None);
    }
}
