//! Chains that peers leave, that hold an invalid block, or whose last block no peer gives.

use crate::harness::{World, at_once};
use crate::undo_data::change_a_coin;
use crate::world::{HINTS, NOW, PLACED, PlacedFile, SET, Truth};
use apus_chain::{Network, Params};
use apus_engine::utxo::store::MemoryStore;
use apus_sync::peers::{KeptFolder, Peers};
use apus_sync::{
    ConnectOptions, Engine, ErrorKind, Event, FolderOutput, IoError, MergeSyncTask, Observer,
    Outcome, Output, OutputKind, Phase, Request, RunEnv, Source, Stop, SyncError, Task,
};
use apus_testkit::chain::{BlockPlan, ChainBuilder};
use apus_testkit::peer::{Behaviour, FakePeer};
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What one waits for comes sooner, or never.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// A run that leads somewhere is not quiet for so long, be the machine as busy as it may.
const LONG: Duration = Duration::from_secs(60);

/// A run that is to find out that no peer gives a block waits for a part of this.
const SHORT: Duration = Duration::from_secs(40);

/// What a run told.
#[derive(Default)]
pub(crate) struct Told {
    connected: Mutex<u64>,
    pub(crate) warnings: Mutex<Vec<String>>,
}

impl Observer for Told {
    fn event(&self, event: Event) {
        match event {
            Event::Progress(Phase::Connect, progress) => {
                *self.connected.lock().unwrap() = progress.blocks;
            }
            Event::Warning(warning) => {
                self.warnings.lock().unwrap().push(warning.to_string());
            }
            _ => {}
        }
    }
}

impl Told {
    /// Waits until so many blocks are connected.
    pub(crate) fn wait_for(&self, blocks: u64) {
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

/// What happens while a run is held.
pub(crate) type Held<'a> = dyn Fn(&Told, &Peers<'_>) + Sync + 'a;

/// Holds a run whenever it has connected so many blocks, and does something meanwhile; and something when it
/// is about to read back.
struct Holding<'a> {
    at_check: &'a (dyn Fn() + Sync),
    told: &'a Told,
    network: &'a Peers<'a>,
    hold: Option<(u64, &'a Held<'a>)>,
}

impl Observer for Holding<'_> {
    fn event(&self, event: Event) {
        let connected = match &event {
            Event::Progress(Phase::Connect, progress) => progress.blocks,
            _ => 0,
        };
        if event == Event::Started(Phase::CheckBlocks) {
            (self.at_check)();
        }
        self.told.event(event);
        if let Some((blocks, held)) = self.hold
            && connected >= blocks
        {
            held(self.told, self.network);
        }
    }
}

/// A run that connects all blocks.
pub(crate) struct Run {
    follow: bool,
    patience: Duration,
    pub(crate) engine: Option<Engine>,
    pub(crate) told: Told,
    pub(crate) work: CrashStorage,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) keep: Option<KeptFolder>,
    pub(crate) folders: Vec<FolderOutput>,
    /// Whether hints and roots are to be written, for which all blocks are gone through once more.
    pub(crate) goes_twice: bool,
    /// For what goes with the progress.
    desk: tempfile::TempDir,
    at_check: Box<dyn Fn() + Sync>,
    out: CrashStorage,
    pub(crate) interrupt: AtomicBool,
}

impl Run {
    pub(crate) fn new(follow: bool, patience: Duration) -> Self {
        Self {
            follow,
            patience,
            engine: None,
            told: Told::default(),
            work: CrashStorage::new(),
            store: Arc::new(MemoryStore::new()),
            keep: None,
            folders: Vec::new(),
            goes_twice: true,
            desk: tempfile::tempdir().unwrap(),
            at_check: Box::new(|| ()),
            out: CrashStorage::new(),
            interrupt: AtomicBool::new(false),
        }
    }

    pub(crate) fn over(&self, peers: &[&FakePeer]) -> Result<Outcome, SyncError> {
        self.held_at(peers, None)
    }

