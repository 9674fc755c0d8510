//! [`work`]: processes the jobs of a run that another machine coordinates.
//!
//! The worker learns everything about the run from its description ([`RunSpec`]): the headers of its blocks are an
//! object, and each job has a payload. Only the blocks come from this machine. Each thread takes a job and sends a
//! heartbeat after each block; a second thread uploads the result while the next job runs. If the blocks or the
//! payload are invalid, the answer is a verdict. If the job fails because of this machine, it returns to the queue
//! for another one. The worker keeps nothing after a job.

mod in_turn;
mod joiner;
mod one;
mod scratch;
mod segments;

use crate::error::ClusterError;
use crate::queue::{
    JobLease, JobMessage, JobOffer, Jobs, ObjectRef, PassKind, QueueRetry, RunId, RunSpec, hints,
};
use apus_chain::{ANY_TIME, HeaderChain, HeightRange, Params};
use apus_engine::script::{Signatures, script_verifier};
use apus_proofs::roots::leaf_hasher;
use apus_sync::engines::pass::Work;
use apus_sync::engines::swiftsync::aggregate::Aggregator;
use apus_sync::engines::swiftsync::{ConnectByUndo, SegmentHints, SwiftSync, UndoPass};
use apus_sync::error::{ClockError, IoError, SourceError, SyncError};
use apus_sync::machines::{SegmentWork, SharedPass};
use apus_sync::progress::Observer;
use apus_sync::request::{Request, Source, Task};
use apus_sync::source::blocksdir::BlocksDir;
use apus_sync::source::peers::Peers;
use apus_sync::source::peers::network::NetworkOptions;
use apus_sync::source::{ChainSource, SearchOptions};
use apus_sync::supply::{Supply, Walker};
use joiner::Joiner;
use one::{Failures, UnreportedJob};
use parking_lot::Mutex;
use scratch::ScratchFolder;
use segments::{OutsideSegments, PassSegments};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// How long a thread waits for a job before it checks for an interrupt.
const TAKE_WAIT: Duration = Duration::from_millis(500);

/// Fail once the queue has been unreachable for this long without a break.
const QUEUE_AWAY_MAX: Duration = Duration::from_secs(300);

/// Where a worker reads its blocks.
pub enum WorkBlocks<'a> {
    /// A folder, which is only read.
    Folder(PathBuf),
    /// Peers, with options that name them; [`work`] sets the headers. The worker requests only the blocks of its
    /// jobs.
    Peers(&'a (dyn Fn(&Params) -> NetworkOptions + Sync)),
}

/// Parameters of a worker.
pub struct WorkRequest<'a> {
    /// The source of its blocks.
    pub blocks: WorkBlocks<'a>,
    /// Processes the segments of an outside pass, for runs that use it.
    pub outside: Option<&'a dyn SharedPass>,
    /// A folder for data of a job that do not fit in memory; created when needed.
    pub scratch: PathBuf,
    /// Memory for joins, in bytes, for all threads together: half for the records, half for the results. The rest goes
    /// into files.
    pub memory_bytes: u64,
    /// Number of threads, at least one; each processes one job at a time.
    pub threads: usize,
    /// Current time in seconds since 1970, for the rule against blocks from the future.
    pub now: i64,
    /// How scripts' signatures are checked.
    pub signatures: &'a Arc<Signatures>,
    /// Receives events.
    pub observer: &'a dyn Observer,
    /// The caller sets it to stop the worker.
    pub interrupt: &'a AtomicBool,
}

/// Totals of a worker's jobs in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkDone {
    /// Number of jobs.
    pub segments: u64,
    /// Their blocks, bytes and coins.
    pub work: Work,
}

/// State shared by the threads.
struct WorkerState<'a> {
    request: &'a WorkRequest<'a>,
    jobs: &'a dyn Jobs,
    run: RunId,
    runner: &'a dyn JobRunner,
    supply: Supply<'a>,
    halt: AtomicBool,
    done: Mutex<WorkDone>,
    failures: Failures,
}

/// A job that a thread is processing.
struct HeldJob<'h> {
    request: &'h WorkRequest<'h>,
    run: RunId,
    job: &'h JobMessage,
    lease: &'h dyn JobLease,
    supply: &'h Supply<'h>,
    /// Objects to store before the job is answered.
    objects: Mutex<Vec<(ObjectRef, Arc<Vec<u8>>)>>,
}

/// Processes the jobs of a run.
trait JobRunner: Sync {
    /// Processes a job and returns its encoded result and its amount of work; `None` if it was halted.
    fn job(
        &self,
        task: &HeldJob<'_>,
        walker: &mut Walker<'_>,
    ) -> Result<Option<(Vec<u8>, Work)>, SyncError>;
}

/// Memory for joins on the coordinator, in bytes; the rest goes into files.
const OWN_MEMORY_BYTES: u64 = 64 << 20;

