//! The savings of caches, from proof files: files that a job makes, and invalid ones.

use crate::harness::{Job, Place, World};
use crate::proofs::index_of;
use apus_chain::{BlockHash, Network};
use apus_proofs::forest_store::MemoryForest;
use apus_proofs::{
    BridgeError, CACHES, CachesFound, CachesRequest, ProofsTotals, proofs_files, replay_caches,
    survey_proofs,
};
use apus_sync::{Engine, ErrorKind, Event, Observer, Phase, SilentObserver, SyncError};
use apus_testkit::storage::CrashStorage;
use apus_utreexo::{
    CachePolicy, CacheRule, CachesError, NodeHash, Proof, RangeHead, RangeWriter, Roots,
};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

/// The proofs of a chain, in files of 30 blocks.
fn proofs_of(world: &World) -> CrashStorage {
    let out = CrashStorage::new();
    let forest = Arc::new(MemoryForest::default());
    let index = index_of(Arc::new(out.clone()), forest, 30, 1 << 24);
    let job = Job { engine: Engine::MergeSync, index: Some(index as _), ..world.job() };
    job.run(&Place::new()).unwrap();
    out
}

fn rules() -> Vec<CacheRule> {
    let of = |policy| [0, 3, 1 << 20].map(|leaves| CacheRule { policy, leaves });
    [of(CachePolicy::Clairvoyant), of(CachePolicy::LookAhead(1_000_000))].concat()
}

fn replay(storage: &CrashStorage, observer: &dyn Observer) -> Result<CachesFound, SyncError> {
    let (rules, interrupt) = (rules(), AtomicBool::new(false));
    replay_caches(&CachesRequest { storage, rules: &rules, observer, interrupt: &interrupt })
}

fn refused(files: BTreeMap<String, Vec<u8>>) -> BridgeError {
    match replay(&CrashStorage::holding(files), &SilentObserver).unwrap_err() {
        SyncError::Run(error) => *(error as Box<dyn Error>).downcast().unwrap(),
        error => panic!("{error}"),
    }
}

#[derive(Default)]
struct Phases(Mutex<Vec<Phase>>);

impl Observer for Phases {
    fn event(&self, event: Event) {
        if let Event::Started(phase) = event {
            self.0.lock().unwrap().push(phase);
        }
    }
}

#[test]
fn caches_save_parts_of_the_proofs() {
    let world = World::small(930);
    let out = proofs_of(&world);
    let names: Vec<String> = proofs_files(&out).unwrap().into_iter().map(|it| it.1).collect();
    assert!(names.len() > 2);
    let surveyed = survey_proofs(&out, &names).unwrap();
    let phases = Phases::default();
    let found = replay(&out, &phases).unwrap();
    assert_eq!(*phases.0.lock().unwrap(), [Phase::Spends, CACHES]);
    assert_eq!((found.heights, found.leaves), (surveyed.heights, surveyed.after.leaves()));
    assert_eq!(found.costs.iter().map(|(rule, _)| *rule).collect::<Vec<_>>(), rules());
    let ProofsTotals { targets, hashes, proof_bytes, leaf_bytes, blocks, .. } = surveyed.totals;
    assert!(targets > 20 && hashes > 20);
    for (rule, cost) in &found.costs {
        assert_eq!(cost.coins, targets);
        assert!(cost.held_max <= rule.leaves);
        let all = (cost.remembered, cost.hashes, cost.proof_bytes, cost.leaf_bytes);
        match rule.leaves {
            0 => assert_eq!(all, (0, hashes, proof_bytes, leaf_bytes)),
            3 => assert!(cost.remembered > 0 && cost.hashes < hashes, "{cost:?}"),
            // Each proof shrinks to two zeros.
            _ => assert_eq!(all, (targets, 0, 2 * blocks, 0)),
        }
    }
}

/// A file of these blocks from block 1 on, given as the leaves after each block and its entry.
fn file(head_leaves: u64, blocks: &[(u64, Vec<u8>)]) -> BTreeMap<String, Vec<u8>> {
    let roots = |leaves: u64| {
        let mut bytes = leaves.to_le_bytes().to_vec();
        bytes.extend(u64::from(leaves.count_ones()).to_le_bytes());
        bytes.extend((0..leaves.count_ones()).flat_map(|_| NodeHash([7; 32]).0));
        Roots::read(&bytes).unwrap()
    };
    let (network, before) = (Network::Regtest.magic(), BlockHash([1; 32]));
    let head = RangeHead { network, first: 1, before, roots: roots(head_leaves) };
    let mut writer = RangeWriter::new(Vec::new(), &head).unwrap();
    for (leaves, entry) in blocks {
        writer.put(&BlockHash([2; 32]), *leaves, entry).unwrap();
    }
    let last = blocks.last().unwrap().0;
    let end = blocks.len() + 1;
    [(format!("proofs-00000001-{end:08}.dat"), writer.finish(&roots(last)).unwrap())].into()
}

