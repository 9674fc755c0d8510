//! [`RunDisplay`]: the display of a job. It is set up before the job starts, so that errors appear early: the log
//! ([`RunLog`]) must be writable, and the page's address free.

use crate::args::{ProgressArg, RunArgs};
use crate::estimate::{ExpectedPhase, ProgressEstimate};
use crate::failure::Failure;
#[cfg(feature = "web")]
use crate::page;
use crate::print;
use crate::render::bar::Canvas;
use crate::status::{Note, RunFacts, RunStatus, StatusLock};
use apus_chain::utc;
use apus_storage::open_to_append;
use console::Term;
use parking_lot::Mutex;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;

/// How to display a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Bar,
    Lines,
    Json,
    None,
}

/// The display of a job that has not started yet.
pub(crate) struct RunDisplay {
    pub(super) style: Style,
    pub(super) log: Option<RunLog>,
    pub(crate) shared: StatusLock,
}

impl RunDisplay {
    /// Opens the log and the page, if the user wants them.
    pub(crate) fn of(
        run: &RunArgs,
        about: RunFacts,
        expected: Vec<ExpectedPhase>,
    ) -> Result<Self, Failure> {
        let log = run.log.as_deref().map(RunLog::open).transpose()?;
        let watch = Self { log, ..Self::plain(run.progress, about, expected) };
        #[cfg(feature = "web")]
        page::begin(&run.page, &watch.shared)?;
        Ok(watch)
    }

    /// Creates a display without log and page.
    pub(crate) fn plain(
        progress: ProgressArg,
        about: RunFacts,
        expected: Vec<ExpectedPhase>,
    ) -> Self {
        let style = match progress {
            ProgressArg::Auto if std::io::stderr().is_terminal() => Style::Bar,
            ProgressArg::Auto | ProgressArg::Plain => Style::Lines,
            ProgressArg::Json => Style::Json,
            ProgressArg::None => Style::None,
        };
        if style == Style::Json {
            print::speak_json();
        }
        let estimate = ProgressEstimate::new(expected, about.threads);
        let shared = Arc::new(Mutex::new(RunStatus::new(about, estimate)));
        Self { style, log: None, shared }
    }
}

impl Canvas {
    /// Returns the terminal's current size, which the user may change at any time.
    pub(crate) fn here() -> Self {
        let (_, width) = Term::stderr().size();
        Self { width: width.into(), unicode: speaks_unicode() }
    }
}

/// Whether the environment's locale is UTF-8.
fn speaks_unicode() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let language = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
    let language = language.unwrap_or_default().to_lowercase();
    language.contains("utf-8") || language.contains("utf8")
}

/// The log of `--log FILE`: one line per event, appended to the file.
///
/// A line is `2026-01-31T12:34:56Z kind: text`; further lines of a text are indented. The file is for people and for
/// `grep`; programs read `--progress json`.
pub(crate) struct RunLog {
    file: File,
}

impl RunLog {
    /// Opens the file for appending, and creates it if it does not exist.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let file = open_to_append(path)
            .map_err(|error| Failure::making(path, &error, "choose another file with --log"))?;
        Ok(Self { file })
    }

    /// Writes a line. Ignores errors: a failure to log must not stop the job.
    pub(crate) fn write(&mut self, note: &Note) {
        let text = note.text.trim_end().replace('\n', "\n    ");
        let line = format!("{} {}: {text}\n", utc(note.time as i64), note.kind);
        let _ = self.file.write_all(line.as_bytes());
    }
}
