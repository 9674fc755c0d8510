//! [`chart`]: wall times of a record as bars.

use super::matrix::{Subject, SubjectNames};
use super::record::{BenchRecord, ChainRecord, SubjectMeasured};
use crate::table::bytes;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A row of a chart.
struct BarRow {
    label: String,
    /// A median: the length of the bar.
    value: f64,
    /// Minimum and maximum of all measurements, drawn as a thin line.
    spread: Option<(f64, f64)>,
    colour: RGBColor,
}

const APUS: RGBColor = RGBColor(0x00, 0x72, 0xb2);
const NODE: RGBColor = RGBColor(0xd5, 0x5e, 0x00);
const FLOOR: RGBColor = RGBColor(0x00, 0x9e, 0x73);

/// The text of an SVG; `None` if nothing was measured. For one chain: wall time of every subject, and the
/// floor. For several chains: speed of every subject on each, where equal bars show that it does not depend
/// on the length.
pub fn chart(record: &BenchRecord) -> Option<String> {
    let names = SubjectNames::of(record.chains.iter().flat_map(subjects));
    match &record.chains[..] {
        [] => None,
        [chain] => {
            let mut rows: Vec<BarRow> = chain.measured.iter().map(|it| wall(it, &names)).collect();
            if let (Some(floor), Some(limits)) = (&chain.floor, &record.limits) {
                for of in &floor.floors {
                    let label = format!("floor {} par={}", of.aggregate, limits.threads);
                    let value = of.run.all_threads_ms / 1e3;
                    rows.push(BarRow { label, value, spread: None, colour: FLOOR });
                }
            }
            let size = bytes(chain.counts.bytes as f64);
            let title = format!("Wall time for {}, {size} of blocks", chain.chain);
            Some(bars(&title, "seconds", &rows))
        }
        [first, ..] => {
            let rows: Vec<BarRow> = subjects(first)
                .flat_map(|subject| record.chains.iter().map(move |chain| (chain, subject)))
                .filter_map(|(chain, subject)| speed(chain, subject, &names))
                .collect();
            Some(bars("Speed by length of the chain", "MB of blocks per second", &rows))
        }
    }
}

fn subjects(chain: &ChainRecord) -> impl Iterator<Item = &Subject> {
    chain.measured.iter().map(|measured| &measured.subject)
}

fn colour(subject: &Subject) -> RGBColor {
    if matches!(subject, Subject::Bitcoind { .. }) { NODE } else { APUS }
}

fn wall(measured: &SubjectMeasured, names: &SubjectNames) -> BarRow {
    let wall = measured.wall_seconds;
    BarRow {
        label: names.name(&measured.subject),
        value: wall.median,
        spread: Some((wall.min, wall.max)),
        colour: colour(&measured.subject),
    }
}

fn speed(chain: &ChainRecord, subject: &Subject, names: &SubjectNames) -> Option<BarRow> {
    let measured = chain.measured.iter().find(|measured| measured.subject == *subject)?;
    let rate = |seconds: f64| chain.counts.bytes as f64 / seconds / 1e6;
    let wall = measured.wall_seconds;
    Some(BarRow {
        label: format!("{}: {}", chain.chain, names.name(subject)),
        value: rate(wall.median),
        spread: Some((rate(wall.max), rate(wall.min))),
        colour: colour(subject),
    })
}

/// Horizontal bars from top to bottom, each with its number. The axis is linear and begins at zero, so that
/// twice as long means twice as much. `unit` is the label of the axis.
fn bars(title: &str, unit: &str, rows: &[BarRow]) -> String {
    let mut svg = String::new();
    let size = (900, 120 + rows.len() as u32 * 30);
    let sheet = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    draw(&sheet, title, unit, rows).expect("a string takes all that is drawn");
    drop(sheet);
    svg
}

type Sheet<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(
    sheet: &Sheet<'_>,
    title: &str,
    unit: &str,
    rows: &[BarRow],
) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let font = |size: u32| ("Arial, Helvetica, sans-serif", size).into_font();
    let count = rows.len() as f64;
    let most = rows.iter().map(|row| row.spread.map_or(row.value, |(_, most)| most.max(row.value)));
    let most = most.fold(f64::MIN_POSITIVE, f64::max);
    let longest = rows.iter().map(|row| row.label.chars().count()).max().unwrap_or(0);
    sheet.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(sheet)
        .caption(title, font(21).style(FontStyle::Bold))
        .margin(16)
        .x_label_area_size(46)
        .y_label_area_size((longest as u32 * 7 + 12).min(420))
        // Room for the number at the end of the longest bar.
        .build_cartesian_2d(0.0..most * 1.35, count..0.0)?;
    let places = (0..rows.len()).map(|row| row as f64 + 0.5);
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .bold_line_style(RGBColor(0xe9, 0xec, 0xef))
        .light_line_style(TRANSPARENT)
        .label_style(font(14))
        .axis_desc_style(font(15))
        .x_labels(8)
        .x_desc(unit)
        .draw()?;
    for (row, middle) in rows.iter().zip(places) {
        let bar = [(0.0, middle - 0.28), (row.value, middle + 0.28)];
        chart.draw_series([Rectangle::new(bar, row.colour.filled())])?;
        let mut end = row.value;
        let mut words = number(row.value);
        if let Some((least, most)) = row.spread.filter(|(least, most)| least < most) {
            let marks = [
                [(least, middle), (most, middle)],
                [(least, middle - 0.13), (least, middle + 0.13)],
                [(most, middle - 0.13), (most, middle + 0.13)],
            ];
            chart.draw_series(marks.map(|mark| PathElement::new(mark, BLACK)))?;
            words = format!("{words} ({}–{})", number(least), number(most));
            end = end.max(most);
        }
        let (left, right) =
            (Pos::new(HPos::Left, VPos::Center), Pos::new(HPos::Right, VPos::Center));
        let (x, y) = chart.backend_coord(&(end, middle));
        sheet.draw(&Text::new(words, (x + 8, y), font(15).color(&BLACK).pos(left)))?;
        let (x, y) = chart.backend_coord(&(0.0, middle));
        sheet.draw(&Text::new(
            row.label.as_str(),
            (x - 10, y),
            font(15).color(&BLACK).pos(right),
        ))?;
    }
    Ok(())
}

/// A number with three significant digits.
fn number(value: f64) -> String {
    let magnitude = value.abs().max(1e-9).log10().floor();
    format!("{value:.*}", (2.0 - magnitude).clamp(0.0, 9.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::record;

    #[test]
    fn one_chain_shows_times_and_several_show_speeds() {
        let svg = chart(&record(&["a"])).unwrap();
        for words in [
            "Wall time for a, 800 MB of blocks",
            ">\nseconds\n<",
            ">\nbitcoind dbcache=450\n<",
            "floor sha256 par=2",
        ] {
            assert!(svg.contains(words), "{words} is not in {svg}");
        }
        let svg = chart(&record(&["a", "b"])).unwrap();
        for words in
            ["Speed by length", "b: apus sha256 par=1 dbcache=450", "a: bitcoind dbcache=450"]
        {
            assert!(svg.contains(words), "{words} is not in {svg}");
        }
        assert_eq!(chart(&record(&[])), None);
    }
}
