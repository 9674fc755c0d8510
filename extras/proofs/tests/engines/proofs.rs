//! Proof files equal the proofs of a library with the whole forest, whatever the job's threads, memory and
//! cuts, and however often it is killed.

use crate::bad_blocks::bad_blocks;
use crate::harness::{Job, Place, World, hash_of, random_chain, store_error};
use crate::roots::{truth, with_roots};
use crate::world::files;
use apus_chain::{BlockHash, Height, HeightRange, Network, OutPoint, Reader, Txid};
use apus_engine::utxo::StoreError;
use apus_proofs::bridge::{BridgeOptions, ProofIndex};
use apus_proofs::forest_store::{ForestState, ForestStore, ForestWrite, MemoryForest};
use apus_proofs::{BridgeError, ProofsMade, proofs_files, survey_proofs};
use apus_storage::Storage;
use apus_sync::{Engine, ErrorKind, Event, Observer, Phase, Stop, SyncError};
use apus_testkit::effort::rounds;
use apus_testkit::oracle::{BlockProof, proofs};
use apus_testkit::rng::Rng;
use apus_testkit::storage::{AfterCrash, CrashStorage, FaultStorage, Operation};
use apus_utreexo::{
    CompactLeaf, PageId, Pages, Proof, RangeFile, RangeHead, RangeWriter, Roots, Spender,
    TARGETS_MAX, leaf_hash, range_file_name,
};
use bitcoin::Block;
use bitcoin::hashes::Hash;
use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::io::{self, Cursor};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// A job that makes proofs, and its storage.
struct Bridge {
    job: Job,
    out: CrashStorage,
    forest: Arc<MemoryForest>,
    index: Arc<ProofIndex>,
    every: u32,
}

/// An index that writes the proofs of a forest to a folder.
pub(crate) fn index_of(
    storage: Arc<dyn Storage>,
    forest: Arc<dyn ForestStore>,
    every: u32,
    memory_bytes: u64,
) -> Arc<ProofIndex> {
    let store = Box::new(move || Ok(Arc::clone(&forest)));
    let folder = PathBuf::new();
    Arc::new(ProofIndex::new(BridgeOptions { storage, folder, every, store, memory_bytes }))
}

const ALL: u64 = 1 << 24;

impl Bridge {
    fn new(world: &World, every: u32) -> Self {
        Self::on(world, every, CrashStorage::new(), Arc::default())
    }

    fn on(world: &World, every: u32, out: CrashStorage, forest: Arc<MemoryForest>) -> Self {
        let index =
            index_of(Arc::new(out.clone()), Arc::<MemoryForest>::clone(&forest), every, ALL);
        let job = Job { engine: Engine::MergeSync, ..world.job() };
        Self { job, out, forest, index: Arc::clone(&index), every }.by(index)
    }

    /// Replaces the job's proof index.
    fn by(mut self, index: Arc<ProofIndex>) -> Self {
        self.job.index = Some(Arc::<ProofIndex>::clone(&index) as _);
        self.index = index;
        self
    }

    fn with_memory(self, memory_bytes: u64) -> Self {
        let forest = Arc::<MemoryForest>::clone(&self.forest);
        let index = index_of(Arc::new(self.out.clone()), forest, self.every, memory_bytes);
        self.by(index)
    }

    fn up_to(mut self, height: Height) -> Self {
        self.job.stop = Stop::At(height);
        self
    }

    fn run(&self) -> ProofsMade {
        self.job.run(&Place::new()).unwrap_or_else(|error| panic!("{error}"));
        self.index.made().unwrap()
    }

    fn refused(&self) -> BridgeError {
        match self.job.run(&Place::new()).unwrap_err() {
            SyncError::Run(error) => *(error as Box<dyn Error>).downcast().unwrap(),
            error => panic!("{error}"),
        }
    }
}

