use super::*;
use crate::course::Point;
use crate::picture::Shape;
use crate::picture::tests::assert_inside;
use proptest::prelude::*;

fn run(label: &str, points: &[(f64, u64)]) -> Run {
    let point = |&(seconds, height): &(f64, u64)| Point { seconds, height };
    let mut run = Run::new(points.iter().map(point).collect(), 0);
    run.label = label.to_owned();
    run.detail = "program".to_owned();
    run
}

fn draw(runs: &[Run], scale: TimeScale) -> Picture {
    let comparison = Comparison::new(runs, None).unwrap();
    let picture = chart("Title", runs, &comparison, scale, Measure::Height);
    assert_inside(&picture);
    picture
}

fn texts(picture: &Picture) -> Vec<&str> {
    let texts = picture.shapes.iter().filter_map(|shape| match shape {
        Shape::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    texts.collect()
}

fn dots(picture: &Picture) -> Vec<(f64, f64)> {
    let dots = picture.shapes.iter().filter_map(|shape| match shape {
        Shape::Dot { x, y, .. } => Some((*x, *y)),
        _ => None,
    });
    dots.collect()
}

#[test]
fn one_run_has_one_panel_and_no_ratio() {
    let picture = draw(&[run("alone", &[(0.0, 0), (90.0, 1000)])], TimeScale::Auto);
    let texts = texts(&picture);
    for words in ["Title", "alone", "program", "1 min 30 s", "Time since the start (seconds)"] {
        assert!(texts.contains(&words), "{words} is not in {texts:?}");
    }
    assert!(!texts.iter().any(|text| text.contains("Ratio") || text.contains('×')), "{texts:?}");
    assert_eq!(dots(&picture).len(), 1);
}

#[test]
fn the_legend_goes_from_the_slowest_to_the_fastest() {
    let runs = [
        run("fast", &[(0.0, 0), (3_600.0, 1000)]),
        run("slow", &[(0.0, 0), (7_200.0, 1000)]),
        run("middle", &[(0.0, 0), (5_400.0, 1000)]),
    ];
    let picture = draw(&runs, TimeScale::Auto);
    let texts = texts(&picture);
    let place = |words: &str| texts.iter().position(|text| *text == words).unwrap();
    assert!(place("slow") < place("middle") && place("middle") < place("fast"), "{texts:?}");
    assert!(place("2.00×") > place("1.33×") && place("baseline") < place("1.33×"), "{texts:?}");
    assert!(texts.contains(&"Time since the start (minutes)"), "{texts:?}");
    assert!(texts.contains(&"How many times as fast as slow, to the same height"), "{texts:?}");
}

#[test]
fn places_are_as_the_numbers() {
    let runs =
        [run("a", &[(0.0, 0), (100.0, 1000)]), run("b", &[(0.0, 0), (50.0, 500), (75.0, 1000)])];
    let [a, b, ratio] = dots(&draw(&runs, TimeScale::Linear))[..] else { panic!("three ends") };
    assert_eq!(a.1, b.1, "both ended at one height");
    let share = (b.0 - LEFT) / (a.0 - LEFT);
    assert!((share - 0.75).abs() < 1e-9, "{share}");
    assert_eq!(ratio.0, a.0, "the ratio stands at the baseline's time");
}

#[test]
fn a_second_beside_hours_is_drawn_on_logarithmic_axes() {
    let steady = |seconds: f64| -> Vec<(f64, u64)> {
        (0..=100).map(|step| (seconds * f64::from(step) / 100.0, step as u64 * 10)).collect()
    };
    let runs = [run("core", &steady(30_000.0)), run("apus", &steady(1.0))];
    let picture = draw(&runs, TimeScale::Auto);
    let found = texts(&picture);
    for words in ["Time since the start (logarithmic)", "Ratio (logarithmic)", "1 s", "1 h", "1×"]
    {
        assert!(found.contains(&words), "{words} is not in {found:?}");
    }
    // Neither is squeezed to an edge.
    let [core, apus, _] = dots(&picture)[..] else { panic!("three ends") };
    assert!(apus.0 > LEFT + 200.0 && core.0 > apus.0 + 300.0, "{apus:?} {core:?}");
    let linear = draw(&runs, TimeScale::Linear);
    assert!(texts(&linear).contains(&"Time since the start (hours)"));
}

#[test]
fn runs_that_take_no_time_or_cannot_be_compared_are_drawn_all_the_same() {
    let mut coarse = run("instant", &[(0.0, 300)]);
    coarse.resolution_seconds = 1.0;
    let mut later = run("later", &[(0.0, 600), (50.0, 1000)]);
    later.start_height = 600;
    for runs in [vec![coarse.clone()], vec![coarse.clone(), later.clone()], vec![later, coarse]] {
        for scale in [TimeScale::Auto, TimeScale::Linear, TimeScale::Log] {
            let picture = draw(&runs, scale);
            let texts = texts(&picture);
            assert!(texts.contains(&"< 1.00 s"), "{texts:?}");
            let from = texts.contains(&"program, from height 600");
            assert_eq!(from, runs.len() == 2, "{texts:?}");
            assert!(!texts.iter().any(|text| text.starts_with("How many")), "{texts:?}");
        }
    }
}

#[test]
fn a_long_label_fits_and_what_was_verified_is_told() {
    let long = "chain-connect-apus-swiftsync-assumevalid-sha256-par-2-dbcache-450";
    let mut runs = [run(long, &[(0.0, 0), (5.0, 1000)]), run("core", &[(0.0, 0), (90.0, 1000)])];
    runs[0].scripts = Scripts::Assumed;
    runs[1].scripts = Scripts::All;
    let picture = draw(&runs, TimeScale::Auto);
    let texts = texts(&picture);
    for words in [long, "program; scripts taken for valid", "program; every script run", "unlike"] {
        assert!(texts.contains(&words), "{words} is not in {texts:?}");
    }
    assert!(!texts.iter().any(|text| text.contains('×') || text.contains("How many")), "{texts:?}");
}

#[test]
fn bytes_have_their_own_axis() {
    let runs = [run("a", &[(0.0, 0), (9.0, 20_000_000)]), run("b", &[(0.0, 0), (5.0, 20_000_000)])];
    let comparison = Comparison::new(&runs, None).unwrap();
    let picture = chart("Title", &runs, &comparison, TimeScale::Auto, Measure::Bytes);
    let texts = texts(&picture);
    for words in
        ["Bytes of blocks (MB)", "20", "How many times as fast as a, to as many bytes of blocks"]
    {
        assert!(texts.contains(&words), "{words} is not in {texts:?}");
    }
}

#[test]
fn every_line_looks_different() {
    let looks: Vec<Stroke> = (0..21).map(stroke).collect();
    for (index, look) in looks.iter().enumerate() {
        assert!(!looks[..index].contains(look), "{index}");
    }
}

#[test]
fn a_line_has_no_more_points_than_can_be_seen() {
    let line: Vec<(f64, f64)> = (0..100_000).map(|i| (f64::from(i) * 0.01, 5.0)).collect();
    let thinned = thin(&line);
    assert!(thinned.len() < 3_500, "{}", thinned.len());
    assert_eq!((thinned.first(), thinned.last()), (line.first(), line.last()));
    assert!(thin(&[]).is_empty());
}

proptest! {
    #[test]
    fn any_runs_make_a_whole_picture(
        courses in prop::collection::vec(
            (any::<String>(), 0.0..1e7, 1e-9..1e7, prop::collection::vec(0u64..1 << 31, 1..40), 0u64..1000),
            1..6,
        ),
        scale in prop::sample::select(vec![TimeScale::Auto, TimeScale::Linear, TimeScale::Log]),
    ) {
        let runs: Vec<Run> = courses
            .iter()
            .map(|(label, first, step, heights, start)| {
                let times = (0..).map(|index| first + step * f64::from(index));
                let points: Vec<_> = times.zip(heights.iter().copied()).collect();
                let mut run = run(label, &points);
                run.start_height = *start;
                run
            })
            .collect();
        let picture = draw(&runs, scale);
        let svg = picture.to_svg();
        prop_assert!(roxmltree::Document::parse(&svg).is_ok());
        prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}", svg);
        prop_assert_eq!(draw(&runs, scale), picture);
    }
}
