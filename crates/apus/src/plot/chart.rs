//! [`RunsChart`]: draws runs as lines of height over time, and below that their speedups over the baseline.
//!
//! Both panels have the same time axis. It is logarithmic if a linear one would squeeze the fastest run against the
//! frame. A similar rule makes the axis of ratios logarithmic. The axes' labels say so.

mod growth;

pub(super) use growth::GrowthChart;

use super::run::{Comparison, PlotMeasure, PlottedRun, ScriptsRun, course, decimal, total};
use clap::ValueEnum;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

const WIDTH: u32 = 1_000;
const MARGIN: i32 = 28;
const RIGHT: i32 = WIDTH as i32 - MARGIN;
const HEAD: u32 = 64;
/// Height of a run's legend entry, which has two lines: its label and its details.
const LEGEND_ROW: u32 = 38;
const HEIGHTS: u32 = 440;
const RATIOS: u32 = 320;
/// The time axis is logarithmic from this ratio of the total times on.
const LOG_FROM: f64 = 25.0;

const FONTS: &str = "Arial, 'Liberation Sans', Helvetica, sans-serif";
const INK: RGBColor = RGBColor(0x22, 0x26, 0x2b);
const GREY: RGBColor = RGBColor(0x68, 0x6f, 0x78);
const FRAME: RGBColor = RGBColor(0xb4, 0xba, 0xc2);
const GRID: RGBColor = RGBColor(0xe9, 0xec, 0xef);
/// Colours that are distinct for any kind of colour vision, after Okabe and Ito. Without their yellow, which is too
/// light for lines on white.
const PALETTE: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x3c, 0x40, 0x46),
];

type Backend<'a> = SVGBackend<'a>;
type Sheet<'a> = DrawingArea<Backend<'a>, Shift>;
type DrawError = DrawingAreaErrorKind<<Backend<'static> as DrawingBackend>::ErrorType>;
type Panel<'a> = ChartContext<'a, Backend<'a>, Cartesian2d<AxisRange, AxisRange>>;

/// The scale of the time axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TimeScale {
    /// Logarithmic if times differ much.
    Auto,
    /// Equal times are equally long.
    Linear,
    /// Equal ratios are equally long.
    Log,
}

/// A chart of runs as SVG. The lines and the legend are ordered from the slowest to the fastest.
pub(super) struct RunsChart<'a> {
    pub(super) title: &'a str,
    pub(super) runs: &'a [PlottedRun],
    pub(super) comparison: &'a Comparison,
    pub(super) scale: TimeScale,
    pub(super) measure: PlotMeasure,
}

