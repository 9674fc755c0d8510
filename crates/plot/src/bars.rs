//! [`bars`]: a few numbers beside each other.
//!
//! Lengths begin at zero and are never logarithmic, so that twice as long means twice as much. What
//! the numbers are, and in which order, is for the caller.

use super::axis::{Scale, Spacing};
use super::font::{Weight, fit, width};
use super::picture::{Anchor, FRAME, GREY, GRID, INK, PALETTE, Picture, Stroke, Text};
use super::words;
use thiserror::Error;

const WIDTH: f64 = 800.0;
const MARGIN: f64 = 24.0;
const ROW: f64 = 30.0;
const THICKNESS: f64 = 16.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = 56.0;
const LABEL_MAX: f64 = 280.0;

/// A row of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// What was measured.
    pub label: String,
    /// The number, such as a median: its bar is as long.
    pub value: f64,
    /// Least and greatest of all measurements, drawn as a thin line.
    pub spread: Option<(f64, f64)>,
    /// Rows of one series have one colour; 0 is the first.
    pub series: usize,
}

impl Bar {
    /// A row of the first series.
    pub fn new(label: impl Into<String>, value: f64, spread: Option<(f64, f64)>) -> Self {
        Self { label: label.into(), value, spread, series: 0 }
    }

    /// The same in another colour.
    pub fn series(self, series: usize) -> Self {
        Self { series, ..self }
    }
}

/// Why there is no chart.
#[derive(Debug, Error, PartialEq)]
pub enum BarsError {
    /// Nothing to draw.
    #[error("a chart needs at least one bar")]
    Empty,
    /// A bar must have a length.
    #[error("the bar {label:?} has the value {value}, which is no finite number from zero upwards")]
    Value {
        /// Of the row.
        label: String,
        /// Or an end of its spread.
        value: f64,
    },
}

/// A chart of horizontal bars, one a row from top to bottom, each with its number.
///
/// `unit` stands below the axis, such as `seconds` or `MB of blocks per second`.
pub fn bars(title: &str, unit: &str, rows: &[Bar]) -> Result<Picture, BarsError> {
    let mut most = 0.0_f64;
    for row in rows {
        let (least, greatest) = row.spread.unwrap_or((row.value, row.value));
        for value in [row.value, least, greatest] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(BarsError::Value { label: row.label.clone(), value });
            }
            most = most.max(value);
        }
    }
    if rows.is_empty() {
        return Err(BarsError::Empty);
    }
    let height = TOP + rows.len() as f64 * ROW + BOTTOM;
    let mut picture = Picture::new(WIDTH, height, title);
    let head = fit(title, 17.0, Weight::Bold, WIDTH - 2.0 * MARGIN);
    picture.text(Text::new(MARGIN, 36.0, head).size(17.0).bold());
    let scale = layout(rows, most);
    axis(&mut picture, &scale, unit, height);
    for (index, row) in rows.iter().enumerate() {
        draw_row(&mut picture, &scale, row, TOP + (index as f64 + 0.5) * ROW);
    }
    Ok(picture)
}

fn value_words(row: &Bar) -> String {
    let value = words::number(row.value);
    match row.spread {
        Some((least, greatest)) if least < greatest => {
            format!("{value} ({}–{})", words::number(least), words::number(greatest))
        }
        _ => value,
    }
}

/// The horizontal scale, between the longest label and the longest number.
fn layout(rows: &[Bar], most: f64) -> Scale {
    let widest = |of: &dyn Fn(&Bar) -> String| {
        rows.iter().map(|row| width(&of(row), 12.0, Weight::Regular)).fold(0.0, f64::max)
    };
    let left = MARGIN + widest(&|row| row.label.clone()).min(LABEL_MAX) + 12.0;
    let right = WIDTH - MARGIN - widest(&value_words) - 8.0;
    let top = if most > 0.0 { most } else { 1.0 };
    Scale::new(Spacing::Linear, (0.0, top), (left, right))
}