/// The entry of each block, from block 1 on without a gap, checked against the roots in the files.
fn entries(out: &CrashStorage) -> BTreeMap<Height, Vec<u8>> {
    let files = out.live_files();
    let names: Vec<String> = proofs_files(out).unwrap().into_iter().map(|it| it.1).collect();
    assert_eq!(names.len(), files.len(), "there are no other files");
    let (mut entries, mut next) = (BTreeMap::new(), 1);
    for name in &names {
        let mut file = RangeFile::open(Cursor::new(files[name].clone())).unwrap();
        assert_eq!((file.heights().start, name), (next, &range_file_name(file.heights())));
        next = file.heights().end;
        for height in file.heights().heights() {
            let mut entry = Vec::new();
            file.entry(height, &mut entry).unwrap();
            entries.insert(height, entry);
        }
    }
    let surveyed = survey_proofs(out, &names).unwrap();
    assert_eq!(surveyed.heights, HeightRange::new(1, next));
    assert_eq!(surveyed.totals.blocks, u64::from(next) - 1);
    entries
}

/// The inputs of a block that spend outputs of earlier blocks.
fn spent_below(block: &Block) -> Vec<bitcoin::TxIn> {
    let own: HashSet<_> = block.txdata.iter().map(|tx| tx.compute_txid()).collect();
    let inputs = block.txdata[1..].iter().flat_map(|tx| &tx.input);
    inputs.filter(|input| !own.contains(&input.previous_output.txid)).cloned().collect()
}

/// An entry has the library's proof and the leaf data of the leaves that the block spends.
fn expect_entry(chain: &[Block], height: Height, entry: &[u8], model: &BlockProof) {
    let mut reader = Reader::new(entry);
    let proof = Proof::read(&mut reader, TARGETS_MAX).unwrap();
    assert_eq!(proof.targets, model.targets, "{height}");
    let hashes: Vec<[u8; 32]> = proof.hashes.iter().map(|hash| hash.0).collect();
    assert_eq!(hashes, model.hashes, "{height}");
    let inputs = spent_below(&chain[height as usize]);
    assert_eq!(inputs.len(), model.spent.len());
    for (input, leaf) in inputs.iter().zip(&model.spent) {
        let script_sig = input.script_sig.as_bytes();
        let spender = Spender { script_sig, witness_top: input.witness.last() };
        let read = CompactLeaf::read(&mut reader, &spender).unwrap();
        let (txid, vout) = (input.previous_output.txid, input.previous_output.vout);
        let outpoint = OutPoint { txid: Txid(txid.to_byte_array()), vout };
        let block = hash_of(&chain[read.height as usize]);
        assert_eq!(leaf_hash(&block, &outpoint, read.coin()).0, *leaf, "{height}");
    }
    assert_eq!(reader.remaining(), 0);
}

fn expect_all(chain: &[Block], stop: Height, out: &CrashStorage, models: &[BlockProof]) {
    let entries = entries(out);
    assert_eq!(entries.len() as Height, stop);
    for ((height, entry), model) in entries.iter().zip(models) {
        expect_entry(chain, *height, entry, model);
    }
    for name in out.live_files().keys() {
        let file = RangeFile::open(Cursor::new(out.live_files()[name].clone())).unwrap();
        let last = file.heights().end - 1;
        let model = &models[last as usize - 1];
        assert_eq!(file.after().leaves(), model.leaves);
        let roots: Vec<[u8; 32]> = file.after().hashes().iter().map(|root| root.0).collect();
        assert_eq!(roots, model.roots);
        assert_eq!(file.head().before, hash_of(&chain[file.heights().start as usize - 1]));
    }
}

