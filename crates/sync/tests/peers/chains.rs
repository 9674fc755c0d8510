//! Tests of chains that peers leave, that have an invalid block, or whose last block no peer sends.

use crate::harness::{World, at_once};
use crate::undo_data::change_a_coin;
use crate::world::{HINTS, NOW, PLACED, PlacedFile, SET, Truth};
use apus_chain::{BlockHash, HeightRange, Network, Params};
use apus_engine::script::Signatures;
use apus_engine::utxo::store::MemoryStore;
use apus_sync::peers::{BlocksFolderOptions, Peers};
use apus_sync::{
    ConnectOptions, Engine, ErrorKind, Event, FolderOutput, IoError, MergeSyncTask, Observer,
    Outcome, Output, OutputKind, Phase, Request, RunEnv, ScratchLimits, SegmentState, Source, Stop,
    SyncError, Task,
};
use apus_testkit::chain::{BlockPlan, ChainBuilder};
use apus_testkit::peer::{Behaviour, FakePeer};
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Maximum time to wait for an event, which comes much sooner or never.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// An idle timeout that no successful sync reaches, however busy the machine.
const LONG: Duration = Duration::from_secs(60);

/// An idle timeout for syncs that must find that no peer sends a block: they wait for a part of it.
const SHORT: Duration = Duration::from_secs(40);

/// Records the events of a sync.
#[derive(Default)]
pub(crate) struct Reported {
    connected: Mutex<u64>,
    pub(crate) warnings: Mutex<Vec<String>>,
    /// The finished segments of passes in any order.
    pub(crate) segments: Mutex<Vec<HeightRange>>,
    /// The segments that earlier starts finished, and all.
    pub(crate) resumed: Mutex<Option<(usize, usize)>>,
}

impl Observer for Reported {
    fn event(&self, event: Event) {
        match event {
            Event::Segment(range, SegmentState::Done) => self.segments.lock().unwrap().push(range),
            Event::Resumed { segments, of } => {
                self.resumed.lock().unwrap().get_or_insert((segments, of));
            }
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

impl Reported {
    /// Waits until this many blocks are connected.
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

/// An action during a held sync.
pub(crate) type Held<'a> = dyn Fn(&Reported, &Peers<'_>) + Sync + 'a;

/// Holds a sync whenever it has connected this many blocks, and runs an action during the hold; also runs one
/// just before the sync reads back.
struct Holding<'a> {
    at_check: &'a (dyn Fn() + Sync),
    reported: &'a Reported,
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
        self.reported.event(event);
        if let Some((blocks, held)) = self.hold
            && connected >= blocks
        {
            held(self.reported, self.network);
        }
    }
}

/// A sync that connects all blocks.
pub(crate) struct Run {
    follow: bool,
    patience: Duration,
    pub(crate) engine: Option<Engine>,
    pub(crate) assume_valid: Option<BlockHash>,
    /// The number of segments in each batch of mergesync.
    pub(crate) batch_segments: Option<usize>,
    /// What the temporary files may take.
    pub(crate) scratch_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) reported: Reported,
    pub(crate) work: CrashStorage,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) keep: Option<BlocksFolderOptions>,
    pub(crate) folders: Vec<FolderOutput>,
    /// Whether to write hints and roots, which takes another pass over all blocks.
    pub(crate) goes_twice: bool,
    /// A folder for files that are deleted with the progress.
    sandbox: tempfile::TempDir,
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
            assume_valid: None,
            batch_segments: None,
            scratch_bytes: u64::MAX,
            memory_bytes: 16 << 20,
            reported: Reported::default(),
            work: CrashStorage::new(),
            store: Arc::new(MemoryStore::new()),
            keep: None,
            folders: Vec::new(),
            goes_twice: true,
            sandbox: tempfile::tempdir().unwrap(),
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
        // Chains come from the fake peers, so this world's chain is not used.
        let world = World::of(ChainBuilder::new(1).blocks());
        let mut job = world.job();
        job.patience = self.patience;
        let folder = self.sandbox.path();
        let network = Peers::start(job.network(peers), &self.work, self.keep.as_ref()).unwrap();
        let at_check = &*self.at_check;
        let observer = Holding { at_check, reported: &self.reported, network: &network, hold };
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
                    assume_valid: self.assume_valid,
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
            sets: &[],
            muhash: true,
            env: RunEnv {
                params: Params::of(Network::Regtest),
                threads: 1,
                memory_bytes: self.memory_bytes,
                segment_bytes: self.batch_segments.map(|_| 4_000),
                scratch: Some(ScratchLimits {
                    bytes: self.scratch_bytes,
                    segments: self.batch_segments,
                }),
                checkpoint_interval: Duration::ZERO,
                now: NOW,
                signatures: Signatures::libsecp256k1(),
                verifier: None,
                workdir: &self.work,
                is_shared: false,
                given: None,
                observer: &observer,
                interrupt: &self.interrupt,
            },
        })
    }

    /// Checks that the set is the chain's.
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

