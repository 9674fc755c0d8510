//! Times and ratios for people.

use super::{CoinsPlace, Prevouts, WithThreads};
use crate::table::{Table, grouped};

/// All times, and how they compare with those without threads.
pub fn table(prevouts: &Prevouts) -> Table {
    let columns =
        ["a look-up waits", "threads", "block ms", "least", "greatest", "times faster", "least"];
    let place = match prevouts.place {
        CoinsPlace::Memory => "memory",
        CoinsPlace::Store => "a store",
        CoinsPlace::Servers => "a store on servers",
    };
    let title = format!(
        "Coins of a block of {} inputs, of {} coins in {place}, {} rounds",
        grouped(prevouts.inputs.into()),
        grouped(prevouts.coins.into()),
        prevouts.rounds,
    );
    let mut table = Table::new(title, &columns);
    for at in &prevouts.latencies {
        for with in &at.measured {
            table.row(row(at.latency_us, with));
        }
    }
    table
}

fn row(latency_us: u64, with: &WithThreads) -> [String; 7] {
    let WithThreads { threads, block_ms, times_faster } = with;
    let waits = match latency_us {
        0 => "not".to_owned(),
        us if us % 1000 == 0 => format!("{} ms", us / 1000),
        us => format!("{us} us"),
    };
    let threads = match threads {
        None => "a plain loop".to_owned(),
        Some(0) => "off".to_owned(),
        Some(threads) => threads.to_string(),
    };
    let ms = |value: f64| format!("{value:.3}");
    let times = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    [
        waits,
        threads,
        ms(block_ms.median),
        ms(block_ms.min),
        ms(block_ms.max),
        times(times_faster.map(|spread| spread.median)),
        times(times_faster.map(|spread| spread.min)),
    ]
}
