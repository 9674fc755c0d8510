//! [`session()`]: a whole benchmark, from preparation to the record; [`ChainCourse`]: one chain with all its
//! runs, and the results so far.

use super::matrix::Subject;
use super::node::BenchNodeFolder;
use super::own::ApusRunner;
use super::record::{self, BenchRecord, ChainRecord, OneRun, VERSION, with_one_thread};
use super::report::{AgreedResult, ApusReport};
use super::subject;
use super::tables;
use crate::chain::{self, BenchChain, PageCache, read_json};
use crate::error::{AtPath, BenchError, check_interrupt};
use crate::floor::Floor;
use crate::machine::BenchMachine;
use crate::process;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};
use std::{fs, thread};

/// The inputs of a benchmark.
pub struct SessionPlan<'a> {
    /// Name of the profile.
    pub profile: &'a str,
    /// Whether times will mean anything.
    pub timed: bool,
    /// The program to measure.
    pub program: &'a Path,
    /// Its version.
    pub version: &'a str,
    /// The commit that it was built from, if the build recorded it.
    pub commit: Option<&'a str>,
    /// Its optional features.
    pub features: Vec<&'a str>,
    /// The command line, for the record.
    pub command: Vec<String>,
    /// The chains.
    pub chains: Vec<BenchChain>,
    /// The subjects; the node's only if it takes part. Subjects that do not fit a chain are left out.
    pub subjects: Vec<Subject>,
    /// The reason if the program cannot validate scripts.
    pub no_interpreter: Option<String>,
    /// The node's program, if it takes part.
    pub bitcoind: Option<&'a Path>,
    /// Number of rounds.
    pub rounds: u32,
    /// Wanted state of the page cache for the block files.
    pub page_cache: PageCache,
    /// The program that measures the machine and computes the floor, if wanted.
    pub floor: Option<&'a Path>,
    /// A folder for intermediate files. A node's data for a chain is kept there.
    pub scratch: &'a Path,
    /// Seconds since 1970.
    pub now: i64,
}

/// Files next to the record, by name.
pub type Attachments = BTreeMap<String, Vec<u8>>;

