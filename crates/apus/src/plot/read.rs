//! [`read()`]: reads a run from a report of `apus sync` or from Bitcoin Core's `debug.log`, recognised by content.
//!
//! Files are untrusted and logs are long. A report has at most [`REPORT_BYTES_MAX`]. The reader reads a log once from
//! start to end, in bounded memory for any content. An error names the file and the line.

mod debug_log;

use crate::failure::{Failure, IO};
use crate::plot::run::{PlotMeasure, PlotPoint, PlottedRun, ScriptsRun, Thinner};
use clap::ValueEnum;
use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

/// Upper bound on the size of a report: far more than any has.
const REPORT_BYTES_MAX: u64 = 16 << 20;

/// First bytes of a gzip file: rotated logs are often compressed.
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];

/// Beginning of a line in a log that Docker stores as JSON.
const DOCKER: &[u8] = b"{\"log\":";

/// Greatest height in Bitcoin Core, an `int`.
const HEIGHT_MAX: u64 = i32::MAX as u64;

/// Options that select the part of a file that is the run, and the beginning of its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadOptions {
    /// Which start of the node to read from a log with several, counted from 1; `None` for the last.
    pub(super) start: Option<NonZeroU64>,
    /// The beginning of the run's time.
    pub(super) since: Since,
    /// Ignore the rest of a log after it first reached this height.
    pub(super) stop_height: Option<u64>,
    /// The measure of progress for a run of Apus. A log has no bytes; [`PlottedRun::measured`] converts its heights.
    pub(super) measure: PlotMeasure,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { start: None, since: Since::Start, stop_height: None, measure: PlotMeasure::Height }
    }
}

/// The beginning of a run's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Since {
    /// The start of the program.
    Start,
    /// The first block, which excludes a node's wait for peers and headers.
    FirstBlock,
}

/// A parse error: the line's number, if known, and the message.
type Wrong = (Option<u64>, String);

/// Reads a run, with its short label.
pub(super) fn read(path: &Path, options: &ReadOptions) -> Result<PlottedRun, Failure> {
    let mut run = parse(path, options).map_err(|error| match error {
        RunFileError::Io(error) => Failure::new(IO, format!("{}: {error}", path.display())),
        // An invalid file is a usage error, since it says nothing about the validity of blocks.
        RunFileError::Content((Some(line), what)) => {
            Failure::usage(format!("{}:{line}: {what}", path.display()))
        }
        RunFileError::Content((None, what)) => {
            Failure::usage(format!("{}: {what}", path.display()))
        }
    })?;
    run.label = name(path, false);
    Ok(run)
}

