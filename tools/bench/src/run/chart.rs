//! [`chart`]: wall times of a record as bars.

use super::matrix::{Names, Subject};
use super::record::{ChainRecord, Measured, Record};
use crate::table::bytes;
use apus_plot::{Bar, BarsError, Picture, bars};

/// Why there is no chart.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ChartError {
    /// Nothing was measured.
    #[error("the record holds no chain")]
    Empty,
    /// The drawing.
    #[error("{0}")]
    Bars(String),
}

impl From<BarsError> for ChartError {
    fn from(error: BarsError) -> Self {
        Self::Bars(error.to_string())
    }
}

/// One chain: wall time of every subject, and the floor. Several chains: speed of every subject on
/// each, where equal bars mean that it does not depend on the length.
pub fn chart(record: &Record) -> Result<Picture, ChartError> {
    let names = Names::of(record.chains.iter().flat_map(subjects));
    match &record.chains[..] {
        [] => Err(ChartError::Empty),
        [chain] => {
            let mut rows: Vec<Bar> = chain.measured.iter().map(|it| wall(it, &names)).collect();
            if let (Some(floor), Some(limits)) = (&chain.floor, &record.limits) {
                for of in &floor.floors {
                    let label = format!("floor {} par={}", of.aggregate, limits.threads);
                    let seconds = of.run.all_threads_ms / 1e3;
                    rows.push(Bar::new(label, seconds, None).series(2));
                }
            }
            let size = bytes(chain.counts.bytes as f64);
            let title = format!("Wall time for {}, {size} of blocks", chain.chain);
            Ok(bars(&title, "seconds", &rows)?)
        }
        [first, ..] => {
            let rows: Vec<Bar> = subjects(first)
                .flat_map(|subject| record.chains.iter().map(move |chain| (chain, subject)))
                .filter_map(|(chain, subject)| speed(chain, subject, &names))
                .collect();
            Ok(bars("Speed by length of the chain", "MB of blocks per second", &rows)?)
        }
    }
}

fn subjects(chain: &ChainRecord) -> impl Iterator<Item = &Subject> {
    chain.measured.iter().map(|measured| &measured.subject)
}

fn series(subject: &Subject) -> usize {
    usize::from(matches!(subject, Subject::Bitcoind { .. }))
}

fn wall(measured: &Measured, names: &Names) -> Bar {
    let wall = measured.wall_seconds;
    let bar = Bar::new(names.name(&measured.subject), wall.median, Some((wall.min, wall.max)));
    bar.series(series(&measured.subject))
}

fn speed(chain: &ChainRecord, subject: &Subject, names: &Names) -> Option<Bar> {
    let measured = chain.measured.iter().find(|measured| measured.subject == *subject)?;
    let rate = |seconds: f64| chain.counts.bytes as f64 / seconds / 1e6;
    let wall = measured.wall_seconds;
    let label = format!("{}: {}", chain.chain, names.name(subject));
    let spread = Some((rate(wall.max), rate(wall.min)));
    Some(Bar::new(label, rate(wall.median), spread).series(series(subject)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::record;

    #[test]
    fn one_chain_shows_times_and_several_show_speeds() {
        let svg = chart(&record(&["a"])).unwrap().to_svg();
        for words in [
            "Wall time for a, 800 MB of blocks",
            ">seconds<",
            ">bitcoind dbcache=450<",
            "floor sha256 par=2",
        ] {
            assert!(svg.contains(words), "{words} is not in {svg}");
        }
        let svg = chart(&record(&["a", "b"])).unwrap().to_svg();
        for words in
            ["Speed by length", "b: apus sha256 par=1 dbcache=450", "a: bitcoind dbcache=450"]
        {
            assert!(svg.contains(words), "{words} is not in {svg}");
        }
        assert_eq!(chart(&record(&[])), Err(ChartError::Empty));
    }
}
