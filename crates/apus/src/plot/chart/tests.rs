use super::*;
use crate::plot::run::PlotPoint;
use proptest::prelude::*;

fn run(label: &str, points: &[(f64, u64)]) -> PlottedRun {
    let point = |&(seconds, height): &(f64, u64)| PlotPoint { seconds, height };
    let mut run = PlottedRun::new(points.iter().map(point).collect(), 0);
    run.label = label.to_owned();
    run.detail = "program".to_owned();
    run
}

fn draw_by(runs: &[PlottedRun], scale: TimeScale, measure: PlotMeasure) -> String {
    let comparison = Comparison::new(runs, None).unwrap();
    let svg = RunsChart { title: "Title", runs, comparison: &comparison, scale, measure }.to_svg();
    assert_inside(&svg);
    svg
}

fn draw(runs: &[PlottedRun], scale: TimeScale) -> String {
    draw_by(runs, scale, PlotMeasure::Height)
}

/// Returns an attribute and the text of each element of a kind, in document order.
fn elements(svg: &str, kind: &str, attribute: &str) -> Vec<(f64, String)> {
    let document = roxmltree::Document::parse(svg).unwrap();
    let nodes = document.descendants().filter(|node| node.has_tag_name(kind));
    let number =
        |node: roxmltree::Node<'_, '_>| node.attribute(attribute).unwrap().parse().unwrap();
    let text = |node: roxmltree::Node<'_, '_>| node.text().unwrap_or_default().trim().to_owned();
    nodes.map(|node| (number(node), text(node))).collect()
}

fn texts(svg: &str) -> Vec<String> {
    elements(svg, "text", "x").into_iter().map(|(_, text)| text).collect()
}

/// Returns the positions of the lines' ends.
fn dots(svg: &str) -> Vec<(f64, f64)> {
    let y = elements(svg, "circle", "cy").into_iter();
    elements(svg, "circle", "cx").into_iter().zip(y).map(|(x, y)| (x.0, y.0)).collect()
}

/// Asserts that everything drawn lies on the sheet.
fn assert_inside(svg: &str) {
    let document = roxmltree::Document::parse(svg).unwrap();
    let height: f64 = document.root_element().attribute("height").unwrap().parse().unwrap();
    for node in document.descendants() {
        for (attribute, most) in [("x", 1_000.0), ("cx", 1_000.0), ("y", height), ("cy", height)] {
            let Some(value) = node.attribute(attribute) else { continue };
            assert!((0.0..=most).contains(&value.parse().unwrap()), "{attribute} of {node:?}");
        }
        let points = node.attribute("points").unwrap_or_default().split(' ');
        for (x, y) in points.filter_map(|point| point.split_once(',')) {
            assert!((0.0..=1_000.0).contains(&x.parse().unwrap()), "{x} of {node:?}");
            assert!((0.0..=height).contains(&y.parse().unwrap()), "{y} of {node:?}");
        }
    }
}

#[track_caller]
fn assert_shows(svg: &str, words: &[&str]) {
    let texts = texts(svg);
    for words in words {
        assert!(texts.iter().any(|text| text == words), "{words} is not in {texts:?}");
    }
}

#[test]
fn one_run_has_one_panel_and_no_ratio() {
    let svg = draw(&[run("alone", &[(0.0, 0), (90.0, 1000)])], TimeScale::Auto);
    assert_shows(
        &svg,
        &["Title", "alone", "program", "1 min 30 s", "Time since the start (seconds)"],
    );
    assert!(!svg.contains("Ratio") && !svg.contains('×'), "{svg}");
    assert_eq!(dots(&svg).len(), 1);
}

#[test]
fn the_legend_goes_from_the_slowest_to_the_fastest() {
    let runs = [
        run("fast", &[(0.0, 0), (3_600.0, 1000)]),
        run("slow", &[(0.0, 0), (7_200.0, 1000)]),
        run("middle", &[(0.0, 0), (5_400.0, 1000)]),
    ];
    let svg = draw(&runs, TimeScale::Auto);
    let texts = texts(&svg);
    let place = |words: &str| texts.iter().position(|text| text == words).unwrap();
    assert!(place("slow") < place("middle") && place("middle") < place("fast"), "{texts:?}");
    assert!(place("2.00×") > place("1.33×") && place("baseline") < place("1.33×"), "{texts:?}");
    assert_shows(
        &svg,
        &[
            "Time since the start (minutes)",
            "How many times as fast as slow, to the same height",
            "800",
            "1.6×",
        ],
    );
}

#[test]
fn positions_match_the_numbers() {
    let runs =
        [run("a", &[(0.0, 0), (100.0, 1000)]), run("b", &[(0.0, 0), (50.0, 500), (75.0, 1000)])];
    let svg = draw(&runs, TimeScale::Linear);
    let [a, b, ratio] = dots(&svg)[..] else { panic!("three ends") };
    assert_eq!(a.1, b.1, "both ended at the same height");
    let share = (b.0 - 92.0) / (a.0 - 92.0);
    assert!((share - 0.75).abs() < 0.002, "{share}");
    assert_eq!(ratio.0, a.0, "the ratio stands at the baseline's time");
}

