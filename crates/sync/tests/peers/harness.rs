//! The test harness: a chain, its hints, and syncs over peers that have it.

use crate::world::{HINTS, NOW, PLACED, PlacedFile, SET, Truth, hintsfile, small_chain};
use apus_chain::{Network, Params};
use apus_engine::script::Signatures;
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::MemoryStore;
use apus_p2p::addresses::NodeAddress;
use apus_p2p::headers::HeaderList;
use apus_p2p::network::NetworkOptions;
use apus_p2p::transport::TransportChoice;
use apus_storage::Storage;
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::peers::{BlocksFolderOptions, Peers};
use apus_sync::{
    ConnectOptions, Event, HintedTask, HintedValidity, HintsInput, Observer, Outcome, Output,
    OutputKind, Request, RunEnv, SilentObserver, Source, Stop, SyncError, Task,
};
use apus_testkit::chain::{hints, utxo_set};
use apus_testkit::oracle::{self, BitOrder};
use apus_testkit::peer::FakePeer;
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Longest time that a sync in a test may take.
pub(crate) const BOUND: Duration = Duration::from_secs(120);

/// Runs tests in parallel, because they mostly wait.
pub(crate) fn at_once(tests: &[(&str, fn())]) {
    std::thread::scope(|scope| {
        for &(name, test) in tests {
            // A panic names the thread.
            std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, test).unwrap();
        }
    });
}

/// A chain and the truth about it.
pub(crate) struct World {
    folder: tempfile::TempDir,
    pub(crate) chain: Vec<Block>,
    pub(crate) truth: Truth,
}

impl World {
    pub(crate) fn small(seed: u64) -> Self {
        Self::of(small_chain(seed).blocks())
    }

    pub(crate) fn of(chain: Vec<Block>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bytes = oracle::hints_file(&hints(&chain, &utxo_set(&chain)), BitOrder::Msb);
        std::fs::write(folder.path().join("hints"), bytes).unwrap();
        let truth = Truth::of(&chain);
        Self { folder, chain, truth }
    }

    fn hints(&self) -> HintsInput {
        hintsfile(&self.folder.path().join("hints"))
    }

    pub(crate) fn job(&self) -> Job<'_> {
        Job {
            world: self,
            params: Params::of(Network::Regtest),
            // Chains here are short, and no block is assumed valid.
            hinted_validity: HintedValidity::Assumed,
            patience: Duration::from_secs(30),
            bytes_max: 1 << 20,
            interrupt: AtomicBool::new(false),
            finds_peers: false,
            listens: false,
            keep: None,
        }
    }
}

/// The warnings of a sync.
#[derive(Default)]
pub(crate) struct Warnings(pub(crate) Mutex<Vec<String>>);

impl Observer for Warnings {
    fn event(&self, event: Event) {
        if let Event::Warning(warning) = event {
            self.0.lock().unwrap().push(warning.to_string());
        }
    }
}

/// The options of a sync.
pub(crate) struct Job<'a> {
    pub(crate) world: &'a World,
    pub(crate) params: &'static Params,
    pub(crate) hinted_validity: HintedValidity,
    pub(crate) patience: Duration,
    pub(crate) bytes_max: u64,
    pub(crate) interrupt: AtomicBool,
    /// Whether no peers are given: then addresses come from the work folder, if it has any.
    pub(crate) finds_peers: bool,
    /// Whether other peers may connect.
    pub(crate) listens: bool,
    /// The folder in which blocks are kept.
    pub(crate) keep: Option<BlocksFolderOptions>,
}

impl Job<'_> {
    /// Runs a start in new folders.
    pub(crate) fn run(&self, peers: &[&FakePeer]) -> Result<Outcome, SyncError> {
        self.run_in(peers, &CrashStorage::new(), &CrashStorage::new(), &SilentObserver)
    }

    /// Returns options for a network of only these peers.
    pub(crate) fn network(&self, peers: &[&FakePeer]) -> NetworkOptions {
        let named = peers.iter().map(|peer| NodeAddress::from(peer.address()));
        NetworkOptions {
            params: self.params.clone(),
            connect: if self.finds_peers { Vec::new() } else { named.collect() },
            addresses: Vec::new(),
            proxy: None,
            listen: self.listens.then_some(SocketAddr::from(([127, 0, 0, 1], 0))),
            outbound: peers.len(),
            transport: TransportChoice::V1,
            user_agent: "/apus-test:1/".to_owned(),
            bytes_max: self.bytes_max,
            patience: self.patience,
            headers: HeaderList::default(),
            blocks: None,
        }
    }

    pub(crate) fn run_in(
        &self,
        peers: &[&FakePeer],
        work: &dyn Storage,
        out: &CrashStorage,
        observer: &dyn Observer,
    ) -> Result<Outcome, SyncError> {
        let options = self.network(peers);
        let network = Peers::start(options, work, self.keep.as_ref())?;
        let output = |kind, name: &str| Output {
            kind,
            storage: Arc::new(out.clone()),
            name: name.to_owned(),
        };
        let outputs = [output(OutputKind::Snapshot, SET), output(OutputKind::Hints, HINTS)];
        let commitment = PlacedFile::new(out, PLACED);
        // The sync connects the last blocks that it keeps for a node.
        let (coins, sandbox) = (Arc::new(MemoryStore::new()), tempfile::tempdir().unwrap());
        let open = || Ok(Arc::clone(&coins) as Arc<dyn CoinsStore>);
        let connect = self.keep.as_ref().map(|_| ConnectOptions {
            assume_valid: None,
            prevout_threads: 0,
            cache_bytes: 1 << 24,
            store: &open,
            beyond: None,
            hints_folder: sandbox.path().to_owned(),
            positions: sandbox.path().join("positions"),
        });
        let began = Instant::now();
        let outcome = apus_sync::run(&Request {
            source: Source::Peers(&network),
            task: Task::Hinted(HintedTask {
                hints: self.world.hints(),
                aggregate: AggregateKind::Sha256,
                validity: self.hinted_validity,
                spent: None,
                connect,
            }),
            leave_witnesses: None,
            stop: Stop::AtHints,
            follow: false,
            commitment: Some(&commitment),
            outputs: &outputs,
            folders: &[],
            sets: &[],
            muhash: true,
            env: RunEnv {
                params: self.params,
                threads: 1,
                memory_bytes: 16 << 20,
                segment_bytes: Some(1 << 20),
                scratch: None,
                checkpoint_interval: Duration::ZERO,
                now: NOW,
                signatures: Signatures::libsecp256k1(),
                verifier: None,
                workdir: work,
                is_shared: false,
                given: None,
                observer,
                interrupt: &self.interrupt,
            },
        });
        assert!(began.elapsed() < BOUND, "the sync took {:?}", began.elapsed());
        outcome
    }

    /// A start that must produce the right set.
    pub(crate) fn expect(&self, peers: &[&FakePeer]) {
        self.try_expect(peers).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Does the same, but returns the error, so that the test can describe it.
    pub(crate) fn try_expect(&self, peers: &[&FakePeer]) -> Result<(), SyncError> {
        let out = CrashStorage::new();
        let outcome = self.run_in(peers, &CrashStorage::new(), &out, &SilentObserver)?;
        self.world.truth.check(&outcome, &out);
        Ok(())
    }
}