fn parse(path: &Path, options: &ReadOptions) -> Result<PlottedRun, RunFileError> {
    let mut file = BufReader::with_capacity(1 << 18, File::open(path)?);
    let is_gzip = file.fill_buf()?.starts_with(&GZIP);
    let file: Box<dyn Read> =
        if is_gzip { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut file = BufReader::with_capacity(1 << 18, file);
    let first = file.fill_buf()?;
    let is_log_of_docker = first.starts_with(DOCKER);
    match first.iter().find(|byte| !byte.is_ascii_whitespace()) {
        None => Err(RunFileError::Content((None, "the file is empty".to_owned()))),
        Some(b'{') if !is_log_of_docker => {
            let mut text = Vec::new();
            file.take(REPORT_BYTES_MAX + 1).read_to_end(&mut text)?;
            parse_report(&text, options).map_err(RunFileError::Content)
        }
        Some(_) => debug_log::parse(file, options),
    }
}

/// Why a file cannot be read as a run.
#[derive(Debug)]
enum RunFileError {
    Io(io::Error),
    Content(Wrong),
}

impl From<io::Error> for RunFileError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Returns names for legends: the files' names, with their folders if the files' names are ambiguous.
pub(super) fn labels(paths: &[PathBuf]) -> Vec<String> {
    let mut labels: Vec<String> = paths.iter().map(|path| name(path, false)).collect();
    for index in 0..labels.len() {
        let same = labels.iter().filter(|label| **label == labels[index]).count() > 1;
        let longer = name(&paths[index], true);
        if same && longer != labels[index] {
            let old = labels[index].clone();
            for other in (0..labels.len()).filter(|&other| labels[other] == old).collect::<Vec<_>>()
            {
                labels[other] = name(&paths[other], true);
            }
        }
    }
    labels
}

/// Returns a file's name without its extension; for a `debug.log`, its folder's name.
fn name(path: &Path, with_folder: bool) -> String {
    let text =
        |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
    let stem = text(path.file_stem()).unwrap_or_else(|| path.display().to_string());
    let packed = path.extension().is_some_and(|extension| extension == "gz");
    let stem = stem.strip_suffix(".log").filter(|_| packed).map_or(stem.clone(), str::to_owned);
    // Suffixes of the recorded benchmarks.
    let short = stem.strip_suffix(".report").or_else(|| stem.strip_suffix(".debug"));
    let stem = short.map_or(stem.clone(), str::to_owned);
    let folder = text(path.parent().and_then(Path::file_name));
    match folder {
        Some(folder) if stem == "debug" => folder,
        Some(folder) if with_folder => format!("{folder}/{stem}"),
        _ => stem,
    }
}

/// The version of the report format that this program reads.
const VERSION: u64 = 1;

#[derive(Deserialize)]
struct RunReport {
    engine: String,
    /// Absent in reports from versions with a single engine.
    #[serde(default)]
    validation: String,
    /// `None` if the engine needs no aggregate.
    aggregate: Option<String>,
    threads: u64,
    stop_height: u64,
    wall_seconds: f64,
    segments_resumed: u64,
    verified: Option<ReportVerified>,
    phases: Vec<ReportPhase>,
    series: Vec<ReportSample>,
}

#[derive(Deserialize)]
struct ReportVerified {
    scripts: bool,
}

#[derive(Deserialize)]
struct ReportPhase {
    phase: String,
    wall_seconds: f64,
}

#[derive(Deserialize)]
struct ReportSample {
    seconds: f64,
    height: u64,
    /// Bytes of the blocks processed so far.
    bytes: Option<u64>,
}

/// The fields of reports of all versions; other versions may lack the rest.
#[derive(Deserialize)]
struct ReportVersion {
    version: u64,
    /// The failure, in the report of a failed run.
    failure: Option<ReportFailure>,
}

#[derive(Deserialize)]
struct ReportFailure {
    text: String,
}

/// Parses a report.
pub(super) fn parse_report(text: &[u8], options: &ReadOptions) -> Result<PlottedRun, Wrong> {
    if text.len() as u64 > REPORT_BYTES_MAX {
        let most = REPORT_BYTES_MAX >> 20;
        return Err((None, format!("more than {most} MiB, too long for a report")));
    }
    let not_a_report = |error: serde_json::Error| {
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or_default();
        (Some(error.line() as u64), format!("not a report of `apus sync --report`: {what}"))
    };
    let ReportVersion { version, failure } = serde_json::from_slice(text).map_err(not_a_report)?;
    if version != VERSION {
        return Err((
            None,
            format!(
                "this report has version {version}, but this version of Apus reads only version {VERSION}"
            ),
        ));
    }
    if let Some(ReportFailure { text }) = failure {
        return Err((
            None,
            format!("the report of a failed run, which has nothing to plot: {text}"),
        ));
    }
    let report: RunReport = serde_json::from_slice(text).map_err(not_a_report)?;
    if options.stop_height.is_some_and(|stop| stop < report.stop_height) {
        return Err((
            None,
            format!(
                "this sync ended at height {}. It processed blocks in any order, so the report has no time for a \
                 lower height",
                report.stop_height
            ),
        ));
    }
    course(&report, options).map_err(|what| (None, what))
}

fn course(report: &RunReport, options: &ReadOptions) -> Result<PlottedRun, String> {
    let not_a_time = |what: &str, seconds: f64| {
        format!("{what} is {seconds}, which is not a valid time: the report is damaged")
    };
    let mut began = 0.0;
    // In a run with two passes over the blocks, the second one validates them.
    let twice = report.engine == "mergesync";
    let before = |phase: &&ReportPhase| match phase.phase.as_str() {
        "blocks" => twice,
        "connect" => false,
        _ => true,
    };
    for phase in report.phases.iter().take_while(before) {
        if !(phase.wall_seconds.is_finite() && phase.wall_seconds >= 0.0) {
            let field = format!("`wall_seconds` of phase {:?}", phase.phase);
            return Err(not_a_time(&field, phase.wall_seconds));
        }
        began += phase.wall_seconds;
    }
    // Apus read the clocks of sample and phase at different instants, so the first sample may seem to precede its
    // phase.
    let is_counted = |sample: &&ReportSample| !twice || sample.seconds >= began;
    let series: Vec<(usize, &ReportSample)> =
        report.series.iter().enumerate().filter(|(_, sample)| is_counted(sample)).collect();
    began = series.first().map_or(began, |(_, sample)| began.min(sample.seconds));
    let far = |sample: &ReportSample| match options.measure {
        // The caller converts heights to transactions.
        PlotMeasure::Height | PlotMeasure::Transactions => Ok(sample.height),
        PlotMeasure::Bytes => {
            sample.bytes.ok_or("the `series` of this report has no `bytes`".to_owned())
        }
    };
    let start_height = match series.first() {
        Some((_, first)) if report.segments_resumed > 0 => far(first)?,
        _ => 0,
    };
    let origin = match options.since {
        Since::Start => 0.0,
        Since::FirstBlock => began,
    };
    let mut course = Thinner::new();
    let mut last = origin;
    if began > origin {
        course.push(PlotPoint { seconds: 0.0, height: start_height });
    }
    course.push(PlotPoint { seconds: began - origin, height: start_height });
    for (index, sample) in series {
        let seconds = sample.seconds;
        if !(seconds.is_finite() && seconds >= last) {
            return Err(not_a_time(&format!("`seconds` of `series`[{index}]"), seconds));
        }
        if sample.height > HEIGHT_MAX {
            return Err(format!("`height` of `series`[{index}] is {}, too great", sample.height));
        }
        last = seconds;
        course.push(PlotPoint { seconds: seconds - origin, height: far(sample)? });
    }
    let wall = report.wall_seconds;
    if !(wall.is_finite() && wall >= last) {
        return Err(not_a_time("`wall_seconds`", wall));
    }
    let points = course.finish();
    if points.iter().all(|point| point.height == 0) {
        return Err("the `series` of this report has no block".to_owned());
    }
    let threads = if report.threads == 1 { "thread" } else { "threads" };
    let mut run = PlottedRun::new(points, start_height);
    // Runs of the same engine differ in their aggregate, or in the scripts they check.
    let kind = report.aggregate.as_deref().unwrap_or(&report.validation);
    run.detail = format!("Apus {} {kind}, {} {threads}", report.engine, report.threads);
    run.scripts = match &report.verified {
        Some(ReportVerified { scripts: true }) => ScriptsRun::All,
        Some(ReportVerified { scripts: false }) => ScriptsRun::Assumed,
        None => ScriptsRun::Unknown,
    };
    run.total_seconds = wall - origin;
    // Samples are much further apart than blocks, but their times are exact.
    run.resolution_seconds = 1e-3;
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short_and_differ() {
        let labels = |paths: &[&str]| labels(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(labels(&["a/run.json", "b/core.log"]), ["run", "core"]);
        assert_eq!(labels(&["a/run.report.json", "b/core.debug.log"]), ["run", "core"]);
        assert_eq!(labels(&["a/run.json", "b/run.json", "c.json"]), ["a/run", "b/run", "c"]);
        assert_eq!(labels(&["a/debug.log", "b/debug.log"]), ["a", "b"]);
        assert_eq!(labels(&["debug.log", "run.json"]), ["debug", "run"]);
        assert_eq!(labels(&["a/debug.log.gz", "core.log.gz"]), ["a", "core"]);
        // The same file twice gets the same name.
        assert_eq!(labels(&["a/run.json", "a/run.json"]), ["a/run", "a/run"]);
    }

    #[test]
    fn a_compressed_log_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("core.log.gz");
        let log = format!(
            "2026-11-22T00:17:42Z Bitcoin Core version v30.0.0 (release build)\n2026-11-22T00:17:44Z UpdateTip: \
             new best={} height=7 tx=8 \n",
            "0".repeat(64)
        );
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut gzip, log.as_bytes()).unwrap();
        let gzip = gzip.finish().unwrap();
        std::fs::write(&file, &gzip).unwrap();
        assert_eq!(read(&file, &ReadOptions::default()).unwrap().height(), 7);
        std::fs::write(&file, &gzip[..gzip.len() - 9]).unwrap();
        assert!(read(&file, &ReadOptions::default()).unwrap_err().code == IO);
    }

    #[test]
    fn an_invalid_file_is_named_in_the_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run");
        let said = |content: &[u8]| {
            std::fs::write(&file, content).unwrap();
            read(&file, &ReadOptions::default()).unwrap_err().message
        };
        for (content, words) in [
            (&b""[..], "run: the file is empty"),
            (b" \n ", "run: the file is empty"),
            (b"\n{\n  \"version\": 1", "run:3: "),
            (b"PK\x03\x04", "run: no line shows"),
            (b"2026-11-22T00:17:42Z UpdateTip: new best=00 height=x\n", "run:1: "),
        ] {
            let said = said(content);
            assert!(said.contains(words), "{words:?} is not in {said:?}");
        }
        let error = read(&folder.path().join("none"), &ReadOptions::default()).unwrap_err();
        assert!(error.code == IO && error.message.contains("none: "), "{error:?}");
        let error = read(folder.path(), &ReadOptions::default()).unwrap_err();
        assert!(error.code == IO, "{error:?}");
    }
}

