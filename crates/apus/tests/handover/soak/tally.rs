//! Counts of events, by kind of folder.

use std::collections::BTreeMap;
use std::fmt;

/// Minimum depth of each class of reorganisations.
const DEPTHS: [usize; 4] = [1, 2, 10, 50];

/// The events of nodes on one kind of folder.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) lives: usize,
    /// By class of depth.
    reorganisations: [usize; DEPTHS.len()],
    pub(crate) blocks: usize,
    /// Blocks that both nodes refused.
    pub(crate) refused: usize,
    pub(crate) restarts: usize,
    pub(crate) kills: usize,
    /// `verifychain`, with every level.
    pub(crate) verifications: usize,
    /// Comparisons of coins and tip with the reference.
    pub(crate) comparisons: usize,
    /// Calls after which there were fewer blocks.
    pub(crate) prunes: usize,
    /// Times that the program made coins or a folder from the stopped node's files.
    pub(crate) runs_between: usize,
}

impl Counts {
    pub(crate) fn reorganised(&mut self, depth: usize) {
        let class = DEPTHS.iter().rposition(|least| depth >= *least).unwrap();
        self.reorganisations[class] += 1;
    }

    pub(crate) fn reorganisations(&self) -> usize {
        self.reorganisations.iter().sum()
    }

    fn columns(&self) -> Vec<usize> {
        let mut columns = vec![self.lives, self.blocks, self.refused];
        columns.extend(self.reorganisations);
        columns.extend([self.restarts, self.kills, self.verifications, self.comparisons]);
        columns.extend([self.prunes, self.runs_between]);
        columns
    }
}

const HEADS: [[&str; 13]; 2] = [
    [
        "", "blocks", "blocks", "back", "back", "back", "back", "re-", "", "verifi-", "compa-", "",
        "runs",
    ],
    [
        "lives", "taken", "refused", "1", "2-9", "10-49", "50-100", "starts", "kills", "cations",
        "risons", "prunes", "between",
    ],
];
const WIDTHS: [usize; 13] = [5, 6, 7, 5, 5, 5, 6, 6, 5, 7, 6, 6, 7];

/// The counts of each kind, by name.
#[derive(Debug, Default)]
pub(crate) struct Tally(BTreeMap<&'static str, Counts>);

impl Tally {
    pub(crate) fn of(&mut self, kind: &'static str) -> &mut Counts {
        self.0.entry(kind).or_default()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for head in HEADS {
            line(f, "", &head)?;
        }
        let mut sums = vec![0; WIDTHS.len()];
        for (name, counts) in &self.0 {
            let columns = counts.columns();
            line(f, name, &columns)?;
            sums.iter_mut().zip(columns).for_each(|(sum, count)| *sum += count);
        }
        line(f, "all", &sums)
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, columns: &[impl fmt::Display]) -> fmt::Result {
    write!(f, "{name:18}")?;
    for (column, width) in columns.iter().zip(WIDTHS) {
        write!(f, " {column:>width$}")?;
    }
    writeln!(f)
}