/// Runs the whole benchmark. Differing results are an error.
pub fn session(
    plan: &SessionPlan<'_>,
    interrupt: &AtomicBool,
    each: &mut dyn FnMut(String),
) -> Result<(BenchRecord, Attachments), BenchError> {
    fs::create_dir_all(plan.scratch).at(plan.scratch)?;
    // Read the load before this benchmark adds its own.
    let machine = BenchMachine::here();
    let mut courses = Vec::new();
    for chain in &plan.chains {
        courses.push(ChainCourse::prepare(plan, chain, interrupt, each)?);
    }
    let files: Vec<PathBuf> =
        courses.iter().flat_map(|course| course.files.iter().cloned()).collect();
    if plan.page_cache == PageCache::Warm {
        chain::warm(&files)?;
    }
    let cached_share = chain::cached_share(&files)?;
    let apus = ApusRunner::new(plan.program, plan.scratch);
    for round in 1..=plan.rounds {
        let mut turns: Vec<(usize, usize)> = courses
            .iter()
            .enumerate()
            .flat_map(|(course, it)| (0..it.lanes.len()).map(move |lane| (course, lane)))
            .collect();
        // The order changes, so that no kind of run always has the same predecessor.
        if round % 2 == 0 {
            turns.reverse();
        }
        for (course, lane) in turns {
            check_interrupt(interrupt)?;
            courses[course].turn(plan, &apus, lane, round, interrupt, each)?;
            courses[course].concurrent_runs(plan, &apus, lane, machine.memory_bytes, interrupt)?;
        }
    }
    let node = courses.iter().find_map(|course| course.node.as_ref());
    let bitcoind = node.map(|node| node.version.clone());
    let bip30_lookups = node.map(BenchNodeFolder::looks_up_bip30);
    let floor = courses.iter().find_map(|course| course.floor.as_ref());
    let limits = floor.map(|floor| floor.limits.clone());
    let left_out: Vec<String> = courses
        .iter()
        .flat_map(|it| it.left_out.iter().map(|what| format!("{}: {what}.", it.chain.name)))
        .collect();
    let mut attachments = Attachments::new();
    let mut chains = Vec::new();
    for course in courses {
        chains.push(course.finish(plan.scratch, interrupt, each, &mut attachments)?);
    }
    let mut record = BenchRecord {
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

// ---- one chain with all its runs ----

/// Time limit of measuring the machine and counting a chain: longer than any should take.
const FLOOR_LIMIT: Duration = Duration::from_secs(3_600);

/// One chain with all its runs.
struct ChainCourse<'a> {
    chain: &'a BenchChain,
    node: Option<BenchNodeFolder>,
    floor: Option<Floor>,
    /// Block files that any process reads.
    files: Vec<PathBuf>,
    /// The chain's own files, as they were before.
    before: Vec<(PathBuf, u64, SystemTime)>,
    lanes: Vec<SubjectRuns>,
    /// Subjects left out, with reasons.
    left_out: Vec<String>,
    agreed: Option<AgreedResult>,
}

/// One subject on one chain.
struct SubjectRuns {
    subject: Subject,
    arguments: Vec<String>,
    runs: Vec<OneRun>,
    /// The report or the log of each run.
    papers: Vec<Vec<u8>>,
}

impl<'a> ChainCourse<'a> {
    /// Prepares everything that is not timed.
    fn prepare(
        plan: &SessionPlan<'_>,
        chain: &'a BenchChain,
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(String),
    ) -> Result<Self, BenchError> {
        let mut files = chain.files()?;
        let before = states(&files)?;
        let node = match plan.bitcoind {
            Some(program) => {
                each(format!("{}: bitcoind: indexing the blocks", chain.name));
                Some(BenchNodeFolder::prepare(program, chain, plan.scratch, interrupt)?)
            }
            None => None,
        };
        if let Some(node) = &node {
            files.extend(node.files()?);
        }
        let floor = match plan.floor {
            Some(program) => {
                each(format!("{}: measuring the machine", chain.name));
                Some(measure(program, plan.scratch, chain, interrupt)?)
            }
            None => None,
        };
        let apus = ApusRunner::new(plan.program, plan.scratch);
        let mut lanes = Vec::new();
        let (chosen, left_out) =
            subject::choose(&plan.subjects, chain, plan.no_interpreter.as_deref(), node.is_some());
        if let Some(subject) = chosen.iter().find(|subject| subject.takes_proofs()) {
            each(format!("{}: making proofs of all blocks", chain.name));
            apus.prove(chain, subject, interrupt)?;
        }
        if let Some(subject) = chosen.iter().find(|subject| subject.takes_snapshot()) {
            each(format!("{}: making a snapshot", chain.name));
            apus.write_snapshot(chain, subject, interrupt)?;
        }
        for subject in chosen {
            let arguments = match (&subject, &node) {
                (Subject::Bitcoind { validation, dbcache_mib }, Some(node)) => {
                    Some(node.arguments(*validation, *dbcache_mib))
                }
                (_, node) => {
                    apus.arguments(chain, node.as_ref().map(|node| node.path.as_path()), &subject)
                }
            };
            lanes.extend(arguments.map(|arguments| SubjectRuns {
                subject,
                arguments,
                runs: Vec::new(),
                papers: Vec::new(),
            }));
        }
        for what in &left_out {
            each(format!("{}: {what}", chain.name));
        }
        Ok(Self { chain, node, floor, files, before, lanes, left_out, agreed: None })
    }

    /// One run of one subject.
    fn turn(
        &mut self,
        plan: &SessionPlan<'_>,
        apus: &ApusRunner<'_>,
        lane: usize,
        round: u32,
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(String),
    ) -> Result<(), BenchError> {
        self.quiet(plan)?;
        let lane = &mut self.lanes[lane];
        let run = match (&lane.subject, &self.node) {
            (Subject::Bitcoind { validation, dbcache_mib }, Some(node)) => {
                let timed = node.run(*validation, *dbcache_mib, interrupt)?;
                lane.papers.push(timed.log.extract.clone().into_bytes());
                OneRun {
                    connect_seconds: timed.log.connect_seconds(),
                    ..OneRun::of(round, timed.usage)
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
                    None => self.agreed = Some(AgreedResult::first(self.chain, &who, &report)?),
                    Some(agreed) => agreed.expect(self.chain, &who, &report.set)?,
                }
                run
            }
        };
        let (chain, subject, of) = (&self.chain.name, &lane.subject, plan.rounds);
        each(format!("{chain}, round {round} of {of}: {subject}: {:.3} s", run.wall_seconds));
        lane.runs.push(run);
        Ok(())
    }

    /// Writes the previous run's dirty pages to disk before the next run is timed.
    fn quiet(&self, plan: &SessionPlan<'_>) -> Result<(), BenchError> {
        rustix::fs::sync();
        match plan.page_cache {
            PageCache::Dropped => Ok(chain::drop_files(&self.files)?),
            PageCache::Warm => Ok(()),
        }
    }

    /// After a run with several threads, runs as many concurrent single-threaded ones, if single-threaded
    /// runs are measured at all.
    fn concurrent_runs(
        &mut self,
        plan: &SessionPlan<'_>,
        apus: &ApusRunner<'_>,
        lane: usize,
        memory_bytes: Option<u64>,
        interrupt: &AtomicBool,
    ) -> Result<(), BenchError> {
        let subject = &self.lanes[lane].subject;
        let single = record::with_one_thread(subject);
        if !self.lanes.iter().any(|lane| Some(&lane.subject) == single.as_ref()) {
            return Ok(());
        }
        self.quiet(plan)?;
        let at = (self.chain, self.node.as_ref().map(|node| node.path.as_path()));
        let Some((seconds, reports)) = side_by_side(apus, at, subject, memory_bytes, interrupt)?
        else {
            return Ok(());
        };
        let who = format!("{subject}, one of several side by side");
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

    /// Queries the node's set, and computes ratios from the runs.
    fn finish(
        self,
        scratch: &Path,
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(String),
        attachments: &mut Attachments,
    ) -> Result<ChainRecord, BenchError> {
        let name = &self.chain.name;
        let mut agreed = self.agreed.ok_or_else(|| {
            BenchError::usage(format!(
                "{name}: no subject of Apus was run, so there is nothing to compare"
            ))
        })?;
        let bitcoind_set = match &self.node {
            Some(node) => {
                each(format!("{name}: bitcoind: hashing its UTXO set"));
                let set = node.set(interrupt)?;
                agreed.expect(self.chain, "bitcoind", &set)?;
                Some(set)
            }
            None => None,
        };
        if states(&self.chain.files()?)? != self.before {
            return Err(BenchError::different(format!(
                "{name}: the block files changed during the measurement"
            )));
        }
        let places = [(&*self.chain.folder, "CHAIN"), (scratch, "SCRATCH")];
        let mut measured = Vec::new();
        for lane in self.lanes {
            let arguments = lane.arguments.iter().map(|it| without_places(it, &places)).collect();
            let one = record::measured(&lane.subject, arguments, lane.runs, &agreed.counts);
            if let Some(one) = &one {
                // Keep the paper of the median run, or of one of the middle two if their number is even.
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
            record::over_floor(&mut measured, floor, *threads);
        }
        Ok(ChainRecord {
            chain: name.clone(),
            manifest: self.chain.manifest.clone(),
            counts: agreed.counts,
            set: agreed.set,
            bitcoind_set,
            floor: floor.map(|(floor, _)| floor),
            ratios: record::ratios(&measured),
            scaling: record::scaling(&measured),
            outputs: record::outputs(&measured),
            measured,
        })
    }
}

/// Checks that a run did the work that it was timed for.
fn expect_work(
    chain: &BenchChain,
    who: &str,
    subject: &Subject,
    report: &ApusReport,
) -> Result<(), BenchError> {
    let wrong = report.differences(subject, chain.manifest.as_ref());
    if wrong.is_empty() {
        return Ok(());
    }
    let (name, wrong) = (&chain.name, wrong.join(", "));
    Err(BenchError::different(format!(
        "{name}: {who} did different work than intended, by its report: {wrong}: no times are reported"
    )))
}

/// Measures the machine on a chain, in a separate process: it needs memory that this process must not use,
/// and a child process for each kernel.
fn measure(
    program: &Path,
    scratch: &Path,
    chain: &BenchChain,
    interrupt: &AtomicBool,
) -> Result<Floor, BenchError> {
    let json = scratch.join("floor.json");
    let mut command = Command::new(program);
    command.args(["floor", "--chain-dir"]).arg(&chain.folder).arg("--json").arg(&json);
    process::run(&mut command, FLOOR_LIMIT, interrupt)?;
    read_json(&json)
}

/// Length and modification time of each file.
fn states(files: &[PathBuf]) -> Result<Vec<(PathBuf, u64, SystemTime)>, BenchError> {
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

// ---- concurrent runs ----
//
// These runs share nothing but the machine. They show the slowdown that memory, disk and clock speed impose
// on processors working at the same time; a multi-threaded program can at best approach that speed.

/// Maximum memory of a run in addition to its `--dbcache`, in MiB.
const OVERHEAD_MIB: u64 = 100;

/// Starts the concurrent runs. Returns their mean wall time and their reports; `None` if the subject has one
/// thread, or if the memory does not suffice for all runs.
fn side_by_side(
    apus: &ApusRunner<'_>,
    (chain, node): (&BenchChain, Option<&Path>),
    subject: &Subject,
    memory_bytes: Option<u64>,
    interrupt: &AtomicBool,
) -> Result<Option<(f64, Vec<ApusReport>)>, BenchError> {
    let places = subject.threads().filter(|threads| *threads > 1);
    let (Some(places), Some(single)) = (places, with_one_thread(subject)) else { return Ok(None) };
    let each_mib = subject.dbcache_mib().saturating_add(OVERHEAD_MIB);
    let needed = each_mib.saturating_mul(places as u64).saturating_mul(1 << 20);
    if memory_bytes.is_none_or(|memory| memory < needed) {
        return Ok(None);
    }
    let one = |place: usize| {
        let apus = ApusRunner { place: Some(place), ..*apus };
        let arguments = apus.arguments(chain, node, &single);
        arguments.map(|arguments| apus.run(&arguments, Some(1), 0, interrupt)).transpose()
    };
    let ended: Vec<_> = thread::scope(|scope| {
        let begun: Vec<_> = (0..places).map(|place| scope.spawn(move || one(place))).collect();
        begun.into_iter().map(|run| run.join()).collect()
    });
    let (mut seconds, mut reports) = (0.0, Vec::new());
    for run in ended {
        let run = run.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let Some((run, report)) = run else { return Ok(None) };
        seconds += run.wall_seconds;
        reports.push(report);
    }
    Ok(Some((seconds / places as f64, reports)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::matrix::ScriptValidation;

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
        assert_eq!(name(ScriptValidation::Assumevalid), "a-b-bitcoind-dbcache-450.debug.log");
        assert_eq!(
            name(ScriptValidation::Full),
            "a-b-bitcoind-assumevalid-0-dbcache-450.debug.log"
        );
    }
}
