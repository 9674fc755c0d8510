//! Chains that peers leave, that hold an invalid block, or whose last block nobody gives.

use crate::harness::World;
use crate::world::{HINTS, NOW, SET, Truth};
use apus_chain::{Network, Params};
use apus_engine::swiftsync::aggregate::AggregateKind;
use apus_engine::utxo::store::MemoryStore;
use apus_sync::peers::Peers;
use apus_sync::{
    ConnectOptions, ErrorKind, Event, Observer, Outcome, Output, OutputKind, Phase, Request,
    Source, Stop, SyncError,
};
use apus_testkit::chain::{BlockPlan, ChainBuilder};
use apus_testkit::peer::{Behaviour, FakePeer};
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What one waits for comes sooner, or never.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a run told.
#[derive(Default)]
struct Told {
    connected: Mutex<u64>,
    warnings: Mutex<Vec<String>>,
}

impl Observer for Told {
    fn event(&self, event: Event) {
        match event {
            Event::Progress(Phase::Connect, progress) => {
                *self.connected.lock().unwrap() = progress.blocks;
            }
            Event::Warning(warning) => self.warnings.lock().unwrap().push(warning),
            _ => {}
        }
    }
}

impl Told {
    /// Waits until so many blocks are connected.
    fn wait_for(&self, blocks: u64) {
        let began = Instant::now();
        while *self.connected.lock().unwrap() < blocks {
            assert!(began.elapsed() < PATIENCE, "never {blocks} blocks");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_for_warning(&self, what: &str) {
        let began = Instant::now();
        while !self.warned_of(what) {
            assert!(began.elapsed() < PATIENCE, "never warned of: {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn warned_of(&self, what: &str) -> bool {
        self.warnings.lock().unwrap().iter().any(|warning| warning.contains(what))
    }
}

/// A run that connects all blocks.
struct Run {
    follow: bool,
    told: Told,
    out: CrashStorage,
    interrupt: AtomicBool,
}

impl Run {
    fn new(follow: bool) -> Self {
        let interrupt = AtomicBool::new(false);
        Self { follow, told: Told::default(), out: CrashStorage::new(), interrupt }
    }

    fn over(&self, peers: &[&FakePeer]) -> Result<Outcome, SyncError> {
        // Chains are those of the fake peers; of this one nothing but the rest is of use.
        let world = World::of(ChainBuilder::new(1).blocks());
        let mut job = world.job();
        job.patience = Duration::from_secs(12);
        let (work, folder) = (CrashStorage::new(), tempfile::tempdir().unwrap());
        let network = Peers::start(job.network(peers), &work, None).unwrap();
        let store = Arc::new(MemoryStore::new());
        let open = || Ok(Arc::clone(&store) as _);
        let output = |kind, name: &str| Output {
            kind,
            storage: Arc::new(self.out.clone()),
            name: name.to_owned(),
        };
        let outputs = [output(OutputKind::Snapshot, SET), output(OutputKind::Hints, HINTS)];
        apus_sync::run(&Request {
            params: Params::of(Network::Regtest),
            source: Source::Peers(&network),
            hints: None,
            aggregate: AggregateKind::Sha256,
            connect: Some(ConnectOptions {
                assume_valid: None,
                prevout_threads: 0,
                cache_bytes: 1 << 24,
                store: &open,
                hints_folder: folder.path().to_owned(),
                positions: folder.path().join("positions"),
            }),
            stop: Stop::AtTip,
            follow: self.follow,
            threads: 1,
            memory_bytes: 16 << 20,
            segment_bytes: None,
            checkpoint_interval: Duration::ZERO,
            now: NOW,
            verifier: None,
            workdir: &work,
            outputs: &outputs,
            folders: &[],
            observer: &self.told,
            interrupt: &self.interrupt,
        })
    }

    /// Whether the set is that of a chain.
    fn check(&self, outcome: Result<Outcome, SyncError>, chain: &[Block]) {
        let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
        Truth::of(chain).check(&outcome, &self.out);
    }
}

fn chain(seed: u64, blocks: usize) -> ChainBuilder {
    let mut builder = ChainBuilder::new(seed);
    builder.empty_blocks(blocks);
    builder
}

/// A chain that leaves another one at a height.
fn branch(chain: &[Block], seed: u64, fork: usize, blocks: usize) -> ChainBuilder {
    let mut builder = ChainBuilder::new(seed);
    chain[1..=fork].iter().for_each(|block| builder.add(block.clone()));
    builder.empty_blocks(blocks);
    builder
}

/// A block whose coinbase takes more than there is, which only shows when it is connected.
fn invalid_block(builder: &mut ChainBuilder) -> Block {
    let height = builder.height() + 1;
    let mut coinbase = builder.coinbase(height, Vec::new());
    let all = ChainBuilder::subsidy(height);
    coinbase.output = vec![builder.output(all + 1, apus_testkit::chain::ScriptKind::OpTrue)];
    builder.propose(BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() })
}

/// The peers go over to a branch while the blocks of the chain that they leave are downloaded, and
/// give those to nobody any more.
#[test]
fn peers_that_leave_the_chain_are_followed() {
    let old = chain(51, 120).blocks();
    let new = branch(&old, 52, 90, 40).blocks();
    let delay = Duration::from_millis(60);
    let peer = FakePeer::slow(&old, &[Behaviour::Honest], delay);
    let run = Run::new(false);
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&[&peer]));
        run.told.wait_for(20);
        peer.set_chain(&new);
        running.join().unwrap()
    });
    run.check(outcome, &new);
    assert!(run.told.warned_of("no peer gives block"), "{:?}", run.told.warnings);
}

