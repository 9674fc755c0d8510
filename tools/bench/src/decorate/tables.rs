//! Times for people, beside those of another batcher that were published.

use super::{Course, Decorated, WithCallers};
use crate::table::{Table, grouped};

/// What Teranode says of its batcher, for 1,000 transactions of 3 inputs, a store of 500 us, batches
/// of 100 and a deadline of 10 ms, on an Apple M3 Max: pull request 864 of bsv-blockchain/teranode.
/// There a transaction's coins are taken before the next one's are handed in, and a batch that is
/// not full waits for its deadline.
const PUBLISHED: &[(usize, f64)] = &[(1, 10_720.0), (4, 2_680.0), (16, 680.0), (64, 19.0)];
const PUBLISHED_SEQUENTIAL_MS: f64 = 10_680.0;

/// All times, by numbers of callers.
pub fn table(found: &Decorated) -> Table {
    let columns = [
        "callers",
        "callers alone ms",
        "whole block ms",
        "greatest",
        "first ms",
        "batches",
        "each transaction ms",
        "greatest",
        "first ms",
        "batches",
        "Teranode's ms",
    ];
    let title = format!(
        "Coins of {} transactions of {} inputs, a store that takes {} ({:.0} us as this system sleeps), batches \
         of {}, {} rounds",
        grouped(found.txs.into()),
        found.inputs,
        time(found.latency_us),
        found.slept_us.median,
        found.batch,
        found.rounds,
    );
    let mut table = Table::new(title, &columns);
    let same = (found.txs, found.inputs, found.latency_us, found.batch, found.deadline_us)
        == (1000, 3, 500, 100, 10_000);
    let theirs = |ms: Option<f64>| ms.filter(|_| same).map_or("-".to_owned(), milliseconds);
    let plain = &found.plain_ms;
    let none = || "-".to_owned();
    table.row([
        "no batcher".to_owned(),
        none(),
        none(),
        none(),
        none(),
        none(),
        milliseconds(plain.median),
        milliseconds(plain.max),
        none(),
        found.txs.to_string(),
        theirs(Some(PUBLISHED_SEQUENTIAL_MS)),
    ]);
    for WithCallers { callers, alone_ms, each, block } in &found.measured {
        let published = PUBLISHED.iter().find(|(count, _)| count == callers);
        let cells = |course: &Course| {
            let Course { first_ms, ms, batches, .. } = course;
            let [ms, greatest, first] = [ms.median, ms.max, first_ms.median].map(milliseconds);
            [ms, greatest, first, batches.to_string()]
        };
        let (block, each) = (cells(block), cells(each));
        let first = [callers.to_string(), milliseconds(alone_ms.median)];
        let row = first.into_iter().chain(block).chain(each);
        table.row(row.chain([theirs(published.map(|(_, ms)| *ms))]));
    }
    table
}

fn milliseconds(value: f64) -> String {
    format!("{value:.3}")
}

fn time(us: u64) -> String {
    if us.is_multiple_of(1000) { format!("{} ms", us / 1000) } else { format!("{us} us") }
}