fn axis(picture: &mut Picture, scale: &Scale, unit: &str, height: f64) {
    let (top, bottom) = (TOP - 4.0, height - BOTTOM + 4.0);
    for tick in scale.number_ticks(6) {
        picture.line(&[(tick.at, top), (tick.at, bottom)], Stroke::new(GRID, 1.0));
        let label = Text::new(tick.at, bottom + 16.0, tick.label).size(11.0);
        picture.text(label.colour(GREY).anchor(Anchor::Middle));
    }
    let zero = scale.at(0.0);
    picture.line(&[(zero, top), (zero, bottom)], Stroke::new(FRAME, 1.0));
    picture.text(Text::new(zero, bottom + 36.0, unit).colour(GREY));
}

fn draw_row(picture: &mut Picture, scale: &Scale, row: &Bar, middle: f64) {
    let zero = scale.at(0.0);
    let (baseline, length) = (middle + 4.3, scale.at(row.value) - zero);
    let label = fit(&row.label, 12.0, Weight::Regular, LABEL_MAX);
    picture.text(Text::new(zero - 12.0, baseline, label).anchor(Anchor::End));
    let colour = PALETTE[row.series % PALETTE.len()];
    let top = middle - THICKNESS / 2.0;
    picture.rectangle(zero, top, length.max(0.5), THICKNESS, colour);
    let mut end = zero + length;
    if let Some((least, greatest)) = row.spread.filter(|(least, greatest)| least < greatest) {
        let (from, to) = (scale.at(least), scale.at(greatest));
        let thin = Stroke::new(INK, 1.2);
        picture.line(&[(from, middle), (to, middle)], thin);
        for end in [from, to] {
            picture.line(&[(end, middle - 4.0), (end, middle + 4.0)], thin);
        }
        end = end.max(to);
    }
    picture.text(Text::new(end + 8.0, baseline, value_words(row)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Shape;
    use crate::picture::tests::assert_inside;
    use proptest::prelude::*;

    fn lengths(picture: &Picture) -> Vec<f64> {
        let lengths = picture.shapes.iter().filter_map(|shape| match shape {
            Shape::Box { width, .. } => Some(*width),
            _ => None,
        });
        lengths.collect()
    }

    #[test]
    fn lengths_are_as_the_values() {
        let rows = [
            Bar::new("Bitcoin Core", 100.0, Some((95.0, 120.0))).series(1),
            Bar::new("Apus", 4.0, Some((3.9, 4.2))),
            Bar::new("floor", 2.0, None),
        ];
        let picture = bars("Wall time", "seconds", &rows).unwrap();
        let lengths = lengths(&picture);
        assert!((lengths[0] / lengths[1] - 25.0).abs() < 1e-9);
        assert!((lengths[1] / lengths[2] - 2.0).abs() < 1e-9);
        let svg = picture.to_svg();
        for words in ["Wall time", ">seconds<", ">100 (95.0–120)<", ">2.00<", ">Apus<"] {
            assert!(svg.contains(words), "{words} is not in {svg}");
        }
    }

    #[test]
    fn what_has_no_length_is_an_error() {
        assert_eq!(bars("t", "u", &[]), Err(BarsError::Empty));
        for (value, spread) in
            [(f64::NAN, None), (-1.0, None), (f64::INFINITY, None), (1.0, Some((0.5, f64::NAN)))]
        {
            let error = bars("t", "u", &[Bar::new("bad", value, spread)]).unwrap_err();
            assert!(error.to_string().contains("\"bad\""), "{error}");
        }
        assert!(bars("t", "u", &[Bar::new("zero", 0.0, None)]).is_ok());
    }

    proptest! {
        #[test]
        fn nothing_leaves_the_sheet(
            rows in prop::collection::vec((any::<String>(), 0.0..1e12, 0.0..2.0, 0.0..2.0), 1..20),
        ) {
            let rows: Vec<Bar> = rows
                .into_iter()
                .map(|(label, value, a, b)| Bar::new(label, value, Some((value * a, value * b))))
                .collect();
            let picture = bars("title", "unit", &rows).unwrap();
            assert_inside(&picture);
        }
    }
}
