//! Blocks that a sync with peers keeps, for a node that continues from its coins.
//!
//! They are in the folder where a node looks for them, or in the draft of a data directory.

use crate::error::{StorageResult, SyncError, UsageError};
use crate::folder::{FolderDraft, FolderOutput, at, parent, remove_folder};
use crate::source::{BlockArchive, StoredBlocks};
use crate::workdir::names::HEADERS;
use apus_chain::{BlockHash, HEADER_SIZE, HeaderChain, Height, Network, Params};
use apus_datadir::{
    BlockStore, ChainBlock, LEVELDB_LOCK, Obfuscation, SpentCoins, write_block_index,
};
use apus_p2p::headers::HeaderList;
use apus_p2p::headers::store::{FRAME_HEADERS_MAX, HeaderFileReader, write_frames, write_head};
use apus_p2p::network::BlockProvider;
use apus_storage::{DirStorage, Storage, write_atomically_by};
use parking_lot::Mutex;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// The places of kept blocks.
#[derive(Debug, Clone)]
pub struct BlocksFolderOptions {
    /// The folder, created if missing: `blocks` next to the node's `chainstate`.
    pub folder: PathBuf,
    /// The file that lists the folder's content; it is part of the sync's progress.
    pub log: PathBuf,
    /// The data directory whose draft contains the folder, if there is one.
    pub datadir: Option<FolderOutput>,
}

/// The opened folder of a [`BlocksFolderOptions`].
#[derive(Debug)]
pub(super) struct BlockKeeper {
    blocks: BlockStore,
    index: PathBuf,
    /// Keeps other syncs out; held until the index is written.
    draft: Mutex<Option<FolderDraft>>,
}

impl BlockKeeper {
    pub(super) fn open(
        place: &BlocksFolderOptions,
        params: &Params,
    ) -> Result<Arc<Self>, SyncError> {
        let draft = place.datadir.as_ref().map(|output| match place.log.exists() {
            true => FolderDraft::find_or_begin(&output.path, output.replace),
            // The draft belongs to a sync whose progress is gone.
            false => FolderDraft::begin_at(&output.path, output.replace),
        });
        let draft = Mutex::new(draft.transpose()?);
        let index = place.folder.join("index");
        if place.log.exists() && !index.join(LEVELDB_LOCK).exists() {
            // An earlier start of this sync made this index, maybe for another chain. An index that a node has
            // opened is refused below.
            remove_folder(&index)?;
        }
        let (magic, genesis) = (params.network.magic(), params.genesis_block());
        let blocks =
            BlockStore::open(&place.folder, &place.log, magic, Obfuscation::NONE, Some(&genesis))?;
        Ok(Arc::new(Self { blocks, index, draft }))
    }

    pub(super) fn put(&self, hash: &BlockHash, raw: &[u8]) -> Result<(), SyncError> {
        Ok(self.blocks.put(hash, raw)?)
    }

    pub(super) fn read(&self, hash: &BlockHash) -> Result<Option<Vec<u8>>, SyncError> {
        Ok(self.blocks.read(hash)?)
    }

    pub(super) fn sync(&self) -> Result<(), SyncError> {
        Ok(self.blocks.sync()?)
    }
}

impl BlockArchive for BlockKeeper {
    fn has(&self, hash: &BlockHash) -> bool {
        self.blocks.has(hash)
    }

    fn has_undo(&self, hash: &BlockHash) -> bool {
        self.blocks.has_undo(hash)
    }

    fn put_undo(
        &self,
        hash: &BlockHash,
        prev: &BlockHash,
        spends: SpentCoins<'_>,
    ) -> Result<(), SyncError> {
        Ok(self.blocks.put_undo(hash, prev, spends)?)
    }