#[cfg(test)]
mod report_tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// Returns a report that `apus sync --report` wrote for a real chain, except for the times.
    fn report() -> Value {
        json!({
            "version": 1, "engine": "swiftsync", "aggregate": "sha256", "threads": 2,
            "stop_height": 4521, "wall_seconds": 0.75, "segments_resumed": 0, "new": {"field": []},
            "phases": [
                {"phase": "headers", "wall_seconds": 0.0625, "cpu_seconds": null, "bytes": 1},
                {"phase": "hints", "wall_seconds": 0.0625},
                {"phase": "blocks", "wall_seconds": 0.5},
                {"phase": "coins", "wall_seconds": 0.125},
            ],
            "series": [
                {"seconds": 0.25, "height": 1000, "bytes": 5},
                {"seconds": 0.625, "height": 4521, "bytes": 9},
            ],
        })
    }

    fn parse_json(value: &Value, options: &ReadOptions) -> Result<PlottedRun, Wrong> {
        parse_report(value.to_string().as_bytes(), options)
    }

    fn points(run: &PlottedRun) -> Vec<(f64, u64)> {
        run.points().iter().map(|point| (point.seconds, point.height)).collect()
    }

    #[test]
    fn the_time_begins_with_the_phases_before_the_blocks() {
        let run = parse_json(&report(), &ReadOptions::default()).unwrap();
        assert_eq!(points(&run), [(0.0, 0), (0.125, 0), (0.25, 1000), (0.625, 4521)]);
        assert_eq!((run.total_seconds, run.height()), (0.75, 4521));
        assert_eq!(run.detail, "Apus swiftsync sha256, 2 threads");
        let options = ReadOptions { since: Since::FirstBlock, ..ReadOptions::default() };
        let run = parse_json(&report(), &options).unwrap();
        assert_eq!(points(&run), [(0.0, 0), (0.125, 1000), (0.5, 4521)]);
        assert_eq!(run.total_seconds, 0.625);
    }

    #[test]
    fn a_run_without_an_aggregate_is_named_by_its_validation() {
        let mut in_order = report();
        in_order["engine"] = json!("utxo");
        in_order["validation"] = json!("full");
        in_order["aggregate"] = Value::Null;
        in_order["phases"] = json!([
            {"phase": "headers", "wall_seconds": 0.125}, {"phase": "connect", "wall_seconds": 0.5}
        ]);
        let run = parse_json(&in_order, &ReadOptions::default()).unwrap();
        assert_eq!(run.detail, "Apus utxo full, 2 threads");
        assert_eq!(points(&run), [(0.0, 0), (0.125, 0), (0.25, 1000), (0.625, 4521)]);
    }

    #[test]
    fn only_the_second_of_two_passes_is_shown() {
        let mut twice = report();
        twice["engine"] = json!("mergesync");
        twice["verified"] = json!({"blocks": true, "scripts": false});
        twice["phases"] = json!([
            {"phase": "headers", "wall_seconds": 0.125}, {"phase": "blocks", "wall_seconds": 0.25},
            {"phase": "connect", "wall_seconds": 0.25}
        ]);
        twice["series"] = json!([
            {"seconds": 0.25, "height": 4521}, {"seconds": 0.5, "height": 9}, {"seconds": 0.625, "height": 4521}
        ]);
        let run = parse_json(&twice, &ReadOptions::default()).unwrap();
        assert_eq!(points(&run), [(0.0, 0), (0.375, 0), (0.5, 9), (0.625, 4521)]);
        assert_eq!(run.scripts, ScriptsRun::Assumed);
    }

    #[test]
    fn a_run_can_be_measured_by_bytes() {
        let options = ReadOptions { measure: PlotMeasure::Bytes, ..ReadOptions::default() };
        let run = parse_json(&report(), &options).unwrap();
        assert_eq!(points(&run), [(0.0, 0), (0.125, 0), (0.25, 5), (0.625, 9)]);
        assert_eq!(run.scripts, ScriptsRun::Unknown);
        let mut without = report();
        without["series"][1] = json!({"seconds": 0.625, "height": 4521});
        assert!(parse_json(&without, &options).unwrap_err().1.contains("no `bytes`"));
        without["verified"] = json!({"scripts": true});
        assert_eq!(parse_json(&without, &ReadOptions::default()).unwrap().scripts, ScriptsRun::All);
    }

    #[test]
    fn a_resumed_run_begins_where_the_previous_one_stopped() {
        let mut resumed = report();
        resumed["segments_resumed"] = json!(3);
        let run = parse_json(&resumed, &ReadOptions::default()).unwrap();
        assert_eq!(run.start_height, 1000);
    }

    #[test]
    fn errors_name_the_damaged_field() {
        let said = |path: &str, value: Value| {
            let mut bad = report();
            *bad.pointer_mut(path).unwrap() = value;
            parse_json(&bad, &ReadOptions::default()).unwrap_err().1
        };
        assert!(said("/version", json!(2)).contains("version 2"));
        assert!(said("/version", json!("1")).contains("not a report"));
        assert!(said("/series", json!([])).contains("has no block"));
        assert!(said("/series", json!(7)).contains("invalid type"));
        assert!(said("/series/1/seconds", json!(0.125)).contains("`series`[1] is 0.125"));
        assert!(said("/series/0/seconds", json!(-1)).contains("`series`[0] is -1"));
        assert!(said("/series/0/height", json!(1u64 << 40)).contains("too great"));
        assert!(said("/wall_seconds", json!(0.5)).contains("`wall_seconds` is 0.5"));
        assert!(said("/phases/0/wall_seconds", json!(-2.0)).contains("\"headers\" is -2"));
        assert!(said("/threads", json!(-2)).contains("not a report"));
        let lower = ReadOptions { stop_height: Some(4520), ..ReadOptions::default() };
        assert!(parse_json(&report(), &lower).unwrap_err().1.contains("ended at height 4521"));
        let same = ReadOptions { stop_height: Some(4521), ..ReadOptions::default() };
        assert!(parse_json(&report(), &same).is_ok());
        let long = vec![b' '; REPORT_BYTES_MAX as usize + 1];
        assert!(parse_report(&long, &ReadOptions::default()).unwrap_err().1.contains("16 MiB"));
    }

    #[test]
    fn syntax_errors_name_the_line() {
        let text = b"{\n  \"version\": 1,\n  \"engine\": swift\n}";
        let (line, what) = parse_report(text, &ReadOptions::default()).unwrap_err();
        assert_eq!(line, Some(3));
        assert!(what.starts_with("not a report of `apus sync --report`: expected value"), "{what}");
        assert!(!what.contains("line"), "{what}");
    }

    #[test]
    fn the_report_of_a_failed_run_is_refused_with_its_reason() {
        let text = br#"{"version": 1, "failure": {"code": 3, "text": "a disk is full"}}"#;
        let (_, what) = parse_report(text, &ReadOptions::default()).unwrap_err();
        assert!(what.contains("failed") && what.ends_with("a disk is full"), "{what}");
    }

    proptest! {
        #[test]
        fn any_change_leaves_a_run_or_an_error(
            at in any::<prop::sample::Index>(), byte: u8, since_block: bool,
        ) {
            let mut text = report().to_string().into_bytes();
            let at = at.index(text.len());
            text[at] = byte;
            let since = if since_block { Since::FirstBlock } else { Since::Start };
            let options = ReadOptions { since, ..ReadOptions::default() };
            if let Ok(run) = parse_report(&text, &options) {
                prop_assert!(run.points().windows(2).all(|p| p[0].seconds <= p[1].seconds));
                prop_assert!(run.points()[0].seconds >= 0.0);
                prop_assert!(run.points().iter().all(|p| p.seconds <= run.total_seconds));
            }
        }
    }
}
