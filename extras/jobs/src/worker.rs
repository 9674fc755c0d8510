//! [`work`]: segments of a run elsewhere, done here.
//!
//! All that is known of the run is what it says itself ([`RunSpec`]): the headers of its blocks come as an object,
//! what a segment is told comes with each job, and only the blocks are this machine's own. Each thread takes a job
//! and gives a sign of life after each block; what it left is put while it does the next one. A segment that cannot be
//! done because of the blocks, or of what was told of them, is answered so; one that this machine cannot do for a reason
//! of its own goes back, for another one. Nothing is kept here.

mod in_turn;
mod joiner;
mod one;
mod scratch;
mod segments;

use crate::error::ClusterError;
use crate::queue::{
    JobLease, JobMessage, JobOffer, Jobs, ObjectRef, PassKind, QueuePatience, RunId, RunSpec, hints,
};
use apus_chain::{ANY_TIME, HeaderChain, HeightRange, Params};
use apus_engine::script::{ScriptPool, script_verifier};
use apus_proofs::roots::leaf_hasher;
use apus_sync::engines::pass::Work;
use apus_sync::engines::swiftsync::aggregate::Aggregator;
use apus_sync::engines::swiftsync::{Fully, JudgeByUndo, SegmentHints, SwiftSync};
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
use one::{Failures, Left};
use scratch::ScratchFolder;
use segments::{OutsideSegments, PassSegments};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long a thread waits for a job before it looks at what else there is.
const TAKE_WAIT: Duration = Duration::from_millis(500);

/// A queue may be away for so long at a stretch.
const QUEUE_AWAY_MAX: Duration = Duration::from_secs(300);

/// Where a machine that does segments has its blocks from.
pub enum WorkBlocks<'a> {
    /// A folder, which is only read.
    Folder(PathBuf),
    /// Peers, by options that name them; its headers are set here. Only the blocks of its jobs are asked of them.
    Peers(&'a (dyn Fn(&Params) -> NetworkOptions + Sync)),
}

/// What a machine that does segments is asked for.
pub struct WorkRequest<'a> {
    /// Its blocks.
    pub blocks: WorkBlocks<'a>,
    /// Does segments of a pass from outside, for runs by that.
    pub outside: Option<&'a dyn SharedPass>,
    /// A folder for what is too large for memory while a job is done, made where it is wanted.
    pub scratch: PathBuf,
    /// Memory for what is joined, in bytes, of all threads together: half for records, half for what comes of them. With
    /// less of it more goes into files.
    pub memory_bytes: u64,
    /// Threads, at least one; each does a segment at a time.
    pub threads: usize,
    /// Seconds since 1970, for the rule against blocks from the future.
    pub now: i64,
    /// Told what happens.
    pub observer: &'a dyn Observer,
    /// Set from outside to stop.
    pub interrupt: &'a AtomicBool,
}

/// What a machine did for a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkDone {
    /// Segments.
    pub segments: u64,
    /// Blocks, bytes and coins of these.
    pub work: Work,
}

/// What the threads share.
struct Working<'a> {
    request: &'a WorkRequest<'a>,
    jobs: &'a dyn Jobs,
    run: RunId,
    does: &'a dyn Does,
    supply: Supply<'a>,
    halt: AtomicBool,
    done: Mutex<WorkDone>,
    failures: Failures,
}

/// A job that a thread has.
struct Hand<'h> {
    request: &'h WorkRequest<'h>,
    run: RunId,
    job: &'h JobMessage,
    lease: &'h dyn JobLease,
    supply: &'h Supply<'h>,
    /// Objects that are put before the job is answered.
    held: Mutex<Vec<(ObjectRef, Arc<Vec<u8>>)>>,
}

/// Does the jobs of a run.
trait Does: Sync {
    /// What a job leaves as bytes, and how much it was; none where it was halted.
    fn job(
        &self,
        hand: &Hand<'_>,
        walker: &mut Walker<'_>,
    ) -> Result<Option<(Vec<u8>, Work)>, SyncError>;
}

/// Memory for what the coordinator joins itself, in bytes; what is more goes into files.
const OWN_MEMORY_BYTES: u64 = 64 << 20;

/// Does the jobs of `jobs` where the run itself is, on its own blocks.
///
/// # Errors
/// As of [`work`].
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
        observer: run.env.observer,
        interrupt: run.env.interrupt,
    };
    work_with(&request, jobs, &spec, source).map(drop)
}

/// Does segments of a run until it has ended.
///
/// # Errors
/// Where the run is none that this program can help with, where this machine fails at one job after the other, and
/// where it is interrupted.
pub fn work(request: &WorkRequest<'_>, jobs: &dyn Jobs) -> Result<WorkDone, SyncError> {
    let spec = RunSpec::from_bytes(jobs.spec());
    let spec = spec.map_err(|error| ClusterError::Message(error.to_string()))?;
    let params = Params::of(spec.plan.identity.network);
    let headers = patience(request).with(|| jobs.object(&spec.headers))?;
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
            let peers = Peers::start_with(options(params), headers.to_vec(), &storage)?;
            let source = peers.settled_on(Arc::new(chain), request.interrupt)?;
            work_with(request, jobs, &spec, &source)
        }
    }
}

