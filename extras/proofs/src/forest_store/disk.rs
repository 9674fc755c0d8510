//! [`DiskForest`]: the Utreexo forest's pages in a folder, in a log-structured merge tree.
//!
//! As in a coin store, a write is one sorted batch that includes the new block, so after a crash at any
//! moment the store is at a block.
//!
//! The folder has the format of a coin store, with "APUSFRST" in `store` and these entries:
//!
//! ```text
//! 00                        height (4), hash (32) of the last block in the forest, the roots after it
//! 01 level and index (8)    a page: 64 nodes and the nodes above them; the level in the highest seven bits
//! 02 height (4)             leaves before this block and the following ones (8 each), up to the next piece
//! ```
//!
//! A page without a live leaf has no entry.

use super::{ForestState, ForestStore, ForestWrite};
use apus_chain::{BlockHash, Height, KnownBlock, Network, Reader};
use apus_engine::utxo::StoreError;
use apus_engine::utxo::store::{DiskOptions, FolderForm, OpenedStore, TreeBatch};
use apus_sync::commitment::BlockPlaces;
use apus_utreexo::{PageId, Pages, Roots};
use std::path::Path;

const FORM: FolderForm = FolderForm { magic: b"APUSFRST", format: 1 };

const PAGE: u8 = 1;
const LEAVES: u8 = 2;

/// Pages of a forest in a folder.
pub struct DiskForest(OpenedStore);

impl std::fmt::Debug for DiskForest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskForest").field("place", &self.0.place).finish_non_exhaustive()
    }
}

/// Key of a page.
fn page_key(page: PageId) -> [u8; 9] {
    let mut key = [PAGE; 9];
    key[1..].copy_from_slice(&page.key());
    key
}

/// Key of the piece that starts at this height.
fn leaves_key(from: Height) -> [u8; 5] {
    let mut key = [LEAVES; 5];
    key[1..].copy_from_slice(&from.to_be_bytes());
    key
}

impl DiskForest {
    /// Opens the store in `folder`, or creates one if the folder is new or empty.
    pub fn open(folder: &Path, network: Network, options: DiskOptions) -> Result<Self, StoreError> {
        OpenedStore::open(folder, FORM, network, options).map(Self)
    }

    fn damaged(&self, what: &str) -> StoreError {
        StoreError::Damaged { place: self.0.place.clone(), what: what.to_owned() }
    }

    /// Reads the number of leaves before each block up to `height`, from all pieces.
    fn places(&self, height: Height) -> Result<BlockPlaces, StoreError> {
        let mut leaves = Vec::new();
        for entry in self.0.range([LEAVES]..[LEAVES + 1])? {
            let (key, piece) = entry?;
            let (piece, rest) = piece.as_chunks::<8>();
            if key[..] != leaves_key(leaves.len() as Height + 1) || !rest.is_empty() {
                return Err(self.damaged("numbers of leaves of some blocks are missing"));
            }
            leaves.extend(piece.iter().map(|count| u64::from_be_bytes(*count)));
        }
        let places = BlockPlaces::from_counts(leaves).filter(|places| places.blocks() == height);
        places.ok_or_else(|| self.damaged("numbers of leaves of some blocks are missing"))
    }

    /// Builds the batch of a write, in the order of keys.
    fn batch(&self, write: &ForestWrite<'_>) -> Result<TreeBatch<'_>, StoreError> {
        let mut batch = self.0.batch()?;
        let mut place = Vec::new();
        place.extend_from_slice(&write.block.height.to_be_bytes());
        place.extend_from_slice(&write.block.hash.0);
        write.roots.write(&mut place);
        batch.put(&OpenedStore::PLACE, Some(&place))?;
        let mut failure = None;
        (write.changes)(&mut |page, bytes| {
            if failure.is_none() {
                failure = batch.put(&page_key(page), bytes).err();
            }
        });
        failure.map_or(Ok(()), Err)?;
        if !write.leaves.is_empty() {
            let piece: Vec<u8> =
                write.leaves.iter().flat_map(|leaves| leaves.to_be_bytes()).collect();
            let first = write.block.height + 1 - write.leaves.len() as Height;
            batch.put(&leaves_key(first), Some(&piece))?;
        }
        Ok(batch)
    }
}

impl Pages for DiskForest {
    type Error = StoreError;

    fn read(&self, page: PageId, out: &mut Vec<u8>) -> Result<bool, StoreError> {
        let found = self.0.get(&page_key(page))?;
        out.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }
}

impl ForestStore for DiskForest {
    fn state(&self) -> Result<Option<ForestState>, StoreError> {
        let Some(place) = self.0.get(&OpenedStore::PLACE)? else { return Ok(None) };
        let (block, roots) = read_place(&place)
            .ok_or_else(|| self.damaged("cannot read the block that it is at"))?;
        let mut places = self.places(block.height)?;
        places.set_end(roots.leaves());
        Ok(Some(ForestState { block, roots, places }))
    }

