//! Lines that real nodes wrote.

use super::*;

fn ran_scripts(height: u32, last: u32) -> Result<(), String> {
    Err(format!(
        "bitcoind ran scripts at block {height}, below the last one with transactions ({last}): the programs did not \
         do the same work"
    ))
}

/// A run of version 29, with most blocks left out.
const VERSION_29: &str = "

2026-11-22T00:34:50.163265Z Bitcoin Knots version v29.4.3.knots20260508 (release build)
2026-11-22T00:34:50.163390Z Using the 'x86_shani(1way;2way)' SHA256 implementation
2026-11-22T00:34:50.350159Z Assuming ancestors of block 24d9799608ece56d2c1fcb9ea6b1a48bb24c8187f87f661c362222b3260629ca have valid signatures.
2026-11-22T00:34:50.366751Z UpdateTip: new best=0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206 height=0 version=0x00000001 log2_work=1.000000 tx=1 date='2011-02-02T23:16:42Z' progress=1.000000 cache=0.3MiB(0txo)
2026-11-22T00:34:51.088949Z UpdateTip: new best=0f4f50d4a46ccb192cab31c14f510f4c683940e53ab1a21b333d68aba69a22a0 height=1 version=0x20000000 log2_work=2.000000 tx=2 date='2011-02-02T23:26:42Z' progress=1.000000 cache=0.3MiB(100txo)
2026-11-22T00:34:51.241111Z UpdateTip: new best=24d9799608ece56d2c1fcb9ea6b1a48bb24c8187f87f661c362222b3260629ca height=299 version=0x20000000 log2_work=9.228819 tx=300 date='2011-02-05T01:06:42Z' progress=1.000000 cache=4.3MiB(29900txo)
2026-11-22T00:34:51.241227Z UpdateTip: new best=70df5c135e8a39a52d3ad601b1462ee97ef0a04a8c1371e9cdfd000e47ce0e4a height=300 version=0x20000000 log2_work=9.233620 tx=301 date='2011-02-05T01:16:42Z' progress=1.000000 cache=4.3MiB(30000txo)
2026-11-22T00:34:51.241282Z initload thread exit
2026-11-22T00:34:51.245042Z Shutdown: In progress...
2026-11-22T00:34:51.390943Z Shutdown: done
";

const ASSUMED: &str = "24d9799608ece56d2c1fcb9ea6b1a48bb24c8187f87f661c362222b3260629ca";

/// The additional lines of version 31, without microseconds.
const SKIPS: &str = "2026-11-22T00:34:51Z Disabling script verification at block #1 \
     (0f4f50d4a46ccb192cab31c14f510f4c683940e53ab1a21b333d68aba69a22a0).\n";
const RUNS: &str = "2026-11-22T00:34:51Z Enabling script verification at block #300 \
     (70df5c135e8a39a52d3ad601b1462ee97ef0a04a8c1371e9cdfd000e47ce0e4a): block not in assumevalid \
     chain.\n";

fn read(text: &str) -> NodeLog {
    NodeLog::read(text.as_bytes()).unwrap()
}

/// The log with more lines before the shutdown.
fn with(lines: &[&str]) -> String {
    let (before, after) =
        VERSION_29.split_at(VERSION_29.find("2026-11-22T00:34:51.241282Z").unwrap());
    [&[before], lines, &[after]].concat().concat()
}

#[test]
fn a_log_of_version_29_is_read() {
    let log = read(VERSION_29);
    assert_eq!(log.first.map(|tip| tip.height), Some(0));
    assert_eq!(log.last.map(|tip| tip.height), Some(300));
    assert!((log.connect_seconds().unwrap() - 0.874_476).abs() < 1e-6);
    assert_eq!(log.assumed.as_deref(), Some(ASSUMED));
    assert_eq!(log.expect(300, ASSUMED, 299), Ok(()));
    assert_eq!(log.extract, VERSION_29.trim_start());
}

#[test]
fn a_log_of_version_31_is_read() {
    let log = read(&with(&[SKIPS, RUNS]));
    assert_eq!((&log.scripts_off[..], &log.scripts_on[..]), (&[1][..], &[300][..]));
    assert_eq!(log.expect(300, ASSUMED, 299), Ok(()));
}

#[test]
fn runs_with_different_work_do_not_count() {
    let log = read(VERSION_29);
    assert_eq!(
        log.expect(301, ASSUMED, 299),
        Err("bitcoind connected blocks up to height 300, not 301".to_owned())
    );
    let other = "00".repeat(32);
    assert_eq!(
        log.expect(300, &other, 299),
        Err(format!("bitcoind's log does not say that the ancestors of {other} are assumed valid"))
    );
    let runs = with(&[SKIPS, RUNS]);
    assert_eq!(read(&runs).expect(300, ASSUMED, 300), ran_scripts(300, 300));
    let late = SKIPS.replace("#1 ", "#7 ");
    assert_eq!(read(&with(&[&late])).expect(300, ASSUMED, 299), ran_scripts(1, 299));
    let killed = VERSION_29.replace("Shutdown: done\n", "");
    assert_eq!(
        read(&killed).expect(300, ASSUMED, 299),
        Err("bitcoind's log does not end with its shutdown".to_owned())
    );
    assert_eq!(
        read("").expect(1, ASSUMED, 1),
        Err("bitcoind connected blocks up to height 0, not 1".to_owned())
    );
}