/// An entry with these targets and `hashes` hashes.
fn entry(targets: &[u64], hashes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    Proof { targets: targets.to_vec(), hashes: vec![NodeHash([9; 32]); hashes] }.write(&mut bytes);
    let leaf = [[0; 12].as_slice(), &[1]].concat();
    targets.iter().for_each(|_| bytes.extend(&leaf));
    bytes
}

#[test]
fn errors_of_misplaced_entries_name_file_and_height() {
    let nothing = entry(&[], 0);
    let three = (3, nothing.clone());
    let whole = file(0, &[three.clone(), (3, entry(&[1], 1)), (4, entry(&[1 << 63, 2], 0))]);
    let interrupt = AtomicBool::new(true);
    let storage = CrashStorage::holding(whole.clone());
    let request = CachesRequest {
        storage: &storage,
        rules: &[],
        observer: &SilentObserver,
        interrupt: &interrupt,
    };
    assert!(matches!(replay_caches(&request), Err(SyncError::Interrupted)));
    let cost = replay(&storage, &SilentObserver).unwrap().costs[0].1;
    assert_eq!((cost.coins, cost.hashes), (3, 1));
    for (second, wanted) in [
        (entry(&[3], 0), CachesError::NoLeaf { target: 3, leaves: 3 }),
        (entry(&[1 << 63], 0), CachesError::NoLeaf { target: 1 << 63, leaves: 3 }),
        (entry(&[1, 1], 1), CachesError::Twice { target: 1 }),
        (entry(&[1], 0), CachesError::Hashes { found: 0, needed: 1 }),
        (entry(&[2], 1), CachesError::Hashes { found: 1, needed: 0 }),
    ] {
        let error = refused(file(0, &[three.clone(), (3, second)]));
        let message = error.to_string();
        assert!(
            message.contains("proofs-00000001-00000003.dat: the entry of block 2 does not"),
            "{message}"
        );
        assert!(
            matches!(&error, BridgeError::Block { error, .. } if *error == wanted),
            "{message}"
        );
        assert_eq!(SyncError::from(error).kind(), ErrorKind::Wrong);
    }
    let data = refused(file(0, &[three.clone(), (3, entry(&[1], 1)[..40].to_vec())]));
    assert!(matches!(data, BridgeError::Data { height: 2, targets: 1, .. }), "{data}");
}

#[test]
fn an_impossible_leaf_count_takes_no_memory() {
    let nothing = entry(&[], 0);
    let error = refused(file(0, &[(111_112, nothing.clone())]));
    let wanted = CachesError::Leaves { before: 0, after: 111_112 };
    assert!(matches!(&error, BridgeError::Block { error, .. } if *error == wanted), "{error}");
    replay(&CrashStorage::holding(file(0, &[(111_111, nothing.clone())])), &SilentObserver)
        .unwrap();
    let error = refused(file(0, &[(1 << 62, nothing)]));
    assert!(matches!(error, BridgeError::Memory { .. }), "{error}");
    assert_eq!(SyncError::from(error).kind(), ErrorKind::Io);
}

#[test]
fn files_must_begin_with_block_1() {
    assert!(matches!(refused(BTreeMap::new()), BridgeError::None { .. }));
    let leaves = refused(file(2, &[(2, entry(&[], 0))]));
    assert!(matches!(leaves, BridgeError::Begins { first: 1, leaves: 2, .. }), "{leaves}");
    let world = World::small(931);
    let mut files = proofs_of(&world).live_files();
    let second = files.keys().nth(1).unwrap().clone();
    let mut without = files.clone();
    without.remove(&second);
    assert!(matches!(refused(without), BridgeError::Gap { .. }));
    files.pop_first();
    let begins = refused(files);
    assert!(matches!(begins, BridgeError::Begins { first: 31, .. }), "{begins}");
    assert_eq!(SyncError::from(begins).kind(), ErrorKind::Usage);
}