/// The error is the same as without proofs, and the block gets no proof.
#[test]
fn a_block_that_breaks_a_rule_gets_no_proof() {
    for (reason, make) in bad_blocks() {
        let mut builder = random_chain(961);
        builder.empty_blocks(1);
        let plan = make(&mut builder);
        let bad = builder.add_plan(plan);
        let height = builder.height();
        builder.empty_blocks(2);
        let world = World::of(&builder.blocks());
        let Bridge { job, out, .. } = Bridge::new(&world, 50);
        let error = job.refused(&Place::new()).to_string();
        let pieces = [hash_of(&bad).to_string(), format!("[{reason}]")];
        assert!(pieces.iter().all(|piece| error.contains(piece)), "{error}");
        let proved = proofs_files(&out).unwrap();
        assert!(proved.iter().all(|(heights, _)| heights.end <= height), "{reason}");
    }
}

#[test]
fn proofs_match_a_library_with_any_options() {
    let mut rng = Rng::new(900);
    for seed in 900..900 + rounds(2, 40) {
        let world = World::small(seed);
        let models = proofs(&world.chain);
        let stop = world.truth.stop;
        let mut wanted: Option<(u32, _)> = None;
        for every in [7, 7, 7, 1, 1000] {
            let mut bridge = Bridge::new(&world, every);
            bridge.job.threads = 1 + rng.index(4);
            bridge.job.checkpoint_interval = Duration::from_secs(3600 * rng.below(2));
            let made = bridge.run();
            assert_eq!((made.from, made.totals.blocks), (1, stop.into()));
            assert_eq!(made.totals.files, u64::from(stop.div_ceil(every)));
            let spent: usize = models.iter().map(|model| model.spent.len()).sum();
            assert!(spent > 20 && made.totals.targets == spent as u64);
            expect_all(&world.chain, stop, &bridge.out, &models);
            match &wanted {
                Some((same, files)) if *same == every => {
                    assert_eq!(*files, bridge.out.live_files());
                }
                _ => wanted = Some((every, bridge.out.live_files())),
            }
        }
        // With so little memory, a range ends when memory is full; entries are the same.
        let little = Bridge::new(&world, 1000).with_memory(2_000);
        assert!(little.run().totals.files > 5);
        expect_all(&world.chain, stop, &little.out, &models);
    }
}

/// A random choice among `points` points.
fn some(points: u64, rng: &mut Rng) -> Vec<u64> {
    let few = rounds(9, points);
    match few < points {
        true => (0..few).map(|_| rng.below(points)).chain([0, points - 1]).collect(),
        false => (0..points).collect(),
    }
}

#[test]
fn a_crash_at_any_sync_point_does_not_change_the_files() {
    let (world, mut rng) = (World::small(910), Rng::new(910));
    for memory_bytes in [ALL, 6_000] {
        let whole = Bridge::new(&world, 9).with_memory(memory_bytes);
        let place = Place::new();
        whole.job.run(&place).unwrap();
        let wanted = whole.out.live_files();
        for (of_work, syncs) in [(true, place.work.syncs()), (false, whole.out.syncs())] {
            for at in some(syncs, &mut rng) {
                println!("work: {of_work}, crash at {at}");
                let (mut place, bridge) = (Place::new(), Bridge::new(&world, 9));
                let bridge = bridge.with_memory(memory_bytes);
                let disk = if of_work { place.work.clone() } else { bridge.out.clone() };
                disk.crash_at(at, AfterCrash::Fail);
                bridge.job.run(&place).unwrap_err();
                let image = |disk: &CrashStorage, rng: &mut Rng| match rng.one_in(2) {
                    true => disk.durable_image(),
                    false => disk.crash_image(rng.next_u64()),
                };
                (place.work, place.out) = (image(&place.work, &mut rng), CrashStorage::new());
                let out = image(&bridge.out, &mut rng);
                let again = Bridge::on(&world, 9, out, bridge.forest).with_memory(memory_bytes);
                again.job.run(&place).unwrap_or_else(|error| panic!("{error}"));
                assert!(again.out.live_files() == wanted, "{at}");
            }
        }
    }
}

