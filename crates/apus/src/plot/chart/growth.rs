//! [`GrowthChart`]: draws how the UTXO set and the chain grow with height.

use super::{
    Axis, DrawError, HEAD, HEIGHTS, LETTERS, Letters, MARGIN, SVGBackend, Sheet, WIDTH, panel,
    panel_line, write,
};
use apus_indexes::BlockGrowth;
use plotters::prelude::*;

/// A line has at most this many points; more would not be visible.
const POINTS_MAX: usize = 2_000;

/// What a panel shows: its title, its axis, the label's unit, and the value.
type Panel = (&'static str, &'static str, f64, fn(&BlockGrowth) -> u64);

const PANELS: [Panel; 3] = [
    ("Coins in the UTXO set", "millions", 1e6, |block| block.coins),
    ("Their amount", "million bitcoins", 1e14, |block| block.amount_sat),
    ("Bytes of all blocks", "GB", 1e9, |block| block.bytes),
];

/// A chart of a chain's growth as SVG.
pub(in crate::plot) struct GrowthChart<'a> {
    pub(in crate::plot) title: &'a str,
    pub(in crate::plot) numbers: &'a [BlockGrowth],
}

impl GrowthChart<'_> {
    /// Draws the SVG. The same input always gives the same bytes.
    pub(in crate::plot) fn to_svg(&self) -> String {
        let size = (WIDTH, HEAD + PANELS.len() as u32 * HEIGHTS);
        let mut svg = String::new();
        let sheet = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        self.draw(&sheet).expect("drawing into a string cannot fail");
        drop(sheet);
        svg
    }

    fn draw(&self, sheet: &Sheet<'_>) -> Result<(), DrawError> {
        sheet.fill(&WHITE)?;
        write(sheet, self.title, (MARGIN, 36), Letters { size: 18, bold: true, ..LETTERS })?;
        let (_, panels) = sheet.split_vertically(HEAD);
        for (number, (area, shown)) in
            panels.split_evenly((PANELS.len(), 1)).iter().zip(PANELS).enumerate()
        {
            self.panel(area, number, shown)?;
        }
        Ok(())
    }

    fn panel(&self, area: &Sheet<'_>, number: usize, shown: Panel) -> Result<(), DrawError> {
        let (title, name, unit, value) = shown;
        let blocks = self.numbers;
        let highest = |of: fn(&BlockGrowth) -> u64| {
            blocks.iter().map(of).max().unwrap_or_default().max(1) as f64
        };
        let end = highest(|block| block.height) / 1e3;
        let x = Axis::linear("thousands".to_owned(), 0.0..end * 1.02, 12, 1e3, "");
        let top = highest(value) / unit;
        let y = Axis::linear(name.to_owned(), 0.0..top * 1.03, 6, unit, "");
        let mut drawn = panel(area, title, &x, "Height", &y)?;
        let step = blocks.len().div_ceil(POINTS_MAX);
        // The last block is always shown.
        let places = blocks.iter().rev().step_by(step).collect::<Vec<_>>();
        let point =
            |block: &&BlockGrowth| (x.place(block.height as f64), y.place(value(block) as f64));
        panel_line(&mut drawn, number, places.iter().rev().map(point).collect())
    }
}