#[test]
fn a_second_next_to_hours_is_drawn_on_logarithmic_axes() {
    let steady = |seconds: f64| -> Vec<(f64, u64)> {
        (0..=100).map(|step| (seconds * f64::from(step) / 100.0, step as u64 * 10)).collect()
    };
    let runs = [run("core", &steady(30_000.0)), run("apus", &steady(1.0))];
    let svg = draw(&runs, TimeScale::Auto);
    assert_shows(
        &svg,
        &["Time since the start (logarithmic)", "Ratio (logarithmic)", "1 s", "1 h", "1×"],
    );
    // The axes squeeze neither run against an edge.
    let [core, apus, _] = dots(&svg)[..] else { panic!("three ends") };
    assert!(apus.0 > 292.0 && core.0 > apus.0 + 300.0, "{apus:?} {core:?}");
    assert_shows(&draw(&runs, TimeScale::Linear), &["Time since the start (hours)"]);
}

#[test]
fn runs_that_take_no_time_or_cannot_be_compared_are_still_drawn() {
    let mut coarse = run("instant", &[(0.0, 300)]);
    coarse.resolution_seconds = 1.0;
    let mut later = run("later", &[(0.0, 600), (50.0, 1000)]);
    later.start_height = 600;
    for runs in [vec![coarse.clone()], vec![coarse.clone(), later.clone()], vec![later, coarse]] {
        for scale in [TimeScale::Auto, TimeScale::Linear, TimeScale::Log] {
            let svg = draw(&runs, scale);
            assert_shows(&svg, &["< 1.00 s"]);
            assert_eq!(svg.contains("program, from height 600"), runs.len() == 2, "{svg}");
            assert!(!svg.contains("How many"), "{svg}");
        }
    }
}

#[test]
fn a_long_label_fits_and_the_scripts_are_shown() {
    let long = "chain-connect-apus-swiftsync-assumevalid-sha256-par-2-dbcache-450";
    let mut runs = [run(long, &[(0.0, 0), (5.0, 1000)]), run("core", &[(0.0, 0), (90.0, 1000)])];
    runs[0].scripts = ScriptsRun::Assumed;
    runs[1].scripts = ScriptsRun::All;
    let svg = draw(&runs, TimeScale::Auto);
    let details = ["program; scripts assumed valid", "program; every script run"];
    assert_shows(&svg, &[long, details[0], details[1], "unlike"]);
    assert!(!svg.contains('×') && !svg.contains("How many"), "{svg}");
    assert_eq!(cut("far too long", 9), "far too…");
}

#[test]
fn bytes_have_their_own_axis() {
    let runs = [run("a", &[(0.0, 0), (9.0, 20_000_000)]), run("b", &[(0.0, 0), (5.0, 20_000_000)])];
    let svg = draw_by(&runs, TimeScale::Auto, PlotMeasure::Bytes);
    let ratios = "How many times as fast as a, to as many bytes of blocks";
    assert_shows(&svg, &["Bytes of blocks (MB)", "20", ratios]);
}

#[test]
fn every_line_looks_different() {
    let looks: Vec<_> = (0..21).map(|index| (colour(index), dash(index))).collect();
    for (index, look) in looks.iter().enumerate() {
        assert!(!looks[..index].contains(look), "{index}");
    }
}

#[test]
fn ticks_read_well() {
    let linear =
        |range: Range<f64>, count| Axis::linear(String::new(), range, count, 1.0, "").ticks;
    let labels = |ticks: Vec<(f64, String)>| -> Vec<String> {
        ticks.into_iter().map(|(_, label)| label).collect()
    };
    let heights = labels(linear(0.0..900_000.0, 5));
    assert_eq!(heights, ["0", "200,000", "400,000", "600,000", "800,000"]);
    assert_eq!(labels(linear(0.0..0.5, 6)), ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]);
    assert_eq!(decades(0.9..30.0, &[1.0, 2.0, 5.0]), [1.0, 2.0, 5.0, 10.0, 20.0]);
    assert_eq!(
        labels(time_ticks(0.8..4_000.0)),
        ["1 s", "3 s", "10 s", "30 s", "1 min", "3 min", "10 min", "30 min", "1 h"]
    );
    assert_eq!(
        labels(time_ticks(0.05..1e5)),
        ["100 ms", "1 s", "10 s", "1 min", "10 min", "1 h", "10 h", "1 d"]
    );
    assert_eq!(labels(time_ticks(0.8..12.0)), ["1 s", "2 s", "5 s", "10 s"]);
    assert_eq!(tick(0.30000000000000004, 0.1), "0.3");
    assert_eq!(tick(-1e-17, 0.1), "0");
}

proptest! {
    #[test]
    fn any_runs_give_a_valid_chart(
        courses in prop::collection::vec(
            (any::<String>(), 0.0..1e7, 1e-9..1e7, prop::collection::vec(0u64..1 << 31, 1..40), 0u64..1000),
            1..6,
        ),
        scale in prop::sample::select(vec![TimeScale::Auto, TimeScale::Linear, TimeScale::Log]),
    ) {
        let runs: Vec<PlottedRun> = courses
            .iter()
            .map(|(label, first, step, heights, start)| {
                let times = (0..).map(|index| first + step * f64::from(index));
                let points: Vec<_> = times.zip(heights.iter().copied()).collect();
                let mut run = run(label, &points);
                run.start_height = *start;
                run
            })
            .collect();
        let svg = draw(&runs, scale);
        prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}", svg);
        prop_assert_eq!(draw(&runs, scale), svg);
    }
}
