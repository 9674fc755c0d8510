//! [`Asked`]: the command line.

use std::fmt;
use std::fs;
use std::path::PathBuf;

pub(crate) const USAGE: &str = "usage: cluster APUS CHAIN [--rounds N] [--engines swiftsync,mergesync,utreexo] \
     [--workers N,N] [--dbcache MiB] [--segment-bytes N] [--json FILE]";

/// An engine whose runs machines share.
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

/// What is asked for.
pub(crate) struct Asked {
    pub(crate) program: PathBuf,
    pub(crate) chain: PathBuf,
    pub(crate) rounds: u32,
    pub(crate) engines: Vec<Engine>,
    /// How many workers there are in some runs more.
    pub(crate) workers: Vec<usize>,
    pub(crate) dbcache: u64,
    pub(crate) segment_bytes: Option<u64>,
    pub(crate) json: Option<PathBuf>,
}

impl Asked {
    pub(crate) fn read(mut words: impl Iterator<Item = String>) -> Option<Self> {
        let all = [Engine::Swiftsync, Engine::Mergesync, Engine::Utreexo];
        let mut asked = Self {
            program: fs::canonicalize(words.next()?).ok()?,
            chain: fs::canonicalize(words.next()?).ok()?,
            rounds: 3,
            engines: all[..2].to_vec(),
            workers: Vec::new(),
            dbcache: 450,
            segment_bytes: None,
            json: None,
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--rounds" => asked.rounds = words.next()?.parse().ok().filter(|it| *it > 0)?,
                "--engines" => {
                    let named = words.next()?;
                    let engine = |name| all.into_iter().find(|engine| engine.name() == name);
                    asked.engines = named.split(',').map(engine).collect::<Option<_>>()?;
                }
                "--workers" => {
                    let counts = words.next()?;
                    let count = |count: &str| count.parse().ok().filter(|count| *count > 2);
                    asked.workers = counts.split(',').map(count).collect::<Option<_>>()?;
                }
                "--dbcache" => asked.dbcache = words.next()?.parse().ok()?,
                "--segment-bytes" => asked.segment_bytes = Some(words.next()?.parse().ok()?),
                "--json" => asked.json = Some(words.next()?.into()),
                _ => return None,
            }
        }
        Some(asked)
    }
}
