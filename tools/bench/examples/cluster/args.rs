//! [`Args`]: the command line.

use crate::start::Kind;
use std::fmt;
use std::fs;
use std::path::PathBuf;

pub(crate) const USAGE: &str = "usage: cluster APUS CHAIN [--rounds N] [--engines swiftsync,mergesync,utreexo] \
     [--validation assumevalid|full] [--workers N,N] [--runs KIND,KIND] [--dbcache MiB] \
     [--segment-bytes N] [--json FILE]; full validation excludes swiftsync, which would need undo data";

/// An engine that supports cluster syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Engine {
    Swiftsync,
    Mergesync,
    Utreexo,
}

impl Engine {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Swiftsync => "swiftsync",
            Self::Mergesync => "mergesync",
            Self::Utreexo => "utreexo",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The options of the command line.
pub(crate) struct Args {
    pub(crate) program: PathBuf,
    pub(crate) chain: PathBuf,
    pub(crate) rounds: u32,
    pub(crate) engines: Vec<Engine>,
    /// Whether to validate all scripts. Hints would need undo data for that, so this excludes swiftsync.
    pub(crate) full: bool,
    /// The kinds of runs, interleaved.
    pub(crate) kinds: Vec<Kind>,
    /// Whether the user named the kinds; then the other measurements are skipped.
    pub(crate) only: bool,
    pub(crate) dbcache: u64,
    pub(crate) segment_bytes: Option<u64>,
    pub(crate) json: Option<PathBuf>,
}

impl Args {
    pub(crate) fn read(mut words: impl Iterator<Item = String>) -> Option<Self> {
        let all = [Engine::Swiftsync, Engine::Mergesync, Engine::Utreexo];
        let mut args = Self {
            program: fs::canonicalize(words.next()?).ok()?,
            chain: fs::canonicalize(words.next()?).ok()?,
            rounds: 3,
            engines: all[..2].to_vec(),
            full: false,
            kinds: Kind::ALL.to_vec(),
            only: false,
            dbcache: 450,
            segment_bytes: None,
            json: None,
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--rounds" => args.rounds = words.next()?.parse().ok().filter(|it| *it > 0)?,
                "--engines" => {
                    let named = words.next()?;
                    let engine = |name| all.into_iter().find(|engine| engine.name() == name);
                    args.engines = named.split(',').map(engine).collect::<Option<_>>()?;
                }
                "--workers" => {
                    let counts = words.next()?;
                    let count = |count: &str| count.parse().ok().filter(|count| *count > 2);
                    let more = counts.split(',').map(|it| count(it).map(Kind::Workers));
                    args.kinds.extend(more.collect::<Option<Vec<_>>>()?);
                }
                "--runs" => {
                    let named = words.next()?;
                    args.kinds = named.split(',').map(Kind::named).collect::<Option<_>>()?;
                    args.only = true;
                }
                "--validation" => {
                    args.full = match words.next()?.as_str() {
                        "assumevalid" => false,
                        "full" => true,
                        _ => return None,
                    }
                }
                "--dbcache" => args.dbcache = words.next()?.parse().ok()?,
                "--segment-bytes" => args.segment_bytes = Some(words.next()?.parse().ok()?),
                "--json" => args.json = Some(words.next()?.into()),
                _ => return None,
            }
        }
        let by_hints = args.engines.contains(&Engine::Swiftsync);
        (!(args.full && by_hints)).then_some(args)
    }
}