    pub(crate) fn held_at(
        &self,
        peers: &[&FakePeer],
        hold: Option<(u64, &Held<'_>)>,
    ) -> Result<Outcome, SyncError> {
        // Chains are those of the fake peers; of this one nothing but the rest is of use.
        let world = World::of(ChainBuilder::new(1).blocks());
        let mut job = world.job();
        job.patience = self.patience;
        let folder = self.desk.path();
        let network = Peers::start(job.network(peers), &self.work, self.keep.as_ref()).unwrap();
        let at_check = &*self.at_check;
        let observer = Holding { at_check, told: &self.told, network: &network, hold };
        let open = || Ok(Arc::clone(&self.store) as _);
        let output = |kind, name: &str| Output {
            kind,
            storage: Arc::new(self.out.clone()),
            name: name.to_owned(),
        };
        let outputs = [output(OutputKind::Snapshot, SET), output(OutputKind::Hints, HINTS)];
        let commitment = PlacedFile::new(&self.out, PLACED);
        apus_sync::run(&Request {
            source: Source::Peers(&network),
            task: {
                let connect = ConnectOptions {
                    assume_valid: None,
                    prevout_threads: 0,
                    cache_bytes: 1 << 24,
                    store: &open,
                    beyond: None,
                    hints_folder: folder.join("hints"),
                    positions: folder.join("positions"),
                };
                match self.engine {
                    None => Task::Unhinted(connect),
                    Some(Engine::Utxo) => Task::InOrder(connect),
                    Some(_) => Task::MergeSync(MergeSyncTask { connect, index: None }),
                }
            },
            leave_witnesses: None,
            stop: Stop::AtTip,
            follow: self.follow,
            commitment: self.goes_twice.then_some(&commitment as _),
            outputs: if self.goes_twice { &outputs } else { &outputs[..1] },
            folders: &self.folders,
            muhash: true,
            env: RunEnv {
                params: Params::of(Network::Regtest),
                threads: 1,
                memory_bytes: 16 << 20,
                segment_bytes: None,
                checkpoint_interval: Duration::ZERO,
                now: NOW,
                verifier: None,
                workdir: &self.work,
                is_shared: false,
                given: None,
                observer: &observer,
                interrupt: &self.interrupt,
            },
        })
    }

    /// Whether the set is that of a chain.
    pub(crate) fn check(&self, outcome: Result<Outcome, SyncError>, chain: &[Block]) {
        let outcome = outcome.unwrap_or_else(|error| panic!("{error}"));
        Truth::of(chain).check(&outcome, &self.out);
    }
}

pub(crate) fn chain(seed: u64, blocks: usize) -> ChainBuilder {
    let mut builder = ChainBuilder::new(seed);
    builder.empty_blocks(blocks);
    builder
}

/// A chain that leaves another one at a height.
pub(crate) fn branch(chain: &[Block], seed: u64, fork: usize, blocks: usize) -> ChainBuilder {
    let mut builder = ChainBuilder::new(seed);
    chain[1..=fork].iter().for_each(|block| builder.add(block.clone()));
    builder.empty_blocks(blocks);
    builder
}

/// A block whose coinbase takes more than there is, which only shows when it is connected.
pub(crate) fn invalid_block(builder: &mut ChainBuilder) -> Block {
    let height = builder.height() + 1;
    let mut coinbase = builder.coinbase(height, Vec::new());
    let all = ChainBuilder::subsidy(height);
    coinbase.output = vec![builder.output(all + 1, apus_testkit::chain::ScriptKind::OpTrue)];
    builder.propose(BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() })
}

/// They wait most of the time, so they do it together.
#[test]
fn chains_that_will_not_do() {
    at_once(&[
        ("left by peers", peers_that_leave_the_chain_are_followed),
        ("withheld, followed", a_withheld_tip_ends_nothing),
        ("withheld", a_withheld_tip_is_left_out),
        ("behind", a_peer_that_is_behind_has_no_tip),
        ("where it was", where_a_run_was_a_while_ago_is_no_tip),
        ("invalid, followed", an_invalid_block_ends_no_run_that_follows),
        ("invalid", an_invalid_block_ends_nothing_where_there_is_another_chain),
        ("late", a_peer_that_comes_late_has_another_chain_too),
        ("far on", a_chain_that_goes_far_on_from_an_invalid_block_ends_the_run),
        ("far on later", a_chain_that_grows_on_from_an_invalid_block_ends_the_run),
        ("far on at the tip", a_chain_far_above_an_invalid_block_is_no_reason_to_stay_below),
        ("far on in the end", a_chain_that_grew_on_from_an_invalid_block_is_told_of),
    ]);
}

/// From now on a peer has this chain, of which the network has learnt the headers when this returns.
fn goes_over(peer: &FakePeer, chain: &[Block], network: &Peers<'_>) {
    peer.set_chain(chain);
    peer.hang_up();
    wait_for_headers(network, chain.len() as u32 - 1);
}