impl RunsChart<'_> {
    /// Draws the SVG. The same input always gives the same bytes.
    pub(super) fn to_svg(&self) -> String {
        let legend = HEAD + self.runs.len() as u32 * LEGEND_ROW;
        let compared = self.comparison.ratios.iter().any(Option::is_some);
        let height = legend + HEIGHTS + if compared { RATIOS } else { 0 };
        let mut svg = String::new();
        let sheet = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        self.draw(&sheet, legend, compared).expect("drawing into a string cannot fail");
        drop(sheet);
        svg
    }

    fn draw(&self, sheet: &Sheet<'_>, legend: u32, compared: bool) -> Result<(), DrawError> {
        sheet.fill(&WHITE)?;
        write(sheet, self.title, (MARGIN, 36), Letters { size: 18, bold: true, ..LETTERS })?;
        let mut order: Vec<usize> = (0..self.runs.len()).collect();
        let seconds = |index: &usize| self.runs[*index].total_seconds;
        order.sort_by(|a, b| seconds(b).total_cmp(&seconds(a)));
        self.legend(sheet, &order)?;
        let time = Axis::of_time(self.runs, self.scale);
        let (_, panels) = sheet.split_vertically(legend);
        let (upper, lower) = panels.split_vertically(HEIGHTS);
        self.heights(&upper, &order, &time)?;
        if compared { self.ratios(&lower, &order, &time) } else { Ok(()) }
    }

    fn legend(&self, sheet: &Sheet<'_>, order: &[usize]) -> Result<(), DrawError> {
        let ratio_x = RIGHT;
        let time_x = ratio_x - if self.runs.len() > 1 { 84 } else { 0 };
        let label_x = MARGIN + 32;
        for (row, &index) in order.iter().enumerate() {
            let run = &self.runs[index];
            let y = (HEAD + row as u32 * LEGEND_ROW) as i32;
            line(sheet, index, 3, vec![(MARGIN, y), (MARGIN + 22, y)])?;
            write(sheet, &cut(&run.label, 95), (label_x, y), LETTERS)?;
            let small = Letters { size: 12, colour: GREY, ..LETTERS };
            write(sheet, &cut(&detail(run, self.measure), 140), (label_x, y + 16), small)?;
            let right = Letters { at: HPos::Right, ..LETTERS };
            write(sheet, &total(run), (time_x, y), Letters { bold: true, ..right })?;
            let colour = if index == self.comparison.baseline { GREY } else { INK };
            let words = self.comparison.words(index);
            write(sheet, &words, (ratio_x, y), Letters { colour, ..right })?;
        }
        Ok(())
    }

    fn heights(&self, area: &Sheet<'_>, order: &[usize], time: &Axis) -> Result<(), DrawError> {
        let (name, unit) = match self.measure {
            PlotMeasure::Height => ("Block height", 1.0),
            PlotMeasure::Bytes => ("Bytes of blocks (MB)", 1e6),
            PlotMeasure::Transactions => ("Transactions (millions)", 1e6),
        };
        let highest = self.runs.iter().map(PlottedRun::height).max().unwrap_or(0).max(1) as f64;
        let y = Axis::linear(name.to_owned(), 0.0..highest * 1.03 / unit, 8, unit, "");
        let mut panel = panel(area, "", time, "Time since the start", &y)?;
        for &index in order {
            let run = &self.runs[index];
            let place = |seconds, height| (time.place(seconds), y.place(height));
            let mut points = Vec::new();
            if time.log {
                points.push(place(time.from, run.height_at(time.from)));
            }
            let shown = run.points().iter().filter(|point| point.seconds >= time.from);
            points.extend(shown.map(|point| place(point.seconds, point.height as f64)));
            let last = run.points().last().map_or(0, |point| point.height);
            let end = place(run.total_seconds, last as f64);
            points.push(end);
            let pale = colour(index).mix(0.4);
            let down = [(end.0, y.place(0.0)), end];
            panel.draw_series(DashedLineSeries::new(down, 2, 3, pale.stroke_width(1)))?;
            panel_line(&mut panel, index, points)?;
        }
        Ok(())
    }

    fn ratios(&self, area: &Sheet<'_>, order: &[usize], time: &Axis) -> Result<(), DrawError> {
        let same = match self.measure {
            PlotMeasure::Height => "to the same height",
            PlotMeasure::Bytes => "to as many bytes of blocks",
            PlotMeasure::Transactions => "to as many transactions",
        };
        let base = &self.runs[self.comparison.baseline];
        let compared = order.iter().filter(|index| self.comparison.ratios[**index].is_some());
        let courses: Vec<(usize, Vec<(f64, f64)>)> =
            compared.map(|&index| (index, course(base, &self.runs[index]))).collect();
        let all = || courses.iter().flat_map(|(_, course)| course.iter().map(|(_, ratio)| *ratio));
        let (least, greatest) = (all().fold(1.0, f64::min), all().fold(1.0, f64::max));
        let y = if greatest / least > 8.0 {
            let room = (greatest / least).powf(0.06);
            let range = least / room..greatest * room;
            let digits: &[f64] =
                if range.end / range.start > 1e3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            let ticks = decades(range.clone(), digits);
            let ticks = ticks.into_iter().map(|value| (value, format!("{}×", tick(value, value))));
            Axis::log("Ratio (logarithmic)".to_owned(), range, ticks.collect())
        } else {
            let room = (greatest - least).max(0.02) * 0.08;
            let range = (least - room).max(0.0)..greatest + room;
            Axis::linear("Ratio".to_owned(), range, 6, 1.0, "×")
        };
        let title = format!("How many times as fast as {}, {same}", cut(&base.label, 60));
        let mut panel = panel(area, &title, time, "Time of the baseline at that place", &y)?;
        let one = [time.from, time.to].map(|seconds| (time.place(seconds), y.place(1.0)));
        let even = colour(self.comparison.baseline).stroke_width(1);
        panel.draw_series(DashedLineSeries::new(one, 5, 4, even))?;
        for (index, course) in &courses {
            let shown = course.iter().filter(|(seconds, _)| *seconds >= time.from);
            let points = shown.map(|(seconds, ratio)| (time.place(*seconds), y.place(*ratio)));
            panel_line(&mut panel, *index, points.collect())?;
        }
        Ok(())
    }
}

/// Describes a run: the program and its options, the start if it is not the genesis block, and the executed scripts.
fn detail(run: &PlottedRun, measure: PlotMeasure) -> String {
    let scripts = match run.scripts {
        ScriptsRun::Unknown => String::new(),
        known => format!("; {}", known.words()),
    };
    let began = run.start_height as f64;
    let from = match measure {
        _ if run.start_height == 0 => String::new(),
        PlotMeasure::Height => format!(", from height {}", decimal(began, 0)),
        PlotMeasure::Bytes => format!(", after {} MB of blocks", decimal(began / 1e6, 0)),
        PlotMeasure::Transactions => format!(", after {} transactions", decimal(began, 0)),
    };
    format!("{}{from}{scripts}", run.detail)
}