#[test]
fn a_failure_of_any_operation_does_not_change_the_files() {
    let (world, mut rng) = (World::small(911), Rng::new(911));
    let run = |out: &Arc<FaultStorage>, forest: &Arc<MemoryForest>, place: &Place| {
        let bridge = Bridge::on(&world, 9, CrashStorage::new(), Arc::clone(forest));
        let forest = Arc::<MemoryForest>::clone(forest);
        bridge.by(index_of(Arc::<FaultStorage>::clone(out), forest, 9, ALL)).job.run(place)
    };
    let disk = CrashStorage::new();
    let out = Arc::new(FaultStorage::new(disk.clone()));
    run(&out, &Arc::default(), &Place::new()).unwrap();
    let wanted = disk.live_files();
    for at in some(out.calls(), &mut rng) {
        let disk = CrashStorage::new();
        let (out, forest) = (Arc::new(FaultStorage::new(disk.clone())), Arc::default());
        out.fail_nth(Operation::Any, at, io::ErrorKind::StorageFull);
        let place = Place::new();
        let error = run(&out, &forest, &place).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        out.heal();
        run(&out, &forest, &place).unwrap();
        assert!(disk.live_files() == wanted, "{at}");
    }
}

/// A forest store whose writes fail after some number.
struct Failing(Arc<MemoryForest>, AtomicU32);

impl Pages for Failing {
    type Error = StoreError;

    fn read(&self, page: PageId, out: &mut Vec<u8>) -> Result<bool, StoreError> {
        self.0.read(page, out)
    }
}

impl ForestStore for Failing {
    fn state(&self) -> Result<Option<ForestState>, StoreError> {
        self.0.state()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn write(&self, write: &ForestWrite<'_>) -> Result<(), StoreError> {
        match self.1.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(store_error()),
            _ => self.0.write(write),
        }
    }
}

/// Files exist before the forest moves: a restart makes the files above the forest again, however they are
/// cut then.
#[test]
fn files_above_the_forest_are_rebuilt() {
    let world = World::small(920);
    let models = proofs(&world.chain);
    for (every, writes, at, again) in [(1, 40, 40, 1), (9, 0, 0, 9), (9, 0, 0, 7), (10, 2, 20, 7)] {
        let (forest, place) = (Arc::<MemoryForest>::default(), Place::new());
        let bridge = Bridge::on(&world, every, CrashStorage::new(), Arc::clone(&forest));
        let failing = Arc::new(Failing(Arc::clone(&forest), AtomicU32::new(writes)));
        let index = index_of(Arc::new(bridge.out.clone()), failing, every, ALL);
        let bridge = bridge.by(index);
        assert_eq!(bridge.job.run(&place).unwrap_err().kind(), ErrorKind::Io);
        let state = forest.state().unwrap().unwrap_or_default();
        assert_eq!(state.block.height, at);
        let last = proofs_files(&bridge.out).unwrap().pop().unwrap().0;
        assert_eq!(last.end, at + every + 1, "a file is ahead");
        let again = Bridge::on(&world, again, bridge.out.clone(), forest);
        again.job.run(&place).unwrap();
        expect_all(&world.chain, world.truth.stop, &again.out, &models);
    }
}

/// Without checkpoints, the forest moves when its changes fill its memory.
#[test]
fn a_full_memory_moves_the_forest() {
    let world = World::small(921);
    for (memory_bytes, moves) in [(8_000, true), (ALL, false)] {
        let mut bridge = Bridge::new(&world, 10).with_memory(memory_bytes);
        bridge.job.checkpoint_interval = Duration::from_secs(3600);
        let (place, disk) = (Place::new(), bridge.out.clone());
        disk.crash_at(20, AfterCrash::Fail);
        bridge.job.run(&place).unwrap_err();
        assert_eq!(bridge.forest.state().unwrap().is_some(), moves);
    }
}