/// Does segments of the blocks of a source.
fn work_with(
    request: &WorkRequest<'_>,
    jobs: &dyn Jobs,
    spec: &RunSpec,
    dir: &dyn ChainSource,
) -> Result<WorkDone, SyncError> {
    let identity = &spec.plan.identity;
    let params = Params::of(identity.network);
    // Scripts are run for signet's block solutions.
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
    let all = |does: &dyn Does| {
        let (run, halt) = (RunId::of(jobs.spec()), AtomicBool::new(false));
        let (done, failures) = (Mutex::default(), Failures::default());
        Working { request, jobs, run, does, supply, halt, done, failures }.all()
    };
    let (assumed, last) = (identity.assumed, spec.plan.last());
    // Each thread runs the scripts of the block that it takes.
    let scripts = || (assumed < last).then(|| ScriptPool::new(0)).transpose();
    match spec.pass {
        PassKind::SwiftSync => all(&PassSegments { pass: &swiftsync, input: &read_hints }),
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
                    "the run goes by undo data, and {who} has not those of all blocks up to {last}: give \
                     the folder of a node that has them, by --blocksdir"
                ))
            })?;
            let judge = JudgeByUndo { params, chain: dir.chain(), assumed, scripts: scripts()? };
            let pass = Fully { swiftsync, judge, undo: &*undo };
            all(&PassSegments { pass: &pass, input: &read_hints })
        }
        PassKind::Utreexo => {
            let pass = request.outside.filter(|pass| Some(pass.name()) == spec.pass.outside());
            let pass = pass.ok_or_else(|| {
                let by = spec.pass.by();
                ClusterError::Message(format!("the run goes {by}, which this program cannot do"))
            })?;
            let WorkRequest { observer, interrupt, .. } = *request;
            let work = SegmentWork { plan: &spec.plan, source: dir, observer, interrupt };
            all(&OutsideSegments(pass.begin(&work)?))
        }
        PassKind::MergeSync | PassKind::MergeSyncKept => {
            let keeps = spec.pass == PassKind::MergeSyncKept;
            all(&Joiner::new(request, &spec.plan, dir, scripts()?, keeps)?)
        }
    }
}

/// What is told of a segment under hints.
fn read_hints(told: &[u8], range: HeightRange) -> Result<SegmentHints, SyncError> {
    let told = hints::read(told, range);
    told.map_err(|error| ClusterError::Message(error.to_string()).into())
}

/// The chain that the run is about, by the headers that it gives.
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

fn patience<'a>(request: &'a WorkRequest<'_>) -> QueuePatience<'a> {
    let (observer, interrupt) = (request.observer, request.interrupt);
    QueuePatience { longest: QUEUE_AWAY_MAX, observer, interrupt }
}

/// How often it is looked whether the job before has been answered.
const HAND_OVER_INTERVAL: Duration = Duration::from_millis(1);

/// So many of these looks lie between two signs of life.
const LOOKS_BETWEEN_SIGNS: u32 = 100;

/// Hands a job over to be answered, once that before it is; until then it gives signs of life.
fn hand_over<'l>(left: Left<'l>, to: &SyncSender<Left<'l>>) {
    let (mut left, mut looks) = (left, 0_u32);
    while let Err(TrySendError::Full(back)) = to.try_send(left) {
        left = back;
        looks += 1;
        if looks.is_multiple_of(LOOKS_BETWEEN_SIGNS) {
            left.alive();
        }
        std::thread::sleep(HAND_OVER_INTERVAL);
    }
}

impl Working<'_> {
    /// All threads' lives.
    fn all(self) -> Result<WorkDone, SyncError> {
        let failure = Mutex::new(None);
        let fail = |error: SyncError| {
            self.halt.store(true, Ordering::Relaxed);
            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        };
        std::thread::scope(|scope| {
            for index in 0..self.request.threads {
                let (this, fail) = (&self, &fail);
                // What the job before left is put and said meanwhile.
                let (send, receive) = sync_channel::<Left<'_>>(0);
                let say = move || {
                    receive.iter().for_each(|left| this.say(left).unwrap_or_else(fail));
                };
                let work = move || {
                    this.thread(&mut |left| hand_over(left, &send)).unwrap_or_else(fail);
                };
                let named =
                    |what: &str| std::thread::Builder::new().name(format!("{what}-{index}"));
                let spawned = named("answers").spawn_scoped(scope, say);
                let spawned = spawned.and_then(|_| named("segments").spawn_scoped(scope, work));
                if let Err(error) = spawned {
                    let wanted = 2 * self.request.threads;
                    fail(SyncError::Io(IoError::Threads { wanted, error }));
                    break;
                }
            }
        });
        let interrupted = self.request.interrupt.load(Ordering::Relaxed);
        match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            _ if interrupted => Err(SyncError::Interrupted),
            Some(error) => Err(error),
            None => Ok(self.done.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// The life of a thread that does jobs.
    fn thread<'t>(&'t self, say: &mut dyn FnMut(Left<'t>)) -> Result<(), SyncError> {
        let mut walker = self.supply.walker(&self.halt);
        let stopped =
            || self.halt.load(Ordering::Relaxed) || self.request.interrupt.load(Ordering::Relaxed);
        while !stopped() {
            match patience(self.request).with(|| self.jobs.take(TAKE_WAIT))? {
                JobOffer::Job(lease) => {
                    self.one(lease, &mut walker)?.into_iter().for_each(&mut *say)
                }
                JobOffer::Nothing => {}
                JobOffer::Over => break,
            }
        }
        Ok(())
    }
}
