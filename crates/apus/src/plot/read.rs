//! [`read()`]: a run from its file, a report of `apus sync` or Bitcoin Core's `debug.log`, told apart
//! by content.
//!
//! Files are untrusted and logs are long: a report is no more than [`REPORT_BYTES_MAX`], a log is
//! read once from start to end, and memory is bounded whatever is in it. An error names the file
//! and the line.

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

/// Many times the length of the longest report.
const REPORT_BYTES_MAX: u64 = 16 << 20;

/// The first bytes of what is compressed by gzip, as logs are that are kept.
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];

/// What lines of a log begin with that Docker keeps as JSON.
const DOCKER: &[u8] = b"{\"log\":";

/// Greatest height of Core's.
const HEIGHT_MAX: u64 = i32::MAX as u64;

/// Which part of a file is the run, and when its time begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadOptions {
    /// Of a log that holds several starts of a node: which one, from 1; none for the last.
    pub(super) start: Option<NonZeroU64>,
    /// When time begins.
    pub(super) since: Since,
    /// Of a log: nothing after this height was first reached.
    pub(super) stop_height: Option<u64>,
    /// By what it is told how far a run of Apus was. A log says heights alone: [`PlottedRun::measured`] changes that.
    pub(super) measure: PlotMeasure,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { start: None, since: Since::Start, stop_height: None, measure: PlotMeasure::Height }
    }
}

/// When the time of a run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Since {
    /// When the program started.
    Start,
    /// With the first block: what a node waits for peers and headers is left out.
    FirstBlock,
}

/// What is wrong, and in which line if it is in one.
type Wrong = (Option<u64>, String);

