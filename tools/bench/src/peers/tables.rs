//! Times and ratios for people.

use super::{Found, Measured, Who};
use crate::table::{Table, bytes, grouped};

/// What each took, and how they compare.
pub fn table(found: &Found) -> Table {
    let transport = if found.v2transport { "encrypted" } else { "plaintext" };
    let line = found.line.as_ref().map_or_else(String::new, |line| format!(" on lines of {line}"));
    // Files that do not tell are of nodes that looked outputs up.
    let node = match found.bip30_lookups {
        _ if !found.measured.iter().any(|it| it.who == Who::Bitcoind) => "",
        Some(false) => "; bitcoind without BIP-30 look-ups, as on the main chain",
        Some(true) | None => "; bitcoind with regtest's BIP-30 look-ups",
    };
    let output = found.output.as_deref().map_or("nothing".to_owned(), |it| format!("a {it}"));
    let title = format!(
        "{} blocks, {}, from {} nodes{line}, {transport}, dbcache={}, {} rounds; apus writes {output}{node}",
        grouped(found.blocks),
        bytes(found.bytes as f64),
        found.peers,
        found.dbcache_mib,
        found.rounds,
    );
    let others: Vec<Who> = found.measured.iter().map(|it| it.who).collect();
    let over: Vec<String> = others.iter().map(|who| format!("over {who}")).collect();
    let mut columns = vec!["who", "s", "least", "greatest", "MB/s", "CPU s", "peak memory"];
    let lines = found.measured.iter().any(|it| it.line_share.is_some());
    columns.extend(lines.then_some("of the lines"));
    columns.extend(over.iter().map(String::as_str));
    let mut table = Table::new(title, &columns);
    for it in &found.measured {
        table.row(row(it, lines, &others));
    }
    table
}

fn row(it: &Measured, lines: bool, others: &[Who]) -> Vec<String> {
    let two = |value: f64| format!("{value:.2}");
    let mut cells = vec![
        it.who.to_string(),
        two(it.wall_seconds.median),
        two(it.wall_seconds.min),
        two(it.wall_seconds.max),
        format!("{:.0}", it.bytes_per_second / 1e6),
        two(it.cpu_seconds.median),
        it.rss_peak_bytes.map_or("-".to_owned(), |peak| bytes(peak as f64)),
    ];
    let share = it.line_share.map_or("-".to_owned(), |part| format!("{:.1} %", 100.0 * part));
    cells.extend(lines.then_some(share));
    cells.extend(
        others
            .iter()
            .map(|other| it.over.get(other).map_or("-".to_owned(), |spread| two(spread.median))),
    );
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::run::SetResult;
    use crate::stats::Spread;
    use std::collections::BTreeMap;

    fn found() -> Found {
        let one = Spread { median: 2.0, min: 1.5, max: 4.0 };
        let it = |who, other, share| Measured {
            who,
            runs: Vec::new(),
            wall_seconds: one,
            cpu_seconds: one,
            rss_peak_bytes: None,
            bytes_per_second: 5e6,
            line_share: share,
            over: BTreeMap::from([(other, Spread { median: 1.25, min: 1.0, max: 2.0 })]),
        };
        Found {
            version: super::super::VERSION,
            machine: Machine::here(),
            bitcoind: "a node".to_owned(),
            bip30_lookups: Some(true),
            chain: "small".to_owned(),
            blocks: 2_400,
            bytes: 10_000_000,
            peers: 8,
            v2transport: true,
            dbcache_mib: 450,
            line: Some("20mbit,50ms,0%".to_owned()),
            stall_after_seconds: Some(2.0),
            output: Some("chainstate".to_owned()),
            rounds: 3,
            set: SetResult {
                stop_height: 2_400,
                stop_hash: String::new(),
                coins: 1,
                total_amount_sat: 2,
                muhash: None,
                hash_serialized_3: None,
                utreexo: None,
            },
            measured: vec![
                it(Who::Apus, Who::ApusStalled, Some(0.953)),
                it(Who::ApusStalled, Who::Apus, None),
            ],
        }
    }

    #[test]
    fn ratios_stand_under_their_names() {
        let text = table(&found()).text();
        let mut lines = text.lines();
        let title = lines.next().unwrap();
        assert!(
            title.starts_with("2,400 blocks, 10.0 MB, from 8 nodes on lines of 20mbit"),
            "{title}"
        );
        assert!(
            title.contains("encrypted")
                && title.ends_with("apus writes a chainstate")
                && !title.contains("BIP-30"),
            "{title}"
        );
        let mut with_node = found();
        with_node.measured[0].who = Who::Bitcoind;
        let title = table(&with_node).title;
        assert!(title.ends_with("with regtest's BIP-30 look-ups"), "{title}");
        assert!(lines.next().unwrap().ends_with("of the lines  over apus  over apus, one stalls"));
        assert!(lines.next().unwrap().contains("95.3 %"));
        assert!(lines.next().unwrap().contains("1.25"));
    }

    #[test]
    fn what_is_written_is_read() {
        let json = serde_json::to_string(&found()).unwrap();
        assert!(json.contains("\"apus_stalled\":{\"median\":1.25"), "{json}");
        assert_eq!(serde_json::from_str::<Found>(&json).unwrap(), found());
    }

    #[test]
    fn every_field_is_documented() {
        let page = include_str!("../../../../docs/formats/bench.md");
        let value = serde_json::to_value(found()).unwrap();
        let measured = &value["measured"][0];
        let fields = value.as_object().unwrap().keys().chain(measured.as_object().unwrap().keys());
        for field in fields {
            assert!(page.contains(&format!("`{field}`")), "{field}");
        }
    }
}