/// Makes a chain that forks off another one at a height.
pub(crate) fn branch(chain: &[Block], seed: u64, fork: usize, blocks: usize) -> ChainBuilder {
    let mut builder = ChainBuilder::new(seed);
    chain[1..=fork].iter().for_each(|block| builder.add(block.clone()));
    builder.empty_blocks(blocks);
    builder
}

/// Makes a block whose coinbase claims too much, which shows only when it is connected.
pub(crate) fn invalid_block(builder: &mut ChainBuilder) -> Block {
    let height = builder.height() + 1;
    let mut coinbase = builder.coinbase(height, Vec::new());
    let all = ChainBuilder::subsidy(height);
    coinbase.output = vec![builder.output(all + 1, apus_testkit::chain::ScriptKind::OpTrue)];
    builder.propose(BlockPlan { coinbase: Some(coinbase), ..BlockPlan::default() })
}

/// These tests mostly wait, so they run in parallel.
#[test]
fn unusable_chains_are_left() {
    at_once(&[
        ("left by peers", peers_that_leave_the_chain_are_followed),
        ("withheld, followed", a_withheld_tip_ends_nothing),
        ("withheld", a_withheld_tip_is_left_out),
        ("behind", a_peer_that_is_behind_has_no_tip),
        ("where it was", a_tip_of_a_while_ago_is_not_the_tip),
        ("grown", a_chain_that_grew_unannounced_is_followed_to_its_tip),
        ("invalid, followed", an_invalid_block_does_not_end_a_following_sync),
        ("invalid", an_invalid_block_ends_nothing_where_there_is_another_chain),
        ("late", a_late_peers_chain_replaces_an_invalid_one),
        ("far on", a_long_chain_above_an_invalid_block_ends_the_sync),
        ("far on later", a_chain_growing_above_an_invalid_block_ends_the_sync),
        ("far on at the tip", a_long_invalid_chain_does_not_hold_the_sync_back),
        ("far on in the end", a_chain_above_an_invalid_block_is_reported),
    ]);
}

/// Gives a peer this chain, and waits until the network has its headers.
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

/// The peers switch to a branch while the blocks of their old chain are downloaded, and send no more of
/// those.
fn peers_that_leave_the_chain_are_followed() {
    let old = chain(51, 120).blocks();
    let new = branch(&old, 52, 90, 40).blocks();
    // The peers never send the last blocks, however late they switch.
    let peer = FakePeer::start(&old, &[Behaviour::NotFoundFrom(115)]);
    let other = FakePeer::start(&old[..=90], &[Behaviour::Honest]);
    let run = Run::new(false, SHORT);
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&[&peer, &other]));
        // The sync waits at that block. Its progress reports are too rare to rely on.
        peer.wait_until_asked_for(115, PATIENCE);
        peer.set_chain(&new);
        other.set_chain(&new);
        other.hang_up();
        running.join().unwrap()
    });
    run.check(outcome, &new);
    assert!(run.reported.warned_of("no peer sends block"), "{:?}", run.reported.warnings);
}

/// Checks that a following sync continues on `longer`, which the first peer gets after `wait`, and then stops
/// the sync.
fn continues_on(run: &Run, peers: [&FakePeer; 2], longer: &[Block], wait: impl FnOnce(&Reported)) {
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&peers));
        wait(&run.reported);
        peers[0].set_chain(longer);
        run.reported.wait_for(112);
        run.interrupt.store(true, Ordering::Relaxed);
        running.join().unwrap()
    });
    run.check(outcome, longer);
}