/// Reads a run. Its label is the one that [`labels`] gives.
pub(super) fn read(path: &Path, options: &ReadOptions) -> Result<PlottedRun, Failure> {
    let mut run = parse(path, options).map_err(|error| match error {
        RunFileError::Io(error) => Failure::new(IO, format!("{}: {error}", path.display())),
        // No run: that says nothing of blocks.
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

/// Why a file is no run.
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

/// Names for legends: of the files, with their folders where the files' names say too little.
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

/// A file's name without its extension; a `debug.log` is known by its folder.
fn name(path: &Path, with_folder: bool) -> String {
    let text =
        |part: Option<&std::ffi::OsStr>| part.map(|part| part.to_string_lossy().into_owned());
    let stem = text(path.file_stem()).unwrap_or_else(|| path.display().to_string());
    let packed = path.extension().is_some_and(|extension| extension == "gz");
    let stem = stem.strip_suffix(".log").filter(|_| packed).map_or(stem.clone(), str::to_owned);
    // As the runs of record are called.
    let short = stem.strip_suffix(".report").or_else(|| stem.strip_suffix(".debug"));
    let stem = short.map_or(stem.clone(), str::to_owned);
    let folder = text(path.parent().and_then(Path::file_name));
    match folder {
        Some(folder) if stem == "debug" => folder,
        Some(folder) if with_folder => format!("{folder}/{stem}"),
        _ => stem,
    }
}

/// The version of the form that is understood.
const VERSION: u64 = 1;

#[derive(Deserialize)]
struct RunReport {
    engine: String,
    /// Reports of versions with one engine alone may lack it.
    #[serde(default)]
    validation: String,
    /// None where the engine needs no proof.
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
    /// Of blocks by then.
    bytes: Option<u64>,
}

/// A report of another version need not have the other fields.
#[derive(Deserialize)]
struct ReportVersion {
    version: u64,
    /// Of a run that failed, why.
    failure: Option<ReportFailure>,
}

#[derive(Deserialize)]
struct ReportFailure {
    text: String,
}

/// Reads a report.
pub(super) fn parse_report(text: &[u8], options: &ReadOptions) -> Result<PlottedRun, Wrong> {
    if text.len() as u64 > REPORT_BYTES_MAX {
        let most = REPORT_BYTES_MAX >> 20;
        return Err((None, format!("more than {most} MiB: no report is that long")));
    }
    let no_report = |error: serde_json::Error| {
        let what = error.to_string();
        let what = what.split(" at line ").next().unwrap_or_default();
        (Some(error.line() as u64), format!("no report of `apus sync --report`: {what}"))
    };
    let ReportVersion { version, failure } = serde_json::from_slice(text).map_err(no_report)?;
    if version != VERSION {
        return Err((
            None,
            format!("a report of version {version}; this program reads version {VERSION}"),
        ));
    }
    if let Some(ReportFailure { text }) = failure {
        return Err((
            None,
            format!("the report of a run that failed, so it has no course: {text}"),
        ));
    }
    let report: RunReport = serde_json::from_slice(text).map_err(no_report)?;
    if options.stop_height.is_some_and(|stop| stop < report.stop_height) {
        return Err((
            None,
            format!(
                "this run ended at height {}: blocks are processed in any order, so that it has no \
                 time for a lower height",
                report.stop_height
            ),
        ));
    }
    course(&report, options).map_err(|what| (None, what))
}

fn course(report: &RunReport, options: &ReadOptions) -> Result<PlottedRun, String> {
    let not_a_time = |what: &str, seconds: f64| {
        format!("{what} is {seconds}, which is no time: the report is damaged")
    };
    let mut began = 0.0;
    // Where blocks are gone over twice it is the second time that they are judged.
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
    // Clocks are read one after the other: the first sample may seem to be before the phase.
    let judged = |sample: &&ReportSample| !twice || sample.seconds >= began;
    let series: Vec<(usize, &ReportSample)> =
        report.series.iter().enumerate().filter(|(_, sample)| judged(sample)).collect();
    began = series.first().map_or(began, |(_, sample)| began.min(sample.seconds));
    let far = |sample: &ReportSample| match options.measure {
        // The caller knows how many transactions so many blocks have.
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
    // What tells runs of an engine apart: the proof, or what is checked of scripts.
    let kind = report.aggregate.as_deref().unwrap_or(&report.validation);
    run.detail = format!("Apus {} {kind}, {} {threads}", report.engine, report.threads);
    run.scripts = match &report.verified {
        Some(ReportVerified { scripts: true }) => ScriptsRun::All,
        Some(ReportVerified { scripts: false }) => ScriptsRun::Assumed,
        None => ScriptsRun::Unknown,
    };
    run.total_seconds = wall - origin;
    // What one block takes is far less; samples are further apart, but true.
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
        // The same file twice has one name.
        assert_eq!(labels(&["a/run.json", "a/run.json"]), ["a/run", "a/run"]);
    }

    #[test]
    fn a_log_may_be_compressed() {
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
    fn what_is_no_run_is_told_by_name() {
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
            (b"PK\x03\x04", "run: no line of it"),
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

    /// As `apus sync --report` wrote it for a real chain, but for the times.
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
    fn the_course_begins_with_the_phases_before_the_blocks() {
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
    fn a_run_without_a_proof_is_told_by_its_validation() {
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
    fn a_run_that_goes_over_its_blocks_twice_has_the_course_of_the_second_time() {
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
    fn a_resumed_run_begins_where_the_other_stopped() {
        let mut resumed = report();
        resumed["segments_resumed"] = json!(3);
        let run = parse_json(&resumed, &ReadOptions::default()).unwrap();
        assert_eq!(run.start_height, 1000);
    }

    #[test]
    fn what_is_wrong_is_told() {
        let said = |path: &str, value: Value| {
            let mut bad = report();
            *bad.pointer_mut(path).unwrap() = value;
            parse_json(&bad, &ReadOptions::default()).unwrap_err().1
        };
        assert!(said("/version", json!(2)).contains("version 2"));
        assert!(said("/version", json!("1")).contains("no report"));
        assert!(said("/series", json!([])).contains("has no block"));
        assert!(said("/series", json!(7)).contains("invalid type"));
        assert!(said("/series/1/seconds", json!(0.125)).contains("`series`[1] is 0.125"));
        assert!(said("/series/0/seconds", json!(-1)).contains("`series`[0] is -1"));
        assert!(said("/series/0/height", json!(1u64 << 40)).contains("too great"));
        assert!(said("/wall_seconds", json!(0.5)).contains("`wall_seconds` is 0.5"));
        assert!(said("/phases/0/wall_seconds", json!(-2.0)).contains("\"headers\" is -2"));
        assert!(said("/threads", json!(-2)).contains("no report"));
        let lower = ReadOptions { stop_height: Some(4520), ..ReadOptions::default() };
        assert!(parse_json(&report(), &lower).unwrap_err().1.contains("ended at height 4521"));
        let same = ReadOptions { stop_height: Some(4521), ..ReadOptions::default() };
        assert!(parse_json(&report(), &same).is_ok());
        let long = vec![b' '; REPORT_BYTES_MAX as usize + 1];
        assert!(parse_report(&long, &ReadOptions::default()).unwrap_err().1.contains("16 MiB"));
    }

    #[test]
    fn syntax_is_told_by_its_line() {
        let text = b"{\n  \"version\": 1,\n  \"engine\": swift\n}";
        let (line, what) = parse_report(text, &ReadOptions::default()).unwrap_err();
        assert_eq!(line, Some(3));
        assert!(what.starts_with("no report of `apus sync --report`: expected value"), "{what}");
        assert!(!what.contains("line"), "{what}");
    }

    #[test]
    fn a_run_that_failed_says_why_it_cannot_be_drawn() {
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