fn wait_for_headers(network: &Peers<'_>, height: u32) {
    let began = Instant::now();
    while network.status().headers < height {
        assert!(began.elapsed() < PATIENCE, "never {height} headers");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The peers go over to a branch while the blocks of the chain that they leave are downloaded, and
/// give no more of those.
fn peers_that_leave_the_chain_are_followed() {
    let old = chain(51, 120).blocks();
    let new = branch(&old, 52, 90, 40).blocks();
    // No peer ever gave the last blocks, however long it takes until they go over.
    let peer = FakePeer::start(&old, &[Behaviour::NotFoundFrom(115)]);
    let other = FakePeer::start(&old[..=90], &[Behaviour::Honest]);
    let run = Run::new(false, SHORT);
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&[&peer, &other]));
        // There the run waits. What it tells of its progress comes too seldom to go by.
        peer.wait_until_asked_for(115, PATIENCE);
        peer.set_chain(&new);
        other.set_chain(&new);
        other.hang_up();
        running.join().unwrap()
    });
    run.check(outcome, &new);
    assert!(run.told.warned_of("no peer gives block"), "{:?}", run.told.warnings);
}

/// A run that follows goes on with `longer`, which the first of the peers has when the wait is over, and
/// is ended there.
fn goes_on_with(run: &Run, peers: [&FakePeer; 2], longer: &[Block], wait: impl FnOnce(&Told)) {
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&peers));
        wait(&run.told);
        peers[0].set_chain(longer);
        run.told.wait_for(112);
        run.interrupt.store(true, Ordering::Relaxed);
        running.join().unwrap()
    });
    run.check(outcome, longer);
}

/// A peer announces a block and does not give it.
fn a_withheld_tip_ends_nothing() {
    let base = chain(53, 110);
    let honest_chain = base.blocks();
    let withheld = branch(&honest_chain, 54, 110, 1).blocks();
    let longer = branch(&honest_chain, 55, 110, 2).blocks();
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&withheld, &[Behaviour::NotFoundFrom(111)]);
    let run = Run::new(true, SHORT);
    goes_on_with(&run, [&honest, &evil], &longer, |told| {
        told.wait_for(110);
        told.wait_for_warning("no peer gives block 111");
    });
}

/// A run that does not follow ends at the tip whose blocks there are.
fn a_withheld_tip_is_left_out() {
    let honest_chain = chain(56, 110).blocks();
    let withheld = branch(&honest_chain, 57, 110, 1).blocks();
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&withheld, &[Behaviour::NotFoundFrom(111)]);
    let run = Run::new(false, SHORT);
    run.check(run.over(&[&honest, &evil]), &honest_chain);
}

/// What one peer withholds is no reason to take a chain for the best that lacks a lot.
fn a_peer_that_is_behind_has_no_tip() {
    let all = chain(58, 110).blocks();
    let behind = FakePeer::start(&all[..=60], &[Behaviour::Honest]);
    let evil = FakePeer::start(&all, &[Behaviour::NotFoundFrom(100)]);
    let error = Run::new(false, SHORT).over(&[&behind, &evil]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
}

/// All blocks up to one were connected, and meanwhile the chain has grown by many that do not come.
fn where_a_run_was_a_while_ago_is_no_tip() {
    let all = chain(63, 130).blocks();
    let peer = FakePeer::start(&all[..=110], &[Behaviour::NotFoundFrom(111)]);
    let run = Run::new(false, SHORT);
    let grow = |_: &Told, network: &Peers<'_>| {
        if network.status().headers < 130 {
            goes_over(&peer, &all, network);
        }
    };
    let error = run.held_at(&[&peer], Some((110, &grow))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
}

/// A chain whose last block is invalid, and that chain without it.
fn with_invalid_block(seed: u64) -> (ChainBuilder, Vec<Block>) {
    let mut base = chain(seed, 110);
    let valid = base.blocks();
    let invalid = invalid_block(&mut base);
    base.add(invalid);
    (base, valid)
}

/// A miner's invalid block.
fn an_invalid_block_ends_nothing_where_there_is_another_chain() {
    let (evil_chain, honest_chain) = with_invalid_block(59);
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&evil_chain.blocks(), &[Behaviour::Honest]);
    let run = Run::new(false, LONG);
    let both_are_there = |_: &Told, network: &Peers<'_>| wait_for_headers(network, 111);
    run.check(run.held_at(&[&honest, &evil], Some((110, &both_are_there))), &honest_chain);
    assert!(run.told.warned_of("bad-cb-amount"), "{:?}", run.told.warnings);
}

