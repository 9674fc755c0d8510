//! [`session()`]: a whole benchmark, from making ready to the record.

use super::cache::{self, PageCache};
use super::chain::Chain;
use super::course::Course;
use super::error::{At, RunError};
use super::matrix::Subject;
use super::own::Apus;
use super::record::{Record, VERSION};
use super::tables;
use crate::machine::Machine;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// What to do.
pub struct Plan<'a> {
    /// Name of the profile.
    pub profile: &'a str,
    /// Whether times will mean anything.
    pub timed: bool,
    /// The program that is measured.
    pub program: &'a Path,
    /// Its version.
    pub version: &'a str,
    /// The commit that it was built from, if its builder knew.
    pub commit: Option<&'a str>,
    /// What was built in that can be left out.
    pub features: Vec<&'a str>,
    /// What was asked for, to be kept in the record.
    pub command: Vec<String>,
    /// On what.
    pub chains: Vec<Chain>,
    /// What is run; of the node only if it takes part. What does not fit a chain is left out.
    pub subjects: Vec<Subject>,
    /// Why the program can run no scripts, if it cannot.
    pub no_interpreter: Option<String>,
    /// The node's program, if it takes part.
    pub bitcoind: Option<&'a Path>,
    /// How often each is run.
    pub rounds: u32,
    /// How block files should lie.
    pub page_cache: PageCache,
    /// Whether to measure the machine and work out the floor.
    pub floor: bool,
    /// A folder for everything that is made on the way. What a node needs for a chain stays in it.
    pub scratch: &'a Path,
    /// Seconds since 1970.
    pub now: i64,
}

/// What is being done.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<'a> {
    /// A node reads the chain for the first time.
    Preparing(&'a str),
    /// Proofs are made that some subjects go by.
    Proving(&'a str),
    /// A snapshot is made, for runs that take hints out of it.
    Snapshot(&'a str),
    /// Some subjects are not run.
    LeftOut {
        /// On which chain.
        chain: &'a str,
        /// Which, and why.
        what: &'a str,
    },
    /// The machine is measured.
    Measuring(&'a str),
    /// A run ended.
    Ran {
        /// From 1.
        round: u32,
        /// How many there are.
        of: u32,
        /// On which chain.
        chain: &'a str,
        /// What.
        subject: &'a Subject,
        /// How long it took.
        wall_seconds: f64,
    },
    /// A node goes through its set.
    Asking(&'a str),
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Preparing(chain) => write!(f, "{chain}: bitcoind indexes the blocks"),
            Self::Proving(chain) => write!(f, "{chain}: proofs of all blocks are made"),
            Self::Snapshot(chain) => write!(f, "{chain}: a snapshot is made"),
            Self::LeftOut { chain, what } => write!(f, "{chain}: {what}"),
            Self::Measuring(chain) => write!(f, "{chain}: measuring the machine"),
            Self::Ran { round, of, chain, subject, wall_seconds } => {
                write!(f, "{chain}, round {round} of {of}: {subject}: {wall_seconds:.3} s")
            }
            Self::Asking(chain) => write!(f, "{chain}: bitcoind goes through its set"),
        }
    }
}

/// Files beside the record, by name.
pub type Attachments = BTreeMap<String, Vec<u8>>;

/// Does it all. Results that differ are an error.
pub fn session(
    plan: &Plan<'_>,
    interrupt: &AtomicBool,
    each: &mut dyn FnMut(Event<'_>),
) -> Result<(Record, Attachments), RunError> {
    fs::create_dir_all(plan.scratch).at(plan.scratch)?;
    // Asked before anything here makes a load of its own.
    let machine = Machine::here();
    let mut courses = Vec::new();
    for chain in &plan.chains {
        courses.push(Course::prepare(plan, chain, interrupt, each)?);
    }
    let files: Vec<PathBuf> =
        courses.iter().flat_map(|course| course.files().iter().cloned()).collect();
    if plan.page_cache == PageCache::Warm {
        cache::warm(&files)?;
    }
    let cached_share = cache::cached_share(&files)?;
    let apus = Apus::new(plan.program, plan.scratch);
    for round in 1..=plan.rounds {
        let mut turns: Vec<(usize, usize)> = courses
            .iter()
            .enumerate()
            .flat_map(|(course, it)| (0..it.lanes()).map(move |lane| (course, lane)))
            .collect();
        // The order changes, so that no kind of run always has the same predecessor.
        if round % 2 == 0 {
            turns.reverse();
        }
        for (course, lane) in turns {
            if interrupt.load(Ordering::Relaxed) {
                return Err(RunError::Interrupted);
            }
            courses[course].turn(plan, &apus, lane, round, interrupt, each)?;
            courses[course].beside(plan, &apus, lane, machine.memory_bytes, interrupt)?;
        }
    }
    let bitcoind = courses.iter().find_map(|course| course.bitcoind().map(str::to_owned));
    let bip30_lookups = courses.iter().find_map(Course::looks_up_bip30);
    let limits = courses.iter().find_map(|course| course.limits().cloned());
    let left_out: Vec<String> = courses
        .iter()
        .flat_map(|course| {
            course.left_out().iter().map(|what| format!("{}: {what}.", course.name()))
        })
        .collect();
    let mut attachments = Attachments::new();
    let mut chains = Vec::new();
    for course in courses {
        chains.push(course.finish(plan.scratch, interrupt, each, &mut attachments)?);
    }
    let mut record = Record {
        version: VERSION,
        date: apus_chain::utc(plan.now),
        profile: plan.profile.to_owned(),
        timed: plan.timed,
        command: plan.command.clone(),
        apus: plan.version.to_owned(),
        commit: plan.commit.map(str::to_owned),
        features: Some(plan.features.iter().map(|feature| (*feature).to_owned()).collect()),
        bitcoind,
        bip30_lookups,
        machine,
        page_cache: plan.page_cache,
        cached_share,
        rounds: plan.rounds,
        limits,
        chains,
        notes: Vec::new(),
    };
    record.notes = tables::notes(&record);
    record.notes.extend(left_out);
    Ok((record, attachments))
}