// ---- axes ----

/// An axis from one value to a greater one, with ticks within it.
struct Axis {
    name: String,
    log: bool,
    from: f64,
    to: f64,
    /// Positions and labels.
    ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Creates a linear axis. Its values are `unit` times the labels; `shown` is a range of labels.
    fn linear(name: String, shown: Range<f64>, count_max: usize, unit: f64, sign: &str) -> Self {
        let values = RangedCoordf64::from(shown.clone()).key_points(count_max);
        let step = values.windows(2).next().map_or(1.0, |pair| pair[1] - pair[0]);
        let label = |value: &f64| (value * unit, format!("{}{sign}", tick(*value, step)));
        let ticks = values.iter().map(label).collect();
        Self { name, log: false, from: shown.start * unit, to: shown.end * unit, ticks }
    }

    fn log(name: String, range: Range<f64>, values: Vec<(f64, String)>) -> Self {
        let ticks = values.into_iter().map(|(value, label)| (value.log10(), label)).collect();
        Self { name, log: true, from: range.start, to: range.end, ticks }
    }

    fn of_time(runs: &[PlottedRun], scale: TimeScale) -> Self {
        let totals = || runs.iter().map(|run| run.total_seconds.max(run.resolution_seconds));
        // A run shorter than its clock's resolution still needs a position.
        let longest = totals().fold(1e-6, f64::max);
        let shortest = totals().fold(longest, f64::min);
        let log = match scale {
            TimeScale::Auto => longest / shortest >= LOG_FROM,
            TimeScale::Linear => false,
            TimeScale::Log => true,
        };
        if log {
            // Start where the fastest run has done a fiftieth of its work.
            let began = runs.iter().map(|run| {
                let began = run.crossing(run.start_height + run.height() / 50).unwrap_or(0.0);
                began.max(run.resolution_seconds).max(run.total_seconds / 50.0)
            });
            let from = began.fold(longest / 10.0, f64::min) * 0.8;
            let range = from..longest * 1.06;
            let ticks = time_ticks(range.clone());
            return Self::log("logarithmic".to_owned(), range, ticks);
        }
        const UNITS: [(f64, f64, &str); 5] = [
            (0.5, 1e-3, "milliseconds"),
            (180.0, 1.0, "seconds"),
            (180.0 * 60.0, 60.0, "minutes"),
            (96.0 * 3_600.0, 3_600.0, "hours"),
            (f64::INFINITY, 86_400.0, "days"),
        ];
        let (_, unit, name) = *UNITS.iter().find(|unit| longest <= unit.0).unwrap_or(&UNITS[4]);
        Self::linear(name.to_owned(), 0.0..longest * 1.02 / unit, 12, unit, "")
    }

    /// Returns a value's position; for a value outside, the nearer end.
    fn place(&self, value: f64) -> f64 {
        let value = value.clamp(self.from, self.to);
        if self.log { value.log10() } else { value }
    }

    fn coordinates(&self) -> AxisRange {
        let places = self.place(self.from)..self.place(self.to);
        AxisRange { places: places.into(), ticks: self.ticks.iter().map(|tick| tick.0).collect() }
    }

    fn label(&self, place: f64) -> String {
        let found = self.ticks.iter().find(|tick| tick.0 == place);
        found.map_or(String::new(), |(_, label)| label.clone())
    }
}

/// An axis in the drawing library's form, with our ticks instead of its own.
struct AxisRange {
    places: RangedCoordf64,
    ticks: Vec<f64>,
}

impl Ranged for AxisRange {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.places.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.places.range()
    }
}

/// Returns the multiples of each power of ten by these digits, within a range.
fn decades(range: Range<f64>, digits: &[f64]) -> Vec<f64> {
    let tens = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let values = tens.flat_map(|ten| digits.iter().map(move |digit| digit * 10_f64.powi(ten)));
    values.filter(|value| range.contains(value)).collect()
}

/// Returns ticks of seconds within a range, with their units.
fn time_ticks(range: Range<f64>) -> Vec<(f64, String)> {
    // The largest number of each unit is far enough below the next unit.
    const UNITS: [(f64, f64, &str); 5] = [
        (1e-3, 500.0, "ms"),
        (1.0, 30.0, "s"),
        (60.0, 30.0, "min"),
        (3_600.0, 10.0, "h"),
        (86_400.0, 500.0, "d"),
    ];
    let digits: &[f64] = match range.end / range.start {
        ratio if ratio < 300.0 => &[1.0, 2.0, 5.0],
        ratio if ratio < 3e4 => &[1.0, 3.0],
        _ => &[1.0],
    };
    let ticks = UNITS.iter().flat_map(|&(unit, most, name)| {
        let numbers = decades(1.0..most * 1.01, digits).into_iter();
        numbers.map(move |number| (number * unit, format!("{number} {name}")))
    });
    ticks.filter(|(seconds, _)| range.contains(seconds)).collect()
}

