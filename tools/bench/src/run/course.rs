//! [`Course`]: one chain with all that is run on it, and what came out so far.

use super::beside::side_by_side;
use super::cache::{self, PageCache};
use super::chain::{Chain, read_json};
use super::derive;
use super::equality::Agreed;
use super::error::{At, RunError};
use super::fitness::{self, LeftOut};
use super::matrix::Subject;
use super::node::Folder;
use super::own::Apus;
use super::record::{ChainRecord, OneRun};
use super::report::Report;
use super::session::{Attachments, Event, Plan};
use crate::floor::{Floor, Limits};
use crate::process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

/// Longer than measuring the machine and counting any chain should take.
const FLOOR_LIMIT: Duration = Duration::from_secs(3_600);

/// One chain with all that runs on it.
pub(super) struct Course<'a> {
    chain: &'a Chain,
    node: Option<Folder>,
    floor: Option<Floor>,
    /// Block files that any process reads.
    files: Vec<PathBuf>,
    /// The chain's own, as they were before.
    before: Vec<(PathBuf, u64, SystemTime)>,
    lanes: Vec<Lane>,
    /// What is not run, and why.
    left_out: Vec<String>,
    agreed: Option<Agreed>,
}

/// One subject on one chain.
struct Lane {
    subject: Subject,
    arguments: Vec<String>,
    runs: Vec<OneRun>,
    /// Of each run: the report, or the log.
    papers: Vec<Vec<u8>>,
}