/// A peer that announces a block and does not send it does not end the sync.
fn a_withheld_tip_ends_nothing() {
    let base = chain(53, 110);
    let honest_chain = base.blocks();
    let withheld = branch(&honest_chain, 54, 110, 1).blocks();
    let longer = branch(&honest_chain, 55, 110, 2).blocks();
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&withheld, &[Behaviour::NotFoundFrom(111)]);
    let run = Run::new(true, SHORT);
    continues_on(&run, [&honest, &evil], &longer, |reported| {
        reported.wait_for(110);
        reported.wait_for_warning("no peer sends block 111");
    });
}

/// A sync that does not follow ends at the last block that it can get.
fn a_withheld_tip_is_left_out() {
    let honest_chain = chain(56, 110).blocks();
    let withheld = branch(&honest_chain, 57, 110, 1).blocks();
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&withheld, &[Behaviour::NotFoundFrom(111)]);
    let run = Run::new(false, SHORT);
    run.check(run.over(&[&honest, &evil]), &honest_chain);
}

/// If one peer withholds blocks, a chain that lacks many must not be taken for the best.
fn a_peer_that_is_behind_has_no_tip() {
    let all = chain(58, 110).blocks();
    let behind = FakePeer::start(&all[..=60], &[Behaviour::Honest]);
    let evil = FakePeer::start(&all, &[Behaviour::NotFoundFrom(100)]);
    let error = Run::new(false, SHORT).over(&[&behind, &evil]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
}

/// The sync connected all blocks up to one; meanwhile, the chain grew by many blocks that no peer sends.
fn a_tip_of_a_while_ago_is_not_the_tip() {
    let all = chain(63, 130).blocks();
    let peer = FakePeer::start(&all[..=110], &[Behaviour::NotFoundFrom(111)]);
    let run = Run::new(false, SHORT);
    let grow = |_: &Reported, network: &Peers<'_>| {
        if network.status().headers < 130 {
            goes_over(&peer, &all, network);
        }
    };
    let error = run.held_at(&[&peer], Some((110, &grow))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
}

/// A node that is still behind announces no blocks. Its chain has grown by the time a sync reaches its old tip.
fn a_chain_that_grew_unannounced_is_followed_to_its_tip() {
    let all = chain(68, 130).blocks();
    let peer = FakePeer::start(&all[..=110], &[Behaviour::Honest]);
    let run = Run::new(false, LONG);
    let grow = |_: &Reported, _: &Peers<'_>| peer.set_chain(&all);
    run.check(run.held_at(&[&peer], Some((110, &grow))), &all);
}

/// Makes a chain whose last block is invalid, and the same chain without that block.
fn with_invalid_block(seed: u64) -> (ChainBuilder, Vec<Block>) {
    let mut base = chain(seed, 110);
    let valid = base.blocks();
    let invalid = invalid_block(&mut base);
    base.add(invalid);
    (base, valid)
}

/// If another chain exists, a miner's invalid block does not end the sync.
fn an_invalid_block_ends_nothing_where_there_is_another_chain() {
    let (evil_chain, honest_chain) = with_invalid_block(59);
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&evil_chain.blocks(), &[Behaviour::Honest]);
    let run = Run::new(false, LONG);
    let both_are_there = |_: &Reported, network: &Peers<'_>| wait_for_headers(network, 111);
    run.check(run.held_at(&[&honest, &evil], Some((110, &both_are_there))), &honest_chain);
    assert!(run.reported.warned_of("bad-cb-amount"), "{:?}", run.reported.warnings);
}