/// Processes jobs on the coordinator, with its own blocks.
///
/// # Errors
/// Those of [`work`].
pub(crate) fn do_job(
    run: &Request<'_>,
    jobs: &dyn Jobs,
    source: &dyn ChainSource,
) -> Result<(), SyncError> {
    let spec = RunSpec::from_bytes(jobs.spec());
    let spec = spec.map_err(|error| ClusterError::Message(error.to_string()))?;
    let folder = match &run.source {
        Source::Files { blocksdir, .. } => blocksdir.files.clone(),
        Source::Peers(_) => PathBuf::new(),
    };
    let request = WorkRequest {
        blocks: WorkBlocks::Folder(folder),
        outside: match &run.task {
            Task::By(task) => task.engine.shared(),
            _ => None,
        },
        scratch: std::env::temp_dir(),
        memory_bytes: OWN_MEMORY_BYTES,
        threads: 1,
        now: run.env.now,
        signatures: run.env.signatures,
        observer: run.env.observer,
        interrupt: run.env.interrupt,
    };
    work_with(&request, jobs, &spec, source).map(drop)
}

/// Processes jobs of a run until the run has ended.
///
/// # Errors
/// If this program cannot take part in the run, if several jobs in a row fail on this machine, or on an interrupt.
pub fn work(request: &WorkRequest<'_>, jobs: &dyn Jobs) -> Result<WorkDone, SyncError> {
    let spec = RunSpec::from_bytes(jobs.spec());
    let spec = spec.map_err(|error| ClusterError::Message(error.to_string()))?;
    let params = Params::of(spec.plan.identity.network);
    let headers = retry(request).with(|| jobs.object(&spec.headers))?;
    let (headers, _) = headers.as_chunks::<80>();
    let chain = chain_of(request, headers, &spec, params)?;
    match &request.blocks {
        WorkBlocks::Folder(folder) => {
            let dir = BlocksDir::open_on(folder, params, chain, request.now, request.interrupt)?;
            work_with(request, jobs, &spec, &dir)
        }
        WorkBlocks::Peers(options) => {
            let scratch = ScratchFolder::make(&request.scratch)?;
            let folder = scratch.folder()?;
            let storage = folder.storage();
            let peers =
                Peers::start_with(options(params), headers.iter().copied().collect(), &storage)?;
            let source = peers.settled_on(Arc::new(chain), request.interrupt)?;
            work_with(request, jobs, &spec, &source)
        }
    }
}

/// Processes jobs with the blocks of a source.
fn work_with(
    request: &WorkRequest<'_>,
    jobs: &dyn Jobs,
    spec: &RunSpec,
    dir: &dyn ChainSource,
) -> Result<WorkDone, SyncError> {
    let identity = &spec.plan.identity;
    let params = Params::of(identity.network);
    // The solutions of signet's blocks are scripts.
    let verifier = params.signet_challenge.is_some().then(script_verifier).transpose();
    let verifier = verifier.map_err(apus_engine::script::ScriptPoolError::from)?;
    dir.leave_witnesses(identity.unseen);
    let aggregator =
        Aggregator::new(identity.aggregate, &spec.plan.secret, identity.stop_hash, identity.hints);
    let swiftsync = SwiftSync::new(params, dir.chain(), aggregator)
        .with_hashes(identity.numbered.then_some(leaf_hasher))
        .with_muhash(identity.muhash);
    let (source, rules) = ((dir as _, identity.unseen), (params, verifier.as_deref()));
    let supply = Supply::new(rules, source, request.threads, request.interrupt);
    let run_all = |runner: &dyn JobRunner| {
        let (run, halt) = (RunId::of(jobs.spec()), AtomicBool::new(false));
        let (done, failures) = (Mutex::default(), Failures::default());
        WorkerState { request, jobs, run, runner, supply, halt, done, failures }.run()
    };
    let (assumed, last) = (identity.assumed, spec.plan.last());
    // No pool threads: each worker thread runs the scripts of its own blocks.
    let scripts = || (assumed < last).then(|| request.signatures.pool(0)).transpose();
    match spec.pass {
        PassKind::SwiftSync => run_all(&PassSegments { pass: &swiftsync, input: &read_hints }),
        PassKind::Fully => {
            let search = SearchOptions {
                threads: request.threads,
                observer: request.observer,
                interrupt: request.interrupt,
            };
            let undo = dir.undo(last, &search)?.ok_or_else(|| {
                let who = match &request.blocks {
                    WorkBlocks::Folder(folder) => folder.display().to_string(),
                    WorkBlocks::Peers(_) => "a peer".to_owned(),
                };
                ClusterError::Message(format!(
                    "the run needs undo data, but {who} lacks undo data for some blocks up to {last}. Give the \
                     folder of a node that has them with --blocksdir DIR"
                ))
            })?;
            let (chain, scripts, sum_key) = (dir.chain(), scripts()?, None);
            let connector = ConnectByUndo { params, chain, assumed, scripts, sum_key };
            let pass = UndoPass { swiftsync, connector, undo: &*undo, keeps: false };
            run_all(&PassSegments { pass: &pass, input: &read_hints })
        }
        PassKind::Utreexo => {
            let pass = request.outside.filter(|pass| Some(pass.name()) == spec.pass.outside());
            let pass = pass.ok_or_else(|| {
                let by = spec.pass.by();
                ClusterError::Message(format!(
                    "the run works {by}, which this build of Apus cannot do"
                ))
            })?;
            let WorkRequest { signatures, observer, interrupt, .. } = *request;
            let plan = &spec.plan;
            let work = SegmentWork { plan, source: dir, signatures, observer, interrupt };
            run_all(&OutsideSegments(pass.begin(&work)?))
        }
        PassKind::MergeSync | PassKind::MergeSyncKept => {
            let keeps = spec.pass == PassKind::MergeSyncKept;
            run_all(&Joiner::new(request, &spec.plan, dir, scripts()?, keeps)?)
        }
    }
}