/// A record of validated blocks is useless if its forest is gone.
#[test]
fn a_lost_forest_is_rebuilt() {
    let world = World::small(922);
    let (bridge, place) = (Bridge::new(&world, 10), Place::new());
    bridge.job.run(&place).unwrap();
    let again = Bridge::new(&world, 10);
    again.job.run(&place).unwrap();
    assert_eq!(again.out.live_files(), bridge.out.live_files());
}

/// Interrupts the validation of blocks.
struct Stopping<'a>(&'a AtomicBool);

impl Observer for Stopping<'_> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Started(Phase::Connect)) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn an_interrupted_job_resumes() {
    let world = World::small(912);
    let whole = Bridge::new(&world, 10);
    whole.run();
    let (bridge, place, interrupt) =
        (Bridge::new(&world, 10), Place::new(), AtomicBool::new(false));
    let ended = bridge.job.run_watched(&place, &Stopping(&interrupt), &interrupt);
    assert!(matches!(ended.unwrap_err(), SyncError::Interrupted));
    bridge.job.run(&place).unwrap();
    assert_eq!(bridge.out.live_files(), whole.out.live_files());
}

/// The forest stays when the work folder is deleted: a job with a higher stop makes only the proofs of blocks
/// above it.
#[test]
fn a_higher_stop_resumes_from_the_forest() {
    let world = World::small(913);
    let models = proofs(&world.chain);
    let bridge = Bridge::new(&world, 50).up_to(107);
    assert_eq!(bridge.run().totals.blocks, 107);
    let before = bridge.out.live_files();
    let more = Bridge::on(&world, 50, bridge.out.clone(), bridge.forest);
    let made = more.run();
    assert_eq!((made.from, made.totals.blocks), (108, u64::from(world.truth.stop) - 107));
    expect_all(&world.chain, world.truth.stop, &more.out, &models);
    let after = more.out.live_files();
    assert!(before.iter().all(|(name, bytes)| after[name] == *bytes));
    let names: Vec<&str> = after.keys().map(String::as_str).collect();
    let wanted = [(1, 51), (51, 101), (101, 108), (108, world.truth.stop + 1)];
    assert_eq!(names, wanted.map(|(start, end)| range_file_name(HeightRange::new(start, end))));
    // The next start has nothing left to make.
    let again = Bridge::on(&world, 50, more.out.clone(), more.forest);
    assert_eq!(again.run().totals.blocks, 0);
    assert_eq!(again.out.live_files(), after);
}

#[test]
fn damaged_pages_are_refused() {
    let world = World::small(914);
    for change in [
        |page: &mut Vec<u8>| *page.last_mut().unwrap() ^= 1,
        |page: &mut Vec<u8>| page.clear(),
        |page: &mut Vec<u8>| page.truncate(page.len() - 1),
    ] {
        let bridge = Bridge::new(&world, 10).up_to(105);
        bridge.run();
        bridge.forest.damage(change);
        let more = Bridge::on(&world, 10, bridge.out.clone(), bridge.forest);
        let error = more.refused();
        assert!(matches!(&error, BridgeError::Forest { what, .. } if what.contains("page")));
        assert_eq!(SyncError::from(error).kind(), ErrorKind::Io);
    }
}

/// A proof file of another network, or of other blocks.
fn strange_file(network: Network, first: Height, blocks: &[BlockHash]) -> Vec<u8> {
    file_behind(BlockHash([1; 32]), network, first, blocks)
}

fn file_behind(
    before: BlockHash,
    network: Network,
    first: Height,
    blocks: &[BlockHash],
) -> Vec<u8> {
    let head = RangeHead { network: network.magic(), first, before, roots: Roots::default() };
    let mut writer = RangeWriter::new(Vec::new(), &head).unwrap();
    blocks.iter().for_each(|hash| writer.put(hash, 0, &[0, 0]).unwrap());
    writer.finish(&Roots::default()).unwrap()
}

