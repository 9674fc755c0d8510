use super::*;
use crate::plot::run::POINTS_MAX;
use proptest::prelude::*;
use std::io::Cursor;
use std::num::NonZeroU64;

/// A real node's log without the lines that name folders. It has three starts: one that mines blocks, with
/// microseconds; then `-reindex-chainstate` with thread and source prefixes, stopped early; then the same again, with
/// thread prefixes. Each start has further lines after its end.
const REAL: &str = include_str!("three_starts.log");
const HASH: &str = "0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206";

fn read(text: &str, options: ReadOptions) -> Result<PlottedRun, Wrong> {
    parse(Cursor::new(text), &options).map_err(|failure| match failure {
        RunFileError::Content(wrong) => wrong,
        RunFileError::Io(error) => panic!("{error}"),
    })
}

fn start(number: u64) -> ReadOptions {
    ReadOptions { start: NonZeroU64::new(number), ..ReadOptions::default() }
}

fn points(run: &PlottedRun) -> Vec<(f64, u64)> {
    run.points().iter().map(|point| (point.seconds, point.height)).collect()
}

/// Returns the line of a tip at a second of a day.
fn tip(second: u32, height: u64) -> String {
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("2026-11-22T{h:02}:{m:02}:{s:02}Z UpdateTip: new best={HASH} height={height} tx=1\n")
}

fn version(second: u32) -> String {
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("2026-11-22T{h:02}:{m:02}:{s:02}Z Bitcoin Core version v30.0.0 (release build)\n")
}

#[test]
fn the_last_start_of_a_real_log_is_read() {
    let run = read(REAL, ReadOptions::default()).unwrap();
    assert_eq!(run.detail, "Bitcoin Knots v29.4.3.knots20260508, start 3 of 3");
    assert_eq!(run.resolution_seconds, 1.0);
    assert_eq!((run.start_height, run.height()), (0, 300));
    assert_eq!(run.total_seconds, 1.0);
    // In a log with whole seconds, the last block of each second counts.
    assert_eq!(points(&run), [(0.0, 0), (1.0, 300)]);
}

#[test]
fn a_log_shows_which_scripts_its_start_ran() {
    let line = |message: &str| format!("2026-11-22T00:00:01Z {message}\n");
    let all = line("Validating signatures for all blocks.");
    let assumed = line("Assuming ancestors of block 00 have valid signatures.");
    let on =
        |height: u32| line(&format!("Enabling script verification at block #{height} (00): x."));
    let off = line("Disabling script verification at block #1 (00).");
    let scripts = |lines: &[&str]| {
        let text = [version(0), lines.concat(), tip(9, 9), on(10), tip(10, 10)].concat();
        read(&text, ReadOptions::default()).unwrap().scripts
    };
    assert_eq!(scripts(&[]), ScriptsRun::Unknown);
    assert_eq!(scripts(&[&all]), ScriptsRun::All);
    assert_eq!(scripts(&[&assumed]), ScriptsRun::Assumed);
    assert_eq!(
        scripts(&[&assumed, &on(1)]),
        ScriptsRun::All,
        "it assumed nothing although it could"
    );
    assert_eq!(scripts(&[&assumed, &off, &tip(2, 1), &on(2)]), ScriptsRun::Assumed);
    // Messages of other starts do not count.
    let two = [version(0), assumed, tip(1, 1), version(2), all, tip(3, 2)].concat();
    assert_eq!(read(&two, start(1)).unwrap().scripts, ScriptsRun::Assumed);
    assert_eq!(read(&two, start(2)).unwrap().scripts, ScriptsRun::All);
}

#[test]
fn an_earlier_start_of_a_real_log_is_read_on_demand() {
    let run = read(REAL, start(1)).unwrap();
    assert_eq!((run.start_height, run.height()), (0, 300));
    assert_eq!(run.resolution_seconds, 1e-6);
    let seconds: f64 = 43.133_571 - 42.671_833;
    assert!((run.total_seconds - seconds).abs() < 1e-9, "{}", run.total_seconds);
    let run = read(REAL, start(2)).unwrap();
    assert!((1..300).contains(&run.height()), "{}", run.height());
    let (line, what) = read(REAL, start(4)).unwrap_err();
    assert_eq!((line, what.as_str()), (None, "the log has 3 starts of a node, but not start 4"));
}

#[test]
fn time_begins_with_the_start_or_the_first_block() {
    let log = version(100) + &tip(110, 1) + &tip(120, 500);
    let run = read(&log, ReadOptions::default()).unwrap();
    assert_eq!(points(&run), [(0.0, 0), (10.0, 1), (20.0, 500)]);
    let since = ReadOptions { since: Since::FirstBlock, ..ReadOptions::default() };
    assert_eq!(points(&read(&log, since).unwrap()), [(0.0, 1), (10.0, 500)]);
    // This log lacks its beginning.
    let run = read(&(tip(110, 401) + &tip(120, 500)), ReadOptions::default()).unwrap();
    assert_eq!(points(&run), [(0.0, 401), (10.0, 500)]);
    assert_eq!(run.detail, "Bitcoin Core");
}