/// Somebody announces a block and gives it to nobody.
#[test]
fn a_withheld_tip_ends_nothing() {
    let base = chain(53, 110);
    let honest_chain = base.blocks();
    let withheld = branch(&honest_chain, 54, 110, 1).blocks();
    let longer = branch(&honest_chain, 55, 110, 2).blocks();
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&withheld, &[Behaviour::NotFoundFrom(111)]);
    let run = Run::new(true);
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&[&honest, &evil]));
        run.told.wait_for(110);
        run.told.wait_for_warning("no peer gives block 111");
        honest.set_chain(&longer);
        run.told.wait_for(112);
        run.interrupt.store(true, Ordering::Relaxed);
        running.join().unwrap()
    });
    run.check(outcome, &longer);
}

/// Who does not follow ends at the tip whose blocks there are.
#[test]
fn a_withheld_tip_is_left_out() {
    let honest_chain = chain(56, 110).blocks();
    let withheld = branch(&honest_chain, 57, 110, 1).blocks();
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&withheld, &[Behaviour::NotFoundFrom(111)]);
    let run = Run::new(false);
    run.check(run.over(&[&honest, &evil]), &honest_chain);
}

/// What one peer withholds is no reason to take a chain for the best that lacks a lot.
#[test]
fn a_peer_that_is_behind_has_no_tip() {
    let all = chain(58, 110).blocks();
    let behind = FakePeer::start(&all[..=60], &[Behaviour::Honest]);
    let evil = FakePeer::start(&all, &[Behaviour::NotFoundFrom(100)]);
    let error = Run::new(false).over(&[&behind, &evil]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
}

/// A miner's invalid block, on which he mined a second one.
#[test]
fn an_invalid_block_ends_nothing_where_there_is_another_chain() {
    let mut base = chain(59, 110);
    let honest_chain = base.blocks();
    let invalid = invalid_block(&mut base);
    let mut evil_chain = honest_chain.clone();
    evil_chain.push(invalid);
    let longer = branch(&honest_chain, 60, 110, 2).blocks();
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&evil_chain, &[Behaviour::Honest]);
    let run = Run::new(false);
    run.check(run.over(&[&honest, &evil]), &honest_chain);
    assert!(run.told.warned_of("bad-cb-amount"), "{:?}", run.told.warnings);

    let run = Run::new(true);
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&[&honest, &evil]));
        run.told.wait_for(110);
        honest.set_chain(&longer);
        run.told.wait_for(112);
        run.interrupt.store(true, Ordering::Relaxed);
        running.join().unwrap()
    });
    run.check(outcome, &longer);
}

/// Where all others go on from a block that is invalid here, the run says so and ends.
#[test]
fn a_chain_that_goes_far_on_from_an_invalid_block_ends_the_run() {
    let mut base = chain(61, 110);
    let honest_chain = base.blocks();
    let invalid = invalid_block(&mut base);
    base.add(invalid);
    base.empty_blocks(8);
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&base.blocks(), &[Behaviour::Honest]);
    let error = Run::new(true).over(&[&honest, &evil]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("bad-cb-amount"), "{error}");
}

/// The same, where they do so later.
#[test]
fn a_chain_that_grows_on_from_an_invalid_block_ends_the_run() {
    let mut base = chain(62, 110);
    let honest_chain = base.blocks();
    let invalid = invalid_block(&mut base);
    base.add(invalid);
    let first = base.blocks();
    base.empty_blocks(8);
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&first, &[Behaviour::Honest]);
    let run = Run::new(true);
    let error = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&[&honest, &evil]));
        run.told.wait_for_warning("bad-cb-amount");
        evil.set_chain(&base.blocks());
        running.join().unwrap().unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("others take it for valid"), "{error}");
}
