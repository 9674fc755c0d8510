//! [`chart`]: runs as lines, height over time, and below it how many times as fast as one of them
//! the others are.
//!
//! Both panels have the same axis of time. It is logarithmic where linear would squeeze the fastest
//! run into its frame, and so is the axis of ratios; both say so. Lines keep every point that a
//! reader could tell from its neighbours.

use super::axis::{Scale, Spacing, Tick};
use super::compare::{Comparison, course};
use super::course::{Measure, Run, Scripts};
use super::font::{Weight, fit, width};
use super::picture::{Anchor, Colour, FRAME, GREY, GRID, INK, PALETTE, Picture, Stroke, Text};
use super::words;

const WIDTH: f64 = 1_000.0;
const MARGIN: f64 = 28.0;
/// Left end of the panels, right of the labels of their axes.
const LEFT: f64 = 92.0;
const RIGHT: f64 = WIDTH - MARGIN;
const LEGEND_TOP: f64 = 72.0;
/// A run has two lines: its label, and what ran.
const LEGEND_ROW: f64 = 38.0;
const LEGEND_DETAIL: f64 = 15.5;
const HEIGHTS: f64 = 380.0;
const RATIOS: f64 = 220.0;
/// Between the legend and the upper panel.
const GAP: f64 = 8.0;
/// Above the lower panel, for its title.
const HEAD: f64 = 38.0;
/// Below a panel, for its axis.
const FOOT: f64 = 54.0;
/// Ratio of the whole times from which on the axis of time is logarithmic.
const LOG_FROM: f64 = 25.0;
/// Points closer than this are one, in pixels.
const CLOSE: f64 = 0.3;

/// How time is spread over its axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeScale {
    /// Logarithmic where times differ much.
    Auto,
    /// Equal times are equally long.
    Linear,
    /// Equal ratios are equally long.
    Log,
}

/// Draws runs. Their lines, in the legend too, go from the slowest to the fastest.
pub fn chart(
    title: &str,
    runs: &[Run],
    comparison: &Comparison,
    scale: TimeScale,
    measure: Measure,
) -> Picture {
    let panels_top = LEGEND_TOP + runs.len() as f64 * LEGEND_ROW + GAP;
    let compared = comparison.ratios.iter().any(Option::is_some);
    let height = panels_top + HEIGHTS + FOOT + if compared { HEAD + RATIOS + FOOT } else { 0.0 };
    let mut picture = Picture::new(WIDTH, height, title);
    let head = fit(title, 18.0, Weight::Bold, WIDTH - 2.0 * MARGIN);
    picture.text(Text::new(MARGIN, 42.0, head).size(18.0).bold());

    let time = TimeAxis::new(runs, scale);
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by(|a, b| runs[*b].total_seconds.total_cmp(&runs[*a].total_seconds));
    legend(&mut picture, runs, comparison, &order, measure);
    heights(&mut picture, runs, &order, &time, panels_top, measure);
    if compared {
        let top = panels_top + HEIGHTS + FOOT + HEAD;
        ratios(&mut picture, runs, comparison, &order, (&time, measure), top);
    }
    picture
}

/// Looks of a run's line: further runs have the first colours again, with gaps.
fn stroke(index: usize) -> Stroke {
    let solid = Stroke::new(PALETTE[index % PALETTE.len()], 1.6);
    match index / PALETTE.len() {
        0 => solid,
        1 => solid.dashed(6.0, 3.0),
        _ => solid.dashed(2.0, 3.0),
    }
}

/// A colour for what belongs to a line but matters less.
fn pale(colour: Colour) -> Colour {
    let toward_white = |part: u8| (u16::from(part) * 2 / 5 + 153) as u8;
    Colour(toward_white(colour.0), toward_white(colour.1), toward_white(colour.2))
}

// ---- legend ----

fn legend(
    picture: &mut Picture,
    runs: &[Run],
    comparison: &Comparison,
    order: &[usize],
    measure: Measure,
) {
    let ratio_x = RIGHT;
    let time_x = ratio_x - if runs.len() > 1 { 84.0 } else { 0.0 };
    let label_x = MARGIN + 32.0;
    for (row, &index) in order.iter().enumerate() {
        let run = &runs[index];
        let y = LEGEND_TOP + row as f64 * LEGEND_ROW;
        let swatch = Stroke { width: 3.0, ..stroke(index) };
        picture.line(&[(MARGIN, y - 4.5), (MARGIN + 22.0, y - 4.5)], swatch);
        let total = words::total(run);
        let room = time_x - width(&total, 13.0, Weight::Bold) - 16.0 - label_x;
        let label = fit(&run.label, 13.0, Weight::Regular, room);
        picture.text(Text::new(label_x, y, label).size(13.0));
        let detail = fit(&detail(run, measure), 12.0, Weight::Regular, RIGHT - label_x);
        picture.text(Text::new(label_x, y + LEGEND_DETAIL, detail).colour(GREY));
        picture.text(Text::new(time_x, y, total).size(13.0).bold().anchor(Anchor::End));
        let ratio = Text::new(ratio_x, y, comparison.words(index)).size(13.0);
        let colour = if index == comparison.baseline { GREY } else { INK };
        picture.text(ratio.colour(colour).anchor(Anchor::End));
    }
}