fn holding(name: &str, bytes: &[u8]) -> CrashStorage {
    CrashStorage::holding([(name.to_owned(), bytes.to_vec())].into())
}

#[test]
fn foreign_files_are_refused_by_name_and_kept() {
    let world = World::small(915);
    let hashes: Vec<BlockHash> = world.chain[1..3].iter().map(hash_of).collect();
    let name = range_file_name(HeightRange::new(1, 3));
    let refused = |bytes: &[u8]| {
        let out = holding(&name, bytes);
        let error = Bridge::on(&world, 10, out.clone(), Arc::default()).refused();
        assert_eq!(files(&out)[&name], bytes);
        assert!(error.to_string().contains("proofs-00000001-00000003.dat"), "{error}");
        error
    };
    let other = strange_file(Network::Signet, 1, &hashes);
    assert!(matches!(refused(&other), BridgeError::Network { .. }));
    let other = strange_file(Network::Regtest, 1, &[hashes[0], BlockHash([9; 32])]);
    assert!(matches!(refused(&other), BridgeError::Chain { height: 2, .. }));
    assert!(matches!(
        refused(&strange_file(Network::Regtest, 1, &hashes)),
        BridgeError::There { .. }
    ));
    let other = strange_file(Network::Regtest, 2, &hashes);
    assert!(matches!(refused(&other), BridgeError::Name { .. }));
    assert!(matches!(refused(b"something else"), BridgeError::File { .. }));
}

#[test]
fn an_unusable_forest_is_refused() {
    let world = World::small(916);
    let bridge = Bridge::new(&world, 10).up_to(110);
    bridge.run();
    let on = |out: CrashStorage| Bridge::on(&world, 10, out, Arc::clone(&bridge.forest));
    let lower = on(bridge.out.clone()).up_to(109);
    assert!(matches!(lower.refused(), BridgeError::Beyond { at: 110, .. }));
    let empty_folder = on(CrashStorage::new());
    assert!(matches!(empty_folder.refused(), BridgeError::Lacking { at: 110, end: 1, .. }));
    let mut lost = bridge.out.live_files();
    lost.remove(&range_file_name(HeightRange::new(31, 41)));
    let lost = on(CrashStorage::holding(lost));
    assert!(matches!(lost.refused(), BridgeError::Lacking { at: 110, end: 31, .. }));
    let mut damaged = bridge.out.live_files();
    damaged.get_mut(&range_file_name(HeightRange::new(31, 41))).unwrap()[0] ^= 1;
    let damaged = on(CrashStorage::holding(damaged));
    assert!(matches!(damaged.refused(), BridgeError::File { .. }));
    let another = World::of(&random_chain(917).blocks());
    let other = Bridge::on(&another, 10, CrashStorage::new(), Arc::clone(&bridge.forest));
    assert!(matches!(other.refused(), BridgeError::Beyond { at: 110, .. }));
}

/// Segments without numbers cannot be resumed by a job that wants them. Segments with numbers can be resumed
/// by any job.
#[test]
fn segments_without_numbers_are_not_resumed_for_proofs() {
    let world = World::small(918);
    let bridge = Bridge::new(&world, 10);
    let without = Job { index: None, with_placed: false, ..bridge.job.clone() };
    let proofs_alone = Job { with_placed: false, ..bridge.job.clone() };
    for second in [with_roots(without.clone()), proofs_alone.clone()] {
        let place = Place::new();
        without.run(&place).unwrap();
        let error = second.run(&place).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
        assert!(error.to_string().contains("Utreexo"), "{error}");
    }
    let roots =
        |job: &Job, place: &Place| drop(with_roots(job.clone()).expect(&truth(&world), place));
    let place = Place::new();
    roots(&without, &place);
    without.run(&place).unwrap();
    for first_is_proofs in [true, false] {
        let place = Place::new();
        let bridge = Bridge::new(&world, 10);
        let job = Job { with_placed: false, ..bridge.job.clone() };
        match first_is_proofs {
            true => drop(job.run(&place).unwrap()),
            false => roots(&without, &place),
        }
        match first_is_proofs {
            true => roots(&without, &place),
            false => drop(job.run(&place).unwrap()),
        }
        expect_all(&world.chain, world.truth.stop, &bridge.out, &proofs(&world.chain));
        without.run(&place).unwrap();
    }
}

