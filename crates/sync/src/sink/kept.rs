//! `datadir:DIR` of blocks from peers by hints: a data directory around the blocks that the [source keeps](crate::peers).
//!
//! The blocks are in its draft already, which the source holds. The coins come beside them, then the index, and when all of
//! it is read back the folder gets its name. A node that started on less would begin anew, over the blocks.

use super::chainstate::{Tables, publish};
use super::datadir::begin_folder;
use super::{CoinSink, SetInfo, Whole};
use crate::error::{SyncError, UsageError};
use crate::folder::{BlocksRead, FolderOutput, WrittenFolder, parent, sync_folder};
use crate::request::Request;
use crate::sink::read_back::read_kept_back;
use crate::source::{ChainSource, KeptWhole};
use crate::supply::ranges::take_missing;
use apus_chain::Txid;
use apus_storage::DirStorage;

/// See the module.
pub(super) struct KeptSink<'a> {
    request: &'a Request<'a>,
    dir: &'a dyn ChainSource,
    output: &'a FolderOutput,
    place: &'a DirStorage,
    tables: Tables<'a>,
    /// There once the blocks have an index.
    kept: Option<KeptWhole<'a>>,
    blocks_read_back: BlocksRead,
}

impl<'a> KeptSink<'a> {
    /// Begins the coins, which go to `place`.
    pub(super) fn create(
        request: &'a Request<'_>,
        dir: &'a dyn ChainSource,
        output: &'a FolderOutput,
        place: &'a DirStorage,
        set: SetInfo,
    ) -> Result<Self, SyncError> {
        begin_folder(place.folder())?;
        let tables = Tables::create(place, set)?;
        let (kept, blocks_read_back) = (None, BlocksRead::default());
        Ok(Self { request, dir, output, place, tables, kept, blocks_read_back })
    }

    fn kept(&self) -> Result<&KeptWhole<'a>, SyncError> {
        self.kept.as_ref().ok_or(SyncError::Usage(UsageError::NoUndo))
    }
}

impl CoinSink for KeptSink<'_> {
    fn put(&mut self, txid: Txid, group: &[u8]) -> Result<(), SyncError> {
        self.tables.put(txid, group)
    }

    fn seal(&mut self) -> Result<(), SyncError> {
        self.tables.seal()
    }

    fn indexes(&self) -> bool {
        true
    }

    fn index(&mut self, whole: &Whole<'_>) -> Result<(), SyncError> {
        let (dir, last) = (self.dir, whole.set.height);
        take_missing(&self.request.env, dir, &dir.not_kept(last))?;
        self.kept = dir.complete(last)?;
        // All the way up to the draft, which is synced when it gets its name.
        sync_folder(&self.kept()?.folder)?;
        sync_folder(parent(self.place.folder()))
    }

    fn checks(&self) -> bool {
        true
    }

    fn bytes(&self) -> u64 {
        self.tables.bytes() + self.blocks_read_back.bytes
    }

    fn check(&mut self, whole: &Whole<'_>) -> Result<(), SyncError> {
        self.tables.check(whole)?;
        self.blocks_read_back = read_kept_back(self.request, self.dir, self.kept()?, whole.set)?;
        Ok(())
    }

    fn publish(self: Box<Self>, _whole: &Whole<'_>) -> Result<Option<WrittenFolder>, SyncError> {
        let Self { output, tables, blocks_read_back, kept, .. } = *self;
        let draft = kept.and_then(|kept| kept.draft);
        let draft = draft.ok_or(SyncError::Usage(UsageError::NoUndo))?;
        publish(output, draft, &tables, blocks_read_back).map(Some)
    }
}