/// What ran, where it began if that was not at the beginning, and which scripts it ran.
fn detail(run: &Run, measure: Measure) -> String {
    let scripts = match run.scripts {
        Scripts::Unknown => String::new(),
        told => format!("; {}", told.words()),
    };
    let began = run.start_height as f64;
    let from = match measure {
        _ if run.start_height == 0 => String::new(),
        Measure::Height => format!(", from height {}", words::decimal(began, 0)),
        Measure::Bytes => format!(", after {} MB of blocks", words::decimal(began / 1e6, 0)),
        Measure::Transactions => format!(", after {} transactions", words::decimal(began, 0)),
    };
    format!("{}{from}{scripts}", run.detail)
}

// ---- panels ----

/// The axis of time that both panels have.
struct TimeAxis {
    scale: Scale,
    spacing: Spacing,
    from: f64,
    ticks: Vec<Tick>,
    unit: &'static str,
}

impl TimeAxis {
    fn new(runs: &[Run], scale: TimeScale) -> Self {
        let totals = || runs.iter().map(|run| run.total_seconds.max(run.resolution_seconds));
        // A run that was over within its clock's rounding still has a place.
        let longest = totals().fold(1e-6, f64::max);
        let shortest = totals().fold(longest, f64::min);
        let log = match scale {
            TimeScale::Auto => longest / shortest >= LOG_FROM,
            TimeScale::Linear => false,
            TimeScale::Log => true,
        };
        let pixels = (LEFT, RIGHT);
        if log {
            // From where the fastest has a fiftieth of its way behind it.
            let began = runs.iter().map(|run| {
                let began = run.crossing(run.start_height + run.height() / 50).unwrap_or(0.0);
                began.max(run.resolution_seconds).max(run.total_seconds / 50.0)
            });
            let from = began.fold(longest / 10.0, f64::min) * 0.8;
            let scale = Scale::new(Spacing::Log, (from, longest * 1.06), pixels);
            let ticks = scale.time_ticks();
            return Self { scale, spacing: Spacing::Log, from, ticks, unit: "logarithmic" };
        }
        const UNITS: [(f64, f64, &str); 5] = [
            (0.5, 1e-3, "milliseconds"),
            (180.0, 1.0, "seconds"),
            (180.0 * 60.0, 60.0, "minutes"),
            (96.0 * 3_600.0, 3_600.0, "hours"),
            (f64::INFINITY, 86_400.0, "days"),
        ];
        let unit = UNITS.iter().find(|unit| longest <= unit.0).unwrap_or(&UNITS[4]);
        let end = longest * 1.02;
        let scale = Scale::new(Spacing::Linear, (0.0, end), pixels);
        // Ticks at round numbers of the unit lie at the same places.
        let ticks = Scale::new(Spacing::Linear, (0.0, end / unit.1), pixels).number_ticks(12);
        Self { scale, spacing: Spacing::Linear, from: 0.0, ticks, unit: unit.2 }
    }
}

/// The frame of a panel: title, grid, ticks and names of the axes.
struct Frame<'a> {
    top: f64,
    bottom: f64,
    title: &'a str,
    x_name: &'a str,
    y_name: &'a str,
}

impl Frame<'_> {
    fn draw(&self, picture: &mut Picture, time: &TimeAxis, y_ticks: Vec<Tick>) {
        let Self { top, bottom, title, x_name, y_name } = self;
        let (top, bottom) = (*top, *bottom);
        picture.text(Text::new(LEFT, top - 12.0, *title).size(13.0).bold());
        for tick in &time.ticks {
            picture.line(&[(tick.at, top), (tick.at, bottom)], Stroke::new(GRID, 1.0));
            picture.line(&[(tick.at, bottom), (tick.at, bottom + 4.0)], Stroke::new(FRAME, 1.0));
            let label = Text::new(tick.at, bottom + 18.0, &*tick.label).size(11.5).colour(GREY);
            picture.text(label.anchor(Anchor::Middle));
        }
        for tick in y_ticks {
            picture.line(&[(LEFT, tick.at), (RIGHT, tick.at)], Stroke::new(GRID, 1.0));
            let label = Text::new(LEFT - 9.0, tick.at + 4.0, tick.label).size(11.5).colour(GREY);
            picture.text(label.anchor(Anchor::End));
        }
        let frame = Stroke::new(FRAME, 1.0);
        picture.line(&[(LEFT, top), (LEFT, bottom)], frame);
        picture.line(&[(LEFT, bottom), (RIGHT, bottom)], frame);
        let x_name = format!("{x_name} ({})", time.unit);
        let middle = (LEFT + RIGHT) / 2.0;
        picture.text(Text::new(middle, bottom + 40.0, x_name).anchor(Anchor::Middle));
        let middle = (top + bottom) / 2.0;
        let y_name = Text::new(MARGIN + 2.0, middle, *y_name).anchor(Anchor::Middle);
        picture.text(y_name.upwards());
    }
}

