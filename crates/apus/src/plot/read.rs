//! [`read()`]: a run from its file, a report of `apus sync` or Bitcoin Core's `debug.log`, told apart
//! by content.
//!
//! Files are untrusted and logs are long: a report is no more than [`REPORT_BYTES_MAX`], a log is
//! read once from start to end, and memory is bounded whatever is in it. An error names the file
//! and the line.

mod debug_log;
mod report;

use super::run::{PlotMeasure, PlottedRun};
use crate::failure::{Failure, IO};
use clap::ValueEnum;
use flate2::bufread::MultiGzDecoder;
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
            report::parse(&text, options).map_err(RunFileError::Content)
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
