//! [`chart`]: wall times of a record as bars.

use super::matrix::Subject;
use super::record::{ChainRecord, Measured, Record};
use crate::plot::{Bar, BarsError, Picture, bars};

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
    match &record.chains[..] {
        [] => Err(ChartError::Empty),
        [chain] => {
            let mut rows: Vec<Bar> = chain.measured.iter().map(wall).collect();
            if let (Some(floor), Some(limits)) = (&chain.floor, &record.limits) {
                for of in &floor.floors {
                    let label = format!("floor {} par={}", of.aggregate, limits.threads);
                    let seconds = of.run.all_threads_ms / 1e3;
                    rows.push(Bar::new(label, seconds, None).series(2));
                }
            }
            Ok(bars(&format!("Time for {}", chain.chain), "seconds", &rows)?)
        }
        chains => {
            let rows: Vec<Bar> = subjects(chains)
                .flat_map(|subject| chains.iter().filter_map(move |chain| speed(chain, subject)))
                .collect();
            Ok(bars("Speed by length of the chain", "MB of blocks per second", &rows)?)
        }
    }
}

fn series(subject: &Subject) -> usize {
    usize::from(matches!(subject, Subject::Bitcoind { .. }))
}

fn wall(measured: &Measured) -> Bar {
    let wall = measured.wall_seconds;
    let bar = Bar::new(measured.subject.to_string(), wall.median, Some((wall.min, wall.max)));
    bar.series(series(&measured.subject))
}

fn subjects(chains: &[ChainRecord]) -> impl Iterator<Item = &Subject> {
    chains.iter().take(1).flat_map(|chain| chain.measured.iter().map(|measured| &measured.subject))
}

fn speed(chain: &ChainRecord, subject: &Subject) -> Option<Bar> {
    let measured = chain.measured.iter().find(|measured| measured.subject == *subject)?;
    let rate = |seconds: f64| chain.counts.bytes as f64 / seconds / 1e6;
    let wall = measured.wall_seconds;
    let label = format!("{subject}, {}", chain.chain);
    let spread = Some((rate(wall.max), rate(wall.min)));
    Some(Bar::new(label, rate(wall.median), spread).series(series(subject)))
}