#[test]
fn a_run_of_all_scripts_is_recognized() {
    let lines: String = VERSION_29
        .lines()
        .map(|line| match line.split_once("Assuming") {
            Some((time, _)) => format!("{time}Validating signatures for all blocks.\n"),
            None => format!("{line}\n"),
        })
        .collect();
    assert_eq!(read(&lines).expect_scripts(300), Ok(()));
    assert!(read(&lines).expect(300, ASSUMED, 299).is_err());
    let text = lines.replace("2026-11-22T00:34:51.241282Z", &format!("{RUNS}2026-11-22T00:34:51Z"));
    assert_eq!(read(&text).expect_scripts(300), Ok(()));
    assert_eq!(
        read(&lines).expect_scripts(301),
        Err("bitcoind connected blocks up to height 300, not 301".to_owned())
    );
    assert_eq!(
        read(VERSION_29).expect_scripts(300),
        Err("bitcoind's log does not say that it validates the signatures of all blocks".to_owned())
    );
    let skips =
        lines.replace("2026-11-22T00:34:51.241282Z", &format!("{SKIPS}2026-11-22T00:34:51Z"));
    assert_eq!(
        read(&skips).expect_scripts(300),
        Err("bitcoind skipped scripts at block 1, but should have run all of them".to_owned())
    );
    let killed = lines.replace("Shutdown: done\n", "");
    assert_eq!(
        read(&killed).expect_scripts(300),
        Err("bitcoind's log does not end with its shutdown".to_owned())
    );
}

/// Later versions end without the colon.
#[test]
fn either_form_of_the_shutdown_line_is_recognized() {
    let later = VERSION_29
        .replace("Shutdown: In progress...", "Shutdown in progress...")
        .replace("Shutdown: done", "Shutdown done");
    assert_eq!(read(&later).expect(300, ASSUMED, 299), Ok(()));
    let begun = later.replace("Shutdown done\n", "");
    assert_eq!(
        read(&begun).expect(300, ASSUMED, 299),
        Err("bitcoind's log does not end with its shutdown".to_owned())
    );
}

#[test]
fn malformed_lines_are_skipped() {
    let long = [&b"2026-11-22T00:34:51Z "[..], &vec![b'x'; 100_000], b"\xff\xfe\n"].concat();
    assert_eq!(NodeLog::read(&long[..]).unwrap().last, None);
    for odd in ["Z", "TZ ", "--T::Z x", "2026-13-01T00:00:00Z UpdateTip:  height=1", " UpdateTip: "]
    {
        assert_eq!(read(odd).last, None, "{odd}");
    }
    let huge = "2026-11-22T00:34:51Z UpdateTip: new best=a height=99999999999 x";
    assert_eq!(read(huge).last, None);
}

#[test]
fn times_are_parsed() {
    for (text, seconds) in [
        ("1970-01-01T00:00:00Z", 0.0),
        ("2000-02-29T12:00:00Z", 951_825_600.0),
        ("2000-03-01T00:00:00Z", 951_868_800.0),
        ("2100-03-01T00:00:00Z", 4_107_542_400.0),
        ("2011-02-02T23:16:42Z", 1_296_688_602.0),
        ("2011-02-02T23:16:42.250000Z", 1_296_688_602.25),
    ] {
        assert_eq!(timestamp(text), Some(seconds), "{text}");
    }
    assert_eq!(timestamp("2011-02-02T23:16Z"), None);
}

#[test]
fn an_extract_is_short_and_keeps_both_ends() {
    let tip = |height: u32| {
        format!("2026-11-22T00:34:51Z UpdateTip: new best=ab height={height} version=0x1\n")
    };
    let other = "2026-11-22T00:34:51Z Using data directory /tmp/somewhere\n";
    let text: String = (0..10_007).map(tip).chain([other.to_owned()]).collect();
    let extract = read(&text).extract;
    let lines: Vec<&str> = extract.lines().collect();
    assert!((TIP_LINES_MAX / 2..=TIP_LINES_MAX + 1).contains(&lines.len()), "{}", lines.len());
    assert_eq!(lines[0], tip(0).trim_end());
    assert_eq!(lines[lines.len() - 1], tip(10_006).trim_end());
    let heights: Vec<u32> =
        lines.iter().map(|line| number_after(line, " height=").unwrap()).collect();
    assert!(heights.is_sorted());
    // The extract is itself a valid log.
    assert_eq!(read(&extract).connect_seconds(), Some(0.0));
}
