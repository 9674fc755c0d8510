//! Times and ratios for people.

use super::{Chainstate, MeasuredPart, Part};
use crate::table::{Table, bytes, grouped};

/// What each part took, and how it compares with copying.
pub fn table(found: &Chainstate) -> Table {
    let columns = [
        "part",
        "s",
        "least",
        "greatest",
        "MB/s",
        "M coins/s",
        "CPU s",
        "peak memory",
        "over copy",
        "least",
        "greatest",
    ];
    let title = format!(
        "A chainstate of {} coins, {}, {} rounds",
        grouped(found.coins),
        bytes(found.chainstate_bytes as f64),
        grouped(found.rounds.into()),
    );
    let mut table = Table::new(title, &columns);
    found.parts.iter().for_each(|it| table.row(row(found, it)));
    table
}

fn row(found: &Chainstate, it: &MeasuredPart) -> [String; 11] {
    let MeasuredPart { part, wall_seconds: wall, cpu_seconds, rss_peak_bytes, over_copy } = it;
    let part = match part {
        Part::Make => "make",
        Part::Copy => "copy, durable",
        Part::Write => "write, durable",
        Part::Check => "check: read back, hash",
    };
    let a_second = |count: u64| format!("{:.2}", count as f64 / wall.median / 1e6);
    let two = |value: f64| format!("{value:.2}");
    [
        part.to_owned(),
        two(wall.median),
        two(wall.min),
        two(wall.max),
        format!("{:.0}", found.chainstate_bytes as f64 / wall.median / 1e6),
        a_second(found.coins),
        two(cpu_seconds.median),
        rss_peak_bytes.map_or("-".to_owned(), |peak| bytes(peak as f64)),
        two(over_copy.median),
        two(over_copy.min),
        two(over_copy.max),
    ]
}