    fn describe(&self) -> String {
        self.0.place.clone()
    }

    fn write(&self, write: &ForestWrite<'_>) -> Result<(), StoreError> {
        self.0.write(|| self.batch(write))
    }
}

fn read_place(bytes: &[u8]) -> Option<(KnownBlock, Roots)> {
    let mut reader = Reader::new(bytes);
    let height = Height::from_be_bytes(*reader.array().ok()?);
    let hash = BlockHash(*reader.array().ok()?);
    let roots = Roots::read(reader.take(reader.remaining()).ok()?).ok()?;
    Some((KnownBlock { height, hash }, roots))
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_testkit::rng::Rng;
    use apus_utreexo::{Forest, NodeHash, Proof};

    const OPTIONS: DiskOptions = DiskOptions { cache_bytes: 1 << 20, table_bytes: 4 << 10 };

    fn block(height: Height) -> KnownBlock {
        KnownBlock { height, hash: BlockHash([height as u8; 32]) }
    }

    /// A block's spent and added leaves.
    fn step(rng: &mut Rng, live: &mut Vec<u64>, leaves: u64) -> (Vec<u64>, Vec<NodeHash>) {
        let spent = (0..rng.index(4).min(live.len()))
            .map(|_| {
                let at = rng.index(live.len());
                live.swap_remove(at)
            })
            .collect();
        let added: Vec<NodeHash> =
            (0..rng.between(1, 90)).map(|_| NodeHash(rng.bytes(32).try_into().unwrap())).collect();
        live.extend(leaves..leaves + added.len() as u64);
        (spent, added)
    }

    fn take(store: &DiskForest, forest: &mut Forest<&DiskForest>, leaves: &[u64], at: Height) {
        let write = ForestWrite {
            block: block(at),
            roots: forest.roots(),
            leaves,
            changes: &|each| forest.changes(each),
        };
        store.write(&write).unwrap();
        forest.set_stored();
    }

    /// A forest whose store is reopened after random blocks makes the same proofs as one that is never
    /// closed.
    #[test]
    fn a_reopened_store_is_at_the_same_block() {
        let (mut rng, folder) = (Rng::new(5), tempfile::tempdir().unwrap());
        let other = tempfile::tempdir().unwrap();
        let open = || DiskForest::open(folder.path(), Network::Regtest, OPTIONS).unwrap();
        let whole = DiskForest::open(other.path(), Network::Regtest, OPTIONS).unwrap();
        assert_eq!(whole.state().unwrap(), None);
        let mut model = Forest::open(&whole, Roots::default(), 1 << 30);
        let (mut live, mut height, mut proofs) = (Vec::new(), 0, 0);
        for _ in 0..25 {
            let store = open();
            let state = store.state().unwrap().unwrap_or_default();
            assert_eq!((state.block.height, state.roots.leaves()), (height, model.leaves()));
            let (mut places, mut leaves) = (state.places, Vec::new());
            let mut forest = Forest::open(&store, state.roots, 1 << 12);
            for _ in 0..rng.between(1, 6) {
                let (spent, added) = step(&mut rng, &mut live, model.leaves());
                leaves.push(model.leaves());
                places.push(added.len() as u64);
                let proof: Proof = model.block(&spent, &added).unwrap();
                assert_eq!(forest.block(&spent, &added).unwrap(), proof);
                (height, proofs) = (height + 1, proofs + usize::from(!spent.is_empty()));
            }
            take(&store, &mut forest, &leaves, height);
            assert_eq!(forest.roots(), model.roots());
            assert_eq!(store.state().unwrap().unwrap().places, places);
        }
        assert!(proofs > 20);
    }

    #[test]
    fn other_stores_and_damage_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = DiskForest::open(folder.path(), Network::Regtest, OPTIONS).unwrap();
        let mut forest = Forest::open(&store, Roots::default(), 1 << 20);
        forest.block(&[], &[NodeHash([1; 32])]).unwrap();
        // One block, without the number of leaves before it.
        take(&store, &mut forest, &[], 1);
        assert!(matches!(store.state(), Err(StoreError::Damaged { .. })));
        take(&store, &mut forest, &[0], 1);
        assert!(store.state().unwrap().is_some());
        take(&store, &mut forest, &[5], 3);
        assert!(matches!(store.state(), Err(StoreError::Damaged { .. })), "a block is missing");
        drop(store);
        let other = DiskForest::open(folder.path(), Network::Main, OPTIONS);
        assert!(matches!(other, Err(StoreError::OtherNetwork { .. })));
        let coins =
            apus_engine::utxo::store::DiskStore::open(folder.path(), Network::Regtest, OPTIONS);
        assert!(matches!(coins, Err(StoreError::Damaged { .. })), "not a coin store");
    }
}