fn an_invalid_block_does_not_end_a_following_sync() {
    let (evil_chain, honest_chain) = with_invalid_block(59);
    let longer = branch(&honest_chain, 60, 110, 2).blocks();
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&evil_chain.blocks(), &[Behaviour::Honest]);
    let run = Run::new(true, LONG);
    continues_on(&run, [&honest, &evil], &longer, |reported| {
        reported.wait_for_warning("bad-cb-amount");
        // The sync disconnects from this peer, again each time that it offers that chain.
        let (began, before) = (Instant::now(), evil.seen.connections.load(Ordering::Relaxed));
        while evil.seen.connections.load(Ordering::Relaxed) < before + 2 {
            assert!(began.elapsed() < PATIENCE, "it stays");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

/// The peer with the other chain is offline when the block proves invalid.
fn a_late_peers_chain_replaces_an_invalid_one() {
    let (evil_chain, honest_chain) = with_invalid_block(64);
    // The sync dials this peer again after ever longer pauses, for the last time some seconds after the start.
    let away = Behaviour::Garbage;
    let honest = FakePeer::start(&honest_chain, &[away, away, away, Behaviour::Honest]);
    let evil = FakePeer::start(&evil_chain.blocks(), &[Behaviour::Honest]);
    let run = Run::new(false, LONG);
    run.check(run.over(&[&honest, &evil]), &honest_chain);
    assert!(run.reported.warned_of("bad-cb-amount"), "{:?}", run.reported.warnings);
}

/// If all other nodes build on a block that is invalid here, the sync reports that and ends.
fn a_long_chain_above_an_invalid_block_ends_the_sync() {
    let (mut base, honest_chain) = with_invalid_block(61);
    base.empty_blocks(8);
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&base.blocks(), &[Behaviour::Honest]);
    let error = Run::new(true, LONG).over(&[&honest, &evil]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("bad-cb-amount"), "{error}");
}

/// The sync also ends if the others build on the invalid block later.
fn a_chain_growing_above_an_invalid_block_ends_the_sync() {
    let (mut base, honest_chain) = with_invalid_block(62);
    let first = base.blocks();
    base.empty_blocks(8);
    let honest = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let evil = FakePeer::start(&first, &[Behaviour::Honest]);
    let run = Run::new(true, LONG);
    let error = std::thread::scope(|scope| {
        let running = scope.spawn(|| run.over(&[&honest, &evil]));
        run.reported.wait_for_warning("bad-cb-amount");
        evil.set_chain(&base.blocks());
        running.join().unwrap().unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("other nodes accept it"), "{error}");
}

/// A sync that does not follow and has connected all blocks below ends, too.
fn a_long_invalid_chain_does_not_hold_the_sync_back() {
    let (mut base, honest_chain) = with_invalid_block(65);
    base.empty_blocks(8);
    let peer = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let grow = |_: &Reported, network: &Peers<'_>| {
        if network.status().headers < 119 {
            goes_over(&peer, &base.blocks(), network);
        }
    };
    let error = Run::new(false, LONG).held_at(&[&peer], Some((110, &grow))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("bad-cb-amount"), "{error}");
}

/// Undo data with a coin that the block did not spend are noticed, and no index lists them.
#[test]
fn kept_undo_data_of_another_coin_are_found() {
    let mut builder = chain(68, 100);
    builder.random_blocks(20, apus_testkit::chain::Shape::default());
    let all = builder.blocks();
    let folder = tempfile::tempdir().unwrap();
    let (blocks, log) = (folder.path().join("blocks"), folder.path().join("kept"));
    let peer = FakePeer::start(&all, &[Behaviour::Honest]);
    let mut run = Run::new(false, PATIENCE);
    run.keep = Some(BlocksFolderOptions { folder: blocks.clone(), log, datadir: None });
    // The pass that writes the hints reads back first, and cannot notice the change.
    let (chain, kept, done) = (all.clone(), blocks.clone(), AtomicBool::new(false));
    run.at_check = Box::new(move || {
        if !done.swap(true, Ordering::Relaxed) {
            change_a_coin(&kept, &chain);
        }
    });
    let error = run.over(&[&peer]).unwrap_err();
    assert!(matches!(error, SyncError::Io(IoError::KeptReadBack { .. })), "{error}");
    assert!(error.to_string().contains("match the coins that the block spent"), "{error}");
    assert!(!blocks.join("index").exists());
}

/// The invalid chain is also reported if it grows long only after the sync has returned to its previous chain.
fn a_chain_above_an_invalid_block_is_reported() {
    let (mut base, honest_chain) = with_invalid_block(66);
    let first = base.blocks();
    base.empty_blocks(8);
    let peer = FakePeer::start(&honest_chain, &[Behaviour::Honest]);
    let grow = |reported: &Reported, network: &Peers<'_>| {
        let warned = reported.warned_of("bad-cb-amount");
        let (chain, height) = if warned { (base.blocks(), 119) } else { (first.clone(), 111) };
        if network.status().headers < height {
            goes_over(&peer, &chain, network);
        }
    };
    let error = Run::new(false, LONG).held_at(&[&peer], Some((110, &grow))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("other nodes accept it"), "{error}");
}