/// Formats a value on an axis whose ticks are `step` apart, with as many decimals as the step.
fn tick(value: f64, step: f64) -> String {
    if value.abs() < step * 1e-6 {
        return "0".to_owned();
    }
    let decimals = (-(step.log10() + 1e-9).floor()).clamp(0.0, 9.0);
    decimal(value, decimals as usize)
}

// ---- drawing ----

/// Draws the frame of a panel: title, grid, ticks and names of the axes.
fn panel<'a>(
    area: &Sheet<'a>,
    title: &str,
    time: &Axis,
    time_name: &str,
    y: &Axis,
) -> Result<Panel<'a>, DrawError> {
    let head = Letters { bold: true, ..LETTERS };
    let mut panel = ChartBuilder::on(area)
        .margin_left(14)
        .margin_right(MARGIN)
        .margin_bottom(8)
        .margin_top(if title.is_empty() { 0 } else { 28 })
        .x_label_area_size(50)
        .y_label_area_size(78)
        .build_cartesian_2d(time.coordinates(), y.coordinates())?;
    if !title.is_empty() {
        write(area, title, (92, 14), head)?;
    }
    let small = Letters { size: 12, colour: GREY, ..LETTERS };
    panel
        .configure_mesh()
        .axis_style(FRAME)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(small.style())
        .axis_desc_style(Letters { size: 12, ..LETTERS }.style())
        .x_desc(format!("{time_name} ({})", time.name))
        .y_desc(y.name.clone())
        .x_label_formatter(&|place| time.label(*place))
        .y_label_formatter(&|place| y.label(*place))
        .draw()?;
    Ok(panel)
}

/// Returns the colour of a run; runs beyond the palette reuse its colours, with dashed lines.
fn colour(index: usize) -> RGBColor {
    PALETTE[index % PALETTE.len()]
}

fn dash(index: usize) -> Option<(i32, i32)> {
    match index / PALETTE.len() {
        0 => None,
        1 => Some((6, 3)),
        _ => Some((2, 3)),
    }
}

fn line(
    sheet: &Sheet<'_>,
    index: usize,
    width: u32,
    points: Vec<(i32, i32)>,
) -> Result<(), DrawError> {
    let style = colour(index).stroke_width(width);
    match dash(index) {
        None => sheet.draw(&PathElement::new(points, style)),
        Some((dash, gap)) => {
            sheet.draw(&plotters::element::DashedPathElement::new(points, dash, gap, style))
        }
    }
}

fn panel_line(
    panel: &mut Panel<'_>,
    index: usize,
    points: Vec<(f64, f64)>,
) -> Result<(), DrawError> {
    let style = colour(index).stroke_width(2);
    let end = points.last().copied();
    match dash(index) {
        None => panel.draw_series(LineSeries::new(points, style))?,
        Some((dash, gap)) => panel.draw_series(DashedLineSeries::new(points, dash, gap, style))?,
    };
    panel.draw_series(end.map(|end| Circle::new(end, 4, colour(index).filled())))?;
    Ok(())
}

/// The style of a line of text.
#[derive(Clone, Copy)]
struct Letters {
    size: u32,
    bold: bool,
    colour: RGBColor,
    /// The end of the text that the position refers to.
    at: HPos,
}

const LETTERS: Letters = Letters { size: 13, bold: false, colour: INK, at: HPos::Left };

impl Letters {
    fn style(self) -> TextStyle<'static> {
        // The library scales letters down by this factor.
        let size = f64::from(self.size) * 1.24;
        let font = (FONTS, size).into_font();
        let font = if self.bold { font.style(FontStyle::Bold) } else { font };
        font.color(&self.colour).pos(Pos::new(self.at, VPos::Center))
    }
}

fn write(sheet: &Sheet<'_>, text: &str, at: (i32, i32), letters: Letters) -> Result<(), DrawError> {
    // XML 1.0 cannot represent these characters.
    let bad = |c: char| matches!(c, '\0'..='\x1f' | '\u{fffe}' | '\u{ffff}');
    let text: String = text.chars().map(|c| if bad(c) { '\u{fffd}' } else { c }).collect();
    sheet.draw(&Text::new(text, at, letters.style()))
}

/// Shortens a text that is too long for its line, and adds an ellipsis.
fn cut(text: &str, letters_max: usize) -> String {
    if text.chars().count() <= letters_max {
        return text.to_owned();
    }
    text.chars().take(letters_max - 1).collect::<String>().trim_end().to_owned() + "…"
}

#[cfg(test)]
mod tests;