fn an_invalid_block_ends_no_run_that_follows() {
    let (evil_chain, honest_chain) = with_invalid_block(59);
    let longer = branch(&honest_chain, 60, 110, 2).blocks();
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&evil_chain.blocks(), &[Behaviour::Honest]);
    let run = Run::new(true, LONG);
    goes_on_with(&run, [&honest, &evil], &longer, |told| {
        told.wait_for_warning("bad-cb-amount");
        // It is parted with, and again whenever it tells of that chain.
        let (began, before) = (Instant::now(), evil.seen.connections.load(Ordering::Relaxed));
        while evil.seen.connections.load(Ordering::Relaxed) < before + 2 {
            assert!(began.elapsed() < PATIENCE, "it stays");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

/// The peer with the other chain is not there when the block proves invalid.
fn a_peer_that_comes_late_has_another_chain_too() {
    let (evil_chain, honest_chain) = with_invalid_block(64);
    // It is dialled again after ever longer pauses: for the last time some seconds from the start.
    let away = Behaviour::Garbage;
    let honest = FakePeer::start(&honest_chain, &[away, away, away, Behaviour::Honest]);
    let evil = FakePeer::start(&evil_chain.blocks(), &[Behaviour::Honest]);
    let run = Run::new(false, LONG);
    run.check(run.over(&[&honest, &evil]), &honest_chain);
    assert!(run.told.warned_of("bad-cb-amount"), "{:?}", run.told.warnings);
}

/// Where all others go on from a block that is invalid here, the run says so and ends.
fn a_chain_that_goes_far_on_from_an_invalid_block_ends_the_run() {
    let (mut base, honest_chain) = with_invalid_block(61);
    base.empty_blocks(8);
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&base.blocks(), &[Behaviour::Honest]);
    let error = Run::new(true, LONG).over(&[&honest, &evil]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("bad-cb-amount"), "{error}");
}

/// The same, where they do so later.
fn a_chain_that_grows_on_from_an_invalid_block_ends_the_run() {
    let (mut base, honest_chain) = with_invalid_block(62);
    let first = base.blocks();
    base.empty_blocks(8);
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&first, &[Behaviour::Honest]);
    let run = Run::new(true, LONG);
    let error = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&[&honest, &evil]));
        run.told.wait_for_warning("bad-cb-amount");
        evil.set_chain(&base.blocks());
        running.join().unwrap().unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("others take it for valid"), "{error}");
}

/// The same for a run that does not follow, and that had connected all there was before.
fn a_chain_far_above_an_invalid_block_is_no_reason_to_stay_below() {
    let (mut base, honest_chain) = with_invalid_block(65);
    base.empty_blocks(8);
    let peer = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let grow = |_: &Told, network: &Peers<'_>| {
        if network.status().headers < 119 {
            goes_over(&peer, &base.blocks(), network);
        }
    };
    let error = Run::new(false, LONG).held_at(&[&peer], Some((110, &grow))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("bad-cb-amount"), "{error}");
}

/// Undo data of another coin than the block spent are noticed, and no index says that they are there.
#[test]
fn kept_undo_data_of_another_coin_are_found() {
    let mut builder = chain(68, 100);
    builder.random_blocks(20, apus_testkit::chain::Shape::default());
    let all = builder.blocks();
    let folder = tempfile::tempdir().unwrap();
    let (blocks, log) = (folder.path().join("blocks"), folder.path().join("kept"));
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    let mut run = Run::new(false, PATIENCE);
    run.keep = Some(KeptFolder { folder: blocks.clone(), log, datadir: None });
    // The pass that writes the hints reads back first, and does not know better.
    let (chain, kept, done) = (all.clone(), blocks.clone(), AtomicBool::new(false));
    run.at_check = Box::new(move || {
        if !done.swap(true, Ordering::Relaxed) {
            change_a_coin(&kept, &chain);
        }
    });
    let error = run.over(&[&peer]).unwrap_err();
    assert!(matches!(error, SyncError::Io(IoError::KeptReadBack { .. })), "{error}");
    assert!(error.to_string().contains("other coins than the block spent"), "{error}");
    assert!(!blocks.join("index").exists());
}

/// And where it is long only when the run has gone back to where it was.
fn a_chain_that_grew_on_from_an_invalid_block_is_told_of() {
    let (mut base, honest_chain) = with_invalid_block(66);
    let first = base.blocks();
    base.empty_blocks(8);
    let peer = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let grow = |told: &Told, network: &Peers<'_>| {
        let warned = told.warned_of("bad-cb-amount");
        let (chain, height) = if warned { (base.blocks(), 119) } else { (first.clone(), 111) };
        if network.status().headers < height {
            goes_over(&peer, &chain, network);
        }
    };
    let error = Run::new(false, LONG).held_at(&[&peer], Some((110, &grow))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("others take it for valid"), "{error}");
}