/// Decodes the hints of a segment.
fn read_hints(payload: &[u8], range: HeightRange) -> Result<SegmentHints, SyncError> {
    let hints = hints::read(payload, range);
    hints.map_err(|error| ClusterError::Message(error.to_string()).into())
}

/// Builds the run's chain from its headers.
fn chain_of(
    request: &WorkRequest<'_>,
    headers: &[[u8; 80]],
    spec: &RunSpec,
    params: &Params,
) -> Result<HeaderChain, SyncError> {
    let wrong = |why: String| SyncError::from(ClusterError::Headers(why));
    let chain = HeaderChain::from_headers(params, ANY_TIME, headers)
        .map_err(|error| wrong(error.to_string()))?;
    ClockError::expect_past(&chain, request.now)
        .map_err(|error| SourceError::from(Box::new(error)))?;
    let identity = &spec.plan.identity;
    match (chain.tip_height(), chain.tip_hash()) {
        (height, hash) if (height, *hash) == (identity.stop, identity.stop_hash) => Ok(chain),
        (height, hash) => Err(wrong(format!("they lead to block {height} ({hash})"))),
    }
}

fn retry<'a>(request: &'a WorkRequest<'_>) -> QueueRetry<'a> {
    let (observer, interrupt) = (request.observer, request.interrupt);
    QueueRetry { max_away: QUEUE_AWAY_MAX, observer, interrupt }
}

/// Interval between two checks of whether the previous job is answered.
const HAND_OVER_INTERVAL: Duration = Duration::from_millis(1);

/// Number of these checks between two heartbeats.
const CHECKS_PER_HEARTBEAT: u32 = 100;

/// Hands over a job for its answer once the previous job is answered; sends heartbeats until then.
fn hand_over<'l>(left: UnreportedJob<'l>, to: &SyncSender<UnreportedJob<'l>>) {
    let (mut left, mut checks) = (left, 0_u32);
    while let Err(TrySendError::Full(back)) = to.try_send(left) {
        left = back;
        checks += 1;
        if checks.is_multiple_of(CHECKS_PER_HEARTBEAT) {
            left.alive();
        }
        std::thread::sleep(HAND_OVER_INTERVAL);
    }
}

impl WorkerState<'_> {
    /// Runs all threads until the run ends.
    fn run(self) -> Result<WorkDone, SyncError> {
        let failure = Mutex::new(None);
        let fail = |error: SyncError| {
            self.halt.store(true, Ordering::Relaxed);
            failure.lock().get_or_insert(error);
        };
        std::thread::scope(|scope| {
            for index in 0..self.request.threads {
                let (this, fail) = (&self, &fail);
                // At the same time, this thread uploads and answers the previous job.
                let (send, receive) = sync_channel::<UnreportedJob<'_>>(0);
                let report = move || {
                    receive.iter().for_each(|left| this.report(left).unwrap_or_else(fail));
                };
                let work = move || {
                    this.thread(&mut |left| hand_over(left, &send)).unwrap_or_else(fail);
                };
                let named =
                    |what: &str| std::thread::Builder::new().name(format!("{what}-{index}"));
                let spawned = named("answers").spawn_scoped(scope, report);
                let spawned = spawned.and_then(|_| named("segments").spawn_scoped(scope, work));
                if let Err(error) = spawned {
                    let wanted = 2 * self.request.threads;
                    fail(SyncError::Io(IoError::Threads { wanted, error }));
                    break;
                }
            }
        });
        let interrupted = self.request.interrupt.load(Ordering::Relaxed);
        match failure.into_inner() {
            _ if interrupted => Err(SyncError::Interrupted),
            Some(error) => Err(error),
            None => Ok(self.done.into_inner()),
        }
    }

    /// Takes and processes jobs until the run ends.
    fn thread<'t>(&'t self, report: &mut dyn FnMut(UnreportedJob<'t>)) -> Result<(), SyncError> {
        let mut walker = self.supply.walker(&self.halt);
        let stopped =
            || self.halt.load(Ordering::Relaxed) || self.request.interrupt.load(Ordering::Relaxed);
        while !stopped() {
            match retry(self.request).with(|| self.jobs.take(TAKE_WAIT))? {
                JobOffer::Job(lease) => {
                    self.run_job(lease, &mut walker)?.into_iter().for_each(&mut *report)
                }
                JobOffer::Nothing => {}
                JobOffer::Over => break,
            }
        }
        Ok(())
    }
}