impl<'a> Course<'a> {
    /// Makes everything ready that is not timed.
    pub(super) fn prepare(
        plan: &Plan<'_>,
        chain: &'a Chain,
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(Event<'_>),
    ) -> Result<Self, RunError> {
        let mut files = chain.files()?;
        let before = states(&files)?;
        let node = match plan.bitcoind {
            Some(program) => {
                each(Event::Preparing(&chain.name));
                Some(Folder::prepare(program, chain, plan.scratch, interrupt)?)
            }
            None => None,
        };
        if let Some(node) = &node {
            files.extend(node.files()?);
        }
        let floor = if plan.floor {
            each(Event::Measuring(&chain.name));
            Some(measure(plan, chain, interrupt)?)
        } else {
            None
        };
        let apus = Apus::new(plan.program, plan.scratch);
        let mut lanes = Vec::new();
        let (chosen, left_out) =
            fitness::choose(&plan.subjects, chain, plan.no_interpreter.as_deref(), node.is_some());
        if let Some(subject) = chosen.iter().find(|subject| subject.takes_proofs()) {
            each(Event::Proving(&chain.name));
            apus.prove(chain, subject, interrupt)?;
        }
        if let Some(subject) = chosen.iter().find(|subject| subject.takes_snapshot()) {
            each(Event::Snapshot(&chain.name));
            apus.write_snapshot(chain, subject, interrupt)?;
        }
        for subject in chosen {
            let arguments = match (&subject, &node) {
                (Subject::Bitcoind { validation, dbcache_mib }, Some(node)) => {
                    Some(node.arguments(*validation, *dbcache_mib))
                }
                (_, node) => apus.arguments(chain, node.as_ref().map(Folder::path), &subject),
            };
            lanes.extend(arguments.map(|arguments| Lane::new(subject, arguments)));
        }
        let left_out: Vec<String> = left_out.iter().map(LeftOut::text).collect();
        for what in &left_out {
            each(Event::LeftOut { chain: &chain.name, what });
        }
        Ok(Self { chain, node, floor, files, before, lanes, left_out, agreed: None })
    }

    /// One run of one subject.
    pub(super) fn turn(
        &mut self,
        plan: &Plan<'_>,
        apus: &Apus<'_>,
        lane: usize,
        round: u32,
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), RunError> {
        self.quiet(plan)?;
        let lane = &mut self.lanes[lane];
        let run = match (&lane.subject, &self.node) {
            (Subject::Bitcoind { validation, dbcache_mib }, Some(node)) => {
                let timed = node.run(*validation, *dbcache_mib, interrupt)?;
                lane.papers.push(timed.log.extract.clone().into_bytes());
                OneRun {
                    round,
                    wall_seconds: timed.usage.wall_seconds,
                    cpu_seconds: timed.usage.cpu_seconds,
                    rss_peak_bytes: timed.usage.rss_peak_bytes,
                    phases: Vec::new(),
                    connect_seconds: timed.log.connect_seconds(),
                    side_by_side_seconds: None,
                }
            }
            (subject, _) => {
                let (run, report) =
                    apus.run(&lane.arguments, lane.subject.threads(), round, interrupt)?;
                let path = apus.report();
                lane.papers.push(fs::read(&path).at(&path)?);
                let who = format!("{subject} in round {round}");
                expect_work(self.chain, &who, subject, &report)?;
                match &mut self.agreed {
                    None => self.agreed = Some(Agreed::first(self.chain, &who, &report)?),
                    Some(agreed) => agreed.expect(self.chain, &who, &report.set)?,
                }
                run
            }
        };
        let wall_seconds = run.wall_seconds;
        let (chain, subject) = (self.chain.name.as_str(), &lane.subject);
        each(Event::Ran { round, of: plan.rounds, chain, subject, wall_seconds });
        lane.runs.push(run);
        Ok(())
    }

    /// What the run before wrote must not be on its way to the disk while the next one is timed.
    fn quiet(&self, plan: &Plan<'_>) -> Result<(), RunError> {
        rustix::fs::sync();
        match plan.page_cache {
            PageCache::Dropped => Ok(cache::drop_files(&self.files)?),
            PageCache::Warm => Ok(()),
        }
    }

    /// After a run with several threads, as many runs with one, if a run with one is measured at all.
    pub(super) fn beside(
        &mut self,
        plan: &Plan<'_>,
        apus: &Apus<'_>,
        lane: usize,
        memory_bytes: Option<u64>,
        interrupt: &AtomicBool,
    ) -> Result<(), RunError> {
        let subject = &self.lanes[lane].subject;
        let single = derive::with_one_thread(subject);
        if !self.lanes.iter().any(|lane| Some(&lane.subject) == single.as_ref()) {
            return Ok(());
        }
        self.quiet(plan)?;
        let at = (self.chain, self.node.as_ref().map(Folder::path));
        let Some((seconds, reports)) = side_by_side(apus, at, subject, memory_bytes, interrupt)?
        else {
            return Ok(());
        };
        let who = format!("{subject}, one of as many side by side");
        for report in reports {
            expect_work(self.chain, &who, subject, &report)?;
            if let Some(agreed) = &mut self.agreed {
                agreed.expect(self.chain, &who, &report.set)?;
            }
        }
        if let Some(run) = self.lanes[lane].runs.last_mut() {
            run.side_by_side_seconds = Some(seconds);
        }
        Ok(())
    }

    /// What the chain is called.
    pub(super) fn name(&self) -> &str {
        &self.chain.name
    }

    /// How many subjects there are.
    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// What is not run, and why.
    pub(super) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Block files that any process reads.
    pub(super) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// What the node says of itself.
    pub(super) fn bitcoind(&self) -> Option<&str> {
        self.node.as_ref().map(Folder::version)
    }

    /// Whether it looks up every output for BIP-30.
    pub(super) fn looks_up_bip30(&self) -> Option<bool> {
        self.node.as_ref().map(Folder::looks_up_bip30)
    }

    /// What the machine can do.
    pub(super) fn limits(&self) -> Option<&Limits> {
        self.floor.as_ref().map(|floor| &floor.limits)
    }

    /// Asks the node for its set, and works out what follows from the runs.
    pub(super) fn finish(
        self,
        scratch: &Path,
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(Event<'_>),
        attachments: &mut Attachments,
    ) -> Result<ChainRecord, RunError> {
        let name = &self.chain.name;
        let mut agreed = self.agreed.ok_or_else(|| {
            RunError::Usage(format!("{name}: nothing of Apus was run, so nothing is compared"))
        })?;
        let bitcoind_set = match &self.node {
            Some(node) => {
                each(Event::Asking(name));
                let set = node.set(interrupt)?;
                agreed.expect(self.chain, "bitcoind", &set)?;
                Some(set)
            }
            None => None,
        };
        if states(&self.chain.files()?)? != self.before {
            return Err(RunError::Different(format!(
                "{name}: the block files were changed while they were measured"
            )));
        }
        let places = [(&*self.chain.folder, "CHAIN"), (scratch, "SCRATCH")];
        let mut measured = Vec::new();
        for lane in self.lanes {
            let arguments = lane.arguments.iter().map(|it| without_places(it, &places)).collect();
            let one = derive::measured(&lane.subject, arguments, lane.runs, &agreed.counts);
            if let Some(one) = &one {
                // Of the run in the middle; of an even number, of one of the two there.
                let middle = one.runs.iter().enumerate().min_by(|(_, a), (_, b)| {
                    let off = |run: &OneRun| (run.wall_seconds - one.wall_seconds.median).abs();
                    off(a).total_cmp(&off(b))
                });
                let paper = middle.and_then(|(index, _)| lane.papers.into_iter().nth(index));
                attachments.extend(paper.map(|paper| (file_name(name, &lane.subject), paper)));
            }
            measured.extend(one);
        }
        let floor = self.floor.and_then(|floor| Some((floor.chain?, floor.limits.threads)));
        if let Some((floor, threads)) = &floor {
            derive::over_floor(&mut measured, floor, *threads);
        }
        Ok(ChainRecord {
            chain: name.clone(),
            manifest: self.chain.manifest.clone(),
            counts: agreed.counts,
            set: agreed.set,
            bitcoind_set,
            floor: floor.map(|(floor, _)| floor),
            ratios: derive::ratios(&measured),
            scaling: derive::scaling(&measured),
            outputs: derive::outputs(&measured),
            measured,
        })
    }
}

impl Lane {
    fn new(subject: Subject, arguments: Vec<String>) -> Self {
        Self { subject, arguments, runs: Vec::new(), papers: Vec::new() }
    }
}

/// A run must have done the work that it is timed for.
fn expect_work(
    chain: &Chain,
    who: &str,
    subject: &Subject,
    report: &Report,
) -> Result<(), RunError> {
    let wrong = report.differences(subject, chain.manifest.as_ref());
    if wrong.is_empty() {
        return Ok(());
    }
    let (name, wrong) = (&chain.name, wrong.join(", "));
    Err(RunError::Different(format!(
        "{name}: {who} did other work than it was to, by its report: {wrong}: no time counts"
    )))
}

/// Measures the machine on a chain, in a process of its own: that one takes memory for it, which
/// this one must not, and has a kernel for each of its children.
fn measure(plan: &Plan<'_>, chain: &Chain, interrupt: &AtomicBool) -> Result<Floor, RunError> {
    let json = plan.scratch.join("floor.json");
    let mut command = Command::new(plan.program);
    command.args(["bench", "floor", "--chain-dir"]).arg(&chain.folder).arg("--json").arg(&json);
    process::run(&mut command, FLOOR_LIMIT, interrupt)?;
    read_json(&json)
}

/// Length and time of change of each file.
fn states(files: &[PathBuf]) -> Result<Vec<(PathBuf, u64, SystemTime)>, RunError> {
    let state = |path: &PathBuf| {
        let meta = fs::metadata(path).at(path)?;
        Ok((path.clone(), meta.len(), meta.modified().at(path)?))
    };
    files.iter().map(state).collect()
}

/// An argument without the machine's own folders.
fn without_places(argument: &str, places: &[(&Path, &str)]) -> String {
    places.iter().fold(argument.to_owned(), |argument, (place, word)| {
        match place.to_str().filter(|place| !place.is_empty()) {
            Some(place) => argument.replace(place, word),
            None => argument,
        }
    })
}

/// Name of the report or log of a subject.
fn file_name(chain: &str, subject: &Subject) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = format!("{chain} {subject}").chars().map(plain).collect();
    match subject {
        Subject::Apus { .. } => format!("{name}.report.json"),
        Subject::Bitcoind { .. } => format!("{name}.debug.log"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::matrix::Validation;

    #[test]
    fn a_record_names_no_folder_of_the_machine() {
        let places = [(Path::new("/data/chain"), "CHAIN"), (Path::new(""), "SCRATCH")];
        assert_eq!(without_places("/data/chain/blocks", &places), "CHAIN/blocks");
        assert_eq!(without_places("snapshot:/data/x", &places), "snapshot:/data/x");
    }

    #[test]
    fn papers_have_plain_names() {
        let node = |validation| Subject::Bitcoind { validation, dbcache_mib: 450 };
        let name = |validation| file_name("a b", &node(validation));
        assert_eq!(name(Validation::Assumevalid), "a-b-bitcoind-dbcache-450.debug.log");
        assert_eq!(name(Validation::Full), "a-b-bitcoind-assumevalid-0-dbcache-450.debug.log");
    }
}