fn heights(
    picture: &mut Picture,
    runs: &[Run],
    order: &[usize],
    time: &TimeAxis,
    top: f64,
    measure: Measure,
) {
    let y_name = match measure {
        Measure::Height => "Block height",
        Measure::Bytes => "Bytes of blocks (MB)",
        Measure::Transactions => "Transactions (millions)",
    };
    let bottom = top + HEIGHTS;
    let highest = runs.iter().map(Run::height).max().unwrap_or(0).max(1) as f64;
    let scale = Scale::new(Spacing::Linear, (0.0, highest * 1.03), (bottom, top));
    let frame = Frame { top, bottom, title: "", x_name: "Time since the start", y_name };
    let unit = match measure {
        Measure::Height => 1.0,
        Measure::Bytes | Measure::Transactions => 1e6,
    };
    // Ticks at round numbers of the unit lie at the same places.
    let units = Scale::new(Spacing::Linear, (0.0, highest * 1.03 / unit), (bottom, top));
    frame.draw(picture, time, units.number_ticks(8));
    for &index in order {
        let run = &runs[index];
        let place = |seconds: f64, height: f64| (time.scale.at(seconds), scale.at(height));
        let mut line = Vec::new();
        if time.spacing == Spacing::Log {
            line.push(place(time.from, run.height_at(time.from)));
        }
        let shown = run.points().iter().filter(|point| point.seconds >= time.from);
        line.extend(shown.map(|point| place(point.seconds, point.height as f64)));
        let last = run.points().last().map_or(0, |point| point.height);
        let end = place(run.total_seconds, last as f64);
        line.push(end);
        let stroke = stroke(index);
        let down = Stroke::new(pale(stroke.colour), 1.0).dashed(2.0, 3.0);
        picture.line(&[(end.0, end.1), (end.0, bottom)], down);
        picture.line(&thin(&line), stroke);
        picture.dot(end.0, end.1, 4.0, stroke.colour);
    }
}

fn ratios(
    picture: &mut Picture,
    runs: &[Run],
    comparison: &Comparison,
    order: &[usize],
    (time, measure): (&TimeAxis, Measure),
    top: f64,
) {
    let same = match measure {
        Measure::Height => "to the same height",
        Measure::Bytes => "to as many bytes of blocks",
        Measure::Transactions => "to as many transactions",
    };
    let base = &runs[comparison.baseline];
    let courses: Vec<(usize, Vec<(f64, f64)>)> = order
        .iter()
        .filter(|index| comparison.ratios[**index].is_some())
        .map(|&index| (index, course(base, &runs[index])))
        .collect();
    let all = || courses.iter().flat_map(|(_, course)| course.iter().map(|(_, ratio)| *ratio));
    let (least, greatest) = (all().fold(1.0, f64::min), all().fold(1.0, f64::max));
    let log = greatest / least > 8.0;
    let bottom = top + RATIOS;
    let scale = if log {
        let room = (greatest / least).powf(0.06);
        Scale::new(Spacing::Log, (least / room, greatest * room), (bottom, top))
    } else {
        let room = (greatest - least).max(0.02) * 0.08;
        Scale::new(Spacing::Linear, ((least - room).max(0.0), greatest + room), (bottom, top))
    };
    let label = fit(&base.label, 13.0, Weight::Bold, 420.0);
    let frame = Frame {
        top,
        bottom,
        title: &format!("How many times as fast as {label}, {same}"),
        x_name: "Time of the baseline at that place",
        y_name: if log { "Ratio (logarithmic)" } else { "Ratio" },
    };
    let mut ticks = scale.number_ticks(6);
    ticks.iter_mut().for_each(|tick| tick.label.push('×'));
    frame.draw(picture, time, ticks);
    let one = scale.at(1.0);
    let even = Stroke::new(PALETTE[comparison.baseline % PALETTE.len()], 1.2).dashed(5.0, 4.0);
    picture.line(&[(LEFT, one), (RIGHT, one)], even);
    for (index, course) in &courses {
        let shown = course.iter().filter(|(seconds, _)| *seconds >= time.from);
        let line: Vec<(f64, f64)> =
            shown.map(|(seconds, ratio)| (time.scale.at(*seconds), scale.at(*ratio))).collect();
        let stroke = stroke(*index);
        picture.line(&thin(&line), stroke);
        if let Some((x, y)) = line.last() {
            picture.dot(*x, *y, 4.0, stroke.colour);
        }
    }
}

/// A line without the points that no reader could tell from the ones before. The last one stays.
fn thin(line: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for (index, &(x, y)) in line.iter().enumerate() {
        let close = kept
            .last()
            .is_some_and(|last| (last.0 - x).abs() < CLOSE && (last.1 - y).abs() < CLOSE);
        if !close || index + 1 == line.len() {
            kept.push((x, y));
        }
    }
    kept
}

#[cfg(test)]
mod tests;
