//! [`TextTable`]: tables for people, as plain text and as Markdown, and the numbers in them.

use serde::{Deserialize, Serialize};

pub use apus_sync::numbers::grouped;

/// A table with a title. All columns but the first are right-aligned numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextTable {
    /// Its title.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Each row has one cell per column.
    pub rows: Vec<Vec<String>>,
}

impl TextTable {
    /// A table without rows.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|name| (*name).to_owned()).collect();
        Self { title: title.into(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Plain text for a terminal.
    pub fn text(&self) -> String {
        let lines = || std::iter::once(&self.columns).chain(&self.rows);
        let width = |column: usize| {
            let cells = lines().filter_map(|cells| cells.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = format!("{}\n", self.title);
        for cells in lines() {
            let mut line = String::new();
            for (index, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
                if index == 0 {
                    line.push_str(&format!("  {cell:<width$}"));
                } else {
                    line.push_str(&format!("  {cell:>width$}"));
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// The same in Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut text = format!("### {}\n\n", self.title);
        text.push_str(&line(&self.columns));
        let rule: Vec<&str> =
            (0..self.columns.len()).map(|index| if index == 0 { "---" } else { "---:" }).collect();
        text.push_str(&format!("|{}|\n", rule.join("|")));
        self.rows.iter().for_each(|row| text.push_str(&line(row)));
        text
    }
}

/// Three digits, with the letter for thousands (k), millions (M) or billions (G).
pub fn short(number: f64) -> String {
    let (scaled, letter) = match number.abs() {
        1e9.. => (number / 1e9, " G"),
        1e6.. => (number / 1e6, " M"),
        1e4.. => (number / 1e3, " k"),
        _ => (number, ""),
    };
    let decimals = match scaled.abs() {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{scaled:.decimals$}{letter}")
}

/// Bytes in the largest unit that keeps them above one.
pub fn bytes(count: f64) -> String {
    format!("{}B", if count < 1e4 { format!("{count:.0} ") } else { spaced(&short(count)) })
}

fn spaced(short: &str) -> String {
    if short.ends_with(|letter: char| letter.is_ascii_digit()) {
        format!("{short} ")
    } else {
        short.to_owned()
    }
}

// ---- spreads ----
//
// Neither mean nor deviation: timing errors are one-sided, and five runs have no distribution.

/// A summary of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeasuredSpread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl MeasuredSpread {
    /// Summarizes measurements; `None` if there are none, or if one is not a number.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.iter().any(|value| value.is_nan()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            sorted[middle - 1].midpoint(sorted[middle])
        };
        Some(Self { median, min, max })
    }

    /// Summarizes the ratios of paired measurements. The median is the ratio of the medians, which may come
    /// from different pairs, so it can lie outside the range of the pairs' ratios.
    pub(crate) fn of_ratios(ones: &[f64], others: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = ones.iter().zip(others).map(|(one, other)| one / other).collect();
        let Self { min, max, .. } = Self::of(&ratios)?;
        let median = Self::of(ones)?.median / Self::of(others)?.median;
        Some(Self { median, min: min.min(median), max: max.max(median) })
    }

    /// Median, minimum and maximum with this many decimals.
    pub(crate) fn cells(&self, decimals: usize) -> [String; 3] {
        [self.median, self.min, self.max].map(|value| format!("{value:.decimals$}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_markdown_have_the_same_rows() {
        let mut table = TextTable::new("Speed", &["what", "s", "MB/s"]);
        table.row(["apus".to_owned(), "1.5".to_owned(), "600".to_owned()]);
        table.row(["a node".to_owned(), "20".to_owned(), "9".to_owned()]);
        assert_eq!(
            table.text(),
            "Speed\n  what      s  MB/s\n  apus    1.5   600\n  a node   20     9\n"
        );
        assert_eq!(
            table.markdown(),
            "### Speed\n\n| what | s | MB/s |\n|---|---:|---:|\n| apus | 1.5 | 600 |\n| a node | 20 | 9 |\n"
        );
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (number, text) in [
            (0.0, "0.00"),
            (9.996, "10.00"),
            (1_234.0, "1234"),
            (12_345.0, "12.3 k"),
            (81_200_000.0, "81.2 M"),
            (9.5e9, "9.50 G"),
        ] {
            assert_eq!(short(number), text);
        }
        assert_eq!(bytes(999.0), "999 B");
        assert_eq!(bytes(52_400_000.0), "52.4 MB");
        assert_eq!(bytes(1.5e9), "1.50 GB");
    }
}

#[cfg(test)]
mod stats_tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spreads_match_known_values() {
        let spread = |values: &[f64]| MeasuredSpread::of(values).map(|s| [s.median, s.min, s.max]);
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[1.0, f64::NAN]), None);
        assert_eq!(spread(&[3.0]), Some([3.0; 3]));
        assert_eq!(spread(&[4.0, 1.0]), Some([2.5, 1.0, 4.0]));
        assert_eq!(spread(&[9.0, 1.0, 2.0]), Some([2.0, 1.0, 9.0]));
        assert_eq!(spread(&[9.0, 1.0, 2.0, 3.0]), Some([2.5, 1.0, 9.0]));
    }

    proptest! {
        #[test]
        fn at_most_half_lies_on_each_side_of_the_median(
            values in prop::collection::vec(-1e9..1e9, 1..20),
            cut in any::<prop::sample::Index>(),
        ) {
            let spread = MeasuredSpread::of(&values).unwrap();
            let below = values.iter().filter(|value| **value < spread.median).count();
            let above = values.iter().filter(|value| **value > spread.median).count();
            prop_assert!(below * 2 <= values.len() && above * 2 <= values.len());
            prop_assert!(values.contains(&spread.min) && values.contains(&spread.max));
            prop_assert!(values.iter().all(|v| (spread.min..=spread.max).contains(v)));
            let mut turned = values.clone();
            turned.rotate_left(cut.index(values.len()));
            prop_assert_eq!(MeasuredSpread::of(&turned), Some(spread));
        }
    }
}