    fn write_index(
        &self,
        chain: &HeaderChain,
        last: Height,
    ) -> Result<Option<StoredBlocks<'_>>, SyncError> {
        if self.index.join(LEVELDB_LOCK).exists() {
            // A node was started here meanwhile, and now the index is its own.
            let file = self.index.display().to_string();
            return Err(SyncError::Usage(UsageError::OutputExists { file }));
        }
        remove_folder(&self.index)?;
        fs::create_dir_all(&self.index).map_err(at(&self.index))?;
        let hash = |height| *chain.hash(height).expect("the last block is on the chain");
        let at = &mut |height| ChainBlock::Stored(hash(height));
        write_block_index(&self.blocks, &DirStorage::new(&self.index), last + 1, at)?;
        let draft = self.draft.lock().take();
        Ok(Some(StoredBlocks {
            folder: parent(&self.index).to_owned(),
            blocks: &self.blocks,
            draft,
        }))
    }
}

impl BlockProvider for BlockKeeper {
    fn block(&self, hash: &BlockHash) -> Option<Vec<u8>> {
        self.blocks.read(hash).ok().flatten()
    }

    fn has(&self, hash: &BlockHash) -> bool {
        self.blocks.has(hash)
    }

    fn keeps_all(&self) -> bool {
        true
    }
}

// Stores headers in the work folder, in files in order of arrival. Each file is written in one go.
//
// Format of a file: `crates/p2p/src/headers/store.rs`. Unreadable headers, and all after them, are downloaded again;
// headers are checked again in any case.

/// Number of files from which the next start merges them into one.
const FILES_MAX: usize = 16;

fn name(number: u32) -> String {
    format!("{HEADERS}{number:05}")
}

/// The headers of an earlier start.
pub(super) struct StoredHeads {
    pub(super) headers: HeaderList,
    pub(super) next_file: u32,
}

/// Reads all files.
pub(super) fn read(storage: &dyn Storage, network: Network) -> Result<StoredHeads, SyncError> {
    let mut headers = HeaderList::default();
    let names = storage.names().at(storage, "")?;
    let files: Vec<&String> = names.iter().filter(|name| number_of(name).is_some()).collect();
    let mut next_file = 0;
    let mut whole = true;
    for file in &files {
        next_file = number_of(file).map_or(0, |number| number.saturating_add(1)).max(next_file);
        whole = whole && read_file(storage, file, network, &mut |header| headers.push(header))?;
    }
    if !whole || files.len() > FILES_MAX {
        // The file with everything is written first: if the next steps fail, nothing is lost.
        write(storage, next_file, network, &headers)?;
        for file in &files {
            storage.remove(file).at(storage, file)?;
        }
        next_file += 1;
    }
    Ok(StoredHeads { headers, next_file })
}

/// Passes all readable headers to `each`.
pub(super) fn for_each(
    storage: &dyn Storage,
    network: Network,
    each: &mut dyn FnMut(&[u8; HEADER_SIZE]),
) -> Result<(), SyncError> {
    for file in storage.names().at(storage, "")? {
        if number_of(&file).is_some() {
            read_file(storage, &file, network, each)?;
        }
    }
    Ok(())
}

fn number_of(name: &str) -> Option<u32> {
    name.strip_prefix(HEADERS)?.parse().ok()
}

/// Returns whether the file is complete.
fn read_file(
    storage: &dyn Storage,
    file: &str,
    network: Network,
    each: &mut dyn FnMut(&[u8; HEADER_SIZE]),
) -> Result<bool, SyncError> {
    let mut input = storage.open(file, 0).at(storage, file)?;
    let length = storage.len(file).at(storage, file)?;
    let Some(mut reader) = HeaderFileReader::open(&mut *input, network) else {
        return Ok(false);
    };
    while let Some(frame) = reader.next_frame() {
        frame.iter().for_each(&mut *each);
    }
    Ok(reader.good_bytes() == length)
}

/// Writes a file.
pub(super) fn write(
    storage: &dyn Storage,
    number: u32,
    network: Network,
    headers: &HeaderList,
) -> Result<(), SyncError> {
    let name = name(number);
    // The file of a long chain is never in memory as a whole.
    let write = |out: &mut dyn Write| {
        write_head(out, network)?;
        let mut headers = headers.iter();
        loop {
            let frame: Vec<[u8; HEADER_SIZE]> = headers.by_ref().take(FRAME_HEADERS_MAX).collect();
            if frame.is_empty() {
                return Ok(());
            }
            write_frames(out, &frame)?;
        }
    };
    write_atomically_by(storage, &name, write).at(storage, &name)
}
