//! [`Watch`]: what of a run's being watched has to be right before it begins: the log ([`RunLog`]) can be written, and the
//! page's address can be had.

use crate::args::{ProgressArg, RunArgs};
use crate::course::{Expected, RunCourse};
use crate::failure::Failure;
#[cfg(feature = "web")]
use crate::page;
use crate::print;
use crate::render::bar::Canvas;
use crate::watched::{About, Note, Shared, Watched};
use apus_chain::utc;
use apus_storage::open_to_append;
use console::Term;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Bar,
    Lines,
    Json,
    None,
}

/// A run that is going to be watched.
pub(crate) struct Watch {
    pub(super) style: Style,
    pub(super) log: Option<RunLog>,
    pub(crate) shared: Shared,
}

impl Watch {
    /// Opens the log and the page, where the user wants them.
    pub(crate) fn of(
        run: &RunArgs,
        about: About,
        expected: Vec<Expected>,
    ) -> Result<Self, Failure> {
        let log = run.log.as_deref().map(RunLog::open).transpose()?;
        let watch = Self { log, ..Self::plain(run.progress, about, expected) };
        #[cfg(feature = "web")]
        page::begin(&run.page, &watch.shared)?;
        Ok(watch)
    }

    /// One that is only shown.
    pub(crate) fn plain(progress: ProgressArg, about: About, expected: Vec<Expected>) -> Self {
        let style = match progress {
            ProgressArg::Auto if std::io::stderr().is_terminal() => Style::Bar,
            ProgressArg::Auto | ProgressArg::Plain => Style::Lines,
            ProgressArg::Json => Style::Json,
            ProgressArg::None => Style::None,
        };
        if style == Style::Json {
            print::speak_json();
        }
        let course = RunCourse::new(expected, about.threads);
        let shared = Arc::new(Mutex::new(Watched::new(about, course)));
        Self { style, log: None, shared }
    }
}

impl Canvas {
    /// The terminal as it is now, which the user may make wider or narrower.
    pub(crate) fn here() -> Self {
        let (_, width) = Term::stderr().size();
        Self { width: width.into(), unicode: speaks_unicode() }
    }
}

/// By what the environment says of the user's language, as programs go by it everywhere.
fn speaks_unicode() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let language = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG"));
    let language = language.unwrap_or_default().to_lowercase();
    language.contains("utf-8") || language.contains("utf8")
}

/// An open log, `--log FILE`: what happens, a line each, after what the file has already.
///
/// A line is `2026-01-31T12:34:56Z kind: text`; further lines of a text are indented. The file is for people and for
/// `grep`; programs read `--progress json`.
pub(crate) struct RunLog {
    file: File,
}

impl RunLog {
    /// Opens the file to append to, and makes it where it is not there.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let file = open_to_append(path)
            .map_err(|error| Failure::making(path, &error, "name another --log"))?;
        Ok(Self { file })
    }

    /// Writes a line. That it cannot be written is no reason to end a run.
    pub(crate) fn write(&mut self, note: &Note) {
        let text = note.text.trim_end().replace('\n', "\n    ");
        let line = format!("{} {}: {text}\n", utc(note.time as i64), note.kind);
        let _ = self.file.write_all(line.as_bytes());
    }
}