#[test]
fn a_stop_height_ends_the_run() {
    let log = version(0) + &tip(10, 5) + &tip(20, 10) + &tip(90, 9) + &tip(99, 11);
    let stop = |height| ReadOptions { stop_height: Some(height), ..ReadOptions::default() };
    let run = read(&log, stop(10)).unwrap();
    assert_eq!((run.total_seconds, run.height()), (20.0, 10));
    let (_, what) = read(&log, stop(12)).unwrap_err();
    assert_eq!(what, "the last of one start of a node ended at height 11, not 12");
}

#[test]
fn the_error_for_a_start_without_blocks_names_one_with_blocks() {
    let log = version(0) + &tip(10, 5) + &version(20);
    let (line, what) = read(&log, ReadOptions::default()).unwrap_err();
    assert_eq!(line, None);
    assert!(what.contains("the last connected no block"), "{what}");
    assert!(what.ends_with("up to height 5: use --start 1"), "{what}");
    let (_, what) = read(&version(0), ReadOptions::default()).unwrap_err();
    assert_eq!(what, "one start of a node, but no start connected a block");
}

#[test]
fn a_clock_set_back_far_is_an_error() {
    let log = version(100) + &tip(110, 1) + "\n" + &tip(107, 2);
    let (line, what) = read(&log, ReadOptions::default()).unwrap_err();
    assert_eq!(line, Some(4));
    assert!(what.contains("set back by 3 s since line 2"), "{what}");
    let log = version(100) + &tip(110, 1) + &tip(108, 2) + &tip(111, 3);
    let run = read(&log, ReadOptions::default()).unwrap();
    assert_eq!(points(&run), [(0.0, 0), (10.0, 2), (11.0, 3)]);
    let (_, what) = read(&(version(100) + &tip(90, 1)), ReadOptions::default()).unwrap_err();
    assert!(what.contains("set back by 10 s since the start"), "{what}");
    // Between two starts, any change of the clock is valid.
    assert!(read(&(version(100) + &tip(110, 1) + &version(5) + &tip(6, 2)), start(2)).is_ok());
}

#[test]
fn damage_is_an_error_with_its_line_unless_the_line_was_being_written() {
    let whole = version(0) + &tip(1, 1) + &tip(2, 2);
    let cut = &whole[..whole.len() - 30];
    let run = read(cut, ReadOptions::default()).unwrap();
    assert_eq!(run.height(), 1);
    let (line, what) = read(&format!("{cut}\n{}", tip(3, 3)), ReadOptions::default()).unwrap_err();
    assert_eq!(line, Some(3));
    assert!(what.contains("lacks a hash"), "{what}");
}

#[test]
fn a_line_of_any_length_takes_little_memory_and_counts_once() {
    let long = "2026-11-22T00:00:00Z ".to_owned() + &"x".repeat(1 << 20);
    let log = version(0) + &tip(1, 1) + &long + "\n" + &tip(2, 2) + "\0\0\0\0";
    assert_eq!(read(&log, ReadOptions::default()).unwrap().height(), 2);
    let exact = "x".repeat(LINE_BYTES_MAX as usize - 1) + "\n";
    let log = version(0) + &exact + &exact + &long + "\nUpdateTip: new best=";
    let (line, _) = read(&(log + HASH + " \n"), ReadOptions::default()).unwrap_err();
    assert_eq!(line, Some(5));
}

#[test]
fn a_long_log_is_thinned() {
    let log: String = (0..40_000).map(|index| tip(index, u64::from(index))).collect();
    let run = read(&log, ReadOptions::default()).unwrap();
    assert!(run.points().len() <= POINTS_MAX && run.points().len() >= POINTS_MAX / 4);
    assert_eq!((run.total_seconds, run.height()), (39_999.0, 39_999));
}

proptest! {
    #[test]
    fn other_lines_change_nothing(
        heights in prop::collection::vec(0u64..1_000_000, 1..50),
        noise in prop::collection::vec("[ -~]{0,80}", 50),
    ) {
        let mut plain = version(0);
        let mut noisy = version(0);
        for (second, (height, noise)) in (1..).zip(heights.iter().zip(&noise)) {
            plain += &tip(second, *height);
            noisy += &format!("{noise}\n{}", tip(second, *height));
        }
        let run = read(&plain, ReadOptions::default()).unwrap();
        prop_assert_eq!(&run, &read(&noisy, ReadOptions::default()).unwrap());
        // The run has every logged block, in the order of the lines.
        let read: Vec<u64> = run.points().iter().skip(1).map(|point| point.height).collect();
        prop_assert_eq!(read, heights);
    }

    #[test]
    fn any_damage_leaves_a_run_or_an_error(
        at in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 0..40),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut text = REAL.as_bytes().to_vec();
        let at = at.index(text.len());
        let end = (at + bytes.len()).min(text.len());
        text.splice(at..end, bytes);
        text.truncate(cut.index(text.len() * 2));
        if let Ok(run) = parse(Cursor::new(text), &ReadOptions::default()) {
            prop_assert!(!run.points().is_empty());
            prop_assert!(run.points().windows(2).all(|p| p[0].seconds < p[1].seconds));
            prop_assert!(run.points()[0].seconds >= 0.0);
        }
    }
}