/// The result of a join for proofs has no hashes for roots, so the join is repeated.
#[test]
fn a_join_without_hashes_is_repeated_for_roots() {
    let world = World::small(919);
    let bridge = Bridge::new(&world, 10);
    let job = Job { checkpoint_interval: Duration::ZERO, ..bridge.job.clone() };
    let place = Place::new();
    Job { with_placed: false, ..job.clone() }.run(&place).unwrap();
    let hashes =
        |place: &Place| place.work.live_files().keys().any(|name| name.starts_with("spill-leaves"));
    assert!(place.work.live_files().contains_key("joined") && !hashes(&place));
    with_roots(job).expect(&truth(&world), &place);
    assert!(hashes(&place));
}

/// Files that do not fit together are reported.
#[test]
fn a_survey_reports_files_that_do_not_fit() {
    let world = World::small(919);
    let bridge = Bridge::new(&world, 30);
    bridge.run();
    let whole = bridge.out.live_files();
    let survey = |files: BTreeMap<String, Vec<u8>>| {
        let names: Vec<String> = files.keys().cloned().collect();
        survey_proofs(&CrashStorage::holding(files), &names)
    };
    let kind = |files: BTreeMap<String, Vec<u8>>| match survey(files).unwrap_err() {
        SyncError::Run(error) => *(error as Box<dyn Error>).downcast().unwrap(),
        error => panic!("{error}"),
    };
    assert!(matches!(kind(BTreeMap::new()), BridgeError::None { .. }));
    let second = range_file_name(HeightRange::new(31, 61));
    let mut files = whole.clone();
    files.remove(&second);
    assert!(matches!(kind(files), BridgeError::Gap { found: 61, wanted: 31, .. }));
    let hashes: Vec<BlockHash> = world.chain[31..61].iter().map(hash_of).collect();
    let mut files = whole.clone();
    files.insert(second.clone(), strange_file(Network::Regtest, 31, &hashes));
    assert!(matches!(kind(files), BridgeError::Seam { what: "another block before it", .. }));
    let mut files = whole.clone();
    let before = hash_of(&world.chain[30]);
    files.insert(second.clone(), file_behind(before, Network::Regtest, 31, &hashes));
    assert!(matches!(kind(files), BridgeError::Seam { what: "other roots", .. }));
    let mut files = whole.clone();
    let file = RangeFile::open(Cursor::new(files[&second].clone())).unwrap();
    files.get_mut(&second).unwrap()[file.blocks()[0].offset as usize] ^= 1;
    assert!(matches!(kind(files), BridgeError::File { .. }));
    // Invalid entries with right checksums.
    for (entry, is_proof) in [(&[0][..], false), (&[1, 0, 0], true), (&[0, 0, 0], true)] {
        let head = RangeHead {
            network: Network::Regtest.magic(),
            first: 1,
            before: BlockHash([1; 32]),
            roots: Roots::default(),
        };
        let mut writer = RangeWriter::new(Vec::new(), &head).unwrap();
        writer.put(&BlockHash([2; 32]), 0, entry).unwrap();
        let bytes = writer.finish(&Roots::default()).unwrap();
        let error = kind([("some.dat".to_owned(), bytes)].into());
        let is_reported = match is_proof {
            true => matches!(error, BridgeError::Data { height: 1, .. }),
            false => matches!(error, BridgeError::Entry { height: 1, .. }),
        };
        assert!(is_reported, "{error}");
    }
}
